"""Experiments: one YAML file, a trial class or a function, and every way to reach data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.missing import imported_later

if TYPE_CHECKING:
    from hopyard.experiment.checkpoints import Checkpoint as Checkpoint
    from hopyard.experiment.checkpoints import download_checkpoint as download_checkpoint
    from hopyard.experiment.checkpoints import list_checkpoints as list_checkpoints
    from hopyard.experiment.config import ExperimentConfig as ExperimentConfig
    from hopyard.experiment.config import complete as complete
    from hopyard.experiment.config import read_config as read_config
    from hopyard.experiment.config import schema as schema
    from hopyard.experiment.context import TrialContext as TrialContext
    from hopyard.experiment.conversion import convert as convert
    from hopyard.experiment.experiments import ExperimentSummary as ExperimentSummary
    from hopyard.experiment.experiments import create as create
    from hopyard.experiment.experiments import delete as delete
    from hopyard.experiment.experiments import fork as fork
    from hopyard.experiment.experiments import list_experiments as list_experiments
    from hopyard.experiment.experiments import open_experiment as open_experiment
    from hopyard.experiment.experiments import resume as resume
    from hopyard.experiment.function_trial import saved_state as saved_state
    from hopyard.experiment.keras_trial import KerasTrial as KerasTrial
    from hopyard.experiment.logs import LogLine as LogLine
    from hopyard.experiment.logs import read_logs as read_logs
    from hopyard.experiment.torch_trial import TorchTrial as TorchTrial

__all__ = [
    "Checkpoint",
    "ExperimentConfig",
    "ExperimentSummary",
    "KerasTrial",
    "LogLine",
    "TorchTrial",
    "TrialContext",
    "complete",
    "convert",
    "create",
    "delete",
    "download_checkpoint",
    "fork",
    "list_checkpoints",
    "list_experiments",
    "open_experiment",
    "read_config",
    "read_logs",
    "resume",
    "saved_state",
    "schema",
]

_MODULES = {
    "Checkpoint": ".checkpoints",
    "ExperimentConfig": ".config",
    "ExperimentSummary": ".experiments",
    "KerasTrial": ".keras_trial",
    "LogLine": ".logs",
    "TorchTrial": ".torch_trial",
    "TrialContext": ".context",
    "complete": ".config",
    "convert": ".conversion",
    "create": ".experiments",
    "delete": ".experiments",
    "download_checkpoint": ".checkpoints",
    "fork": ".experiments",
    "list_checkpoints": ".checkpoints",
    "list_experiments": ".experiments",
    "open_experiment": ".experiments",
    "read_config": ".config",
    "read_logs": ".logs",
    "resume": ".experiments",
    "saved_state": ".function_trial",
    "schema": ".config",
}

_EXTRAS = {"keras": "tensorflow", "torch": "torch"}
"""Packages that trial classes need, and the extras that install them."""

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # Names are imported when first asked for: some need PyTorch or Keras, and the command line none.
    __getattr__, __dir__ = imported_later(__name__, _MODULES, __all__, _EXTRAS)
