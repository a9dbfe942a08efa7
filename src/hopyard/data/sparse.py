"""Sparse rows: of rows of one length the elements that are not zero, each with its index.

On their way they are a ``Ragged`` of pairs, by which they are gathered, packed and kept like any lists; in Parquet
they are lists of structs ``{index, value}``; a batch has them as a dense array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.ragged import Ragged, offsets_of

Array = npt.NDArray[Any]

_PAIRS = {"float32": "i4,f4", "float64": "i4,f8"}


def pair_dtype(dtype: str) -> str:
    """Name of the NumPy dtype of an element with its index, without padding; ``dtype`` is that of the elements."""
    return _PAIRS[dtype]


def indices_of(pairs: Array) -> Array:
    """Indices, (total,) int32."""
    return np.asarray(pairs["f0"])


def elements_of(pairs: Array) -> Array:
    """Elements, (total,) of their dtype."""
    return np.asarray(pairs["f1"])


def pairs_of(indices: Array, elements: Array) -> Array:
    """Pairs of index and element, (total,)."""
    pairs = np.empty(len(elements), pair_dtype(elements.dtype.name))
    pairs["f0"], pairs["f1"] = indices, elements
    return pairs


def sparse_rows(dense: Array) -> Ragged:
    """The sparse rows of a (n, length) array. An element with any bit set is no zero: -0.0 stays as it is."""
    rows, indices = np.nonzero(dense.view(f"u{dense.itemsize}"))
    counts = np.bincount(rows, minlength=len(dense))
    return Ragged(pairs_of(indices, dense[rows, indices]), offsets_of(counts))


def dense_rows(rows: Ragged, length: int, out: Array | None = None) -> Array:
    """Dense rows, (n, length): sparse rows filled up with zeros, in ``out`` if given."""
    dense = np.empty((len(rows), length), rows.dtype[1]) if out is None else out
    dense.fill(0)
    numbers = np.repeat(np.arange(len(rows)), rows.lengths)
    dense[numbers, indices_of(rows.values)] = elements_of(rows.values)
    return dense


def sparse_type(dtype: str) -> pa.DataType:
    """Arrow type of sparse rows in Parquet; ``dtype`` is that of the elements."""
    value = pa.from_numpy_dtype(np.dtype(dtype))
    fields = [pa.field("index", pa.int32(), nullable=False), pa.field("value", value, nullable=False)]
    return pa.list_(pa.field("element", pa.struct(fields), nullable=False))


def to_arrow(rows: Ragged, dtype: str) -> pa.Array:
    """Sparse rows as Parquet holds them."""
    kind = sparse_type(dtype)
    children = [pa.array(np.ascontiguousarray(part(rows.values))) for part in (indices_of, elements_of)]
    pairs = pa.StructArray.from_arrays(children, fields=list(kind.value_type.fields))
    offsets = pa.py_buffer(rows.offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, len(rows), [None, offsets], children=[pairs])


def from_arrow(array: pa.Array | pa.ChunkedArray, dtype: str, length: int) -> Ragged | None:
    """Sparse rows of an array that :func:`to_arrow` made; None if it is no such array, or an index is out of range."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type != sparse_type(dtype) or array.null_count:
        return None
    offsets = array.offsets.to_numpy().astype(np.int64)
    indices, values = (part.to_numpy() for part in array.flatten().flatten())
    if len(indices) and not 0 <= indices.min() <= indices.max() < length:
        return None
    return Ragged(pairs_of(indices, values), offsets - offsets[0])
