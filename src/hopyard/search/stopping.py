"""Early stopping, around any searcher: trials train an epoch at a time, and bad ones are stopped."""

from __future__ import annotations

import bisect
import math
from abc import abstractmethod

from hopyard.checks import integer
from hopyard.search.base import Create, Operation, Searcher, Stop, Train


class EpochByEpoch(Searcher):
    """``searcher``, with each trial let train an epoch of ``epoch`` visits at a time, or to the searcher's target if
    that is nearer. ``stops`` is asked at the end of each epoch, and what it says goes before more training.

    The searcher hears of its own targets only. There a trial that is to be stopped is still the searcher's, which
    may end it, copy it, or let it wait; it is stopped once it would train on, also by an extension. The searcher is
    then told what it had reached (``stopped_early``).
    """

    def __init__(self, searcher: Searcher, epoch: int) -> None:
        self.independent: bool = searcher.independent
        self.num_points: int | None = searcher.num_points
        self.epoch: int = integer("epoch", epoch, 1)
        self._searcher = searcher
        self._visits: dict[int, int] = {}
        self._value: dict[int, float] = {}
        self._target: dict[int, int] = {}
        self._stopping: set[int] = set()  # they are not let train on

    @abstractmethod
    def stops(self, trial: int, visits: int, value: float) -> bool:
        """Whether ``trial`` is to be stopped, after ``visits``, a whole number of epochs. Called for every epoch that
        it trains, in order."""

    def start(self) -> list[Operation]:
        return self._epochs(self._searcher.start())

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._visits[trial], self._value[trial] = visits, value
        if visits % self.epoch == 0 and self.stops(trial, visits, value):
            self._stopping.add(trial)
        if visits >= self._target[trial]:
            return self._epochs(self._searcher.validated(trial, visits, value))
        return self._epochs([Train(trial, self._target[trial])])

    def exited(self, trial: int) -> list[Operation]:
        return self._epochs(self._searcher.exited(trial))

    def stopped_early(self, trial: int, visits: int, value: float) -> list[Operation]:
        return self._epochs(self._searcher.stopped_early(trial, visits, value))

    def extend(self, num_models: int | None, visits: int) -> list[Operation]:
        return self._epochs(self._searcher.extend(num_models, visits))

    def _epochs(self, operations: list[Operation]) -> list[Operation]:
        """The searcher's operations with targets an epoch away at most, and a stop for trials that are to stop."""
        said: list[Operation] = []
        operations = list(operations)
        for operation in operations:  # grows on the way
            trial = operation.trial
            if isinstance(operation, Create):
                source = operation.source
                self._visits[trial] = 0 if source is None else self._visits[source]
            elif isinstance(operation, Train) and trial in self._stopping:
                self._stopping.remove(trial)
                operation = Stop(trial)
                operations += self._searcher.stopped_early(trial, self._visits[trial], self._value[trial])
            elif isinstance(operation, Train):
                self._target[trial] = operation.visits
                end = (self._visits[trial] // self.epoch + 1) * self.epoch
                operation = Train(trial, min(end, operation.visits))
            said.append(operation)
        return said


class Patience(EpochByEpoch):
    """Stops a trial whose value has not become smaller for ``patience_epochs`` epochs. Infinity is no improvement."""

    def __init__(self, searcher: Searcher, patience_epochs: int, epoch: int) -> None:
        super().__init__(searcher, epoch)
        self._patience = integer("patience", patience_epochs, 1) * epoch
        self._best: dict[int, tuple[float, int]] = {}

    def stops(self, trial: int, visits: int, value: float) -> bool:
        best, since = self._best.setdefault(trial, (math.inf, visits))
        if value < best:
            self._best[trial] = value, visits
            return False
        return visits - since >= self._patience


class MedianStopping(EpochByEpoch):
    """Stops a trial at the end of epoch e if its best value so far is worse than the median, over all other trials
    that have trained epoch e, of the mean of their values in the epochs up to e.

    Not in the first ``grace_epochs`` epochs, nor while fewer than ``min_trials`` others have trained epoch e. A copy's
    values begin where it was copied. (The median stopping rule of Golovin et al., Google Vizier, KDD 2017, 3.2, with
    running trials among the others, as in Ray Tune.)
    """

    def __init__(self, searcher: Searcher, epoch: int, *, grace_epochs: int = 1, min_trials: int = 3) -> None:
        super().__init__(searcher, epoch)
        self.independent = False
        self._grace = integer("grace_epochs", grace_epochs, 1) * epoch
        self._min_trials = integer("min_trials", min_trials, 1)
        self._best: dict[int, float] = {}
        self._sum: dict[int, tuple[float, int]] = {}
        self._means: dict[int, list[float]] = {}  # by visits, ascending

    def stops(self, trial: int, visits: int, value: float) -> bool:
        best = self._best[trial] = min(value, self._best.get(trial, math.inf))
        total, count = self._sum.get(trial, (0.0, 0))
        self._sum[trial] = total + value, count + 1
        mean = (total + value) / (count + 1)
        others = self._means.setdefault(visits, [])
        worse = visits > self._grace and len(others) >= self._min_trials and best > _median(others)
        bisect.insort(others, math.inf if math.isnan(mean) else mean)  # inf - inf
        return worse


def _median(ascending: list[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    middle = len(ascending) // 2
    if len(ascending) % 2:
        return ascending[middle]
    low, high = ascending[middle - 1 : middle + 1]
    return low if low == high else low + (high - low) / 2
