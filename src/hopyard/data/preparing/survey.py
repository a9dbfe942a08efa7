"""Survey of rows in one pass: their content, their places in the dataset, and their numbers for the split."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hopyard.data.columns.columns import ColumnData, ConvertedColumns, empty_data
from hopyard.data.columns.policies import Nulls
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.sources.content import WORD, ColumnFindings, RowFindings, sum_of
from hopyard.data.sources.frame_batches import unequal_vectors
from hopyard.data.sources.hashing import Hashes, keyed
from hopyard.data.sparse import pair_dtype
from hopyard.errors import DataError, HopyardError

ORDER_BITS = 62
SPLIT_BITS = 31

_STEPS = 1024
_STEP_BITS = SPLIT_BITS - 10
_DEVIATIONS = 6


def places(hashes: Hashes, seed: int) -> npt.NDArray[np.int64]:
    """(n,) the places of rows in the order of the dataset, by their hashes: 0 to 2 ** ``ORDER_BITS`` - 1."""
    shift = np.uint64(64 - ORDER_BITS)
    return (keyed(hashes, seed, "order") >> shift).view(np.int64)


def split_numbers(hashes: Hashes, seed: int) -> npt.NDArray[np.int32]:
    """Numbers by which rows are split by share, (n,), 0 to 2 ** ``SPLIT_BITS`` - 1: rows for validation have the
    lowest."""
    return (keyed(hashes, seed, "split") >> np.uint64(64 - SPLIT_BITS)).astype(np.int32)


class SplitCounts:
    """Counts of rows by their numbers for the split. All rows of one number are on one side of it.

    Numbers drawn for a share are as good as evenly spread where rows differ, so the one where the share ends is
    known to be near; there every number is kept. Elsewhere rows are counted in 1024 steps, for data in which many
    rows are equal.

    Args:
        share: of the rows, for validation; None: numbers are 0 for validation and 1 for training.
    """

    def __init__(self, share: float | None) -> None:
        self._share = share
        self._counts = np.zeros(_STEPS if share is not None else 2, np.int64)
        self._near = np.empty(0, np.int32)

    def add(self, numbers: npt.NDArray[np.int32]) -> None:
        steps = numbers if self._share is None else numbers >> np.int32(_STEP_BITS)
        self._counts += np.bincount(steps, minlength=len(self._counts))
        self._keep(numbers)

    def merge(self, other: SplitCounts) -> None:
        self._counts += other._counts
        self._keep(other._near)

    def _keep(self, numbers: npt.NDArray[np.int32]) -> None:
        """Keep the numbers near the share. The more rows there are, the nearer is near: numbers that are needed of all
        rows were kept of any of them."""
        if self._share is not None:
            first, last = (step << _STEP_BITS for step in self._near_steps(self._share))
            near = np.concatenate([self._near, numbers])
            self._near = near[(near >= first) & (near < last)]

    def _near_steps(self, share: float) -> tuple[int, int]:
        reach = _DEVIATIONS * math.sqrt(share * (1 - share) / max(int(self._counts.sum()), 1))
        return max(math.floor((share - reach) * _STEPS), 0), min(math.ceil((share + reach) * _STEPS), _STEPS)

    def cut(self, explicit: bool) -> tuple[int, int]:
        """The number below which rows are for validation, and the count of these rows.

        Args:
            explicit: where there is no share, whether rows of number 0 are for validation; else none is.
        """
        if self._share is None:
            return int(explicit), int(self._counts[0]) if explicit else 0
        rows = int(self._counts.sum())
        wanted = round(rows * self._share)
        before = np.concatenate([[0], np.cumsum(self._counts)])
        near = np.sort(self._near)
        kept = np.unique(near)
        counts = np.searchsorted(near, kept) + before[self._near_steps(self._share)[0]]
        bounds = np.concatenate([np.arange(_STEPS + 1) << _STEP_BITS, kept.astype(np.int64)])
        below = np.concatenate([before, counts])
        inside = (below > 0) & (below < rows)
        if 0 < wanted < rows and inside.any():
            bounds, below = bounds[inside], below[inside]
        best = np.lexsort([bounds, np.abs(below - wanted)])[0]
        return int(bounds[best]), int(below[best])


class Survey:
    """Survey of some rows; ``merge`` those of others, in any order.

    Attributes:
        content: of the rows.
        split: counts of the rows for the split.
        order_sum: sum of the rows' places, by which the written files are checked.
        error: that ended the pass.
    """

    def __init__(self, share: float | None = None) -> None:
        self.content: RowFindings = RowFindings()
        self.split: SplitCounts = SplitCounts(share)
        self.order_sum: int = 0
        self.error: HopyardError | None = None

    def place(self, order: npt.NDArray[np.int64], numbers: npt.NDArray[np.int32]) -> None:
        """Add places of rows, and their numbers for the split."""
        self.order_sum = (self.order_sum + sum_of(order.view(np.uint64))) % WORD
        self.split.add(numbers)

    def merge(self, other: Survey) -> None:
        """Add the survey of other rows. Raises DataError where they cannot be of one dataset."""
        self.error = self.error or other.error
        self.content.merge(other.content)
        self.split.merge(other.split)
        self.order_sum = (self.order_sum + other.order_sum) % WORD

    def checked(self, split: str | None) -> Survey:
        """The survey itself, if the rows can be split; ``split`` is the column that does."""
        if self.error is not None:
            raise self.error
        if not self.content.rows:
            raise empty_data()
        if split is not None and (nulls := self.content.found[split]).missing:
            raise DataError(
                f"Column {split!r} splits the data but is null in {Nulls(nulls.missing, nulls.first)}. Say for every "
                "row whether it is for validation."
            )
        return self

    def row_bytes(self, name: str) -> float:
        """The mean of a column whose rows differ in size."""
        return self.content.found[name].nbytes / self.content.rows + 8

    def samples(self, names: list[str]) -> ConvertedColumns:
        """A few rows of zeros that stand for all rows to policies: same lengths, shape and nulls."""
        return {name: _sample(self.content.found[name]) for name in names}


def _sample(found: ColumnFindings) -> ColumnData:
    column, missing = found.column, np.arange(3 if found.missing else 2) == 2
    rows = len(missing)
    if column.sparse:
        return _sparse_sample(found, missing)
    if column.kind == "tensor":
        return ColumnData(
            column.name, "tensor", np.zeros(rows, column.dtype), missing, times=bool(found.times)
        )
    if column.kind != "ragged":
        nothing = Ragged(np.zeros(0, np.uint8), np.zeros(rows + 1, np.int64))
        return ColumnData(column.name, column.kind, nothing, missing)
    if found.longest is None and found.declared is not None:
        return ColumnData(column.name, "tensor", np.zeros((rows, *found.declared), column.dtype), missing)
    shortest, longest = found.shortest or 0, found.longest or 0
    element = found.element or ()
    are_arrays = longest or found.element is not None  # else they are lists, and all of them empty
    if shortest == longest and are_arrays:
        values = np.zeros((rows, longest, *element), column.dtype)
        return ColumnData(column.name, "tensor", values, missing)
    offsets = offsets_of(np.array([shortest, longest, 0][:rows]))
    elements = np.zeros((int(offsets[-1]), *element), column.dtype)
    return ColumnData(column.name, "ragged", Ragged(elements, offsets), missing)


def _sparse_sample(found: ColumnFindings, missing: npt.NDArray[np.bool_]) -> ColumnData:
    shortest, longest = found.shortest or 0, found.longest or 0
    if shortest != longest:
        raise unequal_vectors(found.column.name, shortest, longest)
    nothing = Ragged(np.empty(0, pair_dtype(found.column.dtype)), np.zeros(len(missing) + 1, np.int64))
    return ColumnData(found.column.name, "tensor", nothing, missing, longest)
