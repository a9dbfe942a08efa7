"""Values for rows that have none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from hopyard.checks import choice, flag
from hopyard.data.moments import Moments
from hopyard.data.preprocessing.base import (
    FittedState,
    Fitting,
    Missing,
    Step,
    as_numbers,
    is_text,
    refuse_lists,
)
from hopyard.data.reading.views import Batch
from hopyard.errors import DataError, UsageError

By = Literal["mean", "median", "most_frequent"]
_BY = ("mean", "median", "most_frequent")


class Impute(Step):
    """A value in place of each null, and of NaN.

    Args:
        columns: each gets its own value; of a column of arrays, each element.
        by: ``"mean"`` (the default) or ``"median"`` of the training rows, which make integers float64, or
            ``"most_frequent"`` (of equally frequent ones the smallest). The last two hold the column in memory once.
        value: a constant instead.
        indicator: add a float32 column ``<name>_missing``, 1 where a value was missing, else 0. The model gets it if
            ``feature_columns`` names it.

    >>> Impute("age", by="median", indicator=True), Impute("city", value="unknown")
    """

    fills: ClassVar[bool] = True

    def __init__(
        self, *columns: str, by: By | None = None, value: Any = None, indicator: bool = False
    ) -> None:
        super().__init__(columns)
        if by is not None:
            choice("by", by, _BY, advice="A constant is given as value=.")
        if by is not None and value is not None:
            raise UsageError(f"Impute was given by={by!r} and value={value!r}. Give one of them.")
        if value is not None and not isinstance(value, str | bytes | bool | int | float | np.generic):
            raise UsageError(f"Impute was given value={value!r}, but a constant is one number, text or bool.")
        self.value: Any = value.item() if isinstance(value, np.generic) else value
        self.by = None if value is not None else by or "mean"
        self.indicator: bool = flag("indicator", indicator)

    @property
    def outputs(self) -> tuple[str, ...]:
        more = tuple(f"{name}_missing" for name in self.columns) if self.indicator else ()
        return self.columns + more

    def options(self) -> dict[str, Any]:
        given: dict[str, Any] = {"by": self.by} if self.value is None else {"value": self.value}
        return {**given, **({"indicator": True} if self.indicator else {})}

    def definition(self) -> Any:
        return [type(self).__name__, list(self.columns), {**self.options(), "value": repr(self.value)}]

    def fitting(self) -> Fitting:
        return _Learning(self)


class _Learning(Fitting):
    def __init__(self, step: Impute) -> None:
        self._step = step
        self._moments = {name: Moments() for name in step.columns}
        self._kept: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in step.columns}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def add(self, batch: Batch, missing: Missing) -> None:
        for name in self._step.columns:
            values = _checked(name, batch[name])
            self._dtypes[name] = values.dtype
            if self._step.by is None:
                continue
            lost = _lost(values, missing.get(name))
            if self._step.by == "mean":
                numbers = self._numbers(name, values)
                self._moments[name].merge(Moments.of_rows(np.where(lost, np.nan, numbers)))
            elif lost.any() and values.ndim > 1:  # as float64, to hold NaN
                self._kept[name].append(np.where(lost, np.nan, self._numbers(name, values)))
            else:
                self._kept[name].append(values[~lost] if values.ndim == 1 else values)

    def _numbers(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        if is_text(values):
            raise DataError(
                f"Impute was given by={self._step.by!r}, but column {name!r} holds texts, which have none. Give "
                "by='most_frequent' or value='...'."
            )
        return as_numbers("Impute", name, values)

    def result(self) -> FittedState:
        fills, dtypes = {}, {}
        for name in self._step.columns:
            fills[name] = fill = self._fill(name)
            dtypes[name] = _result_dtype(name, self._dtypes[name], self._step, fill)
        return Imputed(fills, dtypes, self._step.indicator)

    def _fill(self, name: str) -> Any:
        by = self._step.by
        if by is None:
            return self._step.value
        if by == "mean":
            moments = self._moments[name]
            if not np.all(moments.count):
                raise self._nothing(name)
            return np.asarray(moments.mean)
        values = np.concatenate(self._kept[name])
        if not len(values):
            raise self._nothing(name)
        if by == "median":
            numbers = self._numbers(name, values)
            if np.isnan(numbers).all(0).any():
                raise self._nothing(name)
            return np.asarray(np.nanmedian(numbers, axis=0))
        rows = values.reshape(len(values), -1)
        found = [self._most_frequent(name, column) for column in rows.T]
        return np.array(found, values.dtype).reshape(values.shape[1:])

    def _most_frequent(self, name: str, values: npt.NDArray[Any]) -> Any:
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)]
        if not len(values):
            raise self._nothing(name)
        found, counts = np.unique(values, return_counts=True)
        return found[np.argmax(counts)]

    def _nothing(self, name: str) -> DataError:
        return DataError(
            f"Impute cannot learn a value for column {name!r}: a place in it is missing in all training rows. Give "
            "value=, or leave the column out."
        )


@dataclass(frozen=True)
class Imputed(FittedState):
    """Attributes: fills: the value of each column, of the shape of a row or ();  dtypes: of the results; indicator: as
    of ``Impute``."""

    fills: dict[str, Any]
    dtypes: dict[str, np.dtype[Any]]
    indicator: bool

    def apply(self, batch: Batch, missing: Missing) -> dict[str, Any]:
        filled: dict[str, Any] = {}
        for name, fill in self.fills.items():
            values = _checked(name, batch[name])
            dtype = self.dtypes[name]
            if is_text(values) != (dtype.kind == "O"):
                raise DataError(
                    f"Column {name!r} holds {_called(values.dtype)}, but held {_called(dtype)} when Impute was fitted. "
                    "Give the same type as in training."
                )
            lost = _lost(values, missing.get(name))
            with np.errstate(invalid="ignore"):  # NaN as an integer, which is replaced
                result = values.astype(dtype)
            np.copyto(result, np.asarray(fill, dtype), where=lost)
            filled[name] = result
            if self.indicator:
                filled[f"{name}_missing"] = lost.astype(np.float32)
        return filled


def _called(dtype: np.dtype[Any]) -> str:
    return "texts" if dtype.kind == "O" else f"numbers ({dtype})"


def _checked(name: str, values: Any) -> npt.NDArray[Any]:
    refuse_lists("Impute", name, values)
    array: npt.NDArray[Any] = np.asarray(values)
    return array.astype(object) if array.dtype.kind in "US" else array


def _lost(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_]:
    """Mask of the missing values, of the shape of ``values``."""
    lost = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    if missing is not None:
        lost[missing] = True
    return lost


def _result_dtype(name: str, dtype: np.dtype[Any], step: Impute, fill: Any) -> np.dtype[Any]:
    """Dtype of the column with the fill."""
    if step.by in ("mean", "median"):
        return dtype if dtype.kind == "f" else np.dtype(np.float64)
    if step.by is not None:
        return dtype
    text = isinstance(fill, str | bytes)
    if text != (dtype.kind == "O") or (isinstance(fill, bool) != (dtype.kind == "b")):
        raise DataError(
            f"Impute was given value={fill!r} for column {name!r}, which holds "
            f"{'texts' if dtype.kind == 'O' else dtype}. Give a constant of that type."
        )
    if dtype.kind in "iu":
        if isinstance(fill, float):
            return np.dtype(np.float64)
        bounds = np.iinfo(dtype)
        return dtype if bounds.min <= fill <= bounds.max else np.dtype(np.int64)
    return dtype
