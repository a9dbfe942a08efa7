"""Model selection: searches, search spaces, and their results."""

from hopyard.missing import name_of_elsewhere
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
from hopyard.tune.mlflow import MLflowCallback
from hopyard.tune.pictures import draw_curves, draw_schedule
from hopyard.tune.run import Model, Run, load_model, open_run
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
from hopyard.tune.wandb import WandbCallback

__all__ = [
    "ASHA",
    "PBT",
    "Callback",
    "GridSearch",
    "HyperOpt",
    "Hyperband",
    "MLflowCallback",
    "Model",
    "QuasiRandomSearch",
    "RandomSearch",
    "Run",
    "Search",
    "TrialInfo",
    "WandbCallback",
    "compare",
    "draw_curves",
    "draw_schedule",
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


def __getattr__(name: str) -> type:
    return name_of_elsewhere(__name__, name, __all__)
