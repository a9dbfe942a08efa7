"""Libraries whose threads send requests: a process that is forked after their first request has none of them."""

from __future__ import annotations

import os

from hopyard.errors import UsageError

_first_users: dict[str, int] = {}  # of each kind of store, the process that sent the first request


def check_process(kind: str) -> None:
    """Refuse to go on in a forked process, where the threads that send requests are missing: it would hang.

    Args:
        kind: the class of the store.

    Raises:
        UsageError: a process that this one was forked off had used such a store before.
    """
    first = _first_users.setdefault(kind, os.getpid())
    if first != os.getpid():
        raise UsageError(
            f"process {os.getpid()} was forked from {first}, which had already used an {kind}; its "
            "connections do not survive a fork. Start processes by 'spawn' or 'forkserver' "
            "(multiprocessing_context='spawn' of a DataLoader)."
        )
