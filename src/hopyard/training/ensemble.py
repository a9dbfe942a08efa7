"""Programs of ensembles: several trained trials of a run as one model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hopyard.errors import EstimatorError
from hopyard.training.program import Program


@dataclass(frozen=True)
class EnsembleOf:
    """An estimator function that gives the ensemble of some of another one's models.

    Attributes:
        make: the user's function.
        params: the point of each member.
        weights: their shares in the mean.
    """

    make: Callable[[dict[str, Any]], Any]
    params: tuple[Mapping[str, Any], ...]
    weights: tuple[float, ...]

    def __call__(self, params: Mapping[str, Any]) -> Any:
        from hopyard.training.torch.ensemble import TorchEnsemble  # needs PyTorch

        made = [self.make(copy.deepcopy(dict(each))) for each in self.params]
        return TorchEnsemble(made, self.params, self.weights)


def ensemble_program(
    program: Program, params: Sequence[Mapping[str, Any]], weights: Sequence[float]
) -> Program:
    """The program of an ensemble of trials of ``program``.

    Raises:
        EstimatorError: its trials are those of an experiment.
    """
    make = program.estimator_gen_fn
    if hasattr(make, "of_trial"):
        raise EstimatorError(
            "An ensemble is made of the trials of a search, but these are of an experiment, whose code sees to its own "
            "data. Average what model.predict gives for each of run.models yourself."
        )
    return replace(program, estimator_gen_fn=EnsembleOf(make, tuple(params), tuple(weights)), init_from=None)
