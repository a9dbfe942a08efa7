"""Entries of the node cache are brought to the disk by a thread, after they are in use."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from hopyard.data.cache.format import make_durable
from hopyard.storage import files

_QUIET = 2.0  # seconds


class Durability:
    """Syncs files one by one, in a daemon thread that ends when nothing is left.

    It begins once no entry came for a while: the disk and a core are for the epoch that makes the entries.
    What the process does not get to before it ends is left to the next one that finds the entry.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, None] = {}
        self._failed: set[str] = set()
        self._thread: threading.Thread | None = None
        self._added = threading.Event()
        self._hurry = threading.Event()

    def add(self, path: str, new: bool = False) -> None:
        """Have the entry at ``path`` synced, soon. One that could not be is left alone, unless it is ``new``."""
        with self._lock:
            if new:
                self._failed.discard(path)
            if path in self._waiting or path in self._failed:
                return
            self._waiting[path] = None
            self._added.set()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="hopyard-cache", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter is about to end
                    thread.start()
                    self._thread = thread

    def join(self) -> None:
        """Wait until all that was added is done."""
        thread = self._thread
        if thread is not None:
            self._hurry.set()
            self._added.set()
            thread.join()
            self._hurry.clear()

    def _run(self) -> None:
        while True:
            while not self._hurry.is_set() and self._added.wait(_QUIET):
                self._added.clear()
            with self._lock:
                path = next(iter(self._waiting), None)
                if path is None:
                    self._thread = None
                    return
            done = _sync(path)
            with self._lock:
                self._waiting.pop(path, None)
                if not done:
                    self._failed.add(path)


def _sync(path: str) -> bool:
    try:
        fd = files.open_file(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a cache that may only be read
    try:
        make_durable(fd, Path(path).stem)
    except OSError:
        with contextlib.suppress(OSError):  # the disk did not take it, so what is read later may be wrong
            files.unlink(path)
        return False
    finally:
        os.close(fd)
    return True


durability: Durability = Durability()
os.register_at_fork(after_in_child=durability.__init__)  # type: ignore[misc]
