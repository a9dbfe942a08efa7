"""Memory for batches, used again as soon as nobody holds it.

Memory fresh from the system costs a page fault every 4 KiB, as much as the gather itself. A
buffer is free when its reference count is the one that the pool alone causes: every array or tensor over
it, however derived, keeps the buffer's owner alive.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hopyard.data.recipe.decoding import DecodingThreads

ALIGNMENT = 64
_KEPT_PER_SIZE = 4
_KEPT_SIZES = 64


class AlignedBuffer(NamedTuple):
    """Memory: the aligned part begins at ``offset`` of ``owner``."""

    owner: npt.NDArray[np.uint8]
    offset: int
    raw: npt.NDArray[np.uint8]
    """The memory as (rows, width), beginning at the offset."""

    @classmethod
    def new(cls, rows: int, width: int) -> AlignedBuffer:
        owner = np.empty(rows * width + ALIGNMENT, np.uint8)
        offset = -owner.ctypes.data % ALIGNMENT
        return cls(owner, offset, np.ndarray((rows, width), np.uint8, owner, offset))


def _references_of_an_idle_buffer() -> int:
    """The value of ``getrefcount`` for a buffer that only the pool holds, in a loop as the pool's."""
    for buffer in deque([AlignedBuffer.new(1, 1)]):
        return sys.getrefcount(buffer.owner)
    raise AssertionError


_IDLE = _references_of_an_idle_buffer()


class Buffers:
    """Recycled buffers by rows and width; the memory of each begins at a multiple of 64 bytes.

    Args:
        arrow_strings: strings and bytes may come as Arrow arrays (large) instead of object arrays.

    Attributes:
        coded: instead of object arrays, those of few different values may come as ``Coded``.
        begun: threads that may fill arrays after they were handed out, and functions that wait for that, which are
            added here; None: arrays are whole when they come.
    """

    def __init__(self, arrow_strings: bool = False) -> None:
        self.arrow_strings = arrow_strings
        self.coded = False
        self.begun: tuple[DecodingThreads, list[Callable[[], None]]] | None = None
        self._by_size: dict[tuple[int, int], deque[AlignedBuffer]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_size": {}}  # memory stays with its process

    def pair(
        self, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...], width: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
        """Uninitialised (rows, *shape) of ``dtype``, and the same memory as (rows, width) uint8.

        The second is the pool's own: it is to be written to now, and not to be kept.
        """
        owner, offset, raw = self.buffer(rows, width)
        return np.ndarray((rows, *shape), dtype, owner, offset), raw

    def empty(self, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Uninitialised (rows, *shape) of ``dtype``."""
        return self.pair(rows, dtype, shape, dtype.itemsize * math.prod(shape))[0]

    def forget(self, numbers: Collection[int]) -> None:
        """Leave buffers of these numbers of rows to their holders."""
        self._by_size = {size: kept for size, kept in self._by_size.items() if size[0] not in numbers}

    def buffer(self, rows: int, width: int) -> AlignedBuffer:
        """Memory of that many bytes, which nobody holds."""
        kept = self._by_size.get((rows, width))
        if kept is None:
            if len(self._by_size) >= _KEPT_SIZES:  # sizes change all the time: forget those of the past
                self._by_size.clear()
            kept = self._by_size[rows, width] = deque(maxlen=_KEPT_PER_SIZE)
        for buffer in kept:
            if sys.getrefcount(buffer.owner) == _IDLE:
                return buffer
        new = AlignedBuffer.new(rows, width)
        kept.append(new)  # all are held: the oldest is left to its holder
        return new
