"""Columns read straight from mapped Parquet files: the body of a chunk *is* the array.

A chunk qualifies if it is REQUIRED, PLAIN, uncompressed and one page; footer and page header say
so, and also that the body is where it should be. Bodies of one column whose addresses differ by
multiples of the row's width are rows of one virtual (N, width) array, whatever lies between them.
``layout.py`` writes files in which all of a column's bodies do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.buffers import Buffers
from hopyard.data.order import Rows
from hopyard.data.schema import Column
from hopyard.data.stored import StoredFile
from hopyard.errors import CorruptError

Bytes = npt.NDArray[np.uint8]

_LONGEST_HEADER = 512
_DATA_PAGES = (0, 3)


def stored_as(column: Column, described: pq.ColumnSchema, kind: pa.DataType) -> np.dtype[Any] | None:
    """The NumPy dtype of one row (void if it is a tensor) in a chunk so described, or None: decode it.

    Only numbers and bytes lie there as they are: times count other units, decimals are scaled.
    """
    if column.width is None or described.max_definition_level or described.max_repetition_level:
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
    """Where in ``content``, the file's bytes, the rows of a chunk begin; None if it is no flat array.

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
    if not 0 < header <= _LONGEST_HEADER:
        return None
    if not _is_plain_page(content[start : start + header].tobytes(), described.num_rows, body):
        return None
    return end - body


def _is_plain_page(header: bytes, rows: int, body: int) -> bool:
    """Whether a page header (Thrift compact protocol, as in parquet-format) is of one PLAIN data page."""
    try:
        place, fields = 0, []
        for _ in range(3):  # type, uncompressed size, compressed size
            place, value = _read_field(header, place)
            fields.append(value)
        if header[place] == 0x15:  # a checksum
            place, _ = _read_field(header, place)
        kind, _, size = fields
        place += 1  # the struct that describes the data page: number of values, [nulls, rows,] encoding
        place, values = _read_field(header, place)
        for _ in range(2 if kind == 3 else 0):
            place, _ = _read_field(header, place)
        _, encoding = _read_field(header, place)
    except (IndexError, ValueError):
        return False
    return kind in _DATA_PAGES and size == body and values == rows and encoding == 0


def _read_field(header: bytes, place: int) -> tuple[int, int]:
    """(place behind it, value) of an i32 field with the next field number."""
    if header[place] != 0x15:
        raise ValueError("not an i32")
    shift = value = 0
    while True:
        place += 1
        value |= (header[place] & 0x7F) << shift
        shift += 7
        if header[place] < 0x80:
            return place + 1, (value >> 1) ^ -(value & 1)


class MappedColumn:
    """One column of some row groups, gathered from where it lies.

    Args:
        column: what it is.
        stored: dtype of a row in the files.
        content: bytes that hold all the bodies.
        bodies: (groups,) where in ``content`` each row group's body begins.
        first_rows: (groups,) number of each row group's first row.
        group_rows: (groups,) rows of each.
    """

    def __init__(
        self, column: Column, stored: np.dtype[Any], content: Bytes, bodies: Rows, first_rows: Rows, group_rows: Rows
    ) -> None:  # fmt: skip
        self.column = column
        self._stored = stored
        self._cast = not column.shape and stored != np.dtype(column.dtype)
        self._row_dtype = np.dtype(column.dtype)
        width = stored.itemsize
        remainders, self._piece_of_group = np.unique(bodies % width, return_inverse=True)
        self._tables: list[Bytes] = []
        self.shift = np.zeros(len(bodies), np.int64)  # from a row's number to its row of the table
        for piece in range(len(remainders)):
            groups = np.flatnonzero(self._piece_of_group == piece)
            base = int(bodies[groups].min())
            table_rows = (bodies[groups] - base) // width
            self.shift[groups] = table_rows - first_rows[groups]
            length = int((table_rows + group_rows[groups]).max())
            self._tables.append(content[base : base + length * width].reshape(length, width))

    def gather(self, places: Rows, groups: Rows | None, buffers: Buffers) -> npt.NDArray[Any]:
        """(n, *shape) of the column's dtype; ``places`` are row numbers plus ``shift`` of their ``groups``."""
        count = len(places)
        if self._cast:
            narrow, _ = buffers.pair(count, self._row_dtype, (), self._row_dtype.itemsize)
            narrow[...] = self._gather_bytes(places, groups, None).view(self._stored).reshape(count)
            return narrow
        batch, raw = buffers.pair(count, self._row_dtype, self.column.shape, self._stored.itemsize)
        self._gather_bytes(places, groups, raw)
        return batch

    def _gather_bytes(self, places: Rows, groups: Rows | None, out: Bytes | None) -> Bytes:
        if len(self._tables) == 1:
            return self._tables[0].take(places, 0, out, "clip")
        if out is None:
            out = np.empty((len(places), self._stored.itemsize), np.uint8)
        assert groups is not None
        pieces = self._piece_of_group[groups]
        for piece in np.unique(pieces):
            where = np.flatnonzero(pieces == piece)
            out[where] = self._tables[piece][places[where]]
        return out


def first_rows_of(group_rows: Sequence[int]) -> Rows:
    """(groups,) the number of each row group's first row."""
    return np.cumsum([0, *group_rows[:-1]], dtype=np.int64)[: len(group_rows)]
