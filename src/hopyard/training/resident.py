"""Replicas that stay in a worker's memory between units, so that the next one loads nothing.

What is kept is a hint only where the state is also stored; a state that was not saved lives here
alone, and a unit that needs it and does not find it says that the worker lost it.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from hopyard.errors import StateLostError
from hopyard.objects import StateRef, Tensor, flatten, unflatten
from hopyard.training.estimator import Replica

LIMIT_BYTES = 1 << 30
LIMIT_COUNT = 64


@dataclass
class Resident:
    """A trial's state in memory.

    Attributes:
        params: of the trial, as the replica was built.
        position: training units done.
        ref: the last saved state: this one, if ``saved``.
        saved: whether the state is stored.
        replica: holds the state, or None if one must be built anew.
        tree: the state, if there is no replica and it is not stored.
        nbytes: of the state, without the base.
        base: digest and bytes of the base that the replica shares with others; None: there is none.
    """

    params: dict[str, Any]
    position: int
    ref: StateRef | None
    saved: bool
    replica: Replica | None
    tree: Any = None
    nbytes: int = 0
    base: tuple[str, int] | None = None


class Residents:
    """Residents by (run folder's URL, program, trial), least recently used first.

    Each base that residents share counts once. Whatever the size of it, states may take half of the limit: dropping
    them would not free the base, over which the next unit builds again.

    Over the limits, residents of other runs go first, then those whose state is stored. States of
    the current run that are only here are never dropped: ``has_room`` says beforehand.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES, limit_count: int = LIMIT_COUNT) -> None:
        self._limit_bytes = limit_bytes
        self._limit_count = limit_count
        self._kept: OrderedDict[tuple[str, str, int], Resident] = OrderedDict()
        self._trims_at = 2

    def take(self, key: tuple[str, str, int]) -> Resident | None:
        """Take a resident out: a unit that fails must leave none behind."""
        return self._kept.pop(key, None)

    def look(self, key: tuple[str, str, int]) -> Resident | None:
        """A resident, which stays where it is and as it is."""
        return self._kept.get(key)

    def put(self, key: tuple[str, str, int], resident: Resident) -> None:
        """Keep a resident, and drop others over the limits."""
        self._kept[key] = resident
        for other in self._droppable(key):
            if not self._over_limits():
                break
            del self._kept[other]
        if len(self._kept) >= self._trims_at:
            # What is kept lies between what steps have freed, so each trial would add more than its own. A step that
            # follows gets all its memory anew, which takes long: a few times in a process, never in each unit.
            self._trims_at = max(len(self._kept) + 1, len(self._kept) * 3 // 2)
            if (trim := _malloc_trim()) is not None:
                trim(0)

    def has_room(self, key: tuple[str, str, int], nbytes: int, base: tuple[str, int] | None = None) -> bool:
        """Whether a state of ``nbytes``, over ``base``, can live here alone."""
        alone = [kept for other, kept in self._kept.items() if other[:2] == key[:2] and not kept.saved]
        return len(alone) < self._limit_count and sum(kept.nbytes for kept in alone) + nbytes <= self._room(
            [base, *(kept.base for kept in alone)]
        )

    def _room(self, bases: Iterable[tuple[str, int] | None]) -> int:
        """Bytes that states may take beside their bases."""
        taken = sum(dict(base for base in bases if base is not None).values())
        return max(self._limit_bytes - taken, self._limit_bytes // 2)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def _droppable(self, key: tuple[str, str, int]) -> list[tuple[str, str, int]]:
        others = [other for other in self._kept if other != key]
        foreign = [other for other in others if other[:2] != key[:2]]
        stored = [other for other in others if other[:2] == key[:2] and self._kept[other].saved]
        return foreign + stored

    def _over_limits(self) -> bool:
        total = sum(kept.nbytes for kept in self._kept.values())
        room = self._room(kept.base for kept in self._kept.values())
        return len(self._kept) > self._limit_count or total > room


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's function that gives free memory back to the system; None: the C library has none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def copied(tree: Any) -> Any:
    """A tree that shares no memory with the replica it came from."""
    tensors, skeleton = flatten(tree)
    return unflatten({path: Tensor(t.dtype, t.shape, t.data.copy()) for path, t in tensors.items()}, skeleton)


def lost(trial: int, position: int) -> StateLostError:
    """The error for a state that should be here and is not."""
    return StateLostError(
        f"The state of trial {trial} after {position} training units is no longer in this worker's memory; "
        "repeat its units from the last state that was saved."
    )
