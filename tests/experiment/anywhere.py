"""Experiments as they must be on every backend: code, files and variables reach workers, and results are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.experiment.conftest import TRIAL
from tests.experiment.test_torch_trial import DATASET
from typer.testing import CliRunner

from hopyard.backend import Backend
from hopyard.cli import app
from hopyard.data import prepare
from hopyard.experiment import open_experiment
from hopyard.experiment.yaml_text import write_yaml
from hopyard.storage import LocalStore
from hopyard.tune import Run

FUNCTION = """
import os
import helper

def main(context):
    with open("data.csv") as file:
        value = float(file.read())
    context.save({"value": value})
    context.report(accuracy=value + helper.add(context.get_hparam("lr")) + float(os.environ["MORE"]))
"""

GRID: dict[str, Any] = {
    "hyperparameters": {"lr": {"type": "categorical", "vals": [0.01, 0.03]}},
    "searcher": {"name": "grid", "metric": "accuracy", "max_length": {"epochs": 2}},
}

Definition = Callable[..., Path]
Experiment = Callable[..., Run]


def check_functions_among_their_files(
    backend: Backend, definition: Definition, experiment: Experiment
) -> None:
    folder = definition(FUNCTION, data_dot_csv="0.5", helper_dot_py="def add(x): return x + 10")
    variables = {"environment_variables": {"MORE": "100"}}
    run = experiment(folder, backend, entrypoint="model_def:main", environment=variables, **GRID)
    found = {trial.params["lr"]: trial.history["val_accuracy"] for trial in run.state.trials.values()}
    assert found == {0.01: [0.5 + 10.01 + 100], 0.03: [0.5 + 10.03 + 100]}


def check_trials_as_on_one_machine(
    backend: Backend, definition: Definition, experiment: Experiment, folder: Path
) -> None:
    data = prepared(folder)
    for code in (TRIAL, DATASET):
        there = experiment(definition(code), backend, "there", data={"store": data.url}, **GRID)
        here = experiment(definition(code), None, "here", data={"store": data.url}, **GRID)
        assert {trial.number: trial.history for trial in there.state.trials.values()} == {
            trial.number: trial.history for trial in here.state.trials.values()
        }
        assert there.broken_rules() == []


def check_the_command(backend: str, definition: Definition, folder: Path) -> None:
    """``hopyard experiment create --backend`` has the results, and the weights, of the same with ``local``."""
    config = {
        "entrypoint": "model_def:Trial",
        "data": {"store": prepared(folder).url},
        "resources": {"workers": 2},
        **GRID,
    }
    (folder / "const.yaml").write_text(write_yaml(config))
    code = definition(DATASET)

    def created(name: str) -> Any:
        store = str(folder / name)
        command = ["experiment", "create", str(folder / "const.yaml"), str(code), "--backend", name]
        done = CliRunner().invoke(app, [*command, "--store", store, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        run = open_experiment(store, found["experiment"])
        assert (run.status, run.state.session["backend"]) == ("completed", name)
        weights = {key: value.tolist() for key, value in run.best.torch().state_dict().items()}
        return found, [trial.history for trial in run.state.ranked()], weights

    assert created(backend) == created("local")


def prepared(folder: Path) -> LocalStore:
    """A store with prepared data: 400 points of two classes."""
    points = np.random.default_rng(0).standard_normal((400, 4)).astype(np.float32)
    columns = {"x": points, "y": (points.sum(1) > 0).astype(np.int64)}
    data = LocalStore(folder / "data")
    prepare(columns, data, validation=0.25, feature_columns=["x"], label_columns=["y"])
    return data
