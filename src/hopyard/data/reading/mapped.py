"""Columns read straight from mapped Parquet files: the body of a chunk *is* the array.

A chunk qualifies if it is REQUIRED, PLAIN, uncompressed and one page; footer and page header say
so, and also that the body is where it should be. Bodies of one column whose addresses differ by
multiples of the row's width are rows of one virtual (N, width) array, with anything between them.
``layout.py`` writes files in which all of a column's bodies do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.files.stored import StoredFile
from hopyard.data.order import Rows
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.flat import element_dtype
from hopyard.data.reading.page_header import (
    LONGEST_HEADER,
    PLAIN,
    read_page_header,
)
from hopyard.data.schema import Column
from hopyard.data.sparse import dense_rows
from hopyard.errors import CorruptError

Bytes = npt.NDArray[np.uint8]

_LONG_ROWS = 64  # elements; longer rows are cheaper to copy one by one
_LINE = 64  # bytes of a cache line
_MANY_TABLES = 16  # from so many on, rows are copied one by one
_TOUCHED_FROM, _TOUCHED_TO = (
    1 << 10,
    1 << 13,
)  # bytes of rows that are faster to copy once their beginnings are near


def stored_as(column: Column, described: pq.ColumnSchema, kind: pa.DataType) -> np.dtype[Any] | None:
    """The NumPy dtype of one row (void if it is a tensor) in a chunk so described, or None: decode it.

    Only numbers and bytes lie there as they are: times count other units, decimals are scaled.
    """
    if column.stored_width is None or described.max_definition_level or described.max_repetition_level:
        return None
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or type(kind) is pa.FixedSizeBinaryType):
        return None
    physical = described.physical_type
    if physical == "FIXED_LEN_BYTE_ARRAY":
        if described.length != column.width:
            return None
        return np.dtype((np.void, column.width)) if column.shape else np.dtype(column.dtype)
    if column.shape or column.dtype == "bool":
        return None
    if physical in ("INT32", "INT64"):
        size = 4 if physical == "INT32" else 8
        own = np.dtype(column.dtype)
        return own if own.itemsize == size and own.kind in "iu" else np.dtype(f"i{size}")
    floating = {"FLOAT": "float32", "DOUBLE": "float64"}.get(physical)
    return np.dtype(floating) if floating else None


def find_body(file: StoredFile, content: Bytes, group: int, leaf: int, width: int) -> int | None:
    """Offset of a chunk's first row in ``content``, the file's bytes; None if the chunk is no flat array.

    Raises:
        CorruptError: the footer places the chunk outside the file.
    """
    described = file.footer.row_group(group)
    chunk = described.column(leaf)
    if chunk.compression != "UNCOMPRESSED" or chunk.has_dictionary_page:
        return None
    body: int = described.num_rows * width
    start: int = chunk.data_page_offset
    end: int = start + chunk.total_compressed_size
    if not 0 < start <= end <= len(content):
        raise CorruptError(
            f"{file.name}, row group {group}, column {chunk.path_in_schema!r}: the footer places the column at "
            f"bytes {start} to {end}, but the file has {len(content)}. It was truncated or changed: restore "
            "it, or prepare the data again."
        )
    header = end - body - start
    if not 0 < header <= LONGEST_HEADER:
        return None
    if not _is_plain_page(content[start : start + header].tobytes(), described.num_rows, body):
        return None
    return end - body


def _is_plain_page(header: bytes, rows: int, body: int) -> bool:
    """Whether the header is that of a data page with ``rows`` PLAIN values and nothing else."""
    try:
        page, length = read_page_header(header)
    except ValueError:
        return False
    return (length, page.size, page.values, page.encoding) == (len(header), body, rows, PLAIN)


@dataclass(frozen=True)
class Bodies:
    """Places of the rows of some row groups in a stretch of bytes.

    Attributes:
        content: the bytes.
        starts: (groups,) offset in ``content`` of each row group's first row.
        first_rows: (groups,) number of each row group's first row.
        group_rows: (groups,) rows of each.
    """

    content: Bytes
    starts: Rows
    first_rows: Rows
    group_rows: Rows


class MappedColumn:
    """One column of some row groups, or scalar columns of one dtype side by side, gathered from where they lie.

    Args:
        names: of the columns; several are one (n, columns) array.
        dtype: of the elements in a batch.
        shape: of a column's row.
        stored: dtype of a row in the files; void for tensors. One that differs is cast per batch.
        bodies: places of the rows.
        whole_groups: the rows there are all rows of the row groups, also rows that a filter left out.
    """

    is_apart = False

    def __init__(
        self, names: tuple[str, ...], dtype: np.dtype[Any], shape: tuple[int, ...], stored: np.dtype[Any],
        bodies: Bodies, whole_groups: bool,
    ) -> None:  # fmt: skip
        self.names = names
        self.whole_groups = whole_groups
        self._row_dtype = dtype
        self._shape = (*shape, len(names)) if len(names) > 1 else shape
        self._stored = stored
        self._cast = not self._shape and stored != dtype
        self._lay(bodies, stored.itemsize)

    def _lay(self, bodies: Bodies, width: int) -> None:
        """Bodies at distances that are multiples of the width are rows of one table; of many tables there is none."""
        self._content, self._width = bodies.content, width
        self._remainders = bodies.starts % width
        remainders, self._piece_of_group = np.unique(self._remainders, return_inverse=True)
        self._tables: list[Bytes] = []
        if len(remainders) > _MANY_TABLES:
            self.shift: Rows = bodies.starts // width - bodies.first_rows
            self._only = self._touched = None
            return
        shift = np.zeros(len(bodies.starts), np.int64)  # from a row's number to its row of the table
        for piece in range(len(remainders)):
            groups = np.flatnonzero(self._piece_of_group == piece)
            base = int(bodies.starts[groups].min())
            table_rows = (bodies.starts[groups] - base) // width
            shift[groups] = table_rows - bodies.first_rows[groups]
            length = int((table_rows + bodies.group_rows[groups]).max())
            self._tables.append(bodies.content[base : base + length * width].reshape(length, width))
        self.shift = shift
        self._only = self._tables[0] if len(self._tables) == 1 else None
        is_touched = width == _LINE or _TOUCHED_FROM <= width <= _TOUCHED_TO
        self._touched = self._tables[0].reshape(-1) if is_touched and len(self._tables) == 1 else None

    def gather(self, places: Rows, groups: Rows, buffers: Buffers) -> npt.NDArray[Any]:
        """Rows (n, *shape), or (n, columns); ``places`` are row numbers plus ``shift`` of their ``groups``."""
        count = len(places)
        if self._cast:
            narrow, _ = buffers.pair(count, self._row_dtype, (), self._row_dtype.itemsize)
            narrow[...] = self._gather_bytes(places, groups, None).view(self._stored).reshape(count)
            return narrow
        batch, raw = buffers.pair(count, self._row_dtype, self._shape, self._stored.itemsize)
        self._gather_bytes(places, groups, raw)
        return batch

    def look(self, places: Rows, groups: Rows) -> npt.NDArray[Any] | None:
        """Rows as a read-only view; None if they do not lie side by side, or must be cast."""
        if self._cast or not len(places) or (np.diff(places) != 1).any():
            return None
        piece = 0
        if len(self._tables) != 1:
            piece = int(self._piece_of_group[groups[0]])
            if (self._piece_of_group[groups] != piece).any():
                return None
        if self._tables:
            rows = self._tables[piece][places[0] : places[-1] + 1]
        else:
            start = int(places[0]) * self._width + int(self._remainders[groups[0]])
            rows = self._content[start : start + len(places) * self._width].reshape(len(places), self._width)
        return np.ndarray((len(rows), *self._shape), self._row_dtype, rows)

    def _gather_bytes(self, places: Rows, groups: Rows, out: Bytes | None) -> Bytes:
        if self._only is not None:
            if self._touched is not None:
                # The first byte of each row brings it near: loads of single bytes wait for memory together, many more
                # of them than copies of whole rows do (design/003).
                self._touched.take(places * self._width, None, None, "clip")
            return self._only.take(places, 0, out, "clip")
        if out is None:
            out = np.empty((len(places), self._stored.itemsize), np.uint8)
        if not self._tables:
            starts = places * self._width + self._remainders[groups]
            for row, start in zip(out, starts.tolist(), strict=True):
                row[...] = self._content[start : start + self._width]
            return out
        pieces = self._piece_of_group[groups]
        for piece in np.unique(pieces):
            where = np.flatnonzero(pieces == piece)
            out[where] = self._tables[piece][places[where]]
        return out


class MappedRagged:
    """A column whose rows differ in length, gathered from where its offsets and values lie; sparse ones as dense.

    Args:
        column: of the schema.
        content: bytes that hold both.
        offsets, values: (groups,) where in ``content`` the offsets and the values of each row group begin;
            offsets are int64, count elements, and one more than the rows.
        first_rows: (groups,) number of each row group's first row.
    """

    whole_groups = False
    is_apart = False

    def __init__(self, column: Column, content: Bytes, offsets: Rows, values: Rows, first_rows: Rows) -> None:
        self.names: tuple[str, ...] = (column.name,)
        self._column = column
        self._dtype = np.dtype(element_dtype(column))
        self._shape = () if column.sparse else column.shape
        self._width = self._dtype.itemsize * math.prod(self._shape)
        self._content = content
        self._offsets = content[: len(content) // 8 * 8].view(np.int64)
        self._begins = values
        # Values that lie at multiples of their width, but for the same rest, are rows of one table.
        rests = np.unique(values % self._width)
        self._rest = int(rests[0])
        table = content[self._rest :]
        table = table[: len(table) // self._width * self._width].view(self._dtype)
        self._table = table.reshape(-1, *self._shape) if len(rests) == 1 else None
        self.shift: Rows = offsets // 8 - first_rows

    def gather(self, places: Rows, groups: Rows, buffers: Buffers) -> Any:
        starts = self._offsets.take(places)
        lengths = self._offsets.take(places + 1) - starts
        starts *= self._width
        starts += self._begins.take(groups)
        rows = Ragged(self._values_at(starts, lengths), offsets_of(lengths))
        column = self._column
        if column.sparse:
            dense = buffers.empty(len(rows), np.dtype(column.dtype), column.shape)
            return dense_rows(rows, column.shape[0], dense)
        return rows

    def look(self, places: Rows, groups: Rows) -> None:
        """Rows that differ in length are always copied."""

    def _values_at(self, starts: Rows, lengths: Rows) -> npt.NDArray[Any]:
        """The values of rows that begin at these bytes."""
        total = int(lengths.sum())
        if self._table is None or total > _LONG_ROWS * len(starts):
            ends = (starts + lengths * self._width).tolist()
            pieces = zip(starts.tolist(), ends, strict=True)
            joined = np.concatenate([self._content[start:end] for start, end in pieces])
            return joined.view(self._dtype).reshape(-1, *self._shape)
        # Position of each value taken: its row's first value, plus how far it is into the row.
        first = (starts - self._rest) // self._width
        begin = np.cumsum(lengths) - lengths
        return self._table.take(np.repeat(first - begin, lengths) + np.arange(total), 0)


def first_rows_of(group_rows: Sequence[int]) -> Rows:
    """(groups,) the number of each row group's first row."""
    return np.cumsum([0, *group_rows[:-1]], dtype=np.int64)[: len(group_rows)]
