"""KerasTrial, which users extend, and the estimator that a search makes of it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from hopyard.data.contract import RowSource
from hopyard.data.outputs.keras_output import KerasDataset
from hopyard.errors import EstimatorError
from hopyard.experiment.context import TrialContext
from hopyard.experiment.keras_loaders import (
    Built,
    all_batches,
    arguments_of,
    first_batch,
    hopyard_loader,
    own_loader,
    rows_of_first_batch,
)
from hopyard.experiment.lengths import Facts, Visits
from hopyard.experiment.own_loader import WithOwnLoader, bytes_of, number_of_batches, partitioned, rows_of
from hopyard.experiment.surrounded import TrialEstimator, TrialSurroundings
from hopyard.objects import derive_seed
from hopyard.training.estimator import Context, OneBatch, Replica, Visit
from hopyard.training.keras.binding import Binding, shapes_of_outputs
from hopyard.training.keras.estimator import KerasEstimator
from hopyard.training.keras.metrics import KerasMetricSet
from hopyard.training.keras.replica import KerasReplica


class KerasTrial(ABC):
    """A Keras 3 model with its data, as an experiment's entrypoint names it, on the backend that Keras runs on.

    Batches are ``(x, y)`` or ``(x, y, weights)``, of arrays or tensors. A trial whose data loaders are those of Hopyard
    (``context.dataset("train").keras_dataset(...)``) is trained partition by partition, and hops between workers; with
    any other loader it trains in stretches of batches, and stays where it is. Metrics are those that the model was
    compiled with, by their names in Keras's history: ``accuracy``, measured on the validation data.

    Args:
        context: hyperparameters and data of the trial.
    """

    def __init__(self, context: TrialContext) -> None:
        self.context = context

    @abstractmethod
    def build_model(self) -> keras.Model:
        """The model, with new weights, compiled."""

    @abstractmethod
    def build_training_data_loader(self) -> Iterable[Any]:
        """Batches to train on: a dataset of Hopyard's, a ``keras.utils.PyDataset``, whose batches are shuffled, a
        ``tf.data.Dataset``, for which this is called before every pass, or what else gives batches again and again."""

    @abstractmethod
    def build_validation_data_loader(self) -> Iterable[Any]:
        """Batches to validate on; all of them, each time."""

    def keras_callbacks(self) -> Sequence[keras.callbacks.Callback]:
        """Callbacks, which see whole epochs, as those of ``KerasEstimator``; an epoch ends with a validation."""
        return []


class KerasTrialEstimator(KerasEstimator, TrialEstimator):
    """Estimator of a trial.

    Args:
        trial: the user's object.
        visits: how it is cut into visits, if it has its own loader.
        trains: whether it will train. Else only the model is used, maybe where the data are not.
    """

    def __init__(
        self, trial: KerasTrial, surroundings: TrialSurroundings, visits: Visits | None, trains: bool = True
    ) -> None:
        self.trial: KerasTrial = trial
        self.surroundings: TrialSurroundings = surroundings
        self.visits: Visits | None = visits if trains else None
        model = _compiled(trial, trial.build_model())
        self.training: Built = Built(trial, "build_training_data_loader", random.getrandbits(63))
        self.validation: Built = Built(trial, "build_validation_data_loader", random.getrandbits(63))
        size = 1
        if trains:
            loader = hopyard_loader(self.training.loader)
            if loader is not None:
                size = loader.batch_size
            elif visits is None or visits.unit == "records":  # nobody else asks, and to look costs a batch
                size = rows_of_first_batch(self.training.loader)
            self.validation.check_ends()
        super().__init__(model, batch_size=size, callbacks=trial.keras_callbacks())

    def replica(self, context: Context) -> Replica:
        return KerasTrialReplica(self, context)

    def facts(self) -> Facts:
        train, val = hopyard_loader(self.training.loader), hopyard_loader(self.validation.loader)
        datasets = partitioned(self.trial, "training", train), partitioned(self.trial, "validation", val)
        if train is None:
            return Facts("loader", *datasets, number_of_batches(self.training.loader), self.batch_size)
        return Facts("dataset", *datasets, len(train), train.batch_size, tuple(train.columns))


class KerasTrialReplica(WithOwnLoader, KerasReplica):
    """Replica of a trial, whose batches are the user's."""

    def __init__(self, estimator: KerasTrialEstimator, context: Context) -> None:
        self._given = estimator
        self._rows = 0
        super().__init__(estimator, context)
        if estimator.visits is not None:
            self._own = own_loader(estimator.training, estimator.visits, estimator.batch_size)

    def _make_binding(self, context: Context) -> Binding:
        return _AsGiven(self._model)

    @property
    def module(self) -> Any:
        """The Keras model, with this trial's values; what knows no shapes yet is built for a batch of its data."""
        if self._compiled is None:
            given = self._given
            with given.surroundings.entered():
                for batch in first_batch(given.training.loader):
                    self._build(arguments_of(_of_columns(given.training.loader, batch), "training"))
        return super().module

    def check_labels(self, visit: Visit) -> None:
        with self._given.surroundings.entered():
            super().check_labels(visit)

    def train(self, visit: Visit) -> dict[str, list[float]]:
        self._rows = 0
        with self._given.surroundings.entered():
            return super().train(visit)

    def _trained_rows(self, visit: Visit) -> int:
        return self._rows

    def validate(self, visit: Visit) -> KerasMetricSet:
        with self._given.surroundings.entered():
            return super().validate(visit)

    def _training_batches(self, visit: Visit) -> Iterable[Any]:
        loader = self._given.training.loader
        if isinstance(visit.rows, OneBatch):
            batches: Iterable[Any] = first_batch(loader)
        elif (of_dataset := hopyard_loader(loader)) is not None:
            seed = derive_seed(visit.seed, "order", visit.partition)
            batches = of_dataset.over(_rows_of(visit), seed=seed, epoch=visit.epoch)
        else:
            assert self._own is not None
            batches = self._own.read_visit(derive_seed(visit.seed, "order"))
        for arguments in _read(visit, loader, batches, "training"):
            self._rows += rows_of(keras.tree.flatten(arguments[0]))
            yield arguments

    def _validation_batches(self, visit: Visit) -> Iterable[Any]:
        loader = self._given.validation.loader
        if isinstance(visit.rows, OneBatch):
            batches: Iterable[Any] = first_batch(loader)
        elif (of_dataset := hopyard_loader(loader)) is not None:
            batches = of_dataset.over(_rows_of(visit), seed=visit.seed, epoch=0)
        else:
            batches = all_batches(loader, derive_seed(visit.seed, "validation"))
        return _read(visit, loader, batches, "validation")

    @property
    def prediction_columns(self) -> list[str]:
        raise self._no_prediction()

    def predict(self, batch: Mapping[str, Any]) -> Any:
        raise self._no_prediction()

    def export_onnx(self, path: Path, example: Mapping[str, Any]) -> None:
        raise self._no_prediction()

    def _no_prediction(self) -> EstimatorError:
        return EstimatorError(
            f"a {type(self._given.trial).__name__} does not say how columns become the model's input, so nothing can "
            "be predicted by its name. Use the trained model: model.keras().predict(inputs)."
        )


class _AsGiven(Binding):
    """Batches that are the model's arguments already."""

    def __init__(self, model: keras.Model) -> None:
        self.features: list[str] = []
        self._model = model
        self._output_shapes: list[tuple[int | None, ...]] | None = None

    def arguments(self, batch: Any, weigh_classes: bool) -> tuple[Any, ...]:
        given: tuple[Any, ...] = batch
        if self._output_shapes is None:
            self._output_shapes = shapes_of_outputs(self._model, given[0])
        return given


def _read(visit: Visit, loader: Any, batches: Iterable[Any], role: str) -> Iterator[tuple[Any, ...]]:
    """The batches as arguments of the model; what they read is counted.

    Raises:
        EstimatorError: there are none.
    """
    arguments = None
    for batch in batches:
        arguments = arguments_of(_of_columns(loader, batch), role)
        visit.read.total += bytes_of(keras.tree.flatten(arguments))
        yield arguments
    if arguments is None:
        raise EstimatorError(
            f"the {role} data loader gave no batches. Let build_{role}_data_loader() return what gives batches each "
            "time that it is iterated over."
        )


def _of_columns(loader: Any, batch: Any) -> Any:
    """A batch as the loader gives it: that of a dataset of Hopyard's may come as a dict of its columns."""
    return loader.arguments(batch) if isinstance(loader, KerasDataset) and isinstance(batch, dict) else batch


def _rows_of(visit: Visit) -> RowSource:
    assert isinstance(visit.rows, RowSource)
    return visit.rows


def _compiled(trial: KerasTrial, model: Any) -> keras.Model:
    if not isinstance(model, keras.Model):
        raise EstimatorError(
            f"{type(trial).__name__}.build_model() returned {type(model).__name__}, but must return a keras.Model. End "
            "it with return model."
        )
    if not model.compiled:
        raise EstimatorError(
            f"{type(trial).__name__}.build_model() returned a model that is not compiled. Call "
            "model.compile(optimizer=..., loss=..., metrics=...) in it."
        )
    return model
