"""Duration of a schedule, without training anything: the real scheduler on a simulated clock."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hopyard.checks import integer
from hopyard.errors import UsageError
from hopyard.hopper.orders import rotating_order
from hopyard.hopper.scheduler import Layout, Position, Scheduler, Start
from hopyard.wording import nearest

ORDERS = ("greedy", "longest", "fixed")


class SimulatedUnit(NamedTuple):
    """A visit on the simulated clock; ``start`` and ``end`` in seconds."""

    trial: int
    partition: int
    worker: int
    epoch: int
    start: float
    end: float


@dataclass(frozen=True)
class Plan:
    """A simulated schedule.

    Attributes:
        makespan: seconds until the last unit is done.
        lower_bound: seconds that no schedule can beat.
        ratio: ``makespan / lower_bound``.
        idle: share of all workers' time, up to the makespan, in which no unit ran.
        units: every unit: ``trial, partition, worker, epoch, start, end`` (seconds), in order of start. A
            hop's seconds are part of the unit that follows it.
    """

    makespan: float
    lower_bound: float
    idle: float
    units: list[SimulatedUnit]

    @property
    def ratio(self) -> float:
        return self.makespan / self.lower_bound if self.lower_bound else 1.0


def simulate(
    durations: ArrayLike,
    workers: int,
    epochs: int = 1,
    order: str = "greedy",
    hop_seconds: float = 0.0,
    seed: int = 0,
) -> Plan:
    """Simulate a search in which every trial visits every partition once an epoch.

    Partition j lives on worker j mod ``workers``; of more workers than partitions some do nothing. Trials
    do not wait for each other between epochs.

    Args:
        durations: seconds of a visit, shape (trials, partitions).
        workers: how many.
        epochs: how often each partition is visited.
        order: ``"greedy"``: fewest visits first, partitions in any order. ``"longest"``: most seconds left first, by
            what units take; the shortest of such schedules with partitions in any order and in rotating orders.
            ``"fixed"``: the rotating orders of a reproducible run, the longest first by what units took so far.
        hop_seconds: what a unit takes longer if the trial's previous one was on another worker.
        seed: of the visit orders.

    Raises:
        UsageError: an argument is impossible.
    """
    seconds = checked_durations(durations)
    workers, epochs = integer("workers", workers, 1), integer("epochs", epochs, 1)
    check_order(order, ORDERS)
    check_hop(hop_seconds)
    bound = lower_bound(seconds, workers, epochs, hop_seconds)
    units = _shortest(seconds, workers, epochs, order, hop_seconds, seed, bound)
    makespan = max(unit.end for unit in units)
    busy = sum(unit.end - unit.start for unit in units)
    idle = max(0.0, 1 - busy / (makespan * workers)) if makespan else 0.0
    return Plan(makespan, bound, idle, units)


def lower_bound(
    durations: np.ndarray[Any, np.dtype[np.float64]], workers: int, epochs: int, hop_seconds: float
) -> float:
    """Seconds that no schedule of :func:`simulate`'s problem can beat: the longest trial, the busiest
    worker, and the mean of all workers, with the hops that cannot be avoided.

    In an epoch a trial visits every worker that has partitions; it saves a hop only by beginning an epoch
    where it ended the one before. So in two epochs it comes to every worker at least once.
    """
    trials = len(durations)
    used = min(workers, durations.shape[1])
    loads = [epochs * float(durations[:, worker::workers].sum()) for worker in range(used)]
    hops = float(epochs * (used - 1))
    longest = epochs * float(durations.sum(axis=1).max()) + hops * hop_seconds
    busiest = max(loads) + (trials * (epochs // 2) * hop_seconds if used > 1 else 0.0)
    mean = (sum(loads) + trials * hops * hop_seconds) / used
    return float(max(longest, busiest, mean))


class Clock:
    """A simulated clock: events to come, in order of their moments."""

    def __init__(self) -> None:
        self.now: float = 0.0
        self._events: list[tuple[float, int, Any]] = []
        self._count = 0

    def after(self, seconds: float, event: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event))

    def next(self) -> Any:
        """The next event; the clock stands at its moment then. None: there is none."""
        if not self._events:
            return None
        self.now, _, event = heapq.heappop(self._events)
        return event


def _shortest(
    durations: np.ndarray[Any, np.dtype[np.float64]],
    workers: int,
    epochs: int,
    order: str,
    hop_seconds: float,
    seed: int,
    bound: float,
) -> list[SimulatedUnit]:
    """The shortest of the schedules that an order allows. With equal trials rotating orders fill all workers, where
    free ones may end a unit late; with unequal ones it is mostly the other way round."""
    ways = {"greedy": [(True, False)], "fixed": [(False, False)], "longest": [(True, True), (False, True)]}
    best: list[SimulatedUnit] = []
    for free, known in ways[order]:
        policy: Literal["greedy", "longest"] = "greedy" if order == "greedy" else "longest"
        units = _run(durations, workers, epochs, policy, free, known, hop_seconds, seed)
        if not best or max(unit.end for unit in units) < max(unit.end for unit in best):
            best = units
        if max(unit.end for unit in best) <= bound * (1 + 1e-9):
            break
    return best


def _run(
    durations: np.ndarray[Any, np.dtype[np.float64]],
    workers: int,
    epochs: int,
    policy: Literal["greedy", "longest"],
    free: bool,
    known: bool,
    hop_seconds: float,
    seed: int,
) -> list[SimulatedUnit]:
    """``free``: partitions in any order. ``known``: the scheduler is told how long units will take."""
    trials, partitions = durations.shape
    visits = rotating_order(partitions, partitions, seed)
    homes = {j: frozenset((j % workers,)) for j in range(partitions)}
    scheduler = Scheduler(
        Layout(partitions, 0), visits, visits, homes, order=policy, free=free, hop_seconds=hop_seconds
    )
    clock, units, where = Clock(), list[SimulatedUnit](), dict[int, int]()

    def obey(starts: Sequence[Start]) -> None:
        for worker, unit in ((start.worker, start.unit) for start in starts):
            took = float(durations[unit.trial, unit.partition])
            took += hop_seconds if where.get(unit.trial, worker) != worker else 0.0
            where[unit.trial] = worker
            units.append(
                SimulatedUnit(unit.trial, unit.partition, worker, unit.epoch, clock.now, clock.now + took)
            )
            clock.after(took, (unit.trial, took))

    for trial in range(trials):
        expected = epochs * float(durations[trial].sum()) if known else None
        scheduler.add(trial, trial, Position(), epochs * partitions, expected=expected)
    for worker in range(workers):
        obey(scheduler.worker_up(worker))
    while (event := clock.next()) is not None:
        obey(scheduler.done(*event))
    return units


def checked_durations(durations: ArrayLike) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Raises UsageError unless these are seconds of shape (trials, partitions)."""
    try:
        seconds = np.asarray(durations, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"durations must be numbers of shape (trials, partitions), in seconds: {error}. Give a row for each trial."
        ) from None
    if seconds.ndim != 2 or not seconds.size:
        raise UsageError(
            f"durations has the shape {seconds.shape}; needed is (trials, partitions), at least one of each. "
            "Give a row for each trial, with the seconds of its visit to each partition."
        )
    bad = np.argwhere(~(np.isfinite(seconds) & (seconds >= 0)))
    if len(bad):
        trial, partition = bad[0]
        raise UsageError(
            f"durations[{trial}, {partition}] is {seconds[trial, partition]}; seconds must be finite and not negative. "
            "Give an estimate for visits that were not measured."
        )
    return seconds


def check_order(order: str, known: Sequence[str]) -> None:
    """Raises UsageError for another order than the ``known`` ones."""
    if order not in known:
        raise UsageError(
            f"order={order!r} is unknown{nearest(str(order), known, '.')} Give one of {', '.join(map(repr, known))}."
        )


def check_hop(hop_seconds: float) -> None:
    """Raises UsageError unless these are seconds."""
    if not (np.isfinite(hop_seconds) and hop_seconds >= 0):
        raise UsageError(
            f"hop_seconds={hop_seconds!r}, but must be finite and not negative. Give 0 if a hop is free."
        )
