"""Estimates: the published figures, and what a search takes by the three ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopyard.errors import UsageError
from hopyard.hopper import plan

PAPER: dict[str, Any] = {
    "workers": 10,
    "partitions": 10,
    "rows": 100_000 * 32,
    "batch_size": 32,
    "state_bytes": 1e9,
    "dataset_bytes": 1e12,
    "num_models": 20,
    "num_epochs": 20,
    "rows_per_second": 1000,
}
"""Of Cerebro's paper: k=20, |S|=20, p=10, m=1 GB, D=1 TB, 100,000 mini-batches."""


def test_counts_may_be_of_numpy() -> None:
    counts = ("workers", "partitions", "batch_size", "num_models", "num_epochs")
    assert plan(**PAPER | {name: np.int64(PAPER[name]) for name in counts}) == plan(**PAPER)


def test_the_bytes_moved_are_those_of_the_paper() -> None:
    hopping, copies, together = plan(**PAPER)
    assert (hopping.way, copies.way, together.way) == ("hopping", "copies", "data-parallel")
    assert hopping.bytes_moved - 1e12 == pytest.approx(4e12, rel=0.01)  # the paper leaves out the data itself
    assert copies.bytes_moved == 10e12
    assert together.bytes_moved == pytest.approx(72e15, rel=0.01)
    assert (hopping.bytes_stored, copies.bytes_stored, together.bytes_stored) == (1e12, 10e12, 1e12)


def test_the_time_is_that_of_the_formulas() -> None:
    free = {**PAPER, "network_bytes_per_second": 1e18}
    hopping, copies, together = plan(**free)
    all_epochs = 20 * 20 * 3200  # seconds on one worker
    for estimate in (hopping, copies, together):
        assert estimate.seconds == pytest.approx(all_epochs / 10, rel=0.01)
        assert estimate.worker_hours == pytest.approx(all_epochs / 3600, rel=0.01)
    assert plan(**{**free, "num_models": 1})[0].seconds == pytest.approx(20 * 3200, rel=0.01)


def test_what_leaves_a_bucket_is_the_data_and_the_states() -> None:
    hopping, copies, together = plan(**PAPER)
    units, parts = 20 * 20 * 10, -(-(10**12) // (8 << 20))
    assert hopping.bytes_read == 1e12 + 1e9 * (units + 20)
    assert (copies.bytes_read, together.bytes_read) == (10e12, 1e12)
    assert hopping.requests == parts + 3 * units
    assert (copies.requests, together.requests) == (10 * parts + 20, parts + 20)


def test_a_searcher_says_what_is_trained() -> None:
    search = {**PAPER, "num_models": None, "num_epochs": None}
    by_hand = plan(**{**PAPER, "num_models": 4, "num_epochs": 3})
    for length in (3, {"epochs": 3}):
        assert plan(**search, searcher={"name": "random", "max_trials": 4, "max_length": length}) == by_hand


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"workers": 0}, "workers=0, but it must be an integer of at least 1"),
        ({"rows_per_second": None}, "exactly one is needed"),
        ({"seconds_per_unit": 3}, "exactly one is needed"),
        ({"num_models": None}, "give both, or searcher="),
        ({"searcher": {"name": "single", "max_length": 1}}, "leave num_models and num_epochs out"),
        (
            {
                "num_models": None,
                "num_epochs": None,
                "searcher": {"name": "single", "max_length": {"batches": 937}},
            },
            "lengths are in batches, but a plan takes epochs. Write {epochs: 3}, or only the number",
        ),
        (
            {
                "num_models": None,
                "num_epochs": None,
                "searcher": {"name": "single", "max_time": {"batches": 937}},
            },
            "lengths are in batches",
        ),
        ({"num_epochs": -1}, "num_epochs=-1, but it must"),
        ({"num_models": 2.5}, "num_models=2.5, but it must be an integer"),
        ({"rows": "many"}, "rows='many', but it must be a number above 0. Give an estimate"),
        ({"state_bytes": float("nan")}, "state_bytes=nan, but it must be a number above 0"),
    ],
)
def test_bad_input_is_told(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        plan(**{**PAPER, **arguments})
