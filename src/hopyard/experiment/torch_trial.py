"""TorchTrial, which users extend, and the estimator that a search makes of it."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from hopyard.data.contract import RowSource
from hopyard.data.loader import Loader
from hopyard.data.outputs.torch_loader import TorchLoader
from hopyard.data.outputs.torch_output import as_tensor
from hopyard.errors import EstimatorError
from hopyard.experiment.context import TrialContext
from hopyard.experiment.lengths import Facts, Visits
from hopyard.experiment.own_loader import (
    OwnLoader,
    WithOwnLoader,
    batch_size_of,
    bytes_of,
    loader_of,
    number_of_batches,
    one_pass,
    partitioned,
    rows_of,
)
from hopyard.experiment.surrounded import TrialEstimator, TrialSurroundings, why_no_metric
from hopyard.objects import derive_seed
from hopyard.training.estimator import Context, OneBatch, Replica, Visit
from hopyard.training.metric import MetricSet
from hopyard.training.torch.binding import Binding
from hopyard.training.torch.estimator import TorchEstimator
from hopyard.training.torch.forward import Forward
from hopyard.training.torch.replica import TorchReplica
from hopyard.training.torch.validation import measure

_LOADERS = "a torch.utils.data.DataLoader, or context.dataset('train').loader(...)"


class TorchTrial(ABC):
    """A PyTorch model with its data and its training, as an experiment's entrypoint names it.

    A trial whose data loaders are those of Hopyard (``context.dataset("train").loader(...)``) is trained partition
    by partition, and hops between workers; their batches are tensors, also without ``output="torch"``. With any other
    loader it trains in stretches of batches, and stays where it is.

    Args:
        context: hyperparameters and data of the trial.
    """

    def __init__(self, context: TrialContext) -> None:
        self.context = context

    @abstractmethod
    def build_model(self) -> torch.nn.Module:
        """The model, with new weights."""

    @abstractmethod
    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters."""

    @abstractmethod
    def build_training_data_loader(self) -> Iterable[Any]:
        """Batches to train on: a loader of Hopyard's, a ``DataLoader``, or what else gives batches again and again."""

    @abstractmethod
    def build_validation_data_loader(self) -> Iterable[Any]:
        """Batches to validate on; all of them, each time."""

    @abstractmethod
    def train_batch(self, batch: Any, model: torch.nn.Module) -> Mapping[str, Any] | torch.Tensor:
        """``{"loss": ..., name: ...}`` of a batch, or the loss: means over the batch. The step is done by who calls."""

    @abstractmethod
    def evaluate_batch(self, batch: Any, model: torch.nn.Module) -> Mapping[str, Any]:
        """``{name: ...}`` of a batch: means over the batch. No gradients are taken."""


class TorchTrialEstimator(TorchEstimator, TrialEstimator):
    """Estimator of a trial.

    Args:
        trial: the user's object.
        visits: how it is cut into visits, if it has its own loader.
        trains: whether it will train. Else only the model is used, maybe where the data are not.

    A method ``build_lr_scheduler(optimizer)`` of the trial makes a scheduler, which steps after every batch.
    """

    def __init__(
        self, trial: TorchTrial, surroundings: TrialSurroundings, visits: Visits | None, trains: bool = True
    ) -> None:
        self.trial: TorchTrial = trial
        self.surroundings: TrialSurroundings = surroundings
        self.visits: Visits | None = visits if trains else None
        model = _returned(trial, "build_model", trial.build_model(), torch.nn.Module)
        self.training: Iterable[Any] = ()
        self.validation: Iterable[Any] = ()
        if trains:
            self.training = loader_of(trial, "build_training_data_loader", _LOADERS)
            self.validation = loader_of(trial, "build_validation_data_loader", _LOADERS)
        schedule = getattr(trial, "build_lr_scheduler", None)
        super().__init__(
            model,
            trial.build_optimizer,
            batch_size=batch_size_of(self.training),
            step=lambda model, batch: dict(_with_loss(trial, trial.train_batch(batch, model))),
            validate_step=lambda model, batch: _numbers(trial, trial.evaluate_batch(batch, model)),
            scheduler=None
            if schedule is None
            else lambda optimizer, *_: _schedule(trial, schedule(optimizer)),
        )

    def replica(self, context: Context) -> Replica:
        return TorchTrialReplica(self, context)

    def facts(self) -> Facts:
        train, val = hopyard_loader(self.training), hopyard_loader(self.validation)
        datasets = partitioned(self.trial, "training", train), partitioned(self.trial, "validation", val)
        if train is None:
            return Facts("loader", *datasets, number_of_batches(self.training), batch_size_of(self.training))
        return Facts("dataset", *datasets, len(train), train.batch_size, tuple(train.columns))


class TorchTrialReplica(WithOwnLoader, TorchReplica):
    """Replica of a trial, whose batches and steps are the user's."""

    _against_large_gradients = (
        "clip gradients before each step of the optimizer, by its register_step_pre_hook in build_optimizer"
    )

    def __init__(self, estimator: TorchTrialEstimator, context: Context) -> None:
        self._given = estimator
        super().__init__(estimator, context)
        if estimator.visits is not None:
            self._own = OwnLoader(estimator.training, estimator.visits, estimator.batch_size)

    def _make_forward(self, binding: Binding, device: torch.device) -> Forward:
        given = self._given
        return Forward(self._head, _AnyBatch(device), None, given.step, given.validate_step, device, None)

    def _functions(self) -> dict[str, Any]:
        return {"trial": self._given.trial.train_batch}

    def check_labels(self, visit: Visit) -> None:
        """Nothing: the loss is the user's."""

    def train(self, visit: Visit) -> dict[str, list[float]]:
        with self._given.surroundings.entered():
            return super().train(visit)

    def validate(self, visit: Visit) -> MetricSet:
        with self._given.surroundings.entered():
            return super().validate(visit)

    def _training_batches(self, visit: Visit) -> Iterable[Any]:
        given = self._given
        loader = hopyard_loader(given.training)
        if isinstance(visit.rows, OneBatch):
            return _counted(visit, itertools.islice(given.training, 1), loader)
        if loader is not None:
            seed = derive_seed(visit.seed, "order", visit.partition)
            return _counted(visit, loader.over(_of_dataset(visit), seed=seed, epoch=visit.epoch), loader)
        assert self._own is not None
        return _counted(visit, self._own.read_visit(derive_seed(visit.seed, "order")))

    def _validation_batches(self, visit: Visit) -> Iterable[Any]:
        given = self._given
        loader = hopyard_loader(given.validation)
        if isinstance(visit.rows, OneBatch):
            return _counted(visit, itertools.islice(given.validation, 1), loader)
        if loader is not None:
            return _counted(visit, loader.over(_of_dataset(visit), seed=visit.seed, epoch=0), loader)
        return _counted(visit, one_pass(given.validation, derive_seed(visit.seed, "validation")))

    def _measure(self, batches: Iterable[Any]) -> MetricSet:
        found = measure(self._forward, batches, MetricSet({}, loss=False), [])
        if not found.metrics:
            raise EstimatorError(
                "the validation data loader gave no batches, so that nothing was measured. Let "
                "build_validation_data_loader() return what gives batches each time that it is iterated over."
            )
        return found

    @property
    def prediction_columns(self) -> list[str]:
        raise _no_prediction(self._given.trial)

    def predict(self, batch: Mapping[str, Any]) -> Any:
        raise _no_prediction(self._given.trial)


class _AnyBatch(Binding):
    """Batches of any form, as the user's loaders give them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(None, (), (), None, device)

    def place(self, batch: Any) -> Any:
        return _moved(batch, self._device)

    def rows(self, batch: Any) -> int:
        return rows_of(batch)


def hopyard_loader(loader: Any) -> Loader | None:
    """The loader of a dataset of ours; None if the trial has its own."""
    found = loader.loader if isinstance(loader, TorchLoader) else loader
    return found if isinstance(found, Loader) else None


def _of_dataset(visit: Visit) -> RowSource:
    assert isinstance(visit.rows, RowSource)
    return visit.rows


def _counted(visit: Visit, batches: Iterable[Any], of_dataset: Loader | None = None) -> Iterator[Any]:
    """The batches; what they read is counted. Those of a dataset of ours are tensors, whatever ``output=`` was."""
    for batch in batches:
        visit.read.total += bytes_of(batch)
        yield batch if of_dataset is None else _with_each(_as_tensor, batch)


def _returned(trial: TorchTrial, method: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise EstimatorError(
            f"{type(trial).__name__}.{method}() returned {type(value).__name__}, but must return a "
            f"torch.nn.{kind.__name__}. End it with return model."
        )
    return value


def _schedule(trial: TorchTrial, made: Any) -> Any:
    """What ``build_lr_scheduler`` gave, if it is a schedule of steps."""
    schedules = torch.optim.lr_scheduler
    if not isinstance(made, schedules.LRScheduler) or isinstance(made, schedules.ReduceLROnPlateau):
        raise EstimatorError(
            f"{type(trial).__name__}.build_lr_scheduler(optimizer) returned {type(made).__name__}, but must return a "
            "schedule of torch.optim.lr_scheduler that steps after each batch, without a metric; end it with e.g. "
            "return torch.optim.lr_scheduler.StepLR(optimizer, 100)."
        )
    return made


def _with_loss(trial: TorchTrial, values: Any) -> Mapping[str, Any]:
    """What ``train_batch`` gave, as a mapping with the loss."""
    if isinstance(values, torch.Tensor):
        values = {"loss": values}
    where = f"{type(trial).__name__}.train_batch(batch, model)"
    rule = "a tensor with one number that gradients can be taken of"
    if not isinstance(values, Mapping) or "loss" not in values:
        given = (
            f"the names {', '.join(map(str, values))}"
            if isinstance(values, Mapping)
            else type(values).__name__
        )
        raise EstimatorError(
            f"{where} returned {given}, but must return a dict with 'loss', {rule}; end it with "
            "return {'loss': loss}."
        )
    _check_names(where, values)
    loss = values["loss"]
    if not isinstance(loss, torch.Tensor):
        raise EstimatorError(
            f"{where} returned a loss of type {type(loss).__name__}, but the loss must be {rule}. Return it as a "
            "function of torch.nn gives it, not as loss.item()."
        )
    if loss.numel() != 1:
        raise EstimatorError(
            f"{where} returned a loss of shape {tuple(loss.shape)}, but the loss must be {rule}. Take its mean over "
            "the batch: loss.mean()."
        )
    if not loss.requires_grad:
        raise EstimatorError(
            f"{where} returned a loss without gradients, but the loss must be {rule}. Compute it from the model's "
            "outputs, outside of torch.no_grad() and without .detach()."
        )
    return values


def _check_names(where: str, values: Mapping[Any, Any]) -> None:
    """Raise EstimatorError if names of values are none that metrics can have."""
    for name in values:
        if why := why_no_metric(name):
            raise EstimatorError(f"{where} gave a metric of the name {name!r}, {why}")


def _numbers(trial: TorchTrial, values: Any) -> dict[str, Any]:
    """What ``evaluate_batch`` gave, if it is names with a number each."""
    where = f"{type(trial).__name__}.evaluate_batch(batch, model)"
    if not isinstance(values, Mapping) or not values:
        raise EstimatorError(
            f"{where} returned {'{}' if isinstance(values, Mapping) else type(values).__name__}, but must return a "
            "dict of metrics; end it with return {'accuracy': accuracy}."
        )
    _check_names(where, values)
    for name, value in values.items():
        one = (
            value.numel() == 1
            if isinstance(value, torch.Tensor)
            else isinstance(value, int | float) or (getattr(value, "size", 0) == 1)
        )
        if not one:
            shape = tuple(value.shape) if hasattr(value, "shape") else type(value).__name__
            raise EstimatorError(
                f"{where} gave {shape} for {name!r}, but a metric is one number, the mean over the batch. Reduce it, "
                "for example with .mean()."
            )
    return {**values, "loss": torch.as_tensor(float(values["loss"]))} if "loss" in values else dict(values)


def _no_prediction(trial: TorchTrial) -> EstimatorError:
    return EstimatorError(
        f"a {type(trial).__name__} does not say how columns become the model's input, so nothing can be predicted by "
        "its name. Use the trained module: model.torch()(inputs)."
    )


def _moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors, in lists, tuples and mappings of any depth, on a device."""

    def moved(part: Any) -> Any:
        if not isinstance(part, torch.Tensor) or part.device == device:
            return part
        return part.to(device, non_blocking=True)

    return _with_each(moved, batch)


def _as_tensor(part: Any) -> Any:
    """An array of numbers as a tensor over the same memory; of one that may not be written to, as a copy."""
    if isinstance(part, np.ndarray) and not part.flags.writeable and part.dtype != object:
        part = part.copy()
    return as_tensor(part)


def _with_each(change: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with each part, in lists, tuples and mappings of any depth, changed."""
    if isinstance(batch, Mapping):
        return {key: _with_each(change, part) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_with_each(change, part) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_with_each(change, part) for part in batch)
    return change(batch)
