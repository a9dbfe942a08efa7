"""Waiting for a store: a full disk, or one that does not answer, pauses the work and does not break it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from hopyard.errors import ExpiredError, StorageError, StorageFullError, UnreachableError

T = TypeVar("T")

PASSING = (StorageFullError, UnreachableError)
"""Errors after which the same call may succeed later."""

_FIRST_WAIT = 1.0
_LONGEST_WAIT = 10.0


def until(error: StorageError) -> str:
    """The moment at which it can go on after such an error, in words."""
    if isinstance(error, ExpiredError):
        return "the credentials are renewed"
    return "there is space" if isinstance(error, StorageFullError) else "there is an answer"


def wait_for_store(
    action: Callable[[], T],
    announce: Callable[[str], None],
    wait: Callable[[float], bool] | None = None,
) -> T:
    """Result of ``action()``, repeated for as long as the store is full or does not answer.

    ``action`` must be safe to repeat; a store's writes are, since a failed one leaves the whole object or nothing.

    Args:
        announce: called once, with the cause and what happens next.
        wait: called with 1 to 10 seconds between attempts; True gives up. An event's ``wait``
            fits, with the event set when the work is to end.

    Raises:
        StorageFullError, UnreachableError: ``wait`` gave up.
    """
    wait = wait or threading.Event().wait
    pause = _FIRST_WAIT
    announced = False
    while True:
        try:
            return action()
        except PASSING as error:
            if not announced:
                announce(f"paused: {error} It goes on by itself as soon as {until(error)}.")
                announced = True
            if wait(pause):
                raise
        pause = min(2 * pause, _LONGEST_WAIT)
