"""Searches whose trials all train to the end: grid, random, quasi-random and, with a proposer that learns, TPE."""

from __future__ import annotations

from collections import deque

from hopyard.checks import integer
from hopyard.errors import SettingsError, SpaceError, UsageError
from hopyard.search.base import Create, Operation, Proposer, Searcher, Stop, Train
from hopyard.search.proposers import ListPoints

MOST_AT_ONCE = 16


class FullLength(Searcher):
    """``num_models`` trials at the points of ``proposer``, each for ``visits`` visits.

    Args:
        num_models: None for every point of a list or grid.
        max_concurrent: trials under way at once. None: all, unless the proposer learns; then a quarter of
            ``num_models``, at most 16, so that there is something to learn from.

    When the budget is extended, trials that had trained to the end train on, as many at once as ever; what a proposer
    learned of them before stays.

    Raises:
        UsageError: a number that is not a whole one of at least 1, or None for a proposer without end.
        SpaceError: there are fewer points than ``num_models``.
    """

    def __init__(
        self, proposer: Proposer, num_models: int | None, visits: int, max_concurrent: int | None = None
    ) -> None:
        if num_models is None:
            if not isinstance(proposer, ListPoints):
                raise UsageError(
                    "num_models is None, which means every point of a grid, but these points are drawn, without end. "
                    "Write num_models=16, or use GridSearch."
                )
            num_models = len(proposer)
        proposer.check(integer("num_models", num_models, 1))
        if max_concurrent is None:
            max_concurrent = min(MOST_AT_ONCE, -(-num_models // 4)) if proposer.learns else None
        else:
            integer("max_concurrent_trials", max_concurrent, 1)
        self.independent: bool = not proposer.learns
        self.num_points: int | None = num_models
        self._proposer = proposer
        self._num_models = num_models
        self._visits = integer("visits", visits, 1)
        self._max_concurrent = max_concurrent
        self._created = 0
        self._training: set[int] = set()
        self._completed: set[int] = set()  # trained to the end, as far as it is known
        self._again: deque[int] = deque()  # of these, the ones that will train on, after an extension
        self._closed: set[int] = set()  # the proposer was told that they ended

    def start(self) -> list[Operation]:
        return self._filled()

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        if trial not in self._closed:
            self._proposer.observed(trial, visits, value)
        if visits < self._visits:  # the budget grew while it trained
            return [Train(trial, self._visits)]
        self._left(trial)
        self._completed.add(trial)
        return [Stop(trial), *self._filled()]

    def exited(self, trial: int) -> list[Operation]:
        self._left(trial)
        if trial in self._completed:  # it was to train on
            self._completed.remove(trial)
            self._again.remove(trial)
        return self._filled()

    def stopped_early(self, trial: int, visits: int, value: float) -> list[Operation]:
        if trial not in self._closed:
            self._proposer.observed(trial, visits, value)
        return self.exited(trial)

    def extend(self, num_models: int | None, visits: int) -> list[Operation]:
        num_models = self._num_models if num_models is None else num_models
        for name, before, now in (
            ("num_models", self._num_models, num_models),
            ("the visits of a trial", self._visits, visits),
        ):
            if now < before:
                raise SettingsError(
                    f"{name} would be {now}, but the run has begun with {before}, and a budget only grows. "
                    "Give as much or more, or start a new run with another run_id."
                )
        try:
            self._proposer.check(num_models)
        except SpaceError as error:
            raise SettingsError(str(error)) from None
        if visits > self._visits:
            self._again = deque(sorted(self._completed))
        self._num_models, self._visits = num_models, visits
        return self._filled()

    def _left(self, trial: int) -> None:
        self._training.discard(trial)
        if trial not in self._closed:
            self._closed.add(trial)
            self._proposer.ended(trial)

    def _filled(self) -> list[Operation]:
        """Let as many trials train as may at once: first trials that had trained to the end, then new ones."""
        operations: list[Operation] = []
        while self._max_concurrent is None or len(self._training) < self._max_concurrent:
            if self._again:
                trial = self._again.popleft()
                self._completed.discard(trial)
            elif self._created < self._num_models:
                trial = self._created
                params = self._proposer.propose(trial)
                if params is None:
                    self._num_models = self._created
                    break
                self._created += 1
                operations.append(Create(trial, params))
            else:
                break
            self._training.add(trial)
            operations.append(Train(trial, self._visits))
        return operations
