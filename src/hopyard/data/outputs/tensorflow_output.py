"""Datasets as ``tf.data.Dataset``.

Every element is a batch, fetched by one call into Python whose arrays TensorFlow takes as they are:
they begin at multiples of 64 bytes, and it keeps them alive as long as a tensor needs them. Nothing
runs per row.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hopyard.data.loader import Loader
from hopyard.data.ragged import Ragged
from hopyard.data.reading.views import Batch
from hopyard.errors import UnsupportedTypeError, UsageError


class _Epochs:
    """Iterations of a loader by number. TensorFlow asks from threads of its own, maybe for several at once.

    Args:
        loader: with ``output="numpy"``.
        skip: batches that the first iteration leaves out.
    """

    def __init__(self, loader: Loader, skip: int) -> None:
        self._loader = loader
        self._skip = skip
        self._lock = threading.Lock()  # one thread at a time may use a loader
        self._numbers = itertools.count()
        self._running: dict[int, Iterator[Batch]] = {}

    def iteration(self) -> Iterator[tuple[int, int]]:
        """Begins one: its number and its batches. Closing this generator ends it."""
        with self._lock:
            number, count = next(self._numbers), len(self._loader)
            self._running[number] = iter(self._loader)
            if number == 0 and self._skip:
                self._loader.load_state_dict(self._loader.state_dict(batches=self._skip))
                self._running[number] = iter(self._loader)
                count -= self._skip
        try:
            yield number, count
        finally:
            del self._running[number]

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch."""
        with self._lock:
            self._loader.set_epoch(epoch)

    def fetch(self, number: np.int64) -> list[Any]:
        """The next batch of an iteration: the arrays of its columns."""
        with self._lock:
            return _arrays(next(self._running[int(number)]))


def _arrays(batch: Batch) -> list[Any]:
    """Values of every column, each ragged one's followed by its offsets."""
    arrays = []
    for values in batch.values():
        arrays += [values.values, values.offsets] if isinstance(values, Ragged) else [values]
    return arrays


def tf_dataset(loader: Loader, skip: int = 0) -> Any:
    """Batches as a ``tf.data.Dataset`` of dicts; each iteration over it is the loader's next epoch.

    Strings and bytes are ``tf.string``, ragged columns ``tf.RaggedTensor``; everything else keeps dtype and
    shape. The number of batches is known, unless some are left out.

    Args:
        loader: with ``output="numpy"``.
        skip: batches that the first iteration leaves out, because they were used before.

    Raises:
        UsageError: an epoch does not have as many batches as are to be left out.
        UnsupportedTypeError: TensorFlow has no such type.
    """
    count = len(loader)
    if not 0 <= skip < count:
        raise UsageError(
            f"skip={skip}, but an epoch has {count} batches. Give how many of them were used, 0 to {count - 1}; "
            "where all were, give the next epoch= and no skip=."
        )
    spec = _spec(loader)
    flat = [part for each in spec.values() for part in _flat_spec(each)]
    epochs = _Epochs(loader, skip)

    def fetch(number: Any) -> dict[str, Any]:
        arrays = iter(tf.numpy_function(epochs.fetch, [number], [part.dtype for part in flat]))
        return {name: _tensor(each, arrays) for name, each in spec.items()}

    def batches_of(number: Any, count: Any) -> Any:
        return tf.data.Dataset.range(count).map(lambda _: fetch(number))

    number = tf.TensorSpec((), tf.int64)
    batches = tf.data.Dataset.from_generator(epochs.iteration, output_signature=(number, number)).flat_map(
        batches_of
    )
    batches._epochs_of_hopyard = epochs
    return batches if skip else batches.apply(tf.data.experimental.assert_cardinality(count))


def set_epoch(dataset: Any, epoch: int) -> None:
    """The next iteration over a ``tf.data.Dataset`` is of this epoch, as far as it was made of :func:`tf_dataset`."""
    if hasattr(dataset, "_epochs_of_hopyard"):
        dataset._epochs_of_hopyard.set_epoch(epoch)
    for part in dataset._inputs():
        set_epoch(part, epoch)


def _spec(loader: Loader) -> dict[str, Any]:
    """TensorFlow's description of a batch with any number of rows.

    Read from the first rows, so that it is also right for the results of a transform.
    """
    first = np.arange(min(loader.batch_size, len(loader.dataset)))
    batch = loader.finished(loader.dataset.take(first, loader.wanted), 0, 0)
    if not isinstance(batch, dict):
        raise UsageError(
            f"transform= returned a {type(batch).__name__}, but elements of tf_dataset() are dicts. Return a dict of "
            "arrays, and make of it what you like with .map()."
        )
    return {name: _spec_of(name, values) for name, values in batch.items()}


def _spec_of(name: str, values: Any) -> Any:
    if isinstance(values, Ragged):
        return tf.RaggedTensorSpec(
            (None, None, *np.shape(values.values)[1:]), _dtype(name, values.values), 1, tf.int64
        )
    return tf.TensorSpec((None, *np.shape(values)[1:]), _dtype(name, values))


def _dtype(name: str, values: Any) -> Any:
    dtype = np.asarray(values).dtype
    try:
        return tf.string if dtype.hasobject else tf.as_dtype(dtype)
    except TypeError as error:
        raise UnsupportedTypeError(
            f"Column {name!r} is {dtype}, which TensorFlow has no type for. Leave it out with columns=, or change its "
            "type with transform=."
        ) from error


def _flat_spec(spec: Any) -> list[Any]:
    if isinstance(spec, tf.RaggedTensorSpec):
        return [tf.TensorSpec((None, *spec.shape[2:]), spec.dtype), tf.TensorSpec((None,), tf.int64)]
    return [spec]


def _tensor(spec: Any, arrays: Iterator[Any]) -> Any:
    values = next(arrays)
    if isinstance(spec, tf.RaggedTensorSpec):
        offsets = next(arrays)
        values.set_shape((None, *spec.shape[2:]))
        offsets.set_shape((None,))
        return tf.RaggedTensor.from_row_splits(values, offsets, validate=False)
    values.set_shape(spec.shape)
    return values
