"""What shelves read from, and write to: the things of one revision by shelf and name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hopyard.stockroom.packs import PackWriter
from hopyard.stockroom.records import Record, Shelf

_Bytes = npt.NDArray[np.uint8]


class Readable(Protocol):
    """Objects; or a writer, whose pending objects can be read too."""

    def read(self, digest: str) -> _Bytes: ...
    def read_many(self, digests: Iterable[str]) -> dict[str, _Bytes]: ...
    def read_private(self, digests: Iterable[str]) -> dict[str, _Bytes]: ...
    def json(self, digest: str) -> Any: ...


class View(Protocol):
    """A revision, or a draft on top of one."""

    @property
    def objects(self) -> Readable:
        """Where objects are read; those that a draft has added too."""

    @property
    def revision(self) -> str:
        """What messages call it."""

    def record(self, shelf: Shelf, name: str) -> Record | None:
        """What it says of a thing; None if there is none of this name."""

    def names(self, shelf: Shelf) -> list[str]:
        """All names, sorted."""


@runtime_checkable
class Writable(View, Protocol):
    """A view that is open for writing."""

    @property
    def writer(self) -> PackWriter:
        """Where objects are added."""

    def set(self, shelf: Shelf, name: str, record: Record | None) -> None:
        """Say this of a thing; None: there is none of this name any more. What it needs was added before."""
