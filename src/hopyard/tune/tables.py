"""Runs as pandas tables."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from hopyard.hopper.state import Record, RunState
from hopyard.tune.export import epochs_of
from hopyard.tune.progress import describe_state

TRIAL_COLUMNS = ("number", "params", "state", "epochs", "metrics", "seconds", "error")
SCHEDULE_COLUMNS = ("unit", "trial", "partition", "worker", "epoch", "phase", "start", "end")


def trials_table(state: RunState) -> pd.DataFrame:
    """One row per trial, best first.

    Columns: number (int), params (dict), state (str; ``"waiting"``: trained as far as the searcher has allowed so
    far), epochs that it has trained itself (int, or float if one was trained in part), metrics of the best
    validation (dict), seconds spent in units (float), error (its first line, or None); if any trial is a copy of
    another, also source (number of that one, or missing).
    """
    rows = []
    for trial in state.ranked():
        metrics = trial.best.metrics if trial.best else {}
        error = f"{trial.error.kind}: {trial.error.message}" if trial.error else None
        what = trial.number, trial.params, describe_state(state, trial), epochs_of(state, trial), metrics
        rows.append((*what, trial.seconds, error, trial.source))
    table = pd.DataFrame(rows, columns=[*TRIAL_COLUMNS, "source"]).astype({"source": "Int64"})
    return table if table["source"].notna().any() else table[list(TRIAL_COLUMNS)]


def schedule_table(units: Iterable[Record]) -> pd.DataFrame:
    """One row per trial and committed unit, in order of completion.

    Columns: unit (number of the unit; trials of a pack share it), trial, partition, worker, epoch
    (from 1; a copy's go on from its source's), phase (``"train"`` or ``"validate"``), start and end in seconds since
    the run began.
    """
    rows = [
        (unit, trial, record["p"], record["w"], record["e"] + 1, record["ph"], record["a"], record["z"])
        for unit, record in enumerate(units)
        for trial in record["t"]
    ]
    return pd.DataFrame(rows, columns=list(SCHEDULE_COLUMNS))
