"""Samples for the benchmarks of the stockroom: the same in every process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SHAPES: dict[str, tuple[int, ...]] = {"64-byte": (64,), "image": (3, 32, 32)}


def samples(kind: str, rows: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """(rows, *shape) uint8, which no compression makes smaller."""
    shape = SHAPES[kind]
    data = np.random.default_rng(seed).bytes(rows * math.prod(shape))
    return np.frombuffer(data, np.uint8).reshape(rows, *shape)
