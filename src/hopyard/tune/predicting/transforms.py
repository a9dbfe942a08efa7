"""Finds the engine that predicts on a frame: each engine has a file of its own here, imported when its frames come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias, cast

import pyarrow as pa

from hopyard.tune.predicting.frames import kind_of
from hopyard.tune.predicting.predictor import Packed

FrameTransform: TypeAlias = Callable[[Any, Packed, Sequence[str], Sequence[pa.Field]], Any]
"""From a frame, a model, its features, and the columns to add, to a frame with these columns. Nothing is computed
until somebody asks for rows."""

_FILES = {"pyspark": "spark", "ray": "ray", "dask": "dask"}


def transform_of(data: Any) -> FrameTransform | None:
    """Function that adds a model's outputs to ``data`` on its engine; None: it is in this process's memory."""
    file = _FILES.get(kind_of(data))
    if file is None:
        return None
    return cast(FrameTransform, import_module(f"hopyard.tune.predicting.{file}").transform)
