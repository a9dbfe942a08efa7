"""Documents of runs that the dashboard serves: those of the command line, progress, curves, schedules, changes."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from hopyard.documents.runs import (
    alone_json,
    driver_json,
    error_json,
    facts_json,
    numbers_json,
    summary_json,
    trial_json,
)
from hopyard.errors import NotFoundError, StorageError
from hopyard.hopper.state import ENDED, RunState, TrialState
from hopyard.tune.callbacks import flat_params
from hopyard.tune.listing import RunSummary, summary_of
from hopyard.tune.outlook import expected_end, outlook_of
from hopyard.tune.rows import count_validations, validations_of
from hopyard.web import shapes
from hopyard.web.watched import WatchedRun


def listed_json(place: int, run_id: str, found: RunSummary | WatchedRun | StorageError) -> shapes.RunItemJson:
    """A run of the list: as ``hopyard run list --json`` has it, with its place and progress."""
    if isinstance(found, StorageError):
        return {
            **summary_json(run_id, found),
            "place": str(place),
            "name": None,
            "kind": None,
            "ended_trials": None,
            "progress": None,
        }
    summary = found if isinstance(found, RunSummary) else summary_of(run_id, found.state, found.holder)
    if isinstance(found, WatchedRun):
        ended = sum(not trial.running for trial in found.state.trials.values())
        progress = outlook_of(found.state).progress
    else:
        ended, progress = summary.trials, 1.0 if summary.status in ENDED else None
    about = summary.header.get("experiment")
    return {
        **summary_json(run_id, summary),
        "place": str(place),
        "name": None if about is None else about["config"].get("name"),
        "kind": summary.header["settings"]["kind"],
        "ended_trials": ended,
        "progress": progress,
    }


def described_json(run: WatchedRun) -> shapes.RunJson:
    """A run: as ``hopyard run describe --json`` has it, with what the page needs beside."""
    state, totals, broken = run.state, run.totals(), run.broken_rules()
    about = state.header.get("experiment")
    return {
        **facts_json(run, totals, broken),
        "trials": [_row(run, trial) for trial in state.ranked()],
        "version": run.count,
        "reading": None,
        "settings": _plain(run.settings),
        "metrics": metrics_of(state),
        "output": state.session.get("output"),
        "driven_seconds": state.clock,
        "experiment": None if about is None else _experiment(about),
    }


def _experiment(about: dict[str, Any]) -> shapes.ExperimentJson:
    config = about["config"]
    return {
        "name": config.get("name"),
        "description": config.get("description"),
        "labels": config.get("labels"),
        "config": config,
        "length": about.get("length"),
    }


def reading_json(run: WatchedRun, share: float) -> shapes.ReadingJson:
    """A run whose journal is still read."""
    return {"run": run.run_id, "version": 0, "reading": share, "trials": []}


def metrics_of(state: RunState) -> list[str]:
    """The names of all metrics, that by which trials are ranked first."""
    names = dict.fromkeys([state.metric.key])
    for trial in state.trials.values():
        names.update(dict.fromkeys(trial.history or (trial.rungs[0].metrics if trial.rungs else ())))
    return list(names)


def _row(run: WatchedRun, trial: TrialState) -> shapes.TrialJson:
    return {**trial_json(run.state, trial), "stopped": run.stopped_by(trial)}


def trial_detail_json(run: WatchedRun, number: int) -> shapes.TrialHistoryJson:
    """A trial with its history.

    Raises:
        NotFoundError: there is none.
    """
    if number not in run.state.trials:
        raise NotFoundError(
            f"run {run.run_id} has no trial {number}; it has {len(run.state.trials)}, the first is 0. Choose one of "
            "the table."
        )
    trial = run.state.trials[number]
    found = validations_of(run.state, trial)
    return {
        **_row(run, trial),
        "history": {name: list(values) for name, values in found.metrics.items()},
        "epoch": found.epochs,
        "seconds": list(found.seconds),
    }


def points_of(run: WatchedRun) -> list[tuple[dict[str, Any], float]]:
    """Hyperparameters and best values of the trials that have a result."""
    trials = run.state.trials.values()
    return [(flat_params(each.params, "."), each.best.value) for each in trials if each.best is not None]


def changes_json(run: WatchedRun, version: int, sent: dict[int, int]) -> shapes.RunChangesJson:
    """What has changed since ``version``; ``sent`` counts the validations of each trial that were told already, and is
    brought up to date."""
    state, totals = run.state, run.totals()
    points: dict[str, shapes.PointsJson] = {}
    changed = run.changed_since(version)
    for trial in changed:
        told, now = sent.get(trial.number, 0), count_validations(trial)
        if now > told:
            found = validations_of(state, trial)
            points[str(trial.number)] = {
                "epoch": found.epochs[told:],
                "seconds": list(found.seconds[told:]),
                "metrics": {name: list(values[told:]) for name, values in found.metrics.items()},
            }
            sent[trial.number] = now
    return {
        "version": run.count,
        "status": run.status,
        "driver": driver_json(run.holder),
        "num_trials": len(state.trials),
        "best_trial": state.best,
        "progress": outlook_of(state).progress,
        "expected_end_seconds": expected_end(state, run.holder is not None),
        "driven_seconds": state.clock,
        "schedule": numbers_json(totals),
        "alone": alone_json(totals) if run.alone_changed_since(version) else None,
        "error": error_json(state.gave_up),
        "waiting": run.seen_waiting(),
        "trials": [_row(run, trial) for trial in changed],
        "points": points,
    }


def curves_bytes(run: WatchedRun, metric: str) -> bytes:
    """The curves of one metric of all trials.

    Little endian: ``HYC1``; u32 number of trials; u32 number of points; u32 trial numbers; u32 points of each; f32
    epochs; f32 values, NaN where not measured.

    Raises:
        NotFoundError: no trial has measured it.
    """
    state = run.state
    if metric not in (known := metrics_of(state)):
        raise NotFoundError(
            f"run {run.run_id} has no metric {metric!r}; it has {', '.join(known)}. Choose one of them."
        )
    trials = [trial for _, trial in sorted(state.trials.items()) if count_validations(trial)]
    lengths = [count_validations(trial) for trial in trials]
    epochs = np.empty(sum(lengths), np.float32)
    values = np.full(sum(lengths), np.nan, np.float32)
    at = 0
    with np.errstate(over="ignore"):
        for trial, length in zip(trials, lengths, strict=True):
            found = validations_of(state, trial)
            epochs[at : at + length] = found.epochs
            measured = found.metrics.get(metric, ())
            values[at : at + len(measured)] = measured
            at += length
    head = np.array([len(trials), at, *(trial.number for trial in trials), *lengths], "<u4")
    return b"HYC1" + head.tobytes() + epochs.tobytes() + values.tobytes()


def schedule_bytes(run: WatchedRun, begin: float | None, end: float | None, pixels: int) -> bytes:
    """The schedule between two moments, of which units narrower than a pixel are merged; layout as in docs/web.md.

    Its numbers are of the time from the begin of the first unit to the end of the last one, without the time in which
    a user had paused the run.
    """
    units, later, state = run.units, run.unsettled(), run.state
    first, last = min(units.begin, later.begin), max(units.end, later.end)
    paused = state.paused_seconds(first, last) if last else 0.0
    span, busy = max(last - first - paused, 0.0), units.busy
    for worker, seconds in later.busy.items():
        busy[worker] = busy.get(worker, 0.0) + seconds
    busy = dict(sorted(busy.items()))
    bound = max(units.longest(later), sum(busy.values()) / len(busy)) if busy else math.nan
    until = max(state.clock, last)
    window = 0.0 if begin is None else begin, until if end is None else end, pixels
    shown = np.concatenate([units.between(*window), later.between(*window)])
    ends = expected_end(state, run.holder is not None)
    facts = 0.0, until, bound, math.nan if ends is None else ends, span, paused
    marks = run.marks()
    parts = [
        b"HYS2", struct.pack("<I", len(shown)), struct.pack("<6d", *facts), struct.pack("<II", len(busy), len(marks)),
        np.array([*busy], "<u4").tobytes(), np.array([span - each for each in busy.values()], "<f8").tobytes(),
        np.array([when for when, _ in marks], "<f8").tobytes(), np.array([what for _, what in marks], "<u4").tobytes(),
        *(shown[name].tobytes() for name in ("begin", "end", "worker", "trial", "partition", "phase")),
    ]  # fmt: skip
    data = b"".join(parts)
    return data + bytes(-len(data) % 4)


def _plain(value: Any) -> Any:
    """Settings, with the digest of an identity of code in place of the code."""
    if isinstance(value, dict):
        if {"digest", "parts"} <= set(value):
            return str(value["digest"])[:12]
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
