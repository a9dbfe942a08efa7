"""Datasets as users have them: row sources with loaders for every framework."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from hopyard.data.arguments import ColumnSelection, Output, Remainder, Strings, Tail, Transform
from hopyard.data.cache.node import NodeCache
from hopyard.data.contract import RowSource
from hopyard.data.loader import Batches, Loader
from hopyard.data.order import WINDOW_BYTES, Reach, Rows
from hopyard.data.reading.reader import Reader
from hopyard.errors import UsageError
from hopyard.missing import missing_extra


class BaseDataset(RowSource):
    """Rows of named columns, which loaders give in batches. See ``hopyard.data.contract`` for the rules."""

    def loader(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        columns: ColumnSelection | None = None,
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
        loader = self.batches(
            batch_size, shuffle, seed, rank, world_size, columns, remainder, output,
            window=window, transform=transform, tail=tail, epoch=epoch, views=views, strings=strings,
            drop_last=drop_last,
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
        columns: ColumnSelection | None = None,
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
        loader = self._numpy_batches(
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
                ``shuffle=False``: batches that are shuffled here need not be again.
            workers, max_queue_size: threads that fetch batches ahead, and how many batches.

        Its batches raise UnsupportedTypeError for lists of several lengths, which ``ragged="pad"`` or ``transform``
        makes arrays of.

        Raises:
            UsageError: an argument is impossible.
        """
        try:
            from hopyard.data.outputs.keras_output import KerasDataset, columns_of
        except ModuleNotFoundError as error:
            raise missing_extra("keras", "tensorflow", "keras_dataset()") from error
        columns = columns_of(inputs, labels, weights)
        loader = self._numpy_batches(batch_size, shuffle, seed, columns=columns, epoch=epoch, **options)
        return KerasDataset(loader, inputs, labels, weights, workers, max_queue_size)

    def batches(
        self, *arguments: Any, drop_last: bool = False, tail: Tail = "short", **options: Any
    ) -> Loader:
        """A plain :class:`Loader` for every output, never a ``DataLoader`` of PyTorch; takes the same arguments."""
        return Loader(self, *arguments, tail="drop" if drop_last else tail, **options)

    def _numpy_batches(self, *arguments: Any, **options: Any) -> Loader:
        for name in options.keys() & {"output", "views"}:
            raise UsageError(f"{name}= was given, but belongs to loader(). Leave it out.")
        return self.batches(*arguments, **options)


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
        """The node cache for data that is decoded or computed from the rows; None: it is not kept."""
        return NodeCache()

    def content(self) -> str:
        """Digest that differs if the rows are others, on this machine and now: part of the keys in that cache."""
        return self.fingerprint


class RowGroups(Partitioned):
    """A dataset of row groups of Parquet files, whose rows have neighbours that windows can be cut from.

    Attributes:
        prepared: whether ``prepare`` wrote the files, so that their rows are shuffled.
        group_rows: the rows of each row group.
    """

    prepared: bool
    group_rows: tuple[int, ...]

    @abstractmethod
    def reader(self) -> Reader:
        """The dataset's files, opened at the first call in a process."""

    @abstractmethod
    def part(self, chosen: Sequence[int]) -> RowGroups:
        """The dataset of these row groups (0 to ``num_row_groups - 1``)."""
