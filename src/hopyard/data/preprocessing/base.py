"""The contract of a step of preprocessing: fitted once on all training rows, then applied to any batch.

* **Training rows only.** A fitting sees each training row once, in batches whose bounds depend on the dataset alone, so
  that the state is the same for any partitions, workers and batch sizes of training.
* **Nothing but the state.** ``FittedState.apply`` is a pure function of the state and of the batch: rows come out in
  their order, each independent of the others. A state pickles.
* **Missing values** reach a step beside its columns, as bool arrays. A step with ``fills = True`` gives a value for
  each of them, and later steps find none; other steps leave missing rows out of the fitting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import Ragged
from hopyard.data.reading.views import Batch
from hopyard.errors import DataError, UsageError

Missing: TypeAlias = Mapping[str, npt.NDArray[np.bool_]]
"""Column -> (n,) bool, True where the row is null; columns without null rows may be left out."""


class FittedState(ABC):
    """The state of a fitted step: all that it has learned from the training rows.

    Attributes:
        takes_coded: whether ``apply`` takes columns also as ``Coded``.
    """

    takes_coded: ClassVar[bool] = False

    @abstractmethod
    def apply(self, batch: Batch, missing: Missing) -> dict[str, Any]:
        """The step's outputs for a batch.

        Raises:
            DataError: a column holds values that the step does not take.
        """


class Fitting(ABC):
    """One pass over the training rows."""

    @abstractmethod
    def add(self, batch: Batch, missing: Missing) -> None:
        """Learn from the next rows. Raises DataError where a column holds values that the step does not take."""

    @abstractmethod
    def result(self) -> FittedState:
        """The state, after all rows. Raises DataError where they do not suffice."""


class Step(ABC):
    """One step: the columns that it reads, the columns that it writes, and the way it is fitted.

    Attributes:
        columns: read; and written in place, unless ``outputs`` says otherwise.
        fills: whether missing values of the columns are given a value.
    """

    fills: ClassVar[bool] = False

    def __init__(self, columns: tuple[Any, ...]) -> None:
        name = type(self).__name__
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise UsageError(
                f"{name} was given the columns {columns!r}. Give names, one after another: {name}('age', 'fare')."
            )
        if len(set(columns)) < len(columns):
            raise UsageError(f"{name} was given the columns {columns!r}. Name each column once.")
        self.columns: tuple[str, ...] = columns

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns written: new ones, and ones that take the place of a column read."""
        return self.columns

    def options(self) -> dict[str, Any]:
        """The arguments besides the columns, as JSON values; defaults are left out."""
        return {}

    @abstractmethod
    def fitting(self) -> Fitting:
        """A new pass."""

    def definition(self) -> Any:
        """Definition as a JSON value: steps with equal ones learn the same from the same rows."""
        return [type(self).__name__, list(self.columns), self.options()]

    def __repr__(self) -> str:
        given = [
            *map(repr, self.columns),
            *(f"{name}={value!r}" for name, value in self.options().items()),
        ]
        return f"{type(self).__name__}({', '.join(given)})"


def is_text(values: Any) -> bool:
    """Whether the values are texts or bytes."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "OUS"


def as_numbers(step: str, name: str, values: Any) -> npt.NDArray[np.float64]:
    """A column of numbers as float64.

    Raises:
        DataError: it holds none, or an infinite one.
    """
    if isinstance(values, Ragged) or values.dtype.kind not in "biuf":
        kind, advice = (
            "texts, bytes or objects",
            f"Make them numbers first: Category({name!r}) does for texts.",
        )
        if isinstance(values, Ragged):
            kind, advice = "rows of different lengths", "Change them in transform= and val_transform=."
        raise DataError(f"{step} takes numbers, but column {name!r} holds {kind}. {advice}")
    numbers = np.asarray(values, np.float64)
    if np.isinf(numbers).any():
        raise DataError(
            f"{step} was given an infinite number in column {name!r}. Remove such rows, or replace the number."
        )
    return numbers


def present_rows(values: Any, missing: npt.NDArray[np.bool_] | None) -> Any:
    """The rows that are not missing."""
    return values if missing is None or not missing.any() else values[~missing]


def refuse_lists(step: str, name: str, values: Any) -> None:
    """Raise DataError if rows of a column have different lengths, with which a step can do nothing."""
    if isinstance(values, Ragged):
        raise DataError(
            f"{step} was given column {name!r}, whose rows have different lengths, and steps take rows of one length. "
            f"Leave {name!r} out of preprocess, and change its rows in transform= and val_transform= of the estimator."
        )
