"""Rows of a cluster's frame as bytes, so that an engine moves them without looking inside.

All columns of single numbers, and which columns of a row are null, are one binary column; every column of
lists, texts or bytes is one more. Beside them stand the row's place in the order of the dataset, and its part,
which decides the split. Every engine moves the same bytes, so all of them write the same dataset.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.frames.hashing import Hashes, Part, Scalars, Scattered, keyed, row_hashes
from hopyard.data.frames.reading import Reading
from hopyard.data.frames.survey import PARTS, Survey
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column
from hopyard.data.sources.columns import ColumnData, as_ragged, check_lengths, expand
from hopyard.data.sparse import elements_of, indices_of, pair_dtype
from hopyard.errors import DataError, HopyardError

ORDER, PART, FIXED = "hopyard_order", "hopyard_part", "hopyard_fixed"
ORDER_BITS = 62
SURVEY = -1
"""The order of the row that carries a task's survey."""

_PIECE_BYTES = 64 << 20
_HASHED_AT_ONCE = 1 << 15
"""Rows: what is made of a column of numbers stays in the cache of the core."""
_HASHING = 2
"""Threads: half of the time NumPy holds the interpreter."""


@dataclass(frozen=True)
class Layout:
    """Where the columns of a frame are in packed rows.

    Attributes:
        columns: in order; ``"ragged"`` ones are lists, of one length or not, or sparse.
    """

    columns: tuple[Column, ...]

    @property
    def variable(self) -> list[Column]:
        """Columns that have a packed column of their own, in its order."""
        return [column for column in self.columns if column.kind != "tensor"]

    @property
    def fixed(self) -> Iterator[tuple[Column, int, int]]:
        """(column, first byte, last byte + 1) of all others; before them stands a byte for every column."""
        start = len(self.columns)
        for column in self.columns:
            if column.kind == "tensor":
                stop = start + np.dtype(column.dtype).itemsize
                yield column, start, stop
                start = stop

    @property
    def names(self) -> list[str]:
        """Of the packed columns."""
        return [ORDER, PART, FIXED, *(variable_name(number) for number in range(len(self.variable)))]

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema(
            [(ORDER, pa.int64()), (PART, pa.int32()), *((name, pa.binary()) for name in self.names[2:])]
        )


def variable_name(number: int) -> str:
    return f"hopyard_{number}"


@dataclass(frozen=True)
class Packing:
    """How the rows of one frame are packed. Pickles.

    Attributes:
        part: of every row; the name of a column whose rows above 0 have part 0, and all others 1; None: drawn
            by ``seed``, 0 to ``PARTS - 1``.
        seed: of the order.
    """

    reading: Reading
    layout: Layout
    part: int | str | None
    seed: int

    def pack(self, batches: Iterator[pa.RecordBatch | pa.Table]) -> Iterator[pa.RecordBatch]:
        """The rows of some batches, then one row with what was found in them."""
        survey = Survey(self.layout.columns)
        yield from self.rows(batches, survey)
        yield self._survey_row(survey)

    def rows(self, batches: Iterator[pa.RecordBatch | pa.Table], survey: Survey) -> Iterator[pa.RecordBatch]:
        """The rows of some batches; ``survey`` gets what is found in them.

        Data that breaks a rule is no failure of the worker, which would be repeated: it ends the rows, and the
        survey says so.
        """
        try:
            for batch in batches:
                for piece in _pieces(batch):
                    yield self._pack(piece, survey)
        except HopyardError as error:
            survey.error = error

    def _pack(self, batch: pa.RecordBatch | pa.Table, survey: Survey) -> pa.RecordBatch:
        columns = dict(self.reading.columns(batch))
        rows = check_lengths(columns)
        flags = None
        if isinstance(self.part, str):
            flags = columns.pop(self.part)
        self._check_types(columns)
        parts = self._bytes(columns, rows)
        first, second = row_hashes(rows, _hashed(self.layout, columns, parts[1:]))
        if flags is not None:
            assert isinstance(flags.values, np.ndarray)
            above = flags.values > 0
            survey.unsplit += 0 if flags.missing is None else int(flags.missing.sum())
            part = np.where(above, 0, 1)
            second = second ^ keyed(above.astype(np.uint64), "flag")
        elif self.part is None:
            part = (split_key(first, self.seed) >> np.uint64(64 - PARTS.bit_length() + 1)).astype(np.int64)
        else:
            part = np.full(rows, self.part)
        order = (keyed(first, self.seed, "order") >> np.uint64(64 - ORDER_BITS)).view(np.int64)
        survey.add(columns, order, part, (first, second))
        arrays = [_numbers(order), _numbers(part.astype(np.int32)), *map(_binary, parts)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.layout.arrow)

    def _check_types(self, columns: Mapping[str, ColumnData]) -> None:
        for expected in self.layout.columns:
            found = columns[expected.name].column
            kind = "ragged" if found.kind == "tensor" and found.shape else found.kind
            if (kind, found.dtype) != (expected.kind, expected.dtype):
                raise DataError(
                    f"Column {expected.name!r} holds {found} in some rows, but the frame says {expected}. Give all "
                    "rows one type."
                )

    def _bytes(self, columns: Mapping[str, ColumnData], rows: int) -> list[Part]:
        width = max((stop for _, _, stop in self.layout.fixed), default=len(self.layout.columns))
        fixed = np.zeros((rows, width), np.uint8)
        for number, column in enumerate(self.layout.columns):
            if (missing := columns[column.name].missing) is not None:
                fixed[:, number] = missing
        for column, start, stop in self.layout.fixed:
            values = columns[column.name].values
            assert isinstance(values, np.ndarray)
            fixed[:, start:stop] = np.ascontiguousarray(values).view(np.uint8).reshape(rows, stop - start)
        return [fixed, *(_row_bytes(columns[column.name]) for column in self.layout.variable)]

    def _survey_row(self, survey: Survey) -> pa.RecordBatch:
        found = pickle.dumps(survey)
        values: list[Any] = [[SURVEY], [0], [found], *([b""] for _ in self.layout.variable)]
        return pa.RecordBatch.from_arrays(
            [pa.array(value, field.type) for value, field in zip(values, self.layout.arrow, strict=True)],
            schema=self.layout.arrow,
        )


def content_hashes(columns: Mapping[str, ColumnData]) -> Hashes:
    """(n,) the hash of each row's content: that by which the rows of a cluster's frame are split."""
    layout = Layout(tuple(_packed(data.column) for data in columns.values()))
    hashes = np.empty(len(next(iter(columns.values()))), np.uint64)

    def hash_piece(start: int) -> None:
        stop = min(start + _HASHED_AT_ONCE, len(hashes))
        piece = {name: data[start:stop] for name, data in columns.items()}
        lists = [_row_bytes(piece[column.name]) for column in layout.variable]
        hashes[start:stop] = row_hashes(stop - start, _hashed(layout, piece, lists), 1)[0]

    with ThreadPoolExecutor(_HASHING, "hopyard-prepare") as pool:
        list(pool.map(hash_piece, range(0, len(hashes), _HASHED_AT_ONCE)))
    return hashes


def split_key(hashes: Hashes, seed: int) -> Hashes:
    """The numbers by which rows are split by share: those of the validation set have the lowest."""
    return keyed(hashes, seed, "split")


def _packed(column: Column) -> Column:
    """A column of data in memory as the layout of a cluster's frame calls it: lists of one length are lists."""
    return replace(column, kind="ragged") if column.kind == "tensor" and column.shape else column


def _hashed(
    layout: Layout, columns: Mapping[str, ColumnData], lists: Sequence[Part]
) -> list[Part | Scalars | Scattered]:
    """The rows' content, of sparse ones as if they were dense: their order, and the split, are the same.

    Args:
        lists: the bytes of all columns but those of single numbers.
    """
    numbers = [columns[column.name].values for column, _, _ in layout.fixed]
    missing = [columns[column.name].missing for column in layout.columns]
    return [
        Scalars([values for values in numbers if isinstance(values, np.ndarray)], missing),
        *(
            part if columns[column.name].length is None else _scattered(columns[column.name])
            for column, part in zip(layout.variable, lists, strict=True)
        ),
    ]


def _pieces(batch: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch | pa.Table]:
    """Parts of a batch that are no larger than binary columns may be, and easily in memory."""
    step = max(1, batch.num_rows * _PIECE_BYTES // max(batch.nbytes, _PIECE_BYTES))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _scattered(data: ColumnData) -> Scattered:
    rows = data.values
    assert isinstance(rows, Ragged)
    assert data.length is not None
    elements = np.ascontiguousarray(elements_of(rows.values))
    each = elements.itemsize // 4  # words
    places = indices_of(rows.values).astype(np.int64)[:, None] * each + np.arange(each)
    lengths = np.full(len(rows), data.length * elements.itemsize)
    if data.missing is not None:
        lengths[data.missing] = 0
    return Scattered(elements.view(np.uint32), places.reshape(-1), rows.offsets * each, lengths)


def _row_bytes(data: ColumnData) -> Part:
    values = data.values
    if isinstance(values, np.ndarray) and data.missing is None:
        return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    ragged = as_ragged(data).values
    assert isinstance(ragged, Ragged)
    width = ragged.values.dtype.itemsize * int(np.prod(ragged.values.shape[1:], dtype=np.int64))
    return Ragged(np.ascontiguousarray(ragged.values).reshape(-1).view(np.uint8), ragged.offsets * width)


def _numbers(values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def _binary(part: Part) -> pa.Array:
    if isinstance(part, Ragged):
        values, offsets = part.values, part.offsets.astype(np.int32)
    else:
        values, offsets = part, np.arange(len(part) + 1, dtype=np.int32) * np.int32(part.shape[1])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), len(part), buffers)


def unpack(layout: Layout, shapes: Mapping[str, Column], table: pa.Table) -> dict[str, ColumnData]:
    """The columns of packed rows.

    Args:
        shapes: by column, as it is over all rows: a ``"tensor"`` with its shape, or ``"ragged"`` with that of
            its elements.
    """
    rows = table.num_rows
    fixed = _parts(table[FIXED]).values.reshape(rows, -1)
    missing = {column.name: fixed[:, number].astype(bool) for number, column in enumerate(layout.columns)}
    found: dict[str, ColumnData] = {}
    for column, start, stop in layout.fixed:
        values = np.ascontiguousarray(fixed[:, start:stop]).view(column.dtype).reshape(rows)
        found[column.name] = ColumnData(column.name, "tensor", values, missing[column.name])
    for number, column in enumerate(layout.variable):
        found[column.name] = _unpacked(
            shapes[column.name], _parts(table[variable_name(number)]), missing[column.name]
        )
    return {column.name: found[column.name] for column in layout.columns}


def _parts(array: pa.ChunkedArray) -> Ragged:
    """The bytes of each row of a binary column; they may be more than a binary array may hold."""
    chunks = []
    for chunk in array.chunks:
        kind = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
        _, offsets, data = chunk.buffers()
        bounds = np.frombuffer(offsets, kind, len(chunk) + 1, chunk.offset * np.dtype(kind).itemsize)
        whole = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
        bounds = bounds.astype(np.int64)
        chunks.append(Ragged(whole[bounds[0] : bounds[-1]], bounds - bounds[0]))
    return chunks[0] if len(chunks) == 1 else Ragged.concatenate(chunks)


def _unpacked(column: Column, rows: Ragged, missing: npt.NDArray[np.bool_]) -> ColumnData:
    if column.kind in ("string", "bytes"):
        return ColumnData(column.name, column.kind, rows, missing)
    if column.sparse:
        dtype = np.dtype(pair_dtype(column.dtype))
        pairs = Ragged(rows.values.view(dtype), rows.offsets // dtype.itemsize)
        return ColumnData(column.name, "tensor", pairs, missing, column.shape[0])
    elements = rows.values.view(column.dtype)
    if column.kind == "tensor":
        present = elements.reshape(len(rows) - int(missing.sum()), *column.shape)
        return ColumnData(column.name, "tensor", expand(present, missing if missing.any() else None), missing)
    width = np.dtype(column.dtype).itemsize * int(np.prod(column.shape, dtype=np.int64))
    values = elements.reshape(-1, *column.shape)
    return ColumnData(column.name, "ragged", Ragged(values, rows.offsets // max(width, 1)), missing)
