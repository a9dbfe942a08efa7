"""Searchers, which choose the points of a space to be tried, and decide how long each trains."""

from __future__ import annotations

from hopyard.search.asha import AdaptiveAsha, Asha
from hopyard.search.base import Budget, Create, Operation, Proposer, Searcher, Stop, Train
from hopyard.search.full import FullLength
from hopyard.search.hyperband import Hyperband
from hopyard.search.pbt import Pbt
from hopyard.search.preview import preview, preview_table
from hopyard.search.proposers import GridPoints, ListPoints, QuasiRandomPoints, RandomPoints
from hopyard.search.replicates import Replicated
from hopyard.search.spaces import (
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
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
    "Replicated",
    "Searcher",
    "Stop",
    "Train",
    "hp_choice",
    "hp_int",
    "hp_log",
    "hp_loguniform",
    "hp_qloguniform",
    "hp_quniform",
    "hp_uniform",
    "preview",
    "preview_table",
]
