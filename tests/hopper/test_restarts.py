"""Trials that fail and may be restarted, trials whose own code comes to its end, and budgets of so many visits."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.hopper.conftest import killed_after_each_record

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import Evidence
from hopyard.hopper.history import broken_rules, committed_units, read_state
from hopyard.hopper.work import Options
from hopyard.search import FullLength, RandomPoints, hp_uniform
from hopyard.storage import LocalStore, MemoryStore


class Fails:
    """A behaviour: trial 1 fails in these visits, each time that it comes there until so often."""

    def __init__(self, *visits: int, times: int = 1) -> None:
        self.left = dict.fromkeys(visits, times)
        self.visits: list[int] = []

    def __call__(self, request: Any) -> Evidence | None:
        visit = request.unit.visit
        if request.trial != 1:
            return None
        self.visits.append(visit)
        if self.left.get(visit, 0) == 0:
            return None
        self.left[visit] -= 1
        return Evidence("ValueError", f"bad visit {visit}", "Traceback ...", "log")


def of_trial(run: Any, *kinds: str) -> list[Any]:
    return [record for record in run.records() if record["r"] in kinds and record["t"] in (1, [1])]


def test_a_trial_that_fails_goes_on_from_its_last_state(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    fails = Fails(2, 4)
    run = game(MemoryStore(), InlineBackend(), options=Options(max_restarts=2), behaviour=fails)
    state = run.play()
    assert result_of(state) == expected
    assert state.trials[1].restarts == 2
    assert state.trials[1].error is None
    assert fails.visits == [0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 9]
    assert run.messages == [
        "trial 1 failed and goes on from its last state (restart 1 of 2). ValueError: bad visit 2",
        "trial 1 failed and goes on from its last state (restart 2 of 2). ValueError: bad visit 4",
    ]
    first, second = of_trial(run, "again")
    seen = {"kind": "ValueError", "traceback": "Traceback ...", "log": "log", "worker": 0}
    seen |= {"partition": None, "phase": "train"}
    assert first == {
        "r": "again", "t": [1], "z": first["z"], "why": "ValueError: bad visit 2",
        "error": seen | {"message": "bad visit 2"},
    }  # fmt: skip
    assert second["why"] == "ValueError: bad visit 4"
    assert broken_rules(run.records()) == []
    assert read_state(run.records()).trials[1].restarts == 2


def test_one_that_fails_once_more_than_that_has_failed(game: Any) -> None:
    run = game(MemoryStore(), InlineBackend(), options=Options(max_restarts=2), behaviour=Fails(3, times=3))
    state = run.play()
    assert [trial.status for trial in state.trials.values()] == [
        "completed",
        "failed",
        "completed",
        "completed",
    ]
    assert state.trials[1].error == Evidence("ValueError", "bad visit 3", "Traceback ...", "log", worker=0)
    assert [record["r"] for record in of_trial(run, "again", "end")] == ["again", "again", "end"]


@pytest.mark.parametrize(("times", "status"), [(2, "completed"), (3, "failed")])
def test_restarts_count_over_drivers(times: int, status: str, game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend(), num_models=2).play())
    left: list[int] = []

    def fails(request: Any) -> Evidence | None:
        if (request.trial, request.unit.visit) != (1, 2) or not left:
            return None
        left.pop()
        return Evidence("ValueError", "bad")

    left[:] = range(times)
    for stop, run in killed_after_each_record(
        game, num_models=2, options=Options(max_restarts=2), behaviour=fails
    ):
        known = [each for each in of_trial(run, "again", "end") if each.get("error")]
        left[:] = range(times - len(known))  # a failure whose record was lost with the driver comes again
        state = run.play()
        assert state.trials[1].status == status, stop
        assert state.trials[1].restarts == len(of_trial(run, "again")) == 2
        assert status == "failed" or result_of(state) == expected
        assert broken_rules(run.records()) == []
        left[:] = range(times)


@pytest.mark.parametrize("every", ["epoch", 3600.0])
def test_what_was_not_durable_is_done_again(every: Any, game: Any, result_of: Any) -> None:
    options = Options(checkpoint_every=every, max_restarts=1)
    expected = result_of(game(MemoryStore(), InlineBackend(), options=options).play())
    fails = Fails(2)
    run = game(MemoryStore(), InlineBackend(), options=options, behaviour=fails)
    state = run.play()
    assert fails.visits[:6] == [0, 1, 2, 0, 1, 2]
    assert result_of(state) == expected
    units = [unit["v"] for unit in committed_units(run.records()) if unit["t"] == [1]]
    assert units == sorted(set(units))
    assert broken_rules(run.records()) == []


def test_a_trial_that_loses_its_workers_is_restarted_too_and_each_time_may_lose_one(
    game: Any, result_of: Any, tmp_path: Path
) -> None:
    def dies(request: Any) -> None:
        if (request.trial, request.unit.visit) == (1, 1):
            times = len(list(tmp_path.glob("died-*")))
            if times < 3:
                (tmp_path / f"died-{times}").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    with LocalBackend(num_workers=2) as backend:
        run = game(LocalStore(tmp_path / "store"), backend, options=Options(max_restarts=1), behaviour=dies)
        assert result_of(run.play()) == expected
    assert [record["r"] for record in of_trial(run, "lost", "again")] == ["lost", "lost", "again", "lost"]
    assert broken_rules(run.records()) == []


# Trials that end by themselves


def ends(request: Any) -> str | None:
    """Trial 2's code comes to its end in the second epoch."""
    return "ended" if (request.trial, request.unit.trained) == (2, 3) else None


@pytest.mark.parametrize("isolated", [True, False], ids=["local", "inline"])
def test_a_trial_whose_code_comes_to_its_end_is_completed(
    isolated: bool, game: Any, result_of: Any, tmp_path: Path
) -> None:
    whole = game(MemoryStore(), InlineBackend()).play()
    with LocalBackend(num_workers=2) if isolated else InlineBackend() as backend:
        run = game(LocalStore(tmp_path), backend, behaviour=ends)
        state = run.play()
    assert state.finished == "completed"
    trial = state.trials[2]
    assert (trial.status, trial.progress.trained, trial.epochs) == ("completed", 4, 1)
    [end] = [record for record in run.records() if record["r"] == "end" and record["t"] == 2]
    assert end == {"r": "end", "t": 2, "status": "completed", "by": "itself", "z": end["z"]}
    assert [each for each in result_of(state) if each[0] != 2] == [
        each for each in result_of(whole) if each[0] != 2
    ]
    assert broken_rules(run.records()) == []
    assert result_of(read_state(run.records())) == result_of(state)


def test_it_ends_so_wherever_its_driver_is_killed_and_is_not_trained_on(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend(), behaviour=ends).play())
    for stop, run in killed_after_each_record(game, behaviour=ends):
        state = run.play()
        assert result_of(state) == expected, stop
        [end] = [record for record in run.records() if record["r"] == "end" and record["t"] == 2]
        assert end["by"] == "itself"
        units = [unit["n"] for unit in run.records() if unit["r"] == "unit" and unit["t"] == [2]]
        assert units[-1] == 3, "it was trained on"


# Budgets


def test_a_trial_is_completed_after_the_visits_that_the_header_says(game: Any, result_of: Any) -> None:
    """A trial that is trained to the end makes four of the six visits of two epochs."""

    def searcher() -> Any:
        return FullLength(RandomPoints({"x": hp_uniform(0, 1)}, 1), 4, 4)

    arguments: dict[str, Any] = {"make_searcher": searcher}
    cut = game(MemoryStore(), InlineBackend(), **arguments)
    assert {trial.status for trial in cut.play().trials.values()} == {"stopped"}
    run = game(MemoryStore(), InlineBackend(), of_header={"num_visits": 4}, **arguments)
    state = run.play()
    assert state.num_visits == 4
    assert {(trial.status, trial.progress.trained) for trial in state.trials.values()} == {("completed", 4)}
    assert state.finished == "completed"
    assert result_of(run.play()) == result_of(state)
    assert broken_rules(run.records()) == []
