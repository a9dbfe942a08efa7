"""Reading objects and files that are small wherever Hopyard wrote them: their size is looked at first.

What others may write to, or a damaged file system, can say that a file has terabytes, without a byte on the disk.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hopyard.errors import CorruptError, NotFoundError
from hopyard.storage import files
from hopyard.storage.base import Store

SMALL = 1 << 20
"""Bytes of the largest header, reference, or other file of a few lines."""


def get_small(store: Store, name: str, most: int = SMALL, size: int | None = None) -> bytes:
    """The whole object ``name``. Where asking for its size is a request, as in a bucket, it is read first: there an
    object takes the bytes that it has.

    Args:
        most: bytes of the largest one that Hopyard writes.
        size: bytes that it has, if they are known, as from a listing.

    Raises:
        NotFoundError: there is none. CorruptError: it has more.
    """
    path = store.path(name) if size is None else None
    if path is not None:
        with contextlib.suppress(OSError):  # which the store says better
            return read_small(path, most)
    data = get_whole(store, name) if size is None or size <= most else b""
    if (size or len(data)) > most:
        raise too_large(f"{store.url}/{name}", size or len(data), most)
    return data


def read_small(file: Path, most: int = SMALL) -> bytes:
    """The whole content of a small file.

    Raises:
        OSError: it cannot be read. CorruptError: it has more.
    """

    def read(descriptor: int) -> bytes:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise too_large(str(file), size, most)
        # Reading says what is wrong with a folder, whose size may be 0.
        return files.read_range(descriptor, 0, size) if size else os.read(descriptor, 1)

    return files.read_anew(file, read)


def get_whole(store: Store, name: str) -> bytes:
    """An object that may have any size, if it fits into memory.

    Raises:
        NotFoundError: there is none. CorruptError: it does not fit.
    """
    try:
        return store.get(name)
    except (MemoryError, OverflowError):
        size = store.size(name)
        if size is None:
            raise NotFoundError(f"{store.url}/{name} was there, and is not any more.") from None
        raise CorruptError(
            f"{store.url}/{name} has {size} bytes, which do not fit into memory here. Restore it from a copy, or read "
            "it where there is more memory."
        ) from None


def too_large(where: str, size: int, most: int) -> CorruptError:
    """The error for an object or file that has more bytes than Hopyard writes there."""
    return CorruptError(
        f"{where} has {size} bytes, and the largest that Hopyard writes there have {most}: it was damaged, or is not "
        "Hopyard's. Restore it from a copy."
    )
