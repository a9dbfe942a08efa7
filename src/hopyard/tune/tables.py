"""Runs as pandas tables."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from hopyard.hopper.state import Record, RunState

TRIAL_COLUMNS = ("number", "params", "state", "epochs", "metrics", "seconds", "error")
SCHEDULE_COLUMNS = ("unit", "trial", "partition", "worker", "epoch", "phase", "start", "end")


def trials_table(state: RunState) -> pd.DataFrame:
    """One row per trial, best first.

    Columns: number (int), params (dict), state (str), epochs done (int), metrics of the best epoch
    (dict), seconds spent in units (float), error (its first line, or None).
    """
    rows = []
    for trial in state.ranked():
        metrics = trial.best.metrics if trial.best else {}
        error = f"{trial.error.kind}: {trial.error.message}" if trial.error else None
        rows.append((trial.number, trial.params, trial.status, trial.epochs, metrics, trial.seconds, error))
    return pd.DataFrame(rows, columns=list(TRIAL_COLUMNS))


def schedule_table(units: Iterable[Record]) -> pd.DataFrame:
    """One row per trial and committed unit, in order of completion.

    Columns: unit (number of the unit; trials of a pack share it), trial, partition, worker, epoch
    (from 1), phase (``"train"`` or ``"validate"``), start and end in seconds since the run began.
    """
    rows = [
        (unit, trial, record["p"], record["w"], record["e"] + 1, record["ph"], record["a"], record["z"])
        for unit, record in enumerate(units)
        for trial in record["t"]
    ]
    return pd.DataFrame(rows, columns=list(SCHEDULE_COLUMNS))
