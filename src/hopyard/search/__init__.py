"""Searchers: which points of a space are tried, and for how long."""

from hopyard.search.base import Create, Operation, Proposer, Searcher, Stop, Train
from hopyard.search.full import FullLength
from hopyard.search.points import draw, grid
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
from hopyard.search.virtual import InVirtualTime

__all__ = [
    "Create",
    "FullLength",
    "GridPoints",
    "InVirtualTime",
    "ListPoints",
    "Operation",
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
    "space_json",
]
