"""Metadata on its way from a remote: whole packfiles where most of one is wanted, else single objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError, NotFoundError
from hopyard.objects import Tensor
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.stockroom.packfiles.layout import Location, Packfile, damaged, is_packfile, read_packfile
from hopyard.stockroom.records import parsing
from hopyard.stockroom.remotes.repository import Repository, unreadable
from hopyard.storage import MemoryStore, Store

_SMALL = 4 << 20  # bytes of a packfile that is copied whole, whatever is wanted of it
_AT_ONCE = 8  # packfiles under way
_REQUIRED_AT_ONCE = 1000

_Bytes = npt.NDArray[np.uint8]


class Arriving:
    """Reads objects here; those that are not here are brought from the remote first.

    Args:
        writer: takes single objects. They are here for others once it has published.

    Attributes:
        nbytes: what came from the remote.
    """

    def __init__(self, local: Repository, remote: Repository, writer: PackfileWriter) -> None:
        self._local, self._remote, self._writer = local, remote, writer
        self._added: set[str] = set()
        self._sizes: dict[str, int] | None = None
        self.nbytes: int = 0

    def copy_new_packfiles(self) -> None:
        """Bring all packfiles of metadata at once that the remote has got since they were last looked at."""
        seen = self._remote.objects.known() | {entry.name for entry in self._local.store.list("packfiles")}
        sizes = self._listed()
        new = [name for name in sizes if name.startswith("packfiles/meta-") and name not in seen]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            packfiles = list(pool.map(self._copy_if_new, new))
        self._learn([packfile for packfile in packfiles if packfile is not None])

    # Reading

    def read(self, digest: str) -> _Bytes:
        return self.read_many((digest,))[digest]

    def read_many(self, digests: Iterable[str]) -> dict[str, _Bytes]:
        wanted = list(digests)
        self._ensure(wanted)
        return self._writer.read_many(wanted)

    def json(self, digest: str) -> Any:
        return parsing.named_json(digest, self.read(digest))

    def tensors(
        self, digests: Iterable[str], verify: bool = True, private: bool = False
    ) -> dict[str, Tensor]:
        return self._local.objects.tensors(digests, verify, private)

    def file(self, digest: str, verify: bool = True) -> Path | None:
        return self._local.objects.file(digest, verify)

    def require(self, digests: Iterable[str]) -> None:
        """Bring what is not here, many at a time; for what is needed without being looked at."""
        waiting = iter(digests)
        while some := list(islice(waiting, _REQUIRED_AT_ONCE)):
            self._ensure(some)

    # Bringing

    def _ensure(self, digests: Sequence[str]) -> None:
        if missing := self._local.objects.missing(d for d in digests if d not in self._added):
            self._bring(sorted(missing))

    def _bring(self, missing: list[str]) -> None:
        places = self._remote.objects.packed(missing)
        packfiles: dict[str, dict[str, Location]] = {}
        for digest in missing:
            if digest not in places:
                raise NotFoundError(
                    f"{self._remote.store.url} lacks the object {digest}, which a commit that it shows needs. Run "
                    "`hopyard stock verify` there; then push that commit again from where it is. Nothing changed "
                    f"here.{unreadable([self._remote])}"
                )
            packfiles.setdefault(places[digest].packfile, {})[digest] = places[digest]
        whole = [name for name in packfiles if self._listed().get(name, _SMALL + 1) <= _SMALL]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            copied = [packfile for packfile in pool.map(self._copy, whole) if packfile is not None]
        self._learn(copied)
        for packfile in copied:
            del packfiles[packfile.name]
        rest = {digest: place for places in packfiles.values() for digest, place in places.items()}
        for digest, data in self._remote.objects.read_many(rest).items():
            self._writer.add(rest[digest].kind, data)
            self._added.add(digest)
            self.nbytes += data.size

    def _listed(self) -> dict[str, int]:
        if self._sizes is None:
            self._sizes = {
                e.name: e.size for e in self._remote.store.list("packfiles") if is_packfile(e.name)
            }
        return self._sizes

    def _learn(self, packfiles: Sequence[Packfile]) -> None:
        for objects in (self._local.objects, self._remote.objects):
            objects.learn(packfiles)
        self.nbytes += sum(packfile.size for packfile in packfiles)

    def _copy_if_new(self, name: str) -> Packfile | None:
        """Copy the packfile, unless it is large, and half of it is here."""
        size = self._listed()[name]
        if size > _SMALL:
            try:
                packfile = read_packfile(self._remote.store, name, size)
            except (CorruptError, NotFoundError):  # whoever needs something of it is told
                return None
            held = packfile.objects
            if packfile.whole != size or 2 * len(self._local.objects.missing(held)) < len(held):
                return None
        return self._copy(name)

    def _copy(self, name: str) -> Packfile | None:
        """Copy the packfile; None if it is gone, or damaged in whatever part."""
        try:
            data = self._remote.store.get(name)
            packfile = _checked(self._remote.store, name, data)
        except (CorruptError, NotFoundError):
            return None
        self._local.store.put(name, data)
        return packfile


def _checked(store: Store, name: str, data: bytes) -> Packfile:
    """The packfile whose bytes these are.

    Raises:
        CorruptError: it, or an object in it, is not what was written.
    """
    alone = MemoryStore()
    alone.put(name, data)
    packfile = read_packfile(alone, name, len(data))
    if packfile.whole > len(data):
        raise damaged(store, name, f"it has {len(data)} bytes, but its header says {packfile.whole}")
    Objects(alone).read_many(packfile.objects)
    return packfile
