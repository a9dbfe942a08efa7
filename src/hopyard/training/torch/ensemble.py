"""Several trained modules as one, whose outputs are the weighted means of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.training.estimator import Context, Estimator, Replica
from hopyard.training.torch.estimator import TorchEstimator
from hopyard.training.torch.replica import TorchReplica


def tree_of_members(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The tree of an ensemble's model, of those of its members: all that they have, by place and name."""
    return {
        f"members.{place}.{name}": value for place, tree in enumerate(trees) for name, value in tree.items()
    }


class MeanOfModels(nn.Module):
    """The weighted mean of the outputs of ``members``; ``weights`` are shares that add up to 1."""

    def __init__(self, members: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        self.members: nn.ModuleList = nn.ModuleList(members)
        self.weights: tuple[float, ...] = tuple(weights)

    def get_base_model(self) -> nn.Module:
        """The first of the members, whose arguments the ensemble takes; PEFT's wrappers have a method of that name."""
        return self.members[0]

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return mean_of_outputs([member(*arguments, **keywords) for member in self.members], self.weights)


class TorchEnsemble(Estimator):
    """An estimator of an ensemble, which predicts and is not trained. What is around the modules, such as ``inputs``,
    ``val_transform``, ``loss``, ``metrics`` and ``predict``, is the first one's.

    Raises:
        EstimatorError: one of the estimators cannot be a member.
    """

    def __init__(
        self, estimators: Sequence[Estimator], params: Sequence[Mapping[str, Any]], weights: Sequence[float]
    ) -> None:
        for estimator in estimators:
            check_member(estimator)
        self.members: list[TorchEstimator] = [each for each in estimators if isinstance(each, TorchEstimator)]
        self.params: Sequence[Mapping[str, Any]] = params
        self.weights: Sequence[float] = weights
        self.batch_size: int = self.members[0].batch_size

    def replica(self, context: Context) -> Replica:
        return EnsembleReplica(self, context)


class EnsembleReplica(TorchReplica):
    """The ensemble on a device. The tree of its model is that of ``MeanOfModels``: see ``tree_of_members``."""

    def __init__(self, ensemble: TorchEnsemble, context: Context) -> None:
        first, *others = [replace(context, params=params) for params in ensemble.params]
        super().__init__(ensemble.members[0], first)
        made = zip(ensemble.members[1:], others, strict=True)
        self._others = [TorchReplica(estimator, its) for estimator, its in made]
        self.module: MeanOfModels = MeanOfModels(
            [self._head, *(other.module for other in self._others)], ensemble.weights
        )
        self._forward.module = self.module

    def load(self, tree: Mapping[str, Any]) -> None:
        model = tree["model"]
        of_member = [dict[str, Any]() for _ in range(1 + len(self._others))]
        for name, value in model.items():
            _, place, own = name.split(".", 2)
            of_member[int(place)][own] = value
        super().load({"model": of_member[0]})
        for other, its in zip(self._others, of_member[1:], strict=True):
            other.load({"model": its})

    def held(self) -> dict[str, Any]:
        members = [super().held(), *(other.held() for other in self._others)]
        return {"model": tree_of_members([each["model"] for each in members])}

    def give_out(self) -> nn.Module:
        for other in self._others:
            other.give_out()
        return super().give_out()

    def evaluate(self, batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        self._apply_attributes()
        return super().evaluate(batches)

    def predict(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        self._apply_attributes()
        return super().predict(batch)

    def _apply_attributes(self) -> None:
        """Give the other members the attributes that training has changed."""
        for other in self._others:
            other._attributes.apply()


def check_replica(replica: TorchReplica) -> None:
    """Raises EstimatorError, as ``check_member``, if the model cannot be a member of an ensemble."""
    check_member(replica._estimator)


class Outputs:
    """The outputs of a trained model for batches that are gone through several times, so that ensembles of models are
    measured without running these again: bit for bit as the ensembles would be.

    Args:
        replica: of the model; its batches are those of ``evaluate``.
    """

    def __init__(self, replica: Any, batches: Iterable[Mapping[str, Any]]) -> None:
        recorder = _Recorder(replica.module)
        with torch.no_grad():
            evaluate_with(replica, recorder, batches)
        self.outputs: list[Any] = recorder.outputs


def measured(
    replica: Any, members: Sequence[Outputs], weights: Sequence[float], batches: Iterable[Mapping[str, Any]]
) -> dict[str, float]:
    """Loss and metrics of the ensemble of models with these outputs for the batches. ``replica``: of the first one."""
    calls = zip(*(member.outputs for member in members), strict=True)
    return evaluate_with(replica, _Playback(calls, weights), batches)


def evaluate_with(
    replica: TorchReplica, module: nn.Module, batches: Iterable[Mapping[str, Any]]
) -> dict[str, float]:
    """Evaluate with another module in the place of the replica's."""
    own, replica._forward.module = replica._forward.module, module
    try:
        return replica.evaluate(batches)
    finally:
        replica._forward.module = own


class _Recorder(nn.Module):
    """A module, keeping what it gives."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.outputs: list[Any] = []

    def get_base_model(self) -> nn.Module:
        """The module, whose arguments this one takes, as PEFT's wrappers say it."""
        return self.module

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        found = self.module(*arguments, **keywords)
        self.outputs.append(_without_caches(found))
        return found


class _Playback(nn.Module):
    """In the place of an ensemble, gives its outputs by those that its members gave at the same calls."""

    def __init__(self, calls: Iterable[Sequence[Any]], weights: Sequence[float]) -> None:
        super().__init__()
        self._calls, self._weights = iter(calls), tuple(weights)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return mean_of_outputs(next(self._calls), self._weights)


def check_member(estimator: Estimator) -> None:
    """
    Raises:
        EstimatorError: the models of the estimator cannot be members of an ensemble.
    """
    kind = type(estimator)
    if not isinstance(estimator, TorchEstimator) or kind.replica is not TorchEstimator.replica:
        raise EstimatorError(
            f"An ensemble has members that a TorchEstimator trained, but these are of {kind.__name__}. Average "
            "what model.predict gives for each of run.models yourself."
        )
    if estimator.trunk is not None:
        raise EstimatorError(
            "An ensemble has members without trunk=, whose weights are no part of theirs. Average what model.predict "
            "gives for each of run.models yourself, or train without trunk=."
        )


def mean_of_outputs(outputs: Sequence[Any], weights: Sequence[float]) -> Any:
    """The weighted mean of what several models gave for the same batch: of tensors, also in tuples, lists and dicts, in
    the order of the models. Caches of language models have no mean, and are left out.

    Raises:
        EstimatorError: outputs have no mean; says why.
    """
    outputs = list(map(_without_caches, outputs))
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return _mean(outputs, weights)
    if isinstance(first, Mapping) and all(other.keys() == first.keys() for other in outputs):
        means = {key: mean_of_outputs([each[key] for each in outputs], weights) for key in first}
        return means if type(first) is dict else type(first)(**means)
    if type(first) in (list, tuple) and all(len(other) == len(first) for other in outputs):
        return type(first)(mean_of_outputs(each, weights) for each in zip(*outputs, strict=True))
    raise EstimatorError(
        f"A model gives {', '.join(dict.fromkeys(type(each).__name__ for each in outputs))}, but the outputs of an "
        "ensemble are the means of its members': let models return tensors, or tuples or dicts of them, of the same "
        "length and names."
    )


def _without_caches(outputs: Any) -> Any:
    """Outputs of a model of transformers without those that are neither tensors nor collections: caches."""
    if not isinstance(outputs, Mapping) or type(outputs) is dict:
        return outputs
    rest = {
        name: each
        for name, each in outputs.items()
        if isinstance(each, torch.Tensor | Mapping | list | tuple)
    }
    return outputs if len(rest) in (0, len(outputs)) else type(outputs)(**rest)


def _mean(outputs: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    first = outputs[0]
    shapes = dict.fromkeys(
        f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}" for each in outputs
    )
    if not first.is_floating_point() or first.ndim == 0 or len({each.shape for each in outputs}) > 1:
        raise EstimatorError(
            f"Models give {' and '.join(shapes)}, but the outputs of an ensemble are the means of its members': let "
            "models return floating point numbers for each row, all of one shape."
        )
    total = outputs[0] * weights[0]
    for output, weight in zip(outputs[1:], weights[1:], strict=True):
        total = total + output * weight
    return total
