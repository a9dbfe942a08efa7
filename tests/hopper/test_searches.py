"""Simulated searches: same search whatever the workers, deaths, and what is counted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from hopyard.errors import UsageError
from hopyard.hopper import Layout, SearchPlan, simulate_search
from hopyard.search import Asha, FullLength, RandomPoints, Searcher, hp_uniform

SPACE = {"x": hp_uniform(0, 1)}
LAYOUT = Layout(4, 1)


def asha() -> Searcher:
    return Asha(RandomPoints(SPACE, 0), 20, [4, 8, 24], 3, 8)


def metric(trial: int, visits: int) -> float:
    return (trial * 7919 % 101) / visits


def search(workers: int, **how: object) -> SearchPlan:
    durations = 3 ** np.random.default_rng(1).uniform(0, 1, (20, 4))
    return simulate_search(asha(), durations, workers, metric, LAYOUT, **how)  # type: ignore[arg-type]


def test_a_reproducible_search_trains_the_same_on_any_workers_that_may_die() -> None:
    one = search(1)
    for found in (search(2), search(4), search(4, deaths={0: 5.0, 3: 20.0}), search(3, hop_seconds=0.5)):
        assert found.visits == one.visits
    assert one.stalled >= 0
    assert search(4).makespan < one.makespan


def test_results_as_they_come_do_not_wait() -> None:
    assert search(4, reproducible=False).told != search(2, reproducible=False).told


def test_full_length_fills_the_workers() -> None:
    found = simulate_search(
        FullLength(RandomPoints(SPACE, 0), 8, 8), np.ones((8, 4)), 4, metric, LAYOUT, validate_seconds=1.0
    )
    assert found.visits == dict.fromkeys(range(8), 8)
    assert found.makespan == 8 * (8 + 2) / 4
    assert found.idle == pytest.approx(0)


def test_a_search_that_workers_do_not_survive_is_refused() -> None:
    with pytest.raises(UsageError, match="never ended: all 2 workers were lost"):
        search(2, deaths={0: 1.0, 1: 2.0})


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"workers": 0}, "workers=0, but it must be an integer of at least 1"),
        ({"workers": 1.5}, "workers=1.5, but it must be an integer of at least 1"),
        ({"order": "exact"}, "order='exact' is unknown. Give one of 'longest', 'greedy'."),
        ({"hop_seconds": -1.0}, "hop_seconds=-1.0, but must be finite and not negative."),
        (
            {"durations": np.ones((4, 3))},
            "shape (4, 3), but an epoch has 4 partitions. Give a row for each trial",
        ),
        ({"durations": [1.0, 2.0]}, "durations has the shape (2,); needed is (trials, partitions)"),
        (
            {"durations": -np.ones((2, 4))},
            "durations[0, 0] is -1.0; seconds must be finite and not negative.",
        ),
    ],
)
def test_bad_input_is_told(how: dict[str, Any], text: str) -> None:
    arguments = {"durations": np.ones((4, 4)), "workers": 2, "metric": metric, "layout": LAYOUT, **how}
    with pytest.raises(UsageError, match=re.escape(text)):
        simulate_search(asha(), **arguments)
