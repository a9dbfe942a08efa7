"""Samples that were purged here, and that commits have under their keys again.

Whoever changed a sample's neighbour before he heard of the purge has written it into another fragment, and brings it
back with his commits. Where the fragment that was purged is gone, nothing can prove that it is the same sample:
somebody may have added another one, or this one with consent. So it is told, with the call that purges it, and stays.

Only columns with purged samples are looked at, and of their maps only the pages in which a purged key can be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hopyard.errors import CorruptError, FormatError, NotFoundError
from hopyard.stockroom.data.cutting import FragmentEntry
from hopyard.stockroom.data.fragments import Fragment
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.maps import Key, SortedMap, decode, encode
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.packfiles.tombstones import Purged, Tombstone, key_of
from hopyard.stockroom.records import ColumnRecord, parse
from hopyard.stockroom.remotes.closure import read_pages
from hopyard.wording import are, counted

LOOKED = 64 << 20
"""Bytes of fragments that are read from a remote to see whether a key is in them."""
_SHOWN = 10


@dataclass(frozen=True)
class Returned:
    """Samples of one column that were purged here, and are in commits again.

    Attributes:
        column: their column. keys: all of theirs.
        time, by, why: of the purge.
    """

    column: str
    keys: list[Key]
    time: str
    by: str
    why: str

    def __str__(self) -> str:
        one = len(self.keys) == 1
        shown = ", ".join(map(repr, self.keys[:_SHOWN]))
        more = f" and {len(self.keys) - _SHOWN:,} more" if len(self.keys) > _SHOWN else ""
        return (
            f"{counted(len(self.keys), 'sample')} of {self.column!r} that {self.by or 'somebody'} purged on "
            f"{self.time} ({self.why}) {are(len(self.keys))} in commits again: {shown}{more}. Whoever wrote "
            f"{'it' if one else 'them'} may have had what was purged, or have added "
            f"{'another one' if one else 'others'} on purpose; nothing here can tell which. If "
            f"{'it' if one else 'they'} must go, purge again: "
            f"stock.purge({self.column!r}, [{shown}{', ...' if more else ''}], why=...), or hopyard stock purge."
        )


@dataclass
class Returning:
    """A look for purged samples that are there again.

    Args:
        tombstones: those that are here, by object.
        objects: that are here. there: of a remote, in which fragments are looked up that are not here.
        keys: look for these only, by column; None: for all that tombstones name.

    Attributes:
        left: fragments in which one of the keys may be, and which were not looked at.
    """

    tombstones: Mapping[str, Collection[Tombstone]]
    objects: Objects
    there: Objects | None = None
    keys: Mapping[str, Collection[Key]] | None = None
    left: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._purged: dict[str, dict[bytes, Purged]] = {}
        self._gone: dict[str, set[bytes]] = {}
        for several in self.tombstones.values():
            for tombstone in several:
                for one in tombstone.purged:
                    key = key_of(one.key)
                    code = encode(key)
                    self._gone.setdefault(tombstone.object, set()).add(code)
                    if self.keys is None or key in self.keys.get(tombstone.column, ()):
                        self._purged.setdefault(tombstone.column, {})[code] = one
        self._codes = {column: sorted(codes) for column, codes in self._purged.items()}
        self._has: dict[tuple[str, bytes], bool] = {}
        self._room = LOOKED

    @property
    def columns(self) -> Collection[str]:
        """Columns that have purged samples."""
        return self._codes.keys()

    def versions(self, commits: Iterable[str]) -> dict[str, set[str]]:
        """By column, the pages of what it is in these commits."""
        found: dict[str, set[str]] = {}
        for digest in commits if self._codes else ():
            root = SortedMap(self.objects, read_commit(self.objects, digest).root)
            for column in self.columns:
                value = root.get(encode(("data", column)))
                record = None if value is None else parse(value, f"data/{column}")
                if isinstance(record, ColumnRecord) and record.pages is not None:
                    found.setdefault(column, set()).add(record.pages)
        return found

    def found(self, versions: Mapping[str, Iterable[str]]) -> dict[str, set[bytes]]:
        """By column, the purged keys under which versions of it have samples, encoded."""
        found: dict[str, set[bytes]] = {}
        for column, several in versions.items():
            seen: set[str] = set()
            for pages in sorted(several) if column in self._codes else ():
                with suppress(CorruptError, NotFoundError):  # of which whoever reads it, and verify, tell
                    for entry, codes in self._entries(pages, self._codes[column], seen):
                        found.setdefault(column, set()).update(c for c in codes if self._is_there(entry, c))
        return {column: codes for column, codes in found.items() if codes}

    def described(self, found: Mapping[str, Iterable[bytes]]) -> list[Returned]:
        """The same, by purge."""
        purges: dict[tuple[str, str, str, str], list[Key]] = {}
        for column, codes in sorted(found.items()):
            for code in sorted(codes):
                one = self._purged[column][code]
                purges.setdefault((column, one.time, one.by, one.why), []).append(decode(code))
        return [Returned(column, keys, time, by, why) for (column, time, by, why), keys in purges.items()]

    def _entries(
        self, root: str, codes: list[bytes], seen: set[str]
    ) -> Iterator[tuple[FragmentEntry, list[bytes]]]:
        """The fragments in whose bounds some of the keys are, with those keys; without pages that were seen before."""
        waiting = {root: codes}
        while waiting:
            pages = read_pages(self.objects, [digest for digest in waiting if digest not in seen])
            below: dict[str, list[bytes]] = {}
            for digest, page in pages:
                seen.add(digest)
                wanted = waiting[digest]
                places: dict[int, list[bytes]] = {}
                for code in wanted:
                    places.setdefault(bisect_right(page.keys, code) - 1, []).append(code)
                places.pop(-1, None)
                for at, inside in places.items():
                    if page.level:
                        below[page.values[at].digest] = inside
                        continue
                    entry = FragmentEntry.of(page.keys[at], page.values[at])
                    inside = inside[: bisect_right(inside, entry.last)]
                    if inside:
                        yield entry, inside
            waiting = below

    def _is_there(self, entry: FragmentEntry, code: bytes) -> bool:
        if code in self._gone.get(entry.digest, ()):
            return False
        if (entry.digest, code) not in self._has:
            self._look(entry)
        return self._has.get((entry.digest, code), _must_have(entry, code))

    def _look(self, entry: FragmentEntry) -> None:
        """Learn which purged keys a fragment has."""
        data = None
        with suppress(CorruptError, FormatError, NotFoundError):
            if not self.objects.missing([entry.digest]):
                data = self.objects.read(entry.digest)
            elif self.there is not None and entry.nbytes <= self._room:
                self._room -= entry.nbytes
                data = self.there.read(entry.digest)
        if data is None:
            self.left.add(entry.digest)
            return
        fragment = Fragment(data)
        for codes in self._codes.values():
            for code in codes[bisect_left(codes, entry.first) : bisect_right(codes, entry.last)]:
                at = fragment.position(code)
                self._has[entry.digest, code] = at is not None and at not in fragment.purged


def _must_have(entry: FragmentEntry, code: bytes) -> bool:
    """Whether a column's map alone says that a fragment has a key within its bounds."""
    first, last = decode(entry.first), decode(entry.last)
    is_whole = isinstance(first, int) and isinstance(last, int) and last - first + 1 == entry.count
    return is_whole or code in (entry.first, entry.last)
