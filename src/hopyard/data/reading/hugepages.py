"""Huge pages for files that are mapped: rows gathered in any order then miss the TLB no more than in memory.

A file system that can (ext4, XFS, memory files) keeps in one piece of the page cache what came there in one piece,
however it is written later. Linux only; elsewhere, and where it fails, a file is mapped in small pages.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys

HUGE_PAGE = 2 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14; where there is no room it fails, and kills nobody
_LONG = 16 * HUGE_PAGE


def mapped_size(size: int) -> int:
    """Bytes of a file whose content has ``size``: long ones end with a whole huge page."""
    return -(-size // HUGE_PAGE) * HUGE_PAGE if size >= _LONG else size


def reserve(descriptor: int, size: int) -> None:
    """Bring zeros for ``size`` bytes of an empty file into the page cache, as huge pages as far as they fit.

    Raises:
        OSError: the file cannot have that size.
    """
    size = mapped_size(size) // HUGE_PAGE * HUGE_PAGE
    if not size or sys.platform != "linux":
        return
    os.ftruncate(descriptor, size)
    with contextlib.suppress(OSError), mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as content:
        content.madvise(mmap.MADV_HUGEPAGE)
        content.madvise(_POPULATE_READ)
