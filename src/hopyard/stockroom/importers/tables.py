"""Tables: Parquet and CSV, read by the data layer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.dataset import Dataset
from hopyard.data.opening.files import CSV, find_files, is_any
from hopyard.data.opening.opening import open_dataset
from hopyard.data.schema import TENSOR_DTYPES
from hopyard.data.sources.columns import ColumnData
from hopyard.data.sources.files import from_paths
from hopyard.errors import DataError, NullsError, UsageError, nearest
from hopyard.stockroom.importers.base import ColumnSource, Importer, Option, Samples
from hopyard.stockroom.importers.mapped import samples_of, save_column
from hopyard.stockroom.importers.parts import describe_files, listed
from hopyard.stockroom.maps import check_key
from hopyard.wording import counted


@dataclass(frozen=True)
class _DatasetColumn:
    """Reads a column of a dataset; it has the files open and a row group decoded, once in a process."""

    dataset: Dataset
    name: str

    def __call__(self, start: int, stop: int) -> Samples:
        kind = self.dataset.schema[self.name].kind
        try:
            rows = self.dataset.take(np.arange(start, stop), {self.name: self.name})[self.name]
        except NullsError as error:
            raise _without_policy(error) from error
        return samples_of("tensor" if kind == "ragged" else kind, rows)


class Parquet(Importer):
    """Parquet: a file, or a folder of files (also with folders key=value, and as Hopyard prepared it).

    A column for each, fields of structs under dotted names, as the data layer reads them: tensors that Hopyard wrote,
    numbers, texts, bytes; lists are arrays, of one shape or of different lengths; times are int64 nanoseconds.
    """

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        text = "of rows that are null: error; fill: 0, '' or no values; mask: filled, and a bool column <name>_mask"
        return (Option("nulls", "error", text, ("error", "fill", "mask")),)

    @functools.cached_property
    def _dataset(self) -> Dataset:
        assert self.source is not None
        try:
            return open_dataset(self.source, nulls=self.settings["nulls"], cache=False)
        except NullsError as error:
            raise _without_policy(error) from error

    def columns(self) -> list[ColumnSource]:
        columns = []
        for column in self._dataset.schema:
            kind = "tensor" if column.kind == "ragged" else column.kind
            shape = None if column.kind == "ragged" else column.shape
            read = _DatasetColumn(self._dataset, column.name)
            columns.append(ColumnSource(column.name, len(self._dataset), kind, column.dtype, shape, read))
        return columns

    def identity(self) -> Mapping[str, Any]:
        files = self._dataset.manifest.files
        return {
            "fingerprint": self._dataset.fingerprint,
            "files": [
                {"name": f.name.rpartition("/")[2], "bytes": f.size, "digest": f.digest} for f in files
            ],
            **self.settings,
        }


def _without_policy(error: NullsError) -> DataError:
    """An error about nulls that advises the options of an import."""
    return DataError(
        f"{error.found}; samples cannot be null. Import with the option nulls=fill (0, False or an empty text "
        "instead) or nulls=mask (filled, and a column <name>_mask that is True there): --option nulls=fill on the "
        "command line, options={'nulls': 'fill'} in Python; or drop those rows or the column."
    )


@dataclass(frozen=True)
class _Keys:
    """Reads a column as the keys of others."""

    source: ColumnSource

    def __call__(self, start: int, stop: int) -> list[int | str]:
        read = self.source.read(start, stop)
        return read.tolist() if isinstance(read, np.ndarray) else list(read)  # type: ignore[arg-type]


class Csv(Importer):
    """CSV or TSV, also .gz: a file, or a folder of files with the same columns. The first line names the columns.

    Numbers are int64 or float64, true and false bool, times int64 nanoseconds, all else texts. Columns of whole numbers
    some of which have leading zeros (007), or more digits than int64 holds, stay texts. An empty text is
    one; other columns miss a value there. It is read as a whole; sample n is row n, counted from 0, unless ``key``
    names the column that has the keys: whole numbers or texts, each once.
    """

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        text = "of columns, as id=text,n=float32; others are found out. Types: text, bool, and NumPy's of numbers"
        nulls = (
            "of missing values: error; nan: numbers become float64 with NaN; fill: 0 or false; mask: filled, and a "
            "bool column <name>_mask"
        )
        key = "the column whose values are the keys of all others, and which is no column itself; none: rows count"
        return (
            Option("types", "", text),
            Option("nulls", "error", nulls, ("error", "nan", "fill", "mask")),
            Option("key", "", key),
        )

    def columns(self) -> list[ColumnSource]:
        assert self.source is not None
        other = [path for path in find_files(self.source) if not is_any(path, CSV)]
        if other:
            raise DataError(
                f"{listed([str(path) for path in other])} is no {' or '.join(CSV)} file. Use another importer "
                "(parquet), or rename the file."
            )
        found = dict(from_paths([self.source], _types(self.settings["types"])).known_columns() or {})
        keys = self._keys(found)
        filled = _without_nulls(list(found.values()), self.settings["nulls"])
        saved = [save_column(data, self.scratch, number) for number, data in enumerate(filled)]
        return saved if keys is None else [replace(column, keys=keys) for column in saved]

    def _keys(self, found: dict[str, ColumnData]) -> _Keys | None:
        """The keys of all columns, whose own column is taken from ``found``; None: rows are numbered.

        Raises:
            UsageError, DataError: its values cannot be keys.
        """
        name = self.settings["key"]
        if not name:
            return None
        if name not in found or len(found) == 1:
            wrong = "is the only one" if name in found else f"is none of them{nearest(name, found, '.')}"
            raise UsageError(
                f"key={name!r} shall name the column that has the keys of the others, but {wrong}. The columns are "
                f"{', '.join(found)}."
            )
        data = found.pop(name)
        if data.missing is not None:
            rows = np.flatnonzero(data.missing)
            raise DataError(
                f"the column {name!r}, which shall have the keys, lacks {counted(len(rows), 'value')}, the first in "
                f"row {rows[0]}. Fill them in the file, or import without key={name}."
            )
        kinds = data.values.dtype.kind if isinstance(data.values, np.ndarray) else ""
        if data.kind != "string" and kinds not in ("i", "u"):
            raise DataError(
                f"the column {name!r}, which shall have the keys, is {data.column.dtype}, but keys are whole numbers "
                f"or texts. Read it as text, types={name}=text, or name another column."
            )
        source = save_column(data, self.scratch, len(found) * 2)
        keys = _Keys(source)
        every = keys(0, source.count)
        first: dict[int | str, int] = {}
        for row, key in enumerate(every):
            if first.setdefault(check_key(key), row) != row:  # type: ignore[arg-type]
                twice = len(every) - len(set(every))
                raise DataError(
                    f"the column {name!r}, which shall have the keys, has {counted(twice, 'key')} more than once, the "
                    f"first is {key!r} in the rows {first[key]} and {row}. Name a column whose values differ, or "
                    f"import without key={name}: rows are then numbered from 0."
                )
        return keys

    def identity(self) -> Mapping[str, Any]:
        assert self.source is not None
        return {"files": describe_files(find_files(self.source)), **self.settings}


def _without_nulls(columns: list[ColumnData], policy: str) -> list[ColumnData]:
    """The columns as a policy for missing values has them.

    Raises:
        DataError: the policy does not apply to some, all of which are named.
    """
    filled, refused = [], []
    names = {data.name for data in columns}
    for data in columns:
        if data.missing is None:
            filled.append(data)
        elif policy == "nan" and _holds_nan(data):
            values = np.asarray(data.values, np.float64)
            filled.append(replace(data, values=np.where(data.missing, np.nan, values), missing=None))
        elif policy == "fill" or (policy == "mask" and f"{data.name}_mask" not in names):
            filled.append(replace(data, missing=None))
            filled += [ColumnData(f"{data.name}_mask", "tensor", data.missing)] if policy == "mask" else []
        else:
            rows = np.flatnonzero(data.missing)
            refused.append(f"{data.name!r} ({counted(len(rows), 'value')}, the first in row {rows[0]})")
    if refused:
        raise DataError(
            f"values are missing in {counted(len(refused), 'column')}: {', '.join(refused)}; samples cannot be null, "
            f"and nulls={policy} was given. Import with another: nulls=nan (numbers become float64 with NaN; not bool, "
            "nor whole numbers beyond 2**53), nulls=fill (0 or false) or nulls=mask (filled, and a column <name>_mask "
            "that is True there): --option nulls=nan on the command line, options={'nulls': 'nan'} in Python."
        )
    return filled


def _holds_nan(data: ColumnData) -> bool:
    """Whether the numbers of a column are the same as float64."""
    values = data.values
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
        return False
    return values.dtype.kind == "f" or not bool(((values > 1 << 53) | (values < -(1 << 53))).any())


def _types(given: str) -> dict[str, pa.DataType]:
    """Arrow's types of columns from the option."""
    types = {}
    for each in filter(None, given.split(",")):
        name, sign, kind = each.rpartition("=")
        if not sign or kind.strip() not in _TYPES:
            raise UsageError(
                f"types={given!r} has the part {each!r}, but each is COLUMN=TYPE with one of the types "
                f"{', '.join(_TYPES)}: types=id=text,weight=float32"
            )
        types[name.strip()] = _TYPES[kind.strip()]
    return types


# Arrow reads no float16 from CSV.
_TYPES = {"text": pa.string()} | {
    name: pa.type_for_alias(name) for name in TENSOR_DTYPES if name != "float16"
}
