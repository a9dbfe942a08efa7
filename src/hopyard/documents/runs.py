"""JSON of runs; docs/cli.md documents the keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from hopyard.documents import shapes
from hopyard.errors import Evidence, StorageError
from hopyard.hopper.history import Totals
from hopyard.hopper.state import RunState, TrialState
from hopyard.tune.describing import describe_state, is_endless
from hopyard.tune.listing import RunSummary
from hopyard.tune.outlook import expected_end, outlook_of
from hopyard.tune.rows import epochs_of, replicate_row

UNREADABLE = "unreadable"


class DescribedRun(Protocol):
    """A run with all that its document says of it; ``hopyard.tune.Run`` is one."""

    @property
    def run_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def holder(self) -> dict[str, Any] | None: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def state(self) -> RunState: ...
    @property
    def frozen_at(self) -> list[str]: ...
    def waiting(self) -> list[str]: ...


def summary_json(run_id: str, run: RunSummary | StorageError) -> shapes.RunSummaryJson:
    """A run of a list; a run that cannot be read has the reason in ``error``, and null in place of the rest. ``error``
    of another one is the failure for which its driver gave up, or null."""
    if isinstance(run, StorageError):
        return {
            "run": run_id,
            "status": UNREADABLE,
            "begun": None,
            "num_trials": None,
            "metric": None,
            "mode": None,
            "best": None,
            "driver": None,
            "driven_seconds": None,
            "unit_seconds": None,
            "error": str(run),
        }
    return {
        "run": run_id,
        "status": run.status,
        "begun": time_json(run.created),
        "num_trials": run.trials,
        "metric": run.metric,
        "mode": run.header["metric"]["mode"],
        "best": run.best,
        "driver": driver_json(run.holder),
        "driven_seconds": run.seconds,
        "unit_seconds": run.unit_seconds,
        "error": run.error,
    }


def run_json(
    run: DescribedRun, totals: Totals, broken: Sequence[str] | None, most: int | None = None
) -> shapes.DescribedRunJson:
    """A run with its trials, best first; ``most``: only so many of them."""
    trials = [trial_json(run.state, trial) for trial in run.state.ranked()[:most]]
    return {**facts_json(run, totals, broken), "trials": trials}


def facts_json(run: DescribedRun, totals: Totals, broken: Sequence[str] | None) -> shapes.RunFactsJson:
    """A run without its trials."""
    state, header = run.state, run.state.header
    return {
        "run": run.run_id,
        "status": run.status,
        "driver": driver_json(run.holder),
        "kind": run.settings["kind"],
        "seed": run.settings["seed"],
        "begun": time_json(header["created"]),
        "search_space": run.settings["search_space"],
        "trained_on": (header.get("data") or {}).get("train"),
        "frozen_at": run.frozen_at,
        "metric": state.metric.key,
        "mode": cast(shapes.Mode, state.metric.mode),
        "epochs": None if is_endless(state) else state.num_epochs,
        "partitions": state.layout.train,
        "num_trials": len(state.trials),
        "progress": outlook_of(state).progress,
        "expected_end_seconds": expected_end(state, run.holder is not None),
        "schedule": totals_json(totals),
        "waiting": run.waiting(),
        "broken_rules": broken,
        "error": error_json(state.gave_up),
    }


def trial_json(state: RunState, trial: TrialState) -> shapes.RunTrialJson:
    """A trial, as it is at its best epoch."""
    best = trial.best
    return {
        "trial": trial.number,
        "status": describe_state(state, trial),
        "value": best.value if best else None,
        "best_epoch": best.epoch if best else None,
        "epochs": epochs_of(state, trial),
        "unit_seconds": trial.seconds,
        "copy_of": trial.source,
        "clone_of": trial.clone_of,
        **cast(shapes.ReplicateJson, replicate_row(state, trial)),
        "params": trial.params,
        "metrics": best.metrics if best else {},
        "error": error_json(trial.error),
    }


def error_json(error: Evidence | None) -> shapes.FailureJson | None:
    """The failure of a trial, or null."""
    return None if error is None else cast(shapes.FailureJson, error.to_json())


def totals_json(totals: Totals) -> shapes.ScheduleTotalsJson:
    """The schedule in numbers, and trials that train alone."""
    return {**numbers_json(totals), "alone": alone_json(totals)}


def alone_json(totals: Totals) -> list[shapes.AloneJson]:
    """Trials that train alone, and why."""
    return [{"trials": trials, "why": why} for why, trials in totals.alone.items()]


def numbers_json(totals: Totals) -> shapes.ScheduleNumbersJson:
    """The schedule in numbers."""
    traffic = totals.traffic
    return {
        "units": totals.units,
        "workers": totals.workers,
        "span_seconds": totals.seconds,
        "paused_seconds": totals.paused,
        "busy": totals.busy,
        "packs": [{"trials": count, "visits": times} for count, times in totals.packs.items()],
        "hops": traffic.hops,
        "states_read_bytes": traffic.moved,
        "states_written_bytes": traffic.written,
        "data_read_bytes": traffic.read,
        "data_beside_bytes": traffic.beside,
        "data_away_bytes": traffic.away,
    }


def compared_json(rows: Iterable[Mapping[Any, Any]]) -> list[shapes.ComparedRunJson]:
    """Runs side by side, from the rows of ``hopyard.tune.comparing``."""
    return [
        {
            "run": row["run"],
            "kind": row["kind"],
            "status": row["status"],
            "data": row["data"],
            "metric": row["metric"],
            "settings": row["settings"],
            "num_trials": row["trials"],
            "epochs": row["epochs"],
            "best": row["best"],
            "params": row["params"],
            "driven_seconds": row["seconds"],
            "note": row["note"] or None,
        }
        for row in rows
    ]


def driver_json(held: Mapping[str, Any] | None) -> shapes.DriverJson | None:
    """Who drives a run, or null."""
    return None if held is None else {"host": held.get("host"), "pid": held.get("pid")}


def time_json(seconds: float) -> datetime:
    """A time in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)
