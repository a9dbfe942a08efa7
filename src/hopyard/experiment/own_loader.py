"""A loader of the trial's own code, read in stretches that continue each other, and again from any place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hopyard.errors import EstimatorError
from hopyard.objects import derive_seed


@dataclass
class Place:
    """Place in the stream of all passes over a loader.

    Attributes:
        number: of the pass, from 0.
        batches: of this pass that were read.
    """

    number: int = 0
    batches: int = 0


class OwnLoader:
    """Batches of a loader, pass after pass.

    What is random in the order of a pass follows from the seed and the number of the pass: generators are seeded before
    it begins. So a new process comes to the same place by reading, and discarding, the batches of this pass before it.

    Args:
        loader: gives batches when it is iterated over, as often as one asks.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.place = Place()
        self._open: Iterator[Any] | None = None
        self._ahead: list[Any] = []

    @property
    def batches_of_a_pass(self) -> int | None:
        """Number of batches of a pass; None if the loader does not say."""
        return number_of_batches(self.loader)

    @property
    def batch_size(self) -> int:
        """Rows of a batch, as the loader says; 1 if it does not."""
        return batch_size_of(self.loader)

    def go_to(self, place: Mapping[str, int]) -> None:
        """Read on from a place, as ``vars(loader.place)`` gave it."""
        if vars(self.place) != dict(place):
            self.place = Place(**place)
            self._open, self._ahead = None, []

    def read(self, count: int, seed: int) -> Iterator[Any]:
        """The next batches; behind the end of a pass comes the next pass.

        Args:
            seed: the orders of all passes follow from it.

        Raises:
            EstimatorError: a pass has no batches.
        """
        for _ in range(count):
            yield self._next(seed)

    def _next(self, seed: int) -> Any:
        if self._open is None:
            self._begin(seed)
        assert self._open is not None
        for batch in self._ahead or self._open:
            self._ahead = []
            self.place.batches += 1
            return batch
        if not self.place.batches:
            raise EstimatorError(
                f"the training data loader, a {type(self.loader).__name__}, gave no batches in pass "
                f"{self.place.number + 1}. build_training_data_loader() must return what gives batches each time that "
                "it is iterated over: a DataLoader or a list, not a generator or an iterator."
            )
        self.place, self._open = Place(self.place.number + 1), None
        return self._next(seed)

    def _begin(self, seed: int) -> None:
        """Begin the pass, and read up to the place in it. The first batch is read here: some samplers seed themselves
        when they are first asked."""
        place = self.place
        with seeded_pass(self.loader, derive_seed(seed, "pass", place.number), place.number):
            self._open = iter(self.loader)
            self._ahead = []
            for number, batch in enumerate(self._open):
                if number == place.batches:
                    self._ahead = [batch]
                    return
        if place.batches and not self._ahead:
            self._open = iter(())  # it ended just there


@contextmanager
def seeded_pass(loader: Any, seed: int, number: int) -> Iterator[None]:
    """Seed all that a pass over a loader may draw from; generators of the process are as before afterwards."""
    for holder in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        set_epoch = getattr(holder, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(number)
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def number_of_batches(loader: Any) -> int | None:
    """``len(loader)``; None if it has none."""
    measure: Callable[[Any], int] = len
    try:
        return measure(loader)
    except (TypeError, NotImplementedError):
        return None


def batch_size_of(loader: Any) -> int:
    """``loader.batch_size``; 1 if it has none."""
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) and size > 0 else 1


def rows_of(batch: Any) -> int:
    """Rows of a batch: the length of the first tensor or array in it; 1 if there is none."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return len(batch) if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for part in parts:
        if isinstance(part, torch.Tensor | np.ndarray) and part.ndim:
            return len(part)
    return next((rows for rows in map(rows_of, parts) if rows > 1), 1)


def bytes_of(batch: Any) -> int:
    """Bytes of the tensors and arrays of a batch."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return batch.nbytes
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return sum(map(bytes_of, parts))


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors, in lists, tuples and mappings of any depth, on a device."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: moved(part, device) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(part, device) for part in batch)
    return batch
