"""Contract of every framework's estimator with the common part of training.

An :class:`Estimator` is the value of the user's function: arguments, checked when it is made. Its
:meth:`Estimator.replica` puts model, optimizer and the rest on a device. A :class:`Replica` is
used by one thread, trains and validates whole visits, and turns its state into a tree and back.

Rules for implementations:

* **Nothing carried.** After ``load(tree)`` a replica behaves as one that never did anything else
  than reach that state; what a tree cannot hold shows as ``hidden_state()``, and such a
  replica is built anew for every unit.
* **Nothing read but the inputs.** Order of batches, transforms and random numbers come from the
  visit and from the generators that the caller seeded; a replica never seeds.
* **Validation leaves the state as it is.**
"""

from __future__ import annotations

import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from hopyard.data.arguments import ColumnSelection, Output, Tail
from hopyard.data.order import batch_bounds
from hopyard.data.ragged import Ragged
from hopyard.errors import EstimatorError
from hopyard.objects import derive_seed
from hopyard.training.metric import MetricSet

Inputs: TypeAlias = Mapping[str, str | Sequence[str]] | Sequence[str] | None
"""The ``inputs`` of an estimator: the columns that a model takes; None: by the framework's own rule. A dict has for
each input a column, or scalar columns side by side."""

ClassWeight: TypeAlias = Mapping[int, float] | Sequence[float]


"""Weight of each class's rows in the loss, by class."""

UNKNOWN_BATCHES = 1_000
"""Batches of an epoch where rows are not counted yet: as one trial is tried out on rows of a stream. Warm-ups and the
like that are right for any run of a useful length are right for so many."""


class VisitRows(Protocol):
    """Rows that a visit reads: a partition of a dataset, or a batch in memory."""

    def __len__(self) -> int: ...

    def batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        *,
        columns: Sequence[str] | None = None,
        output: Output = "numpy",
        tail: Tail = "short",
        epoch: int = 0,
    ) -> Iterable[Mapping[str, Any]]: ...


@dataclass(frozen=True)
class Context:
    """Facts that a replica needs besides its estimator.

    Attributes:
        feature_columns, label_columns: as in the program.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:n"``.
        partition_rows: rows of every training partition, from which schedulers' steps follow. Empty: not known yet;
            schedulers are then told of ``UNKNOWN_BATCHES`` batches an epoch.
        num_epochs: epochs that schedulers are made for.
        params: the trial's point of the search space.
        trains_users_objects: what is trained, or trained through, may be the user's own objects.
        graph_streams: as in the program.
    """

    feature_columns: tuple[str, ...]
    label_columns: tuple[str, ...]
    device: str
    partition_rows: tuple[int, ...]
    num_epochs: int
    params: Mapping[str, Any] = field(default_factory=dict)
    trains_users_objects: bool = False
    graph_streams: int = 0


@dataclass
class BytesRead:
    """Counts bytes of batches."""

    total: int = 0

    def counted(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The batches, as they are; texts count as what points to them."""
        for batch in batches:
            self.total += sum(getattr(values, "nbytes", 0) for values in batch.values())
            yield batch


@dataclass(frozen=True)
class Visit:
    """One visit of one trial to one partition.

    Attributes:
        rows: the partition.
        seed: of the run; the same for all trials, so that all see the same batches.
        epoch, partition: from 0.
        last: the last training visit of the epoch: schedulers of interval ``"epoch"`` step after it.
        read: counts what is read, by all trials of the visit.
    """

    rows: VisitRows
    seed: int
    epoch: int
    partition: int
    last: bool = False
    read: BytesRead = field(default_factory=BytesRead, compare=False)

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}, partition {self.partition}"

    def training_batches(
        self, batch_size: int, columns: ColumnSelection, output: Output
    ) -> Iterable[Mapping[str, Any]]:
        """Shuffled batches; a last one of fewer than half the rows joins the one before it. Of no rows, none.

        Args:
            columns: names; of rows of a dataset also groups of columns, each as one array.
        """
        rows: Any = self.rows
        batches = rows.batches(
            batch_size,
            shuffle=True,
            seed=derive_seed(self.seed, "order", self.partition),
            columns=columns,
            output=output,
            tail="join",
            epoch=self.epoch,
        )
        return self.read.counted(batches)

    def validation_batches(
        self, batch_size: int, columns: ColumnSelection, output: Output
    ) -> Iterable[Mapping[str, Any]]:
        """All rows in their order; the last batch may be short. ``columns`` as for :meth:`training_batches`."""
        rows: Any = self.rows
        return self.read.counted(rows.batches(batch_size, columns=columns, output=output))

    def transform_rng(self, kind: str, batch: int) -> np.random.Generator:
        """The generator that a transform gets for that batch."""
        return np.random.default_rng(derive_seed(self.seed, kind, self.epoch, self.partition, batch))


def another_architecture(error: EstimatorError) -> EstimatorError:
    """The error of a replica that cannot adopt the state of another trial."""
    return EstimatorError(
        "A trial that goes on from another one's state must have a model of the same architecture, so a search that "
        "copies states (PBT) can change learning rates and the like, but not sizes of layers. Make these constants of "
        f"the search space, or use ASHA. {error}"
    )


class _TogetherError(Exception):
    """Replicas cannot be trained together, as was seen while they were."""


class _TriedError(_TogetherError):
    """Replicas were looked at, and cannot be trained together; nothing has failed."""


class Replica(ABC):
    """A trial's model, optimizer and the rest, on a device."""

    framework: ClassVar[str]
    """``"torch"`` or ``"keras"``."""

    module: Any
    """The framework's model."""

    batch_size: int
    """Rows of a batch."""

    trunk_weights: str | None = None
    """Digest of the weights of the frozen module that trials share, which no state holds; None: there is none."""

    @property
    def base_weights(self) -> str | None:
        """Digest of the base that trials of a process share, which must be the same in each; None: there is none."""
        return None

    @property
    def base_nbytes(self) -> int:
        """Bytes of that base, which :meth:`nbytes` leaves out."""
        return 0

    has_ended: bool = False
    """Whether the trial's own code has come to its end, so that there is nothing left to train."""

    @abstractmethod
    def check_labels(self, visit: Visit) -> None:
        """Run the first batch through model and loss, discarding what that changes.

        Raises:
            EstimatorError: labels do not fit the loss; says which would.
        """

    def begin_visit(self, epoch: int, history: Mapping[str, float] | None) -> None:  # noqa: B027
        """Called before each training visit, in the state that it begins with.

        Args:
            history: in the first visit of an epoch, the values of the one before (empty if there is none), by the
                names of histories; else None.
        """

    @abstractmethod
    def train(self, visit: Visit) -> dict[str, list[float]]:
        """Train one pass; ``{"loss": [sum, weight], <name from step>: [sum, rows]}`` in float64.

        Raises:
            DivergedError: the loss is not finite.
        """

    @abstractmethod
    def validate(self, visit: Visit) -> MetricSet:
        """Loss and metrics of all rows of the visit."""

    @property
    def signature(self) -> str:
        """Text that is equal for replicas that may train together; empty: this one trains alone."""
        return ""

    @property
    def trains_alone(self) -> str:
        """Reason why this replica trains alone, as far as is known; empty: there is none."""
        return f"models of {self.framework} train one at a time"

    def may_pack(self, visit: Visit | None = None) -> bool:
        """Whether replicas of this signature have trained in this process for so long that they are to make visits
        together, which takes time to prepare.

        Args:
            visit: that this one has trained on alone, and that counts from now on.
        """
        return True

    @property
    def packs_alone(self) -> bool:
        """Whether a single replica gains by ``train_together``, too."""
        return False

    @classmethod
    def train_together(
        cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
    ) -> list[dict[str, list[float]] | Exception] | None:
        """Train replicas of one signature, whose ``begin_visit`` does nothing, each to the bits that ``train`` gives.

        Args:
            seeds: of each, for the framework's generator.

        Returns: of each the answer of ``train``, or the exception that ended it; None: they must be trained one by one,
            and are as they were.

        Raises:
            BaseChangedError: one of them has changed the base that they share; all of them are of no use any more.
            _TogetherError: computing them together has failed. They are of no use any more, and each must be trained
                alone from where it began.
        """
        return None

    @classmethod
    def gain_together(cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]) -> float | None:
        """How many times as long a batch takes replicas of one signature one by one as together, measured on the first
        batch of a training visit, once for a signature in a process. ``trains_alone`` then has the reason where they
        will train one by one. Nothing of them changes.

        Args:
            seeds: of each, for the framework's generator.

        Returns: None where it was not measured, since they cannot be trained together.
        """
        return None

    def gain_of_bf16(self, visit: Visit) -> float | None:
        """How many times as long gradients of a batch take as with ``precision="bf16"``, in CPU time, measured on the
        first batch of a training visit by a replica that is discarded then. None where it was not measured: the device
        is no CPU with units for it, another precision is given, or a batch takes too long."""
        return None

    @classmethod
    def validate_together(
        cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
    ) -> Sequence[MetricSet | Exception] | None:
        """Validate replicas of one signature: of each the answer of ``validate``, or the exception that ended it; None:
        they must be validated one by one.

        Args:
            seeds: of each, for the framework's generator.

        Raises:
            BaseChangedError: as :meth:`train_together`.
        """
        return None

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that the next visit depends on, as a tree; may share memory with the replica."""

    def held(self) -> dict[str, Any]:
        """The part of ``state()`` that another state of the trial may have, too: what is frozen, if that is known."""
        return self.state()

    @abstractmethod
    def load(self, tree: Mapping[str, Any]) -> None:
        """Take over a tree of ``state()``; one with only ``"model"`` changes the model alone. Some of its tensors may
        share the memory of this replica's own ``state()``, or all may be read-only.

        Raises:
            EstimatorError: it is the state of another architecture.
        """

    @abstractmethod
    def adopt(self, tree: Mapping[str, Any]) -> None:
        """Go on, when new, from a tree of another trial's ``state()``: with its weights, what its optimizer has
        accumulated, and its place in the schedule, but with the rates and options of this estimator.

        Raises:
            EstimatorError: it is the state of another architecture.
        """

    @abstractmethod
    def hidden_state(self) -> list[str]:
        """Names of values that the visits so far changed and ``state()`` does not hold."""

    def schedule(self, num_epochs: int) -> Iterator[Mapping[str, Any]]:
        """Yield the optimizers' options that schedules give in ``num_epochs``, were nothing trained: at the begin, and
        after each step. Nothing, where the number of epochs was not used. The replica is of no use afterwards."""
        return iter(())

    def asks_epochs(self) -> str:
        """Place where training asked for the number of epochs so far, besides schedules; empty: nowhere."""
        return ""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the state in memory."""

    @property
    @abstractmethod
    def prediction_columns(self) -> list[str]:
        """The feature columns that ``predict`` needs, in their order."""

    @property
    def weight_column(self) -> str | None:
        """The column of row weights; None without any."""
        return None

    @abstractmethod
    def predict(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        """Outputs for a dict of columns of n rows: (n, ...) arrays, in batches of the batch size."""

    @abstractmethod
    def export_onnx(self, path: Path, example: Mapping[str, Any]) -> None:
        """Write the model, as it predicts, to an ONNX file.

        Args:
            example: a batch of two rows with all feature columns; values do not matter.

        Raises:
            EstimatorError: the model, or what it is given, cannot be expressed in ONNX.
        """

    @abstractmethod
    def evaluate(self, batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Loss and metrics over dicts of columns."""


_CALLED_ELSEWHERE = {
    "transformation_fn": "transform=fn(batch, rng), which gets a batch as a dict of arrays and a seeded generator, and "
    "val_transform= for validation; batches are shuffled anyway",
    "epochs": "num_epochs= of the search",
    "feature_cols": "feature_columns= of the search",
    "label_cols": "label_columns= of the search",
    "validation": "validation= of the search",
    "store": "store= of the search",
    "verbose": "progress= of the search",
    "run_id": "run_id= of the search",
}
"""Arguments of Cerebro's and Horovod's estimators that belong elsewhere here."""


class Estimator(ABC):
    """Model, optimizer and all else that training takes, as the user's estimator function returns it."""

    batch_size: int
    """Rows of a batch."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _named_as_called(cls.__init__))  # noqa: B010 - no method of its own

    @abstractmethod
    def replica(self, context: Context) -> Replica:
        """The estimator's model, optimizer and the rest, ready to train.

        Raises:
            EstimatorError: arguments do not fit each other, the columns or the device.
        """


def _named_as_called(init: Any) -> Any:
    """Wrap ``__init__``: for an argument that other systems have, the error names the argument here; and a base needs a
    model."""
    taken = inspect.signature(init).parameters

    @functools.wraps(init)
    def checked(self: Any, *given: Any, **named: Any) -> None:
        for name in named:
            if name in _CALLED_ELSEWHERE and name not in taken:
                raise EstimatorError(
                    f"{type(self).__name__} has no argument {name!r}; write {_CALLED_ELSEWHERE[name]}."
                )
        if named.get("base") is not None and "base" in taken and not given and "model" not in named:
            raise EstimatorError(
                "base was given without model. Give model=fn(base) too, which puts into it what the trial trains, and "
                "returns the module: model=lambda base: get_peft_model(base, config), for one."
            )
        init(self, *given, **named)

    return checked


def epoch_steps(context: Context, batch_size: int, accumulate: int) -> int:
    """Steps of the optimizer in an epoch over all partitions, whose groups of batches end with the partition."""
    batches = [len(batch_sizes(rows, batch_size)) for rows in context.partition_rows] or [UNKNOWN_BATCHES]
    return max(1, sum(-(-count // accumulate) for count in batches))


def batch_sizes(rows: int, batch_size: int) -> list[int]:
    """Rows of every training batch of a partition, by the rule of ``tail="join"``."""
    return [stop - start for start, stop in batch_bounds(rows, batch_size, "join")]


class OneBatch:
    """A batch in memory, read like a partition. Arrays are copied: training may change batches in place."""

    def __init__(self, columns: Mapping[str, np.ndarray[Any, Any] | Ragged]) -> None:
        self._columns = dict(columns)

    def __len__(self) -> int:
        return min((len(column) for column in self._columns.values()), default=0)

    def batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        *,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> Iterator[dict[str, Any]]:
        """The one batch; ``columns`` that are not there are left out."""
        names = self._columns if columns is None else [name for name in columns if name in self._columns]
        yield {name: copy.deepcopy(self._columns[name]) for name in names}


def joined_outputs(pieces: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Outputs of batches as one array, of as many rows as all of them.

    Raises:
        EstimatorError: rows of several batches differ in shape.
    """
    shapes = list(dict.fromkeys(piece.shape[1:] for piece in pieces))
    if len(shapes) > 1:
        raise EstimatorError(
            f"The model gave rows of shape {shapes[0]} for one batch and {shapes[1]} for another, which are no one "
            "array. Pad its outputs to one width, in the model or in predict=, or predict rows of one length at a time."
        )
    return np.concatenate(pieces)
