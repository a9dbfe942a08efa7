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
"""A function that gives rows as ``EpochStream.batch`` does."""

_GATHERED_AT_ONCE = 256 << 10  # bytes; with what is done with them they stay in the cache of the core
_MOST_AT_ONCE = 16  # batches


def several_at_once(gather: Gather, schema: Schema, wanted: Wanted, batch_size: int, rows: int) -> Gather:
    """``gather`` for batches that follow each other up to the row ``rows``: several at once if they are small."""
    widths = []
    room = _GATHERED_AT_ONCE
    for columns in wanted.values():
        names = [columns] if isinstance(columns, str) else columns
        each = [schema[name].width for name in names]
        width = sum(its or 0 for its in each) * batch_size
        room -= 2 * width
        if None in each or width % ALIGNMENT or room < 0:  # of a wide frame most columns are not looked at
            return gather
        widths.append(width)
    count = min(_GATHERED_AT_ONCE // max(sum(widths), 1), _MOST_AT_ONCE)
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
