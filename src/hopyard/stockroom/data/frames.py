"""Series of pandas and polars, arrays of Arrow, and nested tensors as samples, with the keys that pandas' index has."""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hopyard.data.columns.convert_arrow import from_arrow, runs_decoded
from hopyard.data.ragged import Ragged
from hopyard.errors import DataError, UnsupportedTypeError
from hopyard.wording import counted

WriteMethod = Literal["replace", "update", "extend"]


def without_frame(name: str, values: Any, call: WriteMethod) -> Any:
    """Samples for a column as a dict by key, an array or a list; values of no library of frames as they are.

    A Series of pandas is a dict from its index; for ``replace`` and ``extend`` one whose index counts its rows from
    0 on, as a new one's does, is an array. Series of polars and arrays of Arrow have no keys. A nested tensor is the
    tensors that it holds.

    Raises:
        DataError: a frame of several columns; values that are missing; keys that come twice or are missing; an index
            that ``extend`` would drop; types that columns do not store.
    """
    if isinstance(values, dict | list | np.ndarray):
        return values
    where = f"column {name!r}"
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _keyless(_of_arrow(where, values, None), values, where, call)
    if isinstance(values, pa.Table | pa.RecordBatch):
        raise _several(name, values, f"{type(values).__name__} of Arrow", "column_names")
    pandas, polars, torch = (sys.modules.get(library) for library in ("pandas", "polars", "torch"))
    if pandas is not None and isinstance(values, pandas.Series):
        return _of_pandas(where, values, call)
    if pandas is not None and isinstance(values, pandas.api.extensions.ExtensionArray):
        return _keyless(_of_pandas(where, pandas.Series(values), "replace"), values, where, call)
    if pandas is not None and isinstance(values, pandas.DataFrame):
        raise _several(name, values, "DataFrame of pandas", "columns")
    if pandas is not None and isinstance(values, pandas.Index):
        return _keyless(
            _of_pandas(where, values.to_series(index=range(len(values))), "replace"), values, where, call
        )
    if polars is not None and isinstance(values, polars.Series):
        if values.dtype == polars.Object:
            raise DataError(f"{where} was given a Series of Python objects. Give a list: series.to_list().")
        try:
            array = values.to_arrow()
        except Exception as error:  # of polars or of Arrow
            raise DataError(
                f"{where} was given a Series of {values.dtype}, which columns do not store ({error}). Cast it: "
                "series.cast(pl.Int64); or give the Python ints, which are stored exactly or refused: "
                "series.to_list()."
            ) from error
        return _keyless(_of_arrow(where, array, None), values, where, call)
    if polars is not None and isinstance(values, polars.DataFrame | polars.LazyFrame):
        lazy = isinstance(values, polars.LazyFrame)
        raise _several(name, values, f"{type(values).__name__} of polars", "columns", lazy)
    if torch is not None and isinstance(values, torch.Tensor) and values.is_nested:
        return _keyless(list(values.unbind()), values, where, call)
    return values


def _keyless(samples: Any, given: Any, where: str, call: WriteMethod) -> Any:
    if call == "update":
        raise DataError(
            f"{where}: update was given a {type(given).__name__}, which has no keys. Give it a dict of keys and "
            "samples, or a pandas Series, whose index has the keys; extend() takes samples without keys."
        )
    return samples


def _several(name: str, frame: Any, what: str, names: str, lazy: bool = False) -> DataError:
    return DataError(
        f"column {name!r} was given a {what}, which has several columns. "
        f"{'Compute it, frame = frame.collect(), and store' if lazy else 'Store'} each under a name of its own: "
        f"for name in frame.{names}: stock.data[name] = frame[name]; or the whole as a dataset: "
        f"stock.data[{name!r}] = prepare(frame, store=...).train."
    )


def _of_pandas(where: str, series: Any, call: WriteMethod) -> Any:
    index = series.index
    is_numbered = index.nlevels == 1 and np.array_equal(index.to_numpy(), np.arange(len(index)))
    if call == "extend" and not is_numbered:
        raise DataError(
            f"{where} was extended with a Series whose index has keys of its own (the first is {_at(index, 0)!r}), "
            "which extend() would drop. update(series) stores its samples under these keys; "
            "extend(series.reset_index(drop=True)) under the ints that follow."
        )
    if index.nlevels == 1 and index.hasnans:
        raise DataError(
            f"{where} was given a Series whose index, which has the keys, lacks some of them (NaN). Drop these rows, "
            "or give the index anew: series.reset_index(drop=True)."
        )
    if not index.is_unique:
        twice = index[index.duplicated()]
        raise DataError(
            f"{where} was given a Series whose index, which has the keys, has {counted(len(twice), 'key')} more than "
            f"once, the first is {_at(twice, 0)!r}. Give the index anew: series.reset_index(drop=True), or make keys "
            "that differ."
        )
    if len(index) and index.nlevels > 2:
        raise DataError(
            f"{where} was given a Series with an index of {index.nlevels} levels, but keys are ints, strings, or pairs "
            "of these. Join levels into strings, or leave two."
        )
    samples = _samples_of_pandas(where, series)
    if is_numbered and call != "update":
        return samples
    return dict(zip(index.tolist(), samples, strict=True))


def _samples_of_pandas(where: str, series: Any) -> Any:
    if hasattr(series, "sparse"):
        series = series.sparse.to_dense()
    if series.dtype.kind == "O" and not hasattr(series.dtype, "storage"):
        missing = series.isna()
        if missing.any():
            raise _missing(where, int(missing.sum()), _at(series.index, int(missing.argmax())))
        return series.astype(object).tolist()
    if not hasattr(series.dtype, "storage") and type(series.dtype).__module__.partition(".")[0] == "numpy":
        return series.to_numpy()
    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{where} was given a Series of {series.dtype}, which columns do not store. Convert it with .astype(...) "
            "to numbers or text."
        ) from error
    return _of_arrow(where, array, series.index)


def _of_arrow(where: str, array: pa.Array | pa.ChunkedArray, index: Any) -> Any:
    kind = array.type
    if pa.types.is_run_end_encoded(kind):
        # Before anything is asked of the values: their type and their nulls are not those of the array.
        return _of_arrow(where, runs_decoded(array), index)
    if array.null_count:
        at = array.is_null().index(True).as_py()
        raise _missing(where, array.null_count, at if index is None else _at(index, at))
    if isinstance(kind, pa.BaseExtensionType) and any(test(kind.storage_type) for test in _TEXTS):
        return _of_arrow(where, array.cast(kind.storage_type), index)
    inner = kind
    while _is_list(inner):
        inner = inner.value_type
    if pa.types.is_temporal(inner) or pa.types.is_decimal(inner):
        raise DataError(
            f"{where} was given {kind}. Columns store no times and no decimals: convert it to ints, floats or text, "
            "and say in the column's name which unit, time zone or scale that is."
        )
    if pa.types.is_dictionary(kind):
        return _of_arrow(where, array.cast(kind.value_type), index)
    if not len(array):
        return []
    if any(test(kind) for test in _TEXTS):
        try:
            return array.to_pylist()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where} was given text that is no UTF-8 ({error}). Decode it in its own encoding first, or give "
                "bytes: array.cast(pyarrow.binary())."
            ) from error
    try:
        data = from_arrow(where, array)
    except UnsupportedTypeError as error:
        raise DataError(
            f"An Arrow array cannot be samples: {error}. Convert it to numbers, text, bytes, or lists of numbers."
        ) from error
    if data.missing is not None:
        raise _missing(where, int(data.missing.sum()), int(data.missing.argmax()))
    return list(data.values) if isinstance(data.values, Ragged) else data.values


def _is_list(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _LISTS)


_LISTS = (
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view,
    pa.types.is_large_list_view,
)  # fmt: skip
_TEXTS = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
)  # fmt: skip


def _at(index: Any, at: int) -> Any:
    """A label as Python has it."""
    return index[at : at + 1].tolist()[0]


def _missing(where: str, count: int, first: Any) -> DataError:
    return DataError(
        f"{where} was given {counted(count, 'missing value')}, the first under {first!r}; samples cannot be null. Drop "
        "them (.dropna() in pandas, .drop_nulls() in polars, .drop_null() in Arrow), or fill them."
    )
