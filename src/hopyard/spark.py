"""Public names for Spark: the converter from DataFrames to PyTorch and TensorFlow, and the stages of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopyard.data.converter.converter import SparkDatasetConverter, register_delete_dir_handler
from hopyard.data.converter.making import make_spark_converter
from hopyard.missing import name_of_elsewhere

__all__ = [
    "ModelStage",
    "SearchStage",
    "SparkDatasetConverter",
    "make_spark_converter",
    "register_delete_dir_handler",
]

_STAGES = ("ModelStage", "SearchStage")

if TYPE_CHECKING:
    from hopyard.tune.sparkml import ModelStage as ModelStage
    from hopyard.tune.sparkml import SearchStage as SearchStage
else:

    def __getattr__(name: str) -> Any:
        """The stages need PySpark. Saved pipelines name them as they are called here."""
        if name not in _STAGES:
            return name_of_elsewhere(__name__, name, __all__)
        from hopyard.tune import sparkml

        return getattr(sparkml, name)
