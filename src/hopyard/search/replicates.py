"""Replicates, around any searcher: each of its trials, which is a point here, is trained with several seeds."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fractions import Fraction

from hopyard.checks import integer
from hopyard.search.base import Create, Operation, Searcher, Stop, Train


class Replicated(Searcher):
    """``searcher``, whose trial p, a point here, is ``replicates`` trials: the replicate r of the point p is trial
    ``p * replicates + r``.

    What the searcher says of a point is said of each of its living replicates: those that have not exited. It hears of
    the point once all of these have come to where it let them train, and is told the mean of their values; a replicate
    that exits on the way is left out, and the point exits with the last one. So what is said of a point depends on its
    own trials, but not on the order in which they report. The replicates of a copied point are copies of its donor's,
    one of each, in turns if fewer of them live.

    Raises:
        UsageError: ``replicates`` is no whole number of at least 1.
    """

    def __init__(self, searcher: Searcher, replicates: int) -> None:
        self.independent: bool = searcher.independent
        self.num_points: int | None = searcher.num_points
        self._searcher = searcher
        self._replicates = integer("replicates", replicates, 1)
        self._living: dict[int, list[int]] = {}  # of each point
        self._training: dict[int, set[int]] = {}  # of these, by point, the ones that have not reported
        self._values: dict[
            int, tuple[int, float]
        ] = {}  # of living trials, where they reported last: visits, value
        self._early: dict[
            int, list[tuple[int, float]]
        ] = {}  # the same of a point's trials that were stopped early

    def start(self) -> list[Operation]:
        return self._of_trials(self._searcher.start())

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._values[trial] = visits, value
        return self._reported(trial)

    def exited(self, trial: int) -> list[Operation]:
        point = trial // self._replicates
        self._living[point].remove(trial)
        self._values.pop(trial, None)
        if self._living[point]:
            return self._reported(trial)
        del self._living[point], self._training[point]
        if early := self._early.pop(point, None):
            return self._of_trials(self._searcher.stopped_early(point, *_mean_of_longest(early)))
        return self._of_trials(self._searcher.exited(point))

    def stopped_early(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._early.setdefault(trial // self._replicates, []).append((visits, value))
        return self.exited(trial)

    def extend(self, num_models: int | None, visits: int) -> list[Operation]:
        return self._of_trials(self._searcher.extend(num_models, visits))

    def due(self, trial: int) -> int:
        return self._searcher.due(trial // self._replicates)

    def _reported(self, trial: int) -> list[Operation]:
        """Tell the searcher of the point of ``trial``, if that was the last one it waited for."""
        point = trial // self._replicates
        training = self._training[point]
        if trial not in training:  # it waited
            return []
        training.remove(trial)
        if training:
            return []
        told = _mean_of_longest([self._values[living] for living in self._living[point]])
        return self._of_trials(self._searcher.validated(point, *told))

    def _of_trials(self, operations: list[Operation]) -> list[Operation]:
        """The operations on points, on their trials."""
        said: list[Operation] = []
        for operation in operations:
            point = operation.trial
            if isinstance(operation, Create):
                first = point * self._replicates
                self._living[point] = [*range(first, first + self._replicates)]
                self._training[point] = set()
                donors = None if operation.source is None else self._living[operation.source]
                for replicate, trial in enumerate(self._living[point]):
                    source = None if donors is None else self._donor(donors, replicate)
                    said.append(Create(trial, copy.deepcopy(operation.params), source))
            elif isinstance(operation, Train):
                self._training[point].update(self._living[point])
                said += [Train(trial, operation.visits) for trial in self._living[point]]
            else:
                said += [Stop(trial) for trial in self._living[point]]
        return said

    def _donor(self, living: Sequence[int], replicate: int) -> int:
        """The living trial of the same replicate, or another one."""
        same = [trial for trial in living if trial % self._replicates == replicate]
        return same[0] if same else living[replicate % len(living)]


def mean_of(values: Sequence[float]) -> float:
    """The mean of values of which smaller is better, rounded once; infinite if infinities of both signs are among
    them."""
    if all(map(math.isfinite, values)):
        return float(sum(map(Fraction, values)) / len(values))
    total = sum(values)
    return math.inf if math.isnan(total) else total


def _mean_of_longest(reports: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """The most visits among reports of (visits, value), and the mean of the values after so many."""
    longest = max(visits for visits, _ in reports)
    return longest, mean_of([value for visits, value in reports if visits == longest])
