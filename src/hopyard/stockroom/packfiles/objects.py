"""Reads objects, wherever they are packed."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopyard.errors import (
    CorruptError,
    FormatError,
    NotFoundError,
    StorageError,
    UsageError,
)
from hopyard.objects.tensors import Tensor
from hopyard.stockroom.packfiles.forking import LOCK
from hopyard.stockroom.packfiles.index import Index
from hopyard.stockroom.packfiles.layout import (
    Location,
    Packfile,
    damaged,
    digest_at,
    file_location,
    is_packfile,
    read_packfile,
)
from hopyard.stockroom.packfiles.mapped import Bytes, FileIdentity, Mapped, VerifiedObjects, identity_at
from hopyard.stockroom.packfiles.tombstones import Purged, Tombstones
from hopyard.stockroom.packfiles.writer import PackfileWriter
from hopyard.stockroom.records import parsing
from hopyard.storage import MemoryStore, Store

Absent = Callable[[Sequence[str]], None]
_Find = Callable[[Sequence[str]], Mapping[str, Location]]

_DIGEST = re.compile("[0-9a-f]{64}")
_ROUNDS = 10  # of looking up objects whose packfile was gone when it was read
_LISTED = 32  # files that are looked for one by one; for more of them all are listed
_REQUESTS = 16  # headers that are read at once where files cannot be mapped
_PACKFILES_AT_ONCE = 64  # whose objects are added to the index together
_GAP = 1 << 17  # bytes between ranges of a remote packfile that cost less than another request
_FEW = 1 << 20  # bytes of one packfile that are copied rather than held mapped, which takes a file descriptor
_INLINE = 4 << 20  # bytes that are hashed sooner than handed to new threads
_PART = 1 << 20  # bytes that one thread hashes of small objects at a time
_LARGE = 16 << 20  # bytes of an object that is hashed by several threads
_CORES = os.cpu_count() or 1
_RANGE = 16 << 20  # bytes that one request brings at most, unless one object is larger


class _Loaded(NamedTuple):
    """The bytes of an object, not checked.

    Attributes:
        identity: of the file that they are mapped from, if they are.
        known: where the objects in it begin that were checked.
    """

    name: str
    place: Location
    data: Bytes
    identity: FileIdentity | None
    known: set[int]

    @property
    def is_checked(self) -> bool:
        return self.data.size > 0 and self.place.start in self.known


class Objects:
    """The objects of a repository. See the room's text for the rules.

    Args:
        store: the repository's root.
        index: a SQLite file on this machine, made if it is missing; None: the index is in memory.
        absent: called with digests of objects that are not here. It brings them, or raises.
        is_own: whether the tombstones there are believed, so that what stands in for purged objects is read instead of
            them. A remote's are not: each object is what its digest says, or is not there.
    """

    def __init__(
        self, store: Store, index: Path | None = None, absent: Absent | None = None, is_own: bool = True
    ) -> None:
        self._store, self._absent = store, absent
        self._index = Index(index)
        self._mapped = Mapped(store)
        self._is_own = is_own
        self._tombstones = Tombstones(store if is_own else MemoryStore())
        self._checked = VerifiedObjects()
        # By packfile the objects in it that are damaged.
        self._bad: dict[str, tuple[FileIdentity, set[str]]] = {}
        self._unreadable: dict[str, StorageError] = {}
        self._rebuilt = self._has_listed = False
        self._mark: object = (
            None  # with which no packfile was deleted since all were listed; see history.locks
        )

    def __reduce__(self) -> tuple[type[Objects], tuple[Store, Path | None, Absent | None, bool]]:
        return Objects, (self._store, self._index.path, self._absent, self._is_own)

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

        They are compared with the digest when this process first reads them, unless ``verify`` is False. Where several
        packfiles hold the object, one that is damaged in some is read from another.

        Raises:
            NotFoundError: it is not here; CorruptError: it, or the packfile it should be in, is damaged.
        """
        if not self._bad and _DIGEST.fullmatch(digest) is not None:
            # Most reading is of single small objects, which are mapped and whole.
            place = self._index.find((digest,)).get(digest)
            whole = None if place is None else self._mapped_whole(digest, place)
            if whole is not None:
                return whole
        return self._read((digest,), verify)[digest][1]

    def read_many(self, digests: Iterable[str], verify: bool = True) -> dict[str, Bytes]:
        """The same for many; where files cannot be mapped, what lies close together comes with one request."""
        return {name: data for name, (_, data) in self._read(digests, verify).items()}

    def _read_private(self, digests: Iterable[str], verify: bool) -> dict[str, tuple[Location, Bytes]]:
        found = self._read(digests, verify, Mapped(self._store, mmap.ACCESS_COPY))
        wanted: dict[str, int] = {}
        for place, data in found.values():
            wanted[place.packfile] = wanted.get(place.packfile, 0) + data.size
        return {
            name: (place, data if data.flags.writeable and wanted[place.packfile] >= _FEW else data.copy())
            for name, (place, data) in found.items()
        }

    def tensors(
        self, digests: Iterable[str], verify: bool = True, private: bool = False
    ) -> dict[str, Tensor]:
        """Tensors that know their digests, sharing memory with what is mapped.

        Args:
            private: their memory is the caller's own: it may be written to, which changes nothing but it. Where the
                store has files they are mapped copy-on-write: what was checked, and is not touched, is not read.

        Raises:
            CorruptError: one is damaged, or is no tensor.
        """
        found = self._read_private(digests, verify) if private else self._read(digests, verify)
        tensors = {}
        for name, (place, data) in found.items():
            if place.kind != "tensor":
                raise CorruptError(
                    f"the object {name} is a {place.kind}, but something names it as a tensor. Run `hopyard stock "
                    "verify`, which says what needs it; then bring that from a remote."
                )
            tensors[name] = Tensor(place.dtype, place.shape, data)
            tensors[name].know(name)
        return tensors

    def damaged(self, places: Mapping[str, Location]) -> set[str]:
        """Objects, looked up at these places, that are not as they were written in any packfile
        that holds them."""
        # Most were read or looked at before: a model that is saved again has many tensors, one of which is new.
        rest = [name for name, place in places.items() if self._known_whole(place) is None]
        return set(self._gather(rest, True, self._mapped, self._local)[1]) if rest else set()

    def _known_whole(self, place: Location) -> Bytes | None:
        """The bytes at a place that were compared with their digest in this process; None: they may not have been."""
        view = self._mapped.get(place.packfile)
        if view is None or not place.start < place.stop <= len(view.data):
            return None
        is_checked = place.start in self._checked.of(place.packfile, view.identity)
        return view.data[place.start : place.stop] if is_checked else None

    def _mapped_whole(self, name: str, place: Location) -> Bytes | None:
        """The bytes of an object at a place, compared with its digest; None: they are not that, or not mapped, or so
        many that they are hashed on all cores."""
        known = self._known_whole(place)
        if known is None and 0 < place.stop - place.start < _INLINE:
            view = self._mapped.get(place.packfile)
            if view is not None and place.stop <= len(view.data):
                data = view.data[place.start : place.stop]
                if digest_at(place, data) == name:
                    self._checked.of(place.packfile, view.identity).add(place.start)
                    return data
        return known

    def whole(self, places: Mapping[str, Location]) -> dict[str, Location]:
        """Places where objects, which packfiles hold at these places, are as they were written: there, or else in
        another packfile. Without those that are damaged in all. Each place is looked at once in this process."""
        names = list(places)
        found, _ = self._gather(names, True, self._mapped, lambda left: {name: places[name] for name in left})
        return {name: one.place for name, one in found.items()}

    def are_whole(
        self, places: Mapping[str, Location], identities: Mapping[str, FileIdentity | None]
    ) -> bool:
        """Whether these objects are what was written, at these places, in packfiles that are still the same files."""
        for packfile in {place.packfile for place in places.values()}:
            view = self._mapped.get(packfile)
            if view is None or view.identity != identities[packfile]:
                self._mapped.forget(packfile)
                return False
        return self.whole(places) == places

    def json(self, digest: str) -> Any:
        """The value of an object whose bytes are JSON.

        Raises:
            CorruptError: they are not.
        """
        return parsing.named_json(digest, self.read(digest))

    def file(self, digest: str, verify: bool = True) -> Path | None:
        """Path of an object of kind ``file``, not to be written to; None if the store has no files (use ``read``).

        Its bytes are compared with the digest once in this process, unless ``verify`` is False: they may be many, and
        only some of them needed.

        Raises:
            CorruptError: the file has changed.
        """
        path = self._store.path(self._file(digest).packfile)
        if verify and path is not None:
            self.read(digest)
        return path

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
        return self._store.get(self._file(digest).packfile, start, length)

    # Looking up

    def locate(self, digest: str) -> Location:
        """Place of the object. Its packfile may be deleted at any moment, once its objects are packed elsewhere:
        whoever finds that it is gone calls :meth:`refresh` and locates it again.

        Raises:
            NotFoundError: it is not here; CorruptError: the packfile it should be in is damaged.
        """
        return self._find((digest,))[digest]

    def locate_many(self, digests: Sequence[str]) -> dict[str, Location]:
        """The same for many."""
        return self._find(digests)

    def path(self, packfile: str) -> Path | None:
        """The file of a packfile that :meth:`locate` named, which may be gone; None if the store has no files."""
        return self._store.path(packfile)

    def has(self, digest: str) -> bool:
        """Whether the object is here."""
        return not self.missing((digest,))

    def missing(self, digests: Iterable[str]) -> set[str]:
        """Objects of these that are not here."""
        wanted = set(digests)
        return wanted - self._local(wanted).keys()

    def beginning(self, prefix: str, kind: str) -> list[str]:
        """The objects of a kind here whose digests begin so, in order; ``prefix`` is of lower-case hex digits."""
        self.refresh()
        return self._index.beginning(prefix, kind)

    def here(self, digests: Iterable[str]) -> dict[str, Location]:
        """The places of these objects, as far as they are here."""
        return self._local(digests)

    def packed(self, digests: Iterable[str]) -> dict[str, Location]:
        """Places of the objects of these that are in packfiles now: one listing, and the headers of new
        packfiles."""
        names, losses = list(digests), self._index.losses
        self.refresh()
        found = self._indexed(names)
        if self._index.losses > losses:  # what was lost may have been looked up already
            self.refresh()
            found = self._indexed(names)
        return found

    def buried(self) -> Mapping[str, str]:
        """Of all objects that have a tombstone now what stands in for them: another one once more is purged."""
        return {name: several[0].instead for name, several in self._tombstones.all().items()}

    def purges(self, column: str) -> list[Purged]:
        """The records of samples that were purged from fragments of a column of this name."""
        every = (one for several in self._tombstones.all().values() for one in several)
        return [each for one in every if one.column == column for each in one.purged]

    def instead(self, digests: Iterable[str]) -> dict[str, str]:
        """Of these objects, those that are not here since they were purged, and what stands in for them."""
        names = list(digests)
        known = self._index.find(names)
        return self._tombstones.instead(name for name in names if name not in known)

    def misremembered(self, packfiles: Iterable[Packfile]) -> set[str]:
        """The packfiles, of all that are there, of which the index says something else than their headers."""
        there = {packfile.name: packfile for packfile in packfiles}
        wrong = {name for name in self._index.packfiles() if name not in there}
        for packfile in there.values():
            for name, place in self._index.find(packfile.objects).items():
                expected = there[place.packfile].objects.get(name) if place.packfile in there else None
                if place != expected:
                    wrong.add(packfile.name)
        return wrong

    def rebuild(self) -> None:
        """Make the index anew from the headers of packfiles."""
        self._checked.clear()
        self._index_anew()

    def _index_anew(self) -> None:
        had = self._index.all_data()
        self._index.clear()
        self.refresh()
        self._index.note_gone(had)

    def lost(self) -> set[str]:
        """Data that were in a packfile here which is gone, damaged in its header or cut off, and that are in no
        other."""
        return self._index.gone()

    def alone(self) -> Objects:
        """The same objects without what ``absent`` would bring."""
        return Objects(self._store, self._index.path)

    def known(self) -> set[str]:
        """The packfiles that were seen so far. Nothing is looked up."""
        return set(self._index.packfiles())

    def learn(self, packfiles: Sequence[Packfile]) -> None:
        """Remember packfiles that were put just now, whose headers then need not be read."""
        self._index.add(packfiles)

    def refresh(self) -> None:
        """Look which packfiles there are: read the headers of new ones, forget those that are gone."""
        self._refresh()
        with LOCK:
            self._mark = None  # what was listed may be gone by now, unless it cannot be deleted meanwhile

    def refresh_at(self, mark: bytes | None) -> None:
        """The same for who keeps packfiles from being deleted; nothing if none was since this was called last.

        Args:
            mark: of the last deletion; None: it is not known.
        """
        if mark is not None and mark == self._mark:
            return
        looking = self._mark = object()
        self._refresh()
        with LOCK:
            if mark is not None and self._mark is looking:  # no other thread has listed at the same time
                self._mark = mark

    def _refresh(self) -> None:
        # Where packfiles went, their objects are in others by now, which the listing may have come too early for.
        gone: set[str] = set()
        for _ in range(_ROUNDS):
            before, gone = gone, self._look()
            if gone <= before:
                break

    def _look(self) -> set[str]:
        """List packfiles once; the packfiles that went since they were known, or while it looked."""
        # What is known is asked first: packfiles that are put and indexed meanwhile are not taken to be gone.
        known = self._index.packfiles()
        cut = {name: places for name, places in known.items() if places[0] < places[1]}
        names, sizes, lost = self._listed(known.keys() - cut.keys())
        gone = (known.keys() - names) | {
            name for name in known.keys() & sizes if known[name][0] != sizes[name]
        }
        if gone:
            self._forget(gone)
        # Of others the index may not know any more, where another process deleted them.
        for name in self._mapped.names() - names:
            if is_packfile(name):
                self._mapped.forget(name)
                self._checked.forget(name)
        new = [(name, size) for name, size in sizes.items() if name not in known or name in gone]
        self._unreadable = {name: self._truncated(name, *cut[name]) for name in cut.keys() - gone}
        read: set[str] = set()
        for first in range(0, len(new), _PACKFILES_AT_ONCE):
            packfiles = self._headers(new[first : first + _PACKFILES_AT_ONCE])
            self._index.add(packfiles)
            read.update(packfile.name for packfile in packfiles)
        return gone | lost | {name for name, _ in new if name not in read and name not in self._unreadable}

    def _listed(self, whole: Set[str]) -> tuple[set[str], dict[str, int], set[str]]:
        """The names of all packfiles, and sizes: the first time of all, and later, where a size costs a look at the
        file, without those of packfiles that are known to be ``whole``; and the names of those that went meanwhile."""
        if self._has_listed and self._store.path("packfiles") is not None:
            names = self._store.names("packfiles")
            looked = {name: self._store.size(name) for name in sorted(names - whole) if is_packfile(name)}
            sizes = {name: size for name, size in looked.items() if size is not None}
            return (names & whole) | sizes.keys(), sizes, looked.keys() - sizes.keys()
        sizes = {entry.name: entry.size for entry in self._store.list("packfiles") if is_packfile(entry.name)}
        self._has_listed = True
        return set(sizes), sizes, set()

    @property
    def unreadable(self) -> Mapping[str, StorageError]:
        """Packfiles that could not be read when they were last looked at, and why."""
        return self._unreadable

    def forget_cut(self, packfiles: Collection[str]) -> bool:
        """Forget those of these packfiles whose files are not as long as they were when they were looked at; whether
        there are any. The next :meth:`refresh` reads what they still hold."""
        if self._store.path("packfiles") is None:  # whose sizes come with every listing
            return False
        known = self._index.sizes(packfiles)
        cut = [name for name, size in known.items() if self._store.size(name) != size]
        if cut:
            self._forget(cut)
        return bool(cut)

    # Writing

    def writing(
        self, before: Callable[[], None] | None = None, lock: AbstractContextManager[Any] | None = None
    ) -> PackfileWriter:
        """A writer for new objects. It trusts what is here to stay: nothing may be deleted while it is used.

        Args:
            before: called before each object is added. Who shuts out deletion only then calls :meth:`refresh_at` and
                the writer's ``look_anew``, too.
            lock: held while objects are added or published, where threads share the writer; reading needs none.
        """
        if before is None:
            self.refresh()
        return PackfileWriter(self._store, self._index, self, before, lock)

    # How

    def _headers(self, packfiles: Sequence[tuple[str, int]]) -> list[Packfile]:
        if len(packfiles) > 1 and self._store.path(packfiles[0][0]) is None:
            with ThreadPoolExecutor(_REQUESTS) as pool:
                found = list(pool.map(self._header, packfiles))
        else:
            found = [self._header(packfile) for packfile in packfiles]
        return [packfile for packfile in found if packfile is not None]

    def _header(self, packfile: tuple[str, int]) -> Packfile | None:
        name, size = packfile
        try:
            read = read_packfile(self._store, name, size)
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
        """The places of these objects, without those that are not here."""
        names = list(dict.fromkeys(wanted))
        for name in names:
            if _DIGEST.fullmatch(name) is None:
                raise UsageError(
                    f"{name!r} is not an object's digest, which has 64 hex digits. Use the digest that add() returned."
                )
        found = self._indexed(names)
        if len(found) < len(names):
            found |= self._stand_ins([name for name in names if name not in found], again=False)
        if len(found) < len(names):
            found |= self._files([name for name in names if name not in found])
        if len(found) < len(names):
            self.refresh()
            found |= self._indexed([name for name in names if name not in found])
        if len(found) < len(names):
            found |= self._stand_ins([name for name in names if name not in found], again=True)
        return found

    def _stand_ins(self, names: Sequence[str], again: bool) -> dict[str, Location]:
        """The places of stand-ins for purged objects."""
        options = self._tombstones.options(names, again)
        places = self._index.find({one for several in options.values() for one in several}) if options else {}
        here = {name: [one for one in several if one in places] for name, several in options.items()}
        return {
            name: places[several[0]]
            for name, several in here.items()
            if several and places[several[0]].kind == "fragment"
        }

    def _files(self, names: Sequence[str]) -> dict[str, Location]:
        sizes: Mapping[str, int | None]
        if len(names) > _LISTED:
            sizes = {entry.name[len("files/") :]: entry.size for entry in self._store.list("files")}
        else:
            sizes = {name: self._store.size(f"files/{name}") for name in names}
        return {name: file_location(name, size) for name in names if (size := sizes.get(name)) is not None}

    def _find(self, wanted: Sequence[str]) -> dict[str, Location]:
        """The places of these objects, all of them."""
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
        for packfile, error in self._unreadable.items():
            return type(error)(
                f"the object {name} is in no packfile that can be read whole, but {packfile} cannot be: {error}"
            )
        return NotFoundError(
            f"the object {name} is not in {self._store.url}. Run `hopyard stock verify`, which says what needs it, and "
            "`hopyard stock fetch` if a remote has it."
        )

    def _indexed(self, names: Sequence[str]) -> dict[str, Location]:
        """Locations of the objects that are in packfiles: where they are not known to be damaged, if there is such a
        place."""
        found = self._index.find(names)
        if not self._bad:
            return found
        for packfile in [
            packfile
            for packfile, (identity, _) in self._bad.items()
            if not self._is_still(packfile, identity)
        ]:
            self._mapped.forget(packfile)
            self._bad.pop(packfile, None)
        for name in [name for name, place in found.items() if self._is_bad(name, place)]:
            others = [place for place in self._index.places(name) if not self._is_bad(name, place)]
            found[name] = others[0] if others else found[name]
        return found

    def _is_still(self, packfile: str, identity: FileIdentity) -> bool:
        return identity_at(self._store.path(packfile)) == identity

    def _is_bad(self, name: str, place: Location) -> bool:
        return place.packfile in self._bad and name in self._bad[place.packfile][1]

    def _read(
        self, digests: Iterable[str], verify: bool, mapped: Mapped | None = None
    ) -> dict[str, tuple[Location, Bytes]]:
        wanted = list(dict.fromkeys(digests))
        found, wrong = self._gather(wanted, verify, mapped or self._mapped, self._find)
        for error in wrong.values():
            raise error
        return {name: (found[name].place, found[name].data) for name in wanted}

    def _gather(
        self, wanted: Sequence[str], verify: bool, mapped: Mapped, find: _Find
    ) -> tuple[dict[str, _Loaded], dict[str, StorageError]]:
        """These objects; and of the others why they cannot be had."""
        result: dict[str, _Loaded] = {}
        wrong: dict[str, StorageError] = {}
        tried: dict[str, set[str]] = {}  # the packfiles in which an object is damaged
        for _ in range(_ROUNDS):
            left = [name for name in wanted if name not in result and name not in wrong]
            if not left:
                break
            packfiles: dict[str, dict[str, Location]] = {}
            for name, place in find(left).items():
                if place.packfile in tried.get(name, ()):
                    place = next(one for one in self._index.places(name) if one.packfile not in tried[name])
                packfiles.setdefault(place.packfile, {})[name] = place
            loaded: list[_Loaded] = []
            for packfile, places in packfiles.items():
                try:
                    loaded += self._load(packfile, places, mapped)
                except NotFoundError:  # gone since it was looked up
                    self._forget([packfile])
            bad: dict[str, list[_Loaded]] = {}
            for one, is_right in zip(loaded, self._compare(loaded, verify), strict=True):
                if is_right:
                    result[one.name] = one
                else:
                    bad.setdefault(one.place.packfile, []).append(one)
            for packfile, several in bad.items():
                mapped.forget(packfile)
                self._mapped.forget(packfile)
                identity = several[0].identity
                if identity is not None and not self._is_still(packfile, identity):
                    continue  # it was replaced meanwhile
                if self._is_indexed_rightly(packfile, {one.name: one.place for one in several}):
                    wrong |= self._note_damage(packfile, several, tried)
                else:
                    self._forget([packfile])
        return result, wrong | {
            name: self._not_found(name) for name in wanted if name not in result and name not in wrong
        }

    def _note_damage(
        self, packfile: str, several: Sequence[_Loaded], tried: dict[str, set[str]]
    ) -> dict[str, StorageError]:
        """Let others read these objects elsewhere; the errors of those that no other packfile holds."""
        identity = several[0].identity
        if identity is not None:
            if packfile not in self._bad or self._bad[packfile][0] != identity:
                self._bad[packfile] = identity, set()
            self._bad[packfile][1].update(one.name for one in several)
        errors: dict[str, StorageError] = {}
        for name, place, data, *_ in several:
            tried.setdefault(name, set()).add(packfile)
            if all(one.packfile in tried[name] for one in self._index.places(name)):
                reason = f"the {place.kind} {name} in it has changed"
                if data.size != place.stop - place.start:
                    reason = f"it ends within the {place.kind} {name}"
                errors[name] = damaged(self._store, packfile, reason)
        return errors

    def _is_indexed_rightly(self, packfile: str, places: dict[str, Location]) -> bool:
        """Whether the objects are where the packfile's own header says; if not, it is the index that is damaged."""
        if not is_packfile(packfile):
            return True
        try:
            objects = read_packfile(self._store, packfile, self._store.size(packfile) or 0).objects
        except (CorruptError, NotFoundError):  # looking for the objects anew says what is wrong
            return False
        options = self._tombstones.options(places)
        return all(
            place in [objects.get(one) for one in (name, *options.get(name, ()))]
            for name, place in places.items()
        )

    def _load(self, packfile: str, places: dict[str, Location], mapped: Mapped) -> Iterator[_Loaded]:
        """The bytes of these objects; fewer where the packfile has fewer.

        Raises:
            NotFoundError: the packfile is gone.
        """
        view = mapped.get(packfile)
        if view is not None:
            known = self._checked.of(packfile, view.identity)
            for name, place in places.items():
                yield _Loaded(name, place, view.data[place.start : place.stop], view.identity, known)
            return
        size = self._store.size(packfile)
        inside = {name: place for name, place in places.items() if size is None or place.stop <= size}
        for name, data in self._load_ranges(packfile, inside):
            yield _Loaded(name, places[name], data, None, set())
        for name in places.keys() - inside.keys():
            yield _Loaded(name, places[name], np.empty(0, np.uint8), None, set())

    def _load_ranges(self, packfile: str, places: dict[str, Location]) -> Iterator[tuple[str, Bytes]]:
        ordered = sorted(places.items(), key=lambda item: item[1].start)
        while ordered:
            first, last = ordered[0][1].start, ordered[0][1].stop
            count = 1
            for _, place in ordered[1:]:
                if place.start > last + _GAP or place.stop > first + _RANGE:
                    break
                last = max(last, place.stop)
                count += 1
            data = np.frombuffer(self._store.get(packfile, first, last - first), np.uint8)
            for name, place in ordered[:count]:
                yield name, data[place.start - first : place.stop - first]
            del ordered[:count]

    def _compare(self, loaded: Sequence[_Loaded], verify: bool) -> Iterator[bool]:
        """Of each whether it is what its digest says; without ``verify`` whether all its bytes are there."""
        new = [one for one in loaded if verify and not one.is_checked]
        digests = iter(_digests([(one.place, one.data) for one in new]))
        for one in loaded:
            is_right = one.data.size == one.place.stop - one.place.start
            if verify and not one.is_checked:
                found = next(digests)
                is_right &= found == one.name or found in self._tombstones.options([one.name]).get(
                    one.name, ()
                )
                if is_right and one.data.size:  # an empty one begins where the next does
                    one.known.add(one.place.start)
            yield is_right

    def _forget(self, packfiles: Iterable[str]) -> None:
        """Drop what is known of packfiles that are gone or were replaced."""
        gone = list(packfiles)
        self._index.remove(gone)
        for name in gone:
            self._mapped.forget(name)
            self._checked.forget(name)
            self._bad.pop(name, None)

    def _rebuild(self) -> bool:
        """Make the index anew from the headers, once: whether that was done."""
        with LOCK:
            first, self._rebuilt = not self._rebuilt, True
        if first:
            self._index_anew()
        return first


def _digests(objects: Sequence[tuple[Location, Bytes]]) -> list[str]:
    """Of the bytes of objects, on all cores: of large ones each, of small ones many on one."""
    if sum(data.size for _, data in objects) < _INLINE:
        return [digest_at(place, data) for place, data in objects]
    found = [digest_at(place, data, _CORES) if data.size >= _LARGE else "" for place, data in objects]
    parts: list[list[int]] = [[]]
    size = 0
    for number, (_, data) in enumerate(objects):
        if data.size < _LARGE:
            if size >= _PART:
                parts.append([])
                size = 0
            parts[-1].append(number)
            size += data.size
    with ThreadPoolExecutor(_CORES) as pool:
        for part, digests in zip(
            parts, pool.map(lambda part: [digest_at(*objects[number]) for number in part], parts), strict=True
        ):
            for number, one in zip(part, digests, strict=True):
                found[number] = one
    return found
