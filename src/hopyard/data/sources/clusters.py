"""Frames of clusters, recognised by the modules of their types, so that no engine is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hopyard.data.columns.convert import module_of
from hopyard.data.sources.base import Source

_ENGINES = {"pyspark": "spark_frame", "ray": "ray_frame", "dask": "dask_frame"}
"""Modules of types, and modules of ours that are loaded for them."""

_FRAMES = ("DataFrame", "Dataset", "MaterializedDataset")


def is_frame(data: Any) -> bool:
    """Whether ``data`` is a DataFrame of Spark (classic or Connect, or of pandas on Spark), a Dataset of Ray Data or a
    DataFrame of Dask, whose own workers can write it as a dataset."""
    return module_of(data) in _ENGINES and type(data).__name__ in _FRAMES


def frame_source(data: Any) -> Source | None:
    """A frame of a cluster as a source, or None if ``data`` is none."""
    if not is_frame(data):
        return None
    source: Source = import_module(f"hopyard.data.frames.{_ENGINES[module_of(data)]}").source_of(data)
    return source
