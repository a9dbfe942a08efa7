"""Simulated schedules against the best ones, which branch and bound finds, and that against every order there is."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.hopper.exact import best_schedule

from hopyard.hopper import simulate
from hopyard.hopper.simulator import lower_bound


def brute_force(durations: list[list[float]], workers: int, epochs: int, hop_seconds: float) -> float:
    """The least makespan over all orders in which units can be placed, each as early as possible."""
    trials, partitions = len(durations), len(durations[0])
    best = float("inf")
    orders = list(permutations(range(partitions)))
    own = [[[*zip([e] * partitions, order, strict=True)] for e, order in enumerate(epoch_orders)]
           for epoch_orders in product(orders, repeat=epochs)]  # fmt: skip
    sequences = [[unit for epoch in way for unit in epoch] for way in own]
    for chosen in product(sequences, repeat=trials):
        for whose in interleavings(tuple([epochs * partitions] * trials)):
            best = min(best, makespan(chosen, whose, durations, workers, hop_seconds))
    return best


def interleavings(left: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All orders of trials in which each occurs as often as it has units left."""
    if not any(left):
        return [()]
    return [
        (trial, *rest)
        for trial, count in enumerate(left)
        if count
        for rest in interleavings((*left[:trial], count - 1, *left[trial + 1 :]))
    ]


def makespan(
    chosen: tuple[list[tuple[int, int]], ...],
    whose: tuple[int, ...],
    durations: list[list[float]],
    workers: int,
    hop_seconds: float,
) -> float:
    free, ends, at = [0.0] * workers, [0.0] * len(chosen), [0] * len(chosen)
    where = [-1] * len(chosen)
    for trial in whose:
        partition = chosen[trial][at[trial]][1]
        worker = partition % workers
        hop = hop_seconds if where[trial] not in (-1, worker) else 0.0
        ends[trial] = free[worker] = max(free[worker], ends[trial]) + durations[trial][partition] + hop
        at[trial], where[trial] = at[trial] + 1, worker
    return max(ends)


SHAPES = [
    (1, 1, 1, 1),
    (1, 3, 2, 1),
    (2, 2, 2, 1),
    (3, 2, 2, 1),
    (2, 3, 2, 1),
    (2, 3, 3, 1),
    (2, 2, 2, 2),
    (4, 1, 3, 1),
]


@pytest.mark.parametrize(("trials", "partitions", "workers", "epochs"), SHAPES)
@pytest.mark.parametrize("hop_seconds", [0.0, 2.0])
def test_the_best_schedule_is_the_best_of_all_orders(
    trials: int, partitions: int, workers: int, epochs: int, hop_seconds: float
) -> None:
    for seed in range(3):
        durations = np.random.default_rng(seed).integers(1, 9, (trials, partitions)).astype(float)
        bound = lower_bound(durations, workers, epochs, hop_seconds)
        units = best_schedule(durations, workers, epochs, hop_seconds, bound)
        best = brute_force(durations.tolist(), workers, epochs, hop_seconds)
        assert max(unit.end for unit in units) == pytest.approx(best)
        assert len(units) == trials * partitions * epochs


@given(
    shape=st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(1, 3)),
    workers=st.integers(1, 4),
    hop_seconds=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_no_schedule_is_shorter_than_the_best_and_the_bound_not_longer(
    shape: tuple[int, int, int], workers: int, hop_seconds: float, seed: int
) -> None:
    trials, partitions, epochs = shape
    assume(trials * partitions * epochs <= (9 if hop_seconds else 16))
    durations = np.random.default_rng(seed).uniform(0.1, 3, (trials, partitions))
    bound = lower_bound(durations, workers, epochs, hop_seconds)
    best = max(unit.end for unit in best_schedule(durations, workers, epochs, hop_seconds, bound))
    assert bound <= best + 1e-9
    for order in ("greedy", "longest", "fixed"):
        assert simulate(durations, workers, epochs, order, hop_seconds).makespan >= best - 1e-9
