"""Content of rows that were seen once, in any batches and order: their number, nulls, lengths of lists, and sums of
hashes by which the same rows are known again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.data.columns.columns import ColumnData
from hopyard.data.order import mix
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column
from hopyard.data.sources.hashing import Hashes, row_sums
from hopyard.errors import DataError
from hopyard.objects.digests import digest_json

WORD = 1 << 64
_FIRST = 3
"""Null rows whose numbers are noted."""


@dataclass
class ColumnFindings:
    """Findings about one column.

    Attributes:
        column: name, kind and dtype; all lists, of one length or not, or sparse, are ``"ragged"``.
        missing: number of null rows.
        first: numbers of the first null rows, if rows have numbers.
        nbytes: of lists, texts and bytes.
        element: shape of the elements of lists; None while there is none.
        shortest, longest: lengths of lists that are not null.
        declared: the shape of arrays that are all null, as their type says it; None: it does not, or differently.
        times: whether the numbers were dates, times or durations; None while all are null and nothing tells.
    """

    column: Column
    missing: int = 0
    first: tuple[int, ...] = ()
    nbytes: int = 0
    element: tuple[int, ...] | None = None
    shortest: int | None = None
    longest: int | None = None
    declared: tuple[int, ...] | None = None
    times: bool | None = None

    def merge(self, other: ColumnFindings) -> None:
        """Add rows that come later."""
        self.missing += other.missing
        self.first = (*self.first, *other.first)[:_FIRST]
        self.nbytes += other.nbytes
        if self.times is None:
            self.times = other.times
        elif other.times not in (None, self.times) and self.column == other.column:
            raise DataError(
                f"Column {self.column.name!r} holds dates, times or durations in some rows and numbers in others, "
                "whose unit nobody knows. Give all as one kind; pandas.to_datetime(column, unit='s') makes times of "
                "seconds."
            )
        if self.element is not None and other.element is not None and self.element != other.element:
            raise DataError(
                f"Column {self.column.name!r} has rows of shape {self._shape()} and rows of shape {other._shape()}: "
                "arrays may differ in their first dimension only. Give all rows one shape, or pad them."
            )
        self.element = other.element if self.element is None else self.element
        if self.declared is None or other.declared not in (None, self.declared):
            self.declared = other.declared if self.declared is None else None
        if other.shortest is not None and other.longest is not None:
            self.shortest = other.shortest if self.shortest is None else min(self.shortest, other.shortest)
            self.longest = other.longest if self.longest is None else max(self.longest, other.longest)

    def _shape(self) -> list[int | None]:
        return [self.longest, *(self.element or ())]

    def to_json(self) -> list[Any]:
        """Properties that tell the column from others of the same bytes, as JSON values."""
        column = self.column
        element = None if self.element is None else list(self.element)
        return [column.name, column.kind, column.dtype, element, bool(self.times)]


class RowFindings:
    """Findings about the content of some rows; ``merge`` those of others.

    Attributes:
        rows: number of rows.
        found: findings about each column, in the columns' order.
    """

    def __init__(self) -> None:
        self.rows: int = 0
        self.found: dict[str, ColumnFindings] = {}
        self._sums = [0, 0]

    def add(self, columns: Mapping[str, ColumnData], numbered: bool = False) -> Hashes:
        """Add the rows that come next. Returns the first hash of each, before ``mix``.

        Args:
            numbered: whether somebody can find rows by their numbers.
        """
        sums = row_sums(columns)
        self._merge_found(_found(data, self.rows if numbered else None) for data in columns.values())
        self.rows += sums.shape[1]
        first: Hashes = sums[0].copy()
        self._add_sums([sum_of(mix(each)) for each in sums])
        return first

    def merge(self, other: RowFindings) -> None:
        """Add the content of other rows. Raises DataError where they cannot be of one dataset."""
        self._merge_found(other.found.values())
        self.rows += other.rows
        self._add_sums(other._sums)

    def _merge_found(self, found: Iterable[ColumnFindings]) -> None:
        for each in found:
            self.found.setdefault(each.column.name, ColumnFindings(each.column)).merge(each)

    def with_types(self, columns: Mapping[str, Column]) -> RowFindings:
        """The same content, where columns without a value are as ``columns`` has them."""
        other = RowFindings()
        other.merge(self)
        for name, found in other.found.items():
            found.column = canonical(columns[name])
        return other

    def _add_sums(self, sums: list[int]) -> None:
        self._sums = [(mine + its) % WORD for mine, its in zip(self._sums, sums, strict=True)]

    def fingerprint(self) -> str:
        """Digest of the rows, the same for any order."""
        columns = [found.to_json() for found in self.found.values()]
        return digest_json({"columns": columns, "rows": self.rows, "sums": self._sums}, "hopyard.rows")


def canonical(column: Column) -> Column:
    """A column by its type alone: lists of one length are lists, and elements of any shape."""
    if column.kind == "tensor" and column.shape and not column.sparse:
        return Column(column.name, "ragged", column.dtype)
    return Column(column.name, column.kind, column.dtype) if column.kind == "ragged" else column


def sum_of(hashes: Hashes) -> int:
    """Modulo 2 ** 64."""
    return int(hashes.sum(dtype=np.uint64))


def _found(data: ColumnData, number: int | None) -> ColumnFindings:
    rows, missing = len(data), 0 if data.missing is None else int(data.missing.sum())
    found = ColumnFindings(
        canonical(data.column), missing, times=data.times if data.times or missing < rows else None
    )
    if data.missing is not None and number is not None:
        found.first = tuple((np.flatnonzero(data.missing)[:_FIRST] + number).tolist())
    values = data.values
    if data.length is not None and isinstance(values, Ragged):
        found.column = Column(data.name, "ragged", data.column.dtype, (), True)
        found.nbytes = values.values.nbytes
        if missing < rows:
            found.element, found.shortest, found.longest = (), data.length, data.length
    elif isinstance(values, Ragged):
        found.nbytes = values.values.nbytes
        lengths = values.lengths if data.missing is None else values.lengths[~data.missing]
        if data.kind == "ragged" and len(lengths):
            found.shortest, found.longest = int(lengths.min()), int(lengths.max())
            if len(values.values):
                found.element = values.values.shape[1:]
    elif values.ndim > 1:
        found.nbytes = (rows - missing) * (values.nbytes // rows)
        if missing < rows:
            found.element, found.shortest, found.longest = values.shape[2:], values.shape[1], values.shape[1]
        else:
            found.declared = values.shape[1:]
    return found
