"""Samples by position: from all fragments at once where their packfiles can be mapped, else fragment by fragment.

The values of fragments lie in packfiles at multiples of a sample's size, so mapped packfiles are a few tables of
samples, and a batch is one ``take`` (``data.reading``). Fragments are checked against their digests when they
are first touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hopyard.data.files.stored import StoredFile
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.mapped import Bodies, MappedColumn
from hopyard.data.reading.region import region_of
from hopyard.errors import CorruptError, NotFoundError
from hopyard.stockroom.data.cutting import FragmentEntry
from hopyard.stockroom.data.fragments import Fragment, is_plainly
from hopyard.stockroom.data.rows import Keys, SampleBytes, alike, count_before, find, keys_of, plain
from hopyard.stockroom.maps import Key
from hopyard.stockroom.packfiles import Location, Objects
from hopyard.stockroom.packfiles.mapped import identity_at
from hopyard.stockroom.packfiles.tombstones import Purged
from hopyard.stockroom.records import ColumnRecord

Positions = npt.NDArray[np.int64]

_AT_ONCE = 16  # fragments that are asked for together
_CHECKED_AT_ONCE = 256  # fragments that are mapped and compared with their digests together, on all cores
_KEPT = 16  # fragments that a column keeps at hand
_ROUNDS = 3  # of locating fragments whose packfile was gone when it was to be mapped
_LOOKED_UP = 1 << 25  # samples of which the fragment is kept: looking it up is faster than a search
_NEARLY_ALL = 0.2  # of the fragments are left to be checked


class FragmentReader(Protocol):
    """A source of fragments and pages: ``Objects``, or a ``PackfileWriter`` for those that are not published yet."""

    def read(self, digest: str, /) -> npt.NDArray[np.uint8]: ...

    def read_many(self, digests: Sequence[str], /) -> dict[str, npt.NDArray[np.uint8]]: ...


def buried_in(objects: FragmentReader) -> Mapping[str, str]:
    """Of fragments that samples were purged from what stands in for them, of the repository that this reads."""
    here = _repository(objects)
    return {} if here is None else here.buried()


def purges_of(objects: FragmentReader, column: str) -> list[Purged]:
    """The records of samples that were purged from fragments of a column of this name."""
    here = _repository(objects)
    return [] if here is None else here.purges(column)


def _repository(objects: FragmentReader) -> Objects | None:
    here: object = objects
    while here is not None and not isinstance(here, Objects):
        here = getattr(here, "stored", None)  # a writer's, which others may read through
    return here


def fragment_of(record: ColumnRecord, entry: FragmentEntry, data: npt.NDArray[np.uint8]) -> Fragment:
    """The fragment that these bytes are.

    Raises:
        CorruptError: they are none, or another one than the column says.
    """
    fragment = Fragment(data)
    fragment.check_fits(record, entry.first, entry.last, entry.count, entry.nbytes)
    return fragment


class Fragments:
    """The fragments of a column, in order. Each is compared with what the column says of it.

    Attributes:
        entries: of the column's map.
        starts: (fragments + 1,) int64, the position of each one's first sample, and the number of samples.
    """

    def __init__(
        self, objects: FragmentReader, entries: Sequence[FragmentEntry], record: ColumnRecord
    ) -> None:
        self._objects = objects
        self.entries = entries
        self._record = record
        self.starts: Positions = np.append(0, np.cumsum([entry.count for entry in entries], dtype=np.int64))
        self._firsts = keys_of([entry.first for entry in entries])
        self._lasts = keys_of([entry.last for entry in entries])
        if self.starts[-1] != record.count or any(one.last >= two.first for one, two in pairwise(entries)):
            raise CorruptError(
                f"a column's map names {self.starts[-1]} samples, or not in order, but the column has {record.count}. "
                "Run `hopyard stock verify`, which says of which column; then bring that from a remote."
            )
        self._at = lru_cache(_KEPT)(self._read)

    def _read(self, number: int) -> Fragment:
        entry = self.entries[number]
        return fragment_of(self._record, entry, self._objects.read(entry.digest))

    def __getitem__(self, number: int) -> Fragment:
        return self._at(number)

    def check(self, number: int, data: npt.NDArray[np.uint8]) -> None:
        """See that these bytes are the fragment of a number, as the column says it is.

        Raises:
            CorruptError: they are another one, or none.
        """
        entry = self.entries[number]
        if not is_plainly(data, self._record, entry.first, entry.last, entry.count, entry.nbytes):
            fragment_of(self._record, entry, data)

    def each(self, first: int = 0) -> Iterator[Fragment]:
        """Fragments from a number on, some of them asked for together."""
        for start in range(first, len(self.entries), _AT_ONCE):
            entries = self.entries[start : start + _AT_ONCE]
            found = self._objects.read_many([entry.digest for entry in entries])
            for entry in entries:
                yield fragment_of(self._record, entry, found[entry.digest])

    def codes(self) -> Keys:
        """(samples,) all keys. Fragments of ints that follow one another are not read for it."""
        parts: list[Keys] = [np.empty(0, np.int64)] * len(self.entries)
        rest = list(range(len(self.entries)))
        if self._firsts.dtype != object and self._lasts.dtype != object:
            dense = self._lasts - self._firsts + 1 == np.diff(self.starts)
            for number in np.flatnonzero(dense).tolist():
                parts[number] = np.arange(self._firsts[number], self._lasts[number] + 1)
            rest = np.flatnonzero(~dense).tolist()
        for start in range(0, len(rest), _AT_ONCE):
            some = rest[start : start + _AT_ONCE]
            found = self._objects.read_many([self.entries[number].digest for number in some])
            for number in some:
                entry = self.entries[number]
                parts[number] = fragment_of(self._record, entry, found[entry.digest]).keys
        return np.concatenate(alike(*parts)) if parts else np.empty(0, np.int64)

    def positions(self, wanted: Keys) -> Positions:
        """(n,) int64: the position of each key; -1: there is no such key."""
        places = np.full(len(wanted), -1, np.int64)
        if not self.entries:
            return places
        firsts, keys = alike(self._firsts, wanted)
        numbers = np.searchsorted(firsts, keys, "right") - 1
        if firsts.dtype != object and self._lasts.dtype != object:
            dense = self._lasts - self._firsts + 1 == np.diff(self.starts)
            sure = (numbers >= 0) & dense[numbers]
            at = numbers[sure]
            inside = keys[sure] <= self._lasts[at]
            places[np.flatnonzero(sure)[inside]] = (self.starts[at] + keys[sure] - firsts[at])[inside]
            rest = np.flatnonzero((numbers >= 0) & ~dense[numbers])
        else:
            rest = np.flatnonzero(numbers >= 0)
        for number, where in _by_fragment(numbers[rest]):
            found = find(self[number].keys, wanted[rest[where]])
            places[rest[where]] = np.where(found < 0, -1, found + self.starts[number])
        return places

    def take(self, positions: Positions) -> list[tuple[Positions, SampleBytes]]:
        """The samples at these positions, as parts: where in the result, and the samples there."""
        numbers = np.searchsorted(self.starts, positions, "right") - 1
        grouped = list(_by_fragment(numbers))
        parts = []
        for start in range(0, len(grouped), _AT_ONCE):
            some = grouped[start : start + _AT_ONCE]
            fragments: dict[int, Fragment]
            if len(some) == 1:
                fragments = {some[0][0]: self[some[0][0]]}
            else:
                entries = {number: self.entries[number] for number, _ in some}
                found = self._objects.read_many([entry.digest for entry in entries.values()])
                fragments = {
                    number: fragment_of(self._record, entry, found[entry.digest])
                    for number, entry in entries.items()
                }
            for number, where in some:
                places = positions[where] - self.starts[number]
                fragments[number].check(places)
                rows = fragments[number].rows.take(places)
                parts.append((where, rows))
        return parts

    def keys(self, start: int, stop: int) -> list[Key]:
        """The keys at the positions from ``start`` to before ``stop``."""
        found: list[Key] = []
        while start < stop:
            number = int(np.searchsorted(self.starts, start, "right")) - 1
            upto = min(stop, int(self.starts[number + 1]))
            part = self[number].keys[start - self.starts[number] : upto - self.starts[number]]
            found += plain(part)
            start = upto
        return found

    def count_before(self, key: bytes) -> int:
        """The number of samples under keys before ``key``."""
        if not self.entries:
            return 0
        number = count_before(self._firsts, key) - 1
        return 0 if number < 0 else int(self.starts[number]) + count_before(self[number].keys, key)


def checked(positions: Positions, count: int) -> Positions:
    """Positions from 0 on, for those that count from the end.

    Raises:
        IndexError: one of them is none.
    """
    if (
        not len(positions) or np.maximum.reduce(positions.view(np.uint64)) < count
    ):  # negative ones are large there
        return positions
    low, high = int(positions.min()), int(positions.max())
    if low < -count or high >= count:
        raise IndexError(low if low < -count else high)
    return np.where(positions < 0, positions + count, positions)


def _by_fragment(numbers: Positions) -> Iterator[tuple[int, Positions]]:
    """Each number that occurs, and where."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    ends = np.append(np.flatnonzero(np.diff(ordered)) + 1, len(ordered))
    start = 0
    for end in ends.tolist():
        if end > start:
            yield int(ordered[start]), order[start:end]
        start = end


class _Given(Buffers):
    """Memory that a caller gave for one batch."""

    def __init__(self, out: npt.NDArray[Any]) -> None:
        self._out = out

    def pair(
        self, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...], width: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
        return self._out, np.ndarray((rows, width), np.uint8, self._out)


class Table:
    """All samples of a column of one size, in mapped packfiles.

    Args:
        places: where each fragment is.
        dtype, shape: of a sample.
    """

    def __init__(
        self, objects: Objects, fragments: Fragments, places: Sequence[Location], dtype: np.dtype[Any],
        shape: tuple[int, ...], width: int,
    ) -> None:  # fmt: skip
        paths = {}
        self._identities = {}
        for name in dict.fromkeys(place.packfile for place in places):
            path = objects.path(name)
            if path is None:
                raise NotFoundError(f"{name} is at no path")
            self._identities[name] = identity_at(path)
            paths[name] = StoredFile.open(None, str(path))
        region = region_of(list(paths.values()), [width])
        starts = dict(zip(paths, region.starts, strict=True))
        self._bytes, self._packfiles = region.bytes, starts
        counts = np.diff(fragments.starts)
        # The values are what a fragment ends with.
        bodies = [
            starts[place.packfile] + place.stop - width * count
            for place, count in zip(places, counts.tolist(), strict=True)
        ]
        stored = np.dtype((np.void, width)) if shape else dtype
        self._starts = fragments.starts[:-1]
        body = Bodies(region.bytes, np.array(bodies, np.int64), self._starts, counts)
        self._counts, self._count = counts, int(fragments.starts[-1])
        self._column = MappedColumn(("",), dtype, shape, stored, body, True)
        self._objects, self._fragments, self._places = objects, fragments, places
        self._digests = [entry.digest for entry in fragments.entries]
        self._is_checked = np.zeros(len(places), bool)
        self._are_all_checked = False
        self._buffers = Buffers()

    @cached_property
    def _numbers(self) -> npt.NDArray[Any] | None:
        """(samples,) unsigned ints: the fragment of each; None of so many that a search is better than the memory."""
        if self._count > _LOOKED_UP:
            return None
        count = len(self._starts)
        return np.repeat(np.arange(count, dtype=np.min_scalar_type(count)), self._counts)

    def take(self, positions: Positions, out: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        """(n, *shape): the samples at these positions; None: a fragment is damaged or has moved, so that the table is
        of no more use.

        Raises:
            IndexError: one of them is none.
        """
        positions = checked(positions, self._count)
        if self._numbers is None:
            numbers = np.searchsorted(self._starts, positions, "right") - 1
        else:
            numbers = self._numbers.take(positions, None, None, "clip")
        if not self._are_all_checked and not self._check(numbers):
            return None
        places = self._column.shift.take(numbers)
        places += positions
        return self._column.gather(places, numbers, self._buffers if out is None else _Given(out))

    def _check(self, numbers: Positions) -> bool:
        """Whether the fragments that were not touched before are where the table has them, and whole. Near the end some
        more are looked at: small ones are seldom touched."""
        new = np.unique(numbers[~self._is_checked[numbers]])
        left = np.flatnonzero(~self._is_checked)
        if len(left) < _NEARLY_ALL * len(self._starts):
            new = np.union1d(new, left[:_AT_ONCE])
        for start in range(0, len(new), _CHECKED_AT_ONCE):
            some = new[start : start + _CHECKED_AT_ONCE]
            places = {self._digests[number]: self._places[number] for number in some}
            if not self._objects.are_whole(places, self._identities):
                return False
            for number in some:
                place = self._places[number]
                first = self._packfiles[place.packfile]
                self._fragments.check(number, self._bytes[first + place.start : first + place.stop])
            self._is_checked[some] = True
        self._are_all_checked = bool(self._is_checked.all())
        return True


def table_of(
    objects: FragmentReader, fragments: Fragments, dtype: np.dtype[Any], shape: tuple[int, ...], width: int
) -> Table | None:
    """The table of a column's samples; None where they cannot be mapped, or are not all here."""
    if not isinstance(objects, Objects) or not width or not fragments.entries:
        return None
    digests = [entry.digest for entry in fragments.entries]
    places = objects.here(digests)
    if len(places) < len(set(digests)) or (objects.buried() and objects.instead(digests)):
        return None  # what was purged is refused sample by sample
    for _ in range(_ROUNDS):
        if objects.path(places[digests[0]].packfile) is None:
            return None
        try:
            return Table(objects, fragments, [places[digest] for digest in digests], dtype, shape, width)
        except NotFoundError:  # packed anew since it was looked up
            objects.refresh()
            places = objects.locate_many(digests)
    return None
