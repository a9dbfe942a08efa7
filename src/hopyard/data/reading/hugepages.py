"""Huge pages for files that are mapped: rows gathered in any order then miss the TLB no more than in memory.

A file system that can (ext4, XFS, memory files) keeps in one piece of the page cache what came there in one piece,
however it is written later. Linux only; elsewhere, and where it fails, a file is mapped in small pages. A network
file system would fetch the zeros from its server, so it is left alone, and so are files that memory cannot hold.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
from functools import lru_cache
from pathlib import Path

from hopyard.storage import files

HUGE_PAGE = 2 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14; where there is no room it fails, and kills nobody
_LONG = 16 * HUGE_PAGE
_LOCAL = {"ext4", "xfs", "overlay", "tmpfs"}
_MOUNT = re.compile(r"\d+ \d+ (?P<device>\d+:\d+) .* - (?P<kind>\S+) ")


def mapped_size(size: int) -> int:
    """Bytes of a file whose content has ``size``: long ones end with a whole huge page."""
    return -(-size // HUGE_PAGE) * HUGE_PAGE if size >= _LONG else size


def reserve(descriptor: int, size: int) -> None:
    """Bring zeros, behind what a file holds, for ``size`` bytes in all into the page cache, as huge pages as far as
    they fit.

    Raises:
        OSError: the file cannot have that size.
    """
    size = mapped_size(size) // HUGE_PAGE * HUGE_PAGE
    if size <= os.fstat(descriptor).st_size or sys.platform != "linux" or not is_worth(descriptor, size):
        return
    files.truncate(descriptor, size)
    with contextlib.suppress(OSError), mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as content:
        content.madvise(mmap.MADV_HUGEPAGE)
        content.madvise(_POPULATE_READ)


def is_worth(descriptor: int, size: int) -> bool:
    """Whether the file is small beside the memory, and of a file system that may have huge pages."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    device = os.fstat(descriptor).st_dev
    return size <= memory // 4 and _kind(f"{os.major(device)}:{os.minor(device)}") in (*_LOCAL, None)


@lru_cache(maxsize=64)
def _kind(device: str) -> str | None:
    """The file system of a mounted device; None: it is not in the list, as that of memory files is not."""
    try:
        mounts = map(_MOUNT.match, Path("/proc/self/mountinfo").read_text(errors="replace").splitlines())
    except OSError:
        return None
    return next((mount["kind"] for mount in mounts if mount and mount["device"] == device), None)
