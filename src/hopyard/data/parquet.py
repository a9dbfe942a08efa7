"""Writes Parquet files in the layout of ``layout.py``: flat arrays with one stride."""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.layout import Values, arrow_array, arrow_schema, stored_dtype
from hopyard.data.manifest import FileEntry
from hopyard.data.schema import Schema
from hopyard.objects.digests import Hasher

FILE_DOMAIN = "hopyard.file"
_ONE_PAGE = 1 << 30
_SMALL_PADDING = 16 << 10


class FileWriter:
    """Writes one file, a row group at a time; every group but the last has the same number of rows.

    Args:
        path: where the file is made; it is complete after :meth:`close`.
        schema: the columns of every group.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._arrow_schema = arrow_schema(schema)
        self._sink = _HashingFile(path)
        self._out = pa.PythonFile(self._sink, "w")  # counts positions itself: padding must pass through it
        self._writer = pq.ParquetWriter(self._out, self._arrow_schema, **_writer_options())
        self._group_rows: list[int] = []
        self._group_start = 0
        self._stride: int | None = None

    def write(self, group: Mapping[str, Values]) -> None:
        """Append one row group with these rows of every column."""
        self._pad()
        arrays = [arrow_array(column, group[column.name]) for column in self._schema]
        table = pa.Table.from_arrays(arrays, schema=self._arrow_schema)
        self._group_start = self._sink.tell()
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._group_rows.append(table.num_rows)

    def close(self) -> FileEntry:
        """Finish the file. The entry names it by its content."""
        self._writer.close()
        self._sink.close()
        digest = self._sink.hasher.hexdigest()
        return FileEntry(f"{digest}.parquet", self._sink.tell(), digest, tuple(self._group_rows))

    def abandon(self) -> None:
        """Stop writing; what is there is no Parquet file."""
        self._sink.close()

    def _pad(self) -> None:
        """Fill up to where the next row group begins; the first two groups tell the stride."""
        if not self._group_rows:
            return
        length = self._sink.tell() - self._group_start
        if self._stride is None:
            self._stride = length + _padding(length, self._schema)
        self._out.write(bytes(max(self._stride - length, 0)))


def _padding(length: int, schema: Schema) -> int:
    """Bytes to add to a row group of ``length`` bytes so that one stride fits all mapped columns."""
    if any(column.width is None for column in schema):
        return 0
    stored = [stored_dtype(column) for column in schema]
    multiple = math.lcm(*(dtype.itemsize for dtype in stored if dtype is not None))
    padding = -length % multiple
    return padding if padding <= max(length // 10, _SMALL_PADDING) else 0


def _writer_options() -> dict[str, Any]:
    options: dict[str, Any] = {
        "compression": "none",
        "use_dictionary": False,
        "write_statistics": False,
        "data_page_size": _ONE_PAGE,
    }
    if "max_rows_per_page" in inspect.signature(pq.ParquetWriter.__init__).parameters:
        options["max_rows_per_page"] = _ONE_PAGE  # newer releases of pyarrow begin a page every 20,000 rows
    return options


class _HashingFile(io.RawIOBase):
    """A file being written whose bytes are digested on the way."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._position = 0
        self.hasher = Hasher(FILE_DOMAIN)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.hasher.update(view)
        while len(view):
            written = self._file.write(view)
            view = view[written:]
            self._position += written
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
