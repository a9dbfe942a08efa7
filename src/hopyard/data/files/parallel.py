"""Work on several files, or parts of them, at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hopyard.storage.base import Store

Item = TypeVar("Item")
Result = TypeVar("Result")

_REQUESTS = 32  # to a store, at once


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cores(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``work`` of each item, which leaves Python's lock to others; in their order."""
    threads = min(_cores(), len(items))
    if threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, "hopyard-check") as pool:
        return list(pool.map(work, items))


def of_each(
    store: Store | None, names: Sequence[str], items: Sequence[Item], read: Callable[[Item], Result]
) -> list[Result]:
    """``read`` of each item, in their order; several at once where each waits for a network.

    Args:
        names: of the files in ``store`` that the items are about; at paths if it is None.

    Raises:
        Exception: what it raised for the first of them that failed.
    """
    if store is None or len(items) < 2 or store.path(names[0]) is not None:
        return [read(item) for item in items]
    with ThreadPoolExecutor(min(_REQUESTS, len(items)), "hopyard-files") as pool:
        return list(pool.map(read, items))
