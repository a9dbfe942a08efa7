"""Predictions in the tasks of Ray Data, by ``map_batches``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from hopyard.tune.predicting.predictor import Packed, Predictor


def transform(dataset: Any, packed: Packed, columns: Sequence[str], fields: Sequence[pa.Field]) -> Any:
    """A Ray dataset with a model's outputs; each task has a GPU where the cluster has any."""
    import ray

    predictor = Predictor(packed.digest, partial(_get, ray.put(packed.data)), columns, fields, _device)
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = 1 if resources.get("GPU", 0) >= 1 else None
    return dataset.map_batches(predictor, batch_format="pyarrow", zero_copy_batch=True, num_gpus=gpus)


def _get(reference: Any) -> bytes:
    import ray

    data: bytes = ray.get(reference)
    return data


def _device() -> str:
    """Ray shows a task the GPU that is its own, and no others."""
    return "auto"
