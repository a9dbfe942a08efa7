"""The run loop on real backends and stores, with units that train nothing."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hopper.conftest import killed_after_each_record
from tests.sampling import by_level

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import (
    Evidence,
    RunError,
    StorageError,
    StorageFullError,
    TrialError,
    UnreachableError,
    WorkerLostError,
)
from hopyard.hopper.history import broken_rules, committed_units
from hopyard.hopper.work import Options
from hopyard.storage import LocalStore, MemoryStore


@pytest.fixture(scope="module")
def local() -> Any:
    with LocalBackend(num_workers=3) as backend:
        yield backend


def test_a_run_visits_everything_once_and_ranks_the_trials(game: Any, result_of: Any) -> None:
    run = game(MemoryStore(), InlineBackend(), num_models=5)
    state = run.play()
    assert state.finished == "completed"
    assert [t.status for t in state.trials.values()] == ["completed"] * 5
    assert state.units == 5 * 2 * (3 + 2)
    assert broken_rules(run.records()) == []
    assert len(committed_units(run.records())) == state.units
    values = [t.best.value for t in state.ranked()]
    assert values == sorted(values)


def test_any_backend_and_number_of_workers_gives_the_same_outcome(
    game: Any, result_of: Any, local: LocalBackend, tmp_path: Path
) -> None:
    inline = game(MemoryStore(), InlineBackend()).play()
    run = game(LocalStore(tmp_path), local)
    assert result_of(run.play()) == result_of(inline)
    assert broken_rules(run.records()) == []
    assert {unit["w"] for unit in committed_units(run.records())} == {0, 1, 2}


def test_a_finished_run_is_not_driven_again_but_replays(game: Any, result_of: Any) -> None:
    run = game(MemoryStore(), InlineBackend())
    first = result_of(run.play())
    units = sum(record["r"] == "unit" for record in run.records())
    assert result_of(run.play()) == first
    assert sum(record["r"] == "unit" for record in run.records()) == units


def test_stopping_after_any_record_and_going_on_gives_the_same_outcome(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend(), num_models=2).play())
    runs = 0
    for _, run in killed_after_each_record(game, num_models=2):
        runs += 1
        assert result_of(run.play()) == expected
        assert broken_rules(run.records()) == []
        done = [(u["t"][0], u["v"]) for u in run.records() if u["r"] == "unit"]
        assert len(done) == len(set(done)), "a finished unit was done twice"
    assert runs * by_level(5, 3, 1) >= 25  # one in so many of the moments


def test_a_failing_trial_is_recorded_with_its_evidence_and_stops_no_other(game: Any) -> None:
    def fails(request: Any) -> Evidence | None:
        return Evidence("ValueError", "bad", "Traceback ...", "log") if request.trial == 1 else None

    state = game(MemoryStore(), InlineBackend(), behaviour=fails).play()
    assert {t.number: t.status for t in state.trials.values()} == {
        0: "completed",
        1: "failed",
        2: "completed",
        3: "completed",
    }
    assert state.trials[1].error == Evidence("ValueError", "bad", "Traceback ...", "log", worker=0)


def test_an_exception_of_the_work_itself_fails_the_trial_only(game: Any) -> None:
    def raises(request: Any) -> None:
        if request.trial == 2 and request.unit.phase == "validate":
            raise RuntimeError("\x1b[1mbroken\x1b[0m")

    state = game(MemoryStore(), InlineBackend(), behaviour=raises).play()
    assert state.trials[2].status == "failed"
    assert state.trials[2].error.message == "broken"
    assert "\x1b" not in state.trials[2].error.describe()
    assert [t.status for t in state.trials.values()].count("completed") == 3


def test_a_run_whose_first_trials_fail_alike_stops_and_says_why(game: Any) -> None:
    run = game(MemoryStore(), InlineBackend(), num_models=9, behaviour=lambda r: Evidence("KeyError", "'x'"))
    with pytest.raises(TrialError, match="the first 3 trials fail alike, before any unit is done"):
        run.play()


def test_trials_that_fail_differently_do_not_stop_a_run(game: Any) -> None:
    run = game(MemoryStore(), InlineBackend(), behaviour=lambda r: Evidence("KeyError", f"trial {r.trial}"))
    assert {t.status for t in run.play().trials.values()} == {"failed"}


def test_a_worker_killed_once_in_a_unit_costs_only_that_unit(
    game: Any, result_of: Any, local: LocalBackend, tmp_path: Path
) -> None:
    marker = tmp_path / "killed"

    def kill_once(request: Any) -> None:
        if request.trial == 1 and request.unit.visit == 4 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(LocalStore(tmp_path / "store"), local, behaviour=kill_once)
    assert result_of(run.play()) == expected
    assert [r["t"] for r in run.records() if r["r"] == "lost"] == [[1]]
    assert broken_rules(run.records()) == []


def test_a_trial_that_kills_its_worker_twice_fails_and_the_others_go_on(
    game: Any, local: LocalBackend, tmp_path: Path
) -> None:
    def kill(request: Any) -> None:
        if request.trial == 0 and request.unit.visit == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    state = game(LocalStore(tmp_path), local, behaviour=kill).play()
    assert state.trials[0].status == "failed"
    assert state.trials[0].error.kind == "WorkerLostError"
    assert "SIGKILL" in state.trials[0].error.message
    assert [state.trials[n].status for n in (1, 2, 3)] == ["completed"] * 3


def test_a_state_that_went_with_its_worker_is_no_loss_of_the_unit_that_misses_it(
    game: Any, result_of: Any
) -> None:
    happened: list[str] = []

    def forget_then_lose(request: Any) -> None:
        if (request.trial, request.unit.visit) != (1, 2) or len(happened) == 2:
            return
        if happened:
            happened.append("lost")
            raise WorkerLostError("the worker is gone")
        happened.append("forgotten")
        for name in list(memory := sys.modules["kept_between_units"].states):
            del memory[name]

    options = Options(checkpoint_every="epoch")
    expected = result_of(game(MemoryStore(), InlineBackend(), options=options).play())
    run = game(MemoryStore(), InlineBackend(), options=options, behaviour=forget_then_lose)
    assert result_of(run.play()) == expected
    assert happened == ["forgotten", "lost"]
    assert [record["t"] for record in run.records() if record["r"] == "lost"] == [[1]]
    assert broken_rules(run.records()) == []


def test_a_full_disk_pauses_the_run_with_a_message_and_the_outcome_is_the_same(
    game: Any, result_of: Any
) -> None:
    # One trial: which one comes after a full disk depends on how long units take.
    expected = result_of(game(MemoryStore(), InlineBackend(), 1).play())
    full = iter([True] * 3)

    def no_space(request: Any) -> None:
        if request.unit.visit == 3 and next(full, False):
            raise StorageFullError("the disk is full: 0 bytes free in /data.")

    run = game(MemoryStore(), InlineBackend(), 1, options=Options(retry_seconds=0.01), behaviour=no_space)
    assert result_of(run.play()) == expected
    assert run.messages == [
        (
            "paused: the disk is full: 0 bytes free in /data. The run goes on by itself once there is space; "
            "or press Ctrl-C, make space, and run the same script again."
        ),
        "there is space again: the run goes on.",
    ]


def test_a_store_that_does_not_answer_pauses_the_run_and_the_outcome_is_the_same(
    game: Any, result_of: Any
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend(), 1).play())
    gone = iter([True] * 3)

    def no_answer(request: Any) -> None:
        if request.unit.visit == 3 and next(gone, False):
            raise UnreachableError("hdfs://nest/a cannot be written: no node answers.")

    run = game(MemoryStore(), InlineBackend(), 1, options=Options(retry_seconds=0.01), behaviour=no_answer)
    assert result_of(run.play()) == expected
    assert run.messages == [
        (
            "paused: hdfs://nest/a cannot be written: no node answers. The run goes on by itself once there is an "
            "answer; or press Ctrl-C, and run the same script again later."
        ),
        "there is an answer again: the run goes on.",
    ]


def test_nothing_begins_between_a_full_disk_and_the_pause(game: Any) -> None:
    told: list[int] = []

    def no_space(request: Any) -> None:
        told.append(len(run.messages))
        if len(told) == 1:
            raise StorageFullError("the disk is full: 0 bytes free in /data.")

    run = game(MemoryStore(), InlineBackend(), options=Options(retry_seconds=0.01), behaviour=no_space)
    run.play()
    assert told[:2] == [0, 1]


def test_an_observer_that_raises_is_shown_once_and_costs_nothing(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())

    def broken(state: Any, record: Any) -> None:
        raise ValueError("in the callback")

    run = game(MemoryStore(), InlineBackend(), on_record=broken)
    assert result_of(run.play()) == expected
    [shown] = run.messages
    assert "a callback failed; the run goes on." in shown
    assert 'raise ValueError("in the callback")' in shown


def test_an_observer_that_finds_no_room_is_said_in_a_line(game: Any) -> None:
    def full(state: Any, record: Any) -> None:
        raise StorageFullError("no space is left for /logs: 0 bytes are free. Make space there.")

    run = game(MemoryStore(), InlineBackend(), on_record=full)
    run.play()
    [shown] = run.messages
    assert shown.endswith(
        "a callback failed; the run goes on. no space is left for /logs: 0 bytes are free. Make space there."
    )


class Told(LocalBackend):
    """Notes when units are submitted, among what else is noted."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__(num_workers=1, device="cpu")
        self.notes = notes

    def submit(self, worker: int, fn: Any, *args: Any) -> Any:
        self.notes.append(f"submitted {args[0].unit.visit}")
        return super().submit(worker, fn, *args)


def test_a_worker_has_its_next_unit_before_observers_are_told_of_the_last_one(
    game: Any, tmp_path: Path
) -> None:
    notes: list[str] = []

    def told(state: Any, record: Any) -> None:
        if record["r"] == "unit":
            assert state.units == record["v"] + 1  # nothing has happened since
            notes.append(f"told of {record['v']}")

    with Told(notes) as backend:
        run = game(LocalStore(tmp_path), backend, num_models=1, num_epochs=1, on_record=told)
        run.play()
    expected = ["submitted 0"]
    for number in range(4):
        expected += [f"submitted {number + 1}", f"told of {number}"]
    assert (notes, run.messages) == ([*expected, "told of 4"], [])


def test_a_backend_that_runs_units_in_the_driver_does_so_after_observers_were_told_of_the_last_one(
    game: Any,
) -> None:
    notes: list[str] = []

    def told(state: Any, record: Any) -> None:
        if record["r"] == "unit":
            notes.append(f"told of {record['v']}")

    def ran(request: Any) -> None:
        notes.append(f"ran {request.unit.visit}")

    game(MemoryStore(), InlineBackend(), num_models=1, num_epochs=1, on_record=told, behaviour=ran).play()
    assert notes == [f"{what} {number}" for number in range(5) for what in ("ran", "told of")]


def test_observers_hear_of_all_that_happened_before_a_run_broke_off(game: Any) -> None:
    told: list[str] = []

    def full(request: Any) -> None:
        if request.unit.visit == 2:
            raise StorageError("the store is gone")

    run = game(
        MemoryStore(),
        InlineBackend(),
        num_models=1,
        behaviour=full,
        on_record=lambda state, record: told.append(record["r"]),
    )
    with pytest.raises(StorageError, match="the store is gone"):
        run.play()
    assert told == ["session", "trial", "unit", "unit", "back"]


def test_a_spent_time_budget_ends_the_run_and_the_next_one_goes_on(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(MemoryStore(), InlineBackend(), options=Options(time_budget=1e-9))
    first = run.play()
    assert first.finished == "time budget"
    said = [text for text in run.messages if "time budget" in text]
    assert len(said) == 1
    assert said[0].endswith("units; start again to go on.")
    assert any(trial.running for trial in first.trials.values())
    run.options = Options()
    assert result_of(run.play()) == expected


def test_only_states_that_something_needs_are_kept(game: Any) -> None:
    for keep, kept in {"completed": 4, "best": 1, "all": 4}.items():
        run = game(MemoryStore(), InlineBackend(), options=Options(keep=keep))
        state = run.play()
        there = {entry.name for entry in run.store.list() if entry.name.endswith(".safetensors")}
        wanted = {
            f"{t.number:05d}/{name}"
            for t in state.ranked()[:kept]
            for reference in t.live_states()
            for name in reference.files
        }
        assert there == wanted


def test_a_searcher_that_forgets_its_trials_is_an_error_and_not_a_hang(game: Any, monkeypatch: Any) -> None:
    from hopyard.search import Create, FullLength

    monkeypatch.setattr(FullLength, "start", lambda self: [Create(0, {"x": 0.5})])
    with pytest.raises(RunError, match=r"trials \[0\] wait, no unit is under way"):
        game(MemoryStore(), InlineBackend()).play()
