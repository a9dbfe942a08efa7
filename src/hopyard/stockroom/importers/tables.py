"""Tables: Parquet and CSV, read by the data layer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.dataset import Dataset
from hopyard.data.opening.files import CSV, find_files, is_any
from hopyard.data.opening.opening import open_dataset
from hopyard.data.sources.files import from_paths
from hopyard.errors import DataError, NullsError, UsageError
from hopyard.stockroom.importers.base import ColumnSource, Importer, Option, Samples
from hopyard.stockroom.importers.mapped import samples_of, save_column
from hopyard.stockroom.importers.parts import describe_files, listed


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
    """The same with the next step of an import."""
    return DataError(
        f"{error.found}; samples cannot be null. Import with the option nulls=fill (0, False or an empty text "
        "instead) or nulls=mask (filled, and a column <name>_mask that is True there): --option nulls=fill on the "
        "command line, options={'nulls': 'fill'} in Python; or drop those rows or the column."
    )


class Csv(Importer):
    """CSV or TSV, also .gz: a file, or a folder of files with the same columns. The first line names the columns.

    Numbers are int64 or float64, true and false bool, times int64 nanoseconds, all else texts. Columns of whole numbers
    some of which have leading zeros (007), or more digits than int64 holds, stay texts. It is read as a whole.
    """

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        text = "of columns, as id=text,n=float32; others are found out. Types: text, bool, and NumPy's of numbers"
        return (Option("types", "", text),)

    def columns(self) -> list[ColumnSource]:
        assert self.source is not None
        other = [path for path in find_files(self.source) if not is_any(path, CSV)]
        if other:
            raise DataError(
                f"{listed([str(path) for path in other])} is no {' or '.join(CSV)} file. Use another importer "
                "(parquet), or rename the file."
            )
        found = from_paths([self.source], _types(self.settings["types"])).known_columns() or {}
        return [save_column(data, self.scratch, number) for number, data in enumerate(found.values())]

    def identity(self) -> Mapping[str, Any]:
        assert self.source is not None
        return {"files": describe_files(find_files(self.source)), **self.settings}


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


_TYPES = {"text": pa.string(), "bool": pa.bool_()} | {
    name: pa.type_for_alias(name)
    for name in (
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float32",
        "float64",
    )
}
