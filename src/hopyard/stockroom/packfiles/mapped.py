"""Store objects as arrays of their bytes, mapped once per process; and which of their ranges were checked."""

from __future__ import annotations

import mmap
import os
import time
from collections import OrderedDict
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.stockroom.packfiles.forking import LOCK
from hopyard.storage import Store

Bytes = npt.NDArray[np.uint8]

FileIdentity: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, and times of the last change of content and of anything: of a file as it was at a moment."""

_KEPT = 256  # each is a file descriptor, of which a process usually has 1024
_FILES = 1 << 14  # of which it is remembered what was checked
_SETTLED = (
    2_000_000_000  # nanoseconds; a file that changed later may change again without another time of change
)


class MappedFile(NamedTuple):
    """A file that is mapped: its bytes, and which file it is."""

    data: Bytes
    identity: FileIdentity


class Mapped:
    """The objects of one store that were mapped last.

    Args:
        access: ``mmap.ACCESS_READ``; or ``mmap.ACCESS_COPY`` for arrays that may be written to, privately.
    """

    def __init__(self, store: Store, access: int = mmap.ACCESS_READ) -> None:
        self._store, self._access = store, access
        self._kept: OrderedDict[str, MappedFile] = OrderedDict()

    def get(self, name: str) -> MappedFile | None:
        """All bytes of the object; None if it cannot be mapped, though it may be there."""
        with LOCK:
            view = self._kept.get(name)
            if view is not None:
                self._kept.move_to_end(name)
                return view
        path = self._store.path(name)
        if path is None:
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Of the size that the file has now: what lies beyond its end is never touched.
                identity = _identity(os.fstat(descriptor))
                data = np.frombuffer(mmap.mmap(descriptor, identity[2], access=self._access), np.uint8)
            finally:
                os.close(descriptor)
        except (OSError, ValueError):  # gone, empty, or too many are open: reading it says what is wrong
            return None
        view = MappedFile(data, identity)
        with LOCK:
            self._kept[name] = view
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return view

    def names(self) -> set[str]:
        """The objects that are mapped now."""
        with LOCK:
            return set(self._kept)

    def forget(self, name: str) -> None:
        """Map the object anew when it is next asked for."""
        with LOCK:
            self._kept.pop(name, None)


def identity_at(path: Path | None) -> FileIdentity | None:
    """Of the file that is at a path now; None if none is."""
    try:
        return None if path is None else _identity(path.stat())
    except OSError:
        return None


def _identity(status: os.stat_result) -> FileIdentity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class VerifiedObjects:
    """A memory of where in files the objects begin whose bytes were compared with their digests.

    All repositories that a process opens share what is known of a file, unless that changed just now: then its times
    may stay what they are while it changes once more, and each repository remembers for itself.
    """

    _everywhere: ClassVar[dict[FileIdentity, set[int]]] = {}

    def __init__(self) -> None:
        self._own: dict[str, tuple[FileIdentity, set[int]]] = {}

    def of(self, name: str, identity: FileIdentity) -> set[int]:
        """The positions in the file of this name, to be added to."""
        known = self._own.get(name)
        if known is None or known[0] != identity:
            self._own[name] = known = identity, self._shared(identity)
        return known[1]

    def _shared(self, identity: FileIdentity) -> set[int]:
        if time.time_ns() - max(identity[3:]) <= _SETTLED:
            return set()
        with LOCK:
            if len(self._everywhere) >= _FILES:
                self._everywhere.clear()
            return self._everywhere.setdefault(identity, set())

    def forget(self, name: str) -> None:
        """Forget one file, which is gone."""
        self._own.pop(name, None)

    def clear(self) -> None:
        """Forget all that is known here."""
        self._own.clear()
