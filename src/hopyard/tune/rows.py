"""Rows of trials and of their histories, as files and other programs get them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.tune.callbacks import flat_params

Row = dict[str, Any]


class RecordedRun(Protocol):
    """A run as its journal tells it, with all that pictures, pages and exporters read of a ``Run``."""

    run_id: str
    state: RunState
    settings: dict[str, Any]

    @property
    def status(self) -> str: ...

    def units(self) -> list[JournalRecord]: ...


def trial_rows(state: RunState) -> list[Row]:
    """A row per trial, in order of number.

    ``number``, ``state``, ``epochs``, ``best_epoch``, ``seconds`` in units, ``error``, ``source`` (the trial it is a
    copy of), in a run with clones ``clone_of`` (the trial that a user has cloned it from), what ``replicate_row`` has,
    ``params/...``, and ``metrics/...`` of the best epoch; None where there is none.
    """
    rows = []
    has_clones = any(trial.clone_of is not None for trial in state.trials.values())
    for trial in state.trials.values():
        best = trial.best
        rows.append(
            {
                "number": trial.number,
                "state": trial.status,
                "epochs": epochs_of(state, trial),
                "best_epoch": best.epoch if best else None,
                "seconds": trial.seconds,
                "error": f"{trial.error.kind}: {trial.error.message}" if trial.error else None,
                "source": trial.source,
                **({"clone_of": trial.clone_of} if has_clones else {}),
                **replicate_row(state, trial),
                **flat_params({"params": trial.params}),
                **{f"metrics/{name}": value for name, value in (best.metrics if best else {}).items()},
            }
        )
    return rows


def replicate_row(state: RunState, trial: TrialState) -> Row:
    """Of a trial in a run with replicates: ``point`` and ``replicate``, the numbers of both, and ``mean`` and
    ``spread`` (standard deviation) of the evaluation metric over the replicates of its point that count, each at its
    best validation; None where there is none."""
    if state.replicates == 1:
        return {}
    point, replicate = divmod(trial.number, state.replicates)
    standing = state.standing(point)
    measured = {"mean": standing.mean, "spread": standing.spread}
    known = {name: None if math.isnan(value) else value for name, value in measured.items()}
    return {"point": point, "replicate": replicate, **known}


def history_rows(state: RunState) -> list[Row]:
    """A row per trial and validation, also those within epochs: ``trial``, ``epoch`` (from 1; a fraction for a part of
    one), ``seconds`` since the run began, ``metrics/...``."""
    rows = []
    for trial in state.trials.values():
        found = validations_of(state, trial)
        for index, (epoch, seconds) in enumerate(zip(found.epochs, found.seconds, strict=True)):
            metrics = {f"metrics/{name}": values[index] for name, values in found.metrics.items()}
            rows.append({"trial": trial.number, "epoch": epoch, "seconds": seconds, **metrics})
    return rows


class Validations(NamedTuple):
    """All validations of a trial, in order: after which epoch, counting those of the trial it is a copy of (a fraction
    within one), when, in seconds since the run began, and the values of each metric."""

    epochs: Sequence[float]
    seconds: Sequence[float]
    metrics: Mapping[str, Sequence[float]]


def validations_of(state: RunState, trial: TrialState) -> Validations:
    """A trial's history, and among it the validations within epochs."""
    epochs = epoch_numbers(state, trial)
    if not trial.rungs:
        return Validations(epochs, trial.ended_at, trial.history)
    rungs = [state.epochs_after(rung.trained) for rung in trial.rungs]
    both = [*epochs, *rungs]
    order = sorted(range(len(both)), key=both.__getitem__)
    seconds = [*trial.ended_at, *(rung.seconds for rung in trial.rungs)]
    names = dict.fromkeys([*trial.history, *(name for rung in trial.rungs for name in rung.metrics)])
    nothing = [math.nan] * len(epochs)
    columns = {
        name: [*trial.history.get(name, nothing), *(rung.metrics.get(name, math.nan) for rung in trial.rungs)]
        for name in names
    }
    metrics = {name: [values[place] for place in order] for name, values in columns.items()}
    return Validations([both[place] for place in order], [seconds[place] for place in order], metrics)


def count_validations(trial: TrialState) -> int:
    """How many ``validations_of`` a trial has."""
    return len(trial.ended_at) + len(trial.rungs)


def epochs_of(state: RunState, trial: TrialState) -> float:
    """The epochs that a trial has trained itself, also parts of one; what it was copied with does not count. Of a
    function the reports: in its last unit it returns."""
    done = trial.progress.validated if "epoch" in state.header else trial.progress.trained
    return state.epochs_after(done, trial.began)


def best_epoch_behind(state: RunState, trial: TrialState) -> float | None:
    """The epochs, or reports of a function, that the weights of a trial's best epoch have behind them, counting those
    of the trial it is a copy of; None without any."""
    if trial.best is None:
        return None
    found = state.epochs_after(trial.began) + trial.best.epoch
    return int(found) if found == int(found) else found


def epoch_numbers(state: RunState, trial: TrialState) -> list[float]:
    """The number of each epoch of a trial's history, counting those of the trial it is a copy of."""
    first = trial.began // state.layout.train + 1
    end = state.epochs_after(trial.progress.trained)
    return [min(first + index, end) for index in range(len(trial.ended_at))]
