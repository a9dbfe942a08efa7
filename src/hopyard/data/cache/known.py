"""Facts that this machine has found out about files, remembered for all processes.

Two facts cost reading a whole file: the digest of its content, and that its content is as it was written. Both
hold as long as nobody touches the file, so they are remembered under its device, inode, size and times of change.

The memory is a file of records of 64 bytes beside the node cache's entries, to which processes append::

    key (16) | number (8) | data (32) | xxh3-64 of the bytes before (8)

A record that is damaged says nothing. Where the directory cannot be written, every process remembers for
itself. When the file is full, it becomes the old one, which is still looked at, and a new one is begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from hopyard.data.cache import files as cache_files
from hopyard.data.cache.files import KNOWN, KNOWN_OLD
from hopyard.errors import HopyardError
from hopyard.storage import files

DATA = 32
"""Bytes of a record's data."""

_RECORD = np.dtype([("key", "<u8", 2), ("number", "<u8"), ("data", "u1", DATA), ("check", "<u8")])
_CHECKED = _RECORD.itemsize - 8
_FULL = 4 << 20  # bytes

FactRecord = tuple[int, bytes]
"""A number and ``DATA`` bytes."""


class KnownFacts:
    """Facts under keys. Threads and processes may share a directory.

    Args:
        folder: of the node cache.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        # Of this process: what could not be written is known too.
        self._own: dict[bytes, list[FactRecord]] = {}
        self._read: dict[str, tuple[tuple[int, int], npt.NDArray[Any]]] = {}

    def find(self, key: bytes) -> list[FactRecord]:
        """All records under the key."""
        with self._lock:
            found = list(self._own.get(key, ()))
            for name in (KNOWN_OLD, KNOWN):
                found += _under(key, self._records(name))
            return found

    def add(self, key: bytes, records: Sequence[FactRecord]) -> None:
        """Remember records under the key."""
        with self._lock:
            self._own.setdefault(key, []).extend(records)
            with contextlib.suppress(OSError, HopyardError):
                self._append(b"".join(_packed(key, *record) for record in records))

    def _append(self, data: bytes) -> None:
        path = f"{self._folder}/{KNOWN}"
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
        try:
            fd = files.open_file(path, flags)
        except FileNotFoundError:
            cache_files.prepare(self._folder)
            fd = files.open_file(path, flags | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            if size >= _FULL:
                files.rename(path, f"{self._folder}/{KNOWN_OLD}")
                return
            whole = size - size % _RECORD.itemsize
            if whole < size:  # a process was killed, or the disk was full, in the middle of a record
                files.truncate(fd, whole)
            files.write_pieces(fd, [data])
        finally:
            os.close(fd)

    def _records(self, name: str) -> npt.NDArray[Any]:
        try:
            with open(f"{self._folder}/{name}", "rb", opener=_no_link) as file:
                status = os.fstat(file.fileno())
                state = status.st_ino, status.st_size
                if name not in self._read or self._read[name][0] != state:
                    data = file.read(2 * _FULL)
                    records = np.frombuffer(data[: len(data) - len(data) % _RECORD.itemsize], _RECORD)
                    self._read[name] = state, records
        except OSError:
            return np.empty(0, _RECORD)
        return self._read[name][1]


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _packed(key: bytes, number: int, data: bytes) -> bytes:
    record = key + number.to_bytes(8, "little") + data.ljust(DATA, b"\0")
    return record + xxh3_64_intdigest(record).to_bytes(8, "little")


def _under(key: bytes, records: npt.NDArray[Any]) -> list[FactRecord]:
    first, second = np.frombuffer(key, "<u8")
    places = np.flatnonzero((records["key"][:, 0] == first) & (records["key"][:, 1] == second))
    return [
        (int(record["number"]), record["data"].tobytes())
        for record in records[places]
        if xxh3_64_intdigest(record.tobytes()[:_CHECKED]) == int(record["check"])
    ]


def key_of(*parts: Any) -> bytes:
    """The key of a fact about something."""
    return xxh3_128_digest(repr(parts).encode())


_of_folders: dict[str, KnownFacts] = {}


def known(folder: str) -> KnownFacts:
    """The memory beside the entries of a node cache, one object per process."""
    return _of_folders.setdefault(folder, KnownFacts(folder))


def _renew_locks() -> None:
    for each in _of_folders.values():
        each._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
