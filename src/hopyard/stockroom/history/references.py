"""References: what branches, tags and the like name, each as a log of numbered entries.

``refs/<kind>/<name>/<number>`` is ``{"by", "check", "commit", "time"}``, where ``commit`` null deletes, and ``check``
is the digest of the rest (entries of versions before 0.2 have none). Whoever moves a
reference takes the number after the last one it has seen, by ``put_new``: if another was faster, it is told so. Numbers
have no gaps and are never used again, so the last one is found by asking for few of them, not by listing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from hopyard.errors import CorruptError, UsageError
from hopyard.objects.digests import digest
from hopyard.stockroom.quoting import quoted, unquoted
from hopyard.storage import Store
from hopyard.storage.names import MAX_SEGMENT

KINDS = {"heads": 1, "tags": 1, "remotes": 2, "worktrees": 1}
"""What references there are, and how many segments their names have."""

_MOST = 1 << 20  # bytes of an entry
_NUMBER = re.compile(r"[0-9]{12}")
_COMMIT = re.compile(r"[0-9a-f]{64}")
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
        number = self._last(prefix)
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
        entry = Move(number, commit, by, datetime.now(UTC).isoformat(timespec="microseconds"))
        if not self._store.put_new(_object(prefix, number), _encode(entry, check=_check(entry))):
            return None
        self._seen[prefix] = number
        return Tip(number, commit)

    def set(self, name: str, commit: str | None, by: str) -> Tip:
        """Let ``name`` be ``commit``, whatever it is now."""
        while True:
            moved = self.move(name, self.tip(name), commit, by)
            if moved is not None:
                return moved

    def names(self, kind: str) -> dict[str, str]:
        """All references of a kind that there are, by name without the kind, in order, and their commits."""
        last: dict[str, int] = {}
        for entry in self._store.list(f"refs/{kind}"):
            prefix, _, text = entry.name.rpartition("/")
            if not _NUMBER.fullmatch(text) or prefix.count("/") != 1 + KINDS[kind]:
                raise CorruptError(
                    f"{self._store.url} holds {entry.name!r}, but only entries of references belong below refs/. "
                    "Move that file elsewhere."
                )
            if entry.size > _MOST:
                raise CorruptError(
                    f"{self._store.url}/{entry.name} has {entry.size} bytes, and entries of references have at most "
                    f"{_MOST}. Restore it from a copy of the repository."
                )
            last[prefix] = max(int(text), last.get(prefix, 0))
        found = {}
        for prefix, seen in last.items():
            # What was listed last was the last one at some moment of the listing.
            self._seen[prefix] = number = max(seen, self._seen.get(prefix, 0))
            commit = self._read(prefix, number).commit
            if commit is not None:
                found["/".join(map(_codes(kind)[1], prefix.split("/")[2:]))] = commit
        return dict(sorted(found.items()))

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

    def _read(self, prefix: str, number: int) -> Move:
        known = self._entries.get(prefix)
        if known is None or known.number != number:
            known = self._entries[prefix] = read_entry(self._store, _object(prefix, number))
        return known


def read_entry(store: Store, name: str) -> Move:
    """One entry, by the name of the store's object.

    Raises:
        CorruptError: it is none, or not what was written.
    """
    try:
        value = json.loads(store.get(name))
        move = Move(int(name.rpartition("/")[2]), value["commit"], value["by"], value["time"])
        if move.commit is not None and not _COMMIT.fullmatch(move.commit):
            raise ValueError(f"its commit is {move.commit!r}")
        if value.get("check", _check(move)) != _check(move):
            raise ValueError("it is not what was written")
        return move
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(
            f"{store.url}/{name} is no entry of a reference ({type(error).__name__}: {error}). Restore it "
            "from a copy of the repository; `hopyard stock verify` lists all that is damaged."
        ) from error


def _check(move: Move) -> str:
    """The digest of an entry."""
    return digest(_encode(move), "hopyard.reference")


def _encode(move: Move, **check: str) -> bytes:
    value = {"by": move.by, "commit": move.commit, "time": move.time, **check}
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


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
