"""The contract of everything that loaders read: rows of named columns in an order that is a pure function.

Rules that every implementation keeps:

* **Order.** What a stream gives is a function of (the dataset, seed, epoch, shuffle, reach) and of nothing
  else: not of the columns asked for, of ranks, batch sizes, threads, or of what is cached.
* **Each row once.** Positions 0 to ``len(dataset) - 1`` of a stream are all rows of the dataset, each once
  (a mixture of datasets states its own rule). Positions behind the end are those of the start again.
* **Ownership.** What ``batch`` and ``take`` return belongs to the caller: writable, and never changed again.
* **Threads.** Threads may share a dataset. A stream belongs to one thread at a time; it may use helpers of
  its own, and ``close`` ends them.
* **Pickling.** A dataset pickles, and opens its files again where it arrives. A stream does not pickle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.arguments import Columns, Output, Remainder, Strings, Tail, Transform
from hopyard.data.cache.node import NodeCache
from hopyard.data.loader import Batches, Loader
from hopyard.data.order import WINDOW_BYTES, Reach, Rows
from hopyard.data.preparing.policies import Policies
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.views import Batch, Wanted
from hopyard.data.schema import Schema
from hopyard.errors import UsageError, missing_extra

_ROWS_AT_ONCE = 256


class Stream(ABC):
    """The rows of one epoch in their order."""

    @abstractmethod
    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Positions [first, last); behind the end comes the start. Any order of calls is right, rising is fast."""

    def views(self, first: int, last: int, buffers: Buffers) -> Batch:
        """As ``batch``, but columns may be read-only views of what is mapped, where the rows lie side by side."""
        return self.batch(first, last, buffers)

    def close(self) -> None:  # noqa: B027, most streams have nothing to end
        """End what runs in the background. Closing twice is fine."""


class BaseDataset(ABC):
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
        """What became of nulls and ragged rows, so that rows that come later get the same."""
        return Policies(self.schema)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of what the rows are; datasets that differ in rows or columns differ in it."""

    @property
    @abstractmethod
    def split(self) -> str:
        """``"train"`` or ``"val"``."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def reach(self, window: int | None) -> Reach:
        """How far a permutation reaches if its rows, decoded, shall stay within ``window`` bytes; None: to all rows."""

    @abstractmethod
    def stream(self, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: Reach) -> Stream:
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

    def describe(self) -> dict[str, Any]:
        """What a loader's state records of its dataset: JSON values that tell datasets apart, in words too."""
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
        if rows.dtype.kind == "u":  # those that int64 does not hold would count from the end
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

    def loader(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        columns: Columns | None = None,
        remainder: Remainder = "drop",
        output: Output = "numpy",
        *,
        window: int | None = WINDOW_BYTES,
        transform: Transform | None = None,
        tail: Tail = "short",
        epoch: int = 0,
        views: bool = False,
        strings: Strings = "objects",
        drop_last: bool = False,
        **torch_options: Any,
    ) -> Batches:
        """Iterates over batches; see :class:`hopyard.data.loader.Loader`.

        With ``output="torch"`` it is a ``torch.utils.data.DataLoader`` too, with the options of
        :func:`hopyard.data.outputs.torch_loader.torch_loader`. ``drop_last=True`` is ``tail="drop"``.

        Raises:
            UsageError: an argument is impossible, or an option belongs to another output.
        """
        loader = Loader(
            self, batch_size, shuffle, seed, rank, world_size, columns, remainder, output,
            window=window, transform=transform, tail="drop" if drop_last else tail, epoch=epoch, views=views,
            strings=strings,
        )  # fmt: skip
        if output == "torch":
            from hopyard.data.outputs.torch_loader import torch_loader

            return torch_loader(loader, **torch_options)
        if torch_options:
            raise UsageError(
                f"{', '.join(torch_options)} was given to loader(output={output!r}), which has no such argument. "
                "Arguments of PyTorch's DataLoader belong to output='torch'."
            )
        return loader

    def tf_dataset(
        self,
        batch_size: int = 1024,
        shuffle: bool = False,
        seed: int = 0,
        columns: Columns | None = None,
        *,
        transform: Transform | None = None,
        epoch: int = 0,
        skip: int = 0,
        **options: Any,
    ) -> Any:
        """A ``tf.data.Dataset`` of batches, dicts of tensors; each iteration over it is the next epoch.

        Args:
            batch_size, shuffle, seed, columns, transform: as of :meth:`loader`; so are ``options``.
            epoch: of the first iteration.
            skip: batches of it that were used before: ``epoch`` and ``skip`` go on where training stopped.

        Raises:
            UsageError: an argument is impossible.
            UnsupportedTypeError: TensorFlow has no type for a column.
        """
        loader = self._plain_loader(
            batch_size, shuffle, seed, columns=columns, transform=transform, epoch=epoch, **options
        )
        try:
            from hopyard.data.outputs.tensorflow_output import tf_dataset
        except ModuleNotFoundError as error:
            raise missing_extra("tensorflow", "tensorflow", "tf_dataset()") from error
        return tf_dataset(loader, skip)

    def keras_dataset(
        self,
        inputs: Any,
        labels: Any = None,
        weights: str | None = None,
        batch_size: int = 32,
        shuffle: bool = False,
        seed: int = 0,
        *,
        epoch: int = 0,
        workers: int = 1,
        max_queue_size: int = 10,
        **options: Any,
    ) -> Any:
        """A Keras ``PyDataset`` of batches ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, for ``fit`` and the like.

        Args:
            inputs, labels: a column; several, as a dict of arrays by name; or a dict from names to columns, or to
                scalar columns of one dtype, which become one array.
            weights: a column of sample weights.
            batch_size, shuffle, seed, epoch: as of :meth:`loader`; so are ``options``. Give ``fit`` its
                ``shuffle=False``: what is shuffled here need not be again.
            workers, max_queue_size: threads that fetch batches ahead, and how many batches.

        Raises:
            UsageError: an argument is impossible.
        """
        try:
            from hopyard.data.outputs.keras_output import KerasDataset, columns_of
        except ModuleNotFoundError as error:
            raise missing_extra("keras", "tensorflow", "keras_dataset()") from error
        columns = columns_of(inputs, labels, weights)
        loader = self._plain_loader(batch_size, shuffle, seed, columns=columns, epoch=epoch, **options)
        return KerasDataset(loader, inputs, labels, weights, workers, max_queue_size)

    def _plain_loader(
        self, *arguments: Any, drop_last: bool = False, tail: Tail = "short", **options: Any
    ) -> Loader:
        for name in options.keys() & {"output", "views"}:
            raise UsageError(f"{name}= was given, but belongs to loader(). Leave it out.")
        return Loader(self, *arguments, tail="drop" if drop_last else tail, **options)


class Partitioned(BaseDataset):
    """A dataset of parts that models can visit one by one."""

    @property
    @abstractmethod
    def num_row_groups(self) -> int:
        """The most partitions there can be."""

    @abstractmethod
    def partitions(self, p: int) -> Sequence[Partitioned]:
        """``p`` disjoint datasets of nearly equal rows that make up this one; a function of it and ``p`` only.

        Raises:
            UsageError: more than ``num_row_groups``, or ``p`` below 1.
        """

    @abstractmethod
    def order(self, seed: int, epoch: int, shuffle: bool, reach: Reach) -> Rows:
        """(len,) int64: the numbers, as ``take`` counts them, of the rows of :meth:`stream`, in their order."""

    def node_cache(self) -> NodeCache | None:
        """Where what is made of the rows may be kept on this machine; None: nowhere."""
        return NodeCache()

    def content(self) -> str:
        """Digest that differs if the rows are others, on this machine and now: part of the keys in that cache."""
        return self.fingerprint
