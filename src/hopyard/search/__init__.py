"""Searchers, which choose the points of a space to be tried, and decide how long each trains."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hopyard.errors import name_of_later
from hopyard.search.asha import AdaptiveAsha, Asha
from hopyard.search.base import Budget, Create, Operation, Proposer, Searcher, Stop, Train
from hopyard.search.full import FullLength
from hopyard.search.hyperband import Hyperband
from hopyard.search.pbt import Pbt
from hopyard.search.points import draw, grid
from hopyard.search.preview import preview, preview_table
from hopyard.search.proposers import GridPoints, ListPoints, QuasiRandomPoints, RandomPoints
from hopyard.search.spaces import (
    checked_space,
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
    space_json,
)
from hopyard.search.stopping import EpochByEpoch, MedianStopping, Patience
from hopyard.search.virtual import InVirtualTime

__all__ = [
    "AdaptiveAsha",
    "Asha",
    "Budget",
    "Create",
    "EpochByEpoch",
    "FullLength",
    "GridPoints",
    "Hyperband",
    "InVirtualTime",
    "ListPoints",
    "MedianStopping",
    "Operation",
    "Patience",
    "Pbt",
    "Proposer",
    "QuasiRandomPoints",
    "RandomPoints",
    "Searcher",
    "Stop",
    "Train",
    "checked_space",
    "draw",
    "grid",
    "hp_choice",
    "hp_int",
    "hp_log",
    "hp_loguniform",
    "hp_qloguniform",
    "hp_quniform",
    "hp_uniform",
    "preview",
    "preview_table",
    "space_json",
]

_ELSEWHERE = {"OptunaPoints": "optuna", "OptunaPruning": "optuna"}
"""Imported when asked for: what needs a package that may not be installed, or takes long to import."""


if TYPE_CHECKING:
    from hopyard.search.optuna import OptunaPoints as OptunaPoints
    from hopyard.search.optuna import OptunaPruning as OptunaPruning
else:

    def __getattr__(name: str) -> Any:
        if name not in _ELSEWHERE:
            return name_of_later(__name__, name, __all__)
        return getattr(import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
