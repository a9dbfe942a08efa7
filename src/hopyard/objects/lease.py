"""Lease of a run: at most one driver holds it, and the next one learns when that driver is gone.

Where objects are files, an operating system lock: it dies with its holder, however that dies,
so the next driver may begin at once. Elsewhere a heartbeat: numbered objects that the holder renews;
a holder unseen for ``unseen`` seconds, by the clock of the waiting driver, is gone. A lease
keeps honest drivers apart. What keeps a lost one from writing is the numbered log: its next put fails.

Who deletes the run has no such fence. So drivers, also lost ones, share a second lock while they live, and who
deletes has that one alone: then nobody drives, and nobody takes over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hopyard.errors import NotFoundError, RunHeldError, StorageError
from hopyard.objects.heartbeat import ALONE, Heartbeat, holder_that_beats
from hopyard.storage import Store, files
from hopyard.storage.oserrors import write_error

_UNSEEN = 30.0
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class Lease:
    """The right to be the only driver of the run at ``name``.

    Args:
        store: where the run is.
        name: the object that tells who holds the lease; beside it are ``<name>.lock`` and ``<name>.use``, or
            ``<name>.beats/``.
        holder: JSON values that tell others who holds it; host, pid and start are added.
        unseen: seconds without a heartbeat after which a holder is gone (stores without files).
        clock: a monotonic clock, in seconds.
        wait: called with seconds to wait while watching for a heartbeat; None: an event that nobody sets.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        holder: dict[str, Any],
        *,
        unseen: float = _UNSEEN,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        self._holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, **holder}
        self._store, self._name = store, name
        self._fds: list[int] = []
        self._heart: Heartbeat | None = None
        self._unseen, self._clock, self._wait = unseen, clock, wait or threading.Event().wait

    def acquire(self, take_over: bool = False, *, alone: bool = False) -> None:
        """Hold the lease from now on.

        On a store without files, a holder that may still live is watched for up to ``unseen`` seconds.

        Args:
            take_over: hold the lease even if another holds it now; the other's next write then fails.
            alone: hold it to delete what it is for: nobody can take it over.

        Raises:
            RunHeldError: another one holds it; names the holder. Or it is held alone. Or it was asked for alone, and
                one that lost it, where objects are files, has not ended.
        """
        if not self._lock(take_over, alone):
            holder = self._holder | ({ALONE: True} if alone else {})
            heart = Heartbeat(self._store.at(f"{self._name}.beats"), holder, self._unseen)
            other = heart.begin(self._clock, self._wait, take_over)
            if other is not None:
                self._raise_held(other)
            self._heart = heart
        try:
            self._store.put(self._name, json.dumps(self._holder).encode())
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the lease back. Nothing happens if it is not held."""
        if self._heart is not None:
            self._heart.end()
            self._heart = None
        while self._fds:
            os.close(self._fds.pop())

    def _lock(self, take_over: bool, alone: bool) -> bool:
        """Lock the files; False if their file system has no locks, or the store no files."""
        lock, use = (self._store.path(f"{self._name}.{part}") for part in ("lock", "use"))
        if lock is None or use is None:
            return False
        # The shared one first: while it is held nobody deletes the other.
        try:
            if not self._locked(use, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
                if alone and _is_locked(lock):
                    self._raise_held(_said(self._store, self._name))
                if alone:
                    raise RunHeldError(
                        f"{self._store.url} was taken over from a driver that has not ended. End that process first."
                    )
                raise RunHeldError(
                    f"{self._store.url} is being deleted by another process. Wait until that has ended, and begin anew."
                )
            while not self._locked(lock, fcntl.LOCK_EX):
                if _is_locked(lock) is False:
                    continue  # somebody only looked who holds it
                if not take_over:
                    self._raise_held(_said(self._store, self._name))
                # A lock cannot be taken from its holder, but a new file can take the old one's place.
                self._store.delete(f"{self._name}.lock")
        except _NoLocksError:
            return False
        except BaseException:
            self.release()
            raise
        return True

    def _locked(self, path: Path, operation: int) -> bool:
        """Lock the file that is at a path then, which is made if there is none; False: another one holds it."""
        while True:
            self._store.put_new(path.name, b"")
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # a takeover has just replaced it
            except OSError as error:
                raise write_error(str(path), error) from error
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                if error.errno in _NO_LOCKS:
                    raise _NoLocksError from None
                if not isinstance(error, BlockingIOError):
                    raise StorageError(f"locking {path} failed: {error}. Look at its mount.") from error
                return False
            if _is_same_file(fd, path):
                self._fds.append(fd)
                return True
            os.close(fd)

    def _raise_held(self, holder: dict[str, Any]) -> NoReturn:
        told = [f"{key} {value}" for key, value in holder.items() if isinstance(value, str) or key == "pid"]
        who = ", ".join(told) or "it has not said who it is yet"
        raise RunHeldError(
            f"{self._store.url} is held by another driver ({who}). Wait until it ends or stop it; "
            "if it hangs or cannot be reached, run the search with take_over=True (--take-over on the command line): "
            "the other driver then stops at its next write."
        )


class _NoLocksError(Exception):
    """The file system has no locks."""


def holder_of(store: Store, name: str) -> dict[str, Any] | None:
    """Holder of the lease at ``name`` now, as it describes itself (``host``, ``pid``, ``since``, ...); None: nobody.

    Where there is no lock to ask, a holder that was not seen for two minutes, by the clocks of both machines,
    counts as gone. This is for showing: to hold the lease, acquire it.
    """
    path = store.path(f"{name}.lock")
    locked = None if path is None else _is_locked(path)
    if locked is None:
        return holder_that_beats(store.at(f"{name}.beats"), 4 * _UNSEEN)
    return _said(store, name) if locked else None


def _said(store: Store, name: str) -> dict[str, Any]:
    with contextlib.suppress(NotFoundError, ValueError):
        holder = json.loads(store.get(name))
        if isinstance(holder, dict):
            return holder
    return {}


def _is_locked(path: Path) -> bool | None:
    """Whether a holder has locked the file; None if its file system has no locks."""
    files.look_anew(path.parent)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that those who look are told apart from the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise StorageError(f"locking {path} failed: {error}. Look at its mount.") from error
        return None
    finally:
        os.close(fd)
    return False


def _is_same_file(fd: int, path: Path) -> bool:
    files.look_anew(path.parent)
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
