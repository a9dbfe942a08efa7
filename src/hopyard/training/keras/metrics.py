"""Keras' metrics over partitions: their variables hold sums, which add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from hopyard.errors import MetricError
from hopyard.training.keras.loss import is_of_answers, losses_of
from hopyard.training.keras.state import as_numpy, assign, values_of
from hopyard.training.metric import MetricSet, MetricState

_KEY = "keras"


class KerasMetricSet(MetricSet):
    """The metrics of a model as they are now, with its loss."""

    def __init__(self, model: Any) -> None:
        super().__init__({})
        self._model = model
        self._values = values_of(model.metrics_variables)

    def states(self) -> dict[str, MetricState]:
        return {_KEY: {str(number): value for number, value in enumerate(self._values)}}

    def merged(self, parts: Iterable[Mapping[str, MetricState]]) -> dict[str, float]:
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
    """Values of the model's metrics by name, ``"loss"`` first; arrays (a value a class) are averaged.

    Args:
        logs: of the last step; they count if they have other names, as those of a ``train_step`` of the user's.
    """
    found = dict(model.get_metrics_result())
    given = _flat(logs) if isinstance(logs, Mapping) else found
    if set(given) != set(found):
        found = {name: value for name, value in given.items() if value is not None}
    values = {
        name: float(np.mean(as_numpy(keras.ops.convert_to_tensor(value)))) for name, value in found.items()
    }
    return {"loss": values.pop("loss", math.nan), **values}


def _flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, also from dicts inside: the result of metrics that ``compile`` made is a dict."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(_flat(value) if isinstance(value, Mapping) else {name: value})
    return flat


def _sum_dtype(value: Any) -> Any:
    return np.float64 if value.dtype.kind == "f" or value.dtype.kind == "V" else value.dtype


def check_additive(
    model: Any, run: Callable[[list[tuple[Any, ...]]], object], arguments: tuple[Any, ...]
) -> None:
    """Check, on the two halves of a batch, that the variables of the user's own metrics add up.

    Args:
        run: tests the model on batches.

    Raises:
        MetricError: a metric keeps something else than sums.
    """
    parts = [part for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
    own = [part for part in parts if not type(part).__module__.startswith("keras.")]
    middle = len(keras.tree.flatten(arguments)[0]) // 2
    if not own or not middle:
        return
    halves = [keras.tree.map_structure(lambda a, cut=cut: a[cut], arguments) for cut in _cuts(middle)]
    variables = [variable for metric in own for variable in metric.variables]

    def after(*batches: tuple[Any, ...]) -> list[Any]:
        model.reset_metrics()
        run(list(batches))
        return [value.astype(_sum_dtype(value)) for value in values_of(variables)]

    one, other, both = after(halves[0]), after(halves[1]), after(*halves)
    for index, variable in enumerate(variables):
        if not np.allclose(one[index] + other[index], both[index], rtol=1e-3, atol=1e-5, equal_nan=True):
            metric = next(m for m in own if any(each is variable for each in m.variables))
            raise MetricError(
                f"The metric {metric.name!r} ({type(metric).__name__}) keeps {variable.name!r}, which does not add up: "
                f"{_short(one[index])} on one half of a batch, {_short(other[index])} on the other, "
                f"{_short(both[index])} on both. Partitions are validated apart and what a metric keeps is added, so "
                "update_state must add sums to its variables (of values, and of rows), and result() divide them; what "
                "stays the same belongs into an attribute."
            )


def check_thresholds(model: Any) -> None:
    """See that metrics of yes/no answers do not take logits for shares from 0 to 1, as Keras' do by default.

    Raises:
        MetricError: a loss says that outputs are logits, and a metric of these compares them with 0.5 and the like.
    """
    compiled = model._compile_metrics
    if compiled is None or not compiled.built:
        return
    of_outputs = compiled._flat_metrics, compiled._flat_weighted_metrics
    for number, loss in enumerate(losses_of(model, len(of_outputs[0]))):
        if not (is_of_answers(loss) and loss._fn_kwargs.get("from_logits")):
            continue
        for metrics in (found[number] for found in of_outputs if number < len(found)):
            for metric in () if metrics is None else metrics.metrics:
                if _takes_shares(metric):
                    raise MetricError(
                        f"The loss {loss.name} says that outputs are logits (from_logits=True), but the metric "
                        f"{metric.name!r} ({type(metric).__name__}) takes them for shares from 0 to 1. Give the model "
                        "a sigmoid and the loss no from_logits, or metrics of logits: BinaryAccuracy(threshold=0.0), "
                        "Precision(thresholds=0.0), Recall(thresholds=0.0), AUC(from_logits=True)."
                    )


def _takes_shares(metric: Any) -> bool:
    kinds = keras.metrics
    if isinstance(metric, kinds.BinaryAccuracy):
        return bool(metric._fn_kwargs["threshold"] == 0.5)
    if isinstance(metric, kinds.BinaryIoU):
        return bool(metric.threshold == 0.5)
    if isinstance(metric, kinds.AUC):
        return not metric._from_logits
    at_points = (
        kinds.PrecisionAtRecall,
        kinds.RecallAtPrecision,
        kinds.SensitivityAtSpecificity,
        kinds.SpecificityAtSensitivity,
    )
    if isinstance(metric, at_points):
        return True
    by_default = getattr(metric, "init_thresholds", 0.5) is None
    return by_default and getattr(metric, "top_k", None) is None


def check_functions(model: Any, arguments: tuple[Any, ...]) -> None:
    """See that metric functions of the user's own compare each row with itself, though labels come as (n, 1).

    A function for labels (n,), such as ``y_true - y_pred[:, 0]``, would compare every label with every prediction: its
    value stays the same as labels go round, and changes where it gets the labels that it is for.

    Raises:
        MetricError: one compares all with all.
    """
    compiled = model._compile_metrics
    if compiled is None or not compiled.built:
        return
    labels = compiled._flatten_y(arguments[1])
    for of_output in (compiled._flat_metrics, compiled._flat_weighted_metrics):
        for metrics, label in zip(of_output, labels, strict=False):
            for metric in () if metrics is None else metrics.metrics:
                function = getattr(metric, "_fn", None)
                if function is None or getattr(function, "__module__", "").startswith("keras."):
                    continue
                if _compares_all(function, metric._fn_kwargs, np.asarray(label)):
                    raise MetricError(
                        f"The metric function {metric.name!r} compares every label with every prediction: labels of "
                        "one number a row come as (n, 1), like outputs, and it takes them for (n,). Compare y_true "
                        "with y_pred as it is, not with y_pred[:, 0], or reshape both of them to (-1,)."
                    )


def _compares_all(function: Callable[..., Any], options: Mapping[str, Any], label: Any) -> bool:
    if label.ndim != 2 or label.shape[1] != 1:
        return False
    guesses = np.random.default_rng(0).uniform(0.05, 0.95, label.shape).astype(np.float32)

    def changes(labels: Any) -> bool:
        turned = (np.roll(labels, by, axis=0) for by in range(min(len(labels), 5)))
        tensors = [keras.ops.convert_to_tensor(each) for each in turned]
        values = [function(each, keras.ops.convert_to_tensor(guesses), **options) for each in tensors]
        means = [float(np.mean(as_numpy(value))) for value in values]
        return not np.allclose(means, means[0], rtol=1e-4, atol=1e-6, equal_nan=True)

    try:
        return not changes(label) and changes(label[:, 0])
    except Exception:  # the function's own, for labels that it is not for
        return False


def _cuts(middle: int) -> tuple[slice, slice]:
    return slice(None, middle), slice(middle, None)


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=4, threshold=4, edgeitems=1)
