"""Data loaders of a KerasTrial: what Keras takes, read in stretches that continue each other.

A ``PyDataset`` is read by number, so that going on costs no batch before the place. A ``tf.data.Dataset`` is built anew
for every pass: it draws random numbers in TensorFlow, where they could not be put back.
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import keras
import numpy as np

from hopyard.data.loader import Loader
from hopyard.data.outputs.keras_output import KerasDataset
from hopyard.errors import EstimatorError
from hopyard.experiment.lengths import Visits
from hopyard.experiment.own_loader import (
    Generators,
    OwnLoader,
    batch_size_of,
    loader_of,
    number_of_batches,
    one_pass,
    rows_of,
)
from hopyard.objects import derive_seed
from hopyard.training.keras.session import graphs_seeded

_EXAMPLE = "a keras.utils.PyDataset, a tf.data.Dataset, or context.dataset('train').keras_dataset(...)"


class Built:
    """The data loader that a method of a trial builds, and builds again, each time with the same random numbers."""

    def __init__(self, trial: Any, method: str, seed: int) -> None:
        self._trial, self._method, self._seed = trial, method, seed

    @functools.cached_property
    def loader(self) -> Any:
        """The loader, built when it is first asked for.

        Raises:
            EstimatorError: it is no loader.
        """
        return self.again()

    def again(self) -> Any:
        """The loader, built anew."""
        with Generators(self._seed).entered():
            loader = loader_of(self._trial, self._method, _EXAMPLE)
        where = f"{type(self._trial).__name__}.{self._method}() returned"
        if isinstance(loader, tuple) and all(hasattr(part, "dtype") for part in loader):
            raise EstimatorError(
                f"{where} a tuple of arrays, but must return batches. Write "
                "tf.data.Dataset.from_tensor_slices((x, y)).batch(32), or a keras.utils.PyDataset whose __getitem__ "
                "gives the batch of a number."
            )
        return loader

    def check_ends(self) -> None:
        """Raise EstimatorError if a pass over it has no end."""
        loader = self.loader
        if is_tf_dataset(loader):
            endless = int(loader.cardinality()) == sys.modules["tensorflow"].data.INFINITE_CARDINALITY
        else:
            endless = isinstance(loader, keras.utils.PyDataset) and number_of_batches(loader) is None
        if endless:
            raise EstimatorError(
                f"{type(self._trial).__name__}.{self._method}() returned a {type(loader).__name__} without an end, but "
                "each validation reads all of it. Leave out .repeat(), or define __len__."
            )


def hopyard_loader(loader: Any) -> Loader | None:
    """The loader of a dataset of ours; None if the trial has its own."""
    of_torch = sys.modules.get("hopyard.data.outputs.torch_loader")
    if isinstance(loader, KerasDataset) or (of_torch and isinstance(loader, of_torch.TorchLoader)):
        found: Loader = loader.loader
        return found
    return loader if isinstance(loader, Loader) else None


def is_tf_dataset(loader: Any) -> bool:
    """Whether it is a ``tf.data.Dataset``."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(loader, tensorflow.data.Dataset)


def rows_of_first_batch(loader: Any) -> int:
    """Rows of a batch: as the loader says, or else of its first one."""
    said = batch_size_of(loader)
    if said > 1:
        return said
    with Generators(0).entered():
        batches = first_batch(loader)
    return max(
        (rows_of(keras.tree.flatten(arguments_of(batch, "training")[0])) for batch in batches), default=1
    )


def own_loader(built: Built, visits: Visits, batch_size: int) -> OwnLoader:
    """What reads a loader of the trial's own."""
    if isinstance(built.loader, keras.utils.PyDataset):
        return _OwnSequence(built, visits, batch_size)
    loader = _OfEachPass(built) if is_tf_dataset(built.loader) else built.loader
    return OwnLoader(loader, visits, batch_size)


def all_batches(loader: Any, seed: int) -> Iterator[Any]:
    """One pass over a loader, in its own order; random numbers follow from the seed."""
    if isinstance(loader, keras.utils.PyDataset):
        return _fetched(loader, range(number_of_batches(loader) or 0), seed)
    return one_pass(loader, seed)


def first_batch(loader: Any) -> list[Any]:
    """The first batch; none if there is none."""
    if isinstance(loader, keras.utils.PyDataset):
        return [loader[0]]
    return list(itertools.islice(loader, 1))


class _OfEachPass:
    """A ``tf.data.Dataset``, built anew for each pass. What is random in it follows from Python's generator."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._number = 0

    def __len__(self) -> int:
        return len(self._built.loader)

    def set_epoch(self, number: int) -> None:
        """The next iteration is the pass of this number."""
        self._number = number

    def __iter__(self) -> Iterator[Any]:
        from hopyard.data.outputs.tensorflow_output import set_epoch

        with graphs_seeded(random.getrandbits(63)):
            dataset = self._built.again()
        set_epoch(dataset, self._number)
        return iter(dataset)


class _OwnSequence(OwnLoader):
    """Batches of a ``PyDataset``, in an order that follows from the seed and the pass, as ``fit`` shuffles them.

    What is random in a batch follows from the seed, the pass and its number. Where the dataset has several workers,
    they are threads, which have no generators of their own: there it should draw from ``np.random.default_rng(...)``.
    """

    loader: Any

    def __init__(self, built: Built, visits: Visits, batch_size: int) -> None:
        super().__init__(built.loader, visits, batch_size)
        self._built = built
        self._pass, self._has_begun = 0, False  # of the dataset, which may change itself between passes

    def _read(self, count: int, seed: int) -> Iterator[Any]:
        while count:
            self._begin_pass(seed)
            for batch in self._rest_of_pass(count, self._seed(seed)):
                self.place.batches += 1
                count -= 1
                yield batch
            if count:
                self._end_pass()

    def _rest_of_pass(self, count: int, seed: int) -> Iterator[Any]:
        """The next batches of this pass, at most so many."""
        length, first = number_of_batches(self.loader), self.place.batches
        if length is None:  # it has no end
            return _fetched(self.loader, range(first, first + count), seed)
        order = np.random.default_rng(seed).permutation(length)[first : first + count]
        return _fetched(self.loader, order.tolist(), seed)

    def _begin_pass(self, seed: int) -> None:
        """Have the dataset as it is in this pass, told of the passes before."""
        if self.place.number < self._pass:
            self.loader, self._pass, self._has_begun = self._built.again(), 0, False
        while True:
            if not self._has_begun:
                self._tell("on_epoch_begin", seed)
                self._has_begun = True
            if self._pass == self.place.number:
                return
            self._tell("on_epoch_end", seed)
            self._pass, self._has_begun = self._pass + 1, False

    def _tell(self, method: str, seed: int) -> None:
        with Generators(derive_seed(seed, method, self._pass)).entered():
            getattr(self.loader, method)()


def _fetched(dataset: Any, numbers: Iterable[int], seed: int) -> Iterator[Any]:
    """The batches with these numbers. All that were asked for ahead are here when it ends."""
    # Those whose constructor does not call Keras' have none of these attributes, of which Keras would warn.
    workers = getattr(dataset, "_workers", 1)
    if workers <= 1:
        for number in numbers:
            with Generators(derive_seed(seed, "batch", number)).entered():
                batch = dataset[number]
            yield batch
        return
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for number in numbers:
                waiting.append(pool.submit(dataset.__getitem__, number))
                if len(waiting) > dataset.max_queue_size:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def arguments_of(batch: Any, role: str) -> tuple[Any, ...]:
    """A batch as ``(x,)``, ``(x, y)`` or ``(x, y, weights)`` of arrays (n, ...), floating ones as float32.

    Args:
        role: ``"training"`` or ``"validation"``, for messages.

    Raises:
        EstimatorError: it is something else.
    """
    parts = tuple(batch) if isinstance(batch, list | tuple) else ()
    while parts and parts[-1] is None:
        parts = parts[:-1]
    if not 1 <= len(parts) <= 3:
        columns = f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
        given = (
            f"{len(batch)} parts" if isinstance(batch, list | tuple) else f"a {type(batch).__name__}{columns}"
        )
        raise EstimatorError(
            f"a batch of the {role} data loader is {given}, but Keras takes (x, y) or (x, y, weights). Write "
            "yield x, y; of a dataset of Hopyard's, keras_dataset(inputs=..., labels=...) gives such batches, and so "
            "does loader(..., transform=lambda batch, rng: (batch['x'], batch['y']))."
        )
    return tuple(
        keras.tree.map_structure(partial(_array, where=f"{name} of a batch of the {role} data loader"), part)
        for name, part in zip(("x", "y", "weights"), parts, strict=False)
    )


def _array(value: Any, where: str) -> np.ndarray[Any, Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    elif hasattr(value, "numpy"):
        value = value.numpy()
    elif hasattr(value, "__array__"):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf" or not value.ndim:
        held = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise EstimatorError(
            f"{where} is {held}, but Keras takes arrays of numbers (n, ...). Encode text, and pad lists of several "
            "lengths, in the loader; of a list numpy.array(...) makes an array."
        )
    return value.astype(np.float32) if value.dtype.kind == "f" and value.dtype != np.float32 else value
