"""Converts arrays, tensors and lists to columns.

Dtypes are kept. What has no NumPy dtype or place in a dataset of its own becomes: bfloat16
tensors float32; datetimes and durations int64 nanoseconds (since 1970 UTC); decimals float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.columns.columns import ColumnData, check_names, empty_data, settle, valueless
from hopyard.data.columns.convert_arrow import SUPPORTED, from_arrow
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.schema import TENSOR_DTYPES, Column
from hopyard.errors import DataError, UnsupportedTypeError

T = TypeVar("T")


def module_of(value: Any) -> str:
    """The top-level package that the value's type comes from."""
    return type(value).__module__.partition(".")[0]


def convert_columns(
    raw: Mapping[str, T],
    convert: Callable[[str, T], ColumnData],
    expected: Mapping[str, Column] = MappingProxyType({}),
    leave_out: bool = False,
) -> dict[str, ColumnData]:
    """Every column converted; an error names all columns that cannot be.

    Args:
        expected: types of columns that hold no value, see ``Source``.
        leave_out: leave out columns that hold no value and are not expected.

    Raises:
        DataError: columns of unsupported types, or names that are not unique strings.
    """
    check_names(raw)
    columns, unsupported = {}, []
    for name, values in raw.items():
        try:
            columns[name] = settle(convert(name, values))
        except UnsupportedTypeError as error:
            if error.unknown is not None and name in expected:
                columns[name] = valueless(expected[name], np.asarray(error.unknown, bool))
            elif error.unknown is None or not leave_out:
                unsupported.append(str(error))
    if unsupported:
        raise DataError(
            f"These columns hold what a dataset cannot: {'; '.join(unsupported)}. "
            f"Supported are {SUPPORTED}. Convert or drop them, or name only others as feature and label columns."
        )
    return columns


def from_values(name: str, values: Any) -> ColumnData:
    """A column from an array, a tensor, a list of rows, or an Arrow array."""
    if module_of(values) == "torch":
        return from_numpy(name, torch_to_numpy(values))
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return from_arrow(name, values)
    if isinstance(values, np.ma.MaskedArray):
        return _from_masked(name, values)
    if isinstance(values, Ragged):
        return _from_ragged(name, values)
    if isinstance(values, (list, tuple)):
        return from_rows(name, values)
    if isinstance(values, np.ndarray) or hasattr(values, "__array__"):
        return from_numpy(name, np.asarray(values))
    raise UnsupportedTypeError(f"{name} ({type(values).__name__})")


def torch_to_numpy(tensor: Any) -> npt.NDArray[Any]:
    """A torch tensor's memory as an array; bfloat16 widened to float32."""
    tensor = tensor.detach().cpu().resolve_conj()
    return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())


def _from_ragged(name: str, rows: Ragged) -> ColumnData:
    offsets = np.asarray(rows.offsets)
    if offsets[0] != 0 or offsets[-1] != len(rows.values) or (np.diff(offsets) < 0).any():
        raise DataError(
            f"Column {name!r} is a Ragged whose offsets do not cut its {len(rows.values)} values into rows: they "
            f"must begin with 0, never fall, and end with {len(rows.values)}. Ragged.from_rows() makes such ones."
        )
    flat = from_numpy(name, np.asarray(rows.values))
    if not isinstance(flat.values, np.ndarray) or flat.missing is not None:
        raise UnsupportedTypeError(f"{name} (lists of {flat.kind}s)")
    return ColumnData(name, "ragged", Ragged(flat.values, offsets.astype(np.int64, copy=False)))


def from_numpy(name: str, array: npt.NDArray[Any]) -> ColumnData:
    if not array.ndim:
        raise DataError(
            f"Column {name!r} is a single value, {array!r}; give an array with one row per sample."
        )
    if array.dtype.kind == "O" or (array.dtype.kind in "US" and array.ndim == 1):
        return from_rows(name, array)
    if array.dtype.kind in "Mm":
        return _from_times(name, array)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.name not in TENSOR_DTYPES:
        raise UnsupportedTypeError(f"{name} ({array.dtype.name})")
    return ColumnData(name, "tensor", np.asarray(array))


def _from_times(name: str, array: npt.NDArray[Any]) -> ColumnData:
    unit = "datetime64[ns]" if array.dtype.kind == "M" else "timedelta64[ns]"
    exact, absent = array.astype(unit), np.isnat(array)
    if (~absent & (exact.astype(array.dtype) != array)).any():
        raise UnsupportedTypeError(f"{name} (times that int64 nanoseconds do not reach: 1678 to 2262)")
    missing = absent.any(axis=tuple(range(1, absent.ndim)))
    return ColumnData(name, "tensor", np.where(absent, 0, exact.view(np.int64)), missing, times=True)


def _from_masked(name: str, values: np.ma.MaskedArray[Any, Any]) -> ColumnData:
    filled = from_numpy(name, np.asarray(values.filled(0)))
    missing = np.ma.getmaskarray(values).any(axis=tuple(range(1, values.ndim)))
    return ColumnData(name, filled.kind, filled.values, np.asarray(missing))


def from_rows(name: str, rows: Sequence[Any] | npt.NDArray[Any]) -> ColumnData:
    """A column from one Python object a row; None and NaN are null, but within a list of floats NaN is a
    number. An array in which a value is masked is null as a whole."""
    if not len(rows):
        raise empty_data()
    if isinstance(rows, np.ndarray) and rows.ndim > 1:
        rows = rows.tolist()
    first = next((row for row in rows if not _is_null(row)), None)
    if module_of(first) in ("torch", "PIL", "jax", "jaxlib", "tensorflow") or isinstance(first, np.ndarray):
        return _from_arrays(name, rows)
    try:
        array = pa.array(rows, from_pandas=True)
        inner = array
        while isinstance(first, list | tuple) and hasattr(inner.type, "value_field"):
            inner = inner.flatten()
        if inner is not array and inner.null_count and pa.types.is_floating(inner.type):
            array = pa.array([None if _is_null(row) else row for row in rows])
        return from_arrow(name, array)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise UnsupportedTypeError(f"{name} (objects: {str(error).splitlines()[0]})") from error


def _is_null(row: Any) -> bool:
    """Whether a row among lists or arrays is null: None, or one of the NaNs of NumPy and pandas."""
    return (
        row is None or (isinstance(row, float) and row != row) or type(row).__name__ in ("NAType", "NaTType")
    )


def _from_arrays(name: str, rows: Sequence[Any] | npt.NDArray[Any]) -> ColumnData:
    null = np.array([_is_null(row) for row in rows])
    missing = null | [np.ma.is_masked(row) for row in rows]
    arrays = [
        torch_to_numpy(row) if module_of(row) == "torch" else np.asarray(row)
        for row, is_null in zip(rows, null, strict=True)
        if not is_null
    ]
    telling = [
        array for array in arrays if array.shape != (0,)
    ] or arrays  # np.array([]) says nothing of others
    dtypes = {array.dtype for array in telling}
    arrays = [
        array if array.shape != (0,) else np.empty((0, *telling[0].shape[1:]), telling[0].dtype)
        for array in arrays
    ]
    inner = {array.shape[1:] for array in arrays}
    if len(dtypes) > 1:
        raise UnsupportedTypeError(
            f"{name} (arrays of different dtypes: {', '.join(sorted(map(str, dtypes)))})"
        )
    if len(inner) > 1 or len({array.ndim for array in arrays}) > 1:
        raise UnsupportedTypeError(f"{name} (arrays that differ in more than their first dimension)")
    if len({array.shape for array in arrays}) == 1 and arrays[0].shape[:1] != (0,):
        stacked = from_numpy(name, np.stack(arrays))
        if not isinstance(stacked.values, np.ndarray) or not missing.any():
            return stacked
        values = np.zeros((len(missing), *stacked.values.shape[1:]), stacked.values.dtype)
        values[~missing] = stacked.values[~missing[~null]]
        return ColumnData(name, "tensor", values, missing)
    arrays = [
        array[:0] if is_masked else array for array, is_masked in zip(arrays, missing[~null], strict=True)
    ]
    lengths = np.zeros(len(missing), np.int64)
    lengths[~null] = [len(array) for array in arrays]
    flat = from_numpy(name, np.concatenate(arrays))
    if not isinstance(flat.values, np.ndarray):
        raise UnsupportedTypeError(f"{name} (lists of {flat.kind}s)")
    return ColumnData(name, "ragged", Ragged(flat.values, offsets_of(lengths)), missing)
