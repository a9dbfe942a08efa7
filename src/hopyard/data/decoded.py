"""Columns of Parquet files that are no flat arrays: decoded by Arrow."""

from __future__ import annotations

import pyarrow as pa

from hopyard.data.columns import as_ragged, settle
from hopyard.data.convert_arrow import from_arrow
from hopyard.data.layout import Values
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column
from hopyard.errors import DataError


def read_as(column: Column, array: pa.ChunkedArray, where: str) -> Values:
    """The values of an Arrow column that is expected to be ``column``; ``where`` names it in errors.

    Raises:
        DataError: there are nulls, or lists of other lengths than before.
    """
    if array.null_count:
        raise DataError(
            f"{where}: column {column.name!r} has {array.null_count} nulls, which training cannot use. Drop or "
            "fill them, or prepare the data with nulls='fill' or nulls='mask'."
        )
    data = from_arrow(column.name, array)
    if column.kind == "tensor" and data.kind == "ragged":
        data = settle(data)
    if column.kind == "ragged" and data.kind == "tensor" and data.column.shape:
        data = as_ragged(data)  # fixed-size lists of one file beside lists of others
    if column.kind == "tensor" and data.kind == "bytes" and isinstance(data.values, Ragged):
        return data.values.values.view(column.dtype).reshape(len(data), *column.shape)
    if column.kind != "ragged" and data.column != Column(
        column.name, column.kind, data.column.dtype, column.shape
    ):
        raise DataError(
            f"{where}: column {column.name!r} holds {data.column}, but the first file's rows are {column}. All "
            "rows must be alike: prepare the data with ragged='keep' or ragged='pad'."
        )
    return data.values


def leaves_of(schema: pa.Schema) -> dict[str, int]:
    """Number of the first leaf of each top-level column of a Parquet file."""
    leaves, number = {}, 0
    for column in schema:
        leaves[column.name] = number
        number += _count_leaves(column.type)
    return leaves


def _count_leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _count_leaves(kind.storage_type)
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or hasattr(kind, "value_field"):
        return sum(_count_leaves(kind.field(i).type) for i in range(kind.num_fields))
    return 1
