"""What a module tells ``self.log`` in one pass, as sums over rows and mergeable metrics."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hopyard.errors import EstimatorError, MetricError
from hopyard.training.metric import MetricSet
from hopyard.training.torch.torchmetrics import TorchMetric, is_torchmetric
from hopyard.training.torch.training import diverged, floats

_FLUSH = 256
_RETURNED = "returned loss"
_MEANS = ("mean", "avg", torch.mean)


class Logged:
    """Stands in for ``log`` of a module, with the same arguments. Values stay on the device, as losses do.

    Args:
        phase: ``"train"`` or ``"val"``: names may begin with it, histories put it before all of them.
        where: of the pass, for messages.
    """

    def __init__(self, phase: str, where: str) -> None:
        self._phase = phase
        self._where = where
        self._rows = 0
        self._seen: dict[str, int] = {}
        self._noted: dict[str, tuple[list[Any], list[float]]] = {}
        self._totals: dict[str, list[float]] = {}
        self._spelled: dict[str, str] = {}
        self.metrics: dict[str, Any] = {}

    def of(self, rows: int) -> None:
        """What is logged next is about ``rows`` rows."""
        self._rows = rows

    def __call__(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[[Any], Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        if on_epoch is False:
            return  # asked not to be a value of the epoch
        if reduce_fx not in _MEANS:
            raise MetricError(
                f"self.log({name!r}, ..., reduce_fx={getattr(reduce_fx, '__name__', reduce_fx)!r}) was called, but "
                "values are averaged over rows; log a torchmetrics object, such as SumMetric, MaxMetric or MinMetric."
            )
        key = self._key(name)
        if is_torchmetric(value):
            self.metrics[key] = value
        elif isinstance(value, numbers.Number) or (isinstance(value, torch.Tensor) and value.numel() == 1):
            self._note(key, value, self._rows if batch_size is None else batch_size)
        else:
            given = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            )
            raise MetricError(
                f"self.log({name!r}, ...) was given {given}, but must be given one number or a torchmetrics object."
            )

    def _key(self, name: str) -> str:
        key = name.removeprefix(f"{self._phase}_").removeprefix(f"{self._phase}/")
        if self._spelled.setdefault(key, name) != name:
            raise MetricError(
                f"{self._spelled[key]!r} and {name!r} were both logged, which histories call {self._phase}_{key}; "
                "log one of them, or give it another name."
            )
        return key

    def loss(self, value: torch.Tensor) -> None:
        """A step returned this loss: the pass's, unless the module logs one itself."""
        self._note(_RETURNED, value, self._rows)

    def _note(self, key: str, value: Any, weight: float) -> None:
        values, weights = self._noted.setdefault(key, ([], []))
        # Not the tensor itself: it may hold a graph, and change in place before it is read.
        values.append(value.detach().clone() if isinstance(value, torch.Tensor) else value)
        weights.append(weight)
        if len(values) == _FLUSH:
            self._flush(key)

    def _flush(self, key: str) -> None:
        values, weights = self._noted.pop(key)
        found = floats(values)
        seen = self._seen.get(key, 0)
        if key in ("loss", _RETURNED) and self._phase == "train" and not np.isfinite(found).all():
            bad = int(np.flatnonzero(~np.isfinite(found))[0])
            raise diverged(found[bad], self._where, seen + bad + 1)
        self._seen[key] = seen + len(found)
        total = self._totals.setdefault(key, [0.0, 0.0])
        total[0] += math.fsum(found * np.asarray(weights, np.float64))
        total[1] += math.fsum(weights)

    def _means(self) -> dict[str, list[float]]:
        """``{name: [sum, weight]}`` of all values."""
        for key in list(self._noted):
            self._flush(key)
        totals = dict(self._totals)
        returned = totals.pop(_RETURNED, None)
        return totals if returned is None else {"loss": returned, **totals}

    def totals(self, rows: int) -> dict[str, list[float]]:
        """``{name: [sum, weight]}`` of a training pass; a metric object's value counts as that of ``rows`` rows.

        Raises:
            DivergedError: a loss is not finite.
            MetricError: an object computes something else than one number.
        """
        totals = self._means()
        for key, metric in self.metrics.items():
            totals[key] = [_taken(metric).compute() * rows, float(rows)]
        return totals

    def updated_but_not_logged(self, metrics: Mapping[str, Any]) -> list[str]:
        """The names of those of ``metrics`` that have seen something, and that are not, nor are in, one that was
        logged."""
        kept = {id(metric) for metric in self.metrics.values()}
        logged = tuple(f"{name}." for name, metric in metrics.items() if id(metric) in kept)
        return [
            name
            for name, metric in metrics.items()
            if getattr(metric, "_update_count", 0) and not f"{name}.".startswith(logged)
        ]

    def metric_set(self) -> MetricSet:
        """What a validation pass gave, to be merged with that of other partitions.

        Raises:
            EstimatorError: there is no loss among it.
        """
        totals = self._means()
        if "loss" not in totals and "loss" not in self.metrics:
            raise EstimatorError(
                "validation_step neither logged val_loss nor returned the loss; call self.log('val_loss', loss) in it."
            )
        taken = {key: _taken(metric) for key, metric in self.metrics.items()}
        found = MetricSet(taken)
        for key, metric in taken.items():
            found.metrics[key].state = metric.state
        for key, (total, weight) in totals.items():
            found.mean(key, total, weight)
        return found


def _taken(metric: Any) -> TorchMetric:
    taken = TorchMetric(metric)
    taken.take(metric)
    return taken


def metrics_of(module: torch.nn.Module) -> dict[str, Any]:
    """The torchmetrics objects in ``module``, and what is inside of them, by name."""
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        owner = name
        while owner and owner not in found:
            owner = owner.rpartition(".")[0]
        if owner or is_torchmetric(part) or type(part).__module__ == "torchmetrics.collections":
            found[name] = part
    return found


@contextmanager
def fresh(metrics: Iterable[Any]) -> Iterator[None]:
    """These have seen nothing when a pass begins, and nothing once it is over."""
    own = [metric for metric in metrics if is_torchmetric(metric)]
    for metric in own:
        metric.reset()
    try:
        yield
    finally:
        for metric in own:
            metric.reset()
