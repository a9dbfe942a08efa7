"""The job of Spark's executors: the rows of a partition become Parquet files in the layout that is read fast.

Columns of numbers, and of lists of one length without nulls, are written as prepared data is, so that they are
mapped and not decoded; see ``data/layout.py``. A file with nulls or structs holds the columns as Arrow has them.
Whether lists have one length shows itself only in the rows, and executors may find different lengths: the
driver compares what they found and, if need be, has all written again with lists as lists.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.columns.columns import as_ragged
from hopyard.data.columns.convert import convert_columns
from hopyard.data.columns.convert_arrow import from_arrow
from hopyard.data.columns.structs import flat_columns, is_struct
from hopyard.data.layout import Values, arrow_schema, arrow_table, writer_options
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.schema import Column, Schema
from hopyard.errors import DataError, UsageError
from hopyard.storage import open_store
from hopyard.storage.temporary import remove_if_empty

RESULT_SCHEMA = "name string, size long, rows long, columns string, error string"
"""Schema of the tasks' answers: files, in Spark's words."""

_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class Job:
    """Settings by which rows become files. Pickled into Spark's tasks.

    Attributes:
        url: of the directory.
        attempt: prefix of the names of files, which no other attempt has.
        names: of the columns.
        dtype: of floating columns: ``"float32"``, ``"float64"`` or None: as they are.
        group_bytes: of a row group, before compression.
        codec: of pyarrow, or None.
        lists: columns whose lists stay lists.
    """

    url: str
    attempt: str
    names: tuple[str, ...]
    dtype: str | None
    group_bytes: int
    codec: str | None
    lists: frozenset[str] = frozenset()

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """``mapInArrow``'s function, for one partition. Errors of the data are answered, not tried again."""
        store = open_store(self.url)
        names: list[tuple[str, int, int, str, str]] = []
        staging = store.staging()
        directory = Path(tempfile.mkdtemp(prefix="hopyard-", dir=staging))
        files = _Files(self, directory)
        try:
            for table in self._groups(batches):
                files.write(table)
            files.close()
            for number, file in enumerate(files.written):
                name = f"{self.attempt}-{os.urandom(6).hex()}-{number:04d}.parquet"
                size = file.path.stat().st_size
                store.put_file(name, file.path)
                names.append((name, size, file.rows, file.columns, ""))
        except UsageError as error:
            names = [("", 0, 0, "", str(error))]
        finally:
            with contextlib.suppress(Exception):
                files.close()  # nobody makes use of these
            shutil.rmtree(directory, ignore_errors=True)
            if staging is not None:
                remove_if_empty(str(staging))
        columns = [pa.array(values, kind) for values, kind in zip(_transposed(names), _TYPES, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, ["name", "size", "rows", "columns", "error"])

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Row groups: of equal rows, as many as the first batches let fit; the last may have fewer."""
        held: list[pa.Table] = []
        rows = size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch]).rename_columns(list(self.names))
            table = table.cast(cast_schema(table.schema, self.dtype))
            held.append(table)
            size += 0 if rows else table.nbytes
            if not rows and size >= self.group_bytes:
                rows = max(1, sum(part.num_rows for part in held) * self.group_bytes // size)
            while rows and sum(part.num_rows for part in held) >= rows:
                whole = pa.concat_tables(held)
                yield whole.slice(0, rows)
                held = [whole.slice(rows)] if whole.num_rows > rows else []
        if held:
            yield pa.concat_tables(held)


_TYPES = (pa.string(), pa.int64(), pa.int64(), pa.string(), pa.string())


def _transposed(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [[row[place] for row in rows] for place in range(len(_TYPES))]


def cast_schema(schema: pa.Schema, dtype: str | None) -> pa.Schema:
    """The schema with every floating type, also in lists and structs, as ``dtype``."""
    if dtype is None:
        return schema
    to = pa.float32() if dtype == "float32" else pa.float64()
    return pa.schema([field.with_type(_cast_type(field.type, to)) for field in schema])


def _cast_type(kind: pa.DataType, to: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(kind):
        return to
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_cast_type(kind.value_type, to)))
    if is_struct(kind):
        return pa.struct([field.with_type(_cast_type(field.type, to)) for field in kind.fields])
    return kind


@dataclass
class _File:
    path: Path
    columns: str
    schema: Any
    write: Callable[[Any], None]
    close: Callable[[], Any]
    rows: int = 0


class _Files:
    """The files of one task; one ends where rows no longer fit it, or when it is large."""

    def __init__(self, job: Job, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self.written: list[_File] = []
        self._open = False

    def write(self, table: pa.Table) -> None:
        flat = _flat(table, self._job.lists)
        schema, values = (table.schema, table) if flat is None else flat
        if not self._open or self.written[-1].schema != schema or self._is_large():
            self.close()
            self.written.append(self._new(schema))
            self._open = True
        self.written[-1].write(values)
        self.written[-1].rows += table.num_rows

    def _is_large(self) -> bool:
        return self.written[-1].path.stat().st_size >= _FILE_BYTES

    def close(self) -> None:
        if self._open:
            self._open = False
            self.written[-1].close()

    def _new(self, schema: Schema | pa.Schema) -> _File:
        path = self._directory / f"{len(self.written)}.parquet"
        columns = json.dumps(schema.to_json()) if isinstance(schema, Schema) else ""
        if isinstance(schema, Schema) and self._job.codec is None:
            flat = FileWriter(path, schema)
            return _File(path, columns, schema, flat.write, flat.close)
        stored = arrow_schema(schema) if isinstance(schema, Schema) else schema
        options = writer_options() | {"compression": self._job.codec or "none", "write_statistics": True}
        writer = pq.ParquetWriter(path, stored, **options)

        def write(values: Any) -> None:
            table = arrow_table(schema, values) if isinstance(schema, Schema) else values
            writer.write_table(table, row_group_size=max(table.num_rows, 1))

        return _File(path, columns, schema, write, writer.close)


def _flat(table: pa.Table, lists: frozenset[str]) -> tuple[Schema, Mapping[str, Values]] | None:
    """The rows as prepared data is stored; None if they cannot be: there are nulls, structs, or nested lists of
    different lengths."""
    if any(is_struct(field.type) or table[field.name].null_count for field in table.schema):
        return None
    columns = convert_columns({name: table[name] for name in table.column_names}, from_arrow)
    values: dict[str, Values] = {}
    schema: list[Column] = []
    for name, data in columns.items():
        if name in lists and data.kind == "tensor":
            data = as_ragged(data)
        if data.kind == "ragged" and data.column.shape:
            return None
        schema.append(data.column)
        values[name] = data.values
    return Schema(schema), values


def uneven_lists(columns: Iterable[str]) -> frozenset[str]:
    """The columns whose lists are arrays of one shape in some files and not, or of another one, in others.

    Args:
        columns: the tasks' answers for each file.
    """
    found: dict[str, set[Column | None]] = {}
    schemas = [Schema.from_json(json.loads(each)) if each else None for each in columns]
    lists = {
        column.name
        for schema in schemas
        for column in schema or ()
        if column.kind == "tensor" and column.shape
    }
    for schema in schemas:
        for name in lists:
            found.setdefault(name, set()).add(None if schema is None else schema[name])
    return frozenset(name for name, its in found.items() if len(its) > 1)


def _outermost(kind: pa.DataType) -> pa.DataType:
    """Lists of lists as lists: only their rows show whether they are arrays."""
    nested = pa.types.is_list(kind) and pa.types.is_list(kind.value_type)
    return _outermost(kind.value_type) if nested else kind


def check_types(schema: pa.Schema) -> None:
    """Raise DataError if columns of these types cannot be in a dataset; names them all."""
    empty = {name: pa.array([], _outermost(column.type)) for name, column in flat_columns(schema).items()}
    if not empty:
        raise DataError("The DataFrame has no columns. Give at least one.")
    convert_columns(empty, from_arrow)
