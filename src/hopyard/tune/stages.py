"""Where Spark is in use, searches and models are stages of its pipelines."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Literal


def become_stage(thing: object, kind: Literal["model", "search"]) -> None:
    """Make ``thing`` an Estimator or Transformer of Spark ML as well, if PySpark is loaded.

    ``Pipeline(stages=[indexer, search])`` and ``PipelineModel.save`` look at classes, and those of PySpark cannot be
    named where it is not installed.
    """
    if "pyspark" in sys.modules:  # imported here, PySpark would be loaded where nobody uses it
        thing.__class__ = import_module("hopyard.tune.engines.sparkml").stage_class(type(thing), kind)


def plain_class(cls: type) -> type:
    """The class as it was before it became a stage: the one that its name stands for."""
    found: type = getattr(cls, "plain_class", cls)
    return found
