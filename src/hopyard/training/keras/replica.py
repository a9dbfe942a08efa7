"""A trial's Keras model and optimizer."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np

from hopyard.errors import DivergedError, EstimatorError, HopyardError
from hopyard.objects import Tensor
from hopyard.training import measuring
from hopyard.training.estimator import (
    ClassWeight,
    Context,
    Inputs,
    OneBatch,
    Replica,
    Visit,
    another_architecture,
    epoch_steps,
    joined_outputs,
)
from hopyard.training.keras.architecture import architecture
from hopyard.training.keras.binding import Binding
from hopyard.training.keras.callbacks import Callbacks, logs_of
from hopyard.training.keras.compiled import Compiled, Holder, all_trainable, shared
from hopyard.training.keras.loss import check_answers, check_validates, correct_losses
from hopyard.training.keras.metrics import (
    KerasMetricSet,
    check_additive,
    check_functions,
    check_thresholds,
    results,
)
from hopyard.training.keras.ownership import claim
from hopyard.training.keras.state import as_numpy, from_tree, names_of, to_tree, values_of
from hopyard.training.transforms import BatchTransform, transformed
from hopyard.training.unchanged import Unchanged
from hopyard.wording import unstyled

_RATE = "/learning_rate"
_log = logging.getLogger("hopyard")


class ReplicaArguments(Protocol):
    """The part of a KerasEstimator that its replica uses."""

    batch_size: int
    inputs: Inputs
    sample_weight_column: str | None
    class_weight: ClassWeight | None
    callbacks: list[Any]
    model_update_fn: Callable[[Any, int, dict[str, Any]], Any] | None
    transform: BatchTransform | None
    val_transform: BatchTransform | None

    def compiled_model(self) -> Any: ...

    @property
    def compiled_with(self) -> list[Any]: ...


class KerasReplica(Replica):
    """See :class:`hopyard.training.estimator.Replica`; the arguments' meaning is KerasEstimator's.

    Its first visit has it share a compiled model with trials of the same architecture; until then, and in a process
    that only predicts, its model is its own.
    """

    framework = "keras"

    def __init__(self, estimator: ReplicaArguments, context: Context) -> None:
        self._estimator = estimator
        self.batch_size: int = estimator.batch_size
        self._model = estimator.compiled_model()
        claim(self._model)
        self._binding = self._make_binding(context)
        self._callbacks = Callbacks(estimator.callbacks, self._model, context.num_epochs)
        self._params = context.params
        self._graph_streams = context.graph_streams
        self._steps_per_epoch = epoch_steps(context, estimator.batch_size, accumulate=1)
        self._num_epochs = context.num_epochs
        self._updated = 0  # epochs for which this model was updated
        self._begins: tuple[int, Mapping[str, float] | None] = (0, None)
        self._compiled: Compiled | None = None
        self._holder = Holder()
        self._loaded: list[
            Mapping[str, Any]
        ] = []  # states, in the order in which they came, of a model not yet built
        self._shares = False
        self._unchanged = Unchanged(self._untrained)
        if all(layer.built for layer in self._model._flatten_layers()):
            self._build(None)

    def _make_binding(self, context: Context) -> Binding:
        given = self._estimator
        return Binding(
            self._model,
            given.inputs,
            context.feature_columns,
            context.label_columns,
            given.sample_weight_column,
            given.class_weight,
        )

    @property
    def module(self) -> Any:
        """The Keras model, with this trial's values; one that knows no shapes yet is not built."""
        if self._compiled is None:
            return self._model
        self._compiled.take(self._holder)
        return self._compiled.model

    def _build(self, arguments: tuple[Any, ...] | None) -> Compiled:
        """Make the variables that are not there yet; some follow from a batch only."""
        model = self._model
        with all_trainable(model) if self._estimator.model_update_fn else nullcontext():
            if arguments is not None:
                model._symbolic_build(data_batch=arguments)
            elif not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
        self._compiled = compiled = Compiled(self._model)
        self._holder = compiled.holder()
        self._names = names_of(compiled.weights), names_of(compiled.optimizer)
        self._shapes = [variable.shape for variable in compiled.variables]
        for tree in self._loaded:
            self._take_over(tree, compiled)
        self._loaded.clear()
        return compiled

    def _ready(self, arguments: tuple[Any, ...]) -> Compiled:
        """The compiled model, ready to train and validate such batches."""
        compiled = self._compiled or self._build(arguments)
        compiled.take(self._holder)
        compiled.model._symbolic_build(data_batch=arguments)  # metrics and losses, at its first batch
        correct_losses(compiled.model)
        return compiled

    def sharing(self, arguments: tuple[Any, ...]) -> Compiled:
        """The compiled model of the architecture, ready to train and validate such batches."""
        compiled = self._ready(arguments)
        given = self._estimator
        if not self._shares and given.model_update_fn is None:
            self._shares = True
            key = architecture(
                compiled.model, *given.compiled_with, *keras.tree.map_structure(_kind, arguments)
            )
            other = shared(key, compiled)
            if other is not compiled:
                self._holder = Holder()
                self._holder.values = values_of(compiled.variables)
                self._compiled = other
        return self._ready(arguments)

    def check_labels(self, visit: Visit) -> None:
        for arguments in self._arguments(self._training_batches(visit)):
            try:
                compiled = self._ready(arguments)
                check_validates(compiled.model)
                compiled.run("test", [arguments])
                check_answers(compiled.model, _labels(arguments), self._binding.output_shapes)
                check_thresholds(compiled.model)
                check_functions(compiled.model, arguments)
                check_additive(compiled.model, partial(compiled.run, "test"), arguments)
            except HopyardError:
                raise
            except Exception as error:
                raise EstimatorError(
                    f"The model, its loss or its metrics failed on a first batch, {_shapes(arguments)}: "
                    f"{_said(error)}. {_advice(error)}"
                ) from error
            return

    def begin_visit(self, epoch: int, history: Mapping[str, float] | None) -> None:
        self._begins = epoch, history  # once there are variables

    def _begin(self, compiled: Compiled) -> None:
        """Call the user's functions of epochs. The state has their effects in earlier visits already."""
        epoch, history = self._begins
        self._begins = epoch, None
        if self._updated <= epoch and self._estimator.model_update_fn is not None:
            before = compiled.values(self._holder)
            self._update(compiled, range(self._updated, epoch))
            first = history is not None
            if first:
                compiled.give(self._holder, before)
            self._update(compiled, range(epoch, epoch + 1))
            if not first:
                compiled.give(self._holder, before)
        if history is not None:
            self._callbacks.begin_epoch(compiled.model, epoch, logs_of(history))

    def _update(self, compiled: Compiled, epochs: range) -> None:
        update = self._estimator.model_update_fn
        assert update is not None
        for epoch in epochs:
            returned = update(compiled.model, epoch, dict(self._params))
            if returned is not None and returned is not compiled.model:
                raise EstimatorError(
                    "model_update_fn(model, epoch, params) returned another model, but must change the one that it is "
                    "given, such as which layers are trainable; end it without return."
                )
            self._updated = epoch + 1
        compiled.changed()

    @functools.cached_property
    def _packing(self) -> tuple[str, str]:
        """The signature, and why there is none."""
        given, model = self._estimator, self._model
        refusals = [
            (
                keras.backend.backend() != "jax",
                f"Keras trains one model at a time on {keras.backend.backend()}",
            ),
            (type(self) is not KerasReplica, "only models of a KerasEstimator train together"),
            (self._graph_streams > 0, "only steps of PyTorch models are captured in CUDA graphs"),
            (bool(given.callbacks), "it has callbacks"),
            (given.model_update_fn is not None, "a model_update_fn is given"),
            (given.transform is not None or given.val_transform is not None, "a transform is given"),
            (bool(model.run_eagerly) or not model.jit_compile, "its steps are not compiled"),
            (
                self._compiled is None,
                "the sizes of its layers follow from a first batch: give it a keras.Input",
            ),
        ]
        for refused, why in refusals:
            if refused:
                return "", why
        nbytes = sum(value.nbytes for value in values_of(model.weights))
        if nbytes > measuring.MOST_PARAMETERS:
            return "", measuring.too_large(nbytes)
        digest = architecture(model, *given.compiled_with)
        if digest is None:
            return "", "it has parts of which it cannot be told what they do"
        binding = [given.inputs, given.sample_weight_column, given.class_weight, given.batch_size]
        return repr([digest, binding]), ""

    @property
    def signature(self) -> str:
        return self._packing[0]

    @property
    def trains_alone(self) -> str:
        signature, why = self._packing
        if not signature:
            return why
        from hopyard.training.keras.pack import why_alone

        return why_alone(signature)

    @classmethod
    def train_together(
        cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
    ) -> list[dict[str, list[float]] | Exception] | None:
        from hopyard.training.keras.pack import train_together

        return train_together(replicas, visit, seeds)

    @classmethod
    def gain_together(cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]) -> float | None:
        from hopyard.training.keras.pack import gain_together

        return gain_together(replicas, visit, seeds)

    @classmethod
    def validate_together(
        cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
    ) -> list[KerasMetricSet | Exception] | None:
        from hopyard.training.keras.pack import validate_together

        return validate_together(replicas, visit, seeds)

    def training_arguments(self, visit: Visit) -> Iterator[tuple[Any, ...]]:
        """The model's arguments for each batch of a training visit."""
        return self._arguments(self._training_batches(visit))

    def validation_arguments(self, visit: Visit) -> Iterator[tuple[Any, ...]]:
        """The model's arguments for each batch of a validation visit."""
        return self._arguments(self._validation_batches(visit), weigh_classes=False)

    @property
    def holder(self) -> Holder:
        """Holder of this trial's values."""
        return self._holder

    def shares(self, compiled: Compiled) -> bool:
        """Whether it is ready to train and validate with that compiled model, as others of its architecture do."""
        return self._shares and self._compiled is compiled

    def note_unchanged(self) -> None:
        """Note tensors as they are before training, by which frozen ones are known."""
        self._unchanged.note()

    def steps_left(self, epoch: int) -> int:
        """Steps from the begin of an epoch to the end of the last one, if nothing stops the trial."""
        return (self._num_epochs - epoch) * self._steps_per_epoch

    def train(self, visit: Visit) -> dict[str, list[float]]:
        batches, compiled = self._opened(self.training_arguments(visit))
        with compiled.lock:
            self._unchanged.note()
            self._begin(compiled)
            compiled.model.reset_metrics()
            logs = compiled.run("train", batches)
            return self.trained(visit, compiled, logs)

    def trained(self, visit: Visit, compiled: Compiled, logs: Any) -> dict[str, list[float]]:
        """What ``train`` gives, of a model that has it in its variables."""
        found = results(compiled.model, logs)
        if not math.isfinite(found["loss"]):
            raise DivergedError(
                f"The loss became {found['loss']} in {visit}; lower the "
                "learning rate, set clipnorm of the optimizer, or look for values in the data that are not finite."
            )
        rows = float(self._trained_rows(visit))
        return {name: [value * rows, rows] for name, value in found.items()}

    def _trained_rows(self, visit: Visit) -> int:
        """Rows of a visit that has just been trained."""
        return len(visit.rows)

    def validate(self, visit: Visit) -> KerasMetricSet:
        return self._measured(*self._opened(self.validation_arguments(visit)))

    def _validation_batches(self, visit: Visit) -> Iterable[Any]:
        given = self._estimator
        columns = self._binding.columns(every_feature=given.val_transform is not None)
        batches = visit.validation_batches(given.batch_size, columns, "numpy")
        if given.val_transform is None:
            return batches
        return transformed(batches, given.val_transform, visit, "val_transform")

    def evaluate(self, batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        arguments = self._arguments(self._prepared(batches), weigh_classes=False)
        first = next(arguments)
        compiled = self._ready(first)
        return self._measured(self.checked(compiled, itertools.chain([first], arguments)), compiled).compute()

    def _measured(self, batches: Iterable[tuple[Any, ...]], compiled: Compiled) -> KerasMetricSet:
        with compiled.lock:
            compiled.model.reset_metrics()
            with compiled.with_averages():
                compiled.run("test", batches)
            return KerasMetricSet(compiled.model)

    def _opened(self, arguments: Iterator[tuple[Any, ...]]) -> tuple[Iterable[tuple[Any, ...]], Compiled]:
        """The model's arguments for each batch, and the compiled model, which the first batch may have built."""
        first = next(arguments)
        compiled = self.sharing(first)
        return self.checked(compiled, itertools.chain([first], arguments)), compiled

    def checked(self, compiled: Compiled, batches: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """The batches, whose labels fit the losses.

        Raises:
            EstimatorError: they do not.
        """
        for arguments in batches:
            check_answers(compiled.model, _labels(arguments), self._binding.output_shapes)
            yield arguments

    def _arguments(self, batches: Iterable[Any], weigh_classes: bool = True) -> Iterator[tuple[Any, ...]]:
        """The model's arguments. Classes weigh in training only, as in ``fit``; rows do in validation, too."""
        return (self._binding.arguments(batch, weigh_classes) for batch in batches)

    def _training_batches(self, visit: Visit) -> Iterable[Any]:
        given = self._estimator
        columns = self._binding.columns(every_feature=given.transform is not None)
        batches = visit.training_batches(given.batch_size, columns, "numpy")
        return (
            batches if given.transform is None else transformed(batches, given.transform, visit, "transform")
        )

    # State ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        if self._compiled is None:  # it has none yet
            return {"model": {}, "optimizer": {}}
        values = self._compiled.values(self._holder)
        weights, optimizer = self._names
        averages = self._compiled.averaged(values)
        given_out = [averages.get(number, value) for number, value in enumerate(values[: len(weights)])]
        tree = {
            "model": self._unchanged.marked(to_tree(weights, given_out).items()),
            "optimizer": to_tree(optimizer, values[len(weights) :]),
            "callbacks": self._callbacks.state(),
        }
        if averages:
            tree["trained"] = to_tree([weights[i] for i in averages], [values[i] for i in averages])
        return tree

    def _untrained(self) -> dict[str, Tensor]:
        """The tensors of the model's tree that are not trained now."""
        if self._compiled is None:
            return {}
        weights, values = self._compiled.weights, self._compiled.values(self._holder)
        named = zip(self._names[0], weights, values, strict=False)  # values of the optimizer follow
        return {name: Tensor.from_numpy(value) for name, weight, value in named if not weight.trainable}

    def load(self, tree: Mapping[str, Any]) -> None:
        if self._compiled is None:
            self._loaded.append(tree)
        else:
            self._take_over(tree, self._compiled)

    def _take_over(self, tree: Mapping[str, Any], compiled: Compiled) -> None:
        weights, optimizer = self._names
        shapes = self._shapes
        if "optimizer" in tree:
            self._unchanged.note()
        else:
            self._unchanged.forget()
        # Training goes on from what was trained, where what is given out are averages.
        own = {**tree["model"], **tree.get("trained", {})}
        values = from_tree("model", own, weights, shapes[: len(weights)])
        if "optimizer" in tree:
            values += from_tree("optimizer", tree["optimizer"], optimizer, shapes[len(weights) :])
        else:
            values += compiled.values(self._holder)[len(weights) :]
        self._callbacks.load(tree.get("callbacks", ()))
        compiled.give(self._holder, values)

    def adopt(self, tree: Mapping[str, Any]) -> None:
        """Keep this optimizer's rates: its variables of that name, and the arguments of its constructor."""
        own = {} if self._compiled is None else self.state()["optimizer"]
        rates = {name: value for name, value in own.items() if name.endswith(_RATE)}
        theirs = tree["optimizer"]
        alike = self._compiled is None or theirs.keys() == own.keys()
        try:
            trained = {"trained": tree.get("trained", {}), "optimizer": {**theirs, **rates}}
            self.load({"model": tree["model"]} | (trained if alike else {}))
        except EstimatorError as error:
            raise another_architecture(error) from error

    def hidden_state(self) -> list[str]:
        return [] if self._compiled is None else self._compiled.changed_attributes()

    def asks_epochs(self) -> str:
        return self._callbacks.asks_epochs()

    def nbytes(self) -> int:
        return 0 if self._compiled is None else self._compiled.nbytes

    # Predictions ----------------------------------------------------------------------------

    @property
    def prediction_columns(self) -> list[str]:
        return self._binding.prediction_columns

    @property
    def weight_column(self) -> str | None:
        return self._estimator.sample_weight_column

    def predict(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        size = self._estimator.batch_size
        names = [name for name in self.prediction_columns if name in batch]
        rows = len(batch[names[0]]) if names else 0
        pieces = ({name: batch[name][i : i + size] for name in names} for i in range(0, max(rows, 1), size))
        parts = [self._outputs(piece) for piece in self._prepared(pieces)]
        whole = tuple(map(joined_outputs, zip(*parts, strict=True)))
        return whole if len(whole) > 1 else whole[0]

    def _outputs(self, batch: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        inputs = (self._binding.inputs(batch),)
        compiled = self._compiled
        if compiled is None:
            self._model(keras.tree.map_structure(lambda a: keras.ops.zeros(a.shape, a.dtype), inputs[0]))
            compiled = self._build(None)
        with compiled.lock:
            compiled.take(self._holder)
            try:
                outputs = compiled.run("predict", [inputs])
            except Exception as error:
                raise EstimatorError(
                    f"The model failed on {_shapes(inputs)}: {_said(error)}. Give rows like those that it was "
                    "trained on."
                ) from error
        return [as_numpy(each) for each in keras.tree.flatten(outputs)]

    def _prepared(self, batches: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        transform = self._estimator.val_transform
        if transform is None:
            return batches
        return transformed(batches, transform, Visit(OneBatch({}), 0, 0, 0), "predict")

    def export_onnx(self, path: Path, example: Mapping[str, Any]) -> None:
        """Write the model to an ONNX file by Keras' own ``model.export``."""
        self._outputs(next(iter(self._prepared([example]))))
        try:
            self.module.export(str(path), format="onnx", verbose=False)
        except Exception as error:
            raise EstimatorError(
                f"Keras could not export the model to ONNX ({type(error).__name__}: {unstyled(str(error))}). On "
                "TensorFlow it needs the package tf2onnx, on JAX jax2onnx; model.keras().export(path, format=...) has "
                "other formats."
            ) from error
        if self._estimator.val_transform is not None:
            _log.warning(
                f"{path} does not do all that model.predict does; it leaves out val_transform= (its inputs are what "
                "that gives). Do that to what it is given."
            )


def _labels(arguments: tuple[Any, ...]) -> Any:
    """The labels of a batch; none, if the model computes its loss without."""
    return arguments[1] if len(arguments) > 1 else ()


def _kind(values: Any) -> str:
    return f"{values.dtype}{list(values.shape[1:])}"


def _shapes(arguments: tuple[Any, ...]) -> str:
    names = ("inputs", "labels", "weights")
    parts = [
        f"{name} {keras.tree.map_structure(_kind, value)}"
        for name, value in zip(names, arguments, strict=False)
    ]
    return ", ".join(parts)


def _said(error: Exception) -> str:
    """Text of an error of Keras, without colours, a graph's own traceback, and the inputs, which are said already."""
    text = unstyled(str(error)).partition("\n\nArguments received by")[0]
    if text.startswith("Graph execution error"):
        text = text.rstrip().rpartition("\n\n")[2].partition("\n\t [[")[0]
    return text.strip().rstrip(".")


def _advice(error: Exception) -> str:
    *_, innermost = traceback.walk_tb(error.__traceback__)
    if "categorical_crossentropy" in f"{innermost[0].f_code.co_name} {error}":
        return (
            "sparse_categorical_crossentropy takes class numbers from 0 to the number of outputs - 1, "
            "categorical_crossentropy rows with a number for each class."
        )
    return "Change the columns, the model's inputs and outputs, or the loss."
