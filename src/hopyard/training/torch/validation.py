"""The validation pass: loss and metrics over batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from hopyard.errors import MetricError
from hopyard.training.metric import MetricSet, StreamingMetric
from hopyard.training.torch.forward import BatchResult, Forward, on_cpu
from hopyard.wording import nearest


@torch.no_grad()
def measure(
    forward: Forward, batches: Iterable[Mapping[str, Any]], metrics: MetricSet, step_metrics: list[str]
) -> MetricSet:
    """Add all batches to ``metrics``; ``step_metrics`` are names of values that a step must give.

    Raises:
        MetricError: a metric does not fit the model's outputs, or a step gives other values.
    """
    forward.module.eval()
    for batch in batches:
        placed = forward.binding.place(batch)
        rows = forward.binding.rows(placed)
        result = forward(placed, training=False)
        if result.labels is not None:
            forward.check_fit(result.outputs, result.labels)
        weight = float(rows) if result.weight is None else float(result.weight)
        if weight:  # else the loss ignores all labels of the batch, and is 0 / 0
            loss = float(result.loss)
            metrics.mean("loss", loss if forward.loss_is_sum else loss * weight, weight)
        _check_values(result, step_metrics)
        for name, value in result.values.items():
            metrics.mean(name, float(value) * rows, rows)
        row_weights = forward.binding.weights(placed)
        _update(metrics.metrics, result, None if row_weights is None else row_weights.double().cpu().numpy())
    return metrics


def _update(
    metrics: dict[str, StreamingMetric], result: BatchResult, weights: np.ndarray[Any, Any] | None
) -> None:
    if result.labels is None or len(metrics) == 1:
        return
    outputs, labels = on_cpu(result.outputs), on_cpu(result.labels)
    for name, metric in metrics.items():
        if name == "loss":
            continue
        if metric.native:
            metric.update(outputs, labels, weights)
        elif isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor):
            metric.update(outputs.numpy(), labels.numpy(), weights)
        else:
            raise MetricError(
                f"The metric {name!r} needs one output and one label column, but the model gives "
                f"{type(outputs).__name__} and the labels are {type(labels).__name__}; "
                "use a function fn(outputs, labels)."
            )


def _check_values(result: BatchResult, expected: list[str]) -> None:
    for name in expected:
        if name not in result.values:
            given = ", ".join(result.values) or "nothing but 'loss'"
            raise MetricError(
                f"metrics names {name!r}, but step returned {given}{nearest(name, result.values, '.')} "
                "Return it from step, or leave it out of metrics."
            )
