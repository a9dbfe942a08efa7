"""Objects of a store, read by ranges as if they were files."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from hopyard.storage.base import Store


class RangeReader(io.RawIOBase):
    """An object of a store as a file; only the ranges that are asked for are fetched, none across ``end``.

    Args:
        held: stretches that are here already, with where they begin.
    """

    def __init__(
        self, store: Store, key: str, size: int, end: int | None, held: Sequence[tuple[int, bytes]] = ()
    ) -> None:
        self._store, self._key, self._size = store, key, size
        self._held = held
        self._end = size if end is None else end
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        end = self._end if self._place < self._end else self._size
        wanted = min(len(buffer), end - self._place)
        if wanted <= 0:
            return 0
        for start, here in self._held:
            if start <= self._place < start + len(here):
                first = self._place - start
                taken = min(wanted, len(here) - first)
                buffer[:taken] = here[first : first + taken]
                self._place += taken
                return taken
        data = self._store.get(self._key, self._place, wanted)
        buffer[:wanted] = data
        self._place += wanted
        return wanted
