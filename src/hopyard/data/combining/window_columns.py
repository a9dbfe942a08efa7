"""Columns of a dataset of windows, by the rows of the window that each has."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from hopyard.data.order import Rows
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.views import Batch, Wanted
from hopyard.data.schema import Schema
from hopyard.errors import ColumnError, UsageError

ColumnPart: TypeAlias = str | tuple[str, int | slice | Sequence[int]]
WindowColumns: TypeAlias = Sequence[str] | Mapping[str, ColumnPart]


@dataclass(frozen=True)
class _Pick:
    """A column of windows: the dataset's column ``source``, and the rows of the window, () or (k,), that it has."""

    source: str
    rows: Rows


@dataclass(frozen=True)
class WindowEntry:
    """A step that makes one entry of a batch of windows: the ``rows`` of each of the whole windows called ``key``."""

    name: str
    key: str
    rows: Rows


class ColumnParts:
    """The columns of windows that are parts of a dataset's columns.

    Args:
        base: the dataset's columns.
        length: rows of a window.
        columns: as of :class:`hopyard.data.combining.windows.Windows`.

    Raises:
        ColumnError: a column is unknown.
        UsageError: rows that a window does not have, or something else than rows.
    """

    def __init__(self, base: Schema, length: int, columns: WindowColumns) -> None:
        if isinstance(columns, str) or not columns:
            raise UsageError(
                f"columns={columns!r}, but windows need at least one column: a list of names, or a dict such as "
                '{"past": ("value", slice(0, 24)), "next": ("value", 24)}.'
            )
        given = columns if isinstance(columns, Mapping) else {name: name for name in columns}
        self._length = length
        self._picks = {name: _pick(name, part, length) for name, part in given.items()}
        base.select(self.sources)
        self._base = base

    @property
    def sources(self) -> list[str]:
        """The columns of the dataset that are needed."""
        return list(dict.fromkeys(pick.source for pick in self._picks.values()))

    def source(self, name: str) -> str:
        """The column of the dataset that the windows' column ``name`` is a part of."""
        return self._picks[name].source

    @property
    def row_schema(self) -> Schema:
        """The columns of one row of a window, under their names here."""
        return Schema(replace(self._base[pick.source], name=name) for name, pick in self._picks.items())

    @property
    def schema(self) -> Schema:
        """The columns of a window."""
        return Schema(
            replace(column, shape=(*self._picks[column.name].rows.shape, *column.shape), sparse=False)
            for column in self.row_schema
        )

    def settings(self) -> dict[str, Any]:
        """Source and rows of each column, as JSON."""
        return {name: [pick.source, pick.rows.tolist()] for name, pick in self._picks.items()}

    def plan(self, wanted: Wanted) -> tuple[Wanted, list[WindowEntry]]:
        """Columns of the dataset needed for a batch, and the steps that make the batch of them.

        Raises:
            ColumnError: columns that have different rows shall stand side by side.
        """
        base: dict[str, str | tuple[str, ...]] = {}
        steps = []
        for name, its in wanted.items():
            picks = [self._picks[column] for column in ([its] if isinstance(its, str) else its)]
            rows = picks[0].rows
            if any(not np.array_equal(pick.rows, rows) for pick in picks):
                raise ColumnError(
                    f"columns={{{name!r}: [...]}} asks for {', '.join(its)} side by side, but they have different rows "
                    "of their windows. Ask for them under names of their own."
                )
            sources = tuple(pick.source for pick in picks)
            # One column stands side by side with none, but has another shape than by itself.
            key = sources[0] if isinstance(its, str) else "\0".join(("", *sources))
            base[key] = sources[0] if isinstance(its, str) else sources
            steps.append(WindowEntry(name, key, rows))
        return base, steps

    def chosen(self, batch: Batch, steps: Iterable[WindowEntry], buffers: Buffers | None = None) -> Batch:
        """The batch that ``steps`` make of whole windows (n, length, ...); its arrays share no memory."""
        chosen: Batch = {}
        given = set()
        for step in steps:
            values = batch[step.key]
            if step.key not in given and np.array_equal(step.rows, np.arange(self._length)):
                given.add(step.key)
                chosen[step.name] = values
                continue
            shape = (*step.rows.shape, *values.shape[2:])
            if buffers is None or values.dtype == object:
                out = np.empty((len(values), *shape), values.dtype)
            else:
                out = buffers.empty(len(values), values.dtype, shape)
            # The rows are there; any other mode would make a copy first.
            chosen[step.name] = np.take(values, step.rows, axis=1, out=out, mode="clip")
        return chosen


def _pick(name: str, part: ColumnPart, length: int) -> _Pick:
    if isinstance(part, str):
        return _Pick(part, np.arange(length))
    source, rows = part if isinstance(part, tuple) and len(part) == 2 else (None, None)
    if not isinstance(source, str):
        raise UsageError(
            f"columns={{{name!r}: {part!r}}}, but a column of windows is the name of a column, or that and rows: "
            '("value", -1), ("value", slice(0, 24)) or ("value", [0, 12]).'
        )
    try:
        chosen = np.arange(length)[rows if isinstance(rows, slice) else _whole(rows)]
    except (TypeError, IndexError):
        chosen = np.array([], np.int64)
    if not chosen.size:
        raise UsageError(
            f"columns={{{name!r}: ({source!r}, {rows!r})}}, but the rows of a column are an int, a slice or a list of "
            f"ints, and a window has the rows 0 to {length - 1} (-1 is the last). Give some of them."
        )
    return _Pick(source, np.asarray(chosen, np.int64))


def _whole(rows: Any) -> Any:
    """An index: an int, or an array of them."""
    if isinstance(rows, Sequence | np.ndarray) and not isinstance(rows, str):
        return np.array([_number(row) for row in rows], np.int64)
    return _number(rows)


def _number(row: Any) -> int:
    if isinstance(row, bool):  # of a mask, which would pass for the rows 0 and 1
        raise TypeError(row)
    return operator.index(row)
