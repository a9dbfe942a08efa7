"""Parquet files that are also flat arrays.

Columns of fixed width are REQUIRED, PLAIN, uncompressed and hold one page per column chunk, so
that the body of a chunk, found from the footer alone, *is* the array: it is the last
``rows * width`` bytes of the chunk. Any Parquet reader reads the files.

====================================  =============================  =====================
column                                Parquet                        mapped as
====================================  =============================  =====================
tensor of any shape but ()            FIXED_LEN_BYTE_ARRAY(width)    its dtype and shape
scalar int32/64, uint32/64, float32/64  INT32/64, FLOAT, DOUBLE      its dtype
scalar int8/16, uint8/16              INT32                          int32, cast per batch
scalar float16                        FLOAT                          float32, cast per batch
scalar bool                           BOOLEAN (bits)                 not: decoded
string, bytes                         BYTE_ARRAY                     not: decoded
ragged                                LIST                           not: decoded
ragged, of arrays                     LIST of FIXED_LEN_BYTE_ARRAY   not: decoded
sparse tensor                         LIST of {index, value}         not: decoded
====================================  =============================  =====================

Dtypes and shapes are JSON under the key ``hopyard`` of the file's metadata.

The file has its columns of fixed width first. Row groups begin where each column's bodies differ by
multiples of its width, if that costs little: then they are rows of one virtual (N, width) array that
begins at the column's first body, and one ``take`` gathers from the whole file. See ``placement.py``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data import sparse
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema

METADATA_KEY = b"hopyard"
_ONE_PAGE = 1 << 30

Values: TypeAlias = npt.NDArray[Any] | Ragged
"""Rows of a column: an array (n, *shape), or, for ragged columns, strings and bytes, a Ragged (of
uint8 for the last two), as for sparse ones (of pairs, see ``sparse.py``)."""

WIDENED = {
    "int8": "int32",
    "int16": "int32",
    "uint8": "int32",
    "uint16": "int32",
    "float16": "float32",
}


def stored_dtype(column: Column) -> np.dtype[Any] | None:
    """The NumPy dtype of a row as it lies in the file (void for tensors), or None if it is not mapped."""
    if column.sparse or column.kind != "tensor" or (column.dtype == "bool" and not column.shape):
        return None
    if column.shape:
        return np.dtype((np.void, column.width))
    return np.dtype(WIDENED.get(column.dtype, column.dtype))


def is_fixed(column: Column) -> bool:
    """Whether chunks with the same number of rows are equally long."""
    return column.stored_width is not None


def arrow_schema(schema: Schema) -> pa.Schema:
    """Arrow schema of the stored columns, in the order of a file, with the dataset's schema in the metadata."""
    stored = sorted(schema, key=is_fixed, reverse=True)
    fields = [pa.field(column.name, _arrow_type(column), nullable=False) for column in stored]
    return pa.schema(fields, {METADATA_KEY: json.dumps({"columns": schema.to_json()})})


def arrow_table(schema: Schema, values: Mapping[str, Values]) -> pa.Table:
    """Rows as they are stored."""
    stored = arrow_schema(schema)
    return pa.Table.from_arrays(
        [arrow_array(schema[name], values[name]) for name in stored.names], schema=stored
    )


def writer_options() -> dict[str, Any]:
    """Options of ``pyarrow.parquet.ParquetWriter``: one plain page a chunk, nothing else."""
    options: dict[str, Any] = {
        "compression": "none",
        "use_dictionary": False,
        "write_statistics": False,
        "data_page_size": _ONE_PAGE,
    }
    if "max_rows_per_page" in inspect.signature(pq.ParquetWriter.__init__).parameters:
        options["max_rows_per_page"] = _ONE_PAGE  # newer releases of pyarrow begin a page every 20,000 rows
    return options


def stored_schema(metadata: Mapping[bytes, bytes] | None) -> Schema | None:
    """The schema in a Parquet file's metadata, or None if Hopyard did not write the file."""
    if not metadata or METADATA_KEY not in metadata:
        return None
    return Schema.from_json(json.loads(metadata[METADATA_KEY])["columns"])


def _arrow_type(column: Column) -> pa.DataType:
    if column.sparse:
        return sparse.sparse_type(column.dtype)
    if column.kind == "string":
        return pa.string()
    if column.kind == "bytes":
        return pa.binary()
    if column.kind == "ragged":
        dtype = np.dtype(column.dtype)
        element = pa.binary(column.value_width) if column.shape else pa.from_numpy_dtype(dtype)
        return pa.list_(pa.field("element", element, nullable=False))
    if column.shape:
        return pa.binary(column.width)
    return pa.from_numpy_dtype(stored_dtype(column) or np.dtype(bool))


def arrow_array(column: Column, values: Values) -> pa.Array:
    """``values`` as they are stored; without copying where memory is as in the file."""
    kind = _arrow_type(column)
    if isinstance(values, Ragged):
        if column.sparse:
            return sparse.to_arrow(values, column.dtype)
        offsets = pa.py_buffer(values.offsets.astype(np.int32))
        if column.kind == "ragged":
            inner = _value_array(column, values.values)
            return pa.ListArray.from_buffers(kind, len(values), [None, offsets], children=[inner])
        return pa.Array.from_buffers(
            kind, len(values), [None, offsets, pa.py_buffer(np.ascontiguousarray(values.values))]
        )
    stored = None if column.shape else stored_dtype(column)
    return _value_array(column, values if stored is None else values.astype(stored, copy=False))


def _value_array(column: Column, values: npt.NDArray[Any]) -> pa.Array:
    """Rows of a tensor, or values of ragged rows."""
    values = np.ascontiguousarray(values)
    if not column.shape:
        return _plain_array(values)
    return pa.Array.from_buffers(pa.binary(column.value_width), len(values), [None, pa.py_buffer(values)])


def _plain_array(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers or bools; ``pa.array`` would import pandas, which takes a second."""
    kind = pa.from_numpy_dtype(values.dtype)
    memory = np.packbits(values, bitorder="little") if values.dtype == bool else values
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(memory)])
