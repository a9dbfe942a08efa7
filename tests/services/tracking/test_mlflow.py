"""Runs in MLflow, by the real package, without a server."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from hopyard.errors import UsageError
from hopyard.storage import LocalStore
from hopyard.tune import Callback, Run


class Stop(Callback):
    """Ctrl-C after some epochs."""

    def __init__(self, epochs: int) -> None:
        self._left = epochs

    def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("default")
def test_mlflow_holds_each_trial_once_even_if_the_run_was_interrupted(
    search: Any, make_rows: Any, needs: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    needs(importlib.util.find_spec("mlflow"), "the package mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    from hopyard.tune import MLflowCallback

    uri, store = f"file://{tmp_path}/mlflow", LocalStore(tmp_path / "store")
    callback = MLflowCallback(tracking_uri=uri, experiment="wine")
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[callback, Stop(2)]).fit(make_rows())
    model = search(store, callbacks=[MLflowCallback(tracking_uri=uri, experiment="wine")]).fit(make_rows())

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("wine")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert sorted(runs) == [model.run_id, "trial 0", "trial 1", "trial 2"]
    parent = runs.pop(model.run_id)
    assert parent.data.tags["hopyard.best_trial"] == str(model.trial)
    for trial in model.run.state.trials.values():
        run = runs[f"trial {trial.number}"]
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.params == {name: str(value) for name, value in trial.params.items()}
        for name, values in trial.history.items():
            logged = client.get_metric_history(run.info.run_id, name)
            assert [(point.step, point.value) for point in logged] == list(enumerate(values, start=1))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_mlflow_gets_a_run_and_one_below_it_for_each_trial(
    run: Run, kind: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    uri = f"file://{tmp_path}/mlflow" if kind == "file" else f"sqlite:///{tmp_path}/mlflow.db"
    run.export(f"mlflow:{uri}")
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("hopyard").experiment_id
    runs = {each.info.run_name: each for each in client.search_runs([experiment])}
    parent = runs.pop("study")
    assert parent.info.status == "FINISHED"
    assert len(runs) == 6
    for trial in run.state.trials.values():
        found = runs[f"trial {trial.number}"]
        assert found.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert found.info.status == ("FAILED" if trial.status == "failed" else "FINISHED")
        for name, values in trial.history.items():
            logged = client.get_metric_history(found.info.run_id, name)
            assert [(point.step, point.value) for point in logged] == list(enumerate(values, start=1))
    with pytest.raises(
        UsageError, match=r"'hopyard' holds run study already. Give name=... for another experiment"
    ):
        run.export(f"mlflow:{uri}")
    run.export(f"mlflow:{uri}", overwrite=True)
    again = {each.info.run_name: each.info.run_id for each in client.search_runs([experiment])}
    assert len(again) == 7
    assert again["study"] != parent.info.run_id
    monkeypatch.setattr("hopyard.tune.mlflow.MLflowCallback.on_trial_end", lambda self, trial: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.export(f"mlflow:{uri}", overwrite=True)
    assert again == {each.info.run_name: each.info.run_id for each in client.search_runs([experiment])}
