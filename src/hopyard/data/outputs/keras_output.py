"""Datasets as Keras ``PyDataset``s."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import keras

from hopyard.data.contract import EpochStream
from hopyard.data.loader import BatchSpan, Loader
from hopyard.data.ragged import Ragged
from hopyard.errors import UnsupportedTypeError, UsageError

ColumnNames: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""A column; several, as a dict by name; or, as ``loader(columns=)`` takes them, some of them side by side."""


def columns_of(*groups: ColumnNames | None) -> dict[str, str | tuple[str, ...]]:
    """Columns that a loader must give for all of these groups, by the names that Keras sees."""
    columns: dict[str, str | tuple[str, ...]] = {}
    for group in groups:
        for name, its in _named(group).items():
            if columns.setdefault(name, its) != its:
                raise UsageError(
                    f"{name!r} names two different things: {columns[name]!r} and {its!r}. Give each of inputs=, "
                    "labels= and weights= names of its own."
                )
    return columns


def _named(group: ColumnNames | None) -> dict[str, str | tuple[str, ...]]:
    if group is None:
        return {}
    if isinstance(group, str):
        return {group: group}
    if isinstance(group, Mapping):
        return {name: its if isinstance(its, str) else tuple(its) for name, its in group.items()}
    return {name: name for name in group}


class KerasDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches ``(x, y)`` or ``(x, y, sample_weight)`` by number; made by ``dataset.keras_dataset(...)``.

    ``on_epoch_end``, which Keras calls, goes on to the next epoch's order, if the last batch was asked for: Keras
    calls it too after it looked at one batch to build a model. Where workers fetch batches ahead of Keras, that
    cannot be told apart, and it always goes on. Any thread may ask for any batch.

    Args:
        loader: with ``output="numpy"`` and the columns that :func:`columns_of` names.
        inputs, labels, weights: columns of x, y and sample_weight.
        workers, max_queue_size: threads that fetch batches ahead, and how many, as in Keras. Threads only:
            processes would have to send what a thread hands over as it is.
    """

    def __init__(
        self,
        loader: Loader,
        inputs: ColumnNames,
        labels: ColumnNames | None = None,
        weights: str | None = None,
        workers: int = 1,
        max_queue_size: int = 10,
    ) -> None:
        super().__init__(workers=workers, use_multiprocessing=False, max_queue_size=max_queue_size)
        self.loader: Loader = loader
        self._groups = [group for group in (inputs, labels, weights) if group is not None]
        self._lock = threading.Lock()
        self._stream: EpochStream | None = None
        self._begin()

    def _begin(self) -> None:
        if self._stream is not None:
            self._stream.close()
        epoch, steps = self.loader.steps()
        self._epoch, self._steps = epoch, tuple(steps)
        self._ended = False
        self._stream = self.loader.stream(epoch)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.loader)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Batch ``index`` of the epoch.

        Raises:
            UnsupportedTypeError: a column holds lists of several lengths.
        """
        with self._lock:  # a stream belongs to one thread at a time
            batch = self._read(self._steps[index])
            self._ended |= index in (-1, len(self._steps) - 1)
        return self.arguments(batch)

    def arguments(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        """``(x, y)`` and so on of a batch of the loader.

        Raises:
            UnsupportedTypeError: a column holds lists of several lengths.
        """
        if lists := [name for name, values in batch.items() if isinstance(values, Ragged)]:
            raise UnsupportedTypeError(
                f"Column {lists[0]!r} holds lists of several lengths, but Keras takes arrays: prepare or open the data "
                f"with ragged='pad' (zeros up to the longest, and a column {lists[0]}_length), or pad the lists in "
                "transform=."
            )
        if keras.backend.backend() == "jax":
            from hopyard.data.outputs.jax_output import check_narrow

            for name, values in batch.items():
                check_narrow(name, values)
        return tuple(
            batch[group] if isinstance(group, str) else {name: batch[name] for name in _named(group)}
            for group in self._groups
        )

    def _read(self, step: BatchSpan) -> Any:
        assert self._stream is not None
        first, last = step
        return self.loader.finished(self._stream.batch(first, last, self.loader.buffers), self._epoch, first)

    def on_epoch_end(self) -> None:
        """Go on to the next epoch, if this one was read to its end or workers read ahead."""
        with self._lock:
            if self._ended or self.workers > 1:
                self._begin()
