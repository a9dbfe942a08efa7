"""Searches with replicates: each seed is a trial with a row of its own, and points are ranked by the mean of theirs."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hopyard.cli.run import leaderboard
from hopyard.documents.runs import run_json
from hopyard.errors import SettingsError, TrialError, UsageError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.tune import ASHA, PBT, Callback, Run, hp_choice, hp_log
from hopyard.tune.pages import run_html

STEPS_OF_AN_EPOCH = 10


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def run(make_rows: Any, said: list[str]) -> Run:
    """Three points with three replicates, of which some fail in their second epoch."""
    from tests.tune.conftest import random_search

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Kept()
    logging.getLogger("hopyard").addHandler(handler)
    try:
        search = random_search(MemoryStore(), replicates=3, num_epochs=3, estimator_gen_fn=_failing())
        found: Run = search.fit(make_rows()).run
        return found
    finally:
        logging.getLogger("hopyard").removeHandler(handler)


def _failing() -> Any:
    """An estimator function some of whose models, by what was drawn when they were made, fail in their second epoch."""
    import torch
    from tests.tune.conftest import estimator

    class Fails(torch.nn.Module):
        drawn: torch.Tensor
        steps: torch.Tensor

        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module
            self.register_buffer("drawn", torch.rand(()))
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            if self.training:
                self.steps += 1
            if self.steps > STEPS_OF_AN_EPOCH and self.drawn > 0.8:
                raise ValueError("as asked")
            return self.module(x)

    def made(params: dict[str, Any]) -> Any:
        found = estimator(params)
        found.model = Fails(found.model)
        return found

    return made


def failed(run: Run) -> list[int]:
    return [number for number, trial in run.state.trials.items() if trial.status == "failed"]


def bests(run: Run, point: int) -> dict[int, float]:
    """By trial of a point, the best values of those that have not failed."""
    numbers = range(3 * point, 3 * point + 3)
    return {
        number: max(run.state.trials[number].history["val_accuracy"])
        for number in numbers
        if number not in failed(run)
    }


def test_each_replicate_is_a_trial_with_a_row_of_its_own(run: Run) -> None:
    trials: Any = run.trials()
    assert sorted(trials.number) == list(range(9))
    assert list(trials.columns) == [
        "number", "params", "state", "epochs", "metrics", "seconds", "error", "point", "replicate", "mean", "spread",
    ]  # fmt: skip
    assert failed(run), "none was to fail"
    for row in trials.itertuples():
        assert (row.point, row.replicate) == divmod(row.number, 3)
        values = list(bests(run, row.point).values())
        assert row.mean == pytest.approx(np.mean(values))
        assert row.spread == pytest.approx(np.std(values, ddof=1), nan_ok=True)
        assert row.params == run.state.trials[3 * row.point].params
    assert trials["mean"].is_monotonic_decreasing
    assert len({json.dumps(params) for params in trials.params}) == 3


def test_replicates_differ_in_their_initial_weights(run: Run) -> None:
    histories = [tuple(trial.history["train_loss"]) for trial in run.state.trials.values()]
    assert len(set(histories)) == 9


def test_the_best_replicate_of_the_best_point_is_returned(run: Run) -> None:
    means = {point: np.mean(list(bests(run, point).values())) for point in range(3)}
    best = bests(run, max(means, key=lambda point: (means[point], -point)))
    assert run.best.trial == max(best, key=lambda number: (best[number], -number))
    assert run.models[0].trial == run.best.trial
    assert run.best.evaluate({"features": np.zeros((4, 4), "float32"), "label": np.zeros(4, "int64")})


def test_a_replicate_that_failed_is_left_out_and_named(run: Run, said: list[str]) -> None:
    (message,) = [line for line in said if "failed" in line]
    names = [f"{number % 3} of point {number // 3}" for number in failed(run)]
    assert message.endswith(f"The means leave out replicates: {', '.join(names)}.")
    trials: Any = run.trials().set_index("number")
    assert trials.error[failed(run)[0]] == "ValueError: as asked"
    assert trials.state[failed(run)[0]] == "failed"


def test_leaderboards_show_points_and_means(run: Run) -> None:
    first: Any = run.trials().iloc[0]
    mean, spread = f"{first['mean']:.4f}", f"{first['spread']:.4f}"
    title, line = repr(run.trials()).splitlines()[:2]
    assert title.split()[:6] == ["number", "point", "replicate", "mean", "spread", "val_accuracy"]
    assert line.split()[:5] == [str(v) for v in (first.number, first.point, first.replicate)] + [mean, spread]
    table = leaderboard(run)
    cells = {column.header: list(column.cells) for column in table.columns}
    assert cells["point"][0] == str(first.point)
    assert cells["mean"][0] == f"{mean} ± {spread}"
    page = run_html(run)
    assert f"{mean} ± {spread}" in page
    (one, *_) = run_json(run, run.totals(), [])["trials"]
    assert (one["point"], one["replicate"]) == (first.point, first.replicate)
    assert (one["mean"], one["spread"]) == (first["mean"], first["spread"])


def test_exported_rows_have_points_and_means(run: Run, tmp_path: Any) -> None:
    run.export(tmp_path / "trials.csv")
    rows: Any = pd.read_csv(tmp_path / "trials.csv").set_index("number")
    shown: Any = run.trials().set_index("number").loc[rows.index]
    assert list(rows.point) == list(shown.point)
    assert list(rows["mean"]) == pytest.approx(list(shown["mean"]))


def test_a_search_without_replicates_shows_none(search: Any, make_rows: Any) -> None:
    run = search(MemoryStore(), num_models=1, num_epochs=1, replicates=1).fit(make_rows()).run
    assert "replicates" not in run.settings
    assert not {"point", "mean"} & {*run.trials().columns}
    assert "mean" not in run_json(run, run.totals(), [])["trials"][0]


@pytest.mark.long
@pytest.mark.parametrize("kind", [ASHA, PBT])
def test_searches_that_adapt_are_the_same_on_two_workers_and_after_an_interruption(
    kind: Any, search: Any, make_rows: Any, local: Any, contents_of: Any, tmp_path: Any
) -> None:
    space = {"lr": hp_log(1e-3, 1e-1), "width": hp_choice([4])}
    how: dict[str, Any] = {
        "kind": kind,
        "num_models": 4,
        "num_epochs": 2,
        "replicates": 2,
        "search_space": space,
    }

    class Interrupts(Callback):
        epochs = 0

        def on_epoch_end(self, trial: Any, epoch: Any, metrics: Any) -> None:
            self.epochs += 1
            if self.epochs == 3:
                raise KeyboardInterrupt

    here = search(MemoryStore(), **how).fit(make_rows()).run
    store = LocalStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[Interrupts()], **how).fit(make_rows())
    there = search(store, local, **how).fit(make_rows()).run
    assert contents_of(there) == contents_of(here)
    assert there.best.trial == here.best.trial
    assert there.run_id == here.run_id
    copies = [trial for trial in here.state.trials.values() if trial.source is not None]
    assert (kind is PBT) == bool(copies)
    for trial in copies:
        assert trial.source is not None
        assert trial.number % 2 == trial.source % 2
        assert trial.params == here.state.trials[trial.number // 2 * 2].params
    assert len(here.state.trials) % 2 == 0


def test_num_models_counts_points_also_of_an_extended_run(search: Any, make_rows: Any) -> None:
    store = MemoryStore()
    how = {"replicates": 2, "run_id": "named", "num_epochs": 1}
    assert len(search(store, num_models=2, **how).fit(make_rows()).run.state.trials) == 4
    assert len(search(store, num_models=3, **how).fit(make_rows()).run.state.trials) == 6
    with pytest.raises(SettingsError, match=re.escape("replicates: 2 (run) -> 3 (now)")):
        search(store, num_models=3, **{**how, "replicates": 3}).fit(make_rows())


def test_one_batch_of_three_points_is_tried_before_a_search_begins(search: Any, make_rows: Any) -> None:
    tried: list[Any] = []

    def nothing(params: dict[str, Any]) -> Any:
        tried.append(params["lr"])
        raise ValueError("as asked")

    with pytest.raises(TrialError, match="the first 3 trials fail alike on one batch"):
        search(MemoryStore(), estimator_gen_fn=nothing, replicates=4).check(make_rows())
    assert len(set(tried)) == 3


@pytest.mark.parametrize("given", [0, -2, 1.5, True, None, "3"])
def test_replicates_is_a_whole_number(given: Any, search: Any) -> None:
    words = (
        f"replicates={given!r}, but it must be an integer of at least 1. Write replicates=3 to train each point with "
        "three seeds; num_models counts points."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        search(MemoryStore(), replicates=given)


def test_fewer_trials_at_once_than_replicates_are_refused(search: Any) -> None:
    words = (
        "max_concurrent_trials is 2 and replicates is 3, but all replicates of a point are under way at once, since it "
        "is judged by their mean. Write max_concurrent_trials=3 or a multiple of it."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        search(MemoryStore(), replicates=3, max_concurrent_trials=2)


def test_trials_at_once_are_whole_points(search: Any) -> None:
    made = search(MemoryStore(), replicates=3, max_concurrent_trials=7, num_models=5)
    assert len({operation.trial for operation in made._searcher(made._budget()).start()}) == 6


def test_names_of_other_systems_are_understood(search: Any) -> None:
    with pytest.raises(
        UsageError, match="no argument 'executions_per_trial'; it is called 'replicates' here"
    ):
        search(MemoryStore(), executions_per_trial=3)
