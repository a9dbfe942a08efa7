"""Runs in MLflow and in Weights & Biases, by the real packages, without a server."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.storage import LocalStore
from hopyard.tune import Callback


class Stop(Callback):
    """Ctrl-C after some epochs."""

    def __init__(self, epochs: int) -> None:
        self._left = epochs

    def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def found(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.mark.filterwarnings("default")
def test_mlflow_holds_each_trial_once_even_if_the_run_was_interrupted(
    search: Any, make_rows: Any, needs: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    needs(found("mlflow"), "the package mlflow-skinny")
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
def test_wandb_gets_a_run_for_each_trial(
    search: Any, make_rows: Any, needs: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    needs(found("wandb"), "the package wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for hooked in ("exit", "excepthook"):  # wandb replaces them and leaves it at that
        monkeypatch.setattr(sys, hooked, getattr(sys, hooked))
    import wandb

    from hopyard.tune import WandbCallback

    logged: list[Any] = []

    class Noting(WandbCallback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            super().on_epoch_end(trial, epoch, metrics)
            run = self._runs[trial.number]
            logged.append((run.group, run.name, dict(run.config), run.step, dict(run.summary)))

    callback = Noting(project="wine", mode="offline", dir=str(tmp_path))
    model = search(LocalStore(tmp_path / "store"), callbacks=[callback]).fit(make_rows())
    assert len(logged) == 3 * 2
    for trial in model.run.state.trials.values():
        entries = [entry for entry in logged if entry[1] == f"trial {trial.number}"]
        assert [entry[0] for entry in entries] == [model.run_id] * 2
        assert entries[-1][2] == trial.params
        assert entries[-1][4]["val_accuracy"] == trial.history["val_accuracy"][-1]
    kept = sorted(
        path.name.partition(f"{model.run_id}")[2] for path in (tmp_path / "wandb").glob("offline-run-*")
    )
    assert kept == ["-0", "-1", "-2"]
    assert wandb.run is None


@pytest.mark.parametrize(("name", "package"), [("MLflowCallback", "mlflow"), ("WandbCallback", "wandb")])
def test_a_logger_whose_package_is_missing_says_what_to_install(name: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import hopyard.tune; hopyard.tune.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"hopyard.errors.MissingExtraError: {name} needs the package" in done.stderr
    assert f"Install it with: pip install 'hopyard[{package}]'" in done.stderr


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import hopyard.tune

    with pytest.raises(AttributeError, match=r"module 'hopyard.tune' has no attribute 'NeptuneCallback'"):
        _ = hopyard.tune.NeptuneCallback
