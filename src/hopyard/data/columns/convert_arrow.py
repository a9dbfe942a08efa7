"""Converts Arrow arrays to columns, without copying where Arrow's memory is the array."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.columns import compute as pc
from hopyard.data.columns.columns import ColumnData, expand, settle
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
        raise UnsupportedTypeError(f"{name} (nothing but nulls)", unknown=[True] * len(array))
    times = pa.types.is_temporal(array.type)
    try:
        array = one_chunk(_plain(array))
    except pa.ArrowInvalid as error:
        why = str(error)
        if pa.types.is_temporal(array.type):
            why = "times that int64 nanoseconds do not reach, 1677 to 2262: replace them, or filter those rows out"
        raise UnsupportedTypeError(f"{name} ({array.type}: {why})") from error
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return _from_fixed_lists(name, array)
    if is_list(kind):
        return _from_lists(name, array)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _from_strings(name, array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return replace(_from_numbers(name, array), times=times)
    raise UnsupportedTypeError(f"{name} ({kind}{_advice(kind)})")


def _advice(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_map(kind):
        return ": make its keys columns, or its values a list"
    if types.is_struct(kind):
        return ": make its fields columns"
    return ""


def one_chunk(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    if not array.num_chunks:
        return pa.nulls(0, array.type)  # combine_chunks() would import pandas
    return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()


def _plain(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values of an array in one of the types that are read below."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        if hasattr(kind, "shape"):
            return _plain(_tensor_storage(array))
        storage = _storage(array)
        return storage.cast(pa.bool_()) if kind.extension_name == "arrow.bool8" else _plain(storage)
    if pa.types.is_dictionary(kind):
        return _decoded(array)
    if pa.types.is_run_end_encoded(kind):
        return _plain(runs_decoded(array))
    if pa.types.is_decimal(kind):
        return decimals_as_floats(array)
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
    if types.is_string(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return pa.large_binary()
    return None


def decimals_as_floats(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Decimals as the float64 nearest to each, as ``float(Decimal)`` gives it. Arrow's cast is not so exact."""
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([decimals_as_floats(chunk) for chunk in array.chunks], pa.float64())
    kind, rows = array.type, len(array)
    words = kind.bit_width // 64
    if not words:
        return decimals_as_floats(array.cast(pa.decimal128(kind.precision, kind.scale)))
    if not rows:
        return pa.array([], pa.float64())
    raw = np.frombuffer(array.buffers()[1], "<i8", rows * words, array.offset * words * 8).reshape(
        rows, words
    )
    low = raw[:, 0]
    # A quotient of two floats that are exact is the nearest one: below 2**53, and powers of ten up to 10**22.
    exact = (low <= 1 << 53) & (low >= -(1 << 53)) & (raw[:, 1:] == (low >> 63)[:, None]).all(axis=1)
    exact &= abs(kind.scale) <= 22
    power = 10.0 ** min(abs(kind.scale), 22)
    values = low / power if kind.scale >= 0 else low * power
    missing = None if not array.null_count else array.is_null().to_numpy(zero_copy_only=False)
    others = np.flatnonzero(~exact if missing is None else ~exact & ~missing)
    if len(others):
        texts = array.take(pa.array(others)).cast(pa.string())
        values[others] = texts.cast(pa.float64()).to_numpy()
    return pa.array(values, mask=missing)


def is_list(kind: pa.DataType) -> bool:
    """Whether rows of this type are lists of any length."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def is_unknown(kind: pa.DataType) -> bool:
    """Whether the type is that of nothing but nulls, or of lists without any element."""
    while is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_null(kind))


def _decoded(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A dictionary's values. Neither ``cast`` nor ``take`` knows all types, so they are made plain before."""
    if isinstance(array, pa.ChunkedArray):
        kind = _plain(pa.array([], array.type.value_type)).type
        return pa.chunked_array([_decoded(chunk) for chunk in array.chunks], kind)
    return _plain(array.dictionary).take(array.indices)


def runs_decoded(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values of a run-end-encoded array, one for each row. Arrow's own decoding lacks types of values, such as
    dictionaries, so that the numbers of the runs are decoded."""
    if isinstance(array, pa.ChunkedArray):
        if not array.num_chunks:
            return pa.chunked_array([], array.type.value_type)
        return pa.chunked_array([runs_decoded(chunk) for chunk in array.chunks])
    values = array.values
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    elif pa.types.is_binary_view(values.type):
        values = values.cast(pa.large_binary())
    runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, pa.array(range(len(values)), pa.int64()))
    return values.take(pc.run_end_decode(runs).slice(array.offset, len(array)))


def _storage(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in array.chunks], array.type.storage_type)
    return array.storage


def _tensor_storage(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A fixed-shape tensor as nested fixed-size lists, which keeps its shape."""
    kind = array.type
    if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
        raise UnsupportedTypeError(f"a tensor with permuted dimensions ({kind})")
    chunk = one_chunk(_storage(array))
    values = chunk.values
    for size in reversed(kind.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    nested = pa.FixedSizeListArray.from_arrays(values, kind.shape[0])
    nested = nested.slice(chunk.offset, len(chunk)) if len(nested) != len(chunk) else nested
    return pc.if_else(chunk.is_valid(), nested, None) if chunk.null_count else nested


def _missing(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    return _bools(array.is_null()) if array.null_count else None


def _bools(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Bools as ``to_numpy`` gives them, which would import pandas; any values in null rows."""
    return numbers(array.cast(pa.uint8())).view(np.bool_)


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Numbers as a view of Arrow's memory; any values in null rows."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _from_numbers(name: str, array: pa.Array) -> ColumnData:
    missing = _missing(array)
    values = _bools(array) if pa.types.is_boolean(array.type) else numbers(array)
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


def _elements(name: str, array: pa.Array) -> npt.NDArray[Any]:
    """The values of lists: numbers, or tensors if the lists are nested."""
    values = array.flatten()  # leaves out the values below nulls
    if pa.types.is_struct(values.type):
        raise UnsupportedTypeError(f"{name} (lists of {values.type}: make a column of lists of every field)")
    try:
        inner = settle(from_arrow(name, values))
    except UnsupportedTypeError as error:
        if error.unknown is None:
            raise
        if not len(values):
            missing = array.is_null().to_pylist()
            what = "nulls" if all(missing) else "empty lists"
            raise UnsupportedTypeError(
                f"{name} (nothing but {what}, of no type: give it one, such as pyarrow's list_(int64()), or rows "
                "numpy.empty(0, 'int64'); training data does not take that of a validation set)",
                missing,
            ) from error
        if any(error.unknown):
            raise _nulls_inside(name, sum(error.unknown)) from error
        raise UnsupportedTypeError(f"{name} (lists of nothing but empty lists)") from error
    if not len(values) and isinstance(inner.values, Ragged) and inner.kind == "ragged":
        return np.empty(
            (0, 0, *inner.column.shape), inner.column.dtype
        )  # nothing tells how long the inner ones are
    if inner.kind != "tensor" or not isinstance(inner.values, np.ndarray):
        what = (
            "lists that are ragged in more than one dimension: pad the inner ones to one length"
            if inner.kind == "ragged"
            else f"lists of {inner.kind}s: join them to one text, or give every value a number"
        )
        raise UnsupportedTypeError(f"{name} ({what})")
    if inner.missing is not None:
        raise _nulls_inside(name, int(inner.missing.sum()))
    return inner.values


def _nulls_inside(name: str, count: int) -> DataError:
    return DataError(
        f"Column {name!r} has {count} null{'s' * (count > 1)} inside its lists. `nulls` is about whole rows: fill "
        f"{'them' if count > 1 else 'it'}, or make those rows null."
    )


def _from_fixed_lists(name: str, array: pa.Array) -> ColumnData:
    missing = _missing(array)
    size = array.type.list_size
    values = _elements(name, array)
    rows = len(array) - (0 if missing is None else int(missing.sum()))
    return ColumnData(name, "tensor", expand(values.reshape(rows, size, *values.shape[1:]), missing), missing)


def _from_lists(name: str, array: pa.Array) -> ColumnData:
    missing = _missing(array)
    lengths = pc.list_value_length(array)
    if missing is not None:
        lengths = lengths.fill_null(0)
    offsets = offsets_of(numbers(lengths).astype(np.int64))
    values = _elements(name, array)
    return ColumnData(name, "ragged", Ragged(values, offsets), missing)
