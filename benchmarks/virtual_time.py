"""Claim: searches that repeat exactly take at most a few per cent longer than those that take results as they come.

The real searchers and the real scheduler on a simulated clock: 64 trials (PBT: 16), 8 partitions, 9 epochs, seconds
per unit equal, spread over 3x by trial, or with 5% of the units taking five times as long. For each search the
makespan in virtual time, divided by that of results as they come: median and worst over seeds.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hopyard.hopper.scheduler import Layout
from hopyard.hopper.searches import simulate_search
from hopyard.search import Asha, FullLength, MedianStopping, Pbt, Proposer, RandomPoints, Searcher, hp_uniform

SPACE = {"x": hp_uniform(0, 1)}
PARTITIONS, EPOCHS = 8, 9
VISITS = PARTITIONS * EPOCHS
RUNGS = [PARTITIONS, 3 * PARTITIONS, VISITS]


class Learns(RandomPoints):
    """Draws, but is treated as one that learns (TPE): every new point waits for a result."""

    learns = True


def searchers(seed: int, at_once: int) -> dict[str, Callable[[], Searcher]]:
    def points() -> Proposer:
        return RandomPoints(SPACE, seed)

    return {
        "ASHA, promotion": lambda: Asha(points(), 64, RUNGS, 3, at_once),
        "ASHA, stopping": lambda: Asha(points(), 64, RUNGS, 3, at_once, stop_once=True),
        "PBT": lambda: Pbt(points(), SPACE, 16, EPOCHS, PARTITIONS, seed=seed),
        "learning (as TPE)": lambda: FullLength(Learns(SPACE, seed), 64, VISITS, at_once),
        "median stopping": lambda: MedianStopping(FullLength(points(), 64, VISITS, at_once), PARTITIONS),
    }


def durations(kind: str, seed: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    seconds = random.uniform(0.95, 1.05, (512, PARTITIONS))
    if kind == "3x":
        seconds *= 3 ** random.uniform(0, 1, (512, 1))
    if kind == "stragglers":
        seconds *= np.where(random.random((512, PARTITIONS)) < 0.05, 5, 1)
    return seconds


def metric(seed: int) -> Callable[[int, int], float]:
    random = np.random.default_rng(seed)
    final, speed = random.random(4096), random.uniform(0.5, 2, 4096)
    return lambda trial, visits: float(final[trial] + np.exp(-speed[trial] * visits / PARTITIONS))


def ratio(make: Callable[[], Searcher], kind: str, workers: int, seed: int) -> tuple[float, float, float]:
    """Makespan reproducible / as they come; the shares of time in which workers are idle."""
    reproducible, free = (
        simulate_search(
            make(), durations(kind, seed), workers, metric(seed), Layout(PARTITIONS, 2), reproducible=virtual
        )
        for virtual in (True, False)
    )
    # Searches that take results as they come may train other trials for longer or shorter: what is compared
    # is the time per visit that was made.
    cost = (
        reproducible.makespan / sum(reproducible.visits.values()) * sum(free.visits.values()) / free.makespan
    )
    return cost, reproducible.makespan / free.makespan, reproducible.idle - free.idle


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for name in searchers(0, 16):
        for kind in ("equal", "3x", "stragglers"):
            for workers, at_once in ((2, 16), (4, 16), (8, 16), (16, 16), (16, 32), (16, 64)):
                found = [ratio(searchers(seed, at_once)[name], kind, workers, seed) for seed in range(seeds)]
                cost, makespans, idle = zip(*found, strict=True)
                print(
                    json.dumps(
                        {
                            "name": f"{name}, {kind}, {workers} workers, {at_once} at once",
                            "value": (cost_in_time := round(statistics.median(makespans), 3)),
                            "unit": "of the makespan as results come",
                            "peer": "the same search, reproducible=False",
                            "ratio": cost_in_time,
                            "worst": round(max(makespans), 3),
                            "per_visit": round(statistics.median(cost), 3),
                            "idle_more": round(statistics.median(idle), 3),
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
