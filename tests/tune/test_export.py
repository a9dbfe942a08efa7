"""Runs exported to files, MLflow and Optuna hold what the run says, and runs side by side."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pyarrow.parquet as pq
import pytest

from hopyard.errors import NotFoundError, UsageError
from hopyard.search.points import draw
from hopyard.search.spaces import checked_space, space_json, space_of
from hopyard.storage import MemoryStore
from hopyard.tune import (
    Callback,
    Run,
    compare,
    hp_choice,
    hp_int,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
    open_run,
)
from hopyard.tune.export import export_run
from hopyard.tune.optuna import _params
from hopyard.tune.rows import history_rows, trial_rows


def test_json_lines_hold_a_trial_each(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "trials.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert [row["number"] for row in rows] == list(range(6))
    for row in rows:
        trial = run.state.trials[row["number"]]
        assert (row["state"], row["epochs"], row["seconds"]) == (trial.status, trial.epochs, trial.seconds)
        assert row["params/lr"] == trial.params["lr"]
        if trial.best is not None:
            assert row["best_epoch"] == trial.best.epoch
            assert row["metrics/val_accuracy"] == trial.best.value
        if trial.status == "failed":
            assert row["error"] == "ValueError: as asked"


def test_tables_hold_the_same_as_json_lines(run: Run, tmp_path: Path) -> None:
    for name in ("trials.parquet", "trials.csv"):
        export_run(run, str(tmp_path / name))
    parquet, csv = pq.read_table(tmp_path / "trials.parquet"), pd.read_csv(tmp_path / "trials.csv")
    assert parquet.column("params/lr").to_pylist() == csv["params/lr"].tolist()
    assert parquet.column("params/width").to_pylist() == csv["params/width"].tolist()
    rates = {row["number"]: row.get("params/drop/rate") for row in trial_rows(run.state)}
    for number, rate in zip(range(6), parquet.column("params/drop/rate").to_pylist(), strict=True):
        assert rate == rates[number]
    assert list(csv.columns) == parquet.column_names


def test_a_history_has_a_row_for_each_epoch_of_each_trial(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "history.parquet", history=True)
    table = pq.read_table(tmp_path / "history.parquet").to_pylist()
    assert table == history_rows(run.state)
    for trial in run.state.trials.values():
        rows = [row for row in table if row["trial"] == trial.number]
        assert [row["epoch"] for row in rows] == list(range(1, trial.epochs + 1))
        assert [row["metrics/val_loss"] for row in rows] == trial.history.get("val_loss", [])


def test_a_file_is_not_replaced_unasked_and_never_half_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text("mine")
    with pytest.raises(
        UsageError, match=r"trials.jsonl exists already. Give another name, or overwrite=True"
    ):
        run.export(path)
    last, params = run.state.trials[5], run.state.trials[5].params
    last.params = {**params, "width": object()}
    with pytest.raises(TypeError, match="not JSON serializable"):
        run.export(path, overwrite=True)
    assert path.read_text() == "mine"
    last.params = params
    run.export(path, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["trials.jsonl"]
    assert path.read_text().startswith('{"number"')


def test_a_target_that_cannot_be_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"'trials.xlsx' is nothing that a run is exported to. Write \"trials.jsonl\""
    ):
        run.export("trials.xlsx")
    with pytest.raises(NotFoundError, match=r"there is no directory .*missing. Make it first"):
        run.export(tmp_path / "missing" / "trials.csv")
    with pytest.raises(UsageError, match="history=True is for files, but the target is 'mlflow:'"):
        run.export("mlflow:", history=True)
    with pytest.raises(UsageError, match="name='x' is for studies and experiments"):
        run.export("a.csv", name="x")
    with pytest.raises(UsageError, match=r"target=7, but it must be a file's path, a URL, or an object"):
        run.export(7)
    with pytest.raises(UsageError, match=r"Optuna cannot open the database 'sqlite:///.*missing/s.db': "):
        run.export(f"sqlite:///{tmp_path}/missing/s.db")


def test_an_unfinished_run_can_be_exported(search: Any, make_rows: Any, tmp_path: Path) -> None:
    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        search(store, run_id="short", callbacks=[_Interrupt()]).fit(make_rows())
    short = open_run(store, "short")
    short.export(tmp_path / "trials.jsonl")
    states = [json.loads(line)["state"] for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert "running" in states
    storage = optuna.storages.InMemoryStorage()
    short.export(storage)
    exported = optuna.load_study(study_name="short", storage=storage).get_trials()
    assert [trial.state.name for trial in exported].count("RUNNING") == states.count("running")


class _Interrupt(Callback):
    def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.long
def test_an_optuna_study_has_the_trials_of_the_run(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    run.export(url)
    storage = optuna.storages.RDBStorage(url)
    study = optuna.load_study(study_name="study", storage=storage)
    names = {"completed": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}
    assert study.direction.name == "MAXIMIZE"
    assert study.metric_names == ["val_accuracy"]
    assert run.state.trials[study.best_trial.number].status == "completed"
    for found, trial in zip(study.get_trials(), run.state.trials.values(), strict=True):
        assert (found.number, found.state.name) == (trial.number, names[trial.status])
        assert found.intermediate_values == dict(enumerate(trial.history.get("val_accuracy", []), 1))
        assert found.params["width"] == trial.params["width"]
        assert found.params["lr"] == trial.params["lr"]
        assert found.params["fails"] is trial.params["fails"]
        if isinstance(trial.params["drop"], dict) and trial.params["drop"]["rate"]:
            assert found.params["drop[option 0].rate"] == trial.params["drop"]["rate"]
        if trial.best is not None:
            assert found.value == trial.best.value
        else:
            assert "as asked" in found.user_attrs["error"]
    storage.engine.dispose()
    with pytest.raises(
        UsageError, match=r"study 'study' already. Give name=... for another, or overwrite=True"
    ):
        run.export(url)
    run.export(url, name="other")
    run.export(url, overwrite=True)
    storage = optuna.storages.RDBStorage(url)
    assert sorted(optuna.get_all_study_names(storage)) == ["other", "study"]
    storage.remove_session()
    storage.engine.dispose()


def test_a_trial_outside_of_the_space_has_its_point_in_attributes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.state.trials[0].params, "lr", 1e9)  # as a clone may have it
    url = f"sqlite:///{tmp_path}/study.db"
    run.export(url)
    storage = optuna.storages.RDBStorage(url)
    first, second, *_ = optuna.load_study(study_name="study", storage=storage).get_trials()
    assert (first.params, first.user_attrs["params/lr"]) == ({}, 1e9)
    assert second.params["lr"] == run.state.trials[1].params["lr"]
    storage.remove_session()
    storage.engine.dispose()


def test_a_study_that_fails_half_way_is_taken_back(run: Run, monkeypatch: Any) -> None:
    storage = optuna.storages.InMemoryStorage()
    whole = storage.create_new_trial

    def fails(study_id: int, template_trial: Any = None) -> int:
        if template_trial.number == 2:
            raise OSError("full")
        return whole(study_id, template_trial)

    monkeypatch.setattr(storage, "create_new_trial", fails)
    with pytest.raises(OSError, match="full"):
        run.export(storage)
    assert optuna.get_all_study_names(storage) == []


def test_every_point_has_a_place_in_optuna() -> None:
    space = checked_space(
        {
            "a": hp_choice([1, True, 1.5]),
            "b": [hp_quniform(0, 1, 0.1), hp_quniform(2, 20, 3)],
            "c": hp_choice([{"x": hp_qloguniform(0, 3, 1), "y": hp_qloguniform(-2, 2, 0.5)}, None, [1]]),
            "d": {"d.e": hp_int(-3, 2**60), "": hp_uniform(-1, 1), "f": "constant"},
        }
    )
    assert space_json(space_of(space_json(space))) == space_json(space)
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    for trial in range(40):
        found = _params(space, draw(space, 0, trial), "")
        study.add_trial(
            optuna.create_trial(
                value=0.0,
                params={name: value for name, (_, value) in found.items()},
                distributions={name: distribution for name, (distribution, _) in found.items()},
            )
        )


def test_runs_are_compared_in_what_differs(search: Any, make_rows: Any) -> None:
    store = MemoryStore()
    runs = [
        search(store, run_id="a", num_models=1).fit(make_rows()).run,
        search(store, run_id="b", num_models=2, patience=5).fit(make_rows()).run,
        search(store, run_id="c", num_models=1, evaluation_metric="loss").fit(make_rows(seed=1)).run,
    ]
    table = compare(runs)
    assert table["run"].tolist() == ["a", "b", "c"]
    assert table["trials"].tolist() == [1, 2, 1]
    assert table["epochs"].tolist() == [2, 4, 2]
    assert table["status"].tolist() == ["completed"] * 3
    assert table["best"].tolist() == [best_value(run) for run in runs]
    assert table["params"][1] == runs[1].best.params
    assert table["note"].tolist() == ["", "", "another metric than a (val_accuracy, max), other data than a"]
    assert table["settings"][0]["patience"] is None
    assert table["settings"][1]["patience"] == 5
    assert "num_epochs" not in table["settings"][0]
    assert np.all(table["seconds"] > 0)
    assert compare(runs[:1])["settings"][0] == {}


def test_a_run_without_a_result_is_compared_too(search: Any, make_rows: Any) -> None:
    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        search(store, run_id="a", callbacks=[_InterruptAtOnce()]).fit(make_rows())
    table = compare([open_run(store, "a")])
    assert table["status"][0] != "completed"
    assert math.isnan(table["best"][0])
    assert table["params"][0] is None


class _InterruptAtOnce(Callback):
    def on_trial_start(self, trial: Any) -> None:
        raise KeyboardInterrupt


def best_value(run: Run) -> float:
    best = run.state.trials[run.best.trial].best
    assert best is not None
    return best.value


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match=r"compare was given no runs, but needs at least one. Write compare"):
        compare([])
