"""A holder that shows that it lives by adding numbered objects, on stores without locks."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hopyard.errors import HopyardError, NotFoundError
from hopyard.storage import Store
from hopyard.storage.temporary import is_alive, machine

_BEATS_PER_LIMIT = 6
SEEN = "seen"
"""In what is told about a holder: when it beat last, in seconds since 1970 by its clock. Nothing depends on it."""

ALONE = "alone"
"""In what is told about a holder: nobody can take over from it."""


@dataclass(frozen=True)
class _Beat:
    number: int
    token: str
    holder: dict[str, Any]
    machine: str
    pid: int
    released: bool

    @property
    def is_over(self) -> bool:
        """Whether the holder gave the lease back, or was a process of this machine that is gone."""
        return self.released or (self.machine == machine() and not is_alive(self.pid))


class Heartbeat:
    """Beats: objects ``000000000001``, ...; the highest says who holds the lease, older ones are deleted.

    Args:
        store: place of these objects; nothing else may be there.
        holder: facts that others are told about the holder.
        unseen: seconds without a beat after which the holder is gone.
    """

    def __init__(self, store: Store, holder: dict[str, Any], unseen: float) -> None:
        self._store, self._holder, self._unseen = store, holder, unseen
        self._token = uuid.uuid4().hex
        self._number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="hopyard-lease", daemon=True)

    def begin(
        self, clock: Callable[[], float], wait: Callable[[float], object], take_over: bool
    ) -> dict[str, Any] | None:
        """Become the holder and beat until ``end``; or return the facts of another one that lives."""
        while True:
            latest = self._latest()
            if (
                latest
                and not (take_over and ALONE not in latest.holder)
                and not latest.is_over
                and not self._falls_silent(latest, clock, wait)
            ):
                return latest.holder
            if self._put((latest.number if latest else 0) + 1, released=False):
                break
        # A number far behind is free again; then another one began, and beat, since we looked.
        winner = self._latest()
        if winner and winner.token != self._token:
            self._store.delete(_name(self._number))
            return winner.holder
        self._delete_below(self._number)
        self._thread.start()
        return None

    def beat(self) -> bool:
        """Show that the holder lives; False if another one has the lease now."""
        self._put(self._number + 1, released=False)
        # The put alone decides nothing: its answer may have been lost though it was done, and after
        # a long sleep the number may be free again because a successor has deleted it.
        latest = self._latest()
        if latest is None or latest.token != self._token:
            return False
        self._number = latest.number
        self._delete_below(self._number)
        return True

    def end(self) -> None:
        """Give the lease back."""
        self._ended.set()
        self._thread.join()
        # If this fails, the next one has to see us silent first.
        with contextlib.suppress(HopyardError):
            self._put(self._number + 1, released=True)

    def _keep_beating(self) -> None:
        while not self._ended.wait(self._unseen / _BEATS_PER_LIMIT):
            with contextlib.suppress(HopyardError):  # the store may answer again before the limit
                if not self.beat():
                    return

    def _falls_silent(
        self, latest: _Beat, clock: Callable[[], float], wait: Callable[[float], object]
    ) -> bool:
        """Watch a holder: False as soon as it beats, True if it gives back or is unseen long enough."""
        begin = clock()
        while clock() - begin < self._unseen:
            wait(self._unseen / _BEATS_PER_LIMIT)
            now = self._latest()
            if now is None or now.is_over:
                return True
            if now.number != latest.number:
                return False
        return True

    def _put(self, number: int, released: bool) -> bool:
        content = {
            "token": self._token,
            "holder": self._holder | {SEEN: time.time()},
            "machine": machine(),
            "pid": os.getpid(),
            "released": released,
        }
        if not self._store.put_new(_name(number), json.dumps(content).encode()):
            return False
        self._number = number
        return True

    def _latest(self) -> _Beat | None:
        return _latest(self._store)

    def _delete_below(self, number: int) -> None:
        for entry in list(self._store.list()):
            if int(entry.name) < number:
                self._store.delete(entry.name)


def _name(number: int) -> str:
    return f"{number:012d}"


def _latest(store: Store) -> _Beat | None:
    while True:
        numbers = [int(entry.name) for entry in store.list()]
        if not numbers:
            return None
        # Its holder may delete it meanwhile, having written a later one.
        with contextlib.suppress(NotFoundError):
            return _Beat(number=max(numbers), **json.loads(store.get(_name(max(numbers)))))


def holder_that_beats(
    store: Store, unseen: float, clock: Callable[[], float] = time.time
) -> dict[str, Any] | None:
    """The holder, as its last beat describes it; None if there is none, or it was not seen for ``unseen`` seconds.

    Args:
        clock: seconds since 1970. If it went back, or goes wrong, a holder counts as one for longer.
    """
    beat = _latest(store)
    if beat is None or beat.is_over or clock() - beat.holder.get(SEEN, clock()) > unseen:
        return None
    return beat.holder
