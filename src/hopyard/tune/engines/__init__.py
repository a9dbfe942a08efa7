"""Models and searches on the frames of Spark, Ray Data and Dask."""
