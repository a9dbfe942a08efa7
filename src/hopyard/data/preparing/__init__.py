"""Preparation of rows as a dataset: Parquet that is also flat arrays, and the manifest."""
