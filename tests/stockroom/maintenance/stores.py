"""Stores whose process is killed, or that fail, at a chosen operation that changes them; and one on a full disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from hopyard.errors import StorageError, StorageFullError
from hopyard.storage import LocalStore, Store
from hopyard.storage.base import Buffer, Entry


class KillingStore(Store):
    """``inner`` until change number ``at`` begins (counted from 1); then SIGKILL, or an error if it ``fails``.

    An odd number kills before the change, an even one after it.
    """

    def __init__(self, inner: Store, at: int, fails: bool = False) -> None:
        self.inner, self._moment, self.fails = inner, at, fails
        self._count = 0

    def _change(self) -> bool:
        """Count a change; whether the process is to end after it."""
        self._count += 1
        if self.fails and self._count == self._moment:
            raise StorageError("a change failed (injected). Look at the test.")
        if not self.fails and self._moment == 2 * self._count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return not self.fails and self._moment == 2 * self._count

    @staticmethod
    def _end(is_end: bool) -> None:
        if is_end:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.get(name, start, length)

    def put(self, name: str, data: Buffer) -> None:
        is_end = self._change()
        self.inner.put(name, data)
        self._end(is_end)

    def put_new(self, name: str, data: Buffer) -> bool:
        is_end = self._change()
        done = self.inner.put_new(name, data)
        self._end(is_end)
        return done

    def put_file(self, name: str, path: Path) -> None:
        is_end = self._change()
        self.inner.put_file(name, path)
        self._end(is_end)

    def delete(self, name: str) -> None:
        is_end = self._change()
        self.inner.delete(name)
        self._end(is_end)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self.inner.list(prefix)

    def size(self, name: str) -> int | None:
        return self.inner.size(name)

    def path(self, name: str) -> Path | None:
        return self.inner.path(name)

    def staging(self) -> Path | None:
        return self.inner.staging()


class FullDisk(LocalStore):
    """A folder whose packfiles and files may have ``size`` bytes together."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(folder)
        self._size = size

    def put(self, name: str, data: Buffer) -> None:
        self._check(memoryview(data).nbytes)
        super().put(name, data)

    def put_new(self, name: str, data: Buffer) -> bool:
        self._check(memoryview(data).nbytes)
        return super().put_new(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self._check(path.stat().st_size)
        super().put_file(name, path)

    def _check(self, size: int) -> None:
        used = sum(entry.size for prefix in ("packfiles", "files") for entry in self.list(prefix))
        if used + size > self._size:
            raise StorageFullError("the disk is full (injected). Look at the test.")
