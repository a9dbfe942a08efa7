"""Windows over time-ordered rows: each row of the dataset is a window, its columns are stacked."""

from __future__ import annotations

import numbers
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from hopyard.checks import integer
from hopyard.data.base import BaseDataset, RowGroups
from hopyard.data.combining.stretches import (
    Stretches,
    check_series,
    check_stackable,
    check_time,
    find_stretches,
)
from hopyard.data.combining.window_columns import ColumnParts, WindowColumns, WindowEntry
from hopyard.data.order import Reach, Rows, epoch_windows
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.mapped import first_rows_of
from hopyard.data.reading.strings import as_objects
from hopyard.data.reading.views import Batch, RowGroupView, Wanted
from hopyard.data.schema import Schema
from hopyard.data.stream import WindowStream
from hopyard.errors import UsageError
from hopyard.objects.digests import digest_json

Length: TypeAlias = int | Sequence[int]

_RUNS_AT_ONCE = 8  # places of the dataset that are permuted together, if what is decoded of it is bounded


class Windows(BaseDataset):
    """Windows of a dataset's rows, in their order: a row of this dataset is a window.

    A batch's column is an array (n, length, *shape); strings and bytes are object arrays (n, length). Windows
    begin at the first row of every stretch and then every ``step`` rows, as long as they fit into it. A stretch ends
    where ``series`` changes, where time jumps by more than ``max_gap``, and nowhere else: windows reach across row
    groups and files. Two stretches of one series are two stretches.

    Every column has every row of the window, unless ``columns`` says which ones it has: a forecast learns one part of a
    column from another one.

    ``shuffle`` permutes windows. If their rows must be decoded and are too many for the loader's ``window``, row groups
    are read in runs of consecutive ones, together with as many rows behind each as its last window needs.

    Args:
        base: the dataset; rows that a filter left out are not there, and their neighbours are neighbours.
        length: rows of a window, or increasing offsets of its rows: ``[0, 1, 7]`` leaves out those between.
        step: rows from the start of a window to the next one's; windows of ``step=length`` do not overlap.
        time: a column whose values must not fall within a series.
        max_gap: the largest step of time between neighbouring rows of a window, in units of its column
            (nanoseconds for timestamps), also between rows that ``length`` leaves out.
        series: column or columns whose values must not change within a window.
        columns: names of the columns that windows have, None: all of the dataset; or a dict from a name to a column, or
            to (column, rows), the rows of the window that it has, as NumPy indexes them: ``{"past": ("sales",
            slice(0, 168)), "next": ("sales", 168)}`` gives arrays (n, 168, *shape) and (n, *shape).

    Raises:
        ColumnError: a column is unknown, or cannot serve as time or series; or one is ragged.
        DataError: rows are not in order of time, or no window fits.
        UsageError: an argument is impossible; or the rows were shuffled by ``prepare``.
    """

    def __init__(
        self,
        base: RowGroups,
        length: Length,
        *,
        step: int = 1,
        time: str | None = None,
        max_gap: float | None = None,
        series: str | Sequence[str] | None = None,
        columns: WindowColumns | None = None,
    ) -> None:
        self.base = base
        self._offsets = _offsets(length)
        self._columns = columns
        self._parts = None if columns is None else ColumnParts(base.schema, self.length, columns)
        self._step = integer("step", step, 1)
        self._time = time
        self._max_gap = _gap(max_gap, time)
        self._series = () if series is None else (series,) if isinstance(series, str) else tuple(series)
        self._check_base()
        self._span = int(self._offsets[-1]) + 1
        wanted = {name: name for name in ([] if time is None else [time]) + list(self._series)}
        self.stretches: Stretches = find_stretches(
            lambda first, last: base.take(np.arange(first, last), wanted),
            base.group_rows, self._span, self._step, time, self._max_gap, self._series,
        )  # fmt: skip

    def _check_base(self) -> None:
        schema = self.base.schema
        check_stackable(schema if self._parts is None else schema.select(self._parts.sources))
        check_series(schema, self._series)
        if self._time is not None:
            check_time(schema, self._time)
        elif self.base.prepared:
            raise UsageError(
                "Windows were asked for of a prepared dataset, whose rows are shuffled. Open the files themselves, "
                "open_dataset(files).windows(...), and prepare(dataset.windows(...)) to train on windows that are "
                "shuffled on disk. If its rows are in order nevertheless, say by which column: time=..."
            )

    @property
    def schema(self) -> Schema:
        """The columns of a window: (length, *shape), or as ``columns`` says."""
        if self._parts is not None:
            return self._parts.schema
        return Schema(
            replace(column, shape=(self.length, *column.shape), sparse=False) for column in self.base.schema
        )

    @property
    def row_schema(self) -> Schema:
        """The columns of one row of a window."""
        return self.base.schema if self._parts is None else self._parts.row_schema

    @property
    def length(self) -> int:
        """Rows of a window."""
        return len(self._offsets)

    @property
    def overlap(self) -> bool:
        """Whether neighbouring windows share rows, or would with all rows between their first and last."""
        return self._step < self._span

    def filled(self) -> dict[str, int | None]:
        """Columns of windows that are made of columns with nulls that were filled."""
        filled = self.base.filled()
        return {name: None for name in self.schema.names if self._source(name) in filled}

    def _source(self, name: str) -> str:
        return name if self._parts is None else self._parts.source(name)

    @property
    def fingerprint(self) -> str:
        """Digest of the dataset and of the windows' settings."""
        return digest_json([self.base.fingerprint, self._settings()], "hopyard.windows")

    @property
    def split(self) -> str:
        """``"train"`` or ``"val"``, as the dataset's."""
        return self.base.split

    def __len__(self) -> int:
        return self.stretches.count

    def __repr__(self) -> str:
        return f"Windows({len(self)} windows of {self.length} rows; {self.schema})"

    def describe(self) -> dict[str, Any]:
        """Description of the dataset for states of loaders, with the windows' settings."""
        return {**super().describe(), "windows": self._settings()}

    def _settings(self) -> dict[str, Any]:
        settings = {
            "length": self.length if self._span == self.length else self._offsets.tolist(),
            "step": self._step,
            "time": self._time,
            "max_gap": self._max_gap,
            "series": list(self._series),
        }
        if self._parts is not None:  # else as before there were parts, so that what was prepared is found
            settings["columns"] = self._parts.settings()
        return settings

    def reach(self, window: int | None) -> Reach:
        """Rows of the dataset that may be decoded at once; None if all windows are permuted together."""
        return self.base.reach(window)

    def stream(self, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: Reach) -> WindowStream:
        """The windows of an epoch.

        Raises:
            CorruptError: a file was changed since it was opened.
        """
        assert not isinstance(reach, list)
        self.base.reader().check_unchanged()
        runs = self._runs(reach)
        memory = epoch_windows([run.rows for run in runs], seed, epoch, reach, shuffle)
        windows = [replace(each, rows=sum(runs[run].windows for run in each.groups)) for each in memory]
        return WindowStream(_Runs(self, runs), wanted, windows)

    def decodes(self, wanted: Wanted) -> bool:
        """Whether images of the rows are decoded for every batch of windows."""
        return self.base.decodes(self.plan(wanted)[0])

    def check_not_written(self) -> None:
        """Raise CorruptError if a file was written to since it was opened; names it."""
        self.base.check_not_written()

    def take(self, rows: Rows, wanted: Wanted) -> Batch:
        """Any windows, by number."""
        needed, steps = self.plan(wanted)
        batch = self.base.take(self.rows_from(self.stretches.starts(rows)), needed)
        return self.stacked(batch, len(rows), steps)

    def rows_from(self, starts: Rows) -> Rows:
        """The rows, (windows * length,), of the windows that start at these rows."""
        return np.add.outer(starts, self._offsets).reshape(-1)

    def plan(self, wanted: Wanted) -> tuple[Wanted, list[WindowEntry] | None]:
        """Columns of the dataset needed for a batch, and the steps that make the batch of them; None: no steps."""
        return (wanted, None) if self._parts is None else self._parts.plan(wanted)

    def stacked(
        self, batch: Batch, windows: int, steps: list[WindowEntry] | None, buffers: Buffers | None = None
    ) -> Batch:
        """The rows of so many windows as a batch of windows."""
        whole = {}
        for name, values in batch.items():
            array = as_objects(values)
            whole[name] = array.reshape(windows, self.length, *array.shape[1:])
        return whole if steps is None or self._parts is None else self._parts.chosen(whole, steps, buffers)

    def partitions(self, p: int) -> list[Windows]:
        """``p`` datasets of windows, over disjoint runs of consecutive row groups of nearly equal rows.

        No window reaches from one into the next, so the partitions together have up to (length - 1) * (p - 1) windows
        fewer than this dataset. ``Dataset.partitions`` may deal row groups that do not follow each other, of
        which windows would join rows that are not neighbours.

        Raises:
            UsageError: fewer row groups than ``p``, or ``p`` below 1.
            DataError: a partition has no window.
        """
        groups = self.base.num_row_groups
        if not 1 <= p <= groups:
            raise UsageError(
                f"{p} partitions were asked for, but there are {groups} row groups, and a partition is at least one. "
                f"Ask for 1 to {groups}."
            )
        bounds = np.cumsum([0, *self.base.group_rows])
        wished = bounds[-1] * np.arange(p + 1) / p
        cuts = np.abs(np.subtract.outer(wished, bounds)).argmin(axis=1).tolist()
        cuts[-1] = groups
        for part in range(1, p):  # at least one row group each
            cuts[part] = min(max(cuts[part], cuts[part - 1] + 1), groups - (p - part))
        return [self._over(range(cuts[part], cuts[part + 1])) for part in range(p)]

    def _over(self, groups: Sequence[int]) -> Windows:
        return Windows(
            self.base.part(groups),
            self._offsets.tolist(),
            step=self._step,
            time=self._time,
            max_gap=self._max_gap,
            series=self._series,
            columns=self._columns,
        )

    def _runs(self, reach: int | None) -> list[_Run]:
        """All windows as runs: windows of a run begin within an eighth of ``reach`` rows, or within one row group."""
        most = sum(self.base.group_rows) if reach is None else reach // _RUNS_AT_ONCE
        cuts, size = [0], 0
        for group, rows in enumerate(self.base.group_rows):
            if size and size + rows > most:
                cuts.append(group)
                size = 0
            size += rows
        firsts = first_rows_of(self.base.group_rows)
        windows = self.stretches.windows_before(np.append(firsts[cuts], sum(self.base.group_rows)))
        return [self._run(begin, end, firsts) for begin, end in pairwise(windows.tolist()) if begin < end]

    def _run(self, begin: int, end: int, firsts: Rows) -> _Run:
        start, last = self.stretches.starts(np.array([begin, end - 1])).tolist()
        low, high = np.searchsorted(firsts, [start, last + self._span - 1], side="right").tolist()
        groups = range(low - 1, high)
        return _Run(groups, sum(self.base.group_rows[group] for group in groups), begin, end - begin)


@dataclass(frozen=True)
class _Run:
    """Windows that follow each other.

    Attributes:
        groups: consecutive row groups that hold all their rows.
        rows: of these row groups.
        first: number of the first window.
        windows: number of windows.
    """

    groups: range
    rows: int
    first: int
    windows: int


class _Runs:
    """Runs of windows, read as ``WindowStream`` reads row groups."""

    def __init__(self, windows: Windows, runs: Sequence[_Run]) -> None:
        self._windows = windows
        self._runs = runs

    def fetches(self, wanted: Wanted) -> bool:
        return self._windows.base.reader().fetches(self._windows.plan(wanted)[0])

    def view(
        self, wanted: Wanted, groups: Sequence[int] | None, stopped: threading.Event | None
    ) -> _WindowView | None:
        runs = self._runs if groups is None else [self._runs[run] for run in groups]
        base = self._windows.base
        needed = sorted({group for run in runs for group in run.groups})
        every = len(needed) == base.num_row_groups
        wanted, steps = self._windows.plan(wanted)
        view = base.reader().view(wanted, None if every else needed, stopped)
        if view is None:
            return None
        # The row groups of a run are neighbours here too: one distance for all its rows.
        here = dict(zip(needed, first_rows_of([base.group_rows[group] for group in needed]), strict=True))
        firsts = first_rows_of(base.group_rows)
        moves = [here[run.groups[0]] - firsts[run.groups[0]] for run in runs]
        return _WindowView(self._windows, view, runs, np.array(moves, np.int64), steps)


class _WindowView:
    """Runs of windows that any windows can be gathered from; these are numbered from 0.

    Args:
        windows: the dataset.
        view: of rows.
        runs: one after another.
        moves: (runs,) from the number of a row in the dataset to that in the view.
        steps: that make a batch of whole windows.
    """

    def __init__(
        self,
        windows: Windows,
        view: RowGroupView,
        runs: Sequence[_Run],
        moves: Rows,
        steps: list[WindowEntry] | None,
    ) -> None:
        self._windows = windows
        self._view = view
        self._begins = first_rows_of([run.windows for run in runs])
        self._shifts = np.array([run.first for run in runs], np.int64) - self._begins
        self._moves = moves
        self._steps = steps

    def gather(self, rows: Rows, buffers: Buffers) -> Batch:
        """The windows of these numbers, in this order."""
        runs = np.searchsorted(self._begins, rows, side="right") - 1
        starts = self._windows.stretches.starts(rows + self._shifts[runs]) + self._moves[runs]
        batch = self._view.gather(self._windows.rows_from(starts), buffers)
        return self._windows.stacked(batch, len(rows), self._steps, buffers)


def _offsets(length: Length) -> Rows:
    """Offsets of a window's rows from its first, (length,) int64; 0 is the first."""
    if isinstance(length, Sequence):
        try:
            offsets = [operator.index(offset) for offset in length]
        except TypeError:
            offsets = []
        if not offsets or any(late <= early for early, late in pairwise(offsets)):
            raise UsageError(
                f"length={length!r}, but the offsets of a window's rows must be increasing integers, at least one. "
                "Give such as [0, 1, 7], or how many consecutive rows a window has."
            )
        return np.array(offsets, np.int64) - offsets[0]
    return np.arange(integer("length", length, 1))


def _gap(max_gap: Any, time: str | None) -> int | float | None:
    if max_gap is None:
        return None
    if time is None:
        raise UsageError(
            f"max_gap={max_gap!r} was given without time. Name the column that it is about: time=..."
        )
    if isinstance(max_gap, bool) or not isinstance(max_gap, numbers.Real) or not float(max_gap) >= 0:
        raise UsageError(
            f"max_gap={max_gap!r}, but it must be a number of at least 0, in the units of {time!r} (nanoseconds for "
            "timestamps)."
        )
    return int(max_gap) if isinstance(max_gap, numbers.Integral) else float(max_gap)
