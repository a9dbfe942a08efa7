"""Sources that are files: Parquet, read a part of a row group at a time, and CSV, read as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from hopyard.data.opening.files import CSV, PARQUET, FoundFile, find_data, is_any
from hopyard.data.opening.hive import constant_array, constant_column, hive_columns
from hopyard.data.petastorm.schema import warn_of_encoded
from hopyard.data.preparing.layout import stored_schema
from hopyard.data.reading.stored import READ_OPTIONS
from hopyard.data.recipe.structs import field_of, flat_columns
from hopyard.data.schema import Schema
from hopyard.data.sources.base import Batch, Source
from hopyard.data.sources.collect import pick
from hopyard.data.sources.columns import ColumnData, check_names
from hopyard.data.sources.convert import convert_columns
from hopyard.data.sources.convert_arrow import from_arrow
from hopyard.data.sources.memory import MemorySource, from_table
from hopyard.data.sources.restore import restore
from hopyard.errors import CorruptError, DataError, NotFoundError

_ROWS_AT_ONCE = 1 << 16


def from_paths(paths: Sequence[str | Path]) -> Source:
    """Parquet or CSV files: paths, directories (searched to the bottom), patterns, ``file://`` URLs.

    Raises:
        NotFoundError: a path leads to no file.
        DataError: files of another or of both kinds, or with other columns than the first.
    """
    files = [file for path in paths for file in find_data(path)]
    if all(is_any(file.path, PARQUET) for file in files):
        source = ParquetSource(files)
        for path in paths:
            warn_of_encoded(path, str(path), source.bytes_columns())
        return source
    if all(is_any(file.path, CSV) for file in files):
        return _from_csv([file.path for file in files])
    other = next(file.path for file in files if not is_any(file.path, PARQUET))
    raise DataError(
        f"Data can be read from files of one kind, {', '.join(PARQUET)} or {', '.join(CSV)}, but there is {other}. "
        "Give the files of one kind, or load the data and give arrays or a frame."
    )


def _from_csv(files: Sequence[Path]) -> MemorySource:
    tables = []
    for file in files:
        tabs = ".tsv" in file.suffixes[-2:]
        try:
            tables.append(csv.read_csv(file, parse_options=csv.ParseOptions(delimiter="\t" if tabs else ",")))
        except pa.ArrowInvalid as error:
            raise DataError(f"{file} cannot be read as CSV: {error}. Correct the file.") from error
    _check_same_columns(files, [table.schema.names for table in tables])
    return from_table(pa.concat_tables(tables, promote_options="permissive"))


def _check_same_columns(files: Sequence[Path], names: Sequence[Sequence[str]]) -> None:
    for file, its in zip(files, names, strict=True):
        if list(its) != list(names[0]):
            raise DataError(
                f"{file} has the columns {', '.join(its)}, but {files[0]} has {', '.join(names[0])}. "
                "Give files with the same columns in the same order."
            )


class ParquetSource(Source):
    """Parquet files, one after another; those that Hopyard wrote give back their tensors. Fields of structs are
    columns, and so are the keys of partitions."""

    def __init__(self, files: Sequence[FoundFile], columns: Sequence[str] | None = None) -> None:
        self._files = list(files)
        opened = [open_parquet(file.path) for file in self._files]
        self._schemas = [stored_schema(file.schema_arrow.metadata) for file in opened]
        self._flats = [flat_columns(file.schema_arrow) for file in opened]
        names = [
            list(flats) if schema is None else schema.names
            for flats, schema in zip(self._flats, self._schemas, strict=True)
        ]
        _check_same_columns([file.path for file in files], names)
        self._constants = {
            name: values
            for name, values in hive_columns([file.relative for file in files]).items()
            if name not in names[0]  # what the files hold themselves is theirs
        }
        self.rows = sum(file.metadata.num_rows for file in opened)
        self.columns = list(columns) if columns is not None else check_names([*names[0], *self._constants])

    def bytes_columns(self) -> list[str]:
        """Those of bytes, as the first file has them."""
        kinds = {name: flat.type for name, flat in self._flats[0].items()}
        return [
            name for name, kind in kinds.items() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        ]

    def select(self, names: Sequence[str]) -> ParquetSource:
        return ParquetSource(self._files, list(pick(dict.fromkeys(self.columns), names)))

    def batches(self) -> Iterator[Batch]:
        own = [name for name in self.columns if name not in self._constants]
        for number, file in enumerate(self._files):
            flats, schema = self._flats[number], self._schemas[number]
            for table in read_batches(file.path, own):
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


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file with its footer read.

    Raises:
        CorruptError: it is not a whole Parquet file.
        NotFoundError: it is not there.
    """
    try:
        return pq.ParquetFile(path, memory_map=True, **READ_OPTIONS)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}. Check the path.") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptError(
            f"{path} is not a whole Parquet file, it was truncated or changed ({_first_line(error)}). "
            "Restore it, or write it again."
        ) from error


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Some rows of these columns at a time.

    Raises:
        CorruptError: a column of a row group cannot be decoded; names the file and both.
    """
    with open_parquet(path) as file:
        for group in range(file.num_row_groups):
            try:
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=list(columns)):
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch])
            except (pa.ArrowInvalid, OSError) as error:
                raise _damaged(file, path, group, columns, error) from error


def _damaged(
    file: pq.ParquetFile, path: Path, group: int, columns: Sequence[str], error: Exception
) -> CorruptError:
    """The error of a row group that cannot be decoded, after looking which column it is."""
    for column in columns:
        try:
            file.read_row_group(group, columns=[column])
        except (pa.ArrowInvalid, OSError):
            where = f", column {column!r},"
            break
    else:
        where = ""
    return CorruptError(
        f"{path}: row group {group}{where} cannot be decoded; the file was truncated or changed "
        f"({_first_line(error)}). Restore it, or write it again."
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
