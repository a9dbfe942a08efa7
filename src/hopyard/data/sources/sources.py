"""``as_source``: everything that holds rows as a ``Source``. The contract stands in ``base.py``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopyard.data.base import BaseDataset
from hopyard.data.columns.columns import ColumnData, empty_data
from hopyard.data.columns.convert import from_values, module_of
from hopyard.data.sources.base import Source
from hopyard.data.sources.clusters import frame_source
from hopyard.data.sources.csv_files import delimiter_in, types_of
from hopyard.data.sources.files import check_csv, from_paths
from hopyard.data.sources.memory import from_mapping, from_pandas, from_polars, from_table
from hopyard.data.sources.stream import (
    RawBatches,
    StreamSource,
    from_dict_rows,
    from_reader,
    from_torch,
    is_torch_dataset,
)
from hopyard.errors import DataError

__all__ = ["Source", "as_source"]

_ROWS_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 32 << 20
_ROW_OF_UNKNOWN_SIZE = 256  # bytes


def as_source(
    data: Any,
    names: Sequence[str] | None = None,
    *,
    types: Mapping[str, Any] | None = None,
    delimiter: str | None = None,
) -> Source:
    """``data`` as a source of rows, which ``prepare``, ``fit`` and the like take instead of it.

    Args:
        data: a dict of arrays (NumPy, torch, lists, Arrow), a frame of pandas or polars, one of Spark, Ray Data or
            Dask, an Arrow table, record batches or a reader of them, paths of Parquet or CSV files (also
            directories, patterns and lists), a Hopyard dataset, a torch Dataset, or an iterable of dicts, one a row.
        names: of the columns of a torch Dataset whose items are tuples; see ``from_torch``.
        types: of columns of CSV files: ``{"id": "text", "age": "int16"}``; ``"text"``, ``"bool"``, NumPy's names of
            numbers, or types of Python, NumPy or Arrow. The others are found out.
        delimiter: the character between columns of CSV files; None: a tab in files .tsv, else a comma.

    Raises:
        DataError: it is none of these, or empty.
        UsageError: ``types`` or ``delimiter`` is impossible, or is given for data that is no CSV file.
        ColumnError: ``types`` names a column that is not there.
    """
    types = None if types is None else types_of(types)
    delimiter = None if delimiter is None else delimiter_in(delimiter)
    if isinstance(data, (str, Path)):
        return from_paths([data], types, delimiter)
    if isinstance(data, (list, tuple)) and data and all(isinstance(part, (str, Path)) for part in data):
        return from_paths(data, types, delimiter)
    check_csv(types, delimiter, f"the data is a {type(data).__name__}")
    if isinstance(data, Source):
        return data
    if isinstance(data, Mapping):
        if not data:
            raise empty_data()
        return from_mapping(data)
    if (frame := _from_frame(data)) is not None:
        return frame
    if (cluster := frame_source(data)) is not None:
        return cluster
    if is_torch_dataset(data):
        return from_torch(data, names)
    if isinstance(data, BaseDataset):
        return _from_dataset(data)
    if hasattr(data, "__arrow_c_stream__"):
        with contextlib.suppress(pa.ArrowInvalid):  # one column, not a table
            return from_table(pa.table(data))
    return _from_iterable(data)


def _from_frame(data: Any) -> Source | None:
    kind = type(data).__name__
    if module_of(data) == "pandas" and kind == "DataFrame":
        return from_pandas(data)
    if module_of(data) == "polars" and kind in ("DataFrame", "LazyFrame"):
        return from_polars(data)
    if isinstance(data, pa.Table):
        return from_table(data)
    if isinstance(data, pa.RecordBatch):
        return from_table(pa.Table.from_batches([data]))
    if isinstance(data, pa.RecordBatchReader):
        return from_reader(data)
    return None


def _from_iterable(data: Any) -> Source:
    if isinstance(data, (list, tuple)):
        if not data:
            raise empty_data()
        if all(isinstance(part, pa.RecordBatch) for part in data):
            return from_table(pa.Table.from_batches(data))
        if isinstance(data[0], Mapping):
            return from_dict_rows(data)
    elif isinstance(data, Iterable) and not hasattr(data, "__array__"):
        return from_dict_rows(_checked_rows(iter(data)))
    raise DataError(
        f"Data of type {type(data).__module__}.{type(data).__qualname__} cannot be read. Give a dict of arrays, a "
        "pandas or polars frame, an Arrow table, a DataFrame of Spark or Dask, a Dataset of Ray, paths of Parquet or "
        "CSV files, a torch Dataset, or an iterable of dicts, one a row."
    )


def _checked_rows(rows: Iterator[Any]) -> Iterator[Mapping[str, Any]]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"An iterable must give dicts, one a row, but row {number} is a {type(row).__name__}. "
                'Give rows such as {"features": ..., "label": ...}.'
            )
        yield row


def _from_dataset(data: BaseDataset) -> StreamSource:
    width = sum(column.width or _ROW_OF_UNKNOWN_SIZE for column in data.schema)
    rows = min(max(_BYTES_AT_ONCE // max(width, 1), 1), _ROWS_AT_ONCE)
    times = data.policies.times

    def convert(name: str, values: Any) -> ColumnData:
        return replace(from_values(name, values), times=name in times)

    return StreamSource(RawBatches(lambda: iter(data.loader(rows)), one_shot=False), convert)
