"""Views: the things of one revision, or of a draft, by shelf and name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from hopyard.errors import UsageError
from hopyard.objects import Tensor
from hopyard.stockroom.maps import SortedMap, decode, encode
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.stockroom.records import Record, Shelf, parse
from hopyard.stockroom.views.guard import Guard

_Bytes = npt.NDArray[np.uint8]


class ObjectReader(Protocol):
    """Objects; or a writer, whose pending objects can be read too."""

    def read(self, digest: str) -> _Bytes: ...
    def read_many(self, digests: Iterable[str]) -> dict[str, _Bytes]: ...
    def json(self, digest: str) -> Any: ...
    def tensors(
        self, digests: Iterable[str], verify: bool = True, private: bool = False
    ) -> dict[str, Tensor]: ...
    def file(self, digest: str, verify: bool = True) -> Path | None: ...


class View(Protocol):
    """A revision, or a draft on top of one."""

    @property
    def objects(self) -> ObjectReader:
        """The objects, with those that a draft has added."""

    @property
    def revision(self) -> str:
        """The name of the view in messages."""

    def record(self, shelf: Shelf, name: str) -> Record | None:
        """The record of a thing; None if there is none of this name."""

    def has(self, shelf: Shelf, name: str) -> bool:
        """Whether there is a thing of this name."""

    def names(self, shelf: Shelf) -> list[str]:
        """All names, sorted."""


class WritableView(View, Protocol):
    """A view that is open for writing."""

    @property
    def guard(self) -> Guard:
        """The guard that says who may write."""

    @property
    def writer(self) -> PackfileWriter:
        """The writer that objects are added to."""

    def writing(self) -> AbstractContextManager[None]:
        """One write, from before anything that it depends on is read."""

    def noted(self, shelf: Shelf, name: str) -> Record | None:
        """The record of a thing, to be noted elsewhere: what it needs is added, also of columns with pending writes."""

    def set(self, shelf: Shelf, name: str, record: Record | None) -> None:
        """Say this of a thing; None: there is none of this name any more. What it needs was added before."""


def writable(view: View) -> WritableView:
    """The view, if it can be written to.

    Raises:
        UsageError: it was opened for reading, or another thread, task or process has a block open.
    """
    if isinstance(view, Others):
        view.guard.check("a write")
    if not hasattr(type(view), "set"):
        raise UsageError(
            f"{view.revision} was opened for reading. Write within `with stock.enable_write():`, or open "
            "StockRoom(path, enable_write=True)."
        )
    return cast(WritableView, view)


class Snapshot:
    """The view of a root map. Immutable and picklable; threads may share it.

    Args:
        objects: of the repository.
        root: digest of the root map; None: nothing is in it.
        revision: what messages call it, as a rule the commit's digest.
    """

    def __init__(self, objects: Objects | PackfileWriter, root: str | None, revision: str) -> None:
        self.objects = objects
        self.root = root
        self.revision = revision
        self._map = SortedMap(objects, root)

    def __reduce__(self) -> tuple[type[Snapshot], tuple[Objects | PackfileWriter, str | None, str]]:
        return Snapshot, (self.objects, self.root, self.revision)

    def __repr__(self) -> str:
        return f"Snapshot({self.revision!r}, root={self.root!r})"

    def record(self, shelf: Shelf, name: str) -> Record | None:
        """The record of a thing in the root map; None if there is none of this name."""
        return record_in(self._map, shelf, name)

    def has(self, shelf: Shelf, name: str) -> bool:
        """Whether there is a thing of this name."""
        return self.record(shelf, name) is not None

    def names(self, shelf: Shelf) -> list[str]:
        """All names on a shelf, sorted."""
        return names_in(self._map, shelf)


class Others(Snapshot):
    """The view of others than the owner of a block, while it is open: as it was before."""

    def __init__(
        self, objects: Objects | PackfileWriter, root: str | None, revision: str, guard: Guard
    ) -> None:
        super().__init__(objects, root, revision)
        self.guard = guard


def record_in(root: SortedMap, shelf: Shelf, name: str) -> Record | None:
    """The record of a thing in a root map."""
    json = root.get(encode((shelf, name)))
    return None if json is None else parse(json, f"{shelf}/{name}")


def names_in(root: SortedMap, shelf: Shelf) -> list[str]:
    """The names of a shelf in a root map, sorted."""
    first = encode((shelf, ""))
    return [place_of(key)[1] for key in root.keys(first, first[:-1] + bytes([first[-1] + 1]))]


def place_of(key: bytes) -> tuple[Shelf, str]:
    """Shelf and name of a key of a root map."""
    shelf, name = cast("tuple[Shelf, str]", decode(key))
    return shelf, name
