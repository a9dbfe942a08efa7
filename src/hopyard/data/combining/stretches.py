"""Stretches: consecutive rows that windows may lie in, found from the columns of time and series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.order import Rows
from hopyard.data.reading.views import Batch
from hopyard.data.schema import Column, Schema
from hopyard.errors import ColumnError, DataError

ReadRows = Callable[[int, int], Batch]
"""Rows [first, last) of the columns of time and series."""

_SORT = (
    "Windows need rows in order of time within each series: sort the files by series and time. The rows of "
    "prepared datasets are shuffled: open the files themselves, open_dataset(files).windows(...), and "
    "prepare(dataset.windows(...)) to train on windows that are shuffled on disk."
)
_SERIES = "If another series begins there, name the column that tells them apart: series=... "


@dataclass(frozen=True, eq=False)
class Stretches:
    """The windows of a dataset: every ``step`` rows of each stretch one begins, as long as it fits.

    Attributes:
        firsts: (stretches,) int64, the first row of each stretch, rising.
        begins: (stretches,) int64, the number of each stretch's first window, rising; each has one at least.
        count: number of all windows.
        step: rows from the start of a window to the next one's.
    """

    firsts: Rows
    begins: Rows
    count: int
    step: int

    def starts(self, windows: Rows) -> Rows:
        """The first row of each of these windows."""
        if len(self.firsts) == 1:
            return windows * self.step + int(self.firsts[0])
        stretches: Rows = np.searchsorted(self.begins, windows, side="right") - 1
        return self.firsts[stretches] + (windows - self.begins[stretches]) * self.step

    def windows_before(self, rows: Rows) -> Rows:
        """Number of windows that begin before each of these rows."""
        stretches = np.searchsorted(self.firsts, rows, side="left") - 1
        within = -(-(rows - self.firsts[stretches]) // self.step)
        ends = np.append(self.begins[1:], self.count)
        before: Rows = np.minimum(self.begins[stretches] + within, ends[stretches])
        before[stretches < 0] = 0
        return before


def find_stretches(
    read: ReadRows, group_rows: Sequence[int], span: int, step: int, time: str | None, max_gap: float | None,
    series: Sequence[str],
) -> Stretches:  # fmt: skip
    """The windows of ``span`` consecutive rows, without a new series or a gap of more than ``max_gap`` in them.

    Raises:
        DataError: rows are not in order of time, or no window fits.
    """
    rows = sum(group_rows)
    bounds = np.cumsum([0, *group_rows]).tolist() if time is not None or series else []
    cuts = [np.array([0], np.int64)]
    before: Batch | None = None
    for first, last in pairwise(bounds):
        if first == last:
            continue
        values = read(first, last)
        start = (
            first if before is None else first - 1
        )  # the row before the first belongs to another row group
        if before is not None:
            values = {name: np.concatenate([before[name], values[name]]) for name in values}
        cuts.append(start + 1 + np.flatnonzero(_are_cut(values, start, time, max_gap, series)))
        before = {name: its[-1:].copy() for name, its in values.items()}
    firsts = np.concatenate(cuts)
    lengths = np.diff(firsts, append=rows)
    counts = np.maximum((lengths - span) // step + 1, 0)
    kept = counts > 0
    if not kept.any():
        raise DataError(
            f"No window of {span} consecutive rows fits into these {rows} rows: the longest of their {len(firsts)} "
            f"stretches without a new series or too large a gap has {int(lengths.max())}. Make windows of fewer "
            "rows, allow a larger gap, or sort the files by series and time."
        )
    counts = counts[kept]
    ends = np.cumsum(counts)
    return Stretches(firsts[kept], ends - counts, int(ends[-1]), step)


def _are_cut(
    values: Mapping[str, npt.NDArray[Any]], start: int, time: str | None, max_gap: float | None,
    series: Sequence[str],
) -> npt.NDArray[np.bool_]:  # fmt: skip
    """(rows - 1,) whether a new stretch begins after each row; ``start`` is the number of the first."""
    changed = np.zeros(len(next(iter(values.values()))) - 1, bool)
    for name in series:
        changed |= np.asarray(values[name][1:] != values[name][:-1], bool)
    if time is None:
        return changed
    early, late = _in_64_bits(values[time][:-1]), _in_64_bits(values[time][1:])
    wrong = ~(changed | (late >= early))
    if wrong.any():
        row = int(wrong.argmax())
        place = "".join(f", {name}={values[name][row + 1]!s}" for name in series)
        raise DataError(
            f"Row {start + row + 1} has {time}={late[row]!s}{place}, but the row before it has {time}="
            f"{early[row]!s}. {'' if series else _SERIES}{_SORT}"
        )
    if max_gap is None:
        return changed
    with np.errstate(over="ignore", invalid="ignore"):  # where the series changes, time may fall
        gaps = late - early
    if gaps.dtype.kind == "i":
        gaps = gaps.view(np.uint64)  # no difference of two int64 is too large for it
    changed |= gaps > max_gap
    return changed


def _in_64_bits(times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return times.astype(np.dtype(f"{times.dtype.kind}8"), copy=False)


def check_time(schema: Schema, time: str) -> None:
    """Raise ColumnError unless the column holds one number a row."""
    column = schema[time]
    if column.kind != "tensor" or column.shape or column.dtype == "bool":
        raise ColumnError(
            f"time={time!r} is the column {column}, but time must be one number a row (timestamps are int64 "
            "nanoseconds). Name another column."
        )


def check_series(schema: Schema, names: Iterable[str]) -> None:
    """Raise ColumnError unless each of the columns holds one number, string or bytes a row."""
    for column in schema.select(names):
        if column.kind == "ragged" or column.shape:
            raise ColumnError(
                f"series={column.name!r} is the column {column}, but a series is told by one number, string or "
                "bytes a row. Name another column."
            )


def check_stackable(schema: Schema) -> None:
    """Raise ColumnError if a column's rows differ in shape."""
    ragged = [column for column in schema if column.kind == "ragged"]
    if ragged:
        raise _not_stackable(ragged)


def _not_stackable(columns: Sequence[Column]) -> ColumnError:
    names = ", ".join(str(column) for column in columns)
    return ColumnError(
        f"The rows of {names} differ in length, but the rows of a window are stacked into one array. Open the data "
        "with ragged='pad', or without these columns: open_dataset(..., columns=[...])."
    )
