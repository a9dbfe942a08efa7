"""Sources that are files: Parquet, read a part of a row group at a time, and CSV, read as a whole."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from hopyard.data.collect import pick
from hopyard.data.columns import ColumnData, check_names
from hopyard.data.convert import convert_columns
from hopyard.data.convert_arrow import from_arrow
from hopyard.data.layout import stored_schema
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.data.restore import restore
from hopyard.data.schema import Schema
from hopyard.data.sources_base import Batch, Source
from hopyard.data.sources_memory import MemorySource, from_table
from hopyard.errors import CorruptError, DataError, NotFoundError

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_ROWS_AT_ONCE = 1 << 16


def from_paths(paths: Sequence[str | Path]) -> Source:
    """Parquet or CSV files: paths, directories (searched to the bottom), patterns, ``file://`` URLs.

    Raises:
        NotFoundError: a path leads to no file.
        DataError: files of another or of both kinds, or with other columns than the first.
    """
    files = [file for path in paths for file in find_files(path)]
    if all(_is(file, PARQUET) for file in files):
        return ParquetSource(files)
    if all(_is(file, CSV) for file in files):
        return _from_csv(files)
    other = next(file for file in files if not _is(file, PARQUET))
    raise DataError(
        f"Data can be read from files of one kind, {', '.join(PARQUET)} or {', '.join(CSV)}, but there is {other}. "
        "Give the files of one kind, or load the data and give arrays or a frame."
    )


def find_files(path: str | Path) -> list[Path]:
    """The data files that a path, a directory, a pattern or a ``file://`` URL leads to, sorted."""
    text = str(path)
    parsed = urlparse(text)
    if len(parsed.scheme) > 1 and parsed.scheme != "file":
        raise DataError(
            f"{text} is not a path of this machine. Open the data with its own library (pyarrow, pandas, polars) "
            "and give the table, or download the files first."
        )
    place = Path(unquote(parsed.path)) if parsed.scheme == "file" else Path(text)
    if place.is_dir():
        files = _listed(place) or sorted(
            file
            for file in place.rglob("*")
            if _is(file, (*PARQUET, *CSV))
            and not any(part[0] in "._" for part in file.relative_to(place).parts)
        )
    else:
        files = [place] if place.is_file() else _matching(place)
    if not files:
        raise NotFoundError(f"There is no {' or '.join((*PARQUET, *CSV))} file at {text}. Check the path.")
    return files


def _matching(pattern: Path) -> list[Path]:
    return sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207, a pattern may be absolute


def _listed(directory: Path) -> list[Path]:
    """The files of a prepared dataset, in the order of its manifest; none if it is no such directory."""
    manifest = directory / MANIFEST_NAME
    if not manifest.is_file():
        return []
    return [
        directory / entry.name for entry in Manifest.from_bytes(manifest.read_bytes(), str(manifest)).files
    ]


def _is(file: Path, endings: tuple[str, ...]) -> bool:
    return file.name.lower().endswith(endings)


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
    """Parquet files, one after another; those that Hopyard wrote give back their tensors."""

    def __init__(self, files: Sequence[Path], columns: Sequence[str] | None = None) -> None:
        self._files = list(files)
        opened = [open_parquet(file) for file in self._files]
        self._schemas = [stored_schema(file.schema_arrow.metadata) for file in opened]
        names = [
            file.schema_arrow.names if schema is None else schema.names
            for file, schema in zip(opened, self._schemas, strict=True)
        ]
        _check_same_columns(self._files, names)
        self.rows = sum(file.metadata.num_rows for file in opened)
        self.columns = list(columns) if columns is not None else check_names(names[0])

    def select(self, names: Sequence[str]) -> ParquetSource:
        return ParquetSource(self._files, list(pick(dict.fromkeys(self.columns), names)))

    def batches(self) -> Iterator[Batch]:
        for path, schema in zip(self._files, self._schemas, strict=True):
            for batch in read_batches(path, self.columns):
                yield convert_columns(dict(zip(self.columns, batch, strict=True)), _converter(schema))


def _converter(schema: Schema | None) -> Any:
    def convert(name: str, array: pa.Array) -> ColumnData:
        return from_arrow(name, array) if schema is None else restore(schema[name], array)

    return convert


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file with its footer read.

    Raises:
        CorruptError: it is not a whole Parquet file.
        NotFoundError: it is not there.
    """
    try:
        return pq.ParquetFile(path, memory_map=True)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}. Check the path.") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptError(
            f"{path} is not a whole Parquet file, it was truncated or changed ({_first_line(error)}). "
            "Restore it, or write it again."
        ) from error


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[list[pa.Array]]:
    """Some rows at a time, the arrays in the order of ``columns``.

    Raises:
        CorruptError: a column of a row group cannot be decoded; names the file and both.
    """
    with open_parquet(path) as file:
        for group in range(file.num_row_groups):
            try:
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=list(columns)):
                    if batch.num_rows:
                        yield [batch.column(name) for name in columns]
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
