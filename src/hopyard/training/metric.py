"""The contract of streaming metrics: update / merge / compute over float64 states, and sets of metrics.

A metric's state is a dict of arrays that merges exactly: states of partitions, merged in any
grouping, give the value over all rows, not a mean of means. Rules for implementations:

* ``update(outputs, labels, weights)`` adds a batch of n rows. outputs and labels are arrays (n, ...)
  that the model gave and should have given; weights is (n,) float64 or None for all ones.
* ``merge(other)`` adds the state of another metric of the same kind; a fresh metric is neutral.
* ``compute()`` gives the value as float, nan if it is undefined (no rows, one class only for AUC).
* ``state`` holds all of it: a metric made anew, given this dict, goes on as this one.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
MetricState: TypeAlias = dict[str, Array]


class StreamingMetric(ABC):
    """A metric: see the module's text. ``mode``: the better direction, ``"max"`` or ``"min"``; None if unknown."""

    mode: str | None = None
    native = False
    """Whether ``update`` takes the framework's tensors instead of NumPy arrays."""

    def __init__(self) -> None:
        self.state: MetricState = {}

    @abstractmethod
    def update(self, outputs: Any, labels: Any, weights: Array | None = None) -> None:
        """Add a batch."""

    @abstractmethod
    def merge(self, other: StreamingMetric) -> None:
        """Add the rows that another metric of the same kind saw, after this one's."""

    @abstractmethod
    def compute(self) -> float:
        """The value over all rows so far."""

    def fresh(self) -> StreamingMetric:
        """A metric of the same kind that has seen nothing."""
        new = copy.copy(self)
        new.state = {}
        return new


class SumMetric(StreamingMetric):
    """A metric whose state adds up."""

    def add(self, **terms: Any) -> None:
        """Add float64 terms to the state's arrays of the same names."""
        for name, term in terms.items():
            term = np.asarray(term, np.float64)
            self.state[name] = self.state[name] + term if name in self.state else term

    def merge(self, other: StreamingMetric) -> None:
        self.add(**other.state)


class Mean(SumMetric):
    """A weighted mean of values, such as the loss."""

    def update(self, outputs: Any, labels: Any = None, weights: Array | None = None) -> None:
        raise TypeError("a mean is added to with add(sum=..., weight=...)")

    def compute(self) -> float:
        return divide(self.state["sum"], self.state["weight"]) if self.state else float("nan")


class MetricSet:
    """Named metrics of one validation, which keep their spelling.

    Args:
        loss: whether ``"loss"`` is among them, also where no row gives one.
    """

    def __init__(self, metrics: Mapping[str, StreamingMetric], loss: bool = True) -> None:
        self._templates, self._loss = dict(metrics), loss
        self.metrics: dict[str, StreamingMetric] = {"loss": Mean()} if loss else {}
        self.metrics.update({name: metric.fresh() for name, metric in metrics.items()})

    def mean(self, name: str, total: float, weight: float) -> None:
        """Add to the weighted mean ``name``, which begins here if it is new."""
        metric = self.metrics.setdefault(name, Mean())
        assert isinstance(metric, SumMetric)
        metric.add(sum=total, weight=weight)

    def states(self) -> dict[str, MetricState]:
        return {name: metric.state for name, metric in self.metrics.items()}

    def merged(self, parts: Iterable[Mapping[str, MetricState]]) -> dict[str, float]:
        """The values over the states of all parts, merged in this order."""
        total = MetricSet(self._templates, self._loss)
        for states in parts:
            part = MetricSet(self._templates, self._loss)
            for name, state in states.items():
                metric = part.metrics.setdefault(name, Mean())
                metric.state = dict(state)
                total.metrics.setdefault(name, Mean()).merge(metric)
        return total.compute()

    def compute(self) -> dict[str, float]:
        return {name: float(metric.compute()) for name, metric in self.metrics.items()}


def divide(numerator: Any, denominator: Any) -> float:
    """numerator / denominator, nan for 0/0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide(numerator, denominator))


def row_weights(weights: Array | None, rows: int) -> Array:
    """(n,) float64: the weights, or ones."""
    return np.ones(rows) if weights is None else np.asarray(weights, np.float64)
