"""Some row groups of a dataset as columns that any rows can be gathered from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from hopyard.data.buffers import Buffers
from hopyard.data.layout import Values
from hopyard.data.mapped import MappedColumn, first_rows_of
from hopyard.data.order import Rows
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column

Batch: TypeAlias = dict[str, Any]
"""Column -> array (n, *shape), object array (n,) of str or bytes, or ``Ragged``."""


class Source(Protocol):
    """A column of some row groups."""

    def gather(self, places: Rows, groups: Rows | None, buffers: Buffers) -> Any: ...


class HeldColumn:
    """A decoded column, in memory."""

    def __init__(self, column: Column, values: Values) -> None:
        self._column = column
        self._values = values
        if isinstance(values, np.ndarray):
            self._table = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), column.width or 0)
        elif column.kind != "ragged":
            # Arrow makes the Python objects of a batch, which NumPy could only row by row.
            kind = pa.large_string() if column.kind == "string" else pa.large_binary()
            buffers = [None, pa.py_buffer(values.offsets), pa.py_buffer(np.ascontiguousarray(values.values))]
            self._array = pa.Array.from_buffers(kind, len(values), buffers)

    def gather(self, places: Rows, groups: Rows | None, buffers: Buffers) -> Any:
        if self._column.kind == "ragged":
            return self._values[places]
        if isinstance(self._values, Ragged):
            return self._array.take(pa.array(places)).to_numpy(zero_copy_only=False)
        batch, raw = buffers.pair(len(places), self._values.dtype, self._column.shape, self._table.shape[1])
        self._table.take(places, 0, raw, "clip")
        return batch


class View:
    """Some row groups of a dataset, and the columns asked for; rows are numbered from 0.

    Args:
        group_rows: rows of each row group.
        sources: by column name, in the order of the batches.
    """

    def __init__(self, group_rows: Sequence[int], sources: dict[str, Source]) -> None:
        self._first_rows = first_rows_of(group_rows)
        self._uniform = group_rows[0] if len(set(group_rows[:-1])) <= 1 else None
        if len(group_rows) > 1 and group_rows[-1] > group_rows[0]:
            self._uniform = None
        self._shifts: list[Rows] = []  # the different ones: columns of equal width share one
        self._sources = [(name, source, self._shift_of(source)) for name, source in sources.items()]

    def _shift_of(self, source: Source) -> int | None:
        if not isinstance(source, MappedColumn):
            return None
        for number, shift in enumerate(self._shifts):
            if np.array_equal(shift, source.shift):
                return number
        self._shifts.append(source.shift)
        return len(self._shifts) - 1

    def gather(self, rows: Rows, buffers: Buffers) -> Batch:
        """The rows of these numbers, in this order; every number must be in range."""
        groups: Rows | None = None
        places: list[Rows] = []
        if self._shifts:
            groups = self._groups_of(rows)
            places = [rows + shift.take(groups) for shift in self._shifts]
        return {
            name: source.gather(rows if shift is None else places[shift], groups, buffers)
            for name, source, shift in self._sources
        }

    def _groups_of(self, rows: Rows) -> Rows:
        if self._uniform is not None:
            return rows // self._uniform
        return np.searchsorted(self._first_rows, rows, side="right") - 1


def join(parts: Sequence[Batch], buffers: Buffers) -> Batch:
    """Batches one after another as one, in memory of its own."""
    if len(parts) == 1:
        return parts[0]
    return {name: _join([part[name] for part in parts], buffers) for name in parts[0]}


def _join(parts: Sequence[Any], buffers: Buffers) -> Any:
    if isinstance(parts[0], Ragged):
        return Ragged.concatenate(parts)
    if parts[0].dtype == object:
        return np.concatenate(parts)
    out = buffers.empty(sum(map(len, parts)), parts[0].dtype, parts[0].shape[1:])
    return np.concatenate(parts, out=out)
