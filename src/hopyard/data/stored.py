"""Files of a dataset as this machine sees them, and their footers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.errors import CorruptError, NotFoundError
from hopyard.storage.base import Store

_REMEMBERED_FOOTERS = 4096


@dataclass(frozen=True)
class StoredFile:
    """A file as this machine sees it: at a path, or as bytes that a store without paths gave.

    Attributes:
        name: for messages.
        size: bytes.
        identity: differs if the file was replaced.
    """

    name: str
    size: int
    identity: tuple[Any, ...]
    path: Path | None = None
    content: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, store: Store | None, name: str) -> StoredFile:
        """The object ``name`` of ``store``, or, without a store, the file at the path ``name``."""
        path = Path(name) if store is None else store.path(name)
        if path is None and store is not None:
            content = store.get(name)
            return cls(f"{store.url}: {name}", len(content), (store.url, name, len(content)), None, content)
        assert path is not None
        try:
            status = path.stat()
        except OSError as error:
            raise NotFoundError(
                f"{path}, a file of the dataset, cannot be read ({error.strerror}). Restore it, or prepare "
                "the data again."
            ) from error
        identity = (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return cls(str(path), status.st_size, identity, path)

    def parquet(self) -> pq.ParquetFile:
        """The file, for decoding."""
        source = self.path if self.path is not None else pa.BufferReader(self.content)
        return pq.ParquetFile(source, metadata=self.footer)

    @cached_property
    def footer(self) -> pq.FileMetaData:
        """What the file says is in it; read once per process.

        Raises:
            CorruptError: it is no Parquet file, or only a part of one.
        """
        known = _footers.get(self.identity)
        if known is None:
            known = self._read_footer()
            if self.path is not None:
                remember(_footers, self.identity, known, _REMEMBERED_FOOTERS)
        return known

    def _read_footer(self) -> pq.FileMetaData:
        try:
            return pq.read_metadata(self.path if self.path is not None else pa.BufferReader(self.content))
        except (pa.ArrowInvalid, OSError) as error:
            raise CorruptError(
                f"{self.name} ({self.size} bytes) is not a complete Parquet file: {error} Restore it, or prepare "
                "the data again."
            ) from error

    def footer_bytes(self) -> bytes:
        """The footer as it is in the file."""
        length = int.from_bytes(self._read(self.size - 8, 4), "little")
        return self._read(self.size - 8 - length, length)

    def _read(self, start: int, length: int) -> bytes:
        if self.path is None:
            return (self.content or b"")[start : start + length]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(length)


_footers: OrderedDict[tuple[Any, ...], pq.FileMetaData] = OrderedDict()


def remember(cache: OrderedDict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any, limit: int) -> None:
    """Keep a value for this process, and forget the oldest ones beyond ``limit``."""
    cache[key] = value
    while len(cache) > limit:
        cache.popitem(last=False)
