"""Datasets that Petastorm wrote, read without loading their pickles."""
