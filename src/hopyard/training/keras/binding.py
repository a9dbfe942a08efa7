"""Columns of a batch as the arguments of a Keras model: inputs, labels and row weights.

Columns are bound to a model's inputs by name if all inputs are called like columns, else in the order of
``feature_columns``, one each; labels to outputs likewise. Floating numbers become float32, all others stay as they
are stored: Keras casts them to an input's own dtype. Labels of one number a row get the shape of outputs of one number
a row, (n, 1), as Keras 2 gave them: metric functions subtract one from the other, and (n,) - (n, 1) is (n, n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend import compute_output_spec

from hopyard.errors import ColumnError, EstimatorError
from hopyard.training.estimator import ClassWeight, Inputs
from hopyard.training.keras.weights import class_table
from hopyard.wording import nearest


class Binding:
    """Binds columns of batches to the model's inputs, to labels and to row weights.

    Args:
        inputs: None: by name or in order; names: these columns in order; a dict: by input, a column or a list of
            scalar columns, stacked to (n, columns).
    """

    def __init__(
        self,
        model: keras.Model,
        inputs: Inputs,
        feature_columns: Sequence[str],
        label_columns: Sequence[str],
        weight_column: str | None,
        class_weight: ClassWeight | None,
    ) -> None:
        self.features: list[str] = list(feature_columns)
        self._weight = weight_column
        self._class_table = None if class_weight is None else class_table(class_weight)
        free = [name for name in feature_columns if name != weight_column]
        self._inputs, self._input_form = _bound_inputs(model, inputs, free)
        self._labels, self._label_form = _bound_labels(
            model, [name for name in label_columns if name != weight_column]
        )
        self._model = model
        self._output_shapes: list[tuple[int | None, ...]] | None = None  # until there is a batch
        unknown = [name for name in self.model_columns if name not in self.features]
        if unknown:
            raise EstimatorError(
                f"inputs names the column {unknown[0]!r}, which is not one of feature_columns {self.features}"
                f"{nearest(unknown[0], self.features, '.')} Correct the name, or add it to feature_columns."
            )

    @property
    def model_columns(self) -> list[str]:
        """The feature columns that the model takes."""
        return [name for group in self._inputs for name in group]

    @property
    def prediction_columns(self) -> list[str]:
        """The feature columns but that of row weights, unless the model takes it."""
        return [name for name in self.features if name != self._weight or name in self.model_columns]

    def columns(self, every_feature: bool) -> list[str]:
        """Columns that a pass reads; ``every_feature`` where a transform may look at any."""
        names = (self.features if every_feature else self.model_columns) + self._labels
        return list(dict.fromkeys(names if self._weight is None else [*names, self._weight]))

    def inputs(self, batch: Mapping[str, Any]) -> Any:
        """Arrays (n, ...) in the structure of the model's inputs."""
        arrays = [self._input(batch, group) for group in self._inputs]
        return keras.tree.pack_sequence_as(self._input_form, arrays)

    def arguments(self, batch: Mapping[str, Any], weigh_classes: bool) -> tuple[Any, ...]:
        """(inputs, labels), or with weights (inputs, labels, weights (n,) float32), as ``train_step`` takes them."""
        labels = self._label_arrays(batch)
        weights = self._weights(batch, labels if weigh_classes else None)
        inputs = self.inputs(batch)
        if self._output_shapes is None:
            self._output_shapes = shapes_of_outputs(self._model, inputs)
        if len(self._output_shapes) == len(labels):
            labels = [_shaped(*each) for each in zip(labels, self._output_shapes, strict=True)]
        packed = keras.tree.pack_sequence_as(self._label_form, labels)
        return (inputs, packed) if weights is None else (inputs, packed, weights)

    @property
    def output_shapes(self) -> list[tuple[int | None, ...]]:
        """The shapes of the model's outputs; none before a batch, or if the model does not tell them."""
        return self._output_shapes or []

    def _input(self, batch: Mapping[str, Any], group: Sequence[str]) -> np.ndarray[Any, Any]:
        arrays = [_numbers(batch, name, "feature") for name in group]
        if len(arrays) == 1:
            return arrays[0]
        shapes = {name: array.shape[1:] for name, array in zip(group, arrays, strict=True)}
        if any(shape not in ((), (1,)) for shape in shapes.values()):
            raise EstimatorError(
                f"inputs stacks columns with rows of shape {shapes}, but only scalar columns can be stacked; give the "
                "others inputs of their own."
            )
        return np.stack([array.reshape(-1) for array in arrays], axis=1)

    def _label_arrays(self, batch: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        arrays = [_numbers(batch, name, "label") for name in self._labels]
        stacked = len(keras.tree.flatten(self._label_form)) < len(arrays)
        return [np.stack([array.reshape(len(array)) for array in arrays], axis=1)] if stacked else arrays

    def _weights(
        self, batch: Mapping[str, Any], labels: list[np.ndarray[Any, Any]] | None
    ) -> np.ndarray[Any, Any] | None:
        weights = None
        if self._weight is not None:
            weights = _numbers(batch, self._weight, "weight").astype(np.float32).reshape(-1)
            if not (weights >= 0).all():
                bad = weights[~(weights >= 0)][0]
                raise EstimatorError(
                    f"sample_weight_column is {self._weight!r}, which holds {bad:g}, but weights are numbers of "
                    "at least 0. Give rows that should not count the weight 0."
                )
        if self._class_table is None or labels is None:
            return weights
        of_class = self._class_table(labels[0])
        return of_class if weights is None else of_class * weights


def _numbers(batch: Mapping[str, Any], name: str, role: str) -> np.ndarray[Any, Any]:
    if name not in batch:
        how = (
            "Add it to feature_columns"
            if role == "weight"
            else "Give all columns that the model was trained with"
        )
        raise ColumnError(
            f"The {role} column {name!r} is missing{nearest(name, batch, '.')} Given are {', '.join(batch)}. {how}; a "
            "transform must return it too."
        )
    value = batch[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise EstimatorError(
            f"The {role} column {name!r} holds {_kind(value)}, not numbers of one shape; encode or pad it when "
            "preparing the data, or turn it into an array of numbers in `transform`."
        )
    return value.astype(np.float32) if value.dtype.kind == "f" and value.dtype != np.float32 else value


def shapes_of_outputs(model: keras.Model, inputs: Any) -> list[tuple[int | None, ...]]:
    """The shapes of the model's outputs for such inputs; none if it cannot be called on them, which training says."""
    symbols = keras.tree.map_structure(
        lambda array: keras.KerasTensor(array.shape, keras.backend.standardize_dtype(array.dtype)), inputs
    )
    try:
        outputs = compute_output_spec(model, symbols, training=False)
    except Exception:  # the user's own code as well
        return []
    return [tuple(output.shape) for output in keras.tree.flatten(outputs)]


def _shaped(label: np.ndarray[Any, Any], output: tuple[int | None, ...]) -> np.ndarray[Any, Any]:
    """A label of one number a row in the shape of an output (n, 1, ...); other labels as they are."""
    is_scalar = len(output) > 1 and all(size == 1 for size in output[1:]) and label.size == len(label)
    return label.reshape(len(label), *output[1:]) if is_scalar else label


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype == object and len(value):
        return f"{type(value[0]).__name__} objects"
    return str(value.dtype) if isinstance(value, np.ndarray) else type(value).__name__


def _bound_inputs(model: keras.Model, inputs: Inputs, free: list[str]) -> tuple[list[list[str]], Any]:
    """The columns of each of the model's inputs, and their structure."""
    form = _form(model, "input")
    names = [] if form is None else [tensor.name for tensor in keras.tree.flatten(form)]
    columns = list(inputs) if inputs is not None else free
    if (
        form is None
        and isinstance(model, keras.Sequential)
        and (len(columns) > 1 or isinstance(inputs, Mapping))
    ):
        raise EstimatorError(
            f"A Sequential without keras.Input has one input, which is a single column; for the columns {free} begin "
            f"it with keras.Input(({len(free)},), name='x') and give inputs={{'x': [...]}}, which stacks scalar "
            "columns."
        )
    if isinstance(inputs, Mapping):
        return _of_mapping(inputs, names, form)
    if form is None:  # a model of the user's own class, which says nothing of its inputs
        return [[name] for name in columns], columns[0] if len(columns) == 1 else dict.fromkeys(columns)
    if inputs is None and all(name in columns for name in names):
        columns = names
    if len(columns) != len(names):
        raise EstimatorError(
            f"The model's inputs {names} match the feature columns {columns} neither by name nor in number. Name the "
            "inputs like columns, give feature_columns as many as there are inputs, or say which column goes "
            f"where: inputs={{{names[0]!r}: {columns[:2]}}} stacks scalar columns into one input."
        )
    return [[name] for name in columns], form


def _of_mapping(
    inputs: Mapping[str, str | Sequence[str]], names: list[str], form: Any
) -> tuple[list[list[str]], Any]:
    groups = {name: [group] if isinstance(group, str) else list(group) for name, group in inputs.items()}
    if form is None:
        return list(groups.values()), dict.fromkeys(groups)
    if set(groups) != set(names):
        raise EstimatorError(
            f"inputs= is for {sorted(groups)}, but the model's inputs are called {names}. Give each of them a column, "
            "or a list of scalar columns."
        )
    return [groups[name] for name in names], form


def _bound_labels(model: keras.Model, labels: list[str]) -> tuple[list[str], Any]:
    """The label columns in the order of the model's outputs, and the structure in which they are given."""
    form = _form(model, "output")
    if form is None:
        return labels, labels[0] if len(labels) == 1 else labels
    if len(keras.tree.flatten(form)) == 1:
        return labels, form
    names = list(model.output_names)
    if set(names) == set(labels):
        return names, form
    if len(names) != len(labels):
        raise EstimatorError(
            f"The model's outputs {names} match the label columns {labels} neither by name nor in number. Give "
            "label_columns one column for each output, in their order or of their names."
        )
    return labels, form


def _form(model: keras.Model, which: str) -> Any:
    """The structure of a model's inputs or outputs; None if it says nothing of them."""
    try:
        return getattr(model, which)
    except (AttributeError, ValueError):
        pass
    try:  # a Sequential has one of each, once it is built
        (only,) = getattr(model, f"{which}s")
    except (AttributeError, ValueError, TypeError):  # a class of the user's own
        return None
    return only
