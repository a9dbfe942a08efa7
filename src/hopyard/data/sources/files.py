"""Sources that are files: Parquet, read a part of a row group at a time, and CSV (``csv_files``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.columns.columns import ColumnData, ConvertedColumns, check_names
from hopyard.data.columns.convert import convert_columns
from hopyard.data.columns.convert_arrow import from_arrow, is_list, is_unknown
from hopyard.data.columns.convert_json import json_texts
from hopyard.data.columns.restore import restore
from hopyard.data.columns.structs import field_of, flat_columns
from hopyard.data.files.fetching import fetched_groups
from hopyard.data.files.found import CSV, PARQUET, find_data, is_any, is_url
from hopyard.data.files.hive import check_own, constant_array, constant_column, hive_columns
from hopyard.data.files.stored import StoredFile
from hopyard.data.files.unischema import warn_of_encoded
from hopyard.data.layout import stored_schema
from hopyard.data.recipe.arrow_columns import read_group, undecodable
from hopyard.data.schema import Column, Schema
from hopyard.data.sources.base import Source
from hopyard.data.sources.collect import pick
from hopyard.data.sources.csv_files import check_same_columns, read_csv_files
from hopyard.data.sources.frame_batches import column_of_type
from hopyard.data.sources.memory import from_table
from hopyard.errors import DataError, UsageError

_ROWS_AT_ONCE = 1 << 16


def from_paths(
    paths: Sequence[str | Path], types: Mapping[str, pa.DataType] | None = None, delimiter: str | None = None
) -> Source:
    """Parquet or CSV files: paths and URLs of files, directories (searched to the bottom), and patterns.

    Args:
        types, delimiter: of CSV files; see ``read_csv_files``.

    Raises:
        UsageError: one of these is given, and files are not CSV.
        NotFoundError: a path leads to no file.
        DataError: files of another or of both kinds, or with other columns than the first.
    """
    files = [file for path in paths for file in find_data(path)]
    if all(is_any(file.name, CSV) for file in files):
        return from_table(read_csv_files(files, types or {}, delimiter or ""))
    check_csv(types, delimiter, f"{files[0]} is none")
    if all(is_any(file.name, PARQUET) for file in files):
        source = ParquetSource([file.open() for file in files], [file.relative for file in files])
        for path in paths:
            if not is_url(str(path)):
                warn_of_encoded(path, str(path), source.bytes_columns())
        return source
    other = next(file for file in files if not is_any(file.name, PARQUET))
    raise DataError(
        f"Data can be read from files of one kind, {', '.join(PARQUET)} or {', '.join(CSV)}, but there is {other}. "
        "Give the files of one kind, or load the data and give arrays or a frame."
    )


def check_csv(types: object, delimiter: object, what: str) -> None:
    """Raise UsageError if one is given with data that, as ``what`` says, is no CSV file."""
    if types is not None or delimiter is not None:
        raise UsageError(
            f"types= and delimiter= say how CSV files are read, but {what}. Leave them out, and cast what has types "
            "already where it is made."
        )


class ParquetSource(Source):
    """Parquet files, one after another; files that Hopyard wrote give back their tensors. Fields of structs are
    columns, and so are the keys of partitions.

    Args:
        files: in order.
        relative: their names relative to the dataset's directory, for partitions.
        columns: names of the wanted columns; None: all.
        json: names of columns that are read as texts of JSON, see ``Source.with_json``.

    Raises:
        CorruptError: a file is not a whole Parquet file.
        DataError: files differ in their columns.
    """

    def __init__(
        self,
        files: Sequence[StoredFile],
        relative: Sequence[str],
        columns: Sequence[str] | None = None,
        json: Sequence[str] = (),
    ) -> None:
        self._files, self._relative, self._json = list(files), list(relative), json
        schemas = [file.footer.schema.to_arrow_schema() for file in self._files]
        self._schemas = [stored_schema(schema.metadata) for schema in schemas]
        self._flats = [flat_columns(schema) for schema in schemas]
        names = [
            list(flats) if schema is None else schema.names
            for flats, schema in zip(self._flats, self._schemas, strict=True)
        ]
        check_same_columns([file.name for file in files], names)
        constants = hive_columns(self._relative)
        for name in constants.keys() & set(names[0]) if columns is None else ():
            check_own(
                name, self._files, self._relative, self._flats,
                lambda number, group, own: read_group(self._files[number], group, own),
            )  # fmt: skip
        self._constants = {name: values for name, values in constants.items() if name not in names[0]}
        self.rows: int = sum(file.footer.num_rows for file in files)
        self.columns: list[str] = (
            list(columns) if columns is not None else check_names([*names[0], *self._constants])
        )

    def bytes_columns(self) -> list[str]:
        """Names of the columns of bytes, as the first file has them."""
        kinds = {name: flat.type for name, flat in self._flats[0].items()}
        return [
            name for name, kind in kinds.items() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        ]

    def select(self, names: Sequence[str]) -> ParquetSource:
        wanted = list(pick(dict.fromkeys(self.columns), names))
        return ParquetSource(self._files, self._relative, wanted, self._json)

    def with_json(self, names: Sequence[str]) -> ParquetSource:
        return ParquetSource(self._files, self._relative, self.columns, tuple(names))

    def where(self, row: int) -> str:
        ends = np.cumsum([file.footer.num_rows for file in self._files])
        number = int(np.searchsorted(ends, row, side="right"))
        return f"{self._files[number].name}, row {row - (int(ends[number - 1]) if number else 0)}"

    def batches(self) -> Iterator[ConvertedColumns]:
        own = [name for name in self.columns if name not in self._constants]
        expected = self._expected(own)
        for number, file in enumerate(self._files):
            flats, schema = self._flats[number], self._schemas[number]
            for table in read_batches(file, own):
                raw = {
                    name: self._constant(name, number, table.num_rows)
                    if name in self._constants
                    else field_of(table, flats[name].path)
                    for name in self.columns
                }
                yield convert_columns(raw, json_texts(_converter(schema), self._json), expected)

    def _expected(self, names: Sequence[str]) -> dict[str, Column]:
        """Columns of which one file knows only that all is null or empty, as the others have them."""
        known = dict(self.expected)
        for name in names:
            types = [flats[name].type for flats in self._flats if name in flats]
            typed = [kind for kind in types if not is_unknown(kind)]
            nested = any(
                is_list(kind) and is_list(kind.value_type) for kind in typed
            )  # of a shape that rows tell
            if typed and len(typed) < len(types) and not nested:
                known[name] = column_of_type(name, typed[0]).column
        return known

    def _constant(self, name: str, number: int, rows: int) -> pa.Array:
        values = self._constants[name]
        return constant_array(constant_column(name, values), values[number], rows)


def _converter(schema: Schema | None) -> Any:
    def convert(name: str, array: pa.Array) -> ColumnData:
        return (
            from_arrow(name, array) if schema is None or name not in schema else restore(schema[name], array)
        )

    return convert


def read_batches(file: StoredFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of these columns, some at a time.

    Raises:
        CorruptError: a column of a row group cannot be decoded; names the file and both.
    """
    for group, near in fetched_groups(file, range(file.footer.num_row_groups), columns):
        try:
            opened = near.parquet(group, columns)
            for batch in opened.iter_batches(_ROWS_AT_ONCE, [group], list(columns)):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])
        except (pa.ArrowInvalid, OSError) as error:
            raise undecodable(file, group, columns, error) from error
