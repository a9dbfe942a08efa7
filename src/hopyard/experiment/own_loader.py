"""A loader of the trial's own code, read in stretches that continue each other, and again from any place."""

from __future__ import annotations

import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.data.base import Partitioned
from hopyard.data.loader import Loader
from hopyard.errors import EstimatorError
from hopyard.experiment.lengths import Visits
from hopyard.experiment.surrounded import TRAINS_ALONE
from hopyard.objects import derive_seed
from hopyard.training.estimator import Replica


@dataclass
class Place:
    """Place of a trial in the stream of all passes over its loader.

    Attributes:
        visits: of the trial that have ended.
        number: of the pass, from 0.
        batches: of this pass that were read.
    """

    visits: int = 0
    number: int = 0
    batches: int = 0

    def after_the_pass(self) -> Place:
        """The begin of the next pass."""
        return Place(self.visits, self.number + 1)


class OwnLoader:
    """Batches of a loader, pass after pass.

    What is random in a pass follows from the seed and the number of the pass. So a new process comes to the same place
    by reading, and discarding, the batches of this pass before it.

    Args:
        loader: gives batches when it is iterated over, as often as one asks.
        visits: how the trial is cut into visits.
        batch_size: rows of a batch.
    """

    def __init__(self, loader: Iterable[Any], visits: Visits, batch_size: int) -> None:
        self.loader = loader
        self.place: Place = Place()
        self._visits, self._batch_size = visits, batch_size
        # A length in epochs follows what a loader says in each pass, another one is the same whatever it says then.
        self._pass_batches = None if visits.unit == "epochs" else number_of_batches(loader)
        self._open: Iterator[Any] | None = None
        self._said: int | None = None
        self._has_warned = False

    def go_to(self, place: Mapping[str, Any]) -> None:
        """Read on from a place, as ``vars(loader.place)`` gave it; numbers may be those of a state."""
        found = Place(**{name: int(value) for name, value in place.items()})
        if self.place != found:
            self.place, self._open = found, None

    def read_visit(self, seed: int) -> Iterator[Any]:
        """The batches of the next visit, which has ended when they have been read.

        Args:
            seed: all that is random in the passes follows from it.

        Raises:
            EstimatorError: a pass has no batches.
        """
        in_epochs = self._visits.unit == "epochs"
        passes = number_of_batches(self.loader) if in_epochs else self._pass_batches
        count = self._visits.batches(self.place.visits, passes, self._batch_size)
        yield from self._read(count, seed)
        self.place.visits += 1

    def _read(self, count: int, seed: int) -> Iterator[Any]:
        """The next batches; behind the end of a pass comes the next pass."""
        while count:
            if self._open is None:
                self._said = number_of_batches(self.loader)
                self._open = one_pass(self.loader, self._seed(seed), self.place.number)
                next(itertools.islice(self._open, self.place.batches, self.place.batches), None)
            for batch in itertools.islice(self._open, count):
                self.place.batches += 1
                count -= 1
                self._check_length(ended=False)
                yield batch
            if count:
                self._check_length(ended=True)
                self._end_pass()

    def _check_length(self, ended: bool) -> None:
        """Warn, once, of a loader whose pass has another length than it says, also while it reads that pass."""
        read = self.place.batches
        if self._has_warned or not read:
            return

        def differs() -> bool:
            return self._said is not None and (read < self._said if ended else read > self._said)

        if not differs():
            return
        # Some have another length in each pass, of which they are told when it begins.
        self._said = number_of_batches(self.loader)
        if not differs():
            return
        self._has_warned = True
        number = self.place.number + 1
        found = f"pass {number} ended after {read}" if ended else f"pass {number} has {read} or more"
        warnings.warn(
            f"the training data loader, a {type(self.loader).__name__}, says that a pass has {self._said} batches, but "
            f"{found}. Epochs are as long as it says: have its __len__ return how many batches it gives.",
            UserWarning,
            stacklevel=2,
        )

    def _end_pass(self) -> None:
        if not self.place.batches:
            raise EstimatorError(
                f"the training data loader, a {type(self.loader).__name__}, gave no batches in pass "
                f"{self.place.number + 1}. build_training_data_loader() must return what gives batches each time that "
                "it is iterated over: a DataLoader or a list, not a generator or an iterator."
            )
        self.place = self.place.after_the_pass()
        self._open = None

    def _seed(self, seed: int) -> int:
        """The seed of the pass."""
        return derive_seed(seed, "pass", self.place.number)


class WithOwnLoader(Replica):
    """Replica of a trial class, whose state has the place in a loader of the trial's own, if it has one; a base beside
    a framework's."""

    _own: OwnLoader | None = None

    @property
    def trains_alone(self) -> str:
        return TRAINS_ALONE

    def state(self) -> dict[str, Any]:
        tree = super().state()  # type: ignore[safe-super]
        return tree if self._own is None else {**tree, "data": dict(vars(self._own.place))}

    def load(self, tree: Mapping[str, Any]) -> None:
        super().load(tree)  # type: ignore[safe-super]
        self._go_to(tree)

    def adopt(self, tree: Mapping[str, Any]) -> None:
        super().adopt(tree)  # type: ignore[safe-super]
        self._go_to(tree)

    def _go_to(self, tree: Mapping[str, Any]) -> None:
        if self._own is not None and "data" in tree:
            self._own.go_to(tree["data"])


def one_pass(loader: Any, seed: int, number: int = 0) -> Iterator[Any]:
    """All batches of a loader. What is random in them follows from the seed, and changes no other random numbers.

    Args:
        number: of the pass, for samplers that have ``set_epoch``.
    """
    generators = Generators(seed)
    with generators.entered():
        for holder in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
            own_seed = getattr(getattr(holder, "generator", None), "manual_seed", None)
            if callable(own_seed):
                own_seed(seed)
            set_epoch = getattr(holder, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(number)
        batches = iter(loader)
    end = object()
    while True:
        with generators.entered():
            batch = next(batches, end)
        if batch is end:
            return
        yield batch


class Generators:
    """Global generators of Python, NumPy and PyTorch (on the CPU) that code of a loader draws from, in the places of
    those of the process.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: tuple[Any, ...] | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have them meanwhile; they go on where they were left."""
        before = _states()
        if self._states is None:
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
            if "torch" in sys.modules:
                _generator_of_torch().manual_seed(self._seed)
        else:
            _set_states(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _set_states(before)


def _states() -> tuple[Any, ...]:
    of_torch = _generator_of_torch().get_state() if "torch" in sys.modules else None
    return random.getstate(), np.random.get_state(), of_torch


def _set_states(states: tuple[Any, ...]) -> None:
    python, numpy, of_torch = states
    random.setstate(python)
    np.random.set_state(numpy)
    if of_torch is not None:
        _generator_of_torch().set_state(of_torch)


def _generator_of_torch() -> Any:
    return sys.modules["torch"].default_generator


def loader_of(trial: Any, method: str, example: str) -> Iterable[Any]:
    """The data loader that a method of a trial builds.

    Args:
        example: of what it may return, for the message.

    Raises:
        EstimatorError: it is nothing that can be iterated over again and again.
    """
    loader = getattr(trial, method)()
    if isinstance(loader, Iterator) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise EstimatorError(
            f"{type(trial).__name__}.{method}() returned {type(loader).__name__}, but it must return what gives "
            f"batches each time that it is iterated over, such as {example}. End it with return loader."
        )
    if number_of_batches(loader) == 0:
        raise EstimatorError(
            f"{type(trial).__name__}.{method}() returned a loader of no batches. Give it at least one: fewer rows than "
            "a batch are none with drop_last=True."
        )
    return loader  # type: ignore[no-any-return]


def partitioned(trial: Any, what: str, loader: Loader | None) -> Partitioned | None:
    """The dataset of a loader of Hopyard's, which models can visit partition by partition; None without a loader.

    Args:
        what: ``"training"`` or ``"validation"``.

    Raises:
        EstimatorError: it has no partitions.
    """
    if loader is None:
        return None
    if not isinstance(loader.dataset, Partitioned):
        raise EstimatorError(
            f"{type(trial).__name__}.build_{what}_data_loader() returned a loader of a "
            f"{type(loader.dataset).__name__}, which has no partitions that models could visit. Give a loader of a "
            "dataset with Parquet files of its own, or wrap its batches in a class of yours with __iter__ and __len__ "
            "to train where the trial is."
        )
    return loader.dataset


def number_of_batches(loader: Any) -> int | None:
    """``len(loader)``, or its ``num_batches``; None if it has none."""
    measures: list[Callable[[Any], int | None]] = [len, lambda each: each.num_batches]
    for measure in measures:
        try:
            return measure(loader)
        except (TypeError, NotImplementedError, AttributeError):
            pass
    return None


def batch_size_of(loader: Any) -> int:
    """``loader.batch_size``; 1 if it has none."""
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) and size > 0 else 1


def rows_of(batch: Any) -> int:
    """Rows of a batch: the length of the first tensor or array in it; 1 if there is none."""
    if _is_array(batch):
        return len(batch) if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for part in parts:
        if _is_array(part) and part.ndim:
            return len(part)
    return next((rows for rows in map(rows_of, parts) if rows > 1), 1)


def bytes_of(batch: Any) -> int:
    """Bytes of the tensors and arrays of a batch."""
    if _is_array(batch):
        return int(batch.nbytes)
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return sum(map(bytes_of, parts))


def _is_array(value: Any) -> bool:
    """Whether it is an array of NumPy, or a tensor of PyTorch, which may not be imported."""
    return isinstance(value, np.ndarray) or (
        "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)
    )
