"""Small batches that follow each other, gathered several at once.

A call of ``take`` for 16 rows costs as much as the rows. Batches are parts of what one call gathered for
many: each begins at a multiple of 64 bytes, and no two share memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hopyard.data.reading.buffers import ALIGNMENT, Buffers
from hopyard.data.reading.views import Batch, Wanted
from hopyard.data.schema import Schema

Gather: TypeAlias = Callable[[int, int, Buffers], Batch]
"""A function that gives rows as ``Stream.batch`` does."""

_GATHERED_AT_ONCE = 256 << 10  # bytes; with what is done with them they stay in the cache of the core
_MOST_AT_ONCE = 16  # batches


def several_at_once(gather: Gather, schema: Schema, wanted: Wanted, batch_size: int, rows: int) -> Gather:
    """``gather`` for batches that follow each other up to the row ``rows``: several at once if they are small."""
    names = [[columns] if isinstance(columns, str) else columns for columns in wanted.values()]
    if any(schema[name].width is None for columns in names for name in columns):
        return gather
    widths = [sum(schema[name].width or 0 for name in columns) * batch_size for columns in names]
    count = min(_GATHERED_AT_ONCE // max(sum(widths), 1), _MOST_AT_ONCE)
    if count < 2 or any(width % ALIGNMENT for width in widths):
        return gather
    return _Several(gather, count * batch_size, rows)


class _Several:
    """Batches of a stream, those of ``rows`` rows gathered at once."""

    def __init__(self, gather: Gather, rows: int, end: int) -> None:
        self._gather, self._rows, self._end = gather, rows, end
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
