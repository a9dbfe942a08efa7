"""Public names for Spark: the converter from DataFrames to PyTorch and TensorFlow, and the stages of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.data.converter.converter import SparkDatasetConverter, register_delete_dir_handler
from hopyard.data.converter.making import make_spark_converter
from hopyard.missing import imported_later

__all__ = [
    "ModelStage",
    "SearchStage",
    "SparkDatasetConverter",
    "make_spark_converter",
    "register_delete_dir_handler",
]

if TYPE_CHECKING:
    from hopyard.tune.sparkml import ModelStage as ModelStage
    from hopyard.tune.sparkml import SearchStage as SearchStage
else:
    # The stages need PySpark. Saved pipelines name them as they are called here.
    _STAGES = dict.fromkeys(("ModelStage", "SearchStage"), "hopyard.tune.sparkml")
    __getattr__, __dir__ = imported_later(__name__, _STAGES, __all__)
