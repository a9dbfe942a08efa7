"""Packfiles written anew: what is needed of old ones goes into new ones, and only then are the old ones deleted."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError
from hopyard.objects.digests import digest
from hopyard.stockroom.data.fragments import Fragment
from hopyard.stockroom.data.purging import is_stand_in, redact
from hopyard.stockroom.packfiles import Location, Objects
from hopyard.stockroom.packfiles.layout import META_KINDS, ObjectToPack, Packfile, put_packfile, read_packfile
from hopyard.stockroom.packfiles.tombstones import (
    Purged,
    Tombstone,
    Tombstones,
    forget_unproven,
    key_of,
    unproven,
)
from hopyard.stockroom.packfiles.writer import PACKFILE_BYTES, PACKFILE_OBJECTS
from hopyard.storage import LocalStore, Store

_IN_MEMORY = 4 * PACKFILE_BYTES  # larger packfiles are put together in a file, wherever they go


def group_of(kind: str) -> str:
    """Of the packfiles that objects of this kind lie in."""
    return "meta" if kind in META_KINDS else "data"


def piece_of(name: str, place: Location, data: npt.NDArray[np.uint8]) -> ObjectToPack:
    """An object that is to be packed; values of fragments are aligned as they were."""
    width = body = 0
    if place.kind == "fragment":
        with suppress(CorruptError):  # of a format that is not known here: it is carried, not understood
            rows = Fragment(data).rows
            width = 0 if rows.offsets is not None else rows.data.shape[1]
            body = data.size - rows.data.nbytes
    return ObjectToPack(name, place.kind, data.data, place.dtype, place.shape, width, body)


def put(store: Store, group: str, pieces: Sequence[ObjectToPack]) -> Packfile:
    """Store one packfile, whatever its size, without holding it in memory twice."""
    size = sum(len(piece.data) for piece in pieces)
    if size <= _IN_MEMORY or store.staging() is not None:
        return put_packfile(store, group, pieces)
    with tempfile.TemporaryDirectory() as directory:
        local = LocalStore(directory)
        packfile = put_packfile(local, group, pieces)
        path = local.path(packfile.name)
        assert path is not None
        store.put_file(packfile.name, path)
        return packfile


def batches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """These objects in order, as many at a time as one packfile holds."""
    batch: list[str] = []
    total = 0
    for name, size in sizes.items():
        batch.append(name)
        total += size
        if total >= PACKFILE_BYTES or len(batch) >= PACKFILE_OBJECTS:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def write(objects: Objects, places: Mapping[str, Location]) -> list[Packfile]:
    """Copy these objects, in order, into new packfiles of 64 MiB: data, then metadata. All are checked.

    Raises:
        CorruptError: one is damaged; what was written until then does no harm.
    """
    packfiles = []
    for group in ("data", "meta"):
        sizes = {
            name: place.stop - place.start for name, place in places.items() if group_of(place.kind) == group
        }
        for names in batches(sizes):
            data = objects.read_many(names)
            packfiles.append(
                put(objects.store, group, [piece_of(name, places[name], data[name]) for name in names])
            )
            objects.learn(packfiles[-1:])
    return packfiles


def replace(objects: Objects, old: Iterable[str], new: Collection[Packfile]) -> None:
    """Delete packfiles whose needed objects are all in ``new``, or elsewhere."""
    written = {packfile.name for packfile in new}
    gone = sorted(set(old) - written)
    for name in gone:
        objects.store.delete(name)
    objects.store.sync_deleted(gone)  # also after a power cut, nothing that was purged is there again
    objects.refresh()


def bury(objects: Objects) -> int:
    """Let nothing remain in packfiles of what tombstones say was purged. Returns how many objects were removed.

    A fragment is removed only if it is here without the purged samples, and all else in it unchanged: whatever a
    tombstone says that is not so, no data are deleted because of it.

    New packfiles are there before old ones are deleted, so it may happen while others read and write, and whoever is
    killed in it can do it again.

    Raises:
        CorruptError: a packfile that holds what was purged is damaged.
    """
    objects = objects.alone()
    tombstones = Tombstones(objects.store)
    if not tombstones.all():
        return 0
    _unite(objects, tombstones)
    _make_stand_ins(objects, tombstones)
    removed: set[str] = set()
    while present := buried(objects, tombstones):
        for name in sorted({place.packfile for place in present.values()}):
            held = read_packfile(objects.store, name, objects.store.size(name) or 0).objects
            ordered = sorted(held.items(), key=lambda item: item[1].start)
            kept = {digest: place for digest, place in ordered if digest not in present}
            replace(objects, [name], write(objects, kept))
        removed |= present.keys()
    for name in removed & unproven(objects.store).keys():  # it was here, and was compared
        forget_unproven(objects.store, name)
    return len(removed)


def buried(objects: Objects, tombstones: Tombstones) -> dict[str, Location]:
    """Objects that shall not be in packfiles any more, and their places: fragments that have a tombstone, and older
    stand-ins of theirs, which have samples that were purged later. The objects that stand in for them are here, and
    whole."""
    every = tombstones.all()
    ends = {name: several[0] for name, several in every.items()}
    older = {one.instead: several[0] for several in every.values() for one in several[1:]}
    for best in ends.values():
        older.pop(best.instead, None)
    ends |= older
    present = objects.packed(ends)
    lacking = objects.missing(ends[name].instead for name in present)
    return {
        name: place
        for name, place in present.items()
        if ends[name].instead not in lacking and is_stand_in(objects.read(name), ends[name])
    }


def _unite(objects: Objects, tombstones: Tombstones) -> None:
    """Make the tombstone that names all samples of one fragment that clones purged apart from each other."""
    for name, (best, *others) in tombstones.all().items():
        known = best.keys
        more = {
            key_of(one.key): one for other in others for one in other.purged if key_of(one.key) not in known
        }
        if more and not objects.missing([name]):
            with suppress(CorruptError):  # one of them is not true of it
                bury_samples(objects, name, best.column, tuple(more.values()), best.purged)


def bury_samples(
    objects: Objects,
    name: str,
    column: str,
    purged: tuple[Purged, ...],
    before: tuple[Purged, ...] = (),
    data: npt.NDArray[np.uint8] | None = None,
) -> Tombstone:
    """Store what stands in for a fragment without these samples, and those that were purged ``before``, whose record
    stays; then the tombstone that says so.

    Args:
        data: the fragment; None: as it is here.
    """
    records = {key_of(one.key): one for one in (*purged, *before)}
    every = sorted(records.values(), key=lambda one: repr(one.key))
    with objects.writing() as writer:
        content, width, body = redact(objects.read(name) if data is None else data, every)
        instead = writer.add("fragment", content, width, body)
    tombstone = Tombstone(name, instead, column, tuple(every))
    objects.store.put_new(tombstone.name, tombstone.encode())
    return tombstone


def _make_stand_ins(objects: Objects, tombstones: Tombstones) -> None:
    """Make what is to be read instead of fragments, if it is not here but the fragment is, or an older stand-in: a
    tombstone may have come from a clone."""
    every = {name: several[0] for name, several in tombstones.all().items()}
    lacking = objects.missing(one.instead for one in every.values())
    for name, best in sorted(every.items()):
        if best.instead in lacking and not objects.missing([name]):
            with suppress(CorruptError), objects.writing() as writer:
                content, width, body = redact(objects.read(name), best.purged)
                if digest(content, "hopyard.fragment") == best.instead:
                    writer.add("fragment", content, width, body)
