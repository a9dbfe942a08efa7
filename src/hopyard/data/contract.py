"""The contract of everything that loaders read: rows of named columns in an order that is a pure function.

Rules that every implementation keeps:

* **Order.** What a stream gives is a function of (the dataset, seed, epoch, shuffle, reach) and of nothing
  else: not of the columns asked for, of ranks, batch sizes, threads, or of the cache.
* **Each row once.** Positions 0 to ``len(dataset) - 1`` of a stream are all rows of the dataset, each once
  (a mixture of datasets states its own rule). Positions behind the end are those of the start again.
* **Ownership.** What ``batch`` and ``take`` return belongs to the caller: writable, and never changed again.
* **Threads.** Threads may share a dataset. A stream belongs to one thread at a time; it may use helpers of
  its own, and ``close`` ends them.
* **Pickling.** A dataset pickles, and opens its files again where it arrives. A stream does not pickle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.columns.policies import Policies
from hopyard.data.order import Reach, Rows
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.views import Batch, Wanted
from hopyard.data.recipe.decoding import DecodingThreads
from hopyard.data.schema import Schema
from hopyard.errors import UsageError

_ROWS_AT_ONCE = 256


class EpochStream(ABC):
    """The rows of one epoch in their order."""

    @abstractmethod
    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Positions [first, last); behind the end comes the start. Any order of calls is right, rising is fast."""

    def begin(self, first: int, last: int, buffers: Buffers, threads: DecodingThreads) -> Callable[[], Batch]:
        """Begin ``batch``, whose rows may be decoded by ``threads`` meanwhile; what is returned waits and gives it."""
        batch = self.batch(first, last, buffers)
        return lambda: batch

    def views(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Rows as ``batch`` gives them; where they lie side by side, columns may be read-only views of mapped bytes."""
        return self.batch(first, last, buffers)

    def close(self) -> None:  # noqa: B027, most streams have nothing to end
        """End the work in the background. Closing twice is fine."""


class RowSource(ABC):
    """Rows of named columns. See the module's text for the rules."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns."""

    @property
    def row_schema(self) -> Schema:
        """The columns that can stand side by side if they are scalars: of windows, those of one of their rows."""
        return self.schema

    @property
    def policies(self) -> Policies:
        """Policies that nulls and ragged rows were treated by, for the same treatment of rows that come later."""
        return Policies(self.schema)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of the rows' content; datasets that differ in rows or columns differ in it."""

    @property
    @abstractmethod
    def split(self) -> str:
        """``"train"`` or ``"val"``."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def reach(self, window: int | None) -> Reach:
        """Reach of a permutation whose decoded rows stay within ``window`` bytes; None: all rows."""

    @abstractmethod
    def stream(self, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: Reach) -> EpochStream:
        """The rows of an epoch. ``reach`` is what :meth:`reach` returned, maybe elsewhere and long ago."""

    @abstractmethod
    def take(self, rows: Rows, wanted: Wanted) -> Batch:
        """The rows of these numbers (0 to ``len - 1``, int64), in this order."""

    @abstractmethod
    def check_not_written(self) -> None:
        """Look, after an epoch, whether files were written to in place since they were opened.

        Raises:
            CorruptError: one was, so that some of its rows may be old and some new; names it.
        """

    def decodes(self, wanted: Wanted) -> bool:
        """Whether rows are decoded for every batch of these columns, so that batches are worth making ahead."""
        return False

    def filled(self) -> dict[str, int | None]:
        """Columns with nulls that were replaced by zeros or empty texts when the rows were prepared or opened, and how
        many nulls there were; None where nobody counted them."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Description of the dataset for states of loaders: JSON values that tell datasets apart, in words too."""
        return {
            "fingerprint": self.fingerprint,
            "split": self.split,
            "rows": len(self),
            "columns": str(self.schema),
        }

    def __getitem__(self, key: int | slice | npt.ArrayLike) -> Batch:
        """Rows by number, a slice, an array of numbers or a bool mask, as a dict of columns.

        An int gives one row: arrays of the columns' shapes. Anything else gives a batch.

        Raises:
            IndexError: a row is out of range.
        """
        if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            batch = self._rows_at(np.array([key], np.int64))
            return {name: values[0] for name, values in batch.items()}
        if isinstance(key, slice):
            return self._rows_at(np.arange(*key.indices(len(self))))
        if isinstance(key, str):
            raise UsageError(
                f"dataset[{key!r}] was asked for, but a dataset is indexed by rows. Write dataset[:][{key!r}] for a "
                f"column of all rows, or dataset.loader(..., columns=[{key!r}])."
            )
        rows = np.asarray(key)
        if rows.dtype == bool and rows.shape == (len(self),):
            return self._rows_at(np.flatnonzero(rows))
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
            raise UsageError(
                f"Rows were asked for by an array of shape {rows.shape} and dtype {rows.dtype}. Give a 1-d array "
                f"of row numbers, or of {len(self)} bools."
            )
        if rows.dtype.kind == "u":  # numbers that int64 does not hold would count from the end
            rows = np.minimum(rows, np.iinfo(np.int64).max)
        return self._rows_at(rows.astype(np.int64))

    def __iter__(self) -> Iterator[Batch]:
        """The rows, one after another, as dicts. A loader is far faster: it gives batches."""
        for first in range(0, len(self), _ROWS_AT_ONCE):
            block = self[first : first + _ROWS_AT_ONCE]
            for row in range(min(_ROWS_AT_ONCE, len(self) - first)):
                yield {name: values[row] for name, values in block.items()}

    def _rows_at(self, rows: Rows) -> Batch:
        count = len(self)
        bad = rows[(rows < -count) | (rows >= count)]
        if len(bad):
            raise IndexError(f"row {bad[0]} of a dataset of {count} rows")
        return self.take(np.where(rows < 0, rows + count, rows), {name: name for name in self.schema.names})
