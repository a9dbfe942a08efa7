"""Tables: Parquet and CSV, read by the data layer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.data.dataset import Dataset
from hopyard.data.opening.files import CSV, find_files, is_any
from hopyard.data.opening.opening import open_dataset
from hopyard.data.sources.files import from_paths
from hopyard.errors import DataError
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
        rows = self.dataset.take(np.arange(start, stop), {self.name: self.name})[self.name]
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
        return open_dataset(self.source, nulls=self.settings["nulls"], cache=False)

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


class Csv(Importer):
    """CSV or TSV, also .gz: a file, or a folder of files with the same columns. The first line names the columns.

    Numbers are int64 or float64, true and false bool, times int64 nanoseconds, all else texts. It is read as a whole.
    """

    def columns(self) -> list[ColumnSource]:
        assert self.source is not None
        other = [path for path in find_files(self.source) if not is_any(path, CSV)]
        if other:
            raise DataError(
                f"{listed([str(path) for path in other])} is no {' or '.join(CSV)} file. Use another importer "
                "(parquet), or rename the file."
            )
        found = from_paths([self.source]).known_columns() or {}
        return [save_column(data, self.scratch, number) for number, data in enumerate(found.values())]

    def identity(self) -> Mapping[str, Any]:
        assert self.source is not None
        return {"files": describe_files(find_files(self.source))}
