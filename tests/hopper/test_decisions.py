"""Runs that are taken up, extended and taken up again end where one long run would have ended."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.sampling import sample

from hopyard.backend import InlineBackend
from hopyard.errors import (
    Evidence,
    MetricError,
    SettingsError,
    StorageError,
    StorageFullError,
    TrialError,
    WorkerMismatchError,
)
from hopyard.hopper.control import request
from hopyard.hopper.history import broken_rules
from hopyard.hopper.work import Options
from hopyard.search import FullLength, InVirtualTime, RandomPoints, Searcher, hp_uniform
from hopyard.search.asha import Asha
from hopyard.storage import MemoryStore


def stop_at(run: Any, record: int) -> bool:
    """Play, but die after so many records; whether it got that far."""
    seen = 0

    def stopping(state: Any, _: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == record:
            raise KeyboardInterrupt

    run.on_record = stopping
    try:
        run.play()
    except KeyboardInterrupt:
        return True
    finally:
        run.on_record = None
    return False


def fails(request: Any) -> Evidence | None:
    """Trial 1 fails in its second epoch."""
    broken = request.trial == 1 and request.unit.visit == 6
    return Evidence("ValueError", "trial 1 is broken") if broken else None


@pytest.mark.parametrize("patience", [None, 1, 2])
def test_a_run_that_grows_in_steps_with_a_kill_in_each_equals_one_that_was_large_from_the_start(
    patience: int | None, game: Any, result_of: Any
) -> None:
    steps = [(2, 1), (2, 2), (3, 4), (5, 4), (5, 7)]
    whole = game(
        MemoryStore(), InlineBackend(), num_models=5, num_epochs=7, patience=patience, behaviour=fails
    )
    expected = result_of(whole.play())
    assert ("stopped" in {row[2] for row in expected}) == (patience is not None)
    for kill in sample(f"kills {patience}", (1, 2, 3, 6, 9, 13, 22, 31), 3, 4):
        store = MemoryStore()
        for models, epochs in steps:
            run = game(store, InlineBackend(), models, epochs, patience=patience, behaviour=fails)
            if stop_at(run, kill) and kill % 2:
                stop_at(run, kill + 1)
            if kill % 3:
                run.play()
        assert (
            result_of(game(store, InlineBackend(), 5, 7, patience=patience, behaviour=fails).play())
            == expected
        )
        assert broken_rules(run.records()) == []


def test_trials_that_failed_alike_are_tried_again_when_the_cause_is_mended(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend(), num_models=5).play())
    run = game(MemoryStore(), InlineBackend(), num_models=5)
    for _ in range(2):
        run.behaviour = lambda request: Evidence("KeyError", "'x'")
        with pytest.raises(TrialError, match="Mend what they share and run it again"):
            run.play()
    run.behaviour = None
    assert result_of(run.play()) == expected
    assert result_of(run.play()) == expected


@pytest.mark.parametrize(
    "error",
    [
        StorageError("reading /data failed: input/output error"),
        WorkerMismatchError("Worker 1, executor 7 on there, cannot run units: no package 'hopyard'."),
    ],
    ids=["store", "worker"],
)
def test_what_no_trial_can_help_ends_the_run_and_not_its_trials(
    error: Exception, game: Any, result_of: Any
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())

    def broken(request: Any) -> None:
        if request.unit.visit == 3:
            raise error

    run = game(MemoryStore(), InlineBackend(), behaviour=broken)
    with pytest.raises(type(error), match=str(error)):
        run.play()
    run.behaviour = None
    assert result_of(run.play()) == expected


def test_a_searcher_that_decides_otherwise_than_the_journal_is_an_error(game: Any) -> None:
    run = game(MemoryStore(), InlineBackend(), patience=1, num_epochs=5)
    run.play()
    other = game(run.store, InlineBackend(), patience=2, num_epochs=5)
    with pytest.raises(SettingsError, match="which the searcher does not decide now"):
        other.play()


def test_a_budget_that_ends_while_the_disk_is_full_starts_nothing_more(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())

    def full(request: Any) -> None:
        if request.unit.visit == 1:
            raise StorageFullError("the disk is full.")

    run = game(
        MemoryStore(), InlineBackend(), options=Options(time_budget=0.05, retry_seconds=0.03), behaviour=full
    )
    assert run.play().finished == "time budget"
    run.options, run.behaviour = Options(), None
    assert result_of(run.play()) == expected


def test_the_times_of_a_run_go_on_from_driver_to_driver_whatever_their_clocks_say(game: Any) -> None:
    store = MemoryStore()
    for start in (1e6, 5.0, 3e5, 0.0):
        ticks = itertools.count(start, 0.25)
        run = game(store, InlineBackend(), clock=ticks.__next__)
        stop_at(run, 14)
    state = run.play()
    times = [(record["a"], record["z"]) for record in run.records() if record["r"] == "unit"]
    assert all(start < end for start, end in times)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(times))
    assert times[0][0] < 10
    assert times[-1][1] < 10 * state.units
    assert all(trial.ended_at == sorted(trial.ended_at) for trial in state.trials.values())
    assert broken_rules(run.records()) == []


def asha() -> Searcher:
    return InVirtualTime(Asha(RandomPoints({"x": hp_uniform(0, 1)}, 1), 12, [2, 3, 6], 2, max_concurrent=4))


def one_by_one() -> Searcher:
    return FullLength(RandomPoints({"x": hp_uniform(0, 1)}, 1), 5, 6, max_concurrent=1)


@pytest.mark.parametrize(("make_searcher", "num_models"), [(asha, 12), (one_by_one, 5)])
def test_trials_that_were_begun_because_others_failed_alike_are_forgotten_with_the_failures(
    make_searcher: Any, num_models: int, game: Any, result_of: Any
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend(), num_models, make_searcher=make_searcher).play())
    run = game(MemoryStore(), InlineBackend(), num_models, make_searcher=make_searcher)
    for _ in range(2):
        run.behaviour = lambda request: Evidence("KeyError", "'x'")
        with pytest.raises(TrialError, match="the first 3 trials fail alike"):
            run.play()
    run.behaviour = None
    for record in (2, 3, 5, 9):
        stop_at(run, record)
    assert result_of(run.play()) == expected
    assert result_of(run.play()) == expected


class Misnaming(InlineBackend):
    """Its units measure another metric than the one that decides."""

    def submit(self, *args: Any) -> Any:
        future = super().submit(*args)
        [metrics] = future.result().metrics
        if "values" in metrics:
            metrics["values"] = {"los": metrics["values"]["loss"]}
        return future


def test_an_evaluation_metric_that_is_not_measured_is_named_at_once_and_costs_nothing(
    game: Any, result_of: Any
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    run = game(MemoryStore(), Misnaming())
    for _ in range(2):
        with pytest.raises(
            MetricError, match=r"val_loss .* measured: \['train_loss', 'val_los'\]; did you mean"
        ):
            run.play()
    run.backend = InlineBackend()
    assert result_of(run.play()) == expected


def test_a_trial_that_was_to_train_on_and_is_stopped_by_a_user_gives_its_place_to_the_next(game: Any) -> None:
    def make_searcher() -> Searcher:
        return FullLength(RandomPoints({"x": hp_uniform(0, 1)}, 1), 3, 3, max_concurrent=1)

    store = MemoryStore()
    game(store, InlineBackend(), 3, 1, make_searcher=make_searcher).play()
    run = game(store, InlineBackend(), 3, 2, make_searcher=make_searcher)

    def stop_one(state: Any, record: Any) -> None:
        if record["r"] == "extend":
            request(store, {"do": "stop", "trial": 1})

    run.on_record = stop_one
    for _ in range(2):  # and once more, from its journal
        state = run.play()
        assert [t.status for t in state.trials.values()] == ["completed", "stopped", "completed"]
        assert [t.epochs for t in state.trials.values()] == [2, 1, 2]


@pytest.mark.parametrize("asked_of", ["nobody", "an earlier driver", "this driver"])
def test_a_stop_that_waits_when_a_driver_begins_is_void_unless_this_driver_was_asked(
    game: Any, asked_of: str
) -> None:
    store = MemoryStore()
    run = game(store, InlineBackend(), 2, 1)
    assert stop_at(run, record=6)

    def stop(state: Any, record: Any) -> None:
        if record["r"] == "session":
            drivers = {"nobody": None, "an earlier driver": "4f1c", "this driver": record["driver"]}
            request(store, {"do": "stop"}, drivers[asked_of])

    run.on_record = stop
    state = run.play()
    (answer,) = (record for record in run.records() if record["r"] == "control")
    if asked_of == "this driver":
        assert (state.finished, "refused" in answer) == ("stopped", False)
    else:
        assert (state.finished, answer["refused"]) == ("completed", "it was given before this driver began")


def test_a_pause_that_a_driver_finds_when_it_begins_holds_until_it_is_resumed(game: Any) -> None:
    store = MemoryStore()
    run = game(store, InlineBackend(), 2, 1, Options(control_seconds=0.01))
    assert stop_at(run, record=6)
    before = len(run.records())

    def pause(state: Any, record: Any) -> None:
        if record["r"] == "session":
            request(store, {"do": "pause"}, record["driver"])
        elif record.get("do") == "pause":
            request(store, {"do": "resume"}, "4f1c")

    run.on_record = pause
    assert run.play().finished == "completed"
    kinds = [record.get("do", record["r"]) for record in run.records()[before:]]
    assert kinds[kinds.index("pause") + 1] == "resume"
    assert "unit" not in kinds[: kinds.index("resume")]
    assert "unit" in kinds


def test_a_budget_that_ends_with_the_last_trial_does_not_leave_the_run_unfinished(game: Any) -> None:
    now = [0.0]

    def pass_time(request: Any) -> None:
        if request.unit.phase == "validate" and request.unit.last:
            now[0] = 10.0

    options = Options(time_budget=9.0)
    run = game(MemoryStore(), InlineBackend(), 1, 1, options, clock=lambda: now[0], behaviour=pass_time)
    state = run.play()
    assert [t.status for t in state.trials.values()] == ["completed"]
    assert state.finished == "completed"
