"""The tables of a run's trials, as they are printed."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pandas as pd
import pytest

from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import hp_choice


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def model(make_rows: Any, said: list[str]) -> Any:
    """Of a search without progress in which one trial of three fails."""
    from tests.tune.conftest import estimator, random_search

    def sometimes(params: dict[str, Any]) -> TorchEstimator:
        if params["width"] == 5:
            raise ValueError(
                "a network of width 5 was given, but this task needs an even number of units in each layer"
            )
        return estimator({**params, "lr": params["optimizer"]["lr"]})

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Kept()
    logging.getLogger("hopyard").addHandler(handler)
    try:
        space = {"width": hp_choice([4, 5, 6]), "optimizer": {"name": "adam", "lr": hp_choice([0.001234567])}}
        initial = [{"width": width, "optimizer": {"name": "adam", "lr": 0.001234567}} for width in (4, 5, 6)]
        return random_search(
            MemoryStore(), estimator_gen_fn=sometimes, search_space=space, initial_params=initial
        ).fit(make_rows())
    finally:
        logging.getLogger("hopyard").removeHandler(handler)


def test_a_printed_leaderboard_has_the_ranking_metric_first_and_cuts_nothing(model: Any) -> None:
    trials = model.trials()
    with pd.option_context("display.width", 80):
        title, *lines = repr(trials).splitlines()
    columns = title.split()
    assert columns[:2] == ["number", "val_accuracy"]
    assert columns[-4:] == ["width", "optimizer.name", "optimizer.lr", "error"]
    best = model.get_history()["val_accuracy"]
    assert lines[0].split()[:2] == [str(model.trial), f"{max(best):.4f}"]
    assert "0.001235" in lines[0]
    assert lines[2].endswith(
        "ValueError: a network of width 5 was given, but this task needs an even number of units in each layer"
    )
    assert "<td>adam</td>" in trials._repr_html_()


def test_what_is_taken_from_a_leaderboard_is_printed_alike_and_is_a_table_in_all_else(model: Any) -> None:
    trials = model.trials()
    assert list(trials.columns) == ["number", "params", "state", "epochs", "metrics", "seconds", "error"]
    assert trials.params[0] == model.params
    assert repr(trials.head(1)).splitlines()[0].split()[:2] == ["number", "val_accuracy"]
    assert repr(pickle.loads(pickle.dumps(trials))) == repr(trials)
    assert repr(trials[["number", "state"]]) == repr(
        pd.DataFrame({"number": trials.number, "state": trials.state})
    )
    assert "Empty" in repr(trials[trials.number > 9])


def test_failed_trials_are_named_at_the_end_also_without_progress(model: Any, said: list[str]) -> None:
    (message,) = [line for line in said if "failed" in line]
    assert message.startswith(
        f"1 of 3 trials of run {model.run_id} failed; trial 1 with ValueError: a network of width 5"
    )
    assert message.endswith("\nmodel.trials() has all of them.")
