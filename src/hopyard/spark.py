"""What users import for Spark: the converter from DataFrames to PyTorch and TensorFlow."""

from __future__ import annotations

from hopyard.data.converter.converter import SparkDatasetConverter, register_delete_dir_handler
from hopyard.data.converter.making import make_spark_converter

__all__ = ["SparkDatasetConverter", "make_spark_converter", "register_delete_dir_handler"]
