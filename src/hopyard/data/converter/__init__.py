"""Spark DataFrames as Parquet that loaders read: the converter, with the names that Petastorm gave it."""
