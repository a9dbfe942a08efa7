"""Sources that are in memory as a whole: dicts of arrays, and frames of pandas, polars and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.columns.columns import ColumnData, ConvertedColumns, check_lengths, check_names
from hopyard.data.columns.convert import convert_columns, from_numpy, from_rows, from_values
from hopyard.data.columns.convert_arrow import from_arrow
from hopyard.data.columns.convert_json import json_texts
from hopyard.data.columns.structs import flatten_structs, is_struct
from hopyard.data.sources.base import Source
from hopyard.data.sources.collect import SourceFindings, collect, pick
from hopyard.errors import UnsupportedTypeError

Convert = Callable[[str, Any], ColumnData]


class MemorySource(Source):
    """Columns in memory. They are converted when first needed, after those not wanted are gone."""

    def __init__(self, raw: Mapping[str, Any], convert: Convert) -> None:
        self._raw = raw
        self._convert = convert
        self.columns: list[str] = check_names(raw)

    @cached_property
    def _data(self) -> ConvertedColumns:
        data = convert_columns(self._raw, self._convert, self.expected)
        check_lengths(data)
        return data

    @property
    def rows(self) -> int:  # type: ignore[override]
        return check_lengths(self._data)

    def batches(self) -> Iterator[ConvertedColumns]:
        yield self._data

    def select(self, names: Sequence[str]) -> MemorySource:
        return MemorySource(pick(self._raw, names), self._convert)

    def with_json(self, names: Sequence[str]) -> MemorySource:
        return MemorySource(self._raw, json_texts(self._convert, names))

    def head_columns(self, n: int) -> ConvertedColumns:
        return {name: data[:n] for name, data in self._data.items()}

    def known_columns(self) -> ConvertedColumns:
        return self._data

    def _collect(self, spool: Path | None) -> SourceFindings:
        if self._collected is None:
            self._collected = collect(self._data)
        return self._collected


def from_mapping(data: Mapping[str, Any]) -> MemorySource:
    """A dict of arrays, tensors, lists or Arrow arrays."""
    return MemorySource(
        flatten_structs({name: _struct_of_dicts(values) for name, values in data.items()}), from_values
    )


def from_pandas(frame: Any) -> MemorySource:
    """A pandas frame, without its index. As in pandas itself, NaN in a column of floats is null."""
    names = check_names(frame.columns)
    columns = {name: _struct_or_series(frame.iloc[:, i]) for i, name in enumerate(names)}
    return MemorySource(flatten_structs(columns), _from_series)


def _struct_or_series(series: Any) -> Any:
    """The Arrow array of a series of structs or of dicts; any other series itself."""
    if is_struct(getattr(series.dtype, "pyarrow_dtype", None)):
        return pa.array(series)
    return _struct_of_dicts(series) if series.dtype.kind == "O" else series


def _struct_of_dicts(rows: Any) -> Any:
    """Rows that are dicts as Arrow's structs; a key that a row lacks is null there. Anything else as it is."""
    if not isinstance(rows, list | tuple) and getattr(getattr(rows, "dtype", None), "kind", "") != "O":
        return rows
    if not getattr(rows, "ndim", 1):  # a single object, which is refused as a column
        return rows
    first = next((row for row in rows if row is not None and not isinstance(row, float)), None)  # NaN is null
    if not isinstance(first, dict):
        return rows
    try:
        return pa.array(rows, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return rows


def _from_series(name: str, series: Any) -> ColumnData:
    if isinstance(series, (pa.Array, pa.ChunkedArray)):
        return from_arrow(name, series)
    if hasattr(series, "sparse"):
        series = series.sparse.to_dense()
    if not isinstance(series.dtype, np.dtype):
        return _from_pandas_arrow(name, series)
    array = series.to_numpy()
    if array.dtype.kind == "O":
        return from_rows(name, array)
    data = from_numpy(name, array)
    if array.dtype.kind != "f" or not (missing := np.isnan(array)).any():
        return data
    return ColumnData(name, "tensor", np.where(missing, array.dtype.type(0), array), missing)


def _from_pandas_arrow(name: str, series: Any) -> ColumnData:
    try:
        return from_arrow(name, pa.array(series, from_pandas=True))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UnsupportedTypeError(f"{name} ({series.dtype})") from error


def from_polars(frame: Any) -> MemorySource:
    """A polars DataFrame, or a LazyFrame, which is collected."""
    frame = frame.collect() if hasattr(frame, "collect") else frame
    columns = {series.name: _without_structs(series) for series in frame.get_columns()}
    return MemorySource(flatten_structs(columns), _from_polars_series)


def _without_structs(series: Any) -> Any:
    return series.to_arrow() if str(series.dtype).startswith("Struct") else series


def _from_polars_series(name: str, series: Any) -> ColumnData:
    if isinstance(series, (pa.Array, pa.ChunkedArray)):
        return from_arrow(name, series)
    if str(series.dtype) == "Object":  # its Arrow form holds addresses
        raise UnsupportedTypeError(f"{name} (Python objects)")
    return from_arrow(name, series.to_arrow())


def from_table(table: pa.Table) -> MemorySource:
    """An Arrow table; fields of structs are columns."""
    names = check_names(table.column_names)
    return MemorySource(flatten_structs({name: table.column(i) for i, name in enumerate(names)}), from_arrow)
