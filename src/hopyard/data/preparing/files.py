"""Dealing of rows to the files of a dataset, and the writing of one file."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from hopyard.data.columns.columns import ColumnData
from hopyard.data.columns.policies import Policies
from hopyard.data.manifest import FileEntry
from hopyard.data.order import Rows
from hopyard.data.preparing.packing import ORDER, PackedLayout, in_order, unpack
from hopyard.data.preparing.statistics import Statistics
from hopyard.data.preparing.survey import ORDER_BITS
from hopyard.data.preparing.write import SplitWriter
from hopyard.data.schema import Column
from hopyard.data.sources.content import WORD, sum_of
from hopyard.errors import HopyardError, StorageFullError, UsageError
from hopyard.storage.base import Store

T = TypeVar("T")

GROUPS = 24  # row groups are a multiple of it: it has many divisors, so many numbers of partitions are even
GROUP_BYTES = 32 << 20
FILE_BYTES = 96 << 20
"""Bytes of a file, at most and on average: a worker holds all rows of one in memory."""

HALF = ORDER_BITS // 2


def group_size(rows: int, row_bytes: float, most: int = GROUP_BYTES) -> int:
    """Rows of each row group but the last: a multiple of 24 groups if that is possible, at least 24 if
    there are as many rows, of at most ``most`` bytes."""
    if rows <= GROUPS:
        return 1
    groups = GROUPS * max(1, -int(-rows * row_bytes // (GROUPS * most)))
    size = -(-rows // groups)
    return size if -(-rows // size) == groups else max(1, rows // groups)


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split: rows are dealt to them by their place in the order.

    Attributes:
        count: of files; rows differ a little from one to the next.
        groups: row groups of each.
    """

    count: int
    groups: int

    @classmethod
    def of(cls, rows: int, row_bytes: float) -> SplitFiles:
        """The files for about so many rows; row groups are a multiple of 24 if that is possible."""
        if not rows:
            return cls(0, 0)
        wanted = math.ceil(rows * row_bytes / FILE_BYTES)
        count = next((d for d in (1, 2, 3, 4, 6, 8, 12) if d >= wanted), -(-wanted // GROUPS) * GROUPS)
        if count == 1:
            return cls(1, -(-rows // group_size(rows, row_bytes)))
        each = math.ceil(rows / count * row_bytes / GROUP_BYTES)
        return cls(count, max(each, -(-GROUPS // count)))


@dataclass(frozen=True)
class Writing:
    """Settings of the writing of a dataset, for every worker. Pickles.

    Attributes:
        shapes: of the columns over all rows; see :func:`unpack`.
        stores: of the training and the validation set.
        files: of both; numbers of files go through both.
        cut: rows with lower numbers for the split are for validation.
    """

    layout: PackedLayout
    shapes: Mapping[str, Column]
    policies: Policies
    stores: tuple[Store, Store]
    files: tuple[SplitFiles, SplitFiles]
    cut: int

    @property
    def count(self) -> int:
        """Number of all files."""
        return self.files[0].count + self.files[1].count

    def numbers(self, order: np.ndarray, part: np.ndarray) -> np.ndarray:
        """(n,) int64: the number of the file of each row; Spark computes the same in SQL."""
        place = order >> HALF
        train = (place * self.files[0].count) >> HALF
        val = self.files[0].count + ((place * self.files[1].count) >> HALF)
        return np.where(part < self.cut, val, train)

    def is_val(self, number: int) -> bool:
        """Whether the file of this number is one of the validation set."""
        return number >= self.files[0].count

    def numbers_of(self, split: int) -> range:
        """The numbers of the files of the training (0) or the validation set (1)."""
        return range(self.files[0].count, self.count) if split else range(self.files[0].count)

    def orders(self, number: int) -> tuple[int, int]:
        """Bounds of a file: its rows are those of the split whose order is at least the first and below the second."""
        split = self.is_val(number)
        place, count = number - self.files[0].count * split, self.files[split].count
        first, last = (-(-(at << HALF) // count) << HALF for at in (place, place + 1))
        return first, last

    def write(self, number: int, rows: pa.Table) -> Written:
        """Write one file of all its packed rows, which come in any order."""
        writer = SplitWriter(self.policies, self.stores[self.is_val(number)])
        columns = unpack(self.layout, self.shapes, rows)
        return self.write_with(writer, number, columns, in_order(self.layout, rows), rows[ORDER].to_numpy())

    def write_with(
        self,
        writer: SplitWriter,
        number: int,
        columns: Mapping[str, ColumnData],
        rows: Rows,
        order: np.ndarray,
        watch: Callable[[int], None] | None = None,
    ) -> Written:
        """Write one file.

        Args:
            columns: in which its rows are.
            rows: positions of its rows there, as they are stored.
            order: their places, in any order.
            watch: called with the rows of the file that are written, after each row group.
        """
        split = int(self.is_val(number))
        entry, statistics = writer.write(columns, rows, self.files[split].groups, watch)
        return Written(number, split, entry, statistics, sum_of(order.view(np.uint64)))


@dataclass(frozen=True)
class Written:
    """A worker's report on the file that it wrote."""

    number: int
    split: int
    entry: FileEntry
    statistics: Statistics
    order_sum: int


def told(write: Callable[[], T | None]) -> bytes:
    """A worker's pickled answer to the driver: the report on what it wrote, or the error that there is no space or that
    the data breaks a rule. That is no failure of the engine's task, which would be repeated at once, and told in words
    of the engine's own."""
    try:
        return pickle.dumps(write())
    except (StorageFullError, UsageError) as error:
        return pickle.dumps(error)


def heard(answers: Iterable[bytes]) -> list[Any]:
    """Reports from workers' pickled answers.

    Raises:
        StorageFullError: one of them found no space.
        DataError: one of them found rows that break a rule.
    """
    found = [pickle.loads(answer) for answer in answers]
    for each in found:
        if isinstance(each, HopyardError):
            raise each
    return [each for each in found if each is not None]


def rows_and_sum(written: Iterable[Written]) -> tuple[int, int]:
    """Number of rows of all files, and the sum of the rows' places."""
    rows = order_sum = 0
    for each in written:
        rows += each.entry.rows
        order_sum = (order_sum + each.order_sum) % WORD
    return rows, order_sum


def of_split(written: Sequence[Written], split: int) -> list[Written]:
    """The files of the training (0) or the validation set (1), in the order of their rows."""
    return sorted((each for each in written if each.split == split), key=lambda each: each.number)
