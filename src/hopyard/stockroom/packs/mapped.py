"""Store objects as arrays of their bytes, mapped once per process."""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from hopyard.stockroom.packs.forking import LOCK
from hopyard.storage import Store

Bytes = npt.NDArray[np.uint8]

_KEPT = 256  # each is a file descriptor, of which a process usually has 1024


class Mapped:
    """The objects of one store that were mapped last.

    Args:
        access: ``mmap.ACCESS_READ``; or ``mmap.ACCESS_COPY`` for arrays that may be written to, privately.
    """

    def __init__(self, store: Store, access: int = mmap.ACCESS_READ) -> None:
        self._store, self._access = store, access
        self._kept: OrderedDict[str, Bytes] = OrderedDict()

    def get(self, name: str) -> Bytes | None:
        """All bytes of the object; None if it cannot be mapped, though it may be there."""
        with LOCK:
            array = self._kept.get(name)
            if array is not None:
                self._kept.move_to_end(name)
                return array
        path = self._store.path(name)
        if path is None:
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Of the size that the file has now: what lies beyond its end is never touched.
                size = os.fstat(descriptor).st_size
                array = np.frombuffer(mmap.mmap(descriptor, size, access=self._access), np.uint8)
            finally:
                os.close(descriptor)
        except (OSError, ValueError):  # gone, empty, or too many are open: reading it says what is wrong
            return None
        with LOCK:
            self._kept[name] = array
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return array

    def forget(self, name: str) -> None:
        """Map the object anew when it is next asked for."""
        with LOCK:
            self._kept.pop(name, None)
