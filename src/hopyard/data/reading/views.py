"""Some row groups of a dataset as columns that any rows can be gathered from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.order import Rows
from hopyard.data.ragged import Ragged
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.mapped import first_rows_of
from hopyard.data.reading.strings import Coded, as_objects

Batch: TypeAlias = dict[str, Any]
"""Column -> array (n, *shape), ``Ragged``, or of strings and bytes an object array (n,) or an Arrow array."""

Wanted: TypeAlias = Mapping[str, str | tuple[str, ...]]
"""Entries of a batch by name: a column's name, or the names of scalar columns of one dtype side by side, (n, k)."""

_LOCATED_AT_ONCE = 1 << 16  # places of rows

Pick: TypeAlias = Callable[[list[Any]], Any]


def columns_of(wanted: Wanted) -> list[str]:
    """The names of the columns that are needed, each once, in the order in which they are asked for."""
    names: dict[str, None] = {}
    for columns in wanted.values():
        if isinstance(columns, str):
            names[columns] = None
        else:
            names.update(dict.fromkeys(columns))
    return list(names)


class GatherSource(Protocol):
    """One or several columns of some row groups."""

    names: tuple[str, ...]
    shift: Rows
    whole_groups: bool
    """Whether the source's rows are all rows of the row groups, also rows that a filter left out."""
    is_apart: bool
    """Whether several columns are gathered as a sequence of them, not as (n, columns)."""

    def gather(self, places: Rows, groups: Rows, buffers: Buffers) -> Any:
        """Rows (n, *shape), or several columns; ``places`` are numbers of rows plus ``shift`` of their ``groups``."""

    def look(self, places: Rows, groups: Rows) -> Any:
        """The same rows without a copy, read only; None if they do not lie side by side as a batch holds them."""


Located: TypeAlias = npt.NDArray[np.int64]
"""Places of some rows, (1 + ways, n): their row groups, and for each way in which columns lie, their places."""


class RowGroupCheck(Protocol):
    """A check that is made before rows are gathered for the first time."""

    def check(self, groups: Rows) -> bool:
        """Look at the row groups of some rows; returns whether nothing is left to be looked at."""


class RowGroupView:
    """Wanted columns of some row groups of a dataset; rows are numbered from 0.

    Args:
        wanted: entries of a batch.
        group_rows: rows of each row group.
        sources: hold all the columns.
        selected: number of every row among all rows of the row groups, if a filter left some out.
        guard: looks at row groups before rows of them are gathered.
    """

    def __init__(
        self,
        wanted: Wanted,
        group_rows: Sequence[int],
        sources: Sequence[GatherSource],
        selected: Rows | None = None,
        guard: RowGroupCheck | None = None,
    ) -> None:
        self._guard = guard
        self._first_rows = first_rows_of(group_rows)
        self._uniform = group_rows[0] if len(set(group_rows[:-1])) <= 1 else None
        if len(group_rows) > 1 and group_rows[-1] > group_rows[0]:
            self._uniform = None
        self._uniform = self._uniform or None  # no rows: nothing to divide by
        self._selected = selected
        # The different ones: columns of equal width share one. With each, its step, and whether it is of whole groups.
        self._shifts: list[tuple[Rows, int | None, bool]] = []
        numbers: dict[tuple[bytes, bool], int] = {}
        self._sources = [(source, self._shift_of(source, numbers)) for source in sources]
        # Each is a source's next column: they need not be picked one by one.
        self._in_order = list(wanted)
        if list(wanted.values()) != [name for source in sources for name in source.names]:
            self._in_order = []
        self._picks = [] if self._in_order else _picks(wanted, sources)

    def _shift_of(self, source: GatherSource, numbers: dict[tuple[bytes, bool], int]) -> int:
        """Number of the source's shift among the different ones; ``numbers`` holds the known ones."""
        whole = source.whole_groups and self._selected is not None
        number = numbers.setdefault((source.shift.tobytes(), whole), len(self._shifts))
        if number == len(self._shifts):
            self._shifts.append((source.shift, _step_of(source.shift), whole))
        return number

    @property
    def rows_at_once(self) -> int:
        """Number of rows whose places are worth computing together: they stay in the cache of the core."""
        return max(_LOCATED_AT_ONCE // max(len(self._shifts), 1), 1)

    def gather(self, rows: Rows, buffers: Buffers) -> Batch:
        """The rows of these numbers, in this order; every number must be in range."""
        return self.gather_at(self.locate(rows, self.room_for(len(rows))), buffers)

    def room_for(self, count: int) -> Located:
        """Memory for the places of ``count`` rows."""
        return np.empty((1 + len(self._shifts), count), np.int64)

    def locate(self, rows: Rows, out: Located) -> Located:
        """Places of the rows of these numbers, in ``out``."""
        groups, *all_places = out
        if self._uniform is not None:
            np.floor_divide(rows, self._uniform, out=groups)
        else:
            np.subtract(np.searchsorted(self._first_rows, rows, side="right"), 1, out=groups)
        for (shift, step, whole), places in zip(self._shifts, all_places, strict=True):
            if step is None:  # else multiplying is several times as fast as looking up
                shift.take(groups, out=places, mode="clip")
            else:
                np.multiply(groups, step, out=places)
            places += self._selected.take(rows) if whole and self._selected is not None else rows
        return out

    def gather_at(self, located: Located, buffers: Buffers) -> Batch:
        """The rows that are there, in this order."""
        groups, *places = located
        self._look_at(groups)
        return self._named([source.gather(places[shift], groups, buffers) for source, shift in self._sources])

    def _named(self, arrays: list[Any]) -> Batch:
        """Columns that the sources gave, under the wanted names."""
        if not self._in_order:
            return {name: pick(arrays) for name, pick in self._picks}
        columns = [
            column
            for array, (source, _) in zip(arrays, self._sources, strict=True)
            for column in _columns_in(array, source)
        ]
        return dict(zip(self._in_order, columns, strict=True))

    def _look_at(self, groups: Rows) -> None:
        guard = self._guard
        if guard is not None and guard.check(groups):
            self._guard = None

    def look(self, rows: Rows, buffers: Buffers) -> Batch:
        """Rows as ``gather`` gives them, but as read-only views of the columns in which they lie side by side."""
        groups, *places = self.locate(rows, self.room_for(len(rows)))
        self._look_at(groups)
        arrays = []
        for source, shift in self._sources:
            seen = source.look(places[shift], groups)
            arrays.append(source.gather(places[shift], groups, buffers) if seen is None else seen)
        return self._named(arrays)


def _step_of(shift: Rows) -> int | None:
    """Step by which each row group is shifted further than the one before, if it is one for all and begins at 0."""
    step = int(shift[-1]) // max(len(shift) - 1, 1)
    return step if np.array_equal(shift, np.arange(len(shift)) * step) else None


class Ordered:
    """The rows of a view in an order, gathered by position. Their places are computed for many batches at once."""

    def __init__(self, view: RowGroupView, order: Rows) -> None:
        self._view, self._order = view, order
        self._start = self._stop = 0
        self._room = view.room_for(0)

    def gather(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Positions [first, last) of the order."""
        if not (self._start <= first and last <= self._stop):
            self._start, self._stop = first, max(last, min(first + self._view.rows_at_once, len(self._order)))
            count = self._stop - first
            if (
                count > self._room.shape[1]
            ):  # made once: fresh memory costs more than what is computed into it
                self._room = self._view.room_for(count)
            self._located = self._view.locate(self._order[first : self._stop], self._room[:, :count])
        return self._view.gather_at(self._located[:, first - self._start : last - self._start], buffers)


def _picks(wanted: Wanted, sources: Sequence[GatherSource]) -> list[tuple[str, Pick]]:
    places = {
        name: (number, within)
        for number, source in enumerate(sources)
        for within, name in enumerate(source.names)
    }
    return [
        (
            name,
            _column(places[columns], sources)
            if isinstance(columns, str)
            else _stack(columns, places, sources),
        )
        for name, columns in wanted.items()
    ]


def _columns_in(gathered: Any, source: GatherSource) -> Sequence[Any]:
    """The columns that a source gathered, one by one."""
    if len(source.names) == 1:
        return (gathered,)
    columns: Sequence[Any] = gathered if source.is_apart else gathered.T
    return columns


def _column(place: tuple[int, int], sources: Sequence[GatherSource]) -> Pick:
    number, within = place
    if len(sources[number].names) == 1:
        return lambda arrays: arrays[number]
    if sources[number].is_apart:
        return lambda arrays: arrays[number][within]
    return lambda arrays: arrays[number][:, within]


def _stack(
    columns: Sequence[str], places: Mapping[str, tuple[int, int]], sources: Sequence[GatherSource]
) -> Pick:
    number, first = places[columns[0]]
    if len(sources[number].names) > 1 and all(
        places[name] == (number, first + step) for step, name in enumerate(columns)
    ):
        last = first + len(columns)
        if last - first == len(sources[number].names):
            return lambda arrays: arrays[number]
        return lambda arrays: arrays[number][:, first:last]
    single = [_column(places[name], sources) for name in columns]
    return lambda arrays: np.stack([pick(arrays) for pick in single], axis=1)


def join(parts: Sequence[Batch], buffers: Buffers) -> Batch:
    """Batches one after another as one, in memory of its own."""
    if len(parts) == 1:
        return parts[0]
    return {name: _join([part[name] for part in parts], buffers) for name in parts[0]}


def _join(parts: Sequence[Any], buffers: Buffers) -> Any:
    if isinstance(parts[0], Ragged):
        return Ragged.concatenate(parts)
    if any(isinstance(part, Coded) for part in parts):  # their values differ
        return np.concatenate([as_objects(part) for part in parts])
    if isinstance(parts[0], pa.Array):
        return pa.concat_arrays(parts)
    if parts[0].dtype == object:
        return np.concatenate(parts)
    out = buffers.empty(sum(map(len, parts)), parts[0].dtype, parts[0].shape[1:])
    return np.concatenate(parts, out=out)


def reorder(batch: Batch, rows: Rows, buffers: Buffers) -> Batch:
    """The rows of a batch in another order, in memory of its own."""
    return {name: _reordered(values, rows, buffers) for name, values in batch.items()}


def _reordered(values: Any, rows: Rows, buffers: Buffers) -> Any:
    if isinstance(values, Ragged) or values.dtype == object:
        return values[rows]
    out = buffers.empty(len(rows), values.dtype, values.shape[1:])
    return np.take(values, rows, axis=0, out=out, mode="clip")
