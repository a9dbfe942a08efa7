"""Purge: samples out of all of history, for good, with a record of what was removed, when, by whom and why."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from hopyard.errors import NotFoundError, StorageFullError, UsageError
from hopyard.stockroom.data.column import group_bounds
from hopyard.stockroom.data.cutting import FragmentEntry, neighbours
from hopyard.stockroom.data.fragments import Fragment
from hopyard.stockroom.data.repacking import bury, bury_samples
from hopyard.stockroom.data.rows import count_before, find, keys_of, plain
from hopyard.stockroom.git import Place
from hopyard.stockroom.history.locks import WAIT, Tell, alone
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.stage import stages
from hopyard.stockroom.maintenance.garbage import KEEP, Collected, collect
from hopyard.stockroom.maintenance.heads import heads
from hopyard.stockroom.maintenance.roots import Roots, all_roots, check, roots_of_store
from hopyard.stockroom.maintenance.sharing import (
    Equal,
    described,
    find_equal,
    present_columns,
    shared_with,
    values_of,
)
from hopyard.stockroom.maintenance.walk import Walk
from hopyard.stockroom.maps import Key, SortedMap, check_key, decode, encode
from hopyard.stockroom.maps.typed_keys import TypedKey
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.packfiles.tombstones import Purged, Tombstones
from hopyard.stockroom.records import ColumnRecord, parse
from hopyard.stockroom.records.quoting import check_text
from hopyard.stockroom.remotes import Repository, check_format, names
from hopyard.storage import Store
from hopyard.wording import are, counted, nearest


@dataclass(frozen=True)
class PurgeReport:
    """The result of a purge.

    Attributes:
        column: where the samples were. keys: of those that are gone, also of earlier purges of the same keys.
        fragments: that were replaced now; ``staged`` writes of working trees that were changed now.
        collected: what gc did at its end.
        remotes: known here, which have the samples until they are pushed to.
        shared: by name, the keys of samples that are gone from other columns as well, since they were stored as one.
        equal: samples of the present commits that have the same bytes as a purged one, and are still there.
    """

    column: str
    keys: list[Key]
    fragments: int
    staged: int
    collected: Collected
    remotes: list[str]
    shared: dict[str, list[Key]] = field(default_factory=dict)
    equal: Equal = field(default_factory=Equal)

    def __str__(self) -> str:
        told = (
            f", and gone from other columns too, which shared {'it' if len(self.keys) == 1 else 'them'}: "
            f"{described(self.shared)}"
            if self.shared
            else ""
        )
        known = f"; push to {', '.join(self.remotes)}, which may still have them" if self.remotes else ""
        return (
            f"{counted(len(self.keys), 'sample')} of {self.column!r} {are(len(self.keys))} purged{told}; replaced: "
            f"{counted(self.fragments, 'fragment')} and {counted(self.staged, 'staged write')}{known}; folders and "
            "buckets that were pushed to by address only may have them, too: push there; and copies of this folder: "
            f"purge there{self.equal}"
        )


def purge(
    repository: Repository,
    column: str,
    keys: Key | TypedKey | Sequence[Key | TypedKey],
    why: str,
    by: str,
    place: Place | None = None,
    wait: float = WAIT,
    tell: Tell | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    keep: timedelta = KEEP,
    shared: bool = False,
) -> PurgeReport:
    """Remove the values of samples from all versions, here and in what is staged. Commits stay as they are: their keys
    are still listed, and reading the samples raises ``PurgedError``. It can be done again, also after it was killed.

    Args:
        keys: one, or a list. Of a nested column a sample's key means all its parts. A ``TypedKey`` is the first of the
            keys that it may stand for under which there are samples.
        why, by: for the record, which stays. place, wait, tell, clock, keep: as ``gc``.
        shared: purge them from the other columns, too, that were stored as one with them: equal samples under equal
            keys share a fragment, and history names it for all of them.

    Raises:
        NotFoundError: no version has a sample under one of the keys; or data is at a remote only, which cannot be
            reached. UsageError: what is no key, or no reason; or other columns share them, and ``shared`` is not given.
            Others as ``gc``. Nothing was changed.
    """
    check_format(repository.store)
    given = keys if isinstance(keys, list | range | np.ndarray) else [keys]
    meanings = [_meanings(key) for key in given]
    possible = [key for several in meanings for key in several]
    check_text(column, "the column of a purge")
    if not check_text(why, "the reason of a purge").strip():
        raise UsageError("purge was given no reason. Say why: it stays in the record of what was removed.")
    store = repository.store
    # Whatever is at a remote only comes now: bringing it takes the lock.
    _fragments(repository.objects, roots_of_store(store).walk(repository.objects), column, possible)
    with alone(store, wait, tell):
        repository.objects.rebuild()  # an index that lost rows would hide what is to be removed
        objects = repository.objects.alone()
        roots = all_roots(store, place)
        walk = roots.walk(objects)
        check(roots, walk, store.url)
        found = _fragments(objects, walk, column, possible)
        wanted = _check_found(objects, walk, found, roots, column, meanings)
        found = _fragments(objects, walk, column, wanted)
        gone = _keys_of(found, roots, column, wanted)
        new = {one.digest: one.new for one in found if one.new}
        struck = shared_with(objects, walk, column, new)
        others = {
            name: sorted({key for digest in digests for key in new[digest]}, key=encode)
            for name, digests in struck.items()
        }
        present = present_columns(objects, _tips(roots, place), _staged_columns(roots))
        if others and not shared:
            raise _shared(column, gone, others, present)
        values = values_of(objects, new)
        moment = clock().astimezone(UTC).isoformat(timespec="seconds")
        try:
            count = _bury(objects, column, found, struck, lambda key: Purged(key, moment, by, why))
            staged = _clean_stages(store, column, wanted)
            bury(objects)
            collected = collect(repository, place, False, keep, clock())
        except StorageFullError as error:
            raise StorageFullError(
                f"{error} The purge has begun: some of the samples may read as purged already, while their bytes are "
                "still in packfiles. When there is space, call purge again, with the same keys: it goes on from there."
            ) from error
        objects.refresh()
        equal = find_equal(objects, present, values)
        return PurgeReport(column, gone, count, staged, collected, list(names(store)), others, equal)


@dataclass(frozen=True)
class _Found:
    """A fragment that history names, and which of the samples it has."""

    digest: str
    new: list[Key]
    gone: list[Key]


def _fragments(objects: Objects, walk: Walk, column: str, keys: Sequence[Key]) -> list[_Found]:
    digests: dict[str, None] = {}
    for pages in sorted(walk.columns.get(f"data/{column}", ())):
        entries = SortedMap(objects, pages)
        for key in keys:
            for start, stop in _bounds(key):
                digests.update(dict.fromkeys(_between(entries, start, stop)))
    found = []
    for digest in digests:
        fragment = Fragment(objects.read(digest))
        places = sorted({place for key in keys for place in _places(fragment, key)})
        named = plain(fragment.keys[np.array(places, np.int64)])
        pairs = list(zip(places, named, strict=True))
        new = [key for place, key in pairs if place not in fragment.purged]
        gone = [key for place, key in pairs if place in fragment.purged]
        if pairs:
            found.append(_Found(digest, new, gone))
    return found


def _bounds(key: Key) -> list[tuple[bytes, bytes]]:
    """The ranges of encoded keys in which a sample, or the parts of one, may be."""
    code = encode(key)
    own = (code, code + b"\0")
    return [own] if isinstance(key, tuple) else [own, group_bounds(key)]


def _between(entries: SortedMap, start: bytes, stop: bytes) -> Iterator[str]:
    before = entries.floor(start)
    if before is not None and before[0] < start and FragmentEntry.of(*before).last >= start:
        yield FragmentEntry.of(*before).digest
    for first, value in entries.items(start, stop):
        yield FragmentEntry.of(first, value).digest


def _places(fragment: Fragment, key: Key) -> Iterable[int]:
    (at,) = find(fragment.keys, keys_of([encode(key)]))
    if at >= 0:
        yield int(at)
    if not isinstance(key, tuple):
        start, stop = (count_before(fragment.keys, bound) for bound in group_bounds(key))
        yield from range(start, stop)


def _meanings(key: Any) -> list[Key]:
    """The keys that one may stand for, the likeliest first."""
    if not isinstance(key, TypedKey):
        return [check_key(key)]
    pairs = [each for each in key.keys(nested=True) if isinstance(each, tuple)]
    return [check_key(each) for each in (*pairs, *key.keys(nested=False))]


def _keys_of(found: list[_Found], roots: Roots, column: str, keys: Sequence[Key]) -> list[Key]:
    """The keys under which there are, or were, samples."""
    every = {key for one in found for key in (*one.new, *one.gone)}
    every |= {
        key for _, operation in roots.staged for key in _keys_set(operation, column) if _is_meant(key, keys)
    }
    return sorted(every, key=encode)


def _check_found(
    objects: Objects,
    walk: Walk,
    found: list[_Found],
    roots: Roots,
    column: str,
    meanings: Sequence[Sequence[Key]],
) -> list[Key]:
    """Of each of the given keys the first meaning under which there are, or were, samples."""
    every = _keys_of(found, roots, column, [key for several in meanings for key in several])
    groups = {*every, *(key[0] for key in every if isinstance(key, tuple))}
    wanted = []
    for several in meanings:
        key = next((each for each in several if each in groups), None)
        if key is None:
            raise _nothing(objects, walk, roots, column, several)
        wanted.append(key)
    return wanted


def _nothing(
    objects: Objects, walk: Walk, roots: Roots, column: str, meanings: Sequence[Key]
) -> NotFoundError:
    """The error for a key under which no version has a sample."""
    columns = {thing.removeprefix("data/") for thing in walk.columns}
    columns |= {operation.column for _, operation in roots.staged if operation.edit is not None}
    if column not in columns:
        return NotFoundError(
            f"no version has a column {column!r}{nearest(column, columns, '.')} Nothing was changed. Name a column "
            "that some version has: hopyard stock list data --at REVISION."
        )
    near = set()
    for pages in walk.columns.get(f"data/{column}", ()):
        entries = SortedMap(objects, pages)
        for key in meanings:
            near.update(_nearest_keys(objects, entries, key))
    pairs = [key for key in meanings if isinstance(key, tuple)]
    alone = [key for key in meanings if not isinstance(key, tuple)]
    is_nested = any(isinstance(key, tuple) for key in near)
    shown, *_ = pairs if pairs and (is_nested or not alone) else alone
    codes = sorted(map(encode, near))
    bounds = {bisect_left(codes, _first(key, is_nested)) for key in meanings}
    closest = {place for bound in bounds for place in (bound - 1, bound) if 0 <= place < len(codes)}
    keys = ", ".join(repr(decode(codes[place])) for place in sorted(closest))
    texts = [key for key in near if isinstance(key, str)]
    hint = nearest(str(shown), texts, ".")
    return NotFoundError(
        f"no version of the column {column!r} has a sample {shown!r}, so there is nothing to purge{hint} Nothing was "
        f"changed. The nearest keys are {keys}; stock.data[{column!r}].keys() has all of a branch."
    )


def _first(key: Key, is_nested: bool) -> bytes:
    return group_bounds(key)[0] if is_nested and not isinstance(key, tuple) else encode(key)


def _nearest_keys(objects: Objects, entries: SortedMap, key: Key) -> list[Key]:
    """Keys of one version about where a key would be: those of the fragment that it would be in, and of others the
    ends."""
    if not len(entries):
        return []
    code = _first(key, isinstance(decode(entries.at(0)[0]), tuple))
    inside = list(_between(entries, code, code + b"\0"))
    if inside:
        return plain(Fragment(objects.read(inside[0])).keys)
    return [decode(each) for each in neighbours(entries, code)]


def _is_meant(key: Key, keys: Sequence[Key]) -> bool:
    return key in keys or (isinstance(key, tuple) and key[0] in keys)


def _keys_set(operation: WriteOperation, column: str) -> list[Key]:
    """The keys of samples that a staged write sets in a column."""
    if operation.column != column or operation.edit is None or operation.edit.new is None:
        return []
    return plain(operation.edit.new.keys)


def _tips(roots: Roots, place: Place | None) -> list[str]:
    """The commits of all branches and working trees."""
    trees = {str(file) for file in heads(place)} if place is not None else set()
    logs = [log for log in roots.logs if log.name.startswith("heads/") and log.entries]
    last = [list(log.entries.values())[-1].commit for log in logs]
    return [
        *(commit for commit in last if commit is not None),
        *(commit for commit, by in roots.others.items() if by in trees),
    ]


def _staged_columns(roots: Roots) -> dict[str, ColumnRecord]:
    """The columns that were staged as a whole, as they were last."""
    found: dict[str, ColumnRecord] = {}
    for _, operation in roots.staged:
        for shelf, name, value in operation.things:
            record = None if shelf != "data" or value is None else parse(value, name)
            if isinstance(record, ColumnRecord):
                found[name] = record
    return found


def _shared(
    column: str, keys: Sequence[Key], others: Mapping[str, Sequence[Key]], present: Collection[str]
) -> UsageError:
    here = f"{column!r}[{', '.join(map(repr, keys[:5]))}{', ...' if len(keys) > 5 else ''}]"
    return UsageError(
        f"{here} cannot be purged by itself: equal samples under equal keys are stored as one, and these columns share "
        f"{'it' if len(keys) == 1 else 'them'}: {described(others, present)}. Nothing was changed. Purge from all of "
        "them: stock.purge(..., shared=True), or hopyard stock purge ... --shared. To remove from this column alone, "
        f"which keeps history: del stock.data[{column!r}][{keys[0]!r}]."
    )


def _bury(
    objects: Objects,
    column: str,
    found: list[_Found],
    struck: Mapping[str, Collection[str]],
    purged: Callable[[Any], Purged],
) -> int:
    """Make stand-ins and tombstones: also one for each other column that has a fragment, as its record. Returns the
    number of fragments."""
    known = Tombstones(objects.store).all()
    count = 0
    for one in found:
        if one.new:
            before = known[one.digest][0].purged if one.digest in known else ()
            new = tuple(purged(list(key) if isinstance(key, tuple) else key) for key in one.new)
            # The tombstone of the column that was named is the last one: before it nothing has happened.
            for name in (*(name for name, digests in struck.items() if one.digest in digests), column):
                bury_samples(objects, one.digest, name, new, before)
            count += 1
    return count


def _clean_stages(store: Store, column: str, keys: Sequence[Key]) -> int:
    """Take the samples out of staged writes. Returns out of how many."""
    count = 0
    for stage in stages(store):
        with stage.held() as log:
            kept = []
            before = count
            for data in stage.operations():
                operation = WriteOperation.decode(data)
                written = _keys_set(operation, column)
                left = [at for at, key in enumerate(written) if not _is_meant(key, keys)]
                edit = operation.edit
                if len(left) < len(written) and edit is not None and edit.new is not None:
                    count += 1
                    edit = edit._replace(new=edit.new.part(np.array(left)) if left else None)
                    data = dataclasses.replace(operation, edit=edit).encode()
                kept.append(data)
            if count > before:
                log.replace(kept)
            log.sweep()  # what a purge that was killed has replaced
    return count
