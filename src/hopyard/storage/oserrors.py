"""Turns ``OSError`` into the errors of a store, with the next step."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from hopyard.errors import InvalidNameError, NotWritableError, StorageError, StorageFullError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
# A name that is an object where a prefix is meant, or a prefix where an object is meant.
_NESTED = {errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY}


@contextlib.contextmanager
def write_errors(file: str | os.PathLike[str]) -> Iterator[None]:
    """Turn ``OSError`` of writing ``file`` into the store's errors; for files that go to ``put_file`` too.

    Raises:
        StorageFullError, NotWritableError, InvalidNameError, StorageError
    """
    try:
        yield
    except OSError as error:
        raise write_error(os.fspath(file), error) from error


def write_error(file: str, error: OSError) -> StorageError | InvalidNameError:
    """The error for a failed write of ``file``."""
    if error.errno in _FULL:
        return StorageFullError(
            f"no space is left for {file}: {_free_space(file, error.errno)}. Nothing was half-written. "
            "Make space there."
        )
    if error.errno in _FORBIDDEN:
        return NotWritableError(
            f"{file} cannot be written: {error.strerror}. "
            "Give this user the right to write there, or use another directory."
        )
    if error.errno == errno.ENOTDIR and (above := _file_above(file)):
        return InvalidNameError(
            f"{file} cannot be written: {above} is a file, and nothing is both an object and a prefix of another. Use "
            "another name or directory."
        )
    if error.errno in _NESTED:
        return InvalidNameError(
            f"cannot store {file}: its name would be both an object and a prefix of another, "
            "which no directory can hold. Use another name."
        )
    return StorageError(f"writing {file} failed: {error}. Look at the disk or its mount.")


def full_disk(error: BaseException, what: str) -> StorageFullError | None:
    """The error for ``what`` if ``error``, or its cause, is that a disk of this machine is full; else None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return StorageFullError(
                f"no space is left on {socket.gethostname()} for {what}: {cause}. Make space there."
            )
        cause = cause.__cause__
    return None


def read_error(file: str, error: OSError) -> StorageError:
    """The error for a failed read of ``file``, which is there."""
    if error.errno in _FORBIDDEN:
        reason = os.strerror(error.errno or 0)  # Arrow's own text names the file once more
        return StorageError(f"{file} cannot be read: {reason}. Give this user the right to read it.")
    return StorageError(f"reading {file} failed: {error}. Look at the disk or its mount.")


def _file_above(file: str) -> Path | None:
    """The part of the path that is a file where a directory should be."""
    return next((parent for parent in Path(file).parents if parent.is_file()), None)


def _free_space(file: str, code: int | None) -> str:
    """Free space for ``file``, in words."""
    if code == errno.EDQUOT:
        return "this user's disk quota is used up"
    place = Path(file).parent
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    total = f"{usage.total / 1e9:,.1f} GB" if usage.total >= 1e9 else f"{usage.total / 1e6:,.1f} MB"
    return f"{usage.free / 1e6:,.1f} MB of {total} are free"
