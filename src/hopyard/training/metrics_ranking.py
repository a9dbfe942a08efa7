"""The area under the ROC curve, exact: ties count half, rows may be weighted, no binning.

It is the probability that a positive row scores above a negative one (Mann-Whitney), so it needs all
scores: the state grows with the rows.
"""

from __future__ import annotations

import numpy as np

from hopyard.training.metric import Array, MetricState, StreamingMetric, row_weights
from hopyard.training.metrics_classes import counted_classes, is_class_index, yes_as


class AUC(StreamingMetric):
    """Binary, multi-label (mean over labels) or multi-class (one against the rest, mean over classes).

    Outputs (n, C) with integer labels are compared by their softmax, unless all rows are
    probabilities already; with two classes, by the second output against the first. Labels below 0 are not counted.
    State: ``scores`` (n, C) in the outputs' dtype, ``labels`` (n,) or (n, C), ``weights`` (n,).
    """

    mode: str | None = "max"

    def __init__(self) -> None:
        self._parts: list[MetricState] = []

    @property
    def state(self) -> MetricState:
        """All parts as one; joined only when asked for, since every batch is a part."""
        if len(self._parts) > 1:
            names = self._parts[0]
            self._parts = [{name: np.concatenate([part[name] for part in self._parts]) for name in names}]
        return self._parts[0] if self._parts else {}

    @state.setter
    def state(self, value: MetricState) -> None:
        self._parts = [value] if value else []

    def update(self, outputs: Array, labels: Array, weights: Array | None = None) -> None:
        weight = row_weights(weights, len(outputs))
        if is_class_index(outputs, labels):
            outputs, labels, weight = counted_classes(outputs, labels, weight)
        else:
            labels = yes_as(outputs, labels)
        self._parts.append(
            {
                "scores": outputs.reshape(len(outputs), -1).copy(),
                "labels": labels.astype(np.int32),
                "weights": weight,
            }
        )

    def merge(self, other: StreamingMetric) -> None:
        if other.state:
            self._parts.append(other.state)

    def compute(self) -> float:
        if not self.state:
            return float("nan")
        scores, labels, weights = self.state["scores"], self.state["labels"], self.state["weights"]
        if labels.ndim == 2:
            areas = [area(scores[:, i], labels[:, i] == 1, weights) for i in range(scores.shape[1])]
        elif scores.shape[1] == 2:
            areas = [area(scores[:, 1].astype(np.float64) - scores[:, 0], labels == 1, weights)]
        else:
            shares = _as_probabilities(scores)
            areas = [area(shares[:, i], labels == i, weights) for i in range(scores.shape[1])]
        return float(np.mean(areas))


def area(scores: Array, positive: Array, weights: Array) -> float:
    """Area under the ROC curve of (n,) scores; nan if only one class has weight."""
    if not np.isfinite(scores).all():
        return float("nan")
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    up = np.add.reduceat(np.where(positive, weights, 0.0)[order], starts)
    down = np.add.reduceat(np.where(positive, 0.0, weights)[order], starts)
    if up.sum() == 0 or down.sum() == 0:
        return float("nan")
    below = np.cumsum(down) - down
    return float((up * (below + down / 2)).sum() / (up.sum() * down.sum()))


def _as_probabilities(scores: Array) -> Array:
    shares: Array = scores.astype(np.float64)
    if (shares >= 0).all() and np.allclose(shares.sum(axis=1), 1, atol=1e-3):
        return shares
    powers: Array = np.exp(shares - shares.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers
