"""From Arrow arrays to columns, without copying where Arrow's memory is the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.data.columns import ColumnData, expand, settle
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.errors import DataError, UnsupportedTypeError

SUPPORTED = (
    "numbers, booleans, strings, bytes, datetimes (kept as int64 nanoseconds), and arrays or lists of numbers"
)


def from_arrow(name: str, array: pa.Array | pa.ChunkedArray) -> ColumnData:
    """A column from an Arrow array.

    Dictionaries and run-ends are decoded; lists become ragged, or tensors if they settle on one
    length; dates, times, timestamps and durations become int64 nanoseconds, decimals float64.
    """
    if pa.types.is_null(array.type):
        raise UnsupportedTypeError(f"{name} (nothing but nulls)")
    try:
        array = _one_chunk(_plain(array))
    except pa.ArrowInvalid as error:
        raise UnsupportedTypeError(f"{name} ({array.type}: {error})") from error
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return _from_fixed_lists(name, array)
    if pa.types.is_large_list(kind):
        return _from_lists(name, array)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _from_strings(name, array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _from_numbers(name, array)
    raise UnsupportedTypeError(f"{name} ({kind})")


def _one_chunk(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()


def _plain(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The same values in one of the types that are read below."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(_tensor_storage(array) if hasattr(kind, "shape") else _storage(array))
    if pa.types.is_dictionary(kind):
        return _plain(array.cast(kind.value_type))
    if pa.types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    target = _plain_type(kind)
    if target is None:
        return array
    plain = array if target == kind else array.cast(target)
    return plain.cast(pa.int64()) if pa.types.is_temporal(target) else plain


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_date(kind) or (types.is_timestamp(kind) and kind.tz is None):
        return pa.timestamp("ns")
    if types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_duration(kind):
        return pa.duration("ns")
    if types.is_decimal(kind):
        return pa.float64()
    if types.is_string(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_list(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return pa.large_list(kind.value_type)
    return None


def _storage(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in array.chunks], array.type.storage_type)
    return array.storage


def _tensor_storage(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A fixed-shape tensor as nested fixed-size lists, which keeps its shape."""
    kind = array.type
    if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
        raise UnsupportedTypeError(f"a tensor with permuted dimensions ({kind})")
    chunk = _one_chunk(_storage(array))
    values = chunk.values
    for size in reversed(kind.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    nested = pa.FixedSizeListArray.from_arrays(values, kind.shape[0])
    nested = nested.slice(chunk.offset, len(chunk)) if len(nested) != len(chunk) else nested
    return pc.if_else(chunk.is_valid(), nested, None) if chunk.null_count else nested


def _missing(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False)) if array.null_count else None


def _from_numbers(name: str, array: pa.Array) -> ColumnData:
    missing = _missing(array)
    if pa.types.is_boolean(array.type):
        values = (array if missing is None else array.fill_null(False)).to_numpy(zero_copy_only=False)
        return ColumnData(name, "tensor", np.asarray(values), missing)
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    values = (
        np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
        if len(array)
        else np.empty(0, dtype)
    )
    return ColumnData(
        name, "tensor", values if missing is None else expand(values[~missing], missing), missing
    )


def _from_strings(name: str, array: pa.Array) -> ColumnData:
    missing = _missing(array)
    text = pa.types.is_large_string(array.type)
    if missing is not None:
        array = array.fill_null("" if text else b"")
    _, offsets, data = array.buffers()
    bounds = (
        np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
        if len(array)
        else np.zeros(1, np.int64)
    )
    whole = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    values = Ragged(whole[bounds[0] : bounds[-1]], bounds - bounds[0])
    return ColumnData(name, "string" if text else "bytes", values, missing)


def _elements(name: str, values: pa.Array) -> npt.NDArray[Any]:
    """The values of lists: numbers, or tensors if the lists are nested."""
    inner = settle(from_arrow(name, values))
    if inner.kind != "tensor" or not isinstance(inner.values, np.ndarray):
        what = (
            "lists that are ragged in more than one dimension"
            if inner.kind == "ragged"
            else f"lists of {inner.kind}s"
        )
        raise UnsupportedTypeError(f"{name} ({what})")
    if inner.missing is not None:
        raise DataError(
            f"Column {name!r} has {int(inner.missing.sum())} nulls inside its lists. `nulls` is about whole rows: "
            "fill them, or make those rows null."
        )
    return inner.values


def _from_fixed_lists(name: str, array: pa.Array) -> ColumnData:
    missing = _missing(array)
    size = array.type.list_size
    values = _elements(name, array.flatten())  # leaves out the values below nulls
    rows = len(array) - (0 if missing is None else int(missing.sum()))
    return ColumnData(name, "tensor", expand(values.reshape(rows, size, *values.shape[1:]), missing), missing)


def _from_lists(name: str, array: pa.Array) -> ColumnData:
    missing = _missing(array)
    lengths = np.asarray(pc.list_value_length(array).fill_null(0).to_numpy(), np.int64)
    values = _elements(name, array.flatten())
    return ColumnData(name, "ragged", Ragged(values, offsets_of(lengths)), missing)
