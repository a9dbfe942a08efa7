"""An oracle: the best schedule of a small instance, by branch and bound.

A schedule in which no unit could begin earlier without another beginning later is given by the order in
which units are appended, each as early as its trial and its worker allow. Without hop costs it is enough
to branch on the units that could begin before the earliest possible end, on the trial or the worker of
the unit that has it (Giffler and Thompson 1960): if none of them did, that unit would fit in before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopyard.hopper import SimulatedUnit


def best_schedule(
    durations: np.ndarray[Any, np.dtype[np.float64]],
    workers: int,
    epochs: int,
    hop_seconds: float,
    lower_bound: float,
) -> list[SimulatedUnit]:
    """The schedule of the least makespan, in order of start: of up to 16 units, 9 with hop costs, in a moment."""
    search = _Search(durations.tolist(), workers, epochs, hop_seconds, lower_bound * (1 + 1e-12))
    search.explore()
    return sorted(search.best_units, key=lambda unit: (unit.start, unit.worker))


@dataclass
class _Search:
    durations: list[list[float]]
    workers: int
    epochs: int
    hop_seconds: float
    enough: float  # a schedule as good as this cannot be beaten
    best: float = float("inf")
    best_units: list[SimulatedUnit] = field(default_factory=list)

    def __post_init__(self) -> None:
        partitions = len(self.durations[0])
        self._all = (1 << partitions) - 1
        self._todo = [self._all for _ in self.durations]
        self._epoch = [0 for _ in self.durations]
        self._where = [-1 for _ in self.durations]
        self._trial_free = [0.0 for _ in self.durations]
        self._worker_free = [0.0] * self.workers
        self._trial_left = [self.epochs * sum(row) for row in self.durations]
        self._worker_left = [
            self.epochs * sum(row[j] for row in self.durations for j in range(w, partitions, self.workers))
            for w in range(self.workers)
        ]
        self._units: list[SimulatedUnit] = []
        self._seen: dict[tuple[Any, ...], list[tuple[float, ...]]] = {}

    def explore(self) -> None:
        """Complete the schedule in every way that may be better than the best one so far."""
        if self.best <= self.enough or self._bound() >= self.best or self._was_as_good_before():
            return
        options = self._options()
        if not options:
            self.best, self.best_units = max(self._trial_free), list(self._units)
            return
        if not self.hop_seconds:
            first = min(options, key=lambda unit: unit.end)
            options = [
                unit
                for unit in options
                if (unit.trial == first.trial or unit.worker == first.worker)
                and (unit.start < first.end or unit == first)
            ]
        for unit in sorted(options, key=lambda unit: (unit.start, -self._trial_left[unit.trial])):
            self._append(unit)

    def _bound(self) -> float:
        trials = max(map(sum, zip(self._trial_free, self._trial_left, strict=True)))
        return float(max(trials, *map(sum, zip(self._worker_free, self._worker_left, strict=True))))

    def _was_as_good_before(self) -> bool:
        """Whether the same units were placed before, with nobody free later than now."""
        key = (*self._todo, *self._epoch, *(self._where if self.hop_seconds else ()))
        now = (*self._trial_free, *self._worker_free)
        fronts = self._seen.setdefault(key, [])
        if any(all(a <= b for a, b in zip(front, now, strict=True)) for front in fronts):
            return True
        fronts.append(now)
        return False

    def _options(self) -> list[SimulatedUnit]:
        found = []
        for trial, row in enumerate(self.durations):
            for partition, seconds in enumerate(row):
                if not self._todo[trial] >> partition & 1:
                    continue
                worker = partition % self.workers
                hop = self.hop_seconds if self._where[trial] not in (-1, worker) else 0.0
                start = max(self._trial_free[trial], self._worker_free[worker])
                found.append(
                    SimulatedUnit(trial, partition, worker, self._epoch[trial], start, start + seconds + hop)
                )
        return found

    def _append(self, unit: SimulatedUnit) -> None:
        trial, worker, seconds = unit.trial, unit.worker, self.durations[unit.trial][unit.partition]
        before = self._todo[trial], self._epoch[trial], self._where[trial]
        times = self._trial_free[trial], self._worker_free[worker]
        left = self._trial_left[trial], self._worker_left[worker]
        self._todo[trial] &= ~(1 << unit.partition)
        if not self._todo[trial] and self._epoch[trial] + 1 < self.epochs:
            self._todo[trial], self._epoch[trial] = self._all, self._epoch[trial] + 1
        self._where[trial] = worker
        self._trial_free[trial] = self._worker_free[worker] = unit.end
        self._trial_left[trial] -= seconds
        self._worker_left[worker] -= seconds
        self._units.append(unit)
        self.explore()
        self._units.pop()
        self._todo[trial], self._epoch[trial], self._where[trial] = before
        self._trial_free[trial], self._worker_free[worker] = times
        self._trial_left[trial], self._worker_left[worker] = left
