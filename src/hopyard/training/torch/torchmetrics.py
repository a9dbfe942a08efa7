"""torchmetrics objects as metrics: their own states, merged by their own reductions, all parts at once."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hopyard.errors import MetricError
from hopyard.training.metric import Array, MetricState, StreamingMetric

_COUNT = "_update_count"


def is_torchmetric(value: Any) -> bool:
    """Whether ``value`` is a torchmetrics.Metric, without importing torchmetrics."""
    return any(
        base.__name__ == "Metric" and base.__module__.startswith("torchmetrics.")
        for base in type(value).__mro__
    )


class TorchMetric(StreamingMetric):
    """State: ``<part>/<state>`` or, for lists, ``<part>/<state>/<i>``, a part being what one object saw."""

    native = True

    def __init__(self, template: Any) -> None:
        self._template = template
        self._parts: list[dict[str, Any]] = []
        self._live: Any = None
        better = getattr(template, "higher_is_better", None)
        self.mode = None if better is None else "max" if better else "min"

    @property
    def state(self) -> MetricState:
        found: MetricState = {}
        for number, part in enumerate(self._all_parts()):
            for name, value in part.items():
                items = (
                    {f"/{i}": item for i, item in enumerate(value)}
                    if isinstance(value, list)
                    else {"": value}
                )
                found |= {f"{number}/{name}{suffix}": item.numpy() for suffix, item in items.items()}
        return found

    @state.setter
    def state(self, value: MetricState) -> None:
        self._live, self._parts = None, []
        parts: dict[str, dict[str, Any]] = {}
        for path, array in value.items():
            number, name, *index = path.split("/")
            part = parts.setdefault(
                number, {key: [] for key, kind in self._kinds() if isinstance(kind, list)}
            )
            tensor = torch.from_numpy(array.copy())
            if index:
                part[name].append(tensor)
            else:
                part[name] = tensor
        self._parts = list(parts.values())

    def _kinds(self) -> list[tuple[str, Any]]:
        return list(self._template._defaults.items())

    def _all_parts(self) -> list[dict[str, Any]]:
        if self._live is None:
            return self._parts
        own = {name: _on_cpu(getattr(self._live, name)) for name, _ in self._kinds()}
        return [*self._parts, {**own, _COUNT: torch.tensor(self._live._update_count)}]

    def update(self, outputs: Any, labels: Any, weights: Array | None = None) -> None:
        if weights is not None:
            raise MetricError(
                f"{type(self._template).__name__} of torchmetrics knows no row weights, but sample_weight_column was "
                "given; use a metric by name, or an object with update(outputs, labels, weights)."
            )
        if self._live is None:
            self._live = self._copy()
        if "classification" in type(self._template).__module__ and labels.is_floating_point():
            labels = labels.long()
        self._live.update(outputs, labels)

    def take(self, seen: Any) -> None:
        """Hold the rows that ``seen``, an object of the same kind, has seen until now, and no others."""
        self._parts, self._live = [], seen
        self._parts, self._live = self._all_parts(), None

    def merge(self, other: StreamingMetric) -> None:
        assert isinstance(other, TorchMetric)
        self._parts, self._live = [*self._all_parts(), *other._all_parts()], None

    def compute(self) -> float:
        parts = self._all_parts()
        if not parts:
            return float("nan")
        metric = self._copy()
        for name, _ in self._kinds():
            values = [part[name] for part in parts]
            setattr(metric, name, self._reduced(name, values, [int(part[_COUNT]) for part in parts]))
        metric._update_count = sum(int(part[_COUNT]) for part in parts)
        value = metric.compute()
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise MetricError(
                f"{type(metric).__name__} computes several values, but a metric is one number; choose an average."
            )
        return float(value)

    def _reduced(self, name: str, values: list[Any], counts: list[int]) -> Any:
        if isinstance(values[0], list):
            return [item for value in values for item in value]
        if len(values) == 1:
            return values[0]
        reduce = self._template._reductions[name]
        stacked = torch.stack(values) if len({value.shape for value in values}) == 1 else None
        kind = getattr(reduce, "__name__", "")
        if kind == "dim_zero_cat":
            return torch.cat(values)
        if kind == "dim_zero_mean" and stacked is not None:
            shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
            return torch.tensordot(shares, stacked.double(), dims=1).to(stacked.dtype)
        return stacked if reduce is None else reduce(stacked)

    def _copy(self) -> Any:
        metric = copy.deepcopy(self._template).cpu()
        metric.reset()
        return metric


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list):
        return [item.detach().cpu() for item in value]
    return value.detach().cpu()
