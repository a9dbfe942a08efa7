"""Model selection: searches, search spaces, and their results."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hopyard.errors import name_of_later
from hopyard.search import (
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
)
from hopyard.tune.callbacks import Callback, TrialInfo
from hopyard.tune.compare import compare
from hopyard.tune.listing import list_runs
from hopyard.tune.model import Model, load_model
from hopyard.tune.run import Run, open_run
from hopyard.tune.search import Search
from hopyard.tune.searches import (
    ASHA,
    PBT,
    GridSearch,
    Hyperband,
    HyperOpt,
    QuasiRandomSearch,
    RandomSearch,
)

__all__ = [
    "ASHA",
    "PBT",
    "Callback",
    "GridSearch",
    "HyperOpt",
    "Hyperband",
    "Model",
    "QuasiRandomSearch",
    "RandomSearch",
    "Run",
    "Search",
    "TrialInfo",
    "compare",
    "hp_choice",
    "hp_int",
    "hp_log",
    "hp_loguniform",
    "hp_qloguniform",
    "hp_quniform",
    "hp_uniform",
    "list_runs",
    "load_model",
    "open_run",
]

_ELSEWHERE = {"MLflowCallback": "hopyard.tune.mlflow", "WandbCallback": "hopyard.tune.wandb"}


if TYPE_CHECKING:
    from hopyard.tune.mlflow import MLflowCallback as MLflowCallback
    from hopyard.tune.wandb import WandbCallback as WandbCallback
else:

    def __getattr__(name: str) -> Any:
        """Names that need an extra are imported when first asked for; they are not among those of ``import *``."""
        if name not in _ELSEWHERE:
            return name_of_later(__name__, name, __all__)
        return getattr(import_module(_ELSEWHERE[name]), name)
