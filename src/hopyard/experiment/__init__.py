"""Experiments: one YAML file, a trial class or a function, and every way to reach data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopyard.experiment.config import ExperimentConfig as ExperimentConfig
    from hopyard.experiment.config import complete as complete
    from hopyard.experiment.config import read_config as read_config
    from hopyard.experiment.config import schema as schema
    from hopyard.experiment.context import TrialContext as TrialContext
    from hopyard.experiment.launching import create as create
    from hopyard.experiment.torch_trial import TorchTrial as TorchTrial

_MODULES = {
    "ExperimentConfig": "config",
    "TorchTrial": "torch_trial",
    "TrialContext": "context",
    "complete": "config",
    "create": "launching",
    "read_config": "config",
    "schema": "config",
}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake

    def __getattr__(name: str) -> Any:
        """Names are imported when first asked for: some need PyTorch or Keras, and the command line none."""
        if name not in _MODULES:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_MODULES)}"
            )
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
