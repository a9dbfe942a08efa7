"""Model selection: searches, search spaces, and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.missing import imported_later

if TYPE_CHECKING:
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
    from hopyard.tune.comparing import compare
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

_MODULES = {
    "ASHA": "hopyard.tune.searches",
    "PBT": "hopyard.tune.searches",
    "Callback": "hopyard.tune.callbacks",
    "GridSearch": "hopyard.tune.searches",
    "HyperOpt": "hopyard.tune.searches",
    "Hyperband": "hopyard.tune.searches",
    "MLflowCallback": "hopyard.tune.mlflow",
    "Model": "hopyard.tune.run",
    "QuasiRandomSearch": "hopyard.tune.searches",
    "RandomSearch": "hopyard.tune.searches",
    "Run": "hopyard.tune.run",
    "Search": "hopyard.tune.search",
    "TrialInfo": "hopyard.tune.callbacks",
    "WandbCallback": "hopyard.tune.wandb",
    "compare": "hopyard.tune.comparing",
    "draw_curves": "hopyard.tune.pictures",
    "draw_schedule": "hopyard.tune.pictures",
    "hp_choice": "hopyard.search",
    "hp_int": "hopyard.search",
    "hp_log": "hopyard.search",
    "hp_loguniform": "hopyard.search",
    "hp_qloguniform": "hopyard.search",
    "hp_quniform": "hopyard.search",
    "hp_uniform": "hopyard.search",
    "list_runs": "hopyard.tune.listing",
    "load_model": "hopyard.tune.run",
    "open_run": "hopyard.tune.run",
}

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # Names are imported when first asked for: lists and the dashboard read runs without what trains them.
    __getattr__, __dir__ = imported_later(__name__, _MODULES, __all__)
