"""Predictions of models: rows in, outputs out, in this process and on the frames of Spark, Ray Data and Dask."""
