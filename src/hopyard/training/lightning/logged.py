"""Values that a module gives to ``self.log`` in one pass, as sums over rows and mergeable metrics."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hopyard.errors import EstimatorError, MetricError
from hopyard.training.metric import MetricSet
from hopyard.training.torch.torchmetrics import TorchMetric, is_torchmetric
from hopyard.training.torch.training import Sums

_OWN_LOSS = "loss that the module logs"
_MEANS = ("mean", "avg", torch.mean)


class Logged:
    """Stands in for ``log`` of a module, with the same arguments. Values stay on the device, as losses do.

    Args:
        phase: ``"train"`` or ``"val"``: names may begin with it, histories put it before all of them.
        where: of the pass, for messages about losses that are not finite; None: they may be so.

    Attributes:
        rows: of the batch that values are about.
        sums: what was logged so far; a loss that a step returned is the pass's, unless the module logs one itself.
    """

    def __init__(self, phase: str, where: str | None = None) -> None:
        self._phase = phase
        self._spelled: dict[str, str] = {}
        self.rows = 0
        self.sums: Sums = Sums(where)
        self.metrics: dict[str, Any] = {}

    def __call__(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[[Any], Any] = "mean",
        *,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        """Note a value.

        Args:
            on_epoch: False: it is no value of the epoch, and is left out.
            batch_size: rows that the value is about.
            options: of several processes, which a search has not; and of bars and loggers.
        """
        if on_epoch is False:
            return
        if reduce_fx not in _MEANS:
            raise MetricError(
                f"self.log({name!r}, ..., reduce_fx={getattr(reduce_fx, '__name__', reduce_fx)!r}) was called, but "
                "values are averaged over rows; log a torchmetrics object, such as SumMetric, MaxMetric or MinMetric."
            )
        key = self._key(name)
        if is_torchmetric(value):
            self.metrics[key] = value
        elif isinstance(value, numbers.Number) or (isinstance(value, torch.Tensor) and value.numel() == 1):
            # Not the tensor itself: it may hold a graph, and change in place before it is read.
            number = value.detach().clone() if isinstance(value, torch.Tensor) else value
            key = _OWN_LOSS if key == "loss" else key
            self.sums.note(key, number, self.rows if batch_size is None else batch_size)
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

    def _means(self) -> dict[str, list[float]]:
        totals = dict(self.sums.totals())
        if own := totals.pop(_OWN_LOSS, None):
            totals["loss"] = own
        return totals

    def totals(self, rows: int) -> dict[str, list[float]]:
        """``{name: [sum, weight]}`` of a training pass; a metric object's value counts as that of ``rows`` rows.

        Raises:
            DivergedError: a loss is not finite.
            MetricError: an object computes something else than one number.
        """
        metrics = {
            key: [_taken(metric).compute() * rows, float(rows)] for key, metric in self.metrics.items()
        }
        return {**self._means(), **metrics}

    def metric_set(self) -> MetricSet:
        """The values of a validation pass, to be merged with those of other partitions.

        Raises:
            EstimatorError: there is no loss among them.
        """
        totals = self._means()
        total, weight = totals.pop("loss")
        taken = {key: _taken(metric) for key, metric in self.metrics.items()}
        if "loss" not in taken:
            if not weight and self.rows:
                raise EstimatorError(
                    "validation_step neither logged val_loss nor returned the loss; call self.log('val_loss', loss) "
                    "in it."
                )
            totals["loss"] = [total, weight]
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


def metrics_of(module: torch.nn.Module) -> list[Any]:
    """The torchmetrics objects in ``module``, and all that is inside of them."""
    outermost = [
        part
        for part in module.modules()
        if is_torchmetric(part) or type(part).__module__ == "torchmetrics.collections"
    ]
    return list({id(part): part for metric in outermost for part in metric.modules()}.values())


@contextmanager
def fresh(module: torch.nn.Module) -> Iterator[None]:
    """The metrics in ``module`` have seen nothing when a pass begins, and nothing once it is over."""
    own = [metric for metric in metrics_of(module) if is_torchmetric(metric)]
    for metric in own:
        metric.reset()
    try:
        yield
    finally:
        for metric in own:
            metric.reset()
