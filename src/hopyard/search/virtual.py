"""Virtual time: results reach a searcher in an order that its own answers determine, not the speed of workers.

Every trial that may train is thought of as having a machine of its own, all equally fast: one visit takes a
virtual time of 1. A trial that is let train at t to make k further visits is due at t + k.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from hopyard.search.base import Create, Operation, Searcher, Train


class InVirtualTime(Searcher):
    """``searcher``, told of results in the order (due, trial), each as soon as no trial that still trains comes
    before it.

    So neither the number of workers, their speed, nor a crash changes what it is told, as long as the same trials
    fail and nobody interferes: a trial that fails is told of when it would have reported. What a user does comes when
    it comes: a trial that waits for the searcher and is stopped is told of at once, and an extension is passed on at
    the virtual time of the last result that was told. Both are calls of this searcher with a place among its other
    calls, which is where a replay makes them again.

    A result that waits here always waits for a trial that still trains, so a search never stands still.
    """

    def __init__(self, searcher: Searcher) -> None:
        self.independent: bool = searcher.independent
        self.num_points: int | None = searcher.num_points
        self._searcher = searcher
        self._now = 0
        self._visits: dict[int, int] = {}  # made in all, as far as the searcher was told
        self._due: dict[int, int] = {}  # of the trials that train, as far as the searcher knows
        self._queue: list[tuple[int, int]] = []  # a heap of (due, trial), the same trials
        self._arrived: dict[
            int, Callable[[], list[Operation]]
        ] = {}  # of these, how the searcher will be told

    def start(self) -> list[Operation]:
        return self._noted(self._searcher.start())

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._visits[trial] = visits
        return self._in_turn(trial, partial(self._searcher.validated, trial, visits, value))

    def exited(self, trial: int) -> list[Operation]:
        return self._in_turn(trial, partial(self._searcher.exited, trial))

    def stopped_early(self, trial: int, visits: int, value: float) -> list[Operation]:
        return self._in_turn(trial, partial(self._searcher.stopped_early, trial, visits, value))

    def extend(self, num_models: int | None, visits: int) -> list[Operation]:
        return self._noted(self._searcher.extend(num_models, visits))

    def due(self, trial: int) -> int:
        """The virtual time at which ``trial`` reports, 0 if it does not train: the scheduler begins with the lowest,
        for which the others wait."""
        return self._due.get(trial, 0)

    def _in_turn(self, trial: int, tell: Callable[[], list[Operation]]) -> list[Operation]:
        """Tell the searcher of this and all other results that nobody can come before any more."""
        if trial not in self._due:  # it waits for the searcher, which can be told at once
            return self._noted(tell())
        self._arrived[trial] = tell
        operations: list[Operation] = []
        while self._queue and self._queue[0][1] in self._arrived:
            self._now, trial = heapq.heappop(self._queue)
            del self._due[trial]
            operations += self._noted(self._arrived.pop(trial)())
        return operations

    def _noted(self, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if isinstance(operation, Create):
                source = operation.source
                self._visits[operation.trial] = 0 if source is None else self._visits[source]
            elif isinstance(operation, Train):
                due = self._now + operation.visits - self._visits[operation.trial]
                self._due[operation.trial] = due
                heapq.heappush(self._queue, (due, operation.trial))
        return operations
