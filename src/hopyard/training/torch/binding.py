"""Columns of a batch as a model's inputs, labels and row weights.

Features: floating ones become float32; integers int64 (what embeddings take), but uint8 tensors of
more than one number a row (images) stay uint8; bools stay bools. Labels: integers become int64, (n, 1)
as (n,); floating ones float32. Several label columns make a tuple, or, if all are floating scalars,
one tensor (n, columns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hopyard.data.ragged import Ragged
from hopyard.data.reading.views import Batch
from hopyard.data.schema import Schema
from hopyard.errors import ColumnError, EstimatorError
from hopyard.training.estimator import Inputs
from hopyard.training.torch.loss import Labels
from hopyard.wording import nearest

_FEATURES = {
    torch.float64: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int8: torch.int64,
    torch.int16: torch.int64,
    torch.int32: torch.int64,
    torch.uint8: torch.int64,
    torch.uint16: torch.int64,
    torch.uint32: torch.int64,
}


class Binding:
    """Binds columns of batches to the model's arguments, to labels and to row weights.

    Args:
        inputs: None: every feature column but that of row weights, positionally; names: these; a dict: keyword
            arguments, each a column's name or a list of scalar columns, stacked to (n, columns).
    """

    advice = (
        "Floating columns reach it as float32, integers as int64 (uint8 images as they are); store a column in another "
        "dtype, cast it in the model, or name other inputs=."
    )
    """What to do about a model that fails on its inputs."""

    def __init__(
        self,
        inputs: Inputs,
        feature_columns: Sequence[str],
        label_columns: Sequence[str],
        weight_column: str | None,
        device: torch.device,
    ) -> None:
        self.features: list[str] = list(feature_columns)
        self._labels = [name for name in label_columns if name != weight_column]
        self._weight = weight_column
        self._device = device
        self._keywords = dict(inputs) if isinstance(inputs, Mapping) else None
        given = [name for name in feature_columns if name != weight_column] if inputs is None else inputs
        self._positional = list(given)
        self._placed = [*self.features, *map(_group, self._keywords or ())]
        self._check_known()

    def _check_known(self) -> None:
        for name in self.model_columns:
            if name not in self.features:
                raise EstimatorError(
                    f"inputs names the column {name!r}, which is not one of feature_columns {self.features}"
                    f"{nearest(name, self.features, '.')} Correct the name, or add it to feature_columns."
                )

    @property
    def model_columns(self) -> list[str]:
        """The feature columns that the model takes."""
        if self._keywords is None:
            return self._positional
        groups = [[group] if isinstance(group, str) else list(group) for group in self._keywords.values()]
        return [name for group in groups for name in group]

    @property
    def besides(self) -> list[str]:
        """The columns of labels and of row weights."""
        return self._labels if self._weight is None else [*self._labels, self._weight]

    @property
    def signature(self) -> Any:
        """Columns that make each of the model's arguments, as a JSON value."""
        if self._keywords is None:
            return self._positional
        return {
            name: group if isinstance(group, str) else list(group) for name, group in self._keywords.items()
        }

    @property
    def prediction_columns(self) -> list[str]:
        """The feature columns but that of row weights, unless the model takes it."""
        return [name for name in self.features if name != self._weight or name in self.model_columns]

    def columns(self, every_feature: bool) -> list[str]:
        """Columns that a pass reads; ``every_feature`` where a transform or step may look at any."""
        return list(dict.fromkeys((self.features if every_feature else self.model_columns) + self.besides))

    def grouped(self, schema: Schema) -> dict[str, str | list[str]]:
        """Columns that a pass of the model alone reads, by names in a batch: those of one dtype that are stacked for an
        argument come as one array, which saves as many steps for each batch as there are columns."""
        uses = Counter([*self.model_columns, *self.besides])
        groups = {
            _group(argument): list(names)
            for argument, names in (self._keywords or {}).items()
            if not isinstance(names, str)
            and _group(argument) not in schema
            and _are_alike(schema, names)
            and all(uses[name] == 1 for name in names)
        }
        grouped = {name for names in groups.values() for name in names}
        return {name: name for name in self.columns(every_feature=False) if name not in grouped} | groups

    def place(self, batch: Mapping[str, Any]) -> Batch:
        """The batch with features and labels in their dtypes, on the device. Others stay as they are."""
        placed = dict(batch)
        for name in self._placed:
            if name in placed:
                placed[name] = self._move(_feature(placed[name]))
        for name in self._labels:
            if name in placed:
                placed[name] = self._move(_label(name, placed[name]))
        if self._weight is not None and self._weight in placed:
            placed[self._weight] = self._move(_row_weights(self._weight, placed[self._weight]))
        return placed

    def _move(self, value: Any) -> Any:
        if self._device.type == "cpu" or not isinstance(value, torch.Tensor):
            return value
        return value.to(self._device, non_blocking=True)

    def arguments(self, batch: Batch) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the model."""
        if self._keywords is None:
            return [self._input(batch, name) for name in self._positional], {}
        return [], {
            name: self._input(batch, group) if isinstance(group, str) else self._stack(batch, name, group)
            for name, group in self._keywords.items()
        }

    def _input(self, batch: Batch, name: str) -> torch.Tensor:
        try:
            value = batch[name]
        except KeyError:
            raise ColumnError(
                f"The column {name!r} is missing{nearest(name, batch, '.')} Given are {', '.join(batch)}. "
                "Give all feature columns that the model was trained with; a transform must return them too."
            ) from None
        if not isinstance(value, torch.Tensor):
            raise EstimatorError(
                f"The feature column {name!r} holds {_kind(value)}, not numbers of one shape; encode or pad it when "
                f"preparing the data, with preprocess=[Category({name!r})] if it holds texts, or turn it into a tensor "
                "in `transform`."
            )
        return value

    def _stack(self, batch: Batch, argument: str, names: Sequence[str]) -> torch.Tensor:
        if _group(argument) in batch:
            whole: torch.Tensor = batch[_group(argument)]
            return whole
        columns = [self._input(batch, name) for name in names]
        shapes = {name: tuple(column.shape[1:]) for name, column in zip(names, columns, strict=True)}
        if len(columns) == 1 and columns[0].ndim > 1:
            return columns[0]
        if any(shape not in ((), (1,)) for shape in shapes.values()):
            raise EstimatorError(
                f"inputs[{argument!r}] stacks columns with rows of shape {shapes}, but only scalar columns can be "
                "stacked; pass the others as arguments of their own."
            )
        dtype = columns[0].dtype
        if any(column.dtype != dtype for column in columns):
            dtype = torch.float32
        return torch.stack([column.reshape(-1).to(dtype) for column in columns], dim=1)

    def labels(self, batch: Batch) -> Labels:
        """The label tensor, or a tuple of them."""
        for name in self._labels:
            if name not in batch:
                raise ColumnError(
                    f"The label column {name!r} is missing{nearest(name, batch, '.')} Given are {', '.join(batch)}. "
                    "A transform must return the labels too."
                )
        if len(self._labels) == 1:
            label: torch.Tensor = batch[self._labels[0]]
            return label
        labels = [batch[name] for name in self._labels]
        if labels and all(label.is_floating_point() and label.ndim == 1 for label in labels):
            return torch.stack(labels, dim=1)
        return tuple(labels)

    def weights(self, batch: Batch) -> torch.Tensor | None:
        """(n,) float32 row weights, or None."""
        if self._weight is None:
            return None
        if self._weight not in batch:
            raise ColumnError(
                f"sample_weight_column is {self._weight!r}, but the columns are {', '.join(batch)}"
                f"{nearest(self._weight, batch, '.')} Add it to the search's feature_columns or label_columns; the "
                "model does not get it unless inputs names it."
            )
        weights: torch.Tensor = batch[self._weight]
        return weights

    def rows(self, batch: Batch) -> int:
        """Rows of a placed batch."""
        return len(
            batch[self._labels[0] if self._labels and self._labels[0] in batch else self.model_columns[0]]
        )


def _group(argument: str) -> str:
    """Name in a batch of the columns that are stacked for an argument."""
    return f"inputs[{argument!r}]"


def _are_alike(schema: Schema, names: Sequence[str]) -> bool:
    """Whether columns are scalars of one dtype, which the stacked array may have as well."""
    columns = [schema[name] for name in names if name in schema]
    dtypes = {column.dtype for column in columns}
    return (
        len(columns) == len(names)
        and len(dtypes) == 1
        and dtypes != {"uint8"}  # rows of which are taken for images
        and all(column.kind == "tensor" and not column.shape and not column.sparse for column in columns)
    )


def as_tensors(batch: Mapping[str, Any]) -> Batch:
    """A batch whose arrays of numbers are tensors."""
    return {name: _tensor(value) for name, value in batch.items()}


def _tensor(value: Any) -> Any:
    """Arrays as tensors that share their memory; a ``Ragged`` as one of tensors; strings as they are."""
    if isinstance(value, Ragged):
        return Ragged(_tensor(value.values), _tensor(value.offsets))
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    return value


def _feature(value: Any) -> Any:
    value = _tensor(value)
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.uint8 and value.ndim > 1:
        return value
    wanted = _FEATURES.get(value.dtype)
    return value if wanted is None else value.to(wanted)


def _kind(value: Any) -> str:
    """Content of a column that is no tensor, in words."""
    if isinstance(value, np.ndarray) and value.dtype == object and len(value):
        texts = "texts" if isinstance(value[0], str) else f"{type(value[0]).__name__} objects"
        return f"{texts} such as {value[0]!r}"
    return "rows of different lengths" if isinstance(value, Ragged) else type(value).__name__


def _row_weights(name: str, value: Any) -> torch.Tensor:
    value = _tensor(value)
    if not isinstance(value, torch.Tensor):
        raise EstimatorError(
            f"sample_weight_column is {name!r}, which holds {_kind(value)}, but weights are numbers of at least 0. "
            "Name another column, or make it numbers."
        )
    weights = value.to(torch.float32).reshape(-1)
    if not bool((weights >= 0).all()):
        bad = weights[~(weights >= 0)][0]
        raise EstimatorError(
            f"sample_weight_column is {name!r}, which holds {float(bad):g}, but weights are numbers of at least 0. "
            "Give rows that should not count the weight 0."
        )
    return weights


def _label(name: str, value: Any) -> torch.Tensor:
    value = _tensor(value)
    if isinstance(value, torch.Tensor) and value.dtype != torch.bool and not value.is_complex():
        label = value.to(torch.float32 if value.is_floating_point() else torch.int64)
        is_column = label.ndim == 2 and label.shape[1] == 1 and not label.is_floating_point()
        return label.flatten() if is_column else label
    if isinstance(value, np.ndarray) and value.dtype == object:
        raise EstimatorError(
            f"The label column {name!r} holds {type(value[0]).__name__} objects such as {value[0]!r}, but labels must "
            "be integers (classes) or floating numbers; number the classes when preparing the data, e.g. with "
            "numpy.unique(labels, return_inverse=True)[1]."
        )
    kind = value.dtype if isinstance(value, (torch.Tensor, np.ndarray)) else type(value).__name__
    raise EstimatorError(
        f"The label column {name!r} holds {kind}, but labels must be integers (classes) or floating numbers; "
        "convert it when preparing the data, e.g. with .astype('int64') for classes or 'float32' for yes/no "
        "with BCEWithLogitsLoss."
    )
