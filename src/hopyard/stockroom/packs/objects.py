"""Reads objects, wherever they are packed."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.errors import (
    CorruptError,
    DataError,
    FormatError,
    NotFoundError,
    StorageError,
    UsageError,
)
from hopyard.objects.digests import digest as digest_of
from hopyard.objects.tensors import Tensor
from hopyard.stockroom.packs.forking import LOCK
from hopyard.stockroom.packs.index import Index
from hopyard.stockroom.packs.layout import Location, Pack, damaged, is_pack, read_pack
from hopyard.stockroom.packs.mapped import Bytes, Mapped
from hopyard.stockroom.packs.tombstones import Tombstones
from hopyard.stockroom.packs.writer import PackWriter
from hopyard.storage import Store

Absent = Callable[[Sequence[str]], None]

_DIGEST = re.compile("[0-9a-f]{64}")
_ROUNDS = 10  # of looking up objects whose pack was gone when it was read
_LISTED = 32  # files that are looked for one by one; for more of them all are listed
_REQUESTS = 16  # headers that are read at once where files cannot be mapped
_PACKS_AT_ONCE = 64  # whose objects are added to the index together
_GAP = 1 << 17  # bytes between ranges of a remote pack that cost less than another request
_FEW = 1 << 20  # bytes of one pack that are copied rather than held mapped, which takes a file descriptor
_RANGE = 16 << 20  # bytes that one request brings at most, unless one object is larger


class Objects:
    """The objects of a repository. See the room's text for the rules.

    Args:
        store: the repository's root.
        index: a SQLite file on this machine, made if it is missing; None: the index is in memory.
        absent: called with digests of objects that are not here. It brings them, or raises.
    """

    def __init__(self, store: Store, index: Path | None = None, absent: Absent | None = None) -> None:
        self._store, self._absent = store, absent
        self._index = Index(index)
        self._mapped = Mapped(store)
        self._tombstones = Tombstones(store)
        self._checked: dict[str, set[int]] = {}  # by pack, where the objects begin that were checked
        self._unreadable: dict[str, StorageError] = {}
        self._rebuilt = self._has_listed = False

    def __reduce__(self) -> tuple[type[Objects], tuple[Store, Path | None, Absent | None]]:
        return Objects, (self._store, self._index.path, self._absent)

    @property
    def store(self) -> Store:
        """The repository's root."""
        return self._store

    @property
    def shared(self) -> bool:
        """Whether other processes see the same objects, and a pickled copy works in them."""
        return self._store.shared

    # Reading

    def read(self, digest: str, verify: bool = True) -> Bytes:
        """(n,) uint8, read only: the object's bytes, mapped where the store has files.

        They are checked when this process first reads them, unless ``verify`` is False.

        Raises:
            NotFoundError: it is not here; CorruptError: it, or the pack it should be in, is damaged.
        """
        return self._read((digest,), verify)[digest][1]

    def read_many(self, digests: Iterable[str], verify: bool = True) -> dict[str, Bytes]:
        """The same for many; where files cannot be mapped, what lies close together comes with one request."""
        return {name: data for name, (_, data) in self._read(digests, verify).items()}

    def read_private(self, digests: Iterable[str], verify: bool = False) -> dict[str, Bytes]:
        """The same, as arrays of the caller's own: they may be written to, which changes nothing but them.

        Where the store has files they are mapped copy-on-write: what is not touched is not read.
        """
        found = self._read(digests, verify, Mapped(self._store, mmap.ACCESS_COPY))
        wanted: dict[str, int] = {}
        for place, data in found.values():
            wanted[place.pack] = wanted.get(place.pack, 0) + data.size
        return {
            name: data if data.flags.writeable and wanted[place.pack] >= _FEW else data.copy()
            for name, (place, data) in found.items()
        }

    def json(self, digest: str) -> Any:
        """The value of an object whose bytes are JSON."""
        return json.loads(self.read(digest).tobytes())

    def tensor(self, digest: str) -> Tensor:
        """A tensor, sharing memory with what is mapped."""
        ((place, data),) = self._read((digest,), True).values()
        if place.kind != "tensor":
            raise UsageError(f"the object {digest} is a {place.kind}, not a tensor. Use read().")
        tensor = Tensor(place.dtype, place.shape, data)
        tensor.know(digest)
        return tensor

    def file(self, digest: str) -> Path | None:
        """Where an object of kind ``file`` is, not to be written to; None if the store has no files (use ``read``).

        Its bytes are not checked: they may be many, and only some of them needed. ``read`` checks them.
        """
        return self._store.path(self._file(digest).pack)

    def _file(self, digest: str) -> Location:
        place = self.locate(digest)
        if place.kind != "file":
            raise UsageError(f"the object {digest} is a {place.kind}, not a file. Use read().")
        return place

    def read_range(self, digest: str, start: int = 0, length: int | None = None) -> bytes:
        """Some bytes of an object of kind ``file``, which are not checked: all of them make the digest.

        Raises:
            CorruptError: the range reaches beyond its end.
        """
        return self._store.get(self._file(digest).pack, start, length)

    # Looking up

    def locate(self, digest: str) -> Location:
        """Where the object is. Its pack may be deleted at any moment, once its objects are packed elsewhere: whoever
        finds that it is gone calls :meth:`refresh` and locates it again.

        Raises:
            NotFoundError: it is not here; CorruptError: the pack it should be in is damaged.
        """
        return self._find((digest,))[digest]

    def locate_many(self, digests: Sequence[str]) -> dict[str, Location]:
        """The same for many."""
        return self._find(digests)

    def path(self, pack: str) -> Path | None:
        """The file of a pack that :meth:`locate` named, which may be gone; None if the store has no files."""
        return self._store.path(pack)

    def has(self, digest: str) -> bool:
        """Whether the object is here."""
        return not self.missing((digest,))

    def missing(self, digests: Iterable[str]) -> set[str]:
        """Which of these objects are not here."""
        wanted = set(digests)
        return wanted - self._local(wanted).keys()

    def beginning(self, prefix: str, kind: str) -> list[str]:
        """The objects of a kind here whose digests begin so, in order; ``prefix`` is of lower-case hex digits."""
        self.refresh()
        return self._index.beginning(prefix, kind)

    def packed(self, digests: Iterable[str]) -> dict[str, Location]:
        """Where these objects are now, of those that are in packs: one listing, and the headers of new packs."""
        names, losses = list(digests), self._index.losses
        self.refresh()
        found = self._index.find(names)
        if self._index.losses > losses:  # what was lost may have been looked up already
            self.refresh()
            found = self._index.find(names)
        return found

    def buried(self) -> Collection[str]:
        """The digests of all objects that have a tombstone."""
        return self._tombstones.all().keys()

    def instead(self, digests: Iterable[str]) -> dict[str, str]:
        """Of these objects, those that are not here since they were purged, and what stands in for them."""
        names = list(digests)
        known = self._index.find(names)
        return self._tombstones.instead(name for name in names if name not in known)

    def misremembered(self, packs: Iterable[Pack]) -> set[str]:
        """The packs, of all that are there, of which the index says something else than their headers."""
        there = {pack.name: pack for pack in packs}
        wrong = {name for name in self._index.packs() if name not in there}
        for pack in there.values():
            for name, place in self._index.find(pack.objects).items():
                expected = there[place.pack].objects.get(name) if place.pack in there else None
                if place != expected:
                    wrong.add(pack.name)
        return wrong

    def rebuild(self) -> None:
        """Make the index anew from the headers of packs."""
        self._index.clear()
        self._checked.clear()
        self.refresh()

    def alone(self) -> Objects:
        """The same objects without what ``absent`` would bring."""
        return Objects(self._store, self._index.path)

    def known(self) -> set[str]:
        """The packs that were seen so far. Nothing is looked up."""
        return set(self._index.packs())

    def learn(self, packs: Sequence[Pack]) -> None:
        """Remember packs that were put just now, whose headers then need not be read."""
        self._index.add(packs)

    def refresh(self) -> None:
        """Look which packs there are: read the headers of new ones, forget those that are gone."""
        # What is known is asked first: packs that are put and indexed meanwhile are not taken to be gone.
        known = self._index.packs()
        cut = {name: places for name, places in known.items() if places[0] < places[1]}
        names, sizes = self._listed(known.keys() - cut.keys())
        gone = (known.keys() - names) | {
            name for name in known.keys() & sizes if known[name][0] != sizes[name]
        }
        if gone:
            self._forget(gone)
        new = [(name, size) for name, size in sizes.items() if name not in known or name in gone]
        self._unreadable = {name: self._truncated(name, *cut[name]) for name in cut.keys() - gone}
        for first in range(0, len(new), _PACKS_AT_ONCE):
            self._index.add(self._headers(new[first : first + _PACKS_AT_ONCE]))

    def _listed(self, whole: Set[str]) -> tuple[set[str], dict[str, int]]:
        """The names of all packs, and sizes: the first time of all, and later, where a size costs a look at the file,
        without those of packs that are known to be ``whole``."""
        if self._has_listed and self._store.path("packs") is not None:
            names = self._store.names("packs")
            looked = {name: self._store.size(name) for name in sorted(names - whole) if is_pack(name)}
            sizes = {name: size for name, size in looked.items() if size is not None}
            return (names & whole) | sizes.keys(), sizes
        sizes = {entry.name: entry.size for entry in self._store.list("packs") if is_pack(entry.name)}
        self._has_listed = True
        return set(sizes), sizes

    def forget_cut(self, packs: Collection[str]) -> bool:
        """Forget those of these packs whose files are not as long as they were when they were looked at; whether there
        are any. The next :meth:`refresh` reads what they still hold."""
        if self._store.path("packs") is None:  # whose sizes come with every listing
            return False
        known = self._index.packs()
        cut = [name for name in packs if name in known and self._store.size(name) != known[name][0]]
        if cut:
            self._forget(cut)
        return bool(cut)

    # Writing

    def writing(
        self, before: Callable[[], None] | None = None, lock: AbstractContextManager[Any] | None = None
    ) -> PackWriter:
        """A writer for new objects. It trusts what is here to stay: nothing may be deleted while it is used.

        Args:
            before: called before each object is added. Who shuts out deletion only then calls :meth:`refresh`, too.
            lock: held while objects are added or published, where threads share the writer; reading needs none.
        """
        if before is None:
            self.refresh()
        return PackWriter(self._store, self._index, self, before, lock)

    # How

    def _headers(self, packs: Sequence[tuple[str, int]]) -> list[Pack]:
        if len(packs) > 1 and self._store.path(packs[0][0]) is None:
            with ThreadPoolExecutor(_REQUESTS) as pool:
                found = list(pool.map(self._header, packs))
        else:
            found = [self._header(pack) for pack in packs]
        return [pack for pack in found if pack is not None]

    def _header(self, pack: tuple[str, int]) -> Pack | None:
        name, size = pack
        try:
            read = read_pack(self._store, name, size)
        except NotFoundError:
            return None
        except (CorruptError, FormatError) as error:  # the others can be read all the same
            self._unreadable[name] = error
            return None
        if size < read.whole:
            self._unreadable[name] = self._truncated(name, size, read.whole)
        return read

    def _truncated(self, name: str, size: int, whole: int) -> CorruptError:
        return damaged(self._store, name, f"it has {size} bytes, but its header says {whole}")

    def _local(self, wanted: Iterable[str]) -> dict[str, Location]:
        """Where these objects are, without those that are not here."""
        names = list(dict.fromkeys(wanted))
        for name in names:
            if _DIGEST.fullmatch(name) is None:
                raise UsageError(
                    f"{name!r} is not an object's digest, which has 64 hex digits. Use the digest that add() returned."
                )
        found = self._index.find(names)
        if len(found) < len(names):
            found |= self._stand_ins([name for name in names if name not in found], again=False)
        if len(found) < len(names):
            found |= self._files([name for name in names if name not in found])
        if len(found) < len(names):
            self.refresh()
            found |= self._index.find(name for name in names if name not in found)
        if len(found) < len(names):
            found |= self._stand_ins([name for name in names if name not in found], again=True)
        return found

    def _stand_ins(self, names: Sequence[str], again: bool) -> dict[str, Location]:
        """Where what stands in for purged objects is."""
        options = self._tombstones.options(names, again)
        places = self._index.find({one for several in options.values() for one in several}) if options else {}
        here = {name: [one for one in several if one in places] for name, several in options.items()}
        return {name: places[several[0]] for name, several in here.items() if several}

    def _files(self, names: Sequence[str]) -> dict[str, Location]:
        sizes: Mapping[str, int | None]
        if len(names) > _LISTED:
            sizes = {entry.name[len("files/") :]: entry.size for entry in self._store.list("files")}
        else:
            sizes = {name: self._store.size(f"files/{name}") for name in names}
        return {
            name: Location(f"files/{name}", 0, size, "file", "U8", (size,))
            for name in names
            if (size := sizes.get(name)) is not None
        }

    def _find(self, wanted: Sequence[str]) -> dict[str, Location]:
        """Where these objects are, all of them."""
        found = self._local(wanted)
        if len(found) < len(wanted) and self._absent is not None:
            absent = [name for name in wanted if name not in found]
            instead = self._tombstones.instead(absent)
            self._absent([instead.get(name, name) for name in absent])
            found |= self._local(name for name in wanted if name not in found)
        if len(found) < len(wanted) and self._rebuild():
            found |= self._local(wanted)
        for name in wanted:
            if name not in found:
                raise self._not_found(name)
        return found

    def _not_found(self, name: str) -> StorageError:
        for pack, error in self._unreadable.items():
            return type(error)(
                f"the object {name} is in no pack that can be read whole, but {pack} cannot be: {error}"
            )
        return NotFoundError(
            f"the object {name} is not in {self._store.url}. Run `hopyard stock verify`, which says what needs it, and "
            "`hopyard stock fetch` if a remote has it."
        )

    def _read(
        self, digests: Iterable[str], verify: bool, mapped: Mapped | None = None
    ) -> dict[str, tuple[Location, Bytes]]:
        mapped = mapped or self._mapped
        wanted = list(dict.fromkeys(digests))
        result: dict[str, tuple[Location, Bytes]] = {}
        for _ in range(_ROUNDS):
            packs: dict[str, dict[str, Location]] = {}
            for name, place in self._find([name for name in wanted if name not in result]).items():
                packs.setdefault(place.pack, {})[name] = place
            for pack, places in packs.items():
                try:
                    for name, data in self._load(pack, places, mapped.get(pack)):
                        if verify:
                            self._check(name, places[name], data)
                        result[name] = places[name], data
                except NotFoundError:  # gone since it was looked up
                    self._forget([pack])
                except CorruptError:
                    mapped.forget(pack)
                    if self._is_indexed_rightly(pack, places):
                        raise
                    self._forget([pack])
            if len(result) == len(wanted):
                return {name: result[name] for name in wanted}
        raise self._not_found(next(name for name in wanted if name not in result))

    def _is_indexed_rightly(self, pack: str, places: dict[str, Location]) -> bool:
        """Whether the objects are where the pack's own header says; if not, it is the index that is damaged."""
        if not is_pack(pack):
            return True
        try:
            objects = read_pack(self._store, pack, self._store.size(pack) or 0).objects
        except (CorruptError, NotFoundError):  # looking for the objects anew says what is wrong
            return False
        options = self._tombstones.options(places)
        return all(
            place in [objects.get(one) for one in (name, *options.get(name, ()))]
            for name, place in places.items()
        )

    def _load(
        self, pack: str, places: dict[str, Location], mapped: Bytes | None
    ) -> Iterator[tuple[str, Bytes]]:
        size = self._store.size(pack) if mapped is None else mapped.size
        for name, place in places.items():
            if size is not None and not 0 <= place.start <= place.stop <= size:
                where = f"bytes {place.start}..{place.stop}"
                raise damaged(self._store, pack, f"it has {size} bytes, but the object {name} is {where}")
        if mapped is None:
            yield from self._load_ranges(pack, places)
        else:
            yield from ((name, mapped[place.start : place.stop]) for name, place in places.items())

    def _load_ranges(self, pack: str, places: dict[str, Location]) -> Iterator[tuple[str, Bytes]]:
        ordered = sorted(places.items(), key=lambda item: item[1].start)
        while ordered:
            first, last = ordered[0][1].start, ordered[0][1].stop
            count = 1
            for _, place in ordered[1:]:
                if place.start > last + _GAP or place.stop > first + _RANGE:
                    break
                last = max(last, place.stop)
                count += 1
            data = np.frombuffer(self._store.get(pack, first, last - first), np.uint8)
            for name, place in ordered[:count]:
                yield name, data[place.start - first : place.stop - first]
            del ordered[:count]

    def _check(self, name: str, place: Location, data: Bytes) -> None:
        checked = self._checked.setdefault(place.pack, set())
        if place.start in checked:
            return
        try:
            if place.kind == "tensor":
                found = Tensor(place.dtype, place.shape, data).digest
            else:
                found = digest_of(data, f"hopyard.{place.kind}")
        except DataError as error:
            found = str(error)
        if found != name and found not in self._tombstones.options([name]).get(name, ()):
            raise damaged(self._store, place.pack, f"the {place.kind} {name} in it has changed")
        checked.add(place.start)

    def _forget(self, packs: Iterable[str]) -> None:
        """Drop what is known of packs that are gone or were replaced."""
        gone = list(packs)
        self._index.remove(gone)
        for name in gone:
            self._mapped.forget(name)
            self._checked.pop(name, None)

    def _rebuild(self) -> bool:
        """Make the index anew from the headers, once: whether that was done."""
        with LOCK:
            first, self._rebuilt = not self._rebuilt, True
        if first:
            self._index.clear()
            self.refresh()
        return first
