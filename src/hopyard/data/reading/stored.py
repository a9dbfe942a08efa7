"""Files of a dataset as this machine sees them, and their footers."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.errors import CorruptError, NotFoundError
from hopyard.objects.digests import digest
from hopyard.storage.base import Store
from hopyard.storage.oserrors import read_error

READ_OPTIONS: dict[str, Any] = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
"""Of ``pyarrow.parquet.ParquetFile``: checksums are looked at where pages have them, and old timestamps (INT96)
that nanoseconds do not reach, as 9999-12-31, become errors instead of other times."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_REMEMBERED_FOOTERS = 4096
_REQUESTS = 32  # to a store, at once
_READ_AHEAD = 1 << 20  # bytes; many small columns of a row group come with one request


@dataclass(frozen=True)
class StoredFile:
    """A file as this machine sees it: at a path, or in a store without paths.

    Attributes:
        name: for messages.
        size: bytes.
        identity: differs if the file was replaced or written to.
        path: where it is, or None.
        store, key: what holds it, and its name there, if it has no path.
    """

    name: str
    size: int
    identity: tuple[Any, ...]
    path: Path | None = None
    store: Store | None = field(default=None, repr=False, compare=False)
    key: str = ""

    @classmethod
    def open(cls, store: Store | None, name: str) -> StoredFile:
        """The object ``name`` of ``store``, or, without a store, the file at the path ``name``.

        Raises:
            NotFoundError: it is not there.
        """
        path = Path(name) if store is None else store.path(name)
        if path is None and store is not None:
            size = store.size(name)
            if size is None:
                raise NotFoundError(
                    f"{store.url} holds no {name}, a file of the dataset. Restore it, or prepare the data again."
                )
            return cls(
                f"{store.url}: {name}", size, (store.url, name, size, store.version(name)), None, store, name
            )
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

    def check_unchanged(self) -> None:
        """Look whether the file is still the one that was opened.

        Raises:
            CorruptError: it was written to or replaced since.
            NotFoundError: it is gone.
        """
        now = (
            StoredFile.open(self.store, self.key)
            if self.path is None
            else StoredFile.open(None, str(self.path))
        )
        if now.identity != self.identity:
            raise self._changed(now.size)

    def check_not_written(self) -> None:
        """Look whether the file that was opened, though it may be replaced or gone, is still as it was.

        Raises:
            CorruptError: it was written to since, so that what is mapped of it changed.
        """
        if self.path is None:
            return
        try:
            now = self.path.stat()
        except OSError:
            return
        _, device, inode, size, written = self.identity
        if (now.st_dev, now.st_ino) == (device, inode) and (now.st_size, now.st_mtime_ns) != (size, written):
            raise self._changed(now.st_size)

    def _changed(self, size: int) -> CorruptError:
        return CorruptError(
            f"{self.name} was changed while it was being read ({self.size} bytes when it was opened, {size} "
            "now). Restore it, or open the dataset again: its rows are others now."
        )

    def parquet(self, group: int | None = None) -> pq.ParquetFile:
        """The file, for decoding.

        Args:
            group: the row group that is to be read: of a store, nothing behind it is fetched ahead.
        """
        end = None if group is None or self.path is not None else self._end_of(group)
        return pq.ParquetFile(self._source(end), metadata=self.footer, **READ_OPTIONS)

    def _end_of(self, group: int) -> int:
        """Where a row group ends."""
        described = self.footer.row_group(group)
        chunks = [described.column(number) for number in range(described.num_columns)]
        end: int = max(
            (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
            for chunk in chunks
        )
        return end

    def _source(self, end: int | None = None) -> Any:
        if self.path is not None:
            return self.path
        assert self.store is not None
        return pa.PythonFile(
            io.BufferedReader(_RangeReader(self.store, self.key, self.size, end), _READ_AHEAD), "r"
        )

    @property
    def footer(self) -> pq.FileMetaData:
        """What the file says is in it; read once per process.

        Raises:
            CorruptError: it is no Parquet file, or only a part of one.
            StorageError: it may not be read.
        """
        # No cached_property: before Python 3.12 its lock is one for all files, and threads would wait for each other.
        known: pq.FileMetaData | None = self.__dict__.get("_footer") or _footers.get(self.identity)
        if known is None:
            known = self._read_footer()
            if self.path is not None:
                remember(_footers, self.identity, known, _REMEMBERED_FOOTERS)
        self.__dict__["_footer"] = known
        return known

    def _read_footer(self) -> pq.FileMetaData:
        try:
            return pq.read_metadata(self._source())
        except PermissionError as error:
            raise read_error(self.name, error) from error
        except (pa.ArrowInvalid, OSError) as error:
            raise CorruptError(
                f"{self.name} ({self.size} bytes) is not a complete Parquet file: {str(error).rstrip('. ')}. Restore "
                "it, write it again, or leave it out with open_dataset(..., corrupt='skip')."
            ) from error

    @property
    def footer_digest(self) -> str:
        """Of the footer as it is in the file."""
        length = int.from_bytes(self.read(self.size - 8, 4), "little")
        return digest(self.read(self.size - 8 - length, length), "hopyard.parquet-footer")

    def read(self, start: int, length: int) -> bytes:
        """Some of the file's bytes."""
        if self.path is None:
            assert self.store is not None
            return self.store.get(self.key, start, length)
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(length)


class _RangeReader(io.RawIOBase):
    """An object of a store as a file; only the ranges that are asked for are fetched, none across ``end``."""

    def __init__(self, store: Store, key: str, size: int, end: int | None) -> None:
        self._store, self._key, self._size = store, key, size
        self._end = size if end is None else end
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        end = self._end if self._place < self._end else self._size
        wanted = min(len(buffer), end - self._place)
        if wanted <= 0:
            return 0
        data = self._store.get(self._key, self._place, wanted)
        buffer[:wanted] = data
        self._place += wanted
        return wanted


_footers: OrderedDict[tuple[Any, ...], pq.FileMetaData] = OrderedDict()


def remember(cache: OrderedDict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any, limit: int) -> None:
    """Keep a value for this process, and forget the oldest ones beyond ``limit``."""
    cache[key] = value
    while len(cache) > limit:
        cache.popitem(last=False)


def of_each(
    store: Store | None, names: Sequence[str], items: Sequence[Item], read: Callable[[Item], Result]
) -> list[Result]:
    """``read`` of each item, in their order; several at once where each waits for a network.

    Args:
        names: of the files in ``store`` that the items are about; at paths if it is None.

    Raises:
        Exception: what it raised for the first of them that failed.
    """
    if store is None or len(items) < 2 or store.path(names[0]) is not None:
        return [read(item) for item in items]
    with ThreadPoolExecutor(min(_REQUESTS, len(items)), "hopyard-files") as pool:
        return list(pool.map(read, items))
