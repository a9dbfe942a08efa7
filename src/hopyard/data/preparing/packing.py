"""Rows as bytes, so that an engine moves them without looking inside.

All columns of single numbers, and which columns of a row are null, are one binary column; every column of
lists, texts or bytes is one more. Beside them stand the row's place in the order of the dataset, and its number
for the split. Every engine moves the same bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.data.columns.columns import ColumnData, as_ragged, check_lengths, expand
from hopyard.data.preparing.survey import Survey, places, split_numbers
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column
from hopyard.data.sources.frame_batches import FrameReading
from hopyard.data.sources.hashing import Hashes, content_hashes
from hopyard.data.sparse import pair_dtype
from hopyard.errors import DataError, HopyardError

PackedPart: TypeAlias = npt.NDArray[np.uint8] | Ragged
"""Bytes of n rows: (n, width), or of different lengths."""

ORDER, PART, FIXED = "hopyard_order", "hopyard_part", "hopyard_fixed"
SURVEY = -1
"""The order of the row that carries a task's survey."""

_PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class PackedLayout:
    """Places of columns in packed rows.

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
        """Names of the packed columns."""
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
    """Settings by which the rows of one frame are packed. Pickles.

    Attributes:
        part: the number of every row for the split; the name of a column whose rows above 0 have number 0, and all
            others 1; or the share that is for validation: numbers are drawn by ``seed``.
        seed: of the order.
    """

    reading: FrameReading
    layout: PackedLayout
    part: int | str | float
    seed: int

    def new_survey(self) -> Survey:
        """A survey of no rows."""
        return Survey(self.part if isinstance(self.part, float) else None)

    def pack(self, batches: Iterator[pa.RecordBatch | pa.Table]) -> Iterator[pa.RecordBatch]:
        """The rows of some batches, then one row with their survey."""
        survey = self.new_survey()
        yield from self.rows(batches, survey)
        yield self._survey_row(survey)

    def rows(self, batches: Iterator[pa.RecordBatch | pa.Table], survey: Survey) -> Iterator[pa.RecordBatch]:
        """The rows of some batches, which are added to ``survey``.

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
        columns = self.reading.columns(batch)
        rows = check_lengths(columns)
        self._check_types(columns)
        hashes = survey.content.add(columns)
        order, numbers = placed(columns, hashes, self.part, self.seed)
        survey.place(order, numbers)
        arrays = [_numbers(order), _numbers(numbers), *map(_binary, _bytes(self.layout, columns, rows))]
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

    def _survey_row(self, survey: Survey) -> pa.RecordBatch:
        found = pickle.dumps(survey)
        values: list[Any] = [[SURVEY], [0], [found], *([b""] for _ in self.layout.variable)]
        return pa.RecordBatch.from_arrays(
            [pa.array(value, field.type) for value, field in zip(values, self.layout.arrow, strict=True)],
            schema=self.layout.arrow,
        )


def placed(
    columns: Mapping[str, ColumnData], hashes: Hashes, part: int | str | float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The places of rows in the order of the dataset, and their numbers for the split. A column that splits has no
    part in the order.

    Args:
        hashes: of all ``columns``.
        part, seed: see ``Packing``.
    """
    if isinstance(part, float):
        return places(hashes, seed), split_numbers(hashes, seed)
    if isinstance(part, int):
        return places(hashes, seed), np.full(len(hashes), part, np.int32)
    flags = columns[part]
    assert isinstance(flags.values, np.ndarray)
    return places(hashes - content_hashes({part: flags}), seed), np.where(flags.values > 0, 0, 1).astype(
        np.int32
    )


def in_order(layout: PackedLayout, rows: pa.Table) -> npt.NDArray[np.int64]:
    """The positions of packed rows in the order of the dataset: those in one place by their bytes."""
    keys = [(name, "ascending") for name in layout.names if name != PART]
    if len(pc.unique(rows[ORDER])) == rows.num_rows:
        keys = keys[:1]
    order: npt.NDArray[np.int64] = pc.sort_indices(rows, keys).to_numpy().astype(np.int64)
    return order


def packed(layout: PackedLayout, columns: Mapping[str, ColumnData], order: npt.NDArray[np.int64]) -> pa.Table:
    """Rows in these places, as they are compared."""
    parts = _bytes(layout, columns, len(order))
    return pa.table([_numbers(order), *map(_binary, parts)], [ORDER, *layout.names[2:]])


def _bytes(layout: PackedLayout, columns: Mapping[str, ColumnData], rows: int) -> list[PackedPart]:
    width = max((stop for _, _, stop in layout.fixed), default=len(layout.columns))
    fixed = np.zeros((rows, width), np.uint8)
    for number, column in enumerate(layout.columns):
        if (missing := columns[column.name].missing) is not None:
            fixed[:, number] = missing
    for column, start, stop in layout.fixed:
        values = columns[column.name].values
        assert isinstance(values, np.ndarray)
        fixed[:, start:stop] = np.ascontiguousarray(values).view(np.uint8).reshape(rows, stop - start)
    return [fixed, *(_row_bytes(columns[column.name]) for column in layout.variable)]


def _pieces(batch: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch | pa.Table]:
    """Parts of a batch that are no larger than binary columns may be, and easily in memory."""
    step = max(1, batch.num_rows * _PIECE_BYTES // max(batch.nbytes, _PIECE_BYTES))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _row_bytes(data: ColumnData) -> PackedPart:
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


def _binary(part: PackedPart) -> pa.Array:
    if isinstance(part, Ragged):
        values, offsets = part.values, part.offsets.astype(np.int32)
    else:
        values, offsets = part, np.arange(len(part) + 1, dtype=np.int32) * np.int32(part.shape[1])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), len(part), buffers)


def unpack(layout: PackedLayout, shapes: Mapping[str, Column], table: pa.Table) -> dict[str, ColumnData]:
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
