"""Claim: a scheduling decision takes less than 50 microseconds at 10,000 trials and 1,000 workers, and schedules are
near the bound that no schedule can beat.

The limit beside the first is one pass over 10,000 numbers, what looking at every trial would cost at least. Quality is
makespan / lower bound, worst of 20 seeds.
"""

from __future__ import annotations

import heapq
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hopyard.hopper import simulate
from hopyard.hopper.orders import rotating_order
from hopyard.hopper.scheduler import Layout, Position, Scheduler, Start

TRIALS, WORKERS, DECISIONS = 10_000, 1_000, 10_000


def microseconds(partitions: int, homes: bool, free: bool) -> float:
    """A decision of the scheduler: CPU time, because other processes are not its doing."""
    order = rotating_order(partitions, partitions, 0)
    where = {j: frozenset((j % WORKERS,)) for j in range(partitions)} if homes else None
    scheduler = Scheduler(Layout(partitions, 0), order, order, where, free=free)
    chance = random.Random(0)
    seconds = [10 ** chance.random() for _ in range(TRIALS)]
    events: list[tuple[float, int]] = []

    def obey(starts: list[Start], now: float) -> None:
        for start in starts:
            heapq.heappush(
                events, (now + seconds[start.unit.trial] * chance.uniform(0.9, 1.1), start.unit.trial)
            )

    for trial in range(TRIALS):
        scheduler.add(trial, trial, Position(), partitions)
    for worker in range(WORKERS):
        obey(scheduler.worker_up(worker), 0.0)
    spent = 0.0
    for _ in range(DECISIONS):
        now, trial = heapq.heappop(events)
        began = time.process_time()
        starts = scheduler.done(trial, seconds[trial])
        spent += time.process_time() - began
        obey(starts, now)
    return spent / DECISIONS * 1e6


def one_pass() -> float:
    numbers = [float(i) for i in range(TRIALS)]
    began = time.process_time()
    for _ in range(200):
        max(numbers)
    return (time.process_time() - began) / 200 * 1e6


def worst(order: str, trials: int, workers: int, make: Callable[[np.random.Generator], Any]) -> float:
    return max(
        simulate(make(np.random.default_rng(seed)), workers, order=order, seed=seed).ratio
        for seed in range(20)
    )


def report(name: str, value: float, unit: str, peer: str, ratio: float) -> None:
    print(
        json.dumps(
            {"name": name, "value": round(value, 4), "unit": unit, "peer": peer, "ratio": round(ratio, 4)}
        )
    )


def main() -> None:
    limit = one_pass()
    for name, partitions, homes, free in (
        ("1,000 partitions at home, free order", 1000, True, True),
        ("1,000 partitions at home, fixed order", 1000, True, False),
        ("8 partitions that all can read, fixed order", 8, False, False),
    ):
        took = microseconds(partitions, homes, free)
        report(f"decision, {name}", took, "microseconds", "one pass over the trials", took / limit)
    for workers in (4, 8, 16):
        for order in ("longest", "greedy", "fixed"):
            equal = worst(order, 2 * workers, workers, lambda _, w=workers: np.ones((2 * w, w)))
            report(
                f"{2 * workers} equal trials, {workers} workers, {order}",
                equal,
                "of the bound",
                "bound",
                equal,
            )
            spread = worst(
                order,
                4 * workers,
                workers,
                lambda r, w=workers: 10 ** r.uniform(0, 1, (4 * w, 1)) * np.ones((1, w)),
            )
            report(
                f"{4 * workers} trials of 10x spread, {workers} workers, {order}",
                spread,
                "of the bound",
                "bound",
                spread,
            )


if __name__ == "__main__":
    main()
