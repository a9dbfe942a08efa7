"""What a unit of a training run is: the call that the hopper submits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hopyard.backend.output import set_tag
from hopyard.hopper.scheduler import Unit
from hopyard.hopper.state import TrialState
from hopyard.storage import Store
from hopyard.training import UnitRequest, UnitResult, run_unit


class TrainingWork:
    """Makes requests for ``hopyard.training.run_unit``.

    Args:
        folder: the run's folder.
        program: name of the run's program in it.
    """

    def __init__(self, folder: Store, program: str) -> None:
        self._folder, self._program = folder, program

    def __call__(
        self, unit: Unit, trials: Sequence[TrialState], save: bool
    ) -> tuple[Callable[[UnitRequest], UnitResult], tuple[UnitRequest]]:
        request = UnitRequest(
            store=self._folder,
            program=self._program,
            trials=tuple(trial.number for trial in trials),
            params=tuple(trial.params for trial in trials),
            phase=unit.phase,
            epoch=unit.epoch,
            partition=unit.partition,
            position=unit.trained,
            states=tuple(trial.progress.state for trial in trials),
            homes=tuple(_home(trial) for trial in trials),
            save=save,
            last=unit.last,
            carried=tuple(trial.progress.carried for trial in trials),
            log_tail="hopyard.backend.output:last_lines",
        )
        return run_tagged, (request,)


def _home(trial: TrialState) -> int:
    """Number of the trial in whose folder the state is."""
    return trial.number if trial.progress.home is None else trial.progress.home


def run_tagged(request: UnitRequest) -> UnitResult:
    """``run_unit``, with what it prints marked by its trial."""
    set_tag("trial " + ", ".join(map(str, request.trials)))
    return run_unit(request)
