"""The node cache's directory: its owner, the right to make an entry in it, and the bytes in it.

Rights are locks of the operating system (flock), which die with their holder. A fork copies open locks, so
the child closes its copies: a right stays with the process that took it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hopyard.data.cache.format import boot_id, read
from hopyard.errors import NotWritableError, UsageError
from hopyard.storage import files

FLAT = ".flat"
PART = ".part"
TAG = "CACHEDIR.TAG"
BOOK = "usage"
KNOWN, KNOWN_OLD = "known", "known.old"

_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This directory is a node cache of Hopyard: decoded data, which is made again where it is missing.
# About this file: https://bford.info/cachedir/
"""
_TOTAL = struct.Struct("<16sQ")
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_DIGITS = frozenset("0123456789abcdef")
_LENGTHS = range(16, 129)
_ATTEMPTS = 3  # to make a directory that someone removes meanwhile

_claimed: weakref.WeakSet[io.FileIO] = weakref.WeakSet()
_locked: set[int] = set()


class Listed(NamedTuple):
    """An entry as the directory shows it: nanoseconds since the epoch, bytes, and the file's name."""

    used: int
    nbytes: int
    name: str


def is_key(key: object) -> bool:
    """Whether the key is a hex digest: 16 to 128 digits, in lower case."""
    return isinstance(key, str) and len(key) in _LENGTHS and _DIGITS.issuperset(key)


@contextlib.contextmanager
def write_errors(folder: str) -> Iterator[None]:
    """``OSError`` that would come again and again, as a ``NotWritableError``; a full disk is left as it is."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise
        raise NotWritableError(
            f"the node cache {folder} cannot be written: {error.strerror or error}. Give another directory as cache= "
            "or in the environment variable HOPYARD_CACHE, or cache=False to keep decoded data in memory."
        ) from error


# Whose directory it is


def is_own(folder: str) -> bool:
    """Whether the directory is marked as a node cache."""
    try:
        return Path(folder, TAG).read_bytes().startswith(_TAG)
    except OSError:
        return False


def check_own(folder: str) -> None:
    """Raise ``UsageError`` for a directory that holds something and is not marked."""
    if not is_own(folder) and not _is_fresh(folder) and not is_own(folder):
        raise UsageError(
            f"{folder} is to be the node cache, but it is a directory with other files in it, and a cache deletes "
            "what is in its own. Give an empty directory, or one that is not there yet, as cache= or in the "
            "environment variable HOPYARD_CACHE."
        )


def prepare(folder: str) -> None:
    """Make and mark the directory where that is not done yet.

    Raises:
        UsageError: it is someone's own.
        NotWritableError
        OSError: no space.
    """
    with write_errors(folder):
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(FileNotFoundError):  # someone removes it
                _prepare(folder)
                return
        _prepare(folder)


def _prepare(folder: str) -> None:
    files.make_directory(folder)
    check_own(folder)
    if is_own(folder):
        return
    fd = files.open_file(f"{folder}/{TAG}", os.O_WRONLY | os.O_CREAT)
    try:
        files.write_all(fd, _TAG)
    finally:
        os.close(fd)
    files.sync(folder)


def _is_fresh(folder: str) -> bool:
    """Whether the directory holds at most the beginning of a mark that another process makes or died at, or the zeros
    that a power cut made of it, and whole entries that came while someone removed the directory, and with it the
    mark."""
    try:
        names = [name for name in os.listdir(folder) if not _is_left(f"{folder}/{name}")]  # noqa: PTH208
        return not names or (names == [TAG] and _TAG.startswith(Path(folder, TAG).read_bytes().rstrip(b"\0")))
    except FileNotFoundError:
        return True


def _is_left(path: str) -> bool:
    """Whether the file is an entry of a cache, the book of the bytes of all entries, or records about other files."""
    name = os.path.basename(path)  # noqa: PTH119
    if name in (KNOWN, KNOWN_OLD):
        return True
    if name != BOOK and not (name.endswith(FLAT) and is_key(name.removesuffix(FLAT))):
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.fstat(fd).st_size in (0, _TOTAL.size) if name == BOOK else read(fd) is not None
    except OSError:
        return False
    finally:
        os.close(fd)


# Who may make an entry


def lock_part(path: str, wait: bool) -> io.FileIO | None:
    """A new file at ``path`` that nobody else can have; None if someone has it and ``wait`` is False."""
    while True:
        fresh = True
        try:
            fd = files.create(path)
        except FileExistsError:
            fresh = False
            try:
                fd = files.open_file(path, os.O_RDWR | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
        file = io.FileIO(fd, "r+")
        _claimed.add(file)
        try:
            locked = _lock(fd, wait and not fresh)
            if locked and _is_same_file(fd, path):
                if fresh:
                    return file
                files.unlink(path)  # left by a killed process; its children may still map it
        except BaseException:
            file.close()
            raise
        file.close()
        if not locked and not fresh:
            return None


def unlock(file: io.FileIO) -> None:
    fcntl.flock(file.fileno(), fcntl.LOCK_UN)  # closing would leave it to the copies of forked children
    file.close()


def abandon(file: io.FileIO, path: str) -> None:
    """Remove an unfinished file, and let others have its name."""
    with contextlib.suppress(OSError):
        if _is_same_file(file.fileno(), path):
            files.unlink(path)
    unlock(file)


def _lock(fd: int, wait: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _is_same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))  # noqa: PTH116
    except FileNotFoundError:
        return False


def sweep(folder: str) -> int:
    """Remove unfinished files of killed processes; returns the bytes freed."""
    freed = 0
    with os.scandir(folder) as found:
        paths = [each.path for each in found if _is_own_file(each, PART)]
    for path in paths:
        with contextlib.suppress(FileNotFoundError), open(path, "r+b", buffering=0) as file:  # noqa: PTH123
            if _lock(file.fileno(), False) and _is_same_file(file.fileno(), path):
                files.unlink(path)
                freed += os.fstat(file.fileno()).st_size
    return freed


# What is in it


def entries(folder: str) -> list[Listed]:
    """Entries as the directory shows them, least recently used first."""
    listed = []
    with os.scandir(folder) as found:
        for each in found:
            if _is_own_file(each, FLAT):
                with contextlib.suppress(FileNotFoundError):
                    status = each.stat(follow_symlinks=False)
                    listed.append(Listed(status.st_mtime_ns, status.st_size, each.name))
    return sorted(listed)


def _is_own_file(entry: os.DirEntry[str], suffix: str) -> bool:
    name = entry.name
    return name.endswith(suffix) and is_key(name[: -len(suffix)]) and entry.is_file(follow_symlinks=False)


def unlink(path: str) -> bool:
    """Remove a file, and return whether it is gone: a directory may let only the file's owner delete it."""
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass
    except PermissionError:
        return False
    return True


def remove(path: str, fd: int) -> None:
    """Remove the file that is open as ``fd``, unless another one has its name by now."""
    folder = os.path.dirname(path)  # noqa: PTH120
    with contextlib.suppress(OSError):
        if is_own(folder):
            with Book(folder):
                if _is_same_file(fd, path):
                    files.unlink(path)


class Book:
    """The bytes of all entries, in a file, so that they need not be listed each time; held by one at a time.

    The number may be too high, after a kill or when someone else deletes entries, but never too low.
    """

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{BOOK}"
        self._fd = -1

    def __enter__(self) -> Book:
        self._fd = files.open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        _locked.add(self._fd)
        try:
            _lock(self._fd, True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        _locked.discard(self._fd)
        os.close(self._fd)

    def total(self) -> int | None:
        """None: list them. A number from before the last boot may be older than entries are."""
        written = os.pread(self._fd, _TOTAL.size, 0)
        if len(written) < _TOTAL.size:
            return None
        boot, total = _TOTAL.unpack(written)
        return int(total) if boot == boot_id() else None

    def set_total(self, total: int) -> None:
        files.write_at(self._fd, _TOTAL.pack(boot_id() or bytes(16), total), 0)


def _leave_locks_to_the_parent() -> None:
    for file in list(_claimed):
        file.close()
    for fd in _locked:
        os.close(fd)
    _locked.clear()


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)
