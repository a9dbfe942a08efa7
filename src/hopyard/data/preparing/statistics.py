"""Statistics of columns, some rows at a time; merged in the order of the rows, so that they repeat exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from hopyard.data.layout import Values, arrow_array
from hopyard.data.manifest import ColumnStatistics
from hopyard.data.moments import Moments
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.data.sparse import elements_of

MOST_DISTINCT = 1000
_FIRST_ROWS = 4096
_ELEMENTS_AT_ONCE = 1 << 16  # what is computed several times over stays in the cache of the core


@dataclass
class _Numbers:
    """Moments and range of the finite numbers of a column, and how many of its numbers are not finite."""

    moments: Moments = field(default_factory=Moments)
    low: float | int | None = None
    high: float | int | None = None
    not_finite: int = 0

    def merge(self, other: _Numbers) -> None:
        self.moments.merge(other.moments)
        self.not_finite += other.not_finite
        if other.low is not None and other.high is not None:
            self.low = other.low if self.low is None else min(self.low, other.low)
            self.high = other.high if self.high is None else max(self.high, other.high)


class Statistics:
    """Statistics of some rows of all columns; ``merge`` those of the rows that follow."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._numbers = {column.name: _Numbers() for column in schema}
        self._distinct: dict[str, set[Any] | None] = {
            column.name: set() if _may_be_counted(column) else None for column in schema
        }
        self._missing = {column.name: 0 for column in schema}

    @classmethod
    def of(cls, schema: Schema, values: Mapping[str, Values], missing: Mapping[str, int]) -> Statistics:
        statistics = cls(schema)
        for column in schema:
            rows = values[column.name]
            statistics._missing[column.name] = missing.get(column.name, 0)
            if column.kind in ("tensor", "ragged"):
                for block in _blocks(_elements(column, rows)):
                    statistics._numbers[column.name].merge(_numbers_of(block))
                if column.sparse and isinstance(rows, Ragged):
                    zeros = len(rows) * column.shape[0] - len(rows.values)
                    statistics._numbers[column.name].merge(_Numbers(Moments(zeros), 0.0, 0.0))
            if statistics._distinct[column.name] is not None:
                statistics._distinct[column.name] = _distinct(column, rows)
        return statistics

    def merge(self, other: Statistics) -> None:
        for name, numbers in self._numbers.items():
            numbers.merge(other._numbers[name])
            self._missing[name] += other._missing[name]
            mine, its = self._distinct[name], other._distinct[name]
            self._distinct[name] = None if mine is None or its is None else _few(mine | its)

    def result(self) -> dict[str, ColumnStatistics]:
        return {column.name: self._column(column.name) for column in self._schema}

    def _column(self, name: str) -> ColumnStatistics:
        numbers, distinct = self._numbers[name], self._distinct[name]
        moments = numbers.moments
        known = moments.count > 0
        variance = moments.squares / moments.count if known else 0.0
        return ColumnStatistics(
            numbers.low,
            numbers.high,
            _finite(float(moments.mean)) if known else None,
            _finite(math.sqrt(variance)) if known else None,
            self._missing[name],
            numbers.not_finite,
            None if distinct is None else tuple(sorted(distinct)),
        )


def _elements(column: Column, rows: Values) -> npt.NDArray[Any]:
    """The stored elements of rows: of sparse rows all but zeros."""
    if not isinstance(rows, Ragged):
        return rows
    return elements_of(rows.values) if column.sparse else rows.values


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _may_be_counted(column: Column) -> bool:
    return column.kind == "string" or (
        column.kind == "tensor" and not column.shape and np.dtype(column.dtype).kind in "biu"
    )


def _few(values: set[Any]) -> set[Any] | None:
    return values if len(values) <= MOST_DISTINCT else None


def _distinct(column: Column, rows: Values) -> set[Any] | None:
    """The values, if they are few; most columns of many show it in their first rows."""
    for part in (rows[:_FIRST_ROWS], rows):
        if isinstance(part, Ragged):
            distinct = pc.unique(arrow_array(column, part)).slice(0, MOST_DISTINCT + 1).to_pylist()
        else:
            distinct = _unique(part.astype(np.uint8) if part.dtype == bool else part)[
                : MOST_DISTINCT + 1
            ].tolist()
        if len(distinct) > MOST_DISTINCT:
            return None
    return set(distinct)


def _unique(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sorted distinct values, as ``np.unique`` gives them, which hashes integers: sorting them is ten times as fast."""
    ordered = np.sort(values)
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])])


def _blocks(array: npt.NDArray[Any]) -> Iterable[npt.NDArray[Any]]:
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, len(flat), _ELEMENTS_AT_ONCE):
        yield flat[start : start + _ELEMENTS_AT_ONCE]


def _numbers_of(block: npt.NDArray[Any]) -> _Numbers:
    dropped = 0
    low, high = block.min(), block.max()
    if block.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high)):
        finite = block[np.isfinite(block)]
        dropped = len(block) - len(finite)
        if not len(finite):
            return _Numbers(not_finite=dropped)
        block, low, high = finite, finite.min(), finite.max()
    with np.errstate(over="ignore", invalid="ignore"):  # sums of huge values are reported as unknown
        wide = block.astype(np.float64)
        mean = float(wide.mean())
        wide -= mean
        squares = float(np.einsum("i,i->", wide, wide))  # no BLAS: its threads would fight with the writer's
    return _Numbers(Moments(len(block), mean, squares), _plain(low), _plain(high), dropped)


def _plain(value: Any) -> float | int:
    plain: float | int | bool = value.item()
    return int(plain) if isinstance(plain, bool) else plain
