"""Looks for users' commands while a run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hopyard.errors import HopyardError
from hopyard.hopper.control import Command, pending
from hopyard.storage import Store


class Watcher:
    """A thread that looks for commands, which come from other processes, every ``seconds``.

    Args:
        store: the run's folder.
        tell: called on the thread with every command's number and the command, in order.
    """

    def __init__(self, store: Store, seconds: float, tell: Callable[[int, Command], None]) -> None:
        self._store, self._seconds, self._tell = store, seconds, tell
        self._stopped = threading.Event()
        self._last = 0
        self._thread = threading.Thread(target=self._watch, name="hopyard-commands", daemon=True)

    def waiting(self, after: int) -> list[tuple[int, Command]]:
        """The commands after number ``after``, as of now; the thread tells later ones."""
        found = list(pending(self._store, after))
        self._last = found[-1][0] if found else after
        return found

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                found = list(pending(self._store, self._last))
            except HopyardError:  # a store that fails for a moment: the command is there next time
                continue
            for number, command in found:
                self._last = number
                self._tell(number, command)
