"""Columns of numbers brought to mean 0 and variance 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.moments import Moments
from hopyard.data.preprocessing.base import (
    FittedState,
    Fitting,
    Missing,
    Step,
    as_numbers,
    present_rows,
)
from hopyard.data.reading.views import Batch
from hopyard.errors import DataError

_EPSILON = float(np.finfo(np.float64).eps)


class StandardScale(Step):
    """``(x - mean) / deviation`` as float32, each number of a row by its own mean and standard deviation (of all rows,
    as scikit-learn's ``StandardScaler``).

    Numbers that are the same in all rows become 0. NaN does not count and stays NaN; rows that are null become 0, the
    mean.

    >>> StandardScale("age", "fare")
    """

    def __init__(self, *columns: str) -> None:
        super().__init__(columns)

    def fitting(self) -> Fitting:
        return _Scaling(self)


class _Scaling(Fitting):
    def __init__(self, step: StandardScale) -> None:
        self._step = step
        self._moments = {name: Moments() for name in step.columns}

    def add(self, batch: Batch, missing: Missing) -> None:
        for name, moments in self._moments.items():
            numbers = as_numbers("StandardScale", name, batch[name])
            moments.merge(Moments.of_rows(present_rows(numbers, missing.get(name))))

    def result(self) -> FittedState:
        means, deviations = {}, {}
        for name, moments in self._moments.items():
            if not np.all(moments.count):
                raise DataError(
                    f"StandardScale cannot scale column {name!r}: no training row has a number there. Leave it out."
                )
            variance = np.asarray(moments.squares / moments.count)
            # A variance that rounding alone explains is none.
            constant = (
                variance
                <= moments.count * _EPSILON * variance + (moments.count * moments.mean * _EPSILON) ** 2
            )
            means[name] = np.asarray(moments.mean)
            deviations[name] = np.where(constant, 1.0, np.sqrt(variance))
        return Scaled(means, deviations)


@dataclass(frozen=True)
class Scaled(FittedState):
    """Attributes: means, deviations: of each column, float64 of the shape of a row; the deviation of numbers that are
    all the same is 1."""

    means: dict[str, npt.NDArray[np.float64]]
    deviations: dict[str, npt.NDArray[np.float64]]

    def apply(self, batch: Batch, missing: Missing) -> dict[str, Any]:
        scaled = {}
        for name, mean in self.means.items():
            numbers = as_numbers("StandardScale", name, batch[name])
            if numbers.shape[1:] != mean.shape:
                raise DataError(
                    f"Column {name!r} has rows of shape {list(numbers.shape[1:])}, but had {list(mean.shape)} when "
                    "StandardScale was fitted. Give rows as they were in training."
                )
            result = ((numbers - mean) / self.deviations[name]).astype(np.float32)
            lost = missing.get(name)
            if lost is not None:
                result[lost] = 0.0
            scaled[name] = result
        return scaled
