"""Petastorm datasets as a source of rows, and converted into prepared datasets.

The pickle that describes them is never loaded, see ``pickled.py``. What fields become:

=========================================  ====================================================
field                                      column
=========================================  ====================================================
arrays and images of one shape             tensor
arrays whose first dimension alone is      ragged; a tensor if all rows have one length
open
images with other open dimensions          tensor if all rows have one shape, else an error;
                                           ``images="keep"``: the encoded bytes
scalars                                    the field's dtype; times int64 nanoseconds, decimals
                                           float64
keys of directories ``key=value``          the field's dtype
=========================================  ====================================================
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.checks import choice
from hopyard.data.columns.columns import ColumnData, ConvertedColumns, empty_data
from hopyard.data.files.found import PARQUET, find_files
from hopyard.data.files.hive import hive_values
from hopyard.data.files.stored import StoredFile
from hopyard.data.files.unischema import Field, is_petastorm, local_directory, read_unischema
from hopyard.data.petastorm.codecs import RowDecoder, decode_field, encoded_rows, settles, unsupported
from hopyard.data.preparing.prepare import prepare
from hopyard.data.preparing.prepared import Prepared
from hopyard.data.schema import unknown_columns
from hopyard.data.sources.base import Source
from hopyard.errors import CorruptError, DataError
from hopyard.storage import open_store
from hopyard.storage.base import Store

__all__ = ["PetastormSource", "convert_petastorm", "is_petastorm", "petastorm_source"]

_log = logging.getLogger("hopyard")

Progress = Callable[[int, int], None]
ImagePolicy = Literal["decode", "keep"]


def petastorm_source(
    path: str | os.PathLike[str], columns: Sequence[str] | None = None, *, images: ImagePolicy = "decode"
) -> PetastormSource:
    """A Petastorm dataset as a source, for ``prepare(petastorm_source(path), store)``.

    Args:
        path: the dataset's directory, or its ``file://`` URL.
        columns: only these fields; None: all.
        images: ``"decode"`` gives arrays, ``"keep"`` the encoded bytes, which ``open_dataset(decode=...)`` decodes.

    Raises:
        NotFoundError: it is no Petastorm dataset, or has no files.
        CorruptError: the schema cannot be read, or a file is truncated.
        UnsupportedTypeError: a field has a codec or type of its writer's own.
        ColumnError: unknown columns; DataError: a file lacks a field.
    """
    choice("images", images, ("decode", "keep"))
    if "://" in os.fspath(path) and not os.fspath(path).startswith("file://"):
        find_files(os.fspath(path))  # raises: it is not of this machine
    directory = local_directory(path)
    fields = read_unischema(directory)
    files = [
        _File(file, hive_values(file.relative_to(directory).as_posix()))
        for file in find_files(directory)
        if file.name.lower().endswith(PARQUET)
    ]
    if columns is not None:
        return PetastormSource(files, _selected(fields, columns), images)
    source = PetastormSource(files, fields, images)
    if others := [name for name in pq.read_schema(files[0].path).names if name not in fields]:
        _log.warning(
            "%s: columns that the Unischema does not list are left out: %s", directory, ", ".join(others)
        )
    return source


def convert_petastorm(
    source: str | os.PathLike[str],
    store: Store | str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    validation: float | str | None = None,
    seed: int = 0,
    nulls: str = "error",
    ragged: str = "error",
    images: ImagePolicy = "decode",
    progress: Progress | None = None,
) -> Prepared:
    """Convert a Petastorm dataset into a prepared one; what ``hopyard data convert-petastorm`` does.

    Args:
        source, columns, images: see :func:`petastorm_source`.
        store: where to, or its path or URL.
        validation, seed, nulls, ragged: see :func:`hopyard.data.prepare`.
        progress: called with (rows done, twice the rows): every row is read, then written.

    Raises:
        What :func:`petastorm_source` and :func:`hopyard.data.prepare` raise; DataError: a row is not what the schema
        says; CorruptError: a row's bytes cannot be decoded. Each names file, row group, field and row.
    """
    store = open_store(store)
    rows = petastorm_source(source, columns, images=images)
    if progress is not None:
        rows.on_read = lambda done: progress(done, 2 * rows.rows)
    rows.collect(store.staging())  # once: its digest says whether there is anything to write

    def written(done: int, total: int) -> None:
        assert progress is not None
        progress(rows.rows + done, rows.rows + total)

    return prepare(
        rows,
        store,
        validation=validation,
        seed=seed,
        nulls=nulls,
        ragged=ragged,
        progress=None if progress is None else written,
    )


@dataclass(frozen=True)
class _File:
    """A file, and the values that its directories give."""

    path: Path
    partition: Mapping[str, str | None]


class PetastormSource(Source):
    """The rows of a Petastorm dataset, a row group at a time, files in the order of their paths.

    Attributes:
        fields: of the Unischema, for the columns.
        on_read: called with the number of rows read so far in a pass.
    """

    rows: int
    on_read: Callable[[int], None] | None = None

    def __init__(
        self, files: Sequence[_File], fields: Mapping[str, Field], images: ImagePolicy = "decode"
    ) -> None:
        self._files = list(files)
        self._images = images
        self.fields: dict[str, Field] = dict(fields)
        self.columns: list[str] = list(fields)
        self.rows = sum(self._checked(file).num_rows for file in self._files)
        if not self.rows:
            raise empty_data()

    def select(self, names: Sequence[str]) -> PetastormSource:
        return PetastormSource(self._files, _selected(self.fields, names), self._images)

    def batches(self) -> Iterator[ConvertedColumns]:
        self._refuse_unsupported()
        shapes = {name: self._first_shape(field) for name, field in self._decoded().items() if settles(field)}
        done = 0
        for file in self._files:
            with _open(file.path) as opened:
                for group in range(opened.num_row_groups):
                    if rows := opened.metadata.row_group(group).num_rows:
                        yield {
                            name: self._column(file, opened, group, field, shapes.get(name))
                            for name, field in self.fields.items()
                        }
                        done += rows
                        if self.on_read is not None:
                            self.on_read(done)

    def _decoded(self) -> dict[str, Field]:
        """The fields whose rows are decoded: all but images that are kept encoded."""
        return {name: field for name, field in self.fields.items() if not self._is_kept(field)}

    def _is_kept(self, field: Field) -> bool:
        return self._images == "keep" and field.codec == "CompressedImageCodec"

    def _checked(self, file: _File) -> pq.FileMetaData:
        """The footer of a file that has all fields."""
        footer = StoredFile.open(None, str(file.path)).footer
        names = footer.schema.to_arrow_schema().names
        if missing := [name for name in self.fields if name not in names and name not in file.partition]:
            raise DataError(
                f"{file.path} has no column {', '.join(map(repr, missing))}, which the Unischema lists. Write the "
                "file again, or name the other columns in columns=."
            )
        return footer

    def _refuse_unsupported(self) -> None:
        found = [reason for field in self._decoded().values() if (reason := unsupported(field))]
        if found:
            raise DataError(
                f"These fields hold what a dataset cannot: {'; '.join(found)}. Arrays must be of numbers or bools: "
                "name only other fields in columns=."
            )

    def _first_shape(self, field: Field) -> tuple[int, ...]:
        """The shape of the first row that is not null, which all rows must have."""
        for file in self._files:
            with _open(file.path) as opened:
                for group in range(opened.num_row_groups):
                    where = _where(file, group, field)
                    data = encoded_rows(field, _read(file, opened, group, field), where)
                    for row in range(len(data)):
                        if data.missing is None or not data.missing[row]:
                            return self._shape_of(field, data, row, where)
        raise DataError(
            f"Field {field.name!r} has nothing but nulls, and its shape is open ({field}). Leave it out: name the "
            "others in columns=."
        )

    def _shape_of(self, field: Field, data: ColumnData, row: int, where: str) -> tuple[int, ...]:
        try:
            shape: tuple[int, ...] = RowDecoder(field)(data.values[row].tobytes()).shape
        except (DataError, CorruptError) as error:
            raise type(error)(f"{where}, row {row}: {error}") from error.__cause__
        return shape

    def _column(
        self, file: _File, opened: pq.ParquetFile, group: int, field: Field, shape: tuple[int, ...] | None
    ) -> ColumnData:
        array = _read(file, opened, group, field)
        where = _where(file, group, field)
        if self._is_kept(field):
            return encoded_rows(field, array, where)
        return decode_field(field, array, where, shape)


def _selected(fields: Mapping[str, Field], names: Sequence[str]) -> dict[str, Field]:
    """The fields of these names, in their own order."""
    if unknown := [name for name in names if name not in fields]:
        raise unknown_columns(unknown, fields)
    return {name: field for name, field in fields.items() if name in names}


def _where(file: _File, group: int, field: Field) -> str:
    return f"{file.path}: row group {group}, field {field.name!r}"


def _open(path: Path) -> pq.ParquetFile:
    return StoredFile.open(None, str(path)).parquet()


def _read(file: _File, opened: pq.ParquetFile, group: int, field: Field) -> Any:
    """The stored rows of a field: of the file, or of its directories."""
    rows = opened.metadata.row_group(group).num_rows
    if field.name not in opened.schema_arrow.names:
        return pa.repeat(pa.scalar(file.partition[field.name], pa.string()), rows)
    try:
        column = opened.read_row_group(group, columns=[field.name])[field.name]
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptError(
            f"{_where(file, group, field)} cannot be decoded; the file was truncated or changed "
            f"({str(error).splitlines()[0]}). Restore it, or write it again."
        ) from error
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
