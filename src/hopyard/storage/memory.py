"""A store in this process's memory: for tests, notebooks and runs whose files nobody needs."""

from __future__ import annotations

import bisect
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from hopyard.errors import CorruptError, InvalidNameError, NotFoundError, UsageError
from hopyard.storage.base import Buffer, Entry, Store
from hopyard.storage.names import validate_name, validate_prefix
from hopyard.wording import nearest


class _Space:
    """The objects of one memory store, their names in order, and the lock that guards both."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.names: list[str] = []
        self.versions: dict[str, int] = {}
        self.writes = itertools.count()


_named: dict[str, _Space] = {}
_unnamed: weakref.WeakValueDictionary[str, _Space] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class MemoryStore(Store):
    """Objects in memory, gone with the process. Stores of the same ``name`` share their objects.

    Args:
        name: what ``open_store("memory://name")`` finds again in this process; None for
            objects that only this store object (and what is made of it, ``at`` it or by pickling) sees.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            self._name = f"unnamed-{next(_numbers)}"
            self._space = _unnamed[self._name] = _Space()
        else:
            self._name = validate_name(name)
            self._space = _unnamed.get(name) or _named.setdefault(name, _Space())

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    @property
    def shared(self) -> bool:
        return False

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._space.objects.get(validate_name(name))
        if data is None:
            with self._space.lock:
                known = list(self._space.names)
            raise NotFoundError(
                f"there is no object {name!r} in the store {self.url}{nearest(name, known[:200], '.')} "
                "List the store to see what it holds."
            )
        stop = len(data) if length is None else start + length
        if start > len(data) or stop > len(data):
            raise CorruptError(
                f"bytes {start}..{stop} of {name!r} in {self.url} were asked for, but it has only "
                f"{len(data)}. The object was cut off or replaced: restore it from a copy, or make it again."
            )
        return data[start:stop]

    def put(self, name: str, data: Buffer) -> None:
        self._write(name, bytes(data), replace=True)

    def put_new(self, name: str, data: Buffer) -> bool:
        return self._write(name, bytes(data), replace=False)

    def put_file(self, name: str, path: Path) -> None:
        self._write(name, path.read_bytes(), replace=True)
        path.unlink()

    def _write(self, name: str, data: bytes, replace: bool) -> bool:
        validate_name(name)
        with self._space.lock:
            if name in self._space.objects:
                if replace:
                    self._keep(name, data)
                return replace
            self._refuse_nesting(name)
            self._keep(name, data)
            bisect.insort(self._space.names, name)
            return True

    def _keep(self, name: str, data: bytes) -> None:
        self._space.objects[name] = data
        self._space.versions[name] = next(self._space.writes)

    def _refuse_nesting(self, name: str) -> None:
        names = self._space.names
        following = bisect.bisect_left(names, name + "/")
        if following < len(names) and names[following].startswith(name + "/"):
            self._nested(name, name, names[following])
        end = name.find("/")
        while end >= 0:
            if name[:end] in self._space.objects:
                self._nested(name, name[:end], name)
            end = name.find("/", end + 1)

    def _nested(self, name: str, outer: str, inner: str) -> NoReturn:
        raise InvalidNameError(
            f"cannot store {name!r} in {self.url}: {outer!r} would be both an object and a prefix of "
            f"{inner!r}, which no directory can hold. Use another name."
        )

    def list(self, prefix: str = "") -> Iterator[Entry]:
        start = validate_prefix(prefix) and prefix + "/"
        with self._space.lock:
            first = bisect.bisect_left(self._space.names, start)
            # "0" follows "/", so this is the first name that no longer begins with the prefix.
            end = bisect.bisect_left(self._space.names, prefix + "0") if prefix else len(self._space.names)
            found = [Entry(name, len(self._space.objects[name])) for name in self._space.names[first:end]]
        yield from found

    def size(self, name: str) -> int | None:
        data = self._space.objects.get(validate_name(name))
        return None if data is None else len(data)

    def version(self, name: str) -> str | None:
        with self._space.lock:
            return str(self._space.versions[name]) if self.exists(name) else None

    def delete(self, name: str) -> None:
        validate_name(name)
        with self._space.lock:
            if self._space.objects.pop(name, None) is not None:
                del self._space.versions[name]
                del self._space.names[bisect.bisect_left(self._space.names, name)]

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    def __reduce__(self) -> tuple[Callable[[str, int], MemoryStore], tuple[str, int]]:
        return _found_again, (self._name, os.getpid())


def _found_again(name: str, pid: int) -> MemoryStore:
    """The store that was pickled in this process; a copy in another one would see nothing of it."""
    space = _unnamed.get(name) or _named.get(name)
    if pid != os.getpid() or space is None:
        raise UsageError(
            f"MemoryStore({name!r}) lives in the memory of process {pid} and cannot be used in another. "
            "Use InlineBackend with it, or a LocalStore that other processes can see."
        )
    store = MemoryStore.__new__(MemoryStore)
    store._name, store._space = name, space
    return store
