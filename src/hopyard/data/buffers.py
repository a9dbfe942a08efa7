"""Memory for batches, used again as soon as nobody holds it.

Memory fresh from the system costs a page fault every 4 KiB, as much as the gather itself. A
buffer is free when its reference count is what the pool alone causes: every array or tensor over
it, however derived, keeps the buffer's owner alive.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
_KEPT_PER_SIZE = 4
_KEPT_SIZES = 64


def _references_of_an_idle_buffer() -> int:
    """What ``getrefcount`` says, in a loop as in the pool's, of a buffer that only the pool holds."""
    for owner, _ in deque([(np.empty(1, np.uint8), 0)]):
        return sys.getrefcount(owner)
    raise AssertionError


_IDLE = _references_of_an_idle_buffer()


class Buffers:
    """Recycled buffers by size; the memory of each begins at a multiple of 64 bytes."""

    def __init__(self) -> None:
        self._by_size: dict[int, deque[tuple[npt.NDArray[np.uint8], int]]] = {}

    def pair(
        self, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...], width: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
        """Uninitialised (rows, *shape) of ``dtype``, and the same memory as (rows, width) uint8."""
        owner, offset = self._idle_or_new(rows * width)
        return (
            np.ndarray((rows, *shape), dtype, owner, offset),
            np.ndarray((rows, width), np.uint8, owner, offset),
        )

    def empty(self, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Uninitialised (rows, *shape) of ``dtype``."""
        return self.pair(rows, dtype, shape, dtype.itemsize * math.prod(shape))[0]

    def _idle_or_new(self, size: int) -> tuple[npt.NDArray[np.uint8], int]:
        """A buffer, and where in it the aligned ``size`` bytes begin."""
        kept = self._by_size.get(size)
        if kept is None:
            if len(self._by_size) >= _KEPT_SIZES:  # sizes change all the time: forget those of the past
                self._by_size.clear()
            kept = self._by_size[size] = deque(maxlen=_KEPT_PER_SIZE)
        for owner, offset in kept:
            if sys.getrefcount(owner) == _IDLE:
                return owner, offset
        owner = np.empty(size + ALIGNMENT, np.uint8)
        offset = -owner.ctypes.data % ALIGNMENT
        kept.append((owner, offset))  # all are held: the oldest is left to its holder
        return owner, offset
