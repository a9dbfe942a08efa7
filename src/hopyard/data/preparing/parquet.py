"""Writes Parquet files that carry checksums; in the layout of ``layout.py`` they are flat arrays with one stride."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.files.checks import table_of
from hopyard.data.layout import Values, arrow_schema, arrow_table, writer_options
from hopyard.data.manifest import FILE_DOMAIN, FileEntry
from hopyard.data.preparing.placement import Placement
from hopyard.data.schema import Schema
from hopyard.objects.digests import Hasher
from hopyard.storage import files


class FileWriter:
    """Writes one file, a row group at a time; every group but the last has the same number of rows.

    Args:
        path: where the file is made; it is complete after :meth:`close`.
        schema: the columns of every group; or, for files that no array is mapped from, those that Arrow has.
        codec: of pyarrow, or None. What it compresses is not mapped.
    """

    def __init__(self, path: Path, schema: Schema | pa.Schema, codec: str | None = None) -> None:
        self._schema = schema
        is_mapped = isinstance(schema, Schema) and codec is None
        self._placement = Placement(schema if is_mapped else Schema([]))
        options = writer_options()
        if not is_mapped:  # pages' headers may differ in length then
            options |= {"compression": codec or "none", "write_statistics": True}
        self._sink = _HashingFile(path)
        self._out = pa.PythonFile(self._sink, "w")  # counts positions itself: padding must pass through it
        try:
            stored = arrow_schema(schema) if isinstance(schema, Schema) else schema
            self._writer = pq.ParquetWriter(self._out, stored, **options)
        except BaseException:
            self._sink.close()
            raise
        self._group_rows: list[int] = []
        self._group_start = 0

    def write(self, group: Mapping[str, Values] | pa.Table) -> None:
        """Append one row group with these rows of every column; a table, where the schema is Arrow's."""
        table: Any = arrow_table(self._schema, group) if isinstance(self._schema, Schema) else group
        position = self._sink.tell()
        start = self._placement.start(position, table.num_rows, position - self._group_start)
        self._out.write(bytes(start - position))
        self._group_start = start
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._group_rows.append(table.num_rows)

    def close(self) -> FileEntry:
        """Finish the file: its checksums, then its footer. The entry names it by its content."""
        self._sink.hold()
        self._writer.close()
        footer = self._sink.release()
        with self._sink.content() as content:
            table, seal = table_of(pq.read_metadata(pa.BufferReader(footer)), content, footer)
        self._sink.write(table)
        self._sink.write(footer)
        self._sink.close()
        digest = self._sink.hasher.hexdigest()
        return FileEntry(f"{digest}.parquet", self._sink.tell(), digest, seal, tuple(self._group_rows))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file. After an error it is no Parquet file."""
        if kind is not None:
            self._writer.is_open = False  # or it would try to write a footer when it is collected
            self._sink.close()


class _HashingFile(io.RawIOBase):
    """A file being written whose bytes are digested on the way."""

    def __init__(self, path: Path) -> None:
        self._fd = files.open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._position = 0
        self._held: bytearray | None = None
        self.hasher = Hasher(FILE_DOMAIN)

    def hold(self) -> None:
        """Keep bytes that are written from now on in memory."""
        self._held = bytearray()

    def release(self) -> bytes:
        """Return the kept bytes, and write to the file again from now on."""
        held, self._held = bytes(self._held or b""), None
        return held

    def content(self) -> memoryview:
        """All bytes of the file so far."""
        return memoryview(mmap.mmap(self._fd, self._position, access=mmap.ACCESS_READ))

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._held is not None:
            self._held += view
            return len(view)
        self.hasher.update(view)
        files.write_pieces(self._fd, [view])
        self._position += len(view)
        return len(view)

    def tell(self) -> int:
        return self._position + len(self._held or b"")

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()
