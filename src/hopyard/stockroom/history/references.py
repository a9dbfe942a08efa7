"""References: what branches, tags and the like name, each as a log of numbered entries.

``refs/<kind>/<name>/<number>`` is ``{"by", "check", "commit", "time"}``, where ``commit`` null deletes, and ``check``
is the digest of the rest. Whoever moves a reference takes the number after the last one it has seen, by ``put_new``:
if another was faster, it is told so. Numbers have no gaps and are never used again, so the last one is found by asking
for few of them, not by listing.

An entry that is deleted by accident would let its reference go back without a word. So where the store has files, each
entry is also appended to ``copies/<kind>/<name>``, one line each, not synced: a log that is shorter than its copies
is damaged, and is repaired from them. Nothing is ever taken for true because a copy says so, and copies may be
missing: whoever is killed, or writes to a bucket, leaves none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hopyard.errors import CorruptError, NotFoundError, StorageError, UsageError
from hopyard.objects.digests import digest
from hopyard.stockroom.records import parsing
from hopyard.stockroom.records.quoting import quoted, unquoted
from hopyard.storage import Store, files
from hopyard.storage.base import Entry
from hopyard.storage.names import MAX_SEGMENT
from hopyard.storage.small import get_small
from hopyard.storage.temporary import temporary_name

KINDS = {"heads": 1, "tags": 1, "remotes": 2, "worktrees": 1}
"""Kinds of references, and how many segments their names have."""

_MOST = 1 << 20  # bytes of an entry
_MOST_LACKING = 1000  # entries in a row that may be missing, and are put back
_NUMBER = re.compile(r"[0-9]{12}")
_COMMIT = re.compile(r"[0-9a-f]{64}")
_MOST_COPIED = 1 << 26  # bytes of copies that are looked at for a repair
_END = 4096  # bytes of copies in which the last one is looked for
# As git-check-ref-format(1), so that each branch here can be one of git, too. None of these can begin a suffix of a
# revision either.
_REFUSED = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|^-|^/|//|/$|\.$|(?:^|/)\.|\.lock(?:/|$)|^@$|^HEAD$|^[0-9a-fA-F]{64}$"
)


@dataclass(frozen=True)
class Tip:
    """The last entry of a reference's log.

    Attributes:
        number: 0: there has never been one.
        commit: a digest, or None: there is no such reference now.
    """

    number: int
    commit: str | None


@dataclass(frozen=True)
class Move:
    """One entry of a reference's log.

    Attributes:
        number: from 1 on.
        commit: what it named from then on; None: it was deleted.
        by: who moved it.
        time: ISO 8601, UTC, by the clock of who moved it.
    """

    number: int
    commit: str | None
    by: str
    time: str


class References:
    """The references of a repository. Threads and processes may share it; a copy may be pickled.

    A name is ``heads/<branch>``, ``tags/<tag>``, ``remotes/<remote>/<branch>`` or ``worktrees/<id>``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, int] = {}  # numbers stay, so the search goes on from here
        self._entries: dict[str, Move] = {}  # by prefix, the one that was read last

    def __reduce__(self) -> tuple[type[References], tuple[Store]]:
        return References, (self._store,)

    def tip(self, name: str) -> Tip:
        """The last entry, at some moment of this call."""
        prefix = _prefix(name)
        least = _last_copied(self._store, prefix)  # asked first: an entry is there before its copy
        number = self._last(prefix)
        if least > number:
            raise _cut(self._store, prefix, number, least)
        return Tip(number, self._read(prefix, number).commit if number else None)

    def move(self, name: str, tip: Tip, commit: str | None, by: str) -> Tip | None:
        """Let ``name`` be ``commit``, if its last entry still is ``tip``; None, and no change, if it is not.

        Args:
            commit: None to delete it. It may be made again later: its log goes on.
            by: who does it, for the log.

        Raises:
            UsageError: it is no name for a reference.
        """
        prefix = _prefix(name)
        number = tip.number + 1
        data = entry_of(commit, by)
        try:
            if not self._store.put_new(_object(prefix, number), data):
                return None
        except StorageError:
            # What failed may have come behind it: then it has happened.
            if not self._is(_object(prefix, number), data):
                raise
        _copy(self._store, prefix, number, data)
        self._seen[prefix] = number
        self._entries[prefix] = _decode(number, data)
        return Tip(number, commit)

    def _is(self, name: str, data: bytes) -> bool:
        try:
            return self._store.get(name) == data
        except StorageError:
            return False

    def set(self, name: str, commit: str | None, by: str) -> Tip:
        """Let ``name`` be ``commit``, whatever it is now."""
        while True:
            moved = self.move(name, self.tip(name), commit, by)
            if moved is not None:
                return moved

    def names(self, kind: str) -> dict[str, str]:
        """All references of a kind that there are, by name without the kind, in order, and their commits."""
        last: dict[str, Entry] = {}
        counts: Counter[str] = Counter()
        copied = {prefix: _last_copied(self._store, prefix) for prefix in _copied(self._store, kind)}
        for entry in self._store.list(f"refs/{kind}"):
            prefix = entry.name.rpartition("/")[0]
            if not _is_entry(entry.name):
                raise _foreign(self._store, entry.name)
            last[prefix] = entry  # in order of names, and so of numbers
            counts[prefix] += 1
        numbers = {prefix: _number(entry.name) for prefix, entry in last.items()}
        found = {}
        for prefix, least in copied.items():
            if least > numbers.get(prefix, 0):
                raise _cut(self._store, prefix, numbers.get(prefix, 0), least)
        for prefix, seen in numbers.items():
            if seen != counts[prefix]:
                self._check_gapless(prefix, seen)
            # What was listed last was the last one at some moment of the listing.
            self._seen[prefix] = number = max(seen, self._seen.get(prefix, 0))
            commit = self._read(prefix, number, last[prefix].size if number == seen else None).commit
            if commit is not None:
                found["/".join(map(_codes(kind)[1], prefix.split("/")[2:]))] = commit
        return dict(sorted(found.items()))

    def _check_gapless(self, prefix: str, last: int) -> None:
        """See that a log lacks no entry before its last one, but those that were made while it was listed."""
        found = {_number(entry.name) for entry in self._store.list(prefix) if _is_entry(entry.name)}
        at = 1
        while at <= last:
            if at not in found and not self._store.exists(_object(prefix, at)):
                raise _gap(self._store, prefix, at, min(number for number in found if number > at))
            at += 1

    def log(self, name: str) -> Iterator[Move]:
        """All entries, the last one first."""
        prefix = _prefix(name)
        for number in range(self._last(prefix), 0, -1):
            yield self._read(prefix, number)

    def _last(self, prefix: str) -> int:
        """The number of the last entry: doubling steps to one that is not there, then halving what is between."""
        low = self._seen.get(prefix, 0)
        step = 1
        while self._store.exists(_object(prefix, low + step)):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if self._store.exists(_object(prefix, middle)):
                low = middle
            else:
                high = middle
        self._seen[prefix] = low
        return low

    def _read(self, prefix: str, number: int, size: int | None = None) -> Move:
        known = self._entries.get(prefix)
        if known is None or known.number != number:
            known = self._entries[prefix] = read_entry(self._store, _object(prefix, number), size)
        return known


def entry_of(commit: str | None, by: str) -> bytes:
    """A new entry of any reference."""
    move = Move(0, commit, by, datetime.now(UTC).isoformat(timespec="microseconds"))
    return _encode(move, check=_check(move))


def read_entry(store: Store, name: str, size: int | None = None) -> Move:
    """One entry, by the name of the store's object; ``size``: its bytes, if they are known.

    Raises:
        CorruptError: it is none, or not what was written.
    """
    try:
        return _decode(_number(name), get_small(store, name, _MOST, size))
    except NotFoundError:
        raise CorruptError(f"{store.url}/{name} was there, and is not any more. {_REPAIR}") from None
    except CorruptError as error:
        raise CorruptError(f"{error} {_REPAIR}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(
            f"{store.url}/{name} is no entry of a reference ({type(error).__name__}: {error}). {_REPAIR}"
        ) from error


def _decode(number: int, data: bytes) -> Move:
    value = parsing.json_of(data)
    move = Move(number, value["commit"], parsing.text(value["by"]), parsing.text(value["time"]))
    if move.commit is not None and not _COMMIT.fullmatch(move.commit):
        raise ValueError(f"its commit is {move.commit!r}")
    if value["check"] != _check(move):
        raise ValueError("it is not what was written")
    return move


def _check(move: Move) -> str:
    """The digest of an entry."""
    return digest(_encode(move), "hopyard.reference")


def _encode(move: Move, **check: str) -> bytes:
    value = {"by": move.by, "commit": move.commit, "time": move.time, **check}
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# All logs at once, whatever is wrong with them


@dataclass
class ReferenceLog:
    """One reference's log, as verify sees it.

    Attributes:
        name: as ``heads/main``.
        entries: by number, those that can be read, here or by their copies.
        failures: by the store's name, why an entry cannot be read here. copies: of these the bytes that were written,
            as far as they are known.
        stray: of these the one that lies so far behind all others that they can hardly have been lost, which nothing
            repairs; "": there is none.
    """

    name: str
    entries: dict[int, Move] = field(default_factory=dict)
    failures: dict[str, StorageError] = field(default_factory=dict)
    copies: dict[str, bytes] = field(default_factory=dict)
    stray: str = ""


def logs(store: Store) -> tuple[list[ReferenceLog], dict[str, StorageError]]:
    """All logs, also those of deleted references; and by the store's name what is foreign among them.

    Copies that lack what can be read here, or are damaged, are written anew.
    """
    numbers: dict[str, set[int]] = {prefix: set() for kind in KINDS for prefix in _copied(store, kind)}
    copies = {prefix: _copies(store, prefix) for prefix in numbers}  # before the entries, which come first
    foreign: dict[str, StorageError] = {}
    for entry in store.list("refs"):
        if _is_entry(entry.name):
            prefix, _, number = entry.name.rpartition("/")
            numbers.setdefault(prefix, set()).add(int(number))
        else:
            foreign[entry.name] = _foreign(store, entry.name)
    return [_log(store, prefix, found, copies.get(prefix, {})) for prefix, found in numbers.items()], foreign


def _log(store: Store, prefix: str, numbers: set[int], copies: Mapping[int, bytes]) -> ReferenceLog:
    kind, *parts = prefix.split("/")[1:]
    log = ReferenceLog("/".join([kind, *map(_codes(kind)[1], parts)]))
    read: dict[int, bytes] = {}
    known = sorted({*numbers, *copies})
    for before, number in zip([0, *known], known, strict=False):
        if number - before > _MOST_LACKING:
            # None of these is asked for one by one, and what comes behind them is not believed.
            log.stray = _object(prefix, number)
            log.failures[log.stray] = _gap(store, prefix, before + 1, number)
            known = known[: known.index(number)]
            break
    for number in range(1, 1 + max(known, default=0)):
        name = _object(prefix, number)
        try:
            log.entries[number] = read_entry(store, name)
            read[number] = _encode(log.entries[number], check=_check(log.entries[number]))
        except StorageError as error:
            log.failures[name] = (
                error if number in numbers else CorruptError(f"this entry of {log.name} is missing")
            )
            if number in copies:
                log.copies[name] = copies[number]
                log.entries[number] = _decode(number, copies[number])
    if not log.failures and copies != read:
        _copy_anew(store, prefix, read)
    return log


def _is_entry(name: str) -> bool:
    prefix, _, number = name.rpartition("/")
    _, _, kind = prefix.partition("/")
    kind = kind.partition("/")[0]
    return bool(_NUMBER.fullmatch(number)) and kind in KINDS and prefix.count("/") == 1 + KINDS[kind]


def _number(name: str) -> int:
    """The number of an entry, by the name of the store's object."""
    return int(name.rpartition("/")[2])


def _gap(store: Store, prefix: str, first: int, behind: int) -> CorruptError:
    how = _REPAIR
    if behind - first >= _MOST_LACKING:
        how = (
            f"So many were hardly lost: move {_object(prefix, behind)}, and what comes behind it, out of that folder, "
            "unless you know that they belong there"
        )
    return CorruptError(
        f"{store.url}/{prefix} has no entry {first}, but has {behind}, and numbers have no gaps: where it is now "
        f"cannot be known. {how}"
    )


def _foreign(store: Store, name: str) -> CorruptError:
    return CorruptError(
        f"{store.url} holds {name!r}, but only entries of references belong below refs/. Move that file elsewhere."
    )


_REPAIR = (
    "This puts back what can be put back: hopyard stock verify --repair (at a remote: with --remote NAME), or from a "
    "remote or another clone: hopyard stock verify --repair-from URL_OR_FOLDER"
)


def _cut(store: Store, prefix: str, number: int, least: int) -> CorruptError:
    return CorruptError(
        f"{store.url}/{prefix} ends with entry {number}, but has had {least}: who goes on from there would lose where "
        f"the reference was. {_REPAIR}"
    )


# Copies


def _copy_of(prefix: str) -> str:
    return "copies" + prefix.removeprefix("refs")


def _copied(store: Store, kind: str) -> list[str]:
    """The prefixes of all logs that have copies."""
    if store.path("copies") is None:
        return []
    names = sorted(store.names(f"copies/{kind}"))
    return ["refs" + name.removeprefix("copies") for name in names if name.count("/") == 1 + KINDS[kind]]


def _line(number: int, data: bytes) -> bytes:
    text = b"%d %s" % (number, data)
    return b"%s %s\n" % (digest(text, "hopyard.reference")[:16].encode(), text)


def _copy(store: Store, prefix: str, number: int, data: bytes) -> None:
    """Append an entry to its log's copies. What goes wrong only leaves less to be repaired from."""
    path = store.path(_copy_of(prefix))
    if path is None:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with contextlib.suppress(OSError):
        try:
            fd = files.open_file(path, flags)
        except FileNotFoundError:
            files.make_directory(path.parent)
            fd = files.open_file(path, flags)
        try:
            # A line of its own, also behind one that was cut off.
            files.write_pieces(fd, [b"\n" + _line(number, data)])
        finally:
            os.close(fd)


def _copy_anew(store: Store, prefix: str, entries: Mapping[int, bytes]) -> None:
    path = store.path(_copy_of(prefix))
    if path is None:
        return
    temporary = path.with_name(temporary_name())
    with contextlib.suppress(OSError):
        files.make_directory(path.parent)
        with files.created(temporary) as fd:
            files.write_pieces(fd, [b"\n".join(_line(number, data) for number, data in entries.items())])
        files.rename(temporary, path)


def _copies(store: Store, prefix: str) -> dict[int, bytes]:
    """The entries that are copied, by number."""
    return dict(sorted(filter(None, map(_of_line, _end_of_copies(store, prefix, _MOST_COPIED)))))


def _last_copied(store: Store, prefix: str) -> int:
    """The number of the last entry that was copied; 0: none is known."""
    found = filter(None, map(_of_line, reversed(_end_of_copies(store, prefix, _END))))
    return next(found, (0, b""))[0]


def _end_of_copies(store: Store, prefix: str, most: int) -> list[bytes]:
    """The lines in so many bytes at the end of the file."""
    path = store.path(_copy_of(prefix))
    if path is None:
        return []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - most)
        return os.pread(fd, size - start, start).split(b"\n")
    except OSError:
        return []
    finally:
        os.close(fd)


def _of_line(line: bytes) -> tuple[int, bytes] | None:
    """Number and bytes of an entry; None: the line is empty, or was cut off or damaged."""
    _, _, text = line.partition(b" ")
    number, _, entry = text.partition(b" ")
    if not number.isdigit() or line + b"\n" != _line(int(number), entry):
        return None
    return int(number), entry


def check_name(name: str) -> str:
    """The full name of a reference, if it is one.

    Raises:
        UsageError: it is none, and why.
    """
    kind, _, rest = name.partition("/")
    parts = rest.split("/", KINDS.get(kind, 1) - 1)
    if kind not in KINDS or len(parts) < KINDS[kind]:
        raise UsageError(
            f"{name!r} is no reference: these are heads/BRANCH, tags/TAG, remotes/REMOTE/BRANCH and worktrees/ID."
        )
    for part in parts:
        refused = _REFUSED.search(part) if kind != "worktrees" else None
        if not part or refused:
            what = f"because of {refused[0]!r}" if refused and refused[0] else "because it is empty"
            raise UsageError(
                f"{part!r} cannot be the name of a branch, tag or remote, {what}. As in git, they have no white space, "
                "none of ~ ^ : ? * [ \\ and no '..' or '@{', do not begin with '-' or '.', or end with '/', '.' or "
                "'.lock', and are neither HEAD nor a commit's digest. Use another name."
            )
        size = len(_codes(kind)[0](part))
        if size > MAX_SEGMENT:
            raise UsageError(
                f"the name {part[:30]!r}... has {size} bytes as it is stored, but may have {MAX_SEGMENT} "
                "(each character but letters, digits and _ . - + @ , counts three or more). Use a shorter one."
            )
    return name


def _prefix(name: str) -> str:
    kind, _, rest = check_name(name).partition("/")
    return "/".join(["refs", kind, *map(_codes(kind)[0], rest.split("/", KINDS[kind] - 1))])


def _codes(kind: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """From the parts of a name to segments, and back. Ids of worktrees are segments already."""
    return (str, str) if kind == "worktrees" else (quoted, unquoted)


def _object(prefix: str, number: int) -> str:
    return f"{prefix}/{number:012d}"
