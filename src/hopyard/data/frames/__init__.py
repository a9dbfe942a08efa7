"""Frames of Spark, Ray Data and Dask: their own workers write the dataset, the driver only its manifest."""
