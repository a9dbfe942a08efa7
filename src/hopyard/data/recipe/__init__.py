"""Recipes by which rows of files become rows of a dataset: everything between Arrow and a batch."""
