"""Which data is a frame of a cluster; told by the modules of types, so that no engine is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hopyard.data.frames.base import Frame, FrameSource
from hopyard.data.sources.convert import module_of

_ENGINES = {
    "pyspark": ("spark_frame", "SparkFrame"),
    "ray": ("ray_frame", "RayFrame"),
    "dask": ("dask_frame", "DaskFrame"),
}
_FRAMES = ("DataFrame", "Dataset", "MaterializedDataset")


def is_frame(data: Any) -> bool:
    """Whether it is a DataFrame of Spark (classic or Connect, or of pandas on Spark), a Dataset of Ray Data or a
    DataFrame of Dask, whose own workers can write it as a dataset."""
    return module_of(data) in _ENGINES and type(data).__name__ in _FRAMES


def frame_source(data: Any) -> FrameSource | None:
    """A frame of a cluster as a source, or None if ``data`` is none."""
    if not is_frame(data):
        return None
    module, name = _ENGINES[module_of(data)]
    frame: Frame = getattr(import_module(f"hopyard.data.frames.{module}"), name)(data)
    return FrameSource(frame)
