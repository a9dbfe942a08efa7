"""From a column as it lies in Hopyard's Parquet files back to what it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from hopyard.data import sparse
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column
from hopyard.data.sources.columns import ColumnData
from hopyard.data.sources.convert_arrow import from_arrow
from hopyard.errors import CorruptError


def restore(column: Column, array: pa.Array) -> ColumnData:
    """The rows of ``column`` from the Arrow array that ``layout.arrow_array`` made of them."""
    if column.sparse:
        rows = sparse.from_arrow(array, column.dtype, *column.shape)
        if rows is None:
            raise _other(column)
        return ColumnData(column.name, "tensor", sparse.dense_rows(rows, column.shape[0]))
    data = from_arrow(column.name, array)
    if column.kind != "tensor":
        return data
    values = data.values.values if isinstance(data.values, Ragged) else data.values
    if column.shape:
        if values.nbytes != len(array) * (column.width or 0):
            raise _other(column)
        values = values.view(np.dtype(column.dtype)).reshape(len(array), *column.shape)
    return replace(data, kind="tensor", values=values.astype(column.dtype, copy=False))


def _other(column: Column) -> CorruptError:
    return CorruptError(
        f"Column {column.name!r} does not hold {column} as its file's metadata says. Write the file again."
    )
