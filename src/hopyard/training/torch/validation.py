"""The validation pass: loss and metrics over batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from hopyard.data.reading.views import Batch
from hopyard.errors import MetricError
from hopyard.training.metric import MetricSet, StreamingMetric
from hopyard.training.metrics import ObjectMetric
from hopyard.training.torch.forward import BatchResult, Forward, on_cpu
from hopyard.training.torch.loss import Labels
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
        add_batch(forward, placed, forward(placed, training=False), metrics, step_metrics)
    return metrics


def add_batch(
    forward: Forward, placed: Batch, result: BatchResult, metrics: MetricSet, step_metrics: list[str]
) -> None:
    """Add the result of one batch to ``metrics``.

    Raises:
        MetricError: as :func:`measure`.
    """
    rows = forward.binding.rows(placed)
    weight = float(rows) if result.weight is None else float(result.weight)
    _check_values(result, step_metrics)
    if weight:  # else the loss ignores all labels of the batch, and is 0 / 0
        if result.loss.numel():
            loss = float(result.loss)
            metrics.mean("loss", loss if forward.loss_is_sum else loss * weight, weight)
        for name, value in result.values.items():
            metrics.mean(name, float(value) * weight, weight)
    row_weights = forward.binding.weights(placed)
    if result.labels is not None and len(metrics.metrics) > 1:
        assert forward.loss is not None
        counted = on_cpu(forward.loss.counted(result.labels))
        weights = None if row_weights is None else row_weights.double().cpu().numpy()
        _update(metrics.metrics, on_cpu(result.outputs), on_cpu(result.labels), counted, weights)


def _update(
    metrics: dict[str, StreamingMetric],
    outputs: Any,
    labels: Labels,
    counted: Labels,
    weights: np.ndarray[Any, Any] | None,
) -> None:
    """Add a batch to all metrics but the loss; those of the user's own get all labels."""
    for name, metric in metrics.items():
        if name == "loss":
            continue
        if metric.native:
            metric.update(outputs, labels, weights)
        elif isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor):
            its = labels if isinstance(metric, ObjectMetric) else counted
            assert isinstance(its, torch.Tensor)
            metric.update(outputs.numpy(), its.numpy(), weights)
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
