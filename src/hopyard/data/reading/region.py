"""Files side by side in one stretch of addresses, so that one ``take`` gathers from all of them.

A stretch of addresses is reserved, and each file is mapped into it, read only, where the caller's
alignment asks for it. What is reserved costs no memory, and mapped pages belong to the page cache.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.files.stored import StoredFile, remember
from hopyard.errors import CorruptError, NotFoundError, StorageError

_MAP_FIXED = 0x10  # the same on Linux and macOS; Python's mmap names neither
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
_WIDEST_ALIGNMENT = 1 << 30
_REMEMBERED_REGIONS = 64
_HUGE_PAGE = (
    2 << 20
)  # bytes; where the page cache has them, a mapping that is aligned like the file uses them
_MANY_FILES = 1024  # each is two of the 65,530 mappings that a process may have (vm.max_map_count)
_SMALL = 256 << 20  # bytes; so many files that are no larger together are read instead

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
]  # fmt: skip


class Region:
    """The bytes of several files in one stretch of addresses. Many small files are read instead of mapped.

    Attributes:
        bytes: (total,) uint8, read only; all files, with zeros between them.
        starts: where each file begins in ``bytes``, multiples of the alignment asked for.
        is_mapped: whether the files are; otherwise ``bytes`` is memory.
    """

    def __init__(self, files: Sequence[StoredFile], alignment: int) -> None:
        self.starts: list[int] = []
        total = 0
        for file in files:
            self.starts.append(total)
            total += -(-file.size // alignment) * alignment
        self.is_mapped: bool = len(files) <= _MANY_FILES or sum(file.size for file in files) > _SMALL
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        access = mmap.PROT_READ if self.is_mapped else mmap.PROT_READ | mmap.PROT_WRITE
        reserved = np.frombuffer(mmap.mmap(-1, total + _HUGE_PAGE, flags=flags, prot=access), np.uint8)
        reserved = reserved[-reserved.ctypes.data % _HUGE_PAGE :][:total]
        for file, start in zip(files, self.starts, strict=True):
            _place(file, reserved, start, self.is_mapped)
        reserved.flags.writeable = False
        self.bytes: npt.NDArray[np.uint8] = reserved


def _place(file: StoredFile, reserved: npt.NDArray[np.uint8], start: int, mapped: bool) -> None:
    assert file.path is not None
    if not file.size:
        return
    # The reservation unmaps the whole stretch, and so every file in it, when it is let go.
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{file.path}, a file of the dataset, is gone. Restore it, or prepare the data again."
        ) from error
    try:
        if (size := os.fstat(descriptor).st_size) < file.size:  # reading what is not there kills the process
            raise CorruptError(
                f"{file.path} has {size} bytes, but had {file.size} when it was opened: it was truncated or "
                "changed. Restore it, or prepare the data again."
            )
        if not mapped:
            os.preadv(descriptor, [reserved[start : start + file.size].data], 0)
            return
        address = reserved.ctypes.data + start
        flags = mmap.MAP_SHARED | _MAP_FIXED
        got = _libc.mmap(address, file.size, mmap.PROT_READ, flags, descriptor, 0)
        if got != address:
            raise StorageError(
                f"{file.path} ({file.size} bytes) cannot be mapped: {os.strerror(ctypes.get_errno())}. Read fewer "
                "files at once (more partitions), or raise the limits on address space and mappings."
            )
    finally:
        os.close(descriptor)


def region_of(files: Sequence[StoredFile], widths: Sequence[int], remembered: bool = True) -> Region:
    """The region of these files, which are at paths.

    Files begin at multiples of a huge page and, if it is not too large, of all ``widths``, so
    that rows of equal width that lie alike in all files lie alike in the region. A region that is
    ``remembered`` is mapped once per process, as long as nobody replaces a file.
    """
    alignment = _HUGE_PAGE
    for width in sorted(set(widths)):
        wider = math.lcm(alignment, width)
        alignment = wider if wider <= _WIDEST_ALIGNMENT else alignment
    key = (alignment, *(file.identity for file in files))
    region = _regions.get(key)
    if region is None:
        try:
            region = Region(files, alignment)
        except OSError:  # too little address space is allowed: gather in more, smaller pieces
            region = Region(files, mmap.PAGESIZE)
        if remembered and region.is_mapped:
            remember(_regions, key, region, _REMEMBERED_REGIONS)
    return region


_regions: OrderedDict[tuple[Any, ...], Region] = OrderedDict()
