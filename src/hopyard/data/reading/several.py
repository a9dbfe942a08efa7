"""Small batches that follow each other, gathered several at once.

A call of ``take`` for 16 rows costs as much as the rows. Batches are parts of what one call gathered for
many: each begins at a multiple of 64 bytes, and no two share memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from hopyard.data.reading.buffers import ALIGNMENT, Buffers
from hopyard.data.reading.views import Batch

if TYPE_CHECKING:
    from hopyard.data.loader import Loader

Gather: TypeAlias = Callable[[int, int, Buffers], Batch]
"""As ``Stream.batch``."""

_GATHERED_AT_ONCE = 256 << 10  # bytes; with what is done with them they stay in the cache of the core
_MOST_AT_ONCE = 16  # batches


def several_at_once(gather: Gather, loader: Loader) -> Gather:
    """``gather``, for that loader's batches: several at once if they are small and follow each other."""
    schema = loader.dataset.schema
    names = [[columns] if isinstance(columns, str) else columns for columns in loader.wanted.values()]
    if loader.world_size > 1 or any(schema[name].width is None for columns in names for name in columns):
        return gather
    widths = [sum(schema[name].width or 0 for name in columns) * loader.batch_size for columns in names]
    count = min(_GATHERED_AT_ONCE // max(sum(widths), 1), _MOST_AT_ONCE)
    return (
        gather if count < 2 or any(width % ALIGNMENT for width in widths) else _Several(gather, count, loader)
    )


class _Several:
    """Batches of a stream, ``count`` of them gathered at once."""

    def __init__(self, gather: Gather, count: int, loader: Loader) -> None:
        self._gather = gather
        self._rows = count * loader.batch_size
        self._end = len(loader.dataset)
        self._first = self._last = 0
        self._batches: Batch = {}

    def __call__(self, first: int, last: int, buffers: Buffers) -> Batch:
        if not (self._first <= first and last <= self._last):
            self._batches = {}  # its memory can be used again
            self._first, self._last = first, max(last, min(first + self._rows, self._end))
            self._batches = self._gather(first, self._last, buffers)
        begin, end = first - self._first, last - self._first
        batch = {name: values[begin:end] for name, values in self._batches.items()}
        if last == self._last:
            self._batches = {}
            self._first = self._last = 0
        return batch
