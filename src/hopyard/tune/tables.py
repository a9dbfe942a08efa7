"""Runs as pandas tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from hopyard.hopper.state import JournalRecord, RunState
from hopyard.tune.describing import describe_number, describe_state, plain_params
from hopyard.tune.rows import epochs_of, replicate_row

TRIAL_COLUMNS = ("number", "params", "state", "epochs", "metrics", "seconds", "error")
REPLICATE_COLUMNS = ("point", "replicate", "mean", "spread")
_LINEAGE = ("source", "clone_of")
SCHEDULE_COLUMNS = ("unit", "trial", "partition", "worker", "epoch", "phase", "start", "end")


class TrialsTable(pd.DataFrame):
    """A table of trials that is printed as a leaderboard: all metrics and hyperparameters as columns of their own,
    none of them cut. It is a DataFrame in all else."""

    _metadata = ["metric"]  # noqa: RUF012 (pandas' own convention)
    metric = ""
    """The metric that ranks the trials; its column comes first."""

    @property
    def _constructor(self) -> Callable[..., TrialsTable]:
        return TrialsTable

    def __repr__(self) -> str:
        return (
            self._leaderboard().to_string(index=False, line_width=10_000)
            if self._is_whole
            else super().__repr__()
        )

    def _repr_html_(self) -> str:
        shown = self._leaderboard() if self._is_whole else pd.DataFrame(self)
        html: str = shown.to_html(index=not self._is_whole)
        return html

    @property
    def _is_whole(self) -> bool:
        return len(self) > 0 and set(TRIAL_COLUMNS) <= set(self.columns)

    def _leaderboard(self) -> pd.DataFrame:
        rows = []
        for trial in self.to_dict("records"):
            metrics = sorted(trial["metrics"], key=lambda name: (name != self.metric, name))
            row: dict[str, Any] = {"number": trial["number"]}
            if "point" in trial:
                row |= {name: trial[name] for name in ("point", "replicate")}
                known = {name: None if pd.isna(trial[name]) else trial[name] for name in ("mean", "spread")}
                row |= {name: describe_number(value) for name, value in known.items()}
            row |= {name: describe_number(trial["metrics"][name]) for name in metrics}
            row |= {name: trial[name] for name in ("epochs", "state")}
            row["seconds"] = describe_number(trial["seconds"])
            row |= dict(plain_params(trial["params"]))
            if not pd.isna(trial.get("source", pd.NA)):
                row["source"] = str(trial["source"])
            if not pd.isna(trial["error"]):
                row["error"] = trial["error"]
            rows.append(row)
        # Columns in the order of the row that has most of them: a trial that failed has no metrics.
        names = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
        last = [name for name in ("source", "error") if name in names]
        order = [name for name in names if name not in last] + last
        return pd.DataFrame([{name: row.get(name, "") for name in order} for row in rows], columns=order)


def trials_table(state: RunState) -> pd.DataFrame:
    """One row per trial, best first; with replicates the trials of the best point first.

    Columns: number (int), params (dict), state (str; ``"waiting"``: trained as far as the searcher has allowed so
    far), epochs that it has trained itself (int, or float if one was trained in part), metrics of the best
    validation (dict), seconds spent in units (float), error (its first line, or None); if any trial is a copy of
    another, also source (number of that one, or missing); if users have cloned any, also clone_of (likewise); with
    replicates also point, replicate, mean and spread: see ``hopyard.tune.rows.replicate_row``.
    """
    rows = []
    for trial in state.ranked():
        metrics = trial.best.metrics if trial.best else {}
        error = f"{trial.error.kind}: {trial.error.message}" if trial.error else None
        what = trial.number, trial.params, describe_state(state, trial), epochs_of(state, trial), metrics
        replicate = replicate_row(state, trial).values() or (None,) * len(REPLICATE_COLUMNS)
        rows.append((*what, trial.seconds, error, trial.source, trial.clone_of, *replicate))
    every = pd.DataFrame(rows, columns=[*TRIAL_COLUMNS, *_LINEAGE, *REPLICATE_COLUMNS])
    every = every.astype({"source": "Int64", "clone_of": "Int64", "mean": "float64", "spread": "float64"})
    shown = [*TRIAL_COLUMNS, *(name for name in _LINEAGE if every[name].notna().any())]
    table = TrialsTable(every[[*shown, *(REPLICATE_COLUMNS if state.replicates > 1 else ())]])
    table.metric = state.metric.key
    return table


def schedule_table(units: Iterable[JournalRecord]) -> pd.DataFrame:
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
