"""Outlook of a run: how much of its work is done, how much is left, and when it ends if it goes on as until now."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.hopper.state import RunState
from hopyard.tune.describing import IN_RUNGS, is_endless


@dataclass(frozen=True)
class Outlook:
    """The work of a run in training visits.

    Attributes:
        done: visits that trials have made, also those that have failed or were stopped since; of a copy only its own.
        left: visits that trials that go on, and those that are still to begin, have before them. None: nobody knows,
            since trials are compared at rungs, or end when their own code does.
        progress: share of the run that is done, 0 to 1: ``done`` of ``done`` and ``left``, or where nobody knows what
            is left, trials that have ended of those that there will be; None: nobody knows these, either.
        seconds_left: how long it takes from the last record on, at the rate of visits in the time in which it was
            driven and not paused; None: nobody knows, or nothing is done yet.
    """

    done: int
    left: int | None
    progress: float | None
    seconds_left: float | None


def outlook_of(state: RunState) -> Outlook:
    """The outlook of a run."""
    trials = state.trials.values()
    done = sum(trial.progress.trained - trial.began for trial in trials)
    num_points = planned_points(state)
    clones = sum(trial.clone_of is not None for trial in trials)
    planned = None if not num_points else num_points * state.replicates + clones
    if state.finished == "completed":
        return Outlook(done, 0, 1.0, None)
    if planned is None or is_endless(state) or state.header["settings"].get("kind") in IN_RUNGS:
        ended = sum(not trial.running for trial in trials)
        return Outlook(done, None, None if planned is None else min(ended / planned, 1.0), None)
    left = max(planned - len(trials), 0) * state.num_visits
    left += sum(max(state.num_visits - trial.progress.trained, 0) for trial in trials if trial.running)
    progress = done / (done + left) if left else 1.0
    active = state.clock - state.paused_seconds()
    return Outlook(done, left, progress, seconds_left(done, left, active) if done and left else None)


def planned_points(state: RunState) -> int | None:
    """Points of the search space that a run tries; None: nobody knows."""
    number: int | None = state.header.get("settings", {}).get("num_models") or state.header.get("num_points")
    return number


def seconds_left(done: int, left: int, active: float) -> float:
    """How long so much work takes if ``done`` has taken ``active`` seconds."""
    return active * left / done


def expected_end(state: RunState, is_driven: bool) -> float | None:
    """When the run ends if it goes on as until now, in seconds since it began; None if nobody drives it, it is paused,
    or nobody knows."""
    seconds = outlook_of(state).seconds_left if is_driven and not state.paused else None
    return None if seconds is None else state.clock + seconds
