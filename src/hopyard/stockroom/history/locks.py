"""Locks between those who write, those who read, and who collects garbage: OS locks, which die with their holder.

* **Writers** hold ``gc.lock`` together, from before they trust what is stored until a reference leads to what they
  wrote.
* **The collector** holds it alone: nobody writes then.
* **Readers** of a commit that no reference may lead to any more each hold a file ``readers/<id>``, which names it.

Where a store has no files on this machine nothing is locked: there the collector keeps what is young.
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
from pathlib import Path

from hopyard.errors import BusyError, CorruptError, StorageError
from hopyard.storage import Store, files
from hopyard.storage.oserrors import write_errors

WAIT = 60.0
"""Seconds that who writes is waited for."""

Tell = Callable[[str], None]

_GC = "gc.lock"
_READERS = "readers"
_COMMIT = re.compile("[0-9a-f]{64}")
_LOOK = 0.05  # seconds between looks whether nobody writes any more
_OPENED = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_WITHOUT_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


@contextlib.contextmanager
def writing(store: Store) -> Iterator[None]:
    """What is written meanwhile is not collected. Waits while a collector is at work."""
    with locked(store, _GC, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def collecting(store: Store) -> Iterator[None]:
    """Nobody writes meanwhile.

    Raises:
        BusyError: somebody is writing now.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(store, _GC, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise BusyError(
                f"{store.url} is being written to, in this process or another one, so nothing can be deleted from it "
                "now: what is written might need it. Try again when the blocks (`with stock.enable_write():`), imports "
                "and pushes that write there have ended."
            ) from None
        yield


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
    for path in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
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
def locked(store: Store, name: str, how: int) -> Iterator[None]:
    """Hold the file ``name`` of the store locked as ``fcntl.flock`` has it; no file: hold nothing.

    Raises:
        BlockingIOError: with LOCK_NB, another holds it.
    """
    path = store.path(name)
    if path is None:
        yield
        return
    with write_errors(path):
        try:
            fd = os.open(path, _OPENED, 0o666)
        except FileNotFoundError:
            files.make_directory(str(path.parent))
            fd = os.open(path, _OPENED, 0o666)
        except IsADirectoryError:
            raise CorruptError(
                f"{path} is a folder, and should be the file of a lock, so nothing can be written. Delete it; if it is "
                "empty, this does so: hopyard stock verify --repair"
            ) from None
    process = os.getpid()
    try:
        _flock(fd, how)
        yield
    finally:
        if os.getpid() == process:  # a forked child would unlock what its parent holds
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # closing would leave it to the copies of forked children
        os.close(fd)


def _flock(fd: int, how: int) -> None:
    try:
        fcntl.flock(fd, how)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise


def _made(path: Path, commit: str) -> int:
    with write_errors(path):
        files.make_directory(str(path.parent))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.write(fd, commit.encode())  # not synced: after a crash of the machine nobody reads
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
        path.unlink(missing_ok=True)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
