"""Sources that are files: Parquet, read a part of a row group at a time, and CSV, read as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from hopyard.data.opening.files import CSV, PARQUET, FoundFile, find_data, is_any, is_url
from hopyard.data.opening.hive import check_own, constant_array, constant_column, hive_columns
from hopyard.data.petastorm.schema import warn_of_encoded
from hopyard.data.preparing.layout import stored_schema
from hopyard.data.reading.stored import StoredFile
from hopyard.data.recipe.arrow_columns import read_group, undecodable
from hopyard.data.recipe.structs import field_of, flat_columns
from hopyard.data.schema import Schema
from hopyard.data.sources.base import Batch, Source
from hopyard.data.sources.collect import pick
from hopyard.data.sources.columns import ColumnData, check_names
from hopyard.data.sources.convert import convert_columns
from hopyard.data.sources.convert_arrow import from_arrow
from hopyard.data.sources.memory import MemorySource, from_table
from hopyard.data.sources.restore import restore
from hopyard.errors import ColumnError, DataError, nearest
from hopyard.storage.oserrors import read_error

_ROWS_AT_ONCE = 1 << 16


def from_paths(paths: Sequence[str | Path], types: Mapping[str, pa.DataType] = {}) -> Source:
    """Parquet or CSV files: paths and URLs of files, directories (searched to the bottom), and patterns.

    Args:
        types: of columns of CSV files that are not to be found out.

    Raises:
        NotFoundError: a path leads to no file.
        DataError: files of another or of both kinds, or with other columns than the first.
    """
    files = [file for path in paths for file in find_data(path)]
    if all(is_any(file.name, PARQUET) for file in files):
        source = ParquetSource([file.open() for file in files], [file.relative for file in files])
        for path in paths:
            if not is_url(str(path)):
                warn_of_encoded(path, str(path), source.bytes_columns())
        return source
    if all(is_any(file.name, CSV) for file in files):
        return _from_csv(files, types)
    other = next(file for file in files if not is_any(file.name, PARQUET))
    raise DataError(
        f"Data can be read from files of one kind, {', '.join(PARQUET)} or {', '.join(CSV)}, but there is {other}. "
        "Give the files of one kind, or load the data and give arrays or a frame."
    )


def _from_csv(files: Sequence[FoundFile], types: Mapping[str, pa.DataType]) -> MemorySource:
    tables = [_table_of(file, types) for file in files]
    texts = {
        name for file, table in zip(files, tables, strict=True) for name in _identifiers(file, table, types)
    }
    if texts:  # in all files, so that a column is one thing
        types = {**types, **dict.fromkeys(texts, pa.string())}
        tables = [_table_of(file, types) for file in files]
    for file, table in zip(files, tables, strict=True):
        check_names(table.schema.names)
        if unknown := [name for name in types if name not in table.schema.names]:
            raise ColumnError(
                f"{file} has no column {unknown[0]!r}{nearest(unknown[0], table.schema.names, '.')} Its columns are "
                f"{', '.join(table.schema.names)}."
            )
        if other := [field.name for field in table.schema if pa.types.is_binary(field.type)]:
            raise DataError(
                f"{file}, column {other[0]!r}: its text is not UTF-8. Save the file as UTF-8, or read it with pandas "
                "(encoding=...) and give the frame."
            )
    _check_same_columns(files, [table.schema.names for table in tables])
    table = pa.concat_tables(tables, promote_options="permissive")
    if not len(table):
        names = ", ".join(map(str, files))
        raise DataError(
            f"{names}: there are names of columns, but no rows. Give at least one file with rows."
        )
    return from_table(table)


def _table_of(
    file: FoundFile, types: Mapping[str, pa.DataType], columns: Sequence[str] | None = None
) -> pa.Table:
    """What a CSV file holds, or some of its columns."""
    options = csv.ConvertOptions(column_types=dict(types), include_columns=columns)
    delimiter = "\t" if file.name.lower().endswith((".tsv", ".tsv.gz")) else ","
    try:
        with _stream(file) as stream:
            return csv.read_csv(
                stream, parse_options=csv.ParseOptions(delimiter=delimiter), convert_options=options
            )
    except PermissionError as error:
        raise read_error(str(file), error) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file} cannot be read as CSV: {error}. Correct the file.") from error


def _stream(file: FoundFile) -> pa.NativeFile:
    source = file.name if file.store is None else pa.BufferReader(file.store.get(file.name))
    return pa.input_stream(source, compression="gzip" if file.name.lower().endswith(".gz") else None)


def _identifiers(file: FoundFile, table: pa.Table, types: Mapping[str, pa.DataType]) -> list[str]:
    """Columns that were read as numbers, but are names in digits: leading zeros (007), which numbers lose, or whole
    numbers of more digits than int64 holds, which floats change."""
    numbers = [
        field.name
        for field in table.schema
        if field.name not in types and (pa.types.is_int64(field.type) or pa.types.is_float64(field.type))
    ]
    if not numbers or not _has_identifiers(file):
        return []
    texts = _table_of(file, dict.fromkeys(numbers, pa.string()), numbers)
    found = []
    for name in numbers:
        text = texts.column(name)
        is_whole = pc.match_substring_regex(text, r"^\s*[+-]?[0-9]*\s*$")
        odd = r"^\s*[+-]?0[0-9]"
        if pa.types.is_float64(table.schema.field(name).type):
            odd = r"^\s*[+-]?(0[0-9]|[0-9]{16})"
        if pc.all(is_whole).as_py() and pc.any(pc.match_substring_regex(text, odd)).as_py():
            found.append(name)
    return found


def _has_identifiers(file: FoundFile) -> bool:
    """Whether the bytes of a file may hold some, which is found out much faster than by reading its columns again."""
    end = b"\n"
    with _stream(file) as stream:
        while block := stream.read(1 << 20):
            if _IDENTIFIER.search(end + block):
                return True
            end = block[-20:]
    return False


_IDENTIFIER = re.compile(rb"[\n\r,\t\" ][+-]?(?:0[0-9]|[0-9]{16})")


def _check_same_columns(files: Sequence[object], names: Sequence[Sequence[str]]) -> None:
    for file, its in zip(files, names, strict=True):
        if list(its) != list(names[0]):
            raise DataError(
                f"{file} has the columns {', '.join(its)}, but {files[0]} has {', '.join(names[0])}. "
                "Give files with the same columns in the same order."
            )


class ParquetSource(Source):
    """Parquet files, one after another; those that Hopyard wrote give back their tensors. Fields of structs are
    columns, and so are the keys of partitions.

    Args:
        files: in order.
        relative: their names relative to the dataset's directory, for partitions.
        columns: those that are wanted; None: all.

    Raises:
        CorruptError: a file is not a whole Parquet file.
        DataError: files differ in their columns.
    """

    def __init__(
        self, files: Sequence[StoredFile], relative: Sequence[str], columns: Sequence[str] | None = None
    ) -> None:
        self._files, self._relative = list(files), list(relative)
        schemas = [file.footer.schema.to_arrow_schema() for file in self._files]
        self._schemas = [stored_schema(schema.metadata) for schema in schemas]
        self._flats = [flat_columns(schema) for schema in schemas]
        names = [
            list(flats) if schema is None else schema.names
            for flats, schema in zip(self._flats, self._schemas, strict=True)
        ]
        _check_same_columns([file.name for file in files], names)
        constants = hive_columns(self._relative)
        for name in constants.keys() & set(names[0]) if columns is None else ():
            check_own(
                name, self._files, self._relative, self._flats,
                lambda number, group, own: read_group(self._files[number], group, own),
            )  # fmt: skip
        self._constants = {name: values for name, values in constants.items() if name not in names[0]}
        self.rows = sum(file.footer.num_rows for file in files)
        self.columns = list(columns) if columns is not None else check_names([*names[0], *self._constants])

    def bytes_columns(self) -> list[str]:
        """Those of bytes, as the first file has them."""
        kinds = {name: flat.type for name, flat in self._flats[0].items()}
        return [
            name for name, kind in kinds.items() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        ]

    def select(self, names: Sequence[str]) -> ParquetSource:
        return ParquetSource(self._files, self._relative, list(pick(dict.fromkeys(self.columns), names)))

    def batches(self) -> Iterator[Batch]:
        own = [name for name in self.columns if name not in self._constants]
        for number, file in enumerate(self._files):
            flats, schema = self._flats[number], self._schemas[number]
            for table in read_batches(file, own):
                raw = {
                    name: self._constant(name, number, table.num_rows)
                    if name in self._constants
                    else field_of(table, flats[name].path)
                    for name in self.columns
                }
                yield convert_columns(raw, _converter(schema))

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
    """Some rows of these columns at a time.

    Raises:
        CorruptError: a column of a row group cannot be decoded; names the file and both.
    """
    for group in range(file.footer.num_row_groups):
        try:
            opened = file.parquet(group, columns)
            for batch in opened.iter_batches(_ROWS_AT_ONCE, [group], list(columns)):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])
        except (pa.ArrowInvalid, OSError) as error:
            raise undecodable(file, group, columns, error) from error
