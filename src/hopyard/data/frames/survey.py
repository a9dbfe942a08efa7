"""What one pass over a frame found: rows, nulls, lengths of lists, and sums by which the content is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.frames.hashing import Hashes, keyed
from hopyard.data.frames.reading import unequal_vectors
from hopyard.data.preparing.policies import Nulls
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.schema import Column
from hopyard.data.sources.columns import ColumnData, empty_data
from hopyard.data.sparse import pair_dtype
from hopyard.errors import DataError, HopyardError
from hopyard.objects.digests import digest_json

PARTS = 1024
"""Into how many parts rows are drawn; a validation set by share is some of them."""

_WORD = 1 << 64


@dataclass
class _Found:
    """Of one column: nulls, and of lists the shape of the elements and the lengths of rows that are not null."""

    missing: int = 0
    nbytes: int = 0
    element: tuple[int, ...] | None = None
    shortest: int | None = None
    longest: int | None = None

    def merge(self, other: _Found, name: str) -> None:
        self.missing += other.missing
        self.nbytes += other.nbytes
        if self.element is not None and other.element is not None and self.element != other.element:
            raise DataError(
                f"Column {name!r} has rows of shape {_shape(self)} and rows of shape {_shape(other)}: arrays may "
                "differ in their first dimension only. Give all rows one shape, or pad them."
            )
        self.element = other.element if self.element is None else self.element
        if other.shortest is not None and other.longest is not None:
            self.shortest = other.shortest if self.shortest is None else min(self.shortest, other.shortest)
            self.longest = other.longest if self.longest is None else max(self.longest, other.longest)


def _shape(found: _Found) -> list[int | None]:
    return [found.longest, *(found.element or ())]


class Survey:
    """Of some rows; ``merge`` those of others, in any order.

    Attributes:
        rows: how many.
        order_sum: sum of the rows' places, by which what was written is checked.
        parts: (PARTS,) rows of each part.
        unsplit: rows whose column for the split is null.
        error: what ended the pass.
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        self.rows = 0
        self.order_sum = 0
        self.parts = np.zeros(PARTS, np.int64)
        self.unsplit = 0
        self.error: HopyardError | None = None
        self._sums = [0, 0, 0]
        self._found = {column.name: _Found() for column in columns}

    def add(
        self,
        columns: Mapping[str, ColumnData],
        order: npt.NDArray[np.int64],
        parts: npt.NDArray[Any],
        hashes: tuple[Hashes, Hashes],
    ) -> None:
        """Rows with their places, parts and hashes."""
        self.rows += len(order)
        self.order_sum = (self.order_sum + _sum(order.view(np.uint64))) % _WORD
        self.parts += np.bincount(parts, minlength=PARTS)
        both = hashes[0] ^ hashes[1]
        for number, values in enumerate((*hashes, keyed(both, "both"))):
            self._sums[number] = (self._sums[number] + _sum(values)) % _WORD
        for name, data in columns.items():
            self._found[name].merge(_found(data), name)

    def merge(self, other: Survey) -> None:
        """Raises DataError where the rows cannot be of one dataset."""
        self.rows += other.rows
        self.order_sum = (self.order_sum + other.order_sum) % _WORD
        self.parts += other.parts
        self.unsplit += other.unsplit
        self.error = self.error or other.error
        self._sums = [(mine + its) % _WORD for mine, its in zip(self._sums, other._sums, strict=True)]
        for name, found in other._found.items():
            self._found[name].merge(found, name)

    def fingerprint(self, columns: Sequence[Column]) -> str:
        """Digest of the rows, in whatever order and partitions they came."""
        content = {
            "columns": [column.to_json() for column in columns],
            "rows": self.rows,
            "sums": self._sums,
        }
        return digest_json(content, "hopyard.frame")

    def checked(self, split: str | None) -> Survey:
        """Itself, if the rows can be split; ``split`` is the column that does."""
        if self.error is not None:
            raise self.error
        if not self.rows:
            raise empty_data()
        if self.unsplit:
            raise DataError(
                f"Column {split!r} splits the data but is null in {Nulls(self.unsplit)}. Say for every row "
                "whether it is for validation."
            )
        return self

    def missing(self) -> dict[str, int]:
        """Null rows of the columns that have some."""
        return {name: found.missing for name, found in self._found.items() if found.missing}

    def row_bytes(self, name: str) -> float:
        """The mean of a column as it is packed."""
        return self._found[name].nbytes / self.rows

    def sample(self, column: Column) -> ColumnData:
        """A few rows of zeros that are to policies what all rows are: lengths, shape and nulls."""
        found = self._found[column.name]
        missing = np.arange(3 if found.missing else 2) == 2
        rows = len(missing)
        if column.sparse:
            return self._sparse_sample(column, missing)
        if column.kind == "tensor":
            return ColumnData(column.name, "tensor", np.zeros(rows, column.dtype), missing)
        if column.kind != "ragged":
            nothing = Ragged(np.zeros(0, np.uint8), np.zeros(rows + 1, np.int64))
            return ColumnData(column.name, column.kind, nothing, missing)
        shortest, longest = found.shortest or 0, found.longest or 0
        element = found.element or ()
        if shortest == longest != 0:
            values = np.zeros((rows, longest, *element), column.dtype)
            return ColumnData(column.name, "tensor", values, missing)
        offsets = offsets_of(np.array([shortest, longest, 0][:rows]))
        elements = np.zeros((int(offsets[-1]), *element), column.dtype)
        return ColumnData(column.name, "ragged", Ragged(elements, offsets), missing)

    def _sparse_sample(self, column: Column, missing: npt.NDArray[np.bool_]) -> ColumnData:
        shortest, longest = self._found[column.name].shortest or 0, self._found[column.name].longest or 0
        if shortest != longest:
            raise unequal_vectors(column.name, shortest, longest)
        nothing = Ragged(np.empty(0, pair_dtype(column.dtype)), np.zeros(len(missing) + 1, np.int64))
        return ColumnData(column.name, "tensor", nothing, missing, longest)


def _found(data: ColumnData) -> _Found:
    missing = 0 if data.missing is None else int(data.missing.sum())
    if data.length is not None and isinstance(data.values, Ragged):
        present = data.length if missing < len(data) else None
        nbytes = data.values.values.nbytes + 8 * len(data)
        return _Found(missing, nbytes, (), present, present)
    found = _Found(missing, data.nbytes)
    if data.kind == "ragged" and isinstance(data.values, Ragged):
        lengths = data.values.lengths if data.missing is None else data.values.lengths[~data.missing]
        if len(data.values.values):
            found.element = data.values.values.shape[1:]
        if len(lengths):
            found.shortest, found.longest = int(lengths.min()), int(lengths.max())
    elif isinstance(data.values, np.ndarray) and data.values.ndim > 1 and missing < len(data):
        found.element = data.values.shape[2:]
        found.shortest = found.longest = data.values.shape[1]
    return found


def _sum(values: npt.NDArray[np.uint64]) -> int:
    return int(values.sum(dtype=np.uint64))
