"""Program of a run: all that a worker needs to train any trial, stored once in the run's folder.

The driver cloudpickles a :class:`Program` into ``program/<digest>`` of the run's folder; requests
carry only that name, and every worker process keeps the programs it met last in memory. Large tensors that its
functions hold, such as the weights of a base, lie with the frozen tensors of the store.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from hopyard.data.base import Partitioned
from hopyard.data.columns.policies import Policies
from hopyard.data.preprocessing.fitting import FittedSteps
from hopyard.errors import CorruptError, EstimatorError, FormatError
from hopyard.objects import StateRef, Tensor, digest
from hopyard.objects.frozen import RunFolder
from hopyard.objects.pickles import UNPICKLABLE, dumps, loads
from hopyard.objects.states import read_tensors
from hopyard.storage import Store

_HEADER = b"hopyard program 1\n"
_WITH_TENSORS = b"hopyard program 2\n"  # then a line of JSON: the file of each large tensor, by digest
_DOMAIN = "hopyard.program"
_KEPT = 4
_loaded: OrderedDict[tuple[str, str], Program] = OrderedDict()


@dataclass(frozen=True)
class Program:
    """Everything that is the same for all trials of a run.

    Attributes:
        estimator_gen_fn: the user's function from parameters to an estimator.
        feature_columns: columns that models see, in the order in which they are passed.
        label_columns: columns that losses and metrics compare outputs with.
        train: the training data; None only for a check on one batch.
        val: the validation data, or None.
        num_partitions: partitions of ``train`` and of ``val``.
        num_epochs: epochs of a trial that is not stopped early; learning-rate schedulers see it.
        seed: all randomness of the run derives from it.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:n"``.
        threads: CPU threads of a unit.
        init_from: store and state of the weights that every trial starts from, or None.
        policies: of the training data, in a program that a model was saved with, without its data.
        preprocessing: steps that rows go through before models see them, fitted on ``train``; or None.
        known_rows: rows of every training partition, in a program without its data; empty: nobody knows.
        graph_streams: CUDA streams on which captured steps are replayed; 0: steps are not captured.
    """

    estimator_gen_fn: Callable[[dict[str, Any]], Any]
    feature_columns: tuple[str, ...]
    label_columns: tuple[str, ...]
    train: Partitioned | None
    val: Partitioned | None
    num_partitions: int
    num_epochs: int
    seed: int
    device: str = "auto"
    threads: int = 1
    init_from: tuple[Store, StateRef] | None = None
    policies: Policies | None = None
    known_rows: tuple[int, ...] = ()
    preprocessing: FittedSteps | None = None
    graph_streams: int = 0

    @cached_property
    def train_partitions(self) -> Sequence[Partitioned]:
        """The partitions that models visit; none before data is prepared."""
        return [] if self.train is None else self.seen(self.train).partitions(self.num_partitions)

    @property
    def partition_rows(self) -> tuple[int, ...]:
        """Rows of every training partition; empty: nobody knows."""
        return self.known_rows if self.train is None else tuple(map(len, self.train_partitions))

    @cached_property
    def val_partitions(self) -> Sequence[Partitioned]:
        """The partitions that models are validated on, merged in their order; fewer than
        ``num_partitions`` if the data has fewer row groups."""
        if self.val is None:
            return []
        return self.seen(self.val).partitions(min(self.num_partitions, self.val.num_row_groups))

    def seen(self, data: Partitioned) -> Partitioned:
        """``data`` as models see it."""
        if self.preprocessing is None:
            return data
        labels = [name for name in self.label_columns if name in data.schema.names]
        return self.preprocessing.of(data, list(dict.fromkeys([*self.feature_columns, *labels])))

    @property
    def has_users_objects(self) -> bool:
        """Whether what its functions hold are the user's own objects, not copies of them."""
        return "_travelled" not in vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _travelled=True)

    def __getstate__(self) -> dict[str, Any]:
        # Partitions follow from the rest and stay behind.
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _apart(store: RunFolder, program: Program) -> bytes:
    """``program`` as the run's folder gets it, with large tensors in files of their own."""
    tensors: dict[str, Tensor] = {}
    data = pickled(program, tensors)
    places = store.frozen().places(tensors)
    if not places:
        return pickled(program) if tensors else data
    files = json.dumps({digest: file for digest, (file, _) in places.items()}, separators=(",", ":"))
    return _WITH_TENSORS + files.encode() + b"\n" + data[len(_HEADER) :]


def pickled(program: Program, tensors: dict[str, Tensor] | None = None) -> bytes:
    """``program`` as workers and the run's folder get it.

    Args:
        tensors: gets large tensors, by digest, which then are not in it.

    Raises:
        EstimatorError: the estimator function, or what it reaches, cannot be pickled.
    """
    try:
        data = dumps(program, tensors=tensors)
    except UNPICKLABLE as error:
        raise EstimatorError(
            f"The estimator function cannot be pickled ({error}), but workers, and the run's folder, get it as a "
            "pickle. Locks, threads, generators, open files and connections cannot travel: make those inside the "
            "function."
        ) from error
    return _HEADER + data


def save_program(store: Store, program: Program) -> str:
    """Store ``program`` under its digest; returns the name. Storing it again changes nothing."""
    data = _apart(store, program) if isinstance(store, RunFolder) else pickled(program)
    name = f"program/{digest(data, _DOMAIN)}"
    store.put_new(name, data)
    _remember((store.url, name), program)
    return name


def load_program(store: Store, name: str) -> Program:
    """The program stored under ``name``; the last few stay in this process's memory.

    Raises:
        NotFoundError: there is none.
        CorruptError: its bytes are not what was stored.
        FormatError: a newer version of Hopyard wrote it.
    """
    key = (store.url, name)
    if key not in _loaded:
        _remember(key, _read(store, name))
    _loaded.move_to_end(key)
    return _loaded[key]


def forget_program(store: Store, name: str) -> None:
    """Forget a program: what it has in this process was changed, and is read anew for the next unit."""
    _loaded.pop((store.url, name), None)


def _read(store: Store, name: str) -> Program:
    data = store.get(name)
    if digest(data, _DOMAIN) != name.rpartition("/")[2]:
        raise CorruptError(
            f"{name!r} in {store.url} does not have the digest that names it: it was changed or cut off. "
            "Start the run again with fresh=True."
        )
    if not data.startswith((_HEADER, _WITH_TENSORS)):
        raise FormatError(
            f"{name!r} in {store.url} starts with {data[:20]!r}; this version of Hopyard reads "
            f"{_HEADER!r} and {_WITH_TENSORS!r} only. Install the version of Hopyard that started this run."
        )
    rest, tensors = memoryview(data)[len(_HEADER) :], {}
    if data.startswith(_WITH_TENSORS):
        end = data.index(b"\n", len(_WITH_TENSORS)) + 1
        tensors = read_tensors(store, json.loads(data[len(_WITH_TENSORS) : end]))
        rest = memoryview(data)[end:]
    program = loads(rest, tensors)
    assert isinstance(program, Program)
    return program


def _remember(key: tuple[str, str], program: Program) -> None:
    _loaded[key] = program
    _loaded.move_to_end(key)
    while len(_loaded) > _KEPT:
        _loaded.popitem(last=False)
