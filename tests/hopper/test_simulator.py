"""Simulated schedules: their rules, their distance from the bound, and bad input."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import UsageError
from hopyard.hopper import Plan, simulate


def assert_valid(plan: Plan, trials: int, partitions: int, workers: int, epochs: int) -> None:
    """Complete, isolated, exclusive, on the partition's worker, epoch after epoch, not below the bound."""
    assert Counter((u.trial, u.partition, u.epoch) for u in plan.units) == Counter(
        (i, j, e) for i in range(trials) for j in range(partitions) for e in range(epochs)
    )
    assert all(unit.worker == unit.partition % workers for unit in plan.units)
    by_worker, by_trial = defaultdict(list), defaultdict(list)
    for unit in plan.units:
        by_worker[unit.worker].append(unit)
        by_trial[unit.trial].append(unit)
    for units in (*by_worker.values(), *by_trial.values()):
        units.sort(key=lambda unit: (unit.start, unit.end))
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(units))
    for units in by_trial.values():
        assert [unit.epoch for unit in units] == sorted(unit.epoch for unit in units)
    assert plan.makespan == max(unit.end for unit in plan.units)
    assert plan.ratio >= 1 - 1e-9
    assert 0 <= plan.idle < 1


@given(
    trials=st.integers(1, 9),
    partitions=st.integers(1, 6),
    workers=st.integers(1, 8),
    epochs=st.integers(1, 3),
    order=st.sampled_from(["greedy", "longest", "fixed"]),
    hop_seconds=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_a_plan_keeps_the_rules_of_hopping(
    trials: int, partitions: int, workers: int, epochs: int, order: str, hop_seconds: float, seed: int
) -> None:
    durations = np.random.default_rng(seed).uniform(0.1, 3, (trials, partitions))
    plan = simulate(durations, workers, epochs, order, hop_seconds, seed)
    assert_valid(plan, trials, partitions, workers, epochs)
    assert plan == simulate(durations, workers, epochs, order, hop_seconds, seed)


@pytest.mark.parametrize("order", ["greedy", "longest"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8, 12, 16])
def test_equal_trials_fill_all_workers(order: str, workers: int) -> None:
    """Twice as many trials as workers: within 1.02 of the bound, whatever the number of partitions."""
    for partitions in {workers, workers + 1, 3 * workers - 1}:
        for trials in {2 * workers, 2 * workers + 1, 3 * workers - 1, 5 * workers + 3}:
            assert simulate(np.ones((trials, partitions)), workers, order=order).ratio <= 1.02


@pytest.mark.parametrize(("workers", "epochs"), [(8, 3), (9, 1), (13, 1), (13, 2), (16, 2)])
def test_equal_trials_fill_any_number_of_workers_for_any_number_of_epochs(workers: int, epochs: int) -> None:
    for trials in (2 * workers, 2 * workers + 1):
        assert simulate(np.ones((trials, workers)), workers, epochs, order="longest").ratio <= 1.02


def spread(kind: str, trials: int, partitions: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    random = np.random.default_rng(seed)
    if kind == "by trial":
        return 10 ** random.uniform(0, 1, (trials, 1)) * np.ones((1, partitions))
    if kind == "by trial and partition":
        return 10 ** random.uniform(0, 1, (trials, partitions))
    if kind == "evenly":
        return random.uniform(1, 10, (trials, partitions))
    return 10 ** random.uniform(0, 0.8, (trials, 1)) * 10 ** random.uniform(0, 0.2, (trials, partitions))


@pytest.mark.parametrize("kind", ["by trial", "by trial and partition", "mixed", "evenly"])
@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_trials_of_tenfold_spread_fill_all_workers(kind: str, workers: int) -> None:
    for seed in range(3):
        for trials in (4 * workers, 4 * workers + 3):
            assert simulate(spread(kind, trials, workers, seed), workers, order="longest").ratio <= 1.05


def test_there_is_no_barrier_between_epochs() -> None:
    durations = spread("by trial", 3, 4, 0)
    plan = simulate(durations, 4, 5, "longest")
    ends_of_first = max(unit.end for unit in plan.units if unit.epoch == 0)
    assert min(unit.start for unit in plan.units if unit.epoch == 1) < ends_of_first
    assert plan.lower_bound == pytest.approx(5 * simulate(durations, 4, 1, "longest").lower_bound)


def test_more_workers_than_partitions_are_idle() -> None:
    plan = simulate(np.ones((8, 2)), 4)
    assert (plan.makespan, plan.lower_bound, plan.idle) == (8, 8, 0.5)


def test_hops_cost_what_they_cost_and_the_bound_knows_those_that_must_be() -> None:
    free, costly = (simulate(np.ones((1, 4)), 2, 2, "longest", hop) for hop in (0.0, 3.0))
    assert (free.makespan, free.lower_bound) == (8, 8)
    assert costly.lower_bound == 8 + 2 * 3
    assert costly.makespan == 8 + 2 * 3  # two units here, hop, two there; the next epoch begins there


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"durations": [1.0, 2.0]}, r"durations has the shape \(2,\); needed is \(trials, partitions\)"),
        ({"durations": np.ones((0, 3))}, r"the shape \(0, 3\)"),
        ({"durations": [[1.0, -2.0]]}, r"durations\[0, 1\] is -2\.0; seconds must be finite"),
        ({"durations": [[1.0], [float("nan")]]}, r"durations\[1, 0\] is nan"),
        ({"durations": [["a"]]}, "durations must be numbers"),
        ({"workers": 0}, "workers=0, but it must be an integer of at least 1"),
        ({"epochs": 0.5}, "epochs=0.5, but it must be"),
        ({"hop_seconds": -1.0}, "hop_seconds=-1.0, but must be finite"),
        (
            {"order": "longst"},
            "order='longst' is unknown; did you mean 'longest'.*'greedy', 'longest', 'fixed'",
        ),
    ],
)
def test_bad_input_is_told(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        simulate(**{"durations": np.ones((2, 2)), "workers": 2, **arguments})


def test_counts_may_be_of_numpy() -> None:
    seconds = [[1.0, 2.0], [2.0, 1.0]]
    assert simulate(seconds, workers=np.int64(2), epochs=np.int32(3)) == simulate(
        seconds, workers=2, epochs=3
    )
    with pytest.raises(UsageError, match=r"workers=np\.float64"):
        simulate(seconds, workers=np.float64(2), epochs=1)  # type: ignore[arg-type]
