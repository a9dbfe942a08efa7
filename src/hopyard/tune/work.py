"""Units of a training run, as the calls that the hopper submits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hopyard.backend.preflight import WorkerFacts
from hopyard.hopper.scheduler import Unit
from hopyard.hopper.state import TrialState
from hopyard.storage import Store
from hopyard.training import UnitRequest, UnitResult
from hopyard.training.task import run_tagged
from hopyard.tune.whereabouts import Whereabouts


class TrainingWork:
    """Makes requests for ``hopyard.training.run_unit``.

    Args:
        folder: the run's folder.
        program: name of the run's program in it.
        like: facts of the worker that all others must be like.
        places: where the partitions' blocks are, by phase; empty: unknown.
        together: trials may train together.
    """

    def __init__(
        self,
        folder: Store,
        program: str,
        like: WorkerFacts,
        places: Mapping[str, Sequence[Whereabouts]],
        together: bool,
    ) -> None:
        self._folder, self._program, self._like, self._places = folder, program, like, places
        self._together = together

    def __call__(
        self, unit: Unit, trials: Sequence[TrialState], save: bool
    ) -> tuple[Callable[[UnitRequest, WorkerFacts], UnitResult], tuple[UnitRequest, WorkerFacts]]:
        places = self._places.get(unit.phase)
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
            draws=tuple(trial.draws_as for trial in trials),
            save=save,
            last=unit.last,
            carried=tuple(trial.progress.carried for trial in trials),
            history=tuple(_last_epoch(trial) for trial in trials) if unit.phase == "train" else (),
            log_tail="hopyard.backend.output:last_lines",
            held=places[unit.partition].shares if places else None,
            together=self._together,
        )
        return run_tagged, (request, self._like)


def _last_epoch(trial: TrialState) -> dict[str, float]:
    return {name: values[-1] for name, values in trial.history.items() if values}


def _home(trial: TrialState) -> int:
    """Number of the trial in whose folder the state is."""
    return trial.number if trial.progress.home is None else trial.progress.home
