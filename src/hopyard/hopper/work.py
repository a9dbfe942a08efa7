"""Work that the run loop is given to do, its outcome, and the options of a run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hopyard.errors import Evidence
from hopyard.hopper.scheduler import Start, Unit
from hopyard.hopper.state import JournalRecord, TrialState
from hopyard.objects import StateRef
from hopyard.wording import unstyled


class UnitOutcome(Protocol):
    """Outcome of a unit: one entry per trial of the pack in each tuple."""

    @property
    def states(self) -> tuple[StateRef | None, ...]: ...
    @property
    def metrics(self) -> tuple[dict[str, Any], ...]: ...
    @property
    def errors(self) -> tuple[Evidence | None, ...]: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def bytes_moved(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def bytes_beside(self) -> int | None: ...
    @property
    def asks_epochs(self) -> tuple[str, ...]: ...
    @property
    def ended(self) -> tuple[bool, ...]: ...
    @property
    def kinds(self) -> tuple[str | None, ...]: ...
    @property
    def alone(self) -> tuple[str, ...]: ...


class Work(Protocol):
    """Makes the call of a unit: a function and its arguments, both picklable, giving a :class:`UnitOutcome`."""

    def __call__(
        self, unit: Unit, trials: Sequence[TrialState], save: bool
    ) -> tuple[Callable[..., UnitOutcome], tuple[Any, ...]]: ...


@dataclass(frozen=True)
class Options:
    """Options of driving a run; only ``free_orders`` changes the run's result.

    Attributes:
        checkpoint_every: ``"unit"``, ``"epoch"`` or seconds between durable states of a trial.
        keep, keep_n: see ``hopyard.hopper.retention``.
        time_budget: seconds after which no new unit is started, or None.
        retry_seconds: time to wait on a full disk before trying again.
        free_orders: trials visit partitions in any order that keeps workers busy, where not every worker can
            read every partition. Then the order of visits, and so the result, depends on the workers.
        control_seconds: time between looks for users' commands.
        max_restarts: how often a trial that fails goes on from its last durable state.
        most_together: trials that make a visit together, if workers say that they may.
        packs_first: whether trials may do so from their first visits on; else from when a worker has said so of one.
        output: file, on the driver's machine, of what the driver says, which its session's record names; None: it says
            it to somebody.
        hop_seconds: cost of a trial going on where its state is not; see ``hopyard.hopper.scheduler``.
    """

    checkpoint_every: str | float = "unit"
    keep: str = "completed"
    keep_n: int = 1
    time_budget: float | None = None
    retry_seconds: float = 5.0
    free_orders: bool = False
    control_seconds: float = 0.5
    max_restarts: int = 0
    hop_seconds: float = 0.0
    output: str | None = None
    most_together: int = 1
    packs_first: bool = True


def unit_record(
    start: Start,
    outcome: UnitOutcome,
    trials: Sequence[int],
    alone: Mapping[int, str],
    began: float,
    ended: float,
    target: int | None,
) -> JournalRecord:
    """The journal's record of a unit.

    Args:
        trials: that have done it.
        alone: why some of them will train alone from now on.
        began, ended: seconds since the run began.
        target: train units that they may do.
    """
    unit = start.unit
    slots = [slot for slot, trial in enumerate(start.trials) if trial in trials]
    states = [outcome.states[slot] if unit.phase == "train" else None for slot in slots]
    asks = next(filter(None, outcome.asks_epochs), "")
    record = {
        "r": "unit",
        "t": [start.trials[slot] for slot in slots],
        "e": unit.epoch,
        "ph": unit.phase,
        "p": unit.partition,
        "w": start.worker,
        "v": unit.visit,
        "n": unit.trained,
        "to": target,
        "last": unit.last,
        "a": began,
        "z": ended,
        "s": [state.to_json() if state else None for state in states],
        "m": [outcome.metrics[slot] for slot in slots],
        "rows": outcome.rows,
        "written": outcome.bytes_written,
        "moved": outcome.bytes_moved,
        "read": outcome.bytes_read,
    }
    if outcome.bytes_beside is not None:
        record["beside"] = outcome.bytes_beside
    if any(outcome.ended):
        record["ended"] = True
    if alone:
        record["alone"] = {str(trial): why for trial, why in alone.items()}
    return record | ({"asks": asks} if asks else {})


def evidence_of(error: BaseException, start: Start) -> Evidence:
    """Evidence about a trial from an exception of a task."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    return Evidence(
        kind=type(error).__name__,
        message=unstyled(str(error)),
        traceback=unstyled(notes or "".join(traceback.format_exception(error))),
        worker=start.worker,
        partition=start.unit.partition,
        phase=start.unit.phase,
    )
