"""The Store contract: bytes under names, below one prefix.

Rules that every implementation, also a user's own, must keep (``storage.testing``
checks them):

* **Names** are relative, ``/``-separated and validated by :func:`validate_name`; a name
  is never both an object and a prefix of another object (``InvalidNameError``).
* **Atomicity.** ``put`` and ``put_new`` make the whole object visible or nothing. After
  they return, the object survives the death of the process and of the machine. Until a
  replaced object is whole, all see the old one, so it is never deleted first. A failed or killed
  write leaves the old object or none, and its remains are invisible to ``list``. A deletion survives the
  death of the machine once ``sync_deleted`` returns; before, the object may be there again.
* **One conditional write.** ``put_new`` writes only if the name is free; of any number of
  concurrent callers exactly one gets True. References, journals and fences build on it.
* **Reads** see the last completed write of the name. An object that a reader has begun to
  read is not changed under it; replacing makes a new object. What ``read`` tells is of one object, also if another
  one takes its place meanwhile.
* **Threads and processes** may use one store at once. A store is picklable, and the copy sees
  the same objects; if ``shared`` is False, only in this process, and in another one unpickling fails.
* **Errors** are those of ``hopyard.errors``: ``NotFoundError``, ``NotWritableError``,
  ``StorageFullError``, ``InvalidNameError``, ``CorruptError``; each names the store (by its ``url``)
  and the object. The words are free, but for those of ``validate_name``: which rule a name breaks.
* **Ownership.** A store never deletes what it was not told to delete, one name at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from hopyard.errors import CorruptError
from hopyard.storage.names import validate_name, validate_prefix

Buffer: TypeAlias = bytes | bytearray | memoryview

REMEDY = (
    "Prepare the same data with the same arguments again, which writes anew what is damaged, or restore it; "
    "`hopyard data verify` looks at everything."
)


@dataclass(frozen=True, order=True)
class Entry:
    """One object in a listing: its name and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Part:
    """Bytes of an object, with the size and the version (None: unknown) that the object had when they were read."""

    data: Buffer
    size: int
    version: str | None


class Store(ABC):
    """Bytes under names. See the module's text for the rules."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Address of the store, as ``open_store`` takes it, which knows the stores of this package only; for messages
        and records."""

    @abstractmethod
    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The object's bytes, or the range [start, start + length) of them.

        Raises:
            NotFoundError: nothing is stored under ``name``.
            CorruptError: the range reaches beyond the end of the object.
        """

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        """Bytes as :meth:`get` gives them, with the size and the :meth:`version` of the object that they are of.

        Args:
            start: where they begin; negative: so many bytes before the end, or all if there are fewer.

        Raises:
            NotFoundError: nothing is stored under ``name``.
            CorruptError: the range reaches beyond the end of the object.

        A store whose answers tell all of it overrides this.
        """
        while True:  # until nobody replaces the object meanwhile
            version, size = self._version_and_size(name)
            begin = max(start + (size or 0), 0) if start < 0 else start
            try:
                data = self.get(name, begin, length)
            except CorruptError:  # or it was replaced by a shorter one
                if self._is_still(name, version, size):
                    raise
                continue
            if size is not None and self._is_still(name, version, size):
                return Part(data, size, version)

    def receive(self, name: str, start: int, length: int, keep: Callable[[int, memoryview], object]) -> Part:
        """Bytes as :meth:`read` gives them, piece by piece: ``keep(position in the object, piece)``, where a piece may
        come again, from any place on, if an answer was cut off. The result has no bytes, and may say what the object is
        now: the pieces are of one object if that is what it was known to be before.

        Raises:
            NotFoundError, CorruptError: as ``read``. Pieces may have been kept by then.

        A store that has answers in pieces overrides this.
        """
        part = self.read(name, start, length)
        keep(start, memoryview(part.data))
        return replace(part, data=b"")

    def _version_and_size(self, name: str) -> tuple[str | None, int | None]:
        """Both, None for what is unknown or not there. Stores that know both at once override this."""
        return self.version(name), self.size(name)

    def _is_still(self, name: str, version: str | None, size: int | None) -> bool:
        """Whether the object has the version that it had; where none is known, the size."""
        return self.size(name) == size if version is None else self.version(name) == version

    @abstractmethod
    def put(self, name: str, data: Buffer) -> None:
        """Store ``data`` under ``name``, replacing what was there."""

    @abstractmethod
    def put_new(self, name: str, data: Buffer) -> bool:
        """Store ``data`` if ``name`` is free; False, and no change, if it is taken."""

    @abstractmethod
    def put_file(self, name: str, path: Path) -> None:
        """Like ``put`` with the content of a local file, which is consumed (moved if it can be).

        If it fails, the file is still there.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[Entry]:
        """All objects below ``prefix`` (``prefix/...``, whole segments), in order of names.

        Objects written or deleted meanwhile may or may not be in it.
        """

    def names(self, prefix: str = "") -> set[str]:
        """The names that :meth:`list` gives, without the sizes.

        A store where sizes cost a look at each object overrides this.
        """
        return {entry.name for entry in self.list(prefix)}

    def folders(self, prefix: str = "") -> Sequence[str]:
        """The first segments of names below ``prefix`` that have more segments below them, in order.

        A store that can overrides this, so that what lies in the folders is not listed; directories may be empty.
        """
        cut = len(prefix) + 1 if prefix else 0
        names = (entry.name[cut:] for entry in self.list(prefix))
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Size of the object in bytes, or None if there is none."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove the object; nothing happens if there is none."""

    def path(self, name: str) -> Path | None:
        """The file that holds the object, if objects are files that this machine can map; else None.

        Answers without looking whether the object exists. The file may be read, mapped and
        locked, never written.
        """
        return None

    def staging(self) -> Path | None:
        """A local directory of this process, from which ``put_file`` moves without copying, or None."""
        return None

    def version(self, name: str) -> str | None:
        """A text that differs once the object is replaced, in any process; None: no object, or unknown."""
        return None

    def written_at(self, name: str) -> float | None:
        """Seconds since 1970 by the store's own clock at which the object was written; None: no object, or unknown."""
        return None

    def hosts(self, name: str) -> Mapping[str, int]:
        """Bytes of the object by the host name of each machine that has them on its own disks, several times if it is
        there several times; empty: unknown, or no machine of the user's has them."""
        return {}

    def sync_deleted(self, names: Iterable[str]) -> None:  # noqa: B027 - where deletions last, there is nothing to do
        """Let it last that these objects were deleted, by a process of this machine: after a power cut, what was only
        deleted may be there again, in part.

        Raises:
            StorageError: they may come back.
        """

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def foreign(self) -> Store:
        """This store for reading files that others keep there, maybe under names that a store would not give."""
        return self

    def at(self, prefix: str) -> Store:
        """The part of this store below ``prefix``, as a store."""
        return PrefixStore(self, prefix) if prefix else self

    def without_links(self) -> Store:
        """This store, for files that somebody else may have put there: no link below its root is followed. Only stores
        of files have such.

        A link, or anything else that is no file, is listed as an object, and using it is a ``CorruptError``.
        """
        return self

    def unsynced(self) -> Store:
        """This store, whose writes are whole and seen by all at once, but last only if this machine does; or, after
        ``sync``, as all others do. Only stores on disks have such."""
        return self

    def sync(self, names: Iterable[str]) -> None:  # noqa: B027 - where writes last, there is nothing to do
        """Make these objects durable, which a process of this machine wrote by ``unsynced``.

        Raises:
            StorageError: one of them may be lost, also if it can be read.
        """

    @property
    def shared(self) -> bool:
        """Whether other processes see the same objects (and a pickled copy works in them)."""
        return True

    @property
    def remedy(self) -> str:
        """A sentence for errors: how an object of a dataset that is damaged here is brought back."""
        return REMEDY

    @property
    def has_root(self) -> bool:
        """Whether the store has places besides those of training and validation data: one of moved parts alone has
        not."""
        return True

    # Where a search keeps what it makes. Stores that let users move one of these override it.
    @property
    def train_data(self) -> Store:
        return self.at("train_data")

    @property
    def val_data(self) -> Store:
        return self.at("val_data")

    @property
    def single_train(self) -> bool:
        """Whether ``train_data`` itself is one dataset (True), or holds one per fingerprint (False)."""
        return False

    @property
    def single_val(self) -> bool:
        """Whether ``val_data`` itself is one dataset (True), or holds one per fingerprint (False)."""
        return False

    @property
    def runs(self) -> Store:
        return self.at("runs")

    @property
    def logs(self) -> Store:
        return self.at("logs")


class PrefixStore(Store):
    """The part of another store below a prefix; names are relative to it."""

    def __init__(self, inner: Store, prefix: str) -> None:
        self._inner: Store = inner
        self._prefix = validate_name(prefix) + "/"

    @property
    def url(self) -> str:
        return f"{self._inner.url.rstrip('/')}/{self._prefix[:-1]}"

    def without_links(self) -> Store:
        return type(self)(self._inner.without_links(), self._prefix[:-1])

    def unsynced(self) -> Store:
        return type(self)(self._inner.unsynced(), self._prefix[:-1])

    def sync(self, names: Iterable[str]) -> None:
        self._inner.sync([self._full(name) for name in names])

    def sync_deleted(self, names: Iterable[str]) -> None:
        self._inner.sync_deleted([self._full(name) for name in names])

    @property
    def shared(self) -> bool:
        return self._inner.shared

    def _full(self, name: str) -> str:
        # Checked here too: the inner store would take "" and ".." only together with the prefix.
        return self._prefix + validate_name(name)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self._inner.get(self._full(name), start, length)

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        return self._inner.read(self._full(name), start, length)

    def receive(self, name: str, start: int, length: int, keep: Callable[[int, memoryview], object]) -> Part:
        return self._inner.receive(self._full(name), start, length, keep)

    def put(self, name: str, data: Buffer) -> None:
        self._inner.put(self._full(name), data)

    def put_new(self, name: str, data: Buffer) -> bool:
        return self._inner.put_new(self._full(name), data)

    def put_file(self, name: str, path: Path) -> None:
        self._inner.put_file(self._full(name), path)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        cut = len(self._prefix)
        for entry in self._inner.list((self._prefix + validate_prefix(prefix)).rstrip("/")):
            yield Entry(entry.name[cut:], entry.size)

    def names(self, prefix: str = "") -> set[str]:
        cut = len(self._prefix)
        inner = self._inner.names((self._prefix + validate_prefix(prefix)).rstrip("/"))
        return {name[cut:] for name in inner}

    def folders(self, prefix: str = "") -> Sequence[str]:
        return self._inner.folders((self._prefix + validate_prefix(prefix)).rstrip("/"))

    def size(self, name: str) -> int | None:
        return self._inner.size(self._full(name))

    def delete(self, name: str) -> None:
        self._inner.delete(self._full(name))

    def path(self, name: str) -> Path | None:
        return self._inner.path(self._full(name))

    def version(self, name: str) -> str | None:
        return self._inner.version(self._full(name))

    def written_at(self, name: str) -> float | None:
        return self._inner.written_at(self._full(name))

    def hosts(self, name: str) -> Mapping[str, int]:
        return self._inner.hosts(self._full(name))

    def staging(self) -> Path | None:
        return self._inner.staging()

    def __repr__(self) -> str:
        return f"{self._inner!r}.at({self._prefix[:-1]!r})"
