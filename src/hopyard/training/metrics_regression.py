"""Metrics of regression: MSE, RMSE, MAE, MAPE, R2. Outputs and labels have as many elements.

Rows weigh by their weights, elements of a row equally. Definitions are scikit-learn's, but RMSE is
the root of the mean over all elements also when a row has several.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hopyard.training.metric import Array, MetricState, StreamingMetric, SumMetric, divide, row_weights
from hopyard.training.metrics_classes import answers_as


class _ErrorMean(SumMetric):
    """The weighted mean of an error per element."""

    mode: str | None = "min"

    @abstractmethod
    def error(self, outputs: Array, labels: Array) -> Array:
        """Error of each element: (rows, elements)."""

    def update(self, outputs: Array, labels: Array, weights: Array | None = None) -> None:
        outputs, labels = _columns(outputs, labels)
        weight = row_weights(weights, len(outputs))
        total = weight @ self.error(outputs, labels).sum(axis=1)
        self.add(sum=total, weight=weight.sum() * outputs.shape[1])

    def compute(self) -> float:
        return divide(self.state["sum"], self.state["weight"]) if self.state else float("nan")


class MeanSquaredError(_ErrorMean):
    """Mean of (output - label)^2."""

    def error(self, outputs: Array, labels: Array) -> Array:
        squared: Array = (outputs - labels) ** 2
        return squared


class RootMeanSquaredError(MeanSquaredError):
    """Square root of the mean squared error."""

    def compute(self) -> float:
        return float(np.sqrt(super().compute()))


class MeanAbsoluteError(_ErrorMean):
    """Mean of |output - label|."""

    def error(self, outputs: Array, labels: Array) -> Array:
        distance: Array = np.abs(outputs - labels)
        return distance


class MeanAbsolutePercentageError(_ErrorMean):
    """Mean of |output - label| / |label| as a fraction; labels of 0 count as 2.2e-16."""

    def error(self, outputs: Array, labels: Array) -> Array:
        share: Array = np.abs(outputs - labels) / np.maximum(np.abs(labels), np.finfo(np.float64).eps)
        return share


class R2(StreamingMetric):
    """Coefficient of determination, the mean over the D elements of a row.

    State: ``weight`` (), ``mean`` (D,) of labels, ``spread`` (D,) their squared deviations from it and
    ``residual`` (D,) squared errors. Means and deviations merge by Chan, Golub and LeVeque (1983), which
    does not cancel for labels far from 0.
    """

    mode: str | None = "max"

    def update(self, outputs: Array, labels: Array, weights: Array | None = None) -> None:
        outputs, labels = _columns(outputs, labels)
        weight = row_weights(weights, len(outputs))
        total = weight.sum()
        if total == 0:
            return
        mean = weight @ labels / total
        spread = weight @ (labels - mean) ** 2
        self._join(total, mean, spread, weight @ (outputs - labels) ** 2)

    def merge(self, other: StreamingMetric) -> None:
        if other.state:
            self._join(*(other.state[name] for name in ("weight", "mean", "spread", "residual")))

    def _join(self, weight: Array, mean: Array, spread: Array, residual: Array) -> None:
        if self.state:
            own, own_mean = self.state["weight"], self.state["mean"]
            apart = mean - own_mean
            total = own + weight
            spread = self.state["spread"] + spread + apart**2 * (own * weight / total)
            mean = own_mean + apart * (weight / total)
            weight, residual = total, self.state["residual"] + residual
        self.state: MetricState = {
            "weight": np.asarray(weight, np.float64),
            "mean": mean,
            "spread": spread,
            "residual": residual,
        }

    def compute(self) -> float:
        if not self.state:
            return float("nan")
        spread, residual = self.state["spread"], self.state["residual"]
        # Constant labels: 1 if they are met exactly, else 0, as scikit-learn says it.
        share = np.divide(residual, spread, out=(residual > 0).astype(np.float64), where=spread > 0)
        return float(np.mean(1 - share))


def _columns(outputs: Array, labels: Array) -> tuple[Array, Array]:
    """Outputs and labels as (n, D) float64."""
    labels = answers_as(outputs, labels)
    return (
        outputs.reshape(len(outputs), -1).astype(np.float64),
        labels.reshape(len(outputs), -1).astype(np.float64),
    )
