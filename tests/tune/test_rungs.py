"""Validating a trial within an epoch changes nothing of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.sampling import sample

from hopyard.storage import MemoryStore
from hopyard.tune import ASHA

CASES = list(itertools.product(["unit", "epoch", 1e-9, 3600.0], [0.25, None]))


@pytest.fixture(scope="module")
def known() -> dict[float | None, Any]:
    """The trials of random search, by the share of rows for validation."""
    return {}


@pytest.mark.long
@pytest.mark.parametrize(("every", "validation"), sample("rungs", CASES, quick=1, ci=3))
def test_a_trial_that_asha_trains_to_the_end_is_what_random_search_makes_of_it(
    every: Any, validation: float | None, search: Any, make_rows: Any, known: dict[float | None, Any]
) -> None:
    """The model has batch norm and dropout; rungs are after 1, 3 and 6 of 12 visits."""
    common = {"num_models": 6, "num_epochs": 4, "num_partitions": 3, "seed": 3, "keep": "all"}
    common |= {"evaluation_metric": "loss", "validation": validation}
    if validation not in known:
        known[validation] = search(MemoryStore(), **common).fit(make_rows()).run.state.trials
    whole = known[validation]
    rungs = search(MemoryStore(), kind=ASHA, divisor=2.4, checkpoint_every=every, **common)
    run = rungs.fit(make_rows()).run
    lengths = set()
    for number, trial in run.state.trials.items():
        lengths.add(trial.progress.trained)
        assert trial.params == whole[number].params
        assert trial.history.keys() == whole[number].history.keys()
        for name, values in trial.history.items():
            assert values[: trial.epochs] == whole[number].history[name][: trial.epochs]
        if trial.status == "completed":
            assert trial.progress.trained == 12
            assert trial.history == whole[number].history
            assert trial.durable.state.digest == whole[number].durable.state.digest
    assert 12 in lengths
    assert any(length % 3 for length in lengths), "no trial ended within an epoch"
    assert run.broken_rules() == []
