"""Metrics of classification from counts: accuracy, top-k accuracy, precision, recall, F1.

Outputs and labels decide what is counted:

* labels int64 (n, ...), outputs (n, C, ...): the class of the largest output. With two classes,
  precision, recall and F1 are those of class 1, as in scikit-learn's default; with more they are
  macro means over the classes that labels or predictions contain. Labels below 0 (such as the
  ``ignore_index`` -100 of PyTorch's losses) are not counted.
* labels of as many elements as outputs: each element is a yes/no question of its own (binary, or
  multi-label with outputs (n, L)); accuracy is the share of right answers, the others are macro
  means over the L labels. "Yes" is an output above 0 if outputs are logits, above 0.5 if they are
  shares from 0 to 1; the loss says which, or the user: it is never guessed.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hopyard.errors import MetricError
from hopyard.training.metric import Array, SumMetric, divide, row_weights


class Counts(SumMetric):
    """True positives, predicted and actual counts per class.

    State: ``hits``, ``predicted``, ``actual`` (C,); ``right`` and ``weight`` () elements; ``answers`` () elements that
    were yes/no questions.

    Args:
        logits: whether outputs to yes/no questions are logits; None: nobody said.
    """

    mode: str | None = "max"

    def __init__(self, logits: bool | None = None) -> None:
        super().__init__()
        self.logits = logits

    def update(self, outputs: Array, labels: Array, weights: Array | None = None) -> None:
        weight = row_weights(weights, len(outputs))
        if is_class_index(outputs, labels):
            self._count_classes(outputs, labels, weight)
        else:
            self._count_answers(outputs, yes_as(outputs, labels), weight)

    def _count_classes(self, outputs: Array, labels: Array, weight: Array) -> None:
        spread = np.broadcast_to(weight.reshape((-1,) + (1,) * (labels.ndim - 1)), labels.shape)
        chosen, labels, spread = outputs.argmax(axis=1).ravel(), labels.ravel(), spread.ravel()
        if len(labels) and labels.min() < 0:
            counted = labels >= 0
            chosen, labels, spread = chosen[counted], labels[counted], spread[counted]
        self._add_classes(chosen, labels, chosen == labels, spread, outputs.shape[1])

    def _add_classes(self, chosen: Array, labels: Array, right: Array, weight: Array, classes: int) -> None:
        hits = np.bincount(labels[right], weight[right], minlength=classes)
        self.add(
            hits=hits,
            predicted=np.bincount(chosen, weight, minlength=classes),
            actual=np.bincount(labels, weight, minlength=classes),
            right=hits.sum(),
            weight=weight.sum(),
            answers=0,
        )

    def _count_answers(self, outputs: Array, yes: Array, weight: Array) -> None:
        if self.logits is None:
            raise MetricError(
                f"The {type(self).__name__.lower()} of yes/no answers, outputs {outputs.shape}, counts an output as "
                "yes above 0 if outputs are logits, above 0.5 if they are shares from 0 to 1, and the loss does not "
                "say which. Give the estimator logits=True or logits=False, or a loss that says it, such as "
                "torch.nn.BCEWithLogitsLoss() or torch.nn.BCELoss()."
            )
        outputs = outputs.reshape(len(outputs), -1)
        said = outputs > (0.0 if self.logits else 0.5)
        column = weight[:, None]
        self.add(
            hits=((said & yes) * column).sum(axis=0),
            predicted=(said * column).sum(axis=0),
            actual=(yes * column).sum(axis=0),
            right=((said == yes) * column).sum(),
            weight=weight.sum() * outputs.shape[1],
            answers=outputs.size,
        )


class Accuracy(Counts):
    """Share of rows (or elements) that are right."""

    def _add_classes(self, chosen: Array, labels: Array, right: Array, weight: Array, classes: int) -> None:
        # Counts per class would be all of the work here, and are not needed.
        self.add(right=weight[right].sum(), weight=weight.sum())

    def compute(self) -> float:
        return divide(self.state["right"], self.state["weight"]) if self.state else float("nan")


class _ClassMean(Counts):
    """A ratio per class, averaged over the classes that occur (two classes: class 1)."""

    @abstractmethod
    def ratio(self, hits: Array, predicted: Array, actual: Array) -> Array:
        """Ratio of each class, from numbers of its rows: hit, predicted, and actual."""

    def compute(self) -> float:
        if not self.state:
            return float("nan")
        hits, predicted, actual = (self.state[name] for name in ("hits", "predicted", "actual"))
        if not self.state["answers"]:
            occurs = np.array([False, True]) if len(hits) == 2 else (predicted > 0) | (actual > 0)
            hits, predicted, actual = hits[occurs], predicted[occurs], actual[occurs]
        return float(np.mean(self.ratio(hits, predicted, actual))) if len(hits) else float("nan")


class Precision(_ClassMean):
    """Share of the rows (or elements) predicted to be of a class that are of it; 0 without such."""

    def ratio(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return _ratio_or_zero(hits, predicted)


class Recall(_ClassMean):
    """Share of the rows (or elements) of a class that were predicted to be of it; 0 without such."""

    def ratio(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return _ratio_or_zero(hits, actual)


class F1(_ClassMean):
    """Harmonic mean of precision and recall; 0 if both are."""

    def ratio(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return _ratio_or_zero(2 * hits, predicted + actual)


class TopKAccuracy(SumMetric):
    """Share of rows whose class is among the k largest outputs; a tie counts for the model.

    Rows whose label is below 0 are not counted.
    """

    mode: str | None = "max"

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def update(self, outputs: Array, labels: Array, weights: Array | None = None) -> None:
        if not is_class_index(outputs, labels):
            raise MetricError(
                f"top_{self.k}_accuracy was given outputs {outputs.shape} and labels {labels.dtype} "
                f"{labels.shape}, but needs outputs (n, classes) and integer labels (n,)."
            )
        outputs, labels, weight = counted_classes(outputs, labels, row_weights(weights, len(outputs)))
        own = np.take_along_axis(outputs, labels[:, None], axis=1)
        # Not "larger": a nan is never among the k.
        above = (~(outputs <= own)).sum(axis=1)
        right = (above < self.k) & np.isfinite(own[:, 0])
        self.add(right=weight[right].sum(), weight=weight.sum())

    def compute(self) -> float:
        return divide(self.state["right"], self.state["weight"]) if self.state else float("nan")


def is_class_index(outputs: Array, labels: Array) -> bool:
    """Whether integer labels index axis 1 of outputs."""
    return (
        np.issubdtype(labels.dtype, np.integer)
        and outputs.ndim == labels.ndim + 1
        and not (outputs.ndim == 2 and outputs.shape[1] == 1)
    )


def counted_classes(outputs: Array, labels: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Outputs (n, classes), labels (n,) and weights (n,) of the elements that are counted, of outputs (rows, classes,
    ...), integer labels (rows, ...) and weights (rows,)."""
    if labels.ndim > 1:
        weight = np.repeat(weight, labels[0].size if len(labels) else 0)
        outputs = np.moveaxis(outputs, 1, -1).reshape(-1, outputs.shape[1])
        labels = labels.reshape(-1)
    if len(labels) and labels.min() < 0:
        counted = labels >= 0
        outputs, labels, weight = outputs[counted], labels[counted], weight[counted]
    return outputs, labels, weight


def answers_as(outputs: Array, labels: Array) -> Array:
    """Labels in the outputs' shape.

    Raises:
        MetricError: they have another number of elements.
    """
    if labels.size != outputs.size:
        raise MetricError(
            f"A metric was given outputs {outputs.shape} and labels {labels.dtype} {labels.shape}, but needs "
            "integer labels (n,) for outputs (n, classes), or as many labels as outputs."
        )
    return labels.reshape(outputs.shape)


def yes_as(outputs: Array, labels: Array) -> Array:
    """(n, answers) bool: which labels say yes, beside outputs (n, ...).

    Raises:
        MetricError: labels have another number of elements, or are no answers.
    """
    labels = answers_as(outputs, labels)
    bad = labels[(labels > 1) | ((labels < 0) & (labels != -1))]
    if len(bad):
        raise MetricError(
            f"Accuracy, precision, recall, f1 and auc were given the label {float(bad[0]):g}, but answers go from 0 "
            "(no; also -1) to 1 (yes). For labels that are numbers, name r2, mse, rmse, mae or mape."
        )
    yes: Array = labels.reshape(len(outputs), -1) > 0.5
    return yes


def _ratio_or_zero(numerator: Array, denominator: Array) -> Array:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
