"""Placement of row groups, so that each column's bodies in a file are rows of one virtual array."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.layout import (
    Values,
    arrow_schema,
    arrow_table,
    is_fixed,
    stored_dtype,
    writer_options,
)
from hopyard.data.schema import Schema

_SMALL = 16 << 10  # bytes that may be lost before any row group


class Placement:
    """Finds where the next row group of a file is to begin.

    The bodies of a column in the first row group and in every other differ by a multiple of the
    column's width, for all mapped columns at once, if there is such a place within a tenth of a
    row group; otherwise the row group begins where the one before ends.
    """

    def __init__(self, schema: Schema) -> None:
        self._fixed = Schema(column for column in schema if is_fixed(column))
        stored = [stored_dtype(column) for column in self._fixed]
        self._widths = np.array([1 if dtype is None else dtype.itemsize for dtype in stored], np.int64)
        self._first: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None

    def start(self, position: int, rows: int, before: int) -> int:
        """Offset at which a row group of ``rows`` rows begins, if ``position`` bytes are written and the row
        group before has ``before`` bytes; the first call is for the first row group."""
        bodies = position + np.array(body_offsets(self._fixed, rows), np.int64)
        if self._first is None:
            self._first = bodies
            return position
        off = (self._first - bodies) % self._widths  # what is missing for each column
        widest = int(self._widths.max(initial=1))
        first = int(off[np.argmax(self._widths)]) if len(off) else 0
        tried = np.arange(first, max(before // 10, _SMALL), widest)
        # One condition after another: all at once would take memory for each column and place.
        for width, missing in sorted(set(zip(self._widths.tolist(), off.tolist(), strict=True))):
            tried = tried[(tried - missing) % width == 0]
        return position + (int(tried[0]) if len(tried) else 0)


@lru_cache(64)
def body_offsets(fixed: Schema, rows: int) -> tuple[int, ...]:
    """Offset of each column's body in a row group; ``fixed`` are its columns of fixed width.

    Measured by writing such a row group to memory: page headers differ in length.
    """
    zeros: dict[str, Values] = {
        column.name: np.zeros((rows, *column.shape), column.dtype) for column in fixed
    }
    if not zeros:
        return ()
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, arrow_schema(fixed), **writer_options()) as writer:
        writer.write_table(arrow_table(fixed, zeros), row_group_size=rows)
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    offsets = []
    start = group.column(0).data_page_offset
    for number, column in enumerate(fixed):
        chunk, dtype = group.column(number), stored_dtype(column)
        body = 0 if dtype is None else rows * dtype.itemsize
        offsets.append(chunk.data_page_offset + chunk.total_compressed_size - body - start)
    return tuple(offsets)
