"""The job of Spark's executors: the rows of a partition become Parquet files in the layout that is read fast.

Columns of numbers, and of lists of one length without nulls, are written as prepared data is, so that they are
mapped and not decoded; see ``data/layout.py``. A file with nulls or structs holds the columns as Arrow has them.
Rows keep their order. Lists that have one length in one file may have another in the next, which executors cannot
know of each other: opened together, such files have lists.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import pyarrow as pa

from hopyard.data.columns.columns import ColumnData, as_ragged
from hopyard.data.columns.convert import convert_columns
from hopyard.data.columns.convert_arrow import from_arrow, is_list
from hopyard.data.columns.structs import is_struct
from hopyard.data.layout import Values
from hopyard.data.manifest import FileEntry
from hopyard.data.preparing.files import told
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.preparing.write import staged
from hopyard.data.schema import Schema
from hopyard.data.sources.frame_batches import dense_vectors
from hopyard.storage import open_store
from hopyard.storage.temporary import remove_if_empty

_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class _Group:
    """The rows of a row group, and the number of the task's file in which it is.

    Attributes:
        schema: of the file: of the layout, or Arrow's where rows do not fit that.
    """

    file: int
    schema: Schema | pa.Schema
    rows: Mapping[str, Values] | pa.Table


@dataclass(frozen=True)
class Job:
    """A task that writes the rows of a partition, and answers with the files, in the order of their rows. Pickles.

    Attributes:
        url: of the directory.
        attempt: prefix of the names of files, which no other attempt has.
        schema: of the rows to be written.
        vectors: columns that come as vectors of Spark ML.
        group_bytes: of a row group, before compression.
        codec: of pyarrow, or None.
    """

    url: str
    attempt: str
    schema: pa.Schema
    vectors: frozenset[str]
    group_bytes: int
    codec: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        yield told(partial(self._write, batches))

    def _write(self, batches: Iterable[pa.RecordBatch]) -> list[FileEntry]:
        store = open_store(self.url)
        staging = store.staging()
        written = []
        try:
            with staged(store) as directory:
                for number, groups in itertools.groupby(self._groups(batches), attrgetter("file")):
                    path = directory / f"{number}.parquet"
                    first = next(groups)
                    with FileWriter(path, first.schema, self.codec) as writer:
                        for group in itertools.chain([first], groups):
                            writer.write(group.rows)
                        entry = writer.close()
                    entry = replace(entry, name=f"{self.attempt}-{os.urandom(6).hex()}.parquet")
                    store.put_file(entry.name, path)
                    written.append(entry)
        finally:
            if staging is not None:  # or the directory could not be removed
                remove_if_empty(str(staging))
        return written

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Group]:
        """Row groups; a file ends where they no longer fit it, or when it is large.

        Lists that turn out to have several lengths stay lists from there on.
        """
        lists: set[str] = set()
        file = size = 0
        before: Schema | pa.Schema | None = None
        for table in self._tables(batches):
            columns = _columns(table)
            if columns is not None and isinstance(before, Schema):
                lists |= {name for name, data in columns.items() if data.column != before[name]}
            if columns is not None:
                columns |= {name: as_ragged(columns[name]) for name in lists}
            schema: Schema | pa.Schema = table.schema
            rows: Mapping[str, Values] | pa.Table = table
            if columns is not None and not any(map(_is_nested, columns.values())):
                schema = Schema(data.column for data in columns.values())
                rows = {name: data.values for name, data in columns.items()}
            if before is not None and (schema != before or size >= _FILE_BYTES):
                file, size = file + 1, 0
            yield _Group(file, schema, rows)
            before, size = schema, size + table.nbytes

    def _tables(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Tables of equal rows, as many as the first batches let fit; the last may have fewer."""
        held: list[pa.Table] = []
        rows = size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(self._table(batch))
            size += 0 if rows else held[-1].nbytes
            if not rows and size >= self.group_bytes:
                rows = max(1, sum(part.num_rows for part in held) * self.group_bytes // size)
            while rows and sum(part.num_rows for part in held) >= rows:
                whole = pa.concat_tables(held)
                yield whole.slice(0, rows)
                held = [whole.slice(rows)] if whole.num_rows > rows else []
        if held:
            yield pa.concat_tables(held)

    def _table(self, batch: pa.RecordBatch) -> pa.Table:
        """The rows of a batch, whose own names for the columns do not count."""
        arrays = [
            dense_vectors(array) if name in self.vectors else array
            for name, array in zip(self.schema.names, batch.columns, strict=True)
        ]
        return pa.Table.from_arrays(arrays, self.schema.names).cast(self.schema)


def _columns(table: pa.Table) -> dict[str, ColumnData] | None:
    """The columns as those of prepared data; None if there are nulls or structs."""
    if any(is_struct(field.type) or table[field.name].null_count for field in table.schema):
        return None
    return convert_columns({name: table[name] for name in table.column_names}, from_arrow)


def _is_nested(data: ColumnData) -> bool:
    """Whether rows are lists of lists of different lengths."""
    return data.kind == "ragged" and bool(data.column.shape)


def stored_type(kind: pa.DataType, dtype: str | None) -> pa.DataType:
    """The type in which values are written: with every floating one, also in lists and structs, as ``dtype``."""
    if pa.types.is_floating(kind) and dtype is not None:
        return pa.float32() if dtype == "float32" else pa.float64()
    if is_list(kind):
        return pa.list_(stored_type(kind.value_type, dtype))
    if is_struct(kind):
        return pa.struct([field.with_type(stored_type(field.type, dtype)) for field in kind.fields])
    return kind
