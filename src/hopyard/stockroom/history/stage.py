"""The stage: the log of a working tree's writes that are not committed yet, each durable before it returns.

``stage/<worktree>/<base>/<number>`` is one entry upon the commit ``base`` (``none``: there is no commit yet): as a rule
one operation, bytes here. The order of the numbers is the order of the writes, and no number is given twice.

Entries are a chain: each begins with a seal, the digest of where it lies (working tree, base and number), of the seal
of the entry before it and of its operations. So an entry that was changed, copied, moved, or deleted from the middle is
found out. One that follows no other begins the log: what has lower numbers was cleared.

The lock's file says which number was given last, and which entry upon which base is the last one, so that a deletion at
the end is found out, too, and so that looking whether others wrote anything costs one small read. Only a clearing waits
until it is on the disk: if the machine goes down it may be of a moment before, and is believed only where it says that
more should be there. Whoever writes holds the lock, and first looks what others have written.

A stage belongs to its base: where the working tree is at another commit (git checked it out, or a new worktree got the
id of an old one) its operations are not applied, but named by ``orphans``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from copy import copy
from typing import NamedTuple
from zlib import crc32

from hopyard.errors import CorruptError, NotFoundError, StorageError, UsageError
from hopyard.objects.digests import digest
from hopyard.stockroom.history.locks import locked
from hopyard.storage import Store, files
from hopyard.storage.oserrors import write_errors
from hopyard.storage.small import get_whole

_NONE = "none"
_SEAL = 32  # bytes of a seal
_LENGTH = 8  # bytes of an operation's length
_FIRST = bytes(_SEAL)  # instead of the seal of the entry before: there is none
_GIVEN = 20  # digits of the last number that was given

_held = threading.local()  # names of the stages that this thread holds


class StagePosition(NamedTuple):
    """A place in a log: the number of an entry and its seal, which no other entry has."""

    number: int
    seal: bytes


class StageEntry(NamedTuple):
    """An entry of the log.

    Attributes:
        position: where it is.
        before: the seal of the entry before it.
        operations: writes, in their order.
    """

    position: StagePosition
    before: bytes
    operations: tuple[bytes, ...]


class _Note(NamedTuple):
    """The content of the lock's file: the last number given, and the last entry (None: there is none) upon a base."""

    given: int
    base: str
    last: StagePosition | None

    def encode(self) -> bytes:
        number, seal = self.last or StagePosition(0, _FIRST)
        text = b"%0*d %-64s %012d %s" % (_GIVEN, self.given, self.base.encode(), number, seal.hex().encode())
        return b"%s %08x\n" % (text, crc32(text))

    @classmethod
    def decode(cls, data: bytes) -> _Note | None:
        """None: the machine went down while it was written, or nothing is written yet."""
        text = data[:-10]
        try:
            if data != b"%s %08x\n" % (text, crc32(text)):
                return None
            given, base, number, seal = text.split()
            last = StagePosition(int(number), bytes.fromhex(seal.decode()))
            return cls(int(given), base.decode(), last if last.number else None)
        except ValueError:
            return None


class Stage:
    """The stage of one working tree at one commit. Threads and processes may share it; a copy may be pickled.

    Args:
        store: the repository's root.
        worktree: id of the working tree, a plain name.
        base: digest of the commit that it is at, or None.
    """

    def __init__(self, store: Store, worktree: str, base: str | None) -> None:
        self.worktree = worktree
        self._store = store
        self._lock = f"stage/{worktree}.lock"
        path = store.path(self._lock)
        self._noted_in = None if path is None else str(path)  # looked at before each read of a working tree
        self._stand_upon(base)

    def _stand_upon(self, base: str | None) -> None:
        self.base = base
        self._name = base or _NONE
        self.prefix: str = f"stage/{self.worktree}/{self._name}"
        self._is_listed = False  # since this process looks: from then on what the lock's file says is right

    def upon(self, base: str | None) -> Stage:
        """The stage of the same working tree at another commit."""
        stage = copy(self)
        stage._stand_upon(base)
        return stage

    def __repr__(self) -> str:
        return f"Stage({self._store!r}, {self.worktree!r}, {self.base!r})"

    def operations(self) -> list[bytes]:
        """All operations since the last clearing, in the order of their writing.

        Raises:
            CorruptError: one of them is damaged or missing.
        """
        return [operation for entry in self.entries() for operation in entry.operations]

    def entries(self) -> list[StageEntry]:
        """All entries since the last clearing, in the order of their writing; raises as :meth:`operations`."""
        while True:
            state = self.state()
            try:
                found = self._chain()
                self._check_last(found, state)
                return found
            except NotFoundError:  # cleared since the numbers were listed
                continue
            except CorruptError:
                if self.state() == state:
                    raise

    def since(self, position: StagePosition | None) -> list[StageEntry] | None:
        """The entries behind one that is known (None: all); None: that one is gone, and so are those before it."""
        last = self.noted()
        if last is not None and position is not None:
            if last == position:
                return []
            found = self._between(position, last)
            if found is not None:
                return found
        entries = self.entries()
        if position is None:
            return entries
        at = next((at for at, entry in enumerate(entries) if entry.position == position), None)
        return None if at is None else entries[at + 1 :]

    def state(self) -> bytes:
        """Bytes that differ from those of before if anything was staged or cleared, or the working tree has moved,
        since then. Where the store has no files on this machine they do not."""
        if self._noted_in is None:
            return b""
        try:
            file = os.open(self._noted_in, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.read(file, 1000)
        except OSError:  # it is a folder, which opening for writing and `verify` say
            return b""
        finally:
            os.close(file)

    @contextlib.contextmanager
    def held(self) -> Iterator[HeldStage]:
        """The log, which meanwhile nobody else of the working tree writes or clears, upon whatever base.

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
                yield HeldStage(self)
            finally:
                held.discard(name)

    def append(self, operation: bytes) -> StagePosition:
        """Add an operation; it is durable when this returns, with its place. Others may append at the same time.

        Raises:
            StorageFullError, NotWritableError, StorageError: nothing was added.
        """
        with self.held() as log:
            return log.append(operation)

    def clear(self) -> None:
        """Remove all operations: at once, even if it is killed meanwhile. None of them is read: they may be damaged."""
        with self.held() as log:
            log.clear()

    def orphans(self) -> list[Stage]:
        """Stages of this working tree upon other commits, with operations: nobody sees them unless they are named."""
        return [
            stage for stage in stages(self._store, self.worktree, besides=self.base) if stage.operations()
        ]

    def read(self, number: int) -> StageEntry:
        """One entry; whether it follows the one before it is not looked at.

        Raises:
            CorruptError: it is damaged. NotFoundError: it is not there.
        """
        name = self._object(number)
        data = get_whole(self._store, name)
        where = f"{self._store.url}/{name}"
        if not data:
            raise self._damage(f"{where} is empty.")
        seal, before, content = data[:_SEAL], data[_SEAL : 2 * _SEAL], data[2 * _SEAL :]
        if seal != self._seal(number, before, content):
            raise self._damage(
                f"{where} is damaged, or a copy of another one: its content has not the digest that it begins with."
            )
        return StageEntry(StagePosition(number, seal), before, tuple(_split(content)))

    def numbers(self) -> list[int]:
        """The numbers of all entries that are there, also of such as were cleared and are not deleted yet."""
        return sorted(_number(self._store, entry.name) for entry in self._store.list(self.prefix))

    def _chain(self) -> list[StageEntry]:
        found: list[StageEntry] = []
        for number in reversed(self.numbers()):
            entry = self.read(number)
            if found and found[-1].before != entry.position.seal:
                continue  # its write failed, and it could not be removed then
            found.append(entry)
            if entry.before == _FIRST:
                break
        if found and found[-1].before != _FIRST:
            raise self._damage(
                f"the staged write before {self._store.url}/{self._object(found[-1].position.number)} is missing, or "
                "another one is in its place."
            )
        return found[::-1]

    def _check_last(self, found: Sequence[StageEntry], state: bytes) -> None:
        """See that the last entry that was noted is there. What was noted may be older than what is there."""
        note = _Note.decode(state)
        if note is None or note.base != self._name or note.last is None:
            return
        if found and found[0].position.number > note.last.number:
            return  # all before were cleared, by one who was killed before it noted that
        if note.last not in (entry.position for entry in reversed(found)):
            raise self._damage(
                f"the staged write {self._store.url}/{self._object(note.last.number)} is missing, or another one is "
                "in its place."
            )

    def _between(self, position: StagePosition, last: StagePosition) -> list[StageEntry] | None:
        """The entries behind one up to the last; None: they are not a chain."""
        found: list[StageEntry] = []
        for number in range(position.number + 1, last.number + 1):
            try:
                entry = self.read(number)
            except NotFoundError:  # a number whose write failed
                continue
            except CorruptError:
                return None
            if entry.before != (found[-1].position if found else position).seal:
                return None
            found.append(entry)
        return found if found and found[-1].position == last else None

    def noted(self) -> StagePosition | None:
        """The last entry as the lock's file has it; None: it has none, or one was being written when it was killed."""
        note = _Note.decode(self.state())
        if note is None or note.base != self._name or note.last is None or note.given != note.last.number:
            return None
        return note.last

    def _seal(self, number: int, before: bytes, content: bytes) -> bytes:
        place = f"{self.worktree}/{self._name}/{number:012d}\n".encode()
        return bytes.fromhex(digest(b"".join([place, before, content]), "hopyard.staged"))

    def _damage(self, what: str) -> CorruptError:
        return CorruptError(
            f"{what} It is a staged write, which nothing else has. Restore {self._store.url}/{self.prefix} from a "
            "copy; or go on with what was staged before it: hopyard stock verify --repair; or discard all that is "
            "staged: hopyard stock reset."
        )

    def _object(self, number: int) -> str:
        return f"{self.prefix}/{number:012d}"


class HeldStage:
    """A stage as the holder of its working tree's lock sees it; see :meth:`Stage.held`."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._store = stage._store
        self._path = stage._noted_in

    def upon(self, base: str | None) -> HeldStage:
        """The log of the same working tree upon another commit."""
        return self if base == self.stage.base else HeldStage(self.stage.upon(base))

    def last(self) -> StagePosition | None:
        """The last entry; None: nothing is staged.

        Raises:
            CorruptError: entries are damaged or missing.
        """
        noted = self.stage.noted()
        if (
            noted is not None
            and self.stage._is_listed
            and self._store.exists(self.stage._object(noted.number))
        ):
            return noted
        # What is noted may be of a moment before the machine went down.
        entries = self.stage.entries()
        self.stage._is_listed = True
        return entries[-1].position if entries else None

    def append(self, *operations: bytes) -> StagePosition:
        """As :meth:`Stage.append`; several are one entry: all of them are there, or none."""
        last = self.last()
        given = max(self._given(), 0 if last is None else last.number)
        position = self._put(given, _FIRST if last is None else last.seal, operations)
        self._write(position.number, position)
        return position

    def replace(self, operations: Sequence[bytes]) -> None:
        """Have these instead of all that is there, at once."""
        there = self.stage.numbers()
        position = self._put(self._given(there), _FIRST, operations)
        self._write(self._given(), position, is_synced=True)
        self._delete(there)

    def keep(self, last: StagePosition | None) -> None:
        """Let this entry, which is there, be the last one from now on; None: none is."""
        self._delete([each for each in self.stage.numbers()[::-1] if last is None or each > last.number])
        self._write(self._given(), last, is_synced=True)

    def sweep(self) -> None:
        """Delete files that are no entries: cleared ones that are left of a kill, and such as were never noted."""
        entries = {entry.position.number for entry in self.stage.entries()}
        self._delete([number for number in self.stage.numbers() if number not in entries])

    def intact(self) -> StagePosition | None:
        """The last entry before damage, of those since the last clearing; None: there is none."""
        found: StageEntry | None = None
        is_damaged = False
        for number in self.stage.numbers():
            try:
                entry = self.stage.read(number)
            except CorruptError:
                is_damaged = True
                continue
            if entry.before == _FIRST:
                found, is_damaged = entry, False
            elif found is None or entry.before != found.position.seal:
                is_damaged = True
            elif not is_damaged:
                found = entry
        return None if found is None else found.position

    def clear(self) -> None:
        """As :meth:`Stage.clear`."""
        there = self.stage.numbers()
        mark = [self._put(self._given(there), _FIRST, ()).number] if there else []
        # From here on all before are cleared; the mark goes when they cannot come back.
        self._write(self._given(), None, is_synced=True)
        self._delete(there)
        self._delete(mark)

    def drop(self) -> None:
        """Remove all, without taking any space, so that a full disk does not keep it from being done. The working tree
        is upon another commit by now; whoever calls this has noted that it is to be done, and does it again if it was
        killed meanwhile."""
        # The last one first: what is left is a log at any time.
        self._delete(self.stage.numbers()[::-1])

    def prepare(self, operations: Sequence[bytes]) -> StagePosition:
        """Have just these upon a commit that the working tree is not at yet; see :meth:`arrive`."""
        there = self.stage.numbers()
        position = self._put(self._given(there), _FIRST, operations)
        self._delete(there)
        return position

    def arrive(self, last: StagePosition | None = None) -> None:
        """Note, durably, that the working tree is upon this commit now, and which entry is the last one here; None:
        that is looked for."""
        if last is None:
            with contextlib.suppress(CorruptError):  # whoever reads it says so
                last = self.last()
        # Where nothing was staged before, and nothing is, what is noted upon another commit is not believed anyway.
        note = _Note.decode(self.stage.state())
        self._write(self._given(), last, is_synced=note is None or note.last is not None or last is not None)

    def _given(self, there: Sequence[int] = ()) -> int:
        """The last number that was given, here or upon another commit."""
        given = 0
        with contextlib.suppress(ValueError):
            given = int(self.stage.state()[:_GIVEN])
        return max(given, *there[-1:], 0)

    def _put(self, number: int, before: bytes, operations: Sequence[bytes]) -> StagePosition:
        content = b"".join(
            part
            for operation in operations
            for part in (len(operation).to_bytes(_LENGTH, "little"), operation)
        )
        while True:
            number += 1
            seal = self.stage._seal(number, before, content)
            self._write(number)
            try:
                if self._store.put_new(self.stage._object(number), b"".join([seal, before, content])):
                    return StagePosition(number, seal)
            except BaseException:
                # It may be there all the same, if what failed came behind it: then it would come back later.
                with contextlib.suppress(StorageError):
                    self._store.delete(self.stage._object(number))
                raise

    def _write(self, given: int, last: StagePosition | str | None = "", is_synced: bool = False) -> None:
        """Write the lock's file: the last number that was given; and the last entry, if one is passed."""
        if self._path is None:
            return
        note = _Note.decode(self.stage.state())
        if not isinstance(last, str):
            data = _Note(given, self.stage._name, last).encode()
        else:
            data = _Note(given, note.base if note else "-", note.last if note else None).encode()
        with write_errors(self._path):
            file = files.open_file(self._path)
            try:
                files.write_at(file, data, 0)
                if is_synced:
                    files.sync_file(file)
            finally:
                os.close(file)

    def _delete(self, numbers: Sequence[int]) -> None:
        """Delete entries; that lasts when this returns. Until then any of them may come back after a power cut."""
        for number in numbers:
            self._store.delete(self.stage._object(number))
        folder = self._store.path(self.stage.prefix)
        if folder is not None:
            with contextlib.suppress(OSError):  # not empty, or not there
                files.remove_directory(folder)
        self._store.sync_deleted(map(self.stage._object, numbers))


def stages(store: Store, worktree: str | None = None, besides: str | None = "") -> list[Stage]:
    """All stages that have entries: of one working tree, or of all, also those that are gone.

    Args:
        besides: leave out those upon this commit.
    """
    found: dict[tuple[str, str], None] = {}
    trees = dict.fromkeys([worktree] if worktree else [])
    for entry in store.list(f"stage/{worktree}" if worktree else "stage"):
        parts = entry.name.split("/")
        if len(parts) == 4:
            found[parts[1], parts[2]] = None
        elif parts[-1].endswith(".lock"):
            trees[parts[-1].removesuffix(".lock")] = None
    for tree in trees:  # of one that should have entries all may be missing
        note = _Note.decode(Stage(store, tree, None).state())
        if note is not None and note.last is not None:
            found[tree, note.base] = None
    every = [Stage(store, tree, None if base == _NONE else base) for tree, base in found]
    return [stage for stage in every if stage.base != besides]


def read_entry(store: Store, name: str) -> StageEntry:
    """The entry that is called so in the store.

    Raises:
        CorruptError: it is damaged, or there is no entry of such a name. NotFoundError: it is not there.
    """
    _, tree, base, _ = name.split("/")
    return Stage(store, tree, None if base == _NONE else base).read(_number(store, name))


def _split(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        start = at + _LENGTH
        at = start + int.from_bytes(content[at:start], "little")
        yield content[start:at]


def _number(store: Store, name: str) -> int:
    number = name.rpartition("/")[2]
    if len(number) != 12 or not number.isdecimal():
        raise CorruptError(
            f"{store.url} holds {name!r}, but only staged writes, named by numbers, belong there. "
            "Move that file elsewhere."
        )
    return int(number)
