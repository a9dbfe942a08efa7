"""Searchers: which points of a space are tried, and for how long."""

from hopyard.search.base import Create, Operation, Searcher, Stop, Train
from hopyard.search.grid import GridSearcher
from hopyard.search.patience import Patience
from hopyard.search.points import draw, grid
from hopyard.search.random import RandomSearcher
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

__all__ = [
    "Create",
    "GridSearcher",
    "Operation",
    "Patience",
    "RandomSearcher",
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
    "space_json",
]
