"""Stores around another one, by which scripts are tried under what networks and servers do.

Each behaves as a store: the parts of a search (``train_data``...) are wrapped as well, wherever the inner store keeps
them, and share counts and limits. Names are then those of the whole, ``runs/...``. Wrappers that look at every byte
give no :meth:`~hopyard.storage.Store.path`, so that none is read past them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Literal, Self, TypeAlias, TypeVar

from hopyard.checks import integer, number
from hopyard.errors import NotWritableError
from hopyard.storage.base import Buffer, Entry, Part, Store

T = TypeVar("T")

Call: TypeAlias = Literal[
    "get", "list", "size", "version", "written_at", "put", "put_new", "put_file", "delete"
]
"""A call of a store that reaches the inner one."""

WRITES: tuple[Call, ...] = ("put", "put_new", "put_file", "delete")


class Wrapper(Store):
    """Another store, of which subclasses change what they override.

    Args:
        inner: keeps the objects.
    """

    has_files = True
    """Whether the inner store's files may be read, and moved into it, past this one."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._label = ""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        """The result of a call of the inner store.

        Args:
            name: of the object, or a prefix, with the part that it is in.
            action: makes the call.
            sent: bytes that go to the store with it.
        """
        return action()

    def _of(self, inner: Store, part: str) -> Self:
        """The same around a part of the inner store."""
        wrapped = copy(self)
        wrapped._lock = self._lock
        wrapped.inner, wrapped._label = inner, f"{self._label}{part}/" if part else self._label
        return wrapped

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def shared(self) -> bool:
        return self.inner.shared

    @property
    def remedy(self) -> str:
        return self.inner.remedy

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self._called("get", self._label + name, lambda: self.inner.get(name, start, length))

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        return self._called("get", self._label + name, lambda: self.inner.read(name, start, length))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self._called("list", self._label + prefix, lambda: self.inner.list(prefix))

    def names(self, prefix: str = "") -> set[str]:
        return self._called("list", self._label + prefix, lambda: self.inner.names(prefix))

    def folders(self, prefix: str = "") -> Sequence[str]:
        return self._called("list", self._label + prefix, lambda: self.inner.folders(prefix))

    def size(self, name: str) -> int | None:
        return self._called("size", self._label + name, lambda: self.inner.size(name))

    def version(self, name: str) -> str | None:
        return self._called("version", self._label + name, lambda: self.inner.version(name))

    def written_at(self, name: str) -> float | None:
        return self._called("written_at", self._label + name, lambda: self.inner.written_at(name))

    def put(self, name: str, data: Buffer) -> None:
        size = memoryview(data).nbytes
        self._called("put", self._label + name, lambda: self.inner.put(name, data), size)

    def put_new(self, name: str, data: Buffer) -> bool:
        size = memoryview(data).nbytes
        return self._called("put_new", self._label + name, lambda: self.inner.put_new(name, data), size)

    def put_file(self, name: str, path: Path) -> None:
        size = path.stat().st_size
        self._called("put_file", self._label + name, lambda: self.inner.put_file(name, path), size)

    def delete(self, name: str) -> None:
        self._called("delete", self._label + name, lambda: self.inner.delete(name))

    def hosts(self, name: str) -> Mapping[str, int]:
        return self.inner.hosts(name)

    def path(self, name: str) -> Path | None:
        return self.inner.path(name) if self.has_files else None

    def sync_deleted(self, names: Iterable[str]) -> None:
        self.inner.sync_deleted(names)

    def staging(self) -> Path | None:
        return self.inner.staging() if self.has_files else None

    def foreign(self) -> Store:
        return self._of(self.inner.foreign(), "")

    @property
    def has_root(self) -> bool:
        return self.inner.has_root

    @property
    def train_data(self) -> Store:
        return self._of(self.inner.train_data, "train_data")

    @property
    def val_data(self) -> Store:
        return self._of(self.inner.val_data, "val_data")

    @property
    def runs(self) -> Store:
        return self._of(self.inner.runs, "runs")

    @property
    def logs(self) -> Store:
        return self._of(self.inner.logs, "logs")

    @property
    def single_train(self) -> bool:
        return self.inner.single_train

    @property
    def single_val(self) -> bool:
        return self.inner.single_val

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


class ReadOnlyStore(Wrapper):
    """Another store that nothing may write to: every write is a ``NotWritableError``, and changes nothing."""

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        if call in WRITES:
            raise NotWritableError(
                f"{self.inner.url} is opened for reading only, so {name!r} cannot be written or deleted. Open the "
                "store itself for that."
            )
        return action()

    def staging(self) -> Path | None:
        return None


class CountingStore(Wrapper):
    """Another store, and how often it was asked.

    Attributes:
        calls: how often each call was made, by its name.
        asked: ``"get runs/..."`` and so on, in order.
    """

    has_files = False

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._bytes = Counter[str]()
        self.calls: Counter[str] = Counter()
        self.asked: list[str] = []

    @property
    def received(self) -> int:
        """Bytes of objects that were read."""
        return self._bytes["received"]

    @property
    def sent(self) -> int:
        """Bytes of objects that were written."""
        return self._bytes["sent"]

    def reset(self) -> None:
        """Count from 0 again."""
        with self._lock:
            self.calls.clear()
            self.asked.clear()
            self._bytes.clear()

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        result = action()
        with self._lock:
            self.calls[call] += 1
            self.asked.append(f"{call} {name}")
            self._bytes["sent"] += sent
            self._bytes["received"] += _nbytes(result)
        return result


class SlowStore(Wrapper):
    """Another store over a wire: every call waits for an answer, and all bytes together pass at one speed.

    Args:
        latency: seconds from a call to the first byte of its answer.
        bytes_per_second: of all calls together, in each direction; None: as fast as the inner store.
    """

    has_files = False

    def __init__(self, inner: Store, latency: float = 0.03, bytes_per_second: float | None = None) -> None:
        super().__init__(inner)
        self._latency = number("latency", latency, least=0)
        self._speed = (
            None if bytes_per_second is None else number("bytes_per_second", bytes_per_second, above=0)
        )
        self._lock = threading.Lock()
        self._free_at = {"sent": 0.0, "received": 0.0}

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        self._wait(self._latency)
        self._pass("sent", sent)
        result = action()
        self._pass("received", _nbytes(result))
        return result

    def _pass(self, way: str, size: int) -> None:
        """Wait until that many bytes have passed after those of others."""
        if self._speed is None or size == 0:
            return
        with self._lock:
            self._free_at[way] = max(time.monotonic(), self._free_at[way]) + size / self._speed
            passed = self._free_at[way]
        self._wait(passed - time.monotonic())

    @staticmethod
    def _wait(seconds: float) -> None:
        threading.Event().wait(max(0.0, seconds))


class CachingStore(Wrapper):
    """Another store, whose objects are kept in memory once they were read, as long as they are as they were.

    Before a kept object is given, the store is asked for its version, which is a request without the bytes. Objects
    without a version are not kept.

    Args:
        max_bytes: of all objects that are kept together; those that were not asked for longest go first.
    """

    has_files = False

    def __init__(self, inner: Store, max_bytes: int = 256 << 20) -> None:
        super().__init__(inner)
        self._most = integer("max_bytes", max_bytes, 0)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._size = [0]

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        key, version = self._label + name, self.inner.version(name)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == version:
                self._kept.move_to_end(key)
        if kept is None or kept[0] != version:
            if start or length is not None or version is None:
                return self.inner.get(name, start, length)
            data = self.inner.get(name)
            if self.inner.version(name) == version:
                self._keep(key, version, data)
            return data
        data = kept[1]
        stop = len(data) if length is None else start + length
        return data[start:stop] if max(start, stop) <= len(data) else self.inner.get(name, start, length)

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        return Store.read(self, name, start, length)  # by get()

    def _keep(self, key: str, version: str, data: bytes) -> None:
        if len(data) > self._most:
            return
        with self._lock:
            self._size[0] += len(data) - len(self._kept.pop(key, ("", b""))[1])
            self._kept[key] = (version, data)
            while self._size[0] > self._most:
                self._size[0] -= len(self._kept.popitem(last=False)[1][1])

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_kept": OrderedDict(), "_size": [0]}


def _nbytes(result: object) -> int:
    """Bytes of an object that an answer holds."""
    data = result.data if isinstance(result, Part) else result
    return memoryview(data).nbytes if isinstance(data, bytes | memoryview) else 0
