"""Locks between those who write, those who read, and who collects garbage: OS locks, which die with their holder.

* **Writers** hold ``gc.lock`` together, from before they trust what is stored or staged until a reference leads to what
  they wrote.
* **The collector** holds it alone: nobody writes then.
* **Readers** of a commit that no reference may lead to any more each hold a file ``readers/<id>``, which names it.

Where a store has no files on this machine nothing is locked: there the collector keeps what is young.

``gc.lock`` contains a mark: random, and another one since something was last deleted. So who has listed the packfiles
while it held the lock need not list them for its next write, as long as the mark is the same: packfiles may have come
since then, but none is gone. What keeps that true:

* Before the first deletion the mark is a new one, and on the disk. A collector that is killed at any moment leaves
  either a mark that nobody has seen, or packfiles of which none is gone.
* Whoever finds no mark, as in a repository that nothing was ever deleted from, makes one, and lists. No mark is ever
  given twice, so it does not matter if several do so at once, or if the machine goes down before it is on the disk:
  who has seen the mark is gone then, too.
* A collector that can write no mark, as on a full disk, leaves none, also on the disk; if it cannot do that either, it
  deletes nothing.
* A mark says nothing where the file cannot be locked or read, nor of packfiles that were deleted or cut off by hand:
  whoever does not store an object since a packfile has it looks at the file of that packfile, each time it begins to
  hold the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from hopyard.errors import BusyError, CorruptError, StorageError
from hopyard.storage import Store, files
from hopyard.storage.oserrors import write_errors

WAIT = 60.0
"""Seconds that who writes is waited for."""

Tell = Callable[[str], None]

Mark = Callable[[], bytes | None]
"""Gives the mark of ``gc.lock``; None: it is not known, so something may have been deleted since whatever moment."""

_GC = "gc.lock"
_READERS = "readers"
_COMMIT = re.compile("[0-9a-f]{64}")
_MARK = re.compile(rb"[0-9a-f]{32}\n")
_LONGEST = 64  # bytes that are read of a mark, which has 33
_LOOK = 0.05  # seconds between looks whether nobody writes any more
_WITHOUT_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


@contextlib.contextmanager
def writing(store: Store) -> Iterator[Mark]:
    """Hold the lock of writers, so that nothing written meanwhile is collected. Waits while a collector is at work.
    Gives the function that reads the mark."""
    with locked(store, _GC, fcntl.LOCK_SH) as file:
        yield partial(_mark, file)


@contextlib.contextmanager
def collecting(store: Store) -> Iterator[None]:
    """Nobody writes meanwhile.

    Raises:
        BusyError: somebody is writing now.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(locked(store, _GC, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise BusyError(
                f"{store.url} is being written to, in this process or another one, so nothing can be deleted from it "
                "now: what is written might need it. Try again when the blocks (`with stock.enable_write():`), imports "
                "and pushes that write there have ended."
            ) from None
        _mark_anew(store, file)
        yield


@contextlib.contextmanager
def replacing(store: Store) -> Iterator[None]:
    """Damaged packfiles are deleted meanwhile, whose whole objects are in others: a writer may go on, see
    ``writing``."""
    with locked(store, _GC, fcntl.LOCK_SH) as file:
        _mark_anew(store, file)
        try:
            yield
        finally:
            _mark_anew(store, file)  # who has seen the first one may have listed what was not deleted yet


@contextlib.contextmanager
def alone(store: Store, wait: float = WAIT, tell: Tell | None = None) -> Iterator[None]:
    """The same, as soon as nobody writes.

    Args:
        wait: seconds to wait for those who write. tell: told that, in words.

    Raises:
        BusyError: somebody still does after ``wait`` seconds.
    """
    end = time.monotonic() + wait
    has_told = tell is None
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(collecting(store))
                break
            except BusyError as error:  # of others waiting does not help
                if time.monotonic() >= end:
                    raise BusyError(f"{error} {wait:g} seconds were waited.") from None
            if not has_told and tell is not None:
                tell(f"waiting for those who write to {store.url}, at most {wait:g} seconds")
                has_told = True
            threading.Event().wait(_LOOK)
        yield


@contextlib.contextmanager
def reading(store: Store, commit: str) -> Iterator[None]:
    """``commit`` is kept meanwhile, whatever is collected. Who may not write in the store locks nothing."""
    path = store.path(f"{_READERS}/{uuid.uuid4().hex}")
    fd = None
    if path is not None:
        with contextlib.suppress(StorageError), writing(store):
            fd = _made(path, commit)
    try:
        yield
    finally:
        if fd is not None and path is not None:
            # Not unlocked: a forked child may go on reading. The file goes with the last of them, or by the collector.
            os.close(fd)
            _is_dead(path)


def read_commits(store: Store) -> set[str]:
    """The commits that readers hold. Removes what dead ones left; for the collector, who holds ``collecting``.

    Raises:
        CorruptError: it cannot be read what a reader holds.
    """
    folder = store.path(_READERS)
    found = set()
    for path in sorted(folder.iterdir()) if folder is not None and files.look_anew(folder) else ():
        if path.is_file() and not _is_dead(path):
            commit = path.read_bytes().decode("ascii", "replace")
            if not _COMMIT.fullmatch(commit):
                raise CorruptError(
                    f"{path} is of a process that reads now, but says {commit[:80]!r}, and no commit: what it needs is "
                    "not known, and nothing was deleted. Try again when that process has ended."
                )
            found.add(commit)
    return found


@contextlib.contextmanager
def locked(store: Store, name: str, how: int) -> Iterator[int | None]:
    """Hold the file ``name`` of the store locked as ``fcntl.flock`` has it; no file: hold nothing. Gives the file's
    descriptor; None if it is not locked, since there is none or its file system has no locks.

    Raises:
        BlockingIOError: with LOCK_NB, another holds it.
    """
    path = store.path(name)
    if path is None:
        yield None
        return
    with write_errors(path):
        try:
            fd = files.open_file(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            files.make_directory(str(path.parent))
            fd = files.open_file(path, os.O_RDWR | os.O_CREAT)
        except IsADirectoryError:
            raise CorruptError(
                f"{path} is a folder, and should be the file of a lock, so nothing can be written. Delete it; if it is "
                "empty, this does so: hopyard stock verify --repair"
            ) from None
    process = os.getpid()
    try:
        yield fd if _flock(fd, how) else None
    finally:
        if os.getpid() == process:  # a forked child would unlock what its parent holds
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # closing would leave it to the copies of forked children
        os.close(fd)


def _flock(fd: int, how: int) -> bool:
    """Whether the file is locked: not every file system has locks."""
    try:
        fcntl.flock(fd, how)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        return False
    return True


def _mark(file: int | None) -> bytes | None:
    """The mark in the lock's file, which is made if there is none; None: it is not known."""
    try:
        if file is None:
            return None
        mark = os.pread(file, _LONGEST, 0)
        return mark if _MARK.fullmatch(mark) else _write_mark(file)
    except OSError:  # of a full disk, for instance: the next one tries again
        return None


def _mark_anew(store: Store, file: int | None) -> None:
    """Before something is deleted: let the mark be another one, durably.

    Raises:
        StorageError: neither that can be written, nor that there is none.
    """
    if file is None:
        return
    with write_errors(store.path(_GC) or _GC):
        try:
            _write_mark(file)
            files.sync_file(file)
        except OSError:
            files.truncate(file, 0)
            files.sync_file(file)


def _write_mark(file: int) -> bytes:
    mark = b"%s\n" % os.urandom(16).hex().encode()
    files.write_at(file, mark, 0)
    files.truncate(file, len(mark))
    return mark


def _made(path: Path, commit: str) -> int:
    with write_errors(path):
        files.make_directory(str(path.parent))
        fd = files.create(path)
        files.write_pieces(fd, [commit.encode()])  # not synced: after a crash of the machine nobody reads
    _flock(fd, fcntl.LOCK_SH)
    return fd


def _is_dead(path: Path) -> bool:
    """Whether nobody holds the file any more; then it is removed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            files.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
