"""The stage: the log of a working tree's writes that are not committed yet, each durable before it returns.

``stage/<worktree>/<base>/<number>`` is one operation upon the commit ``base`` (``none``: there is no commit yet), bytes
here. Its file begins with the BLAKE3-256 digest of these bytes, so a file that was cut or changed is found out. One of
no bytes at all: what comes before it was cleared, so that a clearing that was killed half-way is one that was done.

The order of the numbers is the order of the writes, and no number is given twice: the lock's file says which was the
last one. Whoever writes holds the lock, and first looks what others have written.

A stage belongs to its base: where the working tree is at another commit (git checked it out, or a new worktree got the
id of an old one) its operations are not applied, but named by ``orphans``.
"""

from __future__ import annotations

import contextlib
import fcntl
import threading
from collections.abc import Collection, Iterator

from hopyard.errors import CorruptError, NotFoundError, StorageError, UsageError
from hopyard.objects.digests import digest
from hopyard.stockroom.history.locks import locked
from hopyard.storage import Store
from hopyard.storage.oserrors import write_errors
from hopyard.storage.small import get_whole, read_small

_NONE = "none"
_DIGEST_BYTES = 32

_held = threading.local()  # names of the stages that this thread holds


class Stage:
    """The stage of one working tree at one commit. Threads and processes may share it; a copy may be pickled.

    Args:
        store: the repository's root.
        worktree: id of the working tree, a plain name.
        base: digest of the commit that it is at, or None.
    """

    def __init__(self, store: Store, worktree: str, base: str | None) -> None:
        self.worktree, self.base = worktree, base
        self._store = store
        self._prefix = f"stage/{worktree}/{base or _NONE}"
        self._lock = f"stage/{worktree}.lock"
        self._highest: int | None = None  # of the numbers that were ever listed

    def __repr__(self) -> str:
        return f"Stage({self._store!r}, {self.worktree!r}, {self.base!r})"

    def operations(self) -> Iterator[bytes]:
        """All operations since the last ``clear``, in the order of their writing.

        Raises:
            CorruptError: one of them is damaged.
        """
        yield from self.entries().values()

    def entries(self) -> dict[int, bytes]:
        """The same with their numbers."""
        while True:
            try:
                found = {number: self._read(number) for number in self._numbers()}
            except NotFoundError:  # cleared since the numbers were listed
                continue
            cleared = max((number for number, data in found.items() if not data), default=0)
            return {number: data for number, data in found.items() if number > cleared}

    def has(self, number: int) -> bool:
        """Whether it has the operation of this number."""
        return self._store.exists(self._object(number))

    @contextlib.contextmanager
    def held(self) -> Iterator[Log]:
        """The log, which meanwhile nobody else writes or clears.

        Raises:
            UsageError: this thread holds it already.
        """
        held: set[tuple[str, str]] = vars(_held).setdefault("stages", set())
        name = self._store.url, self._lock
        if name in held:
            raise UsageError(
                "a write to the stockroom is under way in this thread, and takes its samples from an iterator which "
                "itself writes or commits through another call. Collect the samples first: list(...)."
            )
        with locked(self._store, self._lock, fcntl.LOCK_EX):
            held.add(name)
            try:
                yield Log(self)
            finally:
                held.discard(name)

    def append(self, operation: bytes) -> int:
        """Add an operation; it is durable when this returns, with its number. Others may append at the same time.

        Raises:
            StorageFullError, NotWritableError, StorageError: nothing was added.
        """
        with self.held() as log:
            return log.append(operation)

    def clear(self, numbers: Collection[int] | None = None) -> None:
        """Remove all operations: at once, even if it is killed meanwhile. None of them is read: they may be damaged.

        Args:
            numbers: remove only these: if there are others too, one by one. Those that are not there do not matter.
        """
        with self.held() as log:
            log.clear(numbers)

    def orphans(self) -> list[Stage]:
        """Stages of this working tree upon other commits, with operations: nobody sees them unless they are named."""
        return [stage for stage in stages(self._store, self.worktree) if stage.base != self.base]

    def _read(self, number: int) -> bytes:
        name = self._object(number)
        return unsealed(get_whole(self._store, name), f"{self._store.url}/{name}")

    def _numbers(self) -> list[int]:
        numbers = sorted(_number(self._store, entry.name) for entry in self._store.list(self._prefix))
        self._highest = max(self._highest or 0, *numbers[-1:], 0)
        return numbers

    def _object(self, number: int) -> str:
        return f"{self._prefix}/{number:012d}"


class Log:
    """A stage as its holder sees it; see :meth:`Stage.held`."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._store = stage, stage._store
        self._path = self._store.path(stage._lock)

    def last(self) -> int:
        """The last number that was given, here or upon another commit."""
        given = 0
        if self._path is not None:
            with contextlib.suppress(ValueError, OSError, CorruptError):
                given = int(read_small(self._path))
        if (
            not given or self._stage._highest is None
        ):  # it is not synced: the machine may have gone down since
            self._stage._numbers()
        return max(given, self._stage._highest or 0)

    def since(self, known: int, looked: int) -> dict[int, bytes] | None:
        """The operations behind those that are known, with their numbers; None: some of these are gone.

        Args:
            known: the last operation that is known; 0: none.
            looked: what ``last`` gave when these were read.
        """
        if known and not self._stage.has(known):
            return None
        found = {}
        for number in range(looked + 1, self.last() + 1):
            if self._stage.has(number):
                found[number] = self._stage._read(number)
                if not found[number]:
                    return None
        return found

    def append(self, operation: bytes) -> int:
        """As :meth:`Stage.append`."""
        number = self.last() + 1
        data = sealed(operation)
        while True:
            if self._path is not None:
                with write_errors(self._path), self._path.open("r+b", buffering=0) as file:
                    file.write(b"%020d" % number)
            try:
                if self._store.put_new(self._stage._object(number), data):
                    return number
            except BaseException:
                # It may be there all the same, if what failed came behind it: then it would come back later.
                with contextlib.suppress(StorageError):
                    self.remove(number)
                raise
            number += 1

    def remove(self, number: int) -> None:
        """Take one operation out."""
        self._store.delete(self._stage._object(number))

    def committed(self, numbers: Collection[int], after: Stage | None) -> None:
        """Remove operations that a commit has. It takes no space, so a full disk does not keep it from being done.

        Whoever calls this has noted that it is to be done, and does it again if it was killed meanwhile.

        Args:
            numbers: of these operations. Those that are not there do not matter.
            after: the commit, if it has just these operations: its stage gets the others.
        """
        there = self._stage._numbers()
        for number in [] if after is None else sorted(set(there).difference(numbers)):
            name = self._stage._object(number)
            path = self._store.path(name)
            assert after is not None
            if path is None:
                self._store.put(after._object(number), self._store.get(name))
                self.remove(number)
            else:
                self._store.put_file(after._object(number), path)
        # The last one first: who knows some of them looks whether the last one is there.
        for number in sorted(set(there).intersection(numbers), reverse=True):
            self.remove(number)

    def clear(self, numbers: Collection[int] | None = None) -> None:
        """As :meth:`Stage.clear`."""
        stage = self._stage
        there = stage._numbers()
        others = [] if numbers is None else sorted(set(there).difference(numbers))
        if others:
            for number in sorted(set(there).difference(others)):
                self.remove(number)
        elif there:
            last = self.append(b"")
            for number in [*there, last]:
                self.remove(number)


def sealed(operation: bytes) -> bytes:
    """A file's content for an operation."""
    return _digest(operation) + operation


def unsealed(data: bytes, where: str) -> bytes:
    """The operation in a file's content; ``where`` names it in errors.

    Raises:
        CorruptError: it is not what was written.
    """
    operation = data[_DIGEST_BYTES:]
    if data[:_DIGEST_BYTES] != _digest(operation):
        how = "is empty" if not data else "is damaged: its content has not the digest that it begins with"
        raise CorruptError(
            f"{where} {how}. It is a staged write, which nothing else has. Restore that file from a copy; or delete "
            "it, and do without that write; or discard all that is staged: hopyard stock reset."
        )
    return operation


def stages(store: Store, worktree: str | None = None) -> list[Stage]:
    """All stages with operations: of one working tree, or of all, also those that are gone."""
    found: dict[tuple[str, str], None] = {}
    for entry in store.list(f"stage/{worktree}" if worktree else "stage"):
        parts = entry.name.split("/")
        if len(parts) == 4:
            found[parts[1], parts[2]] = None
    every = [Stage(store, tree, None if base == _NONE else base) for tree, base in found]
    return [stage for stage in every if any(True for _ in stage.operations())]


def _digest(operation: bytes) -> bytes:
    return bytes.fromhex(digest(operation, "hopyard.staged"))


def _number(store: Store, name: str) -> int:
    number = name.rpartition("/")[2]
    if len(number) != 12 or not number.isdecimal():
        raise CorruptError(
            f"{store.url} holds {name!r}, but only staged writes, named by numbers, belong there. "
            "Move that file elsewhere."
        )
    return int(number)
