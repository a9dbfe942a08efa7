"""Checkpoints of experiments: the weights of each trial's best epoch, listed, and written to a directory."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.errors import UsageError
from hopyard.experiment.definition import extract
from hopyard.experiment.experiments import find_experiment, model_of, open_experiment
from hopyard.experiment.saving import leaves
from hopyard.experiment.yaml_text import write_yaml
from hopyard.hopper.state import Best, TrialState, trial_folder
from hopyard.objects import Tensor, Tree, flatten, load_state
from hopyard.objects.tensorfile import write_file
from hopyard.storage import LocalStore, Store, files, open_store
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name
from hopyard.tune import Model, Run
from hopyard.tune.phrases import of_experiments, worded
from hopyard.tune.rows import best_epoch_behind

WEIGHTS, FACTS, CONFIG, CODE = "weights.safetensors", "checkpoint.json", "config.yaml", "code"
"""Names in the directory of a checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """The best epoch of a trial.

    Attributes:
        trial: its number.
        status: of the trial.
        epoch: after how many epochs, or reports of a function, counting those of the trial that this one is a copy of;
            a fraction within one.
        metric, value: the metric that ranks trials, and its value then.
        metrics: all that was measured then.
        params: its hyperparameters.
        bytes: of its tensors.
        kept: whether its weights are there: those of completed trials and of the best one are, or as ``checkpoints``
            of the configuration says.
    """

    trial: int
    status: str
    epoch: float
    metric: str
    value: float
    metrics: dict[str, float]
    params: dict[str, Any]
    bytes: int
    kept: bool


def list_checkpoints(store: Store | str | os.PathLike[str], experiment: str) -> list[Checkpoint]:
    """The best epochs of all trials that have a result, the best first.

    Raises:
        NotFoundError: there is no such experiment; the message lists those there are.
    """
    opened = open_store(store)
    run, folder = open_experiment(opened, experiment), find_experiment(opened, experiment)
    return [
        _checkpoint(run, trial, trial.best, folder.at(trial_folder(trial.number)))
        for trial in run.state.ranked()
        if trial.best is not None
    ]


def _checkpoint(run: Run, trial: TrialState, best: Best, own: Store) -> Checkpoint:
    kept = all(own.exists(name) for name in best.state.files)
    epoch = best_epoch_behind(run.state, trial)
    assert epoch is not None
    return Checkpoint(
        trial.number, trial.status, epoch, run.state.metric.key, best.value, best.metrics, trial.params,
        best.state.nbytes, kept,
    )  # fmt: skip


def download_checkpoint(
    store: Store | str | os.PathLike[str],
    experiment: str,
    target: str | os.PathLike[str],
    trial: int | str = "best",
) -> Path:
    """Write the best weights of a trial to a new directory, with the code and all that is known of them.

    ``weights.safetensors`` has the tensors: of a trial class under the names of ``model.state_dict()``, of a function
    those that it saved, under their places, as ``model/0.weight``. ``checkpoint.json`` has the experiment, trial,
    epoch, metrics and hyperparameters, and other values that a function saved; ``config.yaml`` the configuration, and
    ``code`` the model definition.

    Args:
        target: the directory; it must not exist, or be empty.
        trial: number of the trial, or ``"best"``.

    Raises:
        NotFoundError: there is no such experiment or trial, or its weights were not kept.
        UsageError: something is at ``target``.
        StorageError: it cannot be written. Nothing was left half-written.
    """
    with worded(of_experiments):
        return _download(open_store(store), experiment, Path(target), trial)


def _download(opened: Store, experiment: str, path: Path, trial: int | str) -> Path:
    run = open_experiment(opened, experiment)
    model = model_of(run, trial)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            f"{path} is there already, but a checkpoint is written to a new directory. Give another name, or delete it."
        )
    about = run.state.header["experiment"]
    tensors, values = _taken_apart(load_state(*model.weights(), verify=True))
    with write_errors(path):
        files.make_directory(path.parent)
        temporary = path.parent / temporary_name()
        files.new_directory(temporary)
        try:
            write_file(
                LocalStore(temporary), WEIGHTS, tensors, {"experiment": experiment, "trial": model.trial}
            )
            extract(opened, about["definition"], temporary / CODE)
            (temporary / CONFIG).write_text(write_yaml(about["config"]), encoding="utf-8")
            facts = json.dumps(_facts(run, model, values), indent=2)
            (temporary / FACTS).write_text(facts + "\n", encoding="utf-8")
            files.rename(temporary, path)
        finally:
            files.remove_tree(temporary)
    return path


def _facts(run: Run, model: Model, values: dict[str, Any]) -> dict[str, Any]:
    trial = run.state.trials[model.trial]
    best = trial.best
    assert best is not None
    return {
        "experiment": run.run_id,
        "trial": model.trial,
        "epoch": best_epoch_behind(run.state, trial),
        "metric": run.state.metric.key,
        "value": best.value,
        "metrics": best.metrics,
        "hyperparameters": model.params,
        "definition": run.state.header["experiment"]["definition"],
        "saved": values,
    }


def _taken_apart(tree: Tree) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of weights by name, and of what a function saved also the plain values."""
    if not isinstance(tree, dict) or "saved" not in tree:
        return flatten(tree)[0], {}
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for place, leaf in leaves(tree["saved"]):
        (tensors if isinstance(leaf, Tensor) else values)["/".join(place)] = leaf
    return tensors, values
