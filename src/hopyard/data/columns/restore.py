"""Restores a column from its form in Hopyard's Parquet files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from hopyard.data import sparse
from hopyard.data.columns import compute as pc
from hopyard.data.columns.columns import ColumnData
from hopyard.data.columns.convert_arrow import from_arrow, is_list, one_chunk
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.schema import Column
from hopyard.errors import CorruptError


def restore(column: Column, array: pa.Array) -> ColumnData:
    """The rows of ``column`` from the Arrow array that ``layout.arrow_array`` made of them."""
    if column.sparse:
        rows = sparse.from_arrow(array, column.dtype, *column.shape)
        if rows is None:
            raise _other(column)
        return ColumnData(column.name, "tensor", sparse.dense_rows(rows, column.shape[0]))
    if column.kind == "ragged" and column.shape:
        rows = lists_of_arrays(column, array)
        if rows is None:
            raise _other(column)
        return ColumnData(column.name, "ragged", rows)
    data = from_arrow(column.name, array)
    if column.kind != "tensor":
        return data
    values = data.values.values if isinstance(data.values, Ragged) else data.values
    if column.shape:
        if values.nbytes != len(array) * (column.width or 0):
            raise _other(column)
        values = values.view(np.dtype(column.dtype)).reshape(len(array), *column.shape)
    return replace(data, kind="tensor", values=values.astype(column.dtype, copy=False))


def lists_of_arrays(column: Column, array: pa.Array | pa.ChunkedArray) -> Ragged | None:
    """Rows of a ragged column of arrays, as ``layout`` stores them; None if the Arrow array holds something else."""
    kind = array.type
    is_stored = is_list(kind) and kind.value_type == pa.binary(column.value_width)
    if not is_stored or array.null_count:
        return None
    lists = one_chunk(array)
    offsets = offsets_of(pc.list_value_length(lists).to_numpy().astype(np.int64))
    memory = lists.flatten()
    whole = np.frombuffer(memory.buffers()[1] or b"", np.uint8)[memory.offset * column.value_width :]
    values = whole[: len(memory) * column.value_width].view(column.dtype)
    return Ragged(values.reshape(-1, *column.shape), offsets)


def _other(column: Column) -> CorruptError:
    return CorruptError(
        f"Column {column.name!r} does not hold {column} as its file's metadata says. Write the file again."
    )
