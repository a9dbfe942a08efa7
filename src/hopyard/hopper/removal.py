"""Removal of a run from its store."""

from __future__ import annotations

import contextlib
import os

from hopyard.hopper.journal import FOLDER, LEASE
from hopyard.objects import Lease
from hopyard.objects.frozen import RunFolder
from hopyard.storage import Store, files


def remove_run(folder: Store) -> None:
    """Delete all that is in a run's folder: states, programs, logs, and last its journal; and what it shared with other
    runs, if none of them has it.

    What is left if this is interrupted is still a run, whose journal lacks an end, or none; calling it again deletes
    the rest. On a store without files, the object that says that nobody holds the run stays.

    Raises:
        RunHeldError: a driver holds the run, or one that lost it has not ended. Nothing was deleted.
    """
    lease = Lease(folder, LEASE, {"is_full": False})
    lease.acquire(alone=True)
    try:
        names = {name for name in folder.names() if not name.startswith(f"{LEASE}.beats/")}
        journal = {name for name in names if name.startswith(f"{FOLDER}/")}
        locks = {LEASE, f"{LEASE}.lock", f"{LEASE}.space"} & names
        last = {f"{LEASE}.use"} & names  # while it is there nobody else begins
        for part in (names - journal - locks - last, journal, locks, last):
            if part is journal and isinstance(folder, RunFolder):
                folder.frozen().release()
            for name in sorted(part, reverse=True):  # of the journal the header, by which it is known, last
                folder.delete(name)
            folder.sync_deleted(part)
        remove_empty_directories(folder)  # unless another driver has begun a run there
    finally:
        lease.release()


def remove_empty_directories(folder: Store) -> None:
    """Delete the directory of a folder and those in it, as far as no file is in them."""
    inside = folder.path(LEASE)
    for directory, _, _ in os.walk(inside.parent, topdown=False) if inside is not None else ():
        with contextlib.suppress(OSError):
            files.remove_directory(directory)
