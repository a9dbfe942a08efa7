"""gc: deletes what no history needs, and packs anew what lies among much of it, or in many small packs."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from datetime import UTC, datetime, timedelta

from hopyard.errors import NotWritableError, StorageError
from hopyard.stockroom.care.roots import all_roots, check
from hopyard.stockroom.git import Place
from hopyard.stockroom.history.locks import collecting
from hopyard.stockroom.packs import Location
from hopyard.stockroom.packs.layout import Pack, is_pack, read_pack
from hopyard.stockroom.packs.tombstones import Tombstones
from hopyard.stockroom.packs.writer import PACK_BYTES
from hopyard.stockroom.remotes import Repository, check_format
from hopyard.stockroom.repacking import bury, group_of, replace, write
from hopyard.storage import Entry, Store

KEEP = timedelta(days=14)
"""How long what is not needed is kept where nobody can lock the repository."""
WAIT = 60.0
"""Seconds that who writes is waited for."""

_SMALL = PACK_BYTES // 2
_LOOK = 0.05  # seconds between looks whether nobody writes any more
_SEEN = "gc.json"
_FILE = re.compile(r"files/([0-9a-f]{64})")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Collected:
    """What gc did, or would do.

    Attributes:
        objects: that are not needed and were in packs, or were purged. files: likewise.
        packs: that were deleted; what was needed of them is in new ones.
        freed: bytes that the repository is smaller.
        young: bytes that are not needed, but were kept, since the repository has no locks and they are too new.
        is_dry: nothing was changed.
    """

    objects: int = 0
    files: int = 0
    packs: int = 0
    freed: int = 0
    young: int = 0
    is_dry: bool = False

    def __str__(self) -> str:
        would = "would be" if self.is_dry else "were"
        kept = f"; {self.young / 1e6:.1f} MB are too new to be deleted" if self.young else ""
        return (
            f"{self.freed / 1e6:.1f} MB {would} freed: {self.objects} objects in {self.packs} packs and {self.files} "
            f"files{kept}"
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
        keep: where the repository has no locks (it is not of files), packs and files that gc saw first more recently
            are left alone: somebody may be about to refer to them.
        wait: seconds to wait for those who write. tell: told that, in words.
        clock: the time now, with its offset from UTC.

    Raises:
        StorageError: somebody writes all the time, or git's history cannot be read; nothing was deleted.
        CorruptError: it is not certain what is needed; nothing was deleted.
    """
    check_format(repository.store)
    with alone(repository.store, wait, tell):
        return collect(repository, place, dry_run, keep, clock())


@contextmanager
def alone(store: Store, wait: float, tell: Tell | None) -> Iterator[None]:
    """Hold ``gc.lock`` alone, as soon as nobody writes.

    Raises:
        StorageError: somebody still does after ``wait`` seconds.
    """
    end = time.monotonic() + wait
    has_told = tell is None
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(collecting(store))
                break
            except NotWritableError:
                raise  # waiting does not help
            except StorageError as error:
                if time.monotonic() >= end:
                    raise StorageError(f"{error} {wait:g} seconds were waited.") from None
            if not has_told and tell is not None:
                tell(f"waiting for those who write to {store.url}, at most {wait:g} seconds")
                has_told = True
            threading.Event().wait(_LOOK)
        yield


@dataclass
class _Plan:
    """What is to be deleted, and ``kept``: what of it is packed anew before, in this order."""

    packs: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    kept: dict[str, Location] = field(default_factory=dict)
    objects: int = 0
    freed: int = 0
    young: int = 0


def collect(
    repository: Repository, place: Place | None, dry_run: bool, keep: timedelta, now: datetime
) -> Collected:
    """The same for who holds the lock."""
    store, objects = repository.store, repository.objects.alone()
    roots = all_roots(store, place)
    walk = roots.walk(objects)
    check(roots, walk, store.url)
    before = sum(entry.size for entry in _entries(store))
    if not dry_run:
        bury(objects)
    instead = Tombstones(store).instead(walk.found)
    needed = dict.fromkeys(instead.get(digest, digest) for digest in walk.found)
    young = set() if store.path(_SEEN) is not None else _young(store, now - keep, now, dry_run)
    plan = _planned(store, needed, young)
    done = Collected(plan.objects, len(plan.files), len(plan.packs), plan.freed, plan.young, dry_run)
    if dry_run:
        return done
    replace(objects, plan.packs, write(objects, plan.kept))
    for name in plan.files:
        store.delete(name)
    return replaced(done, freed=before - sum(entry.size for entry in _entries(store)))


def _entries(store: Store) -> Iterator[Entry]:
    """Packs and files: nothing else is ever deleted."""
    yield from (entry for entry in store.list("packs") if is_pack(entry.name))
    yield from (entry for entry in store.list("files") if _FILE.fullmatch(entry.name))


def _young(store: Store, since: datetime, now: datetime, dry_run: bool) -> set[str]:
    """Packs and files that were first seen by gc after a time, or never before. That they were seen is written down."""
    seen: dict[str, str] = {}
    if store.exists(_SEEN):
        with suppress(ValueError):  # begun anew: all is young
            seen = json.loads(store.get(_SEEN))
    moments = {entry.name: seen.get(entry.name, now.isoformat()) for entry in _entries(store)}
    if not dry_run:
        store.put(_SEEN, json.dumps(moments).encode())
    return {name for name, moment in moments.items() if datetime.fromisoformat(moment) > since}


def _planned(store: Store, needed: dict[str, None], young: set[str]) -> _Plan:
    plan = _Plan()
    packs: list[tuple[int, Pack]] = []
    for entry in list(_entries(store)):
        name, size = entry.name, entry.size
        if is_pack(name):
            pack = read_pack(store, name, size)
            packs.append((_bytes(place for one, place in pack.objects.items() if one in needed), pack))
        elif name.rpartition("/")[2] in needed:
            continue
        elif name in young:
            plan.young += size
        else:
            plan.files.append(name)
            plan.freed += size
    _plan_packs(plan, packs, needed, young)
    return plan


def _plan_packs(plan: _Plan, packs: list[tuple[int, Pack]], needed: dict[str, None], young: set[str]) -> None:
    # Of an object that is in several packs one is kept: in a pack that stays anyway, else in that which has most.
    packs.sort(key=lambda item: (item[1].name not in young, -item[0], item[1].name))
    homes: dict[str, Location] = {}
    small: dict[str, list[Pack]] = {}
    old: list[Pack] = []
    for _, pack in packs:
        here = {one: place for one, place in pack.objects.items() if one in needed and one not in homes}
        homes |= here
        wanted = _bytes(here.values())
        unneeded = _bytes(pack.objects.values()) - wanted
        if pack.name in young:
            plan.young += unneeded
        elif unneeded > wanted or not here or (unneeded and pack.size < _SMALL):
            old.append(pack)
        elif pack.size < _SMALL:
            small.setdefault(group_of(next(iter(here.values())).kind), []).append(pack)
    for group, several in small.items():
        others = any(pack.size < _SMALL and pack.name.startswith(f"packs/{group}-") for pack in old)
        old += several if len(several) > 1 or others else []
    plan.packs = sorted(pack.name for pack in old)
    anew = set(plan.packs)
    plan.kept = {one: homes[one] for one in needed if one in homes and homes[one].pack in anew}
    plan.objects = len({one for pack in old for one in pack.objects if one not in needed})
    plan.freed += sum(pack.size for pack in old) - _bytes(plan.kept.values())


def _bytes(places: Iterable[Location]) -> int:
    return sum(place.stop - place.start for place in places)
