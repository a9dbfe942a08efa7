"""Keras' metrics over partitions: what they gather in variables adds up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from hopyard.training.keras.state import as_numpy, assign, values_of
from hopyard.training.metric import MetricSet, State

_KEY = "keras"


class KerasMetricSet(MetricSet):
    """The metrics of a model as they are now, with its loss."""

    def __init__(self, model: Any) -> None:
        super().__init__({})
        self._model = model
        self._values = values_of(model.metrics_variables)

    def states(self) -> dict[str, State]:
        return {_KEY: {str(number): value for number, value in enumerate(self._values)}}

    def merged(self, parts: Iterable[Mapping[str, State]]) -> dict[str, float]:
        total: list[Any] = [np.zeros_like(value, _sum_dtype(value)) for value in self._values]
        for states in parts:
            for number in range(len(total)):
                total[number] = total[number] + states[_KEY][str(number)]
        return self._results(total)

    def compute(self) -> dict[str, float]:
        return self._results(self._values)

    def _results(self, values: list[Any]) -> dict[str, float]:
        variables = self._model.metrics_variables
        assign(variables, [value.astype(own.dtype) for value, own in zip(values, self._values, strict=True)])
        return results(self._model)


def results(model: Any, logs: Any = None) -> dict[str, float]:
    """What the model's metrics come to, by name, ``"loss"`` first; arrays (a value a class) are averaged.

    Args:
        logs: what the last step returned; counts if it has other names, as those of a ``train_step`` of the user's.
    """
    found = dict(model.get_metrics_result())
    if isinstance(logs, Mapping) and set(logs) != set(found):
        found = dict(logs)
    values = {
        name: float(np.mean(as_numpy(keras.ops.convert_to_tensor(value)))) for name, value in found.items()
    }
    return {"loss": values.pop("loss", math.nan), **values}


def _sum_dtype(value: Any) -> Any:
    return np.float64 if value.dtype.kind == "f" or value.dtype.kind == "V" else value.dtype
