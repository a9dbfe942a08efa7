"""A store that fails on purpose: full, broken, or killing its process at a chosen write."""

from __future__ import annotations

import errno
import fnmatch
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hopyard.errors import StorageError, StorageFullError, UnreachableError
from hopyard.storage.base import Store
from hopyard.storage.wrappers import Call, T, Wrapper

Action = Literal["full", "error", "unreachable", "unanswered", "kill_before", "kill_after"]


@dataclass(frozen=True)
class Fault:
    """Fault of a store: an action, and the writes that it concerns.

    Attributes:
        action: ``"full"`` raises StorageFullError, ``"error"`` StorageError and ``"unreachable"`` UnreachableError,
            without a write; ``"unanswered"`` raises UnreachableError after the write; ``"kill_before"`` and
            ``"kill_after"`` end this process by SIGKILL before or after the write.
        at: the first write that it concerns, counted from 1 among matching writes, per process.
        times: number of writes from there on.
        match: pattern (``fnmatch``) of the names concerned, relative to the store that was wrapped.
        once: a file that is made when the fault happens; while it exists it does not happen again,
            in any process. For a worker that is to be killed once and not again after its restart.
        until: the fault happens only while this file does not exist: as a disk is full until space is made.
    """

    action: Action
    at: int = 1
    times: int = 1
    match: str = "*"
    once: Path | None = None
    until: Path | None = None

    def happens(self, count: int) -> bool:
        """Whether the fault concerns the matching write of this number. Marks ``once``."""
        if not self.at <= count < self.at + self.times or (self.until is not None and self.until.exists()):
            return False
        if self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL, 0o666))
            except FileExistsError:
                return False
        return True


class _Counts:
    """Writes seen so far in this process, by all stores made from one; a pickled copy begins anew."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.faults = faults
        self.names: list[str] = []
        self._counts = [0] * len(faults)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[_Counts], tuple[tuple[Fault, ...]]]:
        return _Counts, (self.faults,)

    def next(self, name: str) -> set[Action]:
        """Count a write of ``name``; returns the actions of its faults."""
        with self._lock:
            self.names.append(name)
            actions: set[Action] = set()
            for i, fault in enumerate(self.faults):
                if fnmatch.fnmatchcase(name, fault.match):
                    self._counts[i] += 1
                    if fault.happens(self._counts[i]):
                        actions.add(fault.action)
            return actions


class FaultyStore(Wrapper):
    """``inner``, with faults at chosen writes (``put``, ``put_new``, ``put_file``).

    Files that are moved in by ``put_file`` count when they are moved. Deletes and reads never fail.

    Args:
        inner: keeps the objects. Its ``train_data``, ``val_data``, ``runs`` and ``logs`` are faulty too;
            their writes are counted together and named ``runs/...`` and so on, wherever they are.
        faults: what goes wrong; none, to count.
    """

    counted: tuple[Call, ...] = ("put", "put_new", "put_file")
    """Calls that are writes. Subclasses may add ``delete``."""

    def __init__(self, inner: Store, *faults: Fault) -> None:
        super().__init__(inner)
        self._counts = _Counts(faults)

    @property
    def writes(self) -> list[str]:
        """Names of all writes that were begun in this process, in order."""
        return list(self._counts.names)

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        if call not in self.counted:
            return action()
        actions = self._counts.next(name)
        if "kill_before" in actions:
            os.kill(os.getpid(), signal.SIGKILL)
        if "full" in actions:
            raise StorageFullError(
                f"no space is left for {name!r} in {self.url} ({os.strerror(errno.ENOSPC)}, injected). "
                "Nothing was half-written. Make space there."
            )
        if "error" in actions:
            raise StorageError(f"writing {name!r} in {self.url} failed (injected). Look at the fault.")
        if "unreachable" in actions:
            raise self._no_answer(name)
        result = action()
        if "kill_after" in actions:
            os.kill(os.getpid(), signal.SIGKILL)
        if "unanswered" in actions:
            raise self._no_answer(name)
        return result

    def _no_answer(self, name: str) -> UnreachableError:
        return UnreachableError(
            f"writing {name!r} in {self.url} got no answer (injected). Look at the fault."
        )

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r}, {', '.join(map(repr, self._counts.faults))})"
