"""Validating a trial within an epoch changes nothing of it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.sampling import sample
from tests.web.test_runs import curves

from hopyard.hopper.journal import Journal, read_records
from hopyard.storage import MemoryStore
from hopyard.tune import ASHA
from hopyard.tune.rows import count_validations, history_rows, validations_of
from hopyard.web.runs import changes_json, curves_bytes, trial_detail_json
from hopyard.web.watched import WatchedRun

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


def test_curves_have_the_point_of_the_best_value_also_within_an_epoch(search: Any, make_rows: Any) -> None:
    """Rungs are after 1 and 2 of 4 visits; all of them are in rows, in pictures' curves and in those of the dashboard,
    whether a trial ended there or went on."""
    store = MemoryStore()
    run = search(
        store, kind=ASHA, divisor=2, num_models=8, num_epochs=1, num_partitions=4, evaluation_metric="loss", seed=1,
        max_concurrent_trials=1,
    ).fit(make_rows()).run  # fmt: skip
    rows = history_rows(run.state)
    watched = WatchedRun(store, run.run_id, 0.0)
    watched.refresh()
    shown = curves(curves_bytes(watched, run.state.metric.key))
    went_on = 0
    for number, trial in run.state.trials.items():
        best = trial.best
        assert best is not None
        told = {row["epoch"]: row["metrics/val_loss"] for row in rows if row["trial"] == number}
        assert told[best.epoch] == best.value
        assert list(told) == sorted(told)
        assert len(told) == count_validations(trial)
        assert shown[number] == [(epoch, float(np.float32(value))) for epoch, value in told.items()]
        detail = trial_detail_json(watched, number)
        assert dict(zip(detail["epoch"], detail["history"]["val_loss"], strict=True)) == told
        assert changes_json(watched, 0, {})["points"][str(number)]["epoch"] == list(told)
        went_on += len(trial.rungs) > 0
    assert went_on, "no trial went on after a rung"


def test_a_page_is_told_each_validation_once_also_if_its_trial_ends_there(
    search: Any, make_rows: Any
) -> None:
    store = MemoryStore()
    whole = search(store, kind=ASHA, divisor=2, num_models=6, num_epochs=1, num_partitions=4, seed=1).fit(
        make_rows()
    )
    records = list(read_records(store.runs.at(whole.run_id)))
    followed, told, sent, version = None, dict[str, list[float]](), dict[int, int](), 0
    copy = MemoryStore()
    journal = Journal(copy.runs.at("r"))
    for record in records:
        journal.append(record)
        journal.flush()
        followed = followed or WatchedRun(copy, "r", 0.0)
        followed.refresh()
        changes = changes_json(followed, version, sent)
        version = changes["version"]
        for trial, points in changes["points"].items():
            told.setdefault(trial, []).extend(points["epoch"])
    journal.close()
    known = {
        str(n): list(validations_of(whole.run.state, t).epochs) for n, t in whole.run.state.trials.items()
    }
    assert told == known
