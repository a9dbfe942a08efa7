"""Waiting for space: a full disk pauses the work and does not break it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from hopyard.errors import StorageFullError

T = TypeVar("T")

_FIRST_WAIT = 1.0
_LONGEST_WAIT = 10.0


def wait_for_space(
    action: Callable[[], T],
    announce: Callable[[str], None],
    wait: Callable[[float], bool] | None = None,
) -> T:
    """Result of ``action()``, repeated for as long as the store is full.

    ``action`` must be safe to repeat; a store's writes are, since a failed one leaves nothing.

    Args:
        announce: called once, with what is full, how much is free and what happens next.
        wait: called with 1 to 10 seconds between attempts; True gives up. An event's ``wait``
            fits, with the event set when the work is to end.

    Raises:
        StorageFullError: ``wait`` gave up.
    """
    wait = wait or threading.Event().wait
    pause = _FIRST_WAIT
    announced = False
    while True:
        try:
            return action()
        except StorageFullError as full:
            if not announced:
                announce(f"paused: {full} It goes on by itself as soon as there is space.")
                announced = True
            if wait(pause):
                raise
        pause = min(2 * pause, _LONGEST_WAIT)
