"""Estimators as they are, for models that go where the files that their functions read are not.

A trunk is no part of a trial's state, so a model that is saved without its run takes its estimator along, trunk and
all, in place of the function that built it.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopyard.errors import EstimatorError
from hopyard.objects.pickles import UNPICKLABLE, dumps
from hopyard.training.build import build_estimator
from hopyard.training.program import Program


@dataclass(frozen=True)
class KeptEstimator:
    """An estimator function that gives one estimator, anew at each call.

    Attributes:
        data: its pickle.
    """

    data: bytes

    def __call__(self, params: Mapping[str, Any]) -> Any:
        return pickle.loads(self.data)


def has_trunk(model: Any) -> bool:
    """Whether the tree of a model is that of one that was trained on a trunk's outputs."""
    return isinstance(model, dict) and model.keys() == {"head", "trunk"} and isinstance(model["trunk"], str)


def with_estimator(program: Program, params: dict[str, Any], trial: int) -> Program:
    """The program with a trial's estimator in place of the function that gives it.

    Raises:
        EstimatorError: the estimator cannot be pickled.
    """
    estimator = build_estimator(program, params, trial)
    try:
        data = dumps(estimator)
    except UNPICKLABLE as error:
        raise EstimatorError(
            f"The estimator cannot be pickled ({error}), so a model with trunk= cannot be saved with its trunk. Take "
            "locks, threads, open files and connections out of what the estimator is given."
        ) from error
    return replace(program, estimator_gen_fn=KeptEstimator(data))
