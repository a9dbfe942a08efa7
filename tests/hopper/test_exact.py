"""The exact order against every order there is."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from hopyard.errors import UsageError
from hopyard.hopper import simulate


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
def test_the_exact_order_equals_brute_force(
    trials: int, partitions: int, workers: int, epochs: int, hop_seconds: float
) -> None:
    for seed in range(3):
        durations = np.random.default_rng(seed).integers(1, 9, (trials, partitions)).astype(float)
        plan = simulate(durations, workers, epochs, "exact", hop_seconds)
        best = brute_force(durations.tolist(), workers, epochs, hop_seconds)
        assert plan.makespan == pytest.approx(best)
        assert plan.lower_bound <= best + 1e-9
        assert max(unit.end for unit in plan.units) == plan.makespan
        for order in ("greedy", "longest", "fixed"):
            assert simulate(durations, workers, epochs, order, hop_seconds).makespan >= best - 1e-9


def test_an_instance_that_is_too_large_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"6 trials x 4 partitions x 1 epochs = 24 units, but goes up to 16\. Use order"
    ):
        simulate(np.ones((6, 4)), 2, order="exact")
    with pytest.raises(UsageError, match="up to 9 with hop_seconds"):
        simulate(np.ones((5, 2)), 2, order="exact", hop_seconds=1)
