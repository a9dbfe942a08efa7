"""Documents of runs that the dashboard serves: those of the command line, progress, curves, schedules, changes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from hopyard.documents.runs import driver_json, error_json, facts_json, summary_json, trial_json
from hopyard.errors import NotFoundError, StorageError
from hopyard.hopper.history import rules_broken_by
from hopyard.hopper.state import ENDED, JournalRecord, RunState, TrialState
from hopyard.tune.callbacks import flat_params
from hopyard.tune.describing import is_endless
from hopyard.tune.listing import RunSummary, summary_of
from hopyard.tune.rows import epoch_numbers
from hopyard.web import shapes
from hopyard.web.watched import MERGED, PHASES, Units, WatchedRun

MOST_CHECKED = 100_000
"""Units of a run above which its schedule is not checked against the rules."""


def listed_json(place: int, run_id: str, found: RunSummary | WatchedRun | StorageError) -> shapes.RunItem:
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
        progress = progress_of(found.state)
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


def progress_of(state: RunState) -> float | None:
    """The share of the run that is done, 0 to 1: of a search that trains every trial to its end, by visits; of others
    by trials that have ended. None where nobody knows how many there will be."""
    planned: int | None = state.header["settings"].get("num_models")
    if state.finished == "completed":
        return 1.0
    if not planned:
        return None
    done = 0.0
    for trial in state.trials.values():
        share = 0.0 if is_endless(state) else trial.progress.trained / max(state.num_visits, 1)
        done += 1.0 if not trial.running else min(share, 1.0)
    return min(done / (planned * state.replicates), 1.0)


def described_json(run: WatchedRun) -> shapes.Run:
    """A run: as ``hopyard run describe --json`` has it, with what the page needs beside."""
    state, totals = run.state, run.totals()
    broken = None
    if state.units <= MOST_CHECKED:
        broken = rules_broken_by([*_records(run.units()), *run.rest()], state.layout)
    about = state.header.get("experiment")
    return {
        **facts_json(run, totals, broken),
        "trials": [_row(run, trial) for trial in state.ranked()],
        "version": run.count,
        "reading": None,
        "settings": _plain(run.settings),
        "metrics": metrics_of(state),
        "output": state.session.get("output"),
        "progress": progress_of(state),
        "driven_seconds": state.clock,
        "experiment": None if about is None else _experiment(about),
    }


def _experiment(about: dict[str, Any]) -> shapes.Experiment:
    config = about["config"]
    return {
        "name": config.get("name"),
        "description": config.get("description"),
        "labels": config.get("labels"),
        "config": config,
        "length": about.get("length"),
    }


def reading_json(run: WatchedRun, share: float) -> shapes.Reading:
    """A run whose journal is still read."""
    return {"run": run.run_id, "version": 0, "reading": share, "trials": []}


def metrics_of(state: RunState) -> list[str]:
    """The names of all metrics, that by which trials are ranked first."""
    names = dict.fromkeys([state.metric.key])
    for trial in state.trials.values():
        names.update(dict.fromkeys(trial.history))
    return list(names)


def _row(run: WatchedRun, trial: TrialState) -> shapes.Trial:
    return {**trial_json(run.state, trial), "stopped": run.stopped_by(trial)}


def trial_detail_json(run: WatchedRun, number: int) -> shapes.TrialHistory:
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
    return {
        **_row(run, trial),
        "history": {name: list(values) for name, values in trial.history.items()},
        "epoch": epoch_numbers(run.state, trial),
        "seconds": list(trial.ended_at),
    }


def points_of(run: WatchedRun) -> list[tuple[dict[str, Any], float]]:
    """Hyperparameters and values of the trials that have a result; the smaller a value, the better."""
    smaller = run.state.metric.smaller_is_better
    trials = run.state.trials.values()
    return [(flat_params(each.params), smaller(each.best.value)) for each in trials if each.best is not None]


def changes_json(run: WatchedRun, version: int, sent: dict[int, int]) -> shapes.RunChanges:
    """What has changed since ``version``; ``sent`` counts the validations of each trial that were told already, and is
    brought up to date."""
    state = run.state
    points: dict[str, shapes.Points] = {}
    changed = run.changed_since(version)
    for trial in changed:
        told, now = sent.get(trial.number, 0), len(trial.ended_at)
        if now > told:
            points[str(trial.number)] = {
                "epoch": epoch_numbers(state, trial)[told:],
                "seconds": list(trial.ended_at[told:]),
                "metrics": {name: list(values[told:]) for name, values in trial.history.items()},
            }
            sent[trial.number] = now
    return {
        "version": run.count,
        "status": run.status,
        "driver": driver_json(run.holder),
        "num_trials": len(state.trials),
        "best_trial": state.best,
        "progress": progress_of(state),
        "driven_seconds": state.clock,
        "error": error_json(state.gave_up),
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
    trials = [trial for _, trial in sorted(state.trials.items()) if trial.ended_at]
    lengths = [len(trial.ended_at) for trial in trials]
    epochs = np.empty(sum(lengths), np.float32)
    values = np.full(sum(lengths), np.nan, np.float32)
    at = 0
    with np.errstate(over="ignore"):
        for trial, length in zip(trials, lengths, strict=True):
            epochs[at : at + length] = epoch_numbers(state, trial)
            measured = trial.history.get(metric, ())
            values[at : at + len(measured)] = measured
            at += length
    head = np.array([len(trials), at, *(trial.number for trial in trials), *lengths], "<u4")
    return b"HYC1" + head.tobytes() + epochs.tobytes() + values.tobytes()


def schedule_bytes(run: WatchedRun, begin: float | None, end: float | None, pixels: int) -> bytes:
    """The schedule between two moments, of which units narrower than a pixel are merged; layout as in docs/web.md."""
    units = run.units()
    whole = (0.0, max(run.state.clock, float(units["end"].max(initial=0.0))))
    low, high = whole[0] if begin is None else begin, whole[1] if end is None else end
    workers, idle = _idle(units, whole)
    shown = _merged(units[(units["end"] >= low) & (units["begin"] <= high)], low, high, pixels)
    facts = struct.pack("<dddd", *whole, _bound(units, whole, idle), _expected_end(run))
    parts = [
        b"HYS1", struct.pack("<I", len(shown)), facts, struct.pack("<I", len(workers)),
        np.array(workers, "<u4").tobytes(), np.array(idle, "<f8").tobytes(),
        (shown["begin"] - whole[0]).astype("<f4").tobytes(), (shown["end"] - whole[0]).astype("<f4").tobytes(),
        *(shown[name].astype("<u4").tobytes() for name in ("worker", "trial", "partition")),
        shown["phase"].astype("u1").tobytes(),
    ]  # fmt: skip
    data = b"".join(parts)
    return data + bytes(-len(data) % 4)


def _idle(units: Units, whole: tuple[float, float]) -> tuple[list[int], list[float]]:
    """Workers, and the seconds in which each was in no unit. Trials of a pack share their seconds."""
    workers = np.unique(units["worker"])
    idle = []
    for worker in workers:
        own = units[units["worker"] == worker]
        spans = np.unique(own[["begin", "end"]])
        idle.append(max(whole[1] - whole[0] - float((spans["end"] - spans["begin"]).sum()), 0.0))
    return [int(worker) for worker in workers], idle


def _merged(units: Units, low: float, high: float, pixels: int) -> Units:
    """Units of the same worker that begin in the same pixel are one, if each is narrower than one."""
    width = (high - low) / pixels if pixels > 0 and high > low else 0.0
    narrow = (units["end"] - units["begin"]) < width
    if len(units) <= 4 * pixels or not narrow.any():
        return units
    small, rest = units[narrow], units[~narrow]
    cell = ((small["begin"] - low) / width).astype(np.int64)
    order = np.lexsort((cell, small["worker"]))
    small, cell = small[order], cell[order]
    first = np.ones(len(small), bool)
    first[1:] = (small["worker"][1:] != small["worker"][:-1]) | (cell[1:] != cell[:-1])
    starts = np.flatnonzero(first)
    merged = small[starts].copy()
    merged["begin"] = np.minimum.reduceat(small["begin"], starts)
    merged["end"] = np.maximum.reduceat(small["end"], starts)
    merged["phase"][np.diff([*starts, len(small)]) > 1] = MERGED
    return np.concatenate([rest, merged])


def _bound(units: Units, whole: tuple[float, float], idle: list[float]) -> float:
    """Seconds that no schedule of these units on as many workers can beat: those of the longest trial, and the mean
    of the workers; NaN without any unit."""
    if not len(units):
        return math.nan
    _, trial = np.unique(units["trial"], return_inverse=True)
    longest = float(np.bincount(trial, weights=units["end"] - units["begin"]).max())
    return max(longest, whole[1] - whole[0] - sum(idle) / len(idle))


def _expected_end(run: WatchedRun) -> float:
    """When the run ends if it goes on as until now, in seconds since it began; NaN if nobody knows."""
    done = progress_of(run.state)
    return math.nan if not done or run.holder is None else run.state.clock / done


def _records(units: Units) -> Iterator[JournalRecord]:
    """Units as the journal records them, as far as the rules of a schedule look at them: trials that were in one
    together have its worker and its seconds in common."""
    names = {number: name for name, number in PHASES.items()}
    for (begin, end, worker), rows in groupby(units.tolist(), key=lambda row: row[:3]):
        done = list(rows)
        _, _, _, _, partition, phase, epoch, trained = done[0]
        yield {
            "t": [row[3] for row in done], "w": worker, "p": partition, "ph": names[phase], "e": epoch, "n": trained,
            "a": begin, "z": end,
        }  # fmt: skip


def _plain(value: Any) -> Any:
    """Settings, with the digest of an identity of code in place of the code."""
    if isinstance(value, dict):
        if {"digest", "parts"} <= set(value):
            return str(value["digest"])[:12]
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
