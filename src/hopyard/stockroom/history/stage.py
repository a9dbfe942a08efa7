"""The stage: writes of a working tree that are not committed yet, each durable before it returns.

``stage/<worktree>/<base>/<number>`` is one operation upon the commit ``base`` (``none``: there is no commit yet). An
operation is bytes here, and never empty: an empty entry says that what comes before it was cleared, so that a clearing
that was killed half-way is one that was done.

A stage belongs to its base: where the working tree is at another commit (git checked it out, or a new worktree got the
id of an old one) its operations are not applied, but named by ``orphans``.
"""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterator

from hopyard.errors import CorruptError, NotFoundError
from hopyard.stockroom.history.locks import locked
from hopyard.storage import Store

_NONE = "none"


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
        self._last = 0  # written by this object, or seen

    def __repr__(self) -> str:
        return f"Stage({self._store!r}, {self.worktree!r}, {self.base!r})"

    def operations(self) -> Iterator[bytes]:
        """All operations since the last ``clear``, in the order of their writing."""
        yield from self.entries().values()

    def entries(self) -> dict[int, bytes]:
        """The same with their numbers."""
        try:
            found = {number: self._store.get(self._object(number)) for number in self._numbers()}
        except NotFoundError:  # cleared since the numbers were listed
            return self.entries()
        cleared = max((number for number, data in found.items() if not data), default=0)
        return {number: data for number, data in found.items() if number > cleared}

    def append(self, operation: bytes) -> int:
        """Add an operation; it is durable when this returns, with its number. Others may append at the same time.

        Raises:
            StorageFullError, NotWritableError, StorageError: nothing was added.
        """
        with locked(self._store, self._lock, fcntl.LOCK_EX):
            self._append(operation)
            return self._last

    def clear(self, numbers: Collection[int] | None = None) -> None:
        """Remove all operations: at once, even if it is killed meanwhile.

        Args:
            numbers: remove only these: if there are others too, one by one. Those that are not there do not matter.
        """
        with locked(self._store, self._lock, fcntl.LOCK_EX):
            known = numbers
            numbers = self._numbers()
            if known is not None and not self.entries().keys() <= set(known):
                for number in sorted(set(known).intersection(numbers)):
                    self._store.delete(self._object(number))
            elif numbers:
                self._append(b"")
                for number in [*numbers, self._last]:
                    self._store.delete(self._object(number))

    def orphans(self) -> list[Stage]:
        """Stages of this working tree upon other commits, with operations: nobody sees them unless they are named."""
        return [stage for stage in stages(self._store, self.worktree) if stage.base != self.base]

    def _append(self, data: bytes) -> None:
        # If the last one that this object knows is gone, the stage was cleared and may have begun anew.
        if not self._last or not self._store.exists(self._object(self._last)):
            self._last = max(self._numbers(), default=0)
        while not self._store.put_new(self._object(self._last + 1), data):
            self._last += 1
        self._last += 1

    def _numbers(self) -> list[int]:
        return sorted(_number(self._store, entry.name) for entry in self._store.list(self._prefix))

    def _object(self, number: int) -> str:
        return f"{self._prefix}/{number:012d}"


def stages(store: Store, worktree: str | None = None) -> list[Stage]:
    """All stages with operations: of one working tree, or of all, also those that are gone."""
    found: dict[tuple[str, str], None] = {}
    for entry in store.list(f"stage/{worktree}" if worktree else "stage"):
        parts = entry.name.split("/")
        if len(parts) == 4:
            found[parts[1], parts[2]] = None
    every = [Stage(store, tree, None if base == _NONE else base) for tree, base in found]
    return [stage for stage in every if any(True for _ in stage.operations())]


def _number(store: Store, name: str) -> int:
    number = name.rpartition("/")[2]
    if len(number) != 12 or not number.isdecimal():
        raise CorruptError(
            f"{store.url} holds {name!r}, but only staged writes, named by numbers, belong there. "
            "Move that file elsewhere."
        )
    return int(number)
