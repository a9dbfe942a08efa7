"""Duration of a search: a real searcher and the real scheduler on a simulated clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from numpy.typing import ArrayLike

from hopyard.checks import integer
from hopyard.errors import UsageError
from hopyard.hopper.orders import rotating_order
from hopyard.hopper.scheduler import Layout, Position, Scheduler, Start, Unit
from hopyard.hopper.simulator import Clock, check_hop, check_order, checked_durations
from hopyard.search.base import Create, Operation, Searcher, Train
from hopyard.search.virtual import InVirtualTime

Seconds: TypeAlias = Callable[[int, int], float]
"""(trial, partition) -> seconds of a visit."""


@dataclass(frozen=True)
class SearchPlan:
    """A simulated search.

    Attributes:
        makespan: seconds until the last unit is done.
        idle: share of all workers' time, up to the makespan, in which no unit ran.
        stalled: seconds for which results waited until their turn in virtual time, over all trials; during these
            their trials did not train, though workers may have had other work.
        visits: train visits that each trial made, with those of the trial it is a copy of.
        told: what the searcher was told, in order: (trial, visits).
    """

    makespan: float
    idle: float
    stalled: float
    visits: dict[int, int]
    told: list[tuple[int, int]]


def simulate_search(
    searcher: Searcher,
    durations: ArrayLike | Seconds,
    workers: int,
    metric: Callable[[int, int], float],
    layout: Layout,
    *,
    reproducible: bool = True,
    order: str = "longest",
    hop_seconds: float = 0.0,
    validate_seconds: float | None = None,
    deaths: Mapping[int, float] | None = None,
    seed: int = 0,
) -> SearchPlan:
    """Simulate a search in which every worker can read every partition, in fixed visit orders, as runs have them.

    Args:
        searcher: it is used up.
        durations: seconds of a train visit, of shape (trials, partitions), or a function of both; trials
            beyond the last row begin with the first one again.
        workers: how many.
        metric: the value of a trial after so many train visits; smaller is better.
        layout: partitions of an epoch.
        reproducible: results reach the searcher in virtual time, else as they come.
        order: of the scheduler, ``"longest"`` or ``"greedy"``.
        hop_seconds: what a unit takes longer if the trial's previous one was on another worker.
        validate_seconds: of a validate visit; None: a third of the train visit's.
        deaths: worker -> the second at which it is lost; a unit that ran there is repeated elsewhere.
        seed: of the visit orders.

    Raises:
        UsageError: an argument is impossible, or all workers die before the search is over.
    """
    workers = integer("workers", workers, 1)
    check_order(order, ("longest", "greedy"))
    check_hop(hop_seconds)
    simulation = _Search(
        InVirtualTime(searcher) if reproducible else searcher, _seconds(durations, layout), metric, layout
    )
    simulation.scheduler = Scheduler(
        layout,
        rotating_order(layout.train, layout.train, seed),
        rotating_order(max(layout.validate, 1), layout.train, seed),
        order="greedy" if order == "greedy" else "longest",
        hop_seconds=hop_seconds,
    )
    simulation.hop_seconds, simulation.validate_seconds = hop_seconds, validate_seconds
    return simulation.run(workers, deaths or {})


def _seconds(durations: ArrayLike | Seconds, layout: Layout) -> Seconds:
    if callable(durations):
        return durations
    table = checked_durations(durations)
    if table.shape[1] != layout.train:
        raise UsageError(
            f"durations has the shape {table.shape}, but an epoch has {layout.train} partitions. Give a row for each "
            f"trial, with {layout.train} seconds."
        )
    return lambda trial, partition: float(table[trial % len(table), partition])


class _Search:
    scheduler: Scheduler
    hop_seconds = 0.0
    validate_seconds: float | None = None

    def __init__(
        self,
        searcher: Searcher,
        seconds: Seconds,
        metric: Callable[[int, int], float],
        layout: Layout,
    ) -> None:
        self._searcher, self._seconds, self._metric, self._layout = searcher, seconds, metric, layout
        self._clock = Clock()
        self._position: dict[int, Position] = {}
        self._target: dict[int, int] = {}
        self._where: dict[int, int] = {}
        self._waits: dict[int, float] = {}
        self._units: dict[int, Unit] = {}
        self._ended: set[int] = set()
        self._told: list[tuple[int, int]] = []
        self._stalled = self._busy = self._last = 0.0

    def run(self, workers: int, deaths: Mapping[int, float]) -> SearchPlan:
        for worker, second in deaths.items():
            self._clock.after(second, (worker, None, 0.0))
        for worker in range(workers):
            self._obey(self.scheduler.worker_up(worker))
        self._follow(self._searcher.start())
        while (event := self._clock.next()) is not None:
            worker, took = event[0], event[2]
            unit: Unit | None = event[1]
            if unit is None:
                self._lose(worker)
            elif self._units.get(worker) is unit:
                self._busy, self._last = self._busy + took, self._clock.now
                del self._units[worker]
                self._finish(unit, took)
        if set(self._position) - self._ended:
            raise UsageError(
                f"trials {sorted(set(self._position) - self._ended)} never ended: all {workers} workers were lost, or "
                "the searcher forgot them. Let a worker live, or check the searcher with SearcherTests."
            )
        visits = {trial: position.trained for trial, position in self._position.items()}
        idle = 1 - self._busy / (self._last * workers) if self._last else 0.0
        return SearchPlan(self._last, idle, self._stalled, visits, self._told)

    def _lose(self, worker: int) -> None:
        unit = self._units.pop(worker, None)
        self.scheduler.worker_down(worker)
        if unit is not None:
            self._obey(self.scheduler.returned(unit.trial, self._position[unit.trial]))

    def _finish(self, unit: Unit, took: float) -> None:
        trial, before = unit.trial, self._position[unit.trial]
        if unit.phase == "train":
            after = replace(before, visits=before.visits + 1, trained=before.trained + 1)
        else:
            step, validated = (0, before.trained) if unit.last else (before.step + 1, before.validated)
            after = replace(before, visits=before.visits + 1, step=step, validated=validated)
        self._position[trial] = after
        reached = after.trained == self._target[trial]
        if reached and (not self._layout.validate or after.validated == after.trained):
            # As in a run, the searcher is asked before its trial's worker looks for other work.
            value = self._metric(trial, after.trained)
            self._waits[trial] = self._clock.now
            self._told.append((trial, after.trained))
            operations = self._searcher.validated(
                trial, after.trained, math.inf if math.isnan(value) else value
            )
            self._obey(self.scheduler.done(trial, took))
            self._follow(operations)
        else:
            self._obey(self.scheduler.done(trial, took))

    def _follow(self, operations: list[Operation]) -> None:
        urgency = self._searcher.due if isinstance(self._searcher, InVirtualTime) else lambda trial: 0
        for operation in operations:
            trial = operation.trial
            if isinstance(operation, Create):
                source = operation.source
                self._position[trial] = Position() if source is None else self._position[source]
            elif not isinstance(operation, Train):
                self._ended.add(trial)
                self._waits.pop(trial, None)
                if self.scheduler.has(trial):
                    self._obey(self.scheduler.end(trial))
            else:
                self._target[trial] = operation.visits
                self._stalled += self._clock.now - self._waits.pop(trial, self._clock.now)
                if self.scheduler.has(trial):
                    self._obey(self.scheduler.extend(trial, operation.visits, urgency(trial)))
                else:
                    position, group = self._position[trial], trial % self._layout.train
                    self._obey(self.scheduler.add(trial, group, position, operation.visits, urgency(trial)))

    def _obey(self, starts: list[Start]) -> None:
        for worker, unit in ((start.worker, start.unit) for start in starts):
            took = self._seconds(unit.trial, unit.partition % self._layout.train)
            if unit.phase == "validate":
                took = took / 3 if self.validate_seconds is None else self.validate_seconds
            took += self.hop_seconds if self._where.get(unit.trial, worker) != worker else 0.0
            self._where[unit.trial] = worker
            self._units[worker] = unit
            self._clock.after(took, (worker, unit, took))
