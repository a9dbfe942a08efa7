"""Callbacks: calls of a user's code on the driver while a run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hopyard.hopper.hopper import Observer
from hopyard.hopper.state import JournalRecord, RunState, TrialState


@dataclass(frozen=True)
class TrialInfo:
    """A trial as callbacks see it.

    Attributes:
        number: of the trial in its run, from 0.
        params: its point of the search space.
        state: ``"running"``, ``"completed"``, ``"stopped"`` or ``"failed"``.
        epochs: whole epochs done by this trial.
        history: one value an epoch for each of ``train_loss``, ``val_loss``, ...
        error: what made it fail, in words, or None.
        source: number of the trial that it is a copy of, or None.
        clone_of: number of the trial that a user has cloned it from, or None.
    """

    number: int
    params: Mapping[str, Any]
    state: str
    epochs: int
    history: Mapping[str, list[float]]
    error: str | None
    source: int | None = None
    clone_of: int | None = None

    @classmethod
    def of(cls, trial: TrialState) -> TrialInfo:
        error = trial.error.describe() if trial.error else None
        return cls(
            trial.number, trial.params, trial.status, trial.epochs, trial.history, error, trial.source, trial.clone_of
        )  # fmt: skip


class Callback:
    """Override what you need. Methods run on the driver, while workers do their next units, and what comes after waits
    for them: keep them short. An exception in a callback is shown and does not end the run. A resumed run tells only
    what is new."""

    def on_run_start(self, run_id: str, settings: Mapping[str, Any]) -> None:
        """A run begins or goes on."""

    def on_trial_start(self, trial: TrialInfo) -> None:
        """A trial was created."""

    def on_epoch_end(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float]) -> None:
        """A trial has done ``epoch`` epochs (from 1); ``metrics`` are those of the last one."""

    def on_trial_end(self, trial: TrialInfo) -> None:
        """A trial was completed, stopped, or failed."""

    def on_run_end(self, run_id: str, best: TrialInfo | None) -> None:
        """The run ended; ``best`` is its best trial, if any has a result."""


def observer_of(callbacks: Iterable[Callback]) -> list[Observer]:
    """Observers for the hopper that serve the callbacks: one each, so that one that fails skips no other."""
    return [_Dispatch(callback) for callback in callbacks]


class _Dispatch:
    """Turns records into calls."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def __call__(self, state: RunState, record: JournalRecord) -> None:
        callback, kind = self._callback, record["r"]
        if kind == "session":
            callback.on_run_start(state.header["run_id"], state.header["settings"])
        elif kind == "trial":
            callback.on_trial_start(TrialInfo.of(state.trials[record["n"]]))
        elif kind == "unit" and ends_epoch(state, record):
            for number in record["t"]:
                trial = TrialInfo.of(state.trials[number])
                metrics = {name: values[-1] for name, values in trial.history.items()}
                callback.on_epoch_end(trial, trial.epochs, metrics)
        elif kind == "end":
            callback.on_trial_end(TrialInfo.of(state.trials[record["t"]]))
        elif kind == "finish":
            best = TrialInfo.of(state.trials[state.best]) if state.best is not None else None
            callback.on_run_end(state.header["run_id"], best)


def ends_epoch(state: RunState, record: JournalRecord) -> bool:
    """Whether a unit record, which has just been applied, is the last of an epoch."""
    trial = state.trials[record["t"][0]]
    return trial.progress.validated == trial.progress.trained and state.ends_epoch(trial)


def flat_params(params: Any, between: str = "/") -> dict[str, Any]:
    """A point as loggers take it: ``{"optimizer": {"name": "sgd"}}`` -> ``{"optimizer/name": "sgd"}``; people are shown
    ``between="."``."""
    flat: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, dict):
            flat |= {f"{name}{between}{inner}": each for inner, each in flat_params(value, between).items()}
        else:
            flat[name] = value
    return flat
