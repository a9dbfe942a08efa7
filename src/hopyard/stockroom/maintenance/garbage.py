"""gc: deletes what no history needs, and packfiles anew what lies among much of it, or in many small packfiles."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from datetime import UTC, datetime, timedelta

from hopyard.errors import CorruptError, StorageFullError
from hopyard.stockroom.data.repacking import buried, bury, group_of, replace, write
from hopyard.stockroom.git import Place
from hopyard.stockroom.history.locks import WAIT, Tell, alone
from hopyard.stockroom.maintenance.roots import all_roots, check
from hopyard.stockroom.packfiles import Location, Objects
from hopyard.stockroom.packfiles.layout import Packfile, is_packfile, read_packfile
from hopyard.stockroom.packfiles.tombstones import Tombstones
from hopyard.stockroom.packfiles.writer import PACKFILE_BYTES
from hopyard.stockroom.remotes import Repository, check_format
from hopyard.storage import Entry, Store
from hopyard.storage.small import get_small
from hopyard.wording import counted, describe_bytes

KEEP = timedelta(days=14)
"""How long gc keeps what it found unneeded where nobody can lock the repository."""

_SMALL = PACKFILE_BYTES // 2
_SEEN = "gc.json"
_MOST_SEEN = 1 << 28  # its bytes
_FILE = re.compile(r"files/([0-9a-f]{64})")


@dataclass(frozen=True)
class Collected:
    """The result of a garbage collection, or of a trial of one.

    Attributes:
        objects: that are not needed and were in packfiles, or were purged. files: likewise.
        packfiles: that were deleted; what was needed of them is in new ones.
        freed: bytes that the repository is smaller.
        young: bytes that are not needed, but were kept, since the repository has no locks and they are too new.
        is_dry: nothing was changed.
    """

    objects: int = 0
    files: int = 0
    packfiles: int = 0
    freed: int = 0
    young: int = 0
    is_dry: bool = False

    def __str__(self) -> str:
        would = "would be" if self.is_dry else "were"
        kept = f"; {describe_bytes(self.young)} are too new to be deleted" if self.young else ""
        return (
            f"{describe_bytes(self.freed)} {would} freed: {counted(self.objects, 'object')} in "
            f"{counted(self.packfiles, 'packfile')} and {counted(self.files, 'file')}{kept}"
        )


def gc(
    repository: Repository,
    place: Place | None = None,
    dry_run: bool = False,
    keep: timedelta = KEEP,
    wait: float = WAIT,
    tell: Tell | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Collected:
    """Delete what nothing leads to any more: no branch, tag, remote's branch, working tree, stage or open reader, and
    no ``head.stock`` in git's history.

    Args:
        place: of the working tree, for git's history. None: of a repository that has none, as a remote.
        dry_run: only say what would be done.
        keep: where the repository has no locks (a bucket), only what gc has found unneeded each time for so long is
            deleted: somebody may be about to refer to it. So no push may take longer. Less than 14 days is warned of.
        wait: seconds to wait for those who write. tell: told that, in words.
        clock: the time now, with its offset from UTC.

    Raises:
        StorageError: somebody writes all the time, or git's history cannot be read; nothing was deleted.
        CorruptError: it is not certain what is needed; nothing was deleted.
        StorageFullError: there is no room for what is packed anew; only what nothing needed was deleted.
    """
    check_format(repository.store)
    if keep < KEEP and not dry_run and repository.store.path(_SEEN) is None:
        warnings.warn(
            f"{repository.store.url} has no locks, and only what nobody needed for {keep} is kept there: a push that "
            "is under way, or began before that, may end in a commit that lacks data. See that nobody pushes, or leave "
            f"keep at its {KEEP.days} days.",
            UserWarning,
            stacklevel=2,
        )
    with alone(repository.store, wait, tell):
        repository.objects.rebuild()  # an index that lost rows would hide what is to be removed
        return collect(repository, place, dry_run, keep, clock())


@dataclass
class _Plan:
    """Names to delete, and ``kept``: the objects in them that are packed anew before, in this order."""

    packfiles: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    kept: dict[str, Location] = field(default_factory=dict)
    objects: int = 0
    freed: int = 0
    young: int = 0


def collect(
    repository: Repository, place: Place | None, dry_run: bool, keep: timedelta, now: datetime
) -> Collected:
    """Collect, for who holds the lock."""
    store, objects = repository.store, repository.objects.alone()
    roots = all_roots(store, place)
    walk = roots.walk(objects)
    check(roots, walk, store.url)
    before = sum(entry.size for entry in _entries(store))
    if not dry_run:
        bury(objects)
    tombstones = Tombstones(store)
    options = tombstones.options(walk.found)
    needed = dict.fromkeys(each for digest in walk.found for each in (digest, *options.get(digest, ())))
    for digest in buried(objects, tombstones):  # none, unless nothing is to be done
        needed.pop(digest, None)
    entries = list(_entries(store))
    packfiles = [read_packfile(store, entry.name, entry.size) for entry in entries if is_packfile(entry.name)]
    files = {e.name: e.size for e in entries if not is_packfile(e.name) and _digest(e.name) not in needed}
    idle = [*files, *(packfile.name for packfile in packfiles if packfile.objects.keys() - needed.keys())]
    young = set() if store.path(_SEEN) is not None else _young(store, idle, now - keep, now, dry_run)
    plan = _planned(packfiles, files, needed, young, _damaged_copies(objects, packfiles))
    done = Collected(plan.objects, len(plan.files), len(plan.packfiles), plan.freed, plan.young, dry_run)
    if dry_run:
        return done
    # What holds nothing that is needed goes first: on a full disk that makes the room for what is packed anew.
    idle_packfiles = {
        packfile.name for packfile in packfiles if packfile.objects.keys().isdisjoint(needed)
    } & set(plan.packfiles)
    for name in plan.files:
        store.delete(name)
    replace(objects, idle_packfiles, ())
    try:
        new = write(objects, plan.kept)
    except StorageFullError as error:
        freed = before - sum(entry.size for entry in _entries(store))
        raise StorageFullError(
            f"{error} {describe_bytes(freed)} that nothing needed were freed before that, and all else is as it was."
        ) from None
    replace(objects, set(plan.packfiles) - idle_packfiles, new)
    return replaced(done, freed=before - sum(entry.size for entry in _entries(store)))


def _entries(store: Store) -> Iterator[Entry]:
    """Packfiles and files: nothing else is ever deleted."""
    yield from (entry for entry in store.list("packfiles") if is_packfile(entry.name))
    yield from (entry for entry in store.list("files") if _FILE.fullmatch(entry.name))


def _digest(file: str) -> str:
    return file.rpartition("/")[2]


def _young(store: Store, idle: Iterable[str], since: datetime, now: datetime, dry_run: bool) -> set[str]:
    """Packfiles and files with something unneeded of which gc has not found that at each look since a moment. That it
    found it now is written down."""
    seen: dict[str, str] = {}
    if store.exists(_SEEN):
        with suppress(ValueError, TypeError, AttributeError, CorruptError):  # begun anew: all is young
            found = json.loads(get_small(store, _SEEN, _MOST_SEEN))
            seen = {name: datetime.fromisoformat(moment).isoformat() for name, moment in found.items()}
    moments = {name: seen.get(name, now.isoformat()) for name in idle}
    if not dry_run:
        store.put(_SEEN, json.dumps(moments).encode())
    return {name for name, moment in moments.items() if datetime.fromisoformat(moment) > since}


def _damaged_copies(objects: Objects, packfiles: list[Packfile]) -> dict[str, set[str]]:
    """By packfile the objects that are damaged there, and whole in another packfile. Only what is in several is looked
    at."""
    holding = Counter(one for packfile in packfiles for one in packfile.objects)
    found: dict[str, set[str]] = {}
    for packfile in packfiles:
        shared = {one: place for one, place in packfile.objects.items() if holding[one] > 1}
        whole = objects.whole(shared)
        if bad := {one for one, place in shared.items() if whole.get(one, place) != place}:
            found[packfile.name] = bad
    return found


def _planned(
    packfiles: list[Packfile],
    files: dict[str, int],
    needed: dict[str, None],
    young: set[str],
    bad: dict[str, set[str]],
) -> _Plan:
    """Args: files: those that are not needed, and their bytes. bad: by packfile the objects that are damaged there
    only."""
    plan = _Plan()
    for name, size in files.items():
        if name in young:
            plan.young += size
        else:
            plan.files.append(name)
            plan.freed += size
    sized = [
        (_bytes(place for one, place in packfile.objects.items() if one in needed), packfile)
        for packfile in packfiles
    ]
    _plan_packfiles(plan, sized, needed, young, bad)
    return plan


def _plan_packfiles(
    plan: _Plan,
    packfiles: list[tuple[int, Packfile]],
    needed: dict[str, None],
    young: set[str],
    bad: dict[str, set[str]],
) -> None:
    # Of an object that is in several packfiles one copy is kept, which is not damaged: in a packfile that stays anyway,
    # else in the one that has most of what is needed.
    packfiles.sort(key=lambda item: (item[1].name not in young, -item[0], item[1].name))
    homes: dict[str, Location] = {}
    small: dict[str, list[Packfile]] = {}
    old: list[Packfile] = []
    for _, packfile in packfiles:
        wanted_here = (packfile.objects.keys() & needed.keys()) - homes.keys() - bad.get(packfile.name, set())
        here = {one: place for one, place in packfile.objects.items() if one in wanted_here}
        homes |= here
        wanted = _bytes(here.values())
        unneeded = _bytes(packfile.objects.values()) - wanted
        if packfile.name in young:
            plan.young += unneeded
        elif packfile.name in bad or unneeded > wanted or not here or (unneeded and packfile.size < _SMALL):
            old.append(packfile)
        elif packfile.size < _SMALL:
            small.setdefault(group_of(next(iter(here.values())).kind), []).append(packfile)
    for group, several in small.items():
        others = any(
            packfile.size < _SMALL and packfile.name.startswith(f"packfiles/{group}-") for packfile in old
        )
        old += several if len(several) > 1 or others else []
    plan.packfiles = sorted(packfile.name for packfile in old)
    anew = set(plan.packfiles)
    plan.kept = {one: homes[one] for one in needed if one in homes and homes[one].packfile in anew}
    plan.objects = len({one for packfile in old for one in packfile.objects if one not in needed})
    plan.freed += sum(packfile.size for packfile in old) - _bytes(plan.kept.values())


def _bytes(places: Iterable[Location]) -> int:
    return sum(place.stop - place.start for place in places)
