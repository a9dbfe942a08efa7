"""Metrics by name, and the user's own.

=====================================  ====  ===========================================
name                                   mode  also
=====================================  ====  ===========================================
loss                                   min   always there
accuracy                               max   acc
top_<k>_accuracy                       max   top_k_accuracy (k = 5)
precision, recall, f1                  max   f1_score
auc                                    max   auroc, roc_auc
r2                                     max   r2_score
mse, rmse, mae, mape                   min   mean_squared_error, mean_absolute_error, ...
=====================================  ====  ===========================================

Of the user's own: a function ``fn(outputs, labels) -> value`` of the framework's tensors, whose values
per batch are averaged by rows; an object with ``update(outputs, labels, weights)``, ``merge(other)``
and ``compute()`` on NumPy arrays, which must pickle; with PyTorch, a torchmetrics object.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hopyard.errors import MetricError
from hopyard.objects.pickles import dumps
from hopyard.training.metric import Array, Mean, MetricState, StreamingMetric
from hopyard.training.metrics_classes import F1, Accuracy, Precision, Recall, TopKAccuracy
from hopyard.training.metrics_ranking import AUC
from hopyard.training.metrics_regression import (
    R2,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    RootMeanSquaredError,
)
from hopyard.wording import nearest

_ALIASES = {
    "acc": "accuracy",
    "top_k_accuracy": "top_5_accuracy",
    "f1_score": "f1",
    "auroc": "auc",
    "roc_auc": "auc",
    "r2_score": "r2",
    "mean_squared_error": "mse",
    "root_mean_squared_error": "rmse",
    "mean_absolute_error": "mae",
    "mean_absolute_percentage_error": "mape",
}
_COUNTING: dict[str, Callable[[bool | None], StreamingMetric]] = {
    "accuracy": Accuracy,
    "precision": Precision,
    "recall": Recall,
    "f1": F1,
}
_OTHERS: dict[str, Callable[[], StreamingMetric]] = {
    "auc": AUC,
    "r2": R2,
    "mse": MeanSquaredError,
    "rmse": RootMeanSquaredError,
    "mae": MeanAbsoluteError,
    "mape": MeanAbsolutePercentageError,
}
_TOP_K = re.compile(r"top_?([1-9]\d*)_accuracy")


def canonical(name: str) -> str:
    """The metric that ``name`` stands for: without ``val_``, aliases resolved."""
    name = name.removeprefix("val_")
    return _ALIASES.get(name, name)


def metric_named(name: str, logits: bool | None = None) -> StreamingMetric:
    """A fresh metric.

    Args:
        name: from the table above.
        logits: whether outputs of binary models are logits; None: their range tells.

    Raises:
        MetricError: there is none of that name.
    """
    plain = canonical(name)
    if plain in _COUNTING:
        return _COUNTING[plain](logits)
    if plain in _OTHERS:
        return _OTHERS[plain]()
    if match := _TOP_K.fullmatch(plain):
        return TopKAccuracy(int(match[1]))
    raise MetricError(
        f"The metric {name!r} is unknown{nearest(name, metric_names(), '.')} Known are "
        f"{', '.join([*_COUNTING, *_OTHERS])} and top_<k>_accuracy; others are given as a function "
        "fn(outputs, labels) or an object with update, merge and compute."
    )


def metric_names() -> list[str]:
    """Names that stand for a metric, aliases among them; top_<k>_accuracy for all k beside them."""
    return ["loss", *_COUNTING, *_OTHERS, *_ALIASES]


def metric_mode(name: str) -> str | None:
    """Better direction of the metric of that name, ``"max"`` or ``"min"``; None if it is not known."""
    if canonical(name) == "loss":
        return "min"
    try:
        return metric_named(name).mode
    except MetricError:
        return None


class FunctionMetric(Mean):
    """``fn(outputs, labels)`` per batch, averaged by rows. It is not told of weights, so that these do not count."""

    native = True

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.fn = fn

    def update(self, outputs: Any, labels: Any = None, weights: Array | None = None) -> None:
        rows = len(labels[0] if isinstance(labels, tuple) else labels)
        self.add(sum=self._value(outputs, labels) * rows, weight=rows)

    def _value(self, outputs: Any, labels: Any) -> float:
        value = self.fn(outputs, labels)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            given = (
                f"{type(value).__name__} of shape {tuple(value.shape)}"
                if hasattr(value, "shape")
                else repr(value)
            )
            raise MetricError(
                f"The metric {self.fn.__name__} returned {given}, but must return one number for a batch; "
                "end it with e.g. `return values.mean()`."
            ) from error


class ObjectMetric(StreamingMetric):
    """A user's object with update, merge and compute; its pickle is its state."""

    def __init__(self, template: Any) -> None:
        self._template = template
        self._live: Any = None
        self.mode: str | None = getattr(template, "mode", None)

    @property
    def state(self) -> MetricState:
        if self._live is None:
            return {}
        return {"pickle": np.frombuffer(dumps(self._live), np.uint8)}

    @state.setter
    def state(self, value: MetricState) -> None:
        self._live = pickle.loads(value["pickle"].tobytes()) if value else None

    def _object(self) -> Any:
        if self._live is None:
            self._live = copy.deepcopy(self._template)
        return self._live

    def update(self, outputs: Any, labels: Any, weights: Array | None = None) -> None:
        self._object().update(outputs, labels, weights)

    def merge(self, other: StreamingMetric) -> None:
        assert isinstance(other, ObjectMetric)
        if other._live is not None:
            self._object().merge(other._live)

    def compute(self) -> float:
        return float(self._object().compute())
