"""Objects from a remote in place of damaged or missing ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.stockroom.data.repacking import replace, write
from hopyard.stockroom.history.commits import is_ancestor
from hopyard.stockroom.history.locks import replacing
from hopyard.stockroom.history.references import ReferenceLog, entry_of
from hopyard.stockroom.maintenance.checking import CheckedFile, check
from hopyard.stockroom.maintenance.heads import ASIDE
from hopyard.stockroom.remotes import Need, Repository
from hopyard.stockroom.remotes.transfer import LocatedObject, copy
from hopyard.storage import Store
from hopyard.storage.small import get_whole


def put_aside(store: Store, name: str) -> None:
    """Keep an object that is damaged under ``damaged/``, if it is there, and no longer under its name."""
    if store.exists(name):
        path = store.path(name)
        if path is not None:
            store.put_file(f"{ASIDE}/{name}", path)
        else:
            store.put(f"{ASIDE}/{name}", get_whole(store, name))
            store.delete(name)


def repair_logs(store: Store, logs: Iterable[ReferenceLog], remote: Repository | None) -> bool:
    """Put back entries of references: from their copies, or where there are none as the remote's branch or tag is, or
    as the entry before was where others follow. Whether any was."""
    done = False
    for log in logs:
        for name in log.failures.keys() - {log.stray}:
            number = int(name.rpartition("/")[2])
            data = log.copies.get(name) or _like_its_neighbours(log, number, remote)
            if data is not None:
                put_aside(store, name)
                store.put(name, data)
                done = True
    return done


def _like_its_neighbours(log: ReferenceLog, number: int, remote: Repository | None) -> bytes | None:
    before = log.entries.get(number - 1)
    after = log.entries.get(number + 1)
    if after is not None:
        return entry_of((before or after).commit, "hopyard stock verify")
    if remote is None or not log.name.startswith(("heads/", "tags/")):
        return None
    with suppress(StorageError):
        there = remote.references.tip(log.name).commit
        known = None if before is None else before.commit
        if there is not None and (known is None or is_ancestor(remote.objects, known, there)):
            return entry_of(there, "hopyard stock verify")
    return None


def fetch(remote: Repository, repository: Repository, lost: Mapping[str, str]) -> set[str]:
    """Bring objects, by digest and kind, as far as the remote has them whole. Returns which came."""
    found = remote.find(Need(digest, kind, "") for digest, kind in lost.items())
    wanted = {digest: LocatedObject(remote, place) for digest, place in found.items()}
    try:
        copy(wanted, repository)
        return set(wanted)
    except (CorruptError, NotFoundError):  # some are damaged there as well
        came = set()
        for digest, one in wanted.items():
            try:
                copy({digest: one}, repository)
                came.add(digest)
            except (CorruptError, NotFoundError):
                continue
        return came


def set_aside(repository: Repository, damaged: CheckedFile, here: Collection[str]) -> bool:
    """Pack the good objects of a damaged packfile anew; then delete it, if all that it held is ``here``, or keep it
    under ``damaged/``. Returns whether anything was done."""
    store, objects = repository.store, repository.objects.alone()
    if not check(store, damaged.name).reasons:  # what was fetched made the same packfile again
        return True
    held = {} if damaged.packfile is None else damaged.packfile.objects
    kept = {digest: place for digest, place in held.items() if digest in damaged.good}
    new = write(objects, kept)
    if damaged.name in {packfile.name for packfile in new}:
        return True
    is_all_here = damaged.packfile is not None and damaged.packfile.whole <= damaged.size
    with replacing(store):
        if not (is_all_here and held.keys() <= set(here)):
            try:
                put_aside(store, damaged.name)
            except CorruptError:  # a link: it has no bytes of its own
                return False
        replace(objects, [damaged.name], new)
    return True
