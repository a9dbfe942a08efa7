"""Which states are kept, in every mode, through kills; and that none goes too early."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import diagonal

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.hopper import control
from hopyard.hopper.history import broken_rules
from hopyard.hopper.retention import Retention
from hopyard.hopper.state import Best, EvaluationMetric, RunState, TrialProgress, TrialState
from hopyard.hopper.work import Options
from hopyard.objects import StateRef
from hopyard.search import FullLength, ListPoints, Searcher
from hopyard.storage import LocalStore, MemoryStore, Store


@pytest.fixture(scope="module")
def local() -> Any:
    with LocalBackend(num_workers=2) as backend:
        yield backend


def state_files(store: Store) -> set[str]:
    return {entry.name for entry in store.list() if entry.name.endswith(".safetensors")}


def files_of(state: RunState, numbers: Any) -> set[str]:
    return {
        f"{number:05d}/{name}"
        for number in numbers
        for reference in state.trials[number].live_states()
        for name in reference.files
    }


@pytest.mark.parametrize(
    ("every", "backend"), diagonal("retention", ["unit", "epoch", 1e-9, 3600.0], ["inline", "local"])
)
def test_every_way_to_save_states_gives_the_same_outcome_and_keeps_the_same_files(
    every: Any, backend: str, game: Any, result_of: Any, local: Any, tmp_path: Path
) -> None:
    expected = game(MemoryStore(), InlineBackend(), num_epochs=3).play()
    used = InlineBackend() if backend == "inline" else local
    run = game(LocalStore(tmp_path), used, num_epochs=3, options=Options(checkpoint_every=every))
    assert result_of(run.play()) == result_of(expected)
    assert broken_rules(run.records()) == []
    assert state_files(run.store) == files_of(expected, range(4))
    saved = [unit["s"] != [None] for unit in run.records() if unit["r"] == "unit" and unit["ph"] == "train"]
    assert sum(saved) == (12 if every in ("epoch", 3600.0) else 36)


@pytest.mark.parametrize("every", ["unit", "epoch"])
def test_a_lost_worker_costs_the_units_since_the_last_saved_state_and_leaves_no_file(
    every: Any, game: Any, result_of: Any, local: Any, tmp_path: Path
) -> None:
    def kill_once(request: Any) -> None:
        marker = tmp_path / f"killed-{request.trial}"
        if request.unit.visit == 7 and request.trial in (0, 3) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    expected = game(MemoryStore(), InlineBackend()).play()
    run = game(
        LocalStore(tmp_path / "store"), local, options=Options(checkpoint_every=every), behaviour=kill_once
    )
    assert result_of(run.play()) == result_of(expected)
    assert broken_rules(run.records()) == []
    assert state_files(run.store) == files_of(expected, range(4))
    back = {number for record in run.records() if record["r"] == "back" for number in record["t"]}
    assert ({0, 3} <= back) == (every == "epoch")


def test_a_unit_that_kills_its_worker_twice_fails_though_units_before_it_were_repeated(
    game: Any, local: Any, tmp_path: Path
) -> None:
    def kill(request: Any) -> None:
        if request.trial == 1 and request.unit.visit == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    run = game(LocalStore(tmp_path), local, options=Options(checkpoint_every="epoch"), behaviour=kill)
    state = run.play()
    assert [trial.status for trial in state.trials.values()].count("failed") == 1
    assert [record["t"] for record in run.records() if record["r"] == "lost"] == [[1], [1]]
    assert state_files(run.store) == files_of(state, (0, 2, 3))


@pytest.mark.parametrize("every", ["unit", "epoch"])
def test_stopping_after_any_record_loses_only_what_was_not_saved(
    every: Any, game: Any, result_of: Any
) -> None:
    expected = game(MemoryStore(), InlineBackend(), num_models=2).play()
    for stop in range(1, 27):
        run = game(MemoryStore(), InlineBackend(), num_models=2, options=Options(checkpoint_every=every))
        seen = iter(range(1, 1000))

        def stopping(state: Any, record: Any, seen: Any = seen, stop: int = stop) -> None:
            if next(seen) == stop:
                raise KeyboardInterrupt

        run.on_record = stopping
        with pytest.raises(KeyboardInterrupt):
            run.play()
        run.on_record = None
        assert result_of(run.play()) == result_of(expected)
        assert broken_rules(run.records()) == []
        assert state_files(run.store) == files_of(expected, range(2))


def test_a_driver_that_takes_up_a_validation_finds_its_metric_states(game: Any) -> None:
    run = game(MemoryStore(), InlineBackend(), num_models=1)

    def stopping(state: Any, record: Any) -> None:
        if record["r"] == "unit" and record["ph"] == "validate":
            raise KeyboardInterrupt

    run.on_record = stopping
    with pytest.raises(KeyboardInterrupt):
        run.play()
    run.on_record = None
    assert [trial.status for trial in run.play().trials.values()] == ["completed"]


class Files:
    """A store with the files of hand-made states, and the retention that minds them."""

    def __init__(self, keep: str, keep_n: int = 1) -> None:
        self.store = MemoryStore()
        self.state = RunState()
        self.state.metric = EvaluationMetric("val_loss", "min")
        self.retention = Retention(self.store, self.state, keep, keep_n)
        self.record = 0

    def trial(self, number: int) -> TrialState:
        return self.state.trials.setdefault(number, TrialState(number, {}, 0))

    def save(self, number: int, name: str) -> StateRef:
        if not self.store.exists(f"{number:05d}/{name}"):
            self.store.put(f"{number:05d}/{name}", b"")
        return StateRef(name, (name,), 0)

    def commit(self, number: int, name: str) -> None:
        trial = self.trial(number)
        trial.progress = trial.durable = TrialProgress(
            trial.progress.visits + 1, state=self.save(number, name)
        )
        self.changed(number)

    def changed(self, number: int) -> None:
        self.record += 1
        self.retention.changed(self.trial(number), self.record)

    def there(self) -> list[str]:
        return [entry.name for entry in self.store.list()]


def test_a_state_goes_once_its_successor_is_durable() -> None:
    files = Files("completed")
    files.commit(0, "a")
    files.commit(0, "b")
    files.retention.delete(1, lambda trial: False)
    assert files.there() == ["00000/a", "00000/b"]
    files.retention.delete(2, lambda trial: False)
    assert files.there() == ["00000/b"]


def test_a_state_is_not_deleted_under_a_unit_that_may_come_back_to_it() -> None:
    files = Files("completed")
    files.commit(0, "a")
    files.commit(0, "b")
    files.retention.delete(2, lambda trial: True)  # the unit is under way and finds "a" there
    files.commit(0, "a")
    files.retention.delete_of(0, 3)
    files.retention.delete(3, lambda trial: False)
    assert files.there() == ["00000/a"]


def test_a_state_that_came_back_is_kept_until_its_next_successor_is_durable() -> None:
    files = Files("completed")
    for name in ("a", "b", "a", "c"):
        files.commit(0, name)
    files.retention.delete(3, lambda trial: False)
    assert files.there() == ["00000/a", "00000/c"]
    files.retention.delete(4, lambda trial: False)
    assert files.there() == ["00000/c"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("keep_n", [1, 3])
def test_keep_best_keeps_the_best_ended_trials_and_the_weights_of_the_best(seed: int, keep_n: int) -> None:
    chance, files = random.Random(seed), Files("best", keep_n)
    running = list(range(12))
    for number in running:
        files.commit(number, f"state-{number}")
    while running:
        number = chance.choice(running)
        trial = files.trial(number)
        if chance.random() < 0.6:
            value = round(chance.random(), 1)  # with ties
            if trial.best is None or value < trial.best.value:
                trial.best = Best(1, value, files.save(number, f"best-{number}-{value}"), {})
            ranked = [trial for trial in files.state.ranked() if trial.best is not None]
            files.state.best = ranked[0].number
        else:
            running.remove(number)
            trial.status = chance.choice(["completed", "stopped", "failed"])
        files.changed(number)
        files.retention.delete(files.record, lambda trial: False)
        ended = [t for t in files.state.ranked() if not t.running and t.best is not None][:keep_n]
        needed = files_of(files.state, [*running, *(t.number for t in ended)])
        best = files.state.best
        if best is not None and (found := files.trial(best).best) is not None:
            needed.add(f"{best:05d}/{found.state.digest}")
        assert set(files.there()) == needed
    before = set(files.there())
    Retention(files.store, files.state, "best", keep_n).sweep()
    assert set(files.there()) == before


def test_a_kept_trial_that_trains_on_is_counted_once_among_the_best() -> None:
    files = Files("best", keep_n=2)

    def end(number: int, value: float) -> None:
        trial = files.trial(number)
        trial.best = Best(1, value, files.save(number, f"best-{number}-{value}"), {})
        files.state.best = files.state.ranked()[0].number
        trial.status = "completed"
        files.changed(number)

    for number, values in enumerate([(0.3, 0.1), (0.4, 0.35)]):
        files.commit(number, f"state-{number}")
        end(number, values[0])
    for number in (0, 1):  # the budget has grown
        files.trial(number).status = "running"
    end(0, 0.1)
    end(1, 0.35)
    files.retention.delete(files.record, lambda trial: False)
    assert {"00000/state-0", "00001/state-1"} <= set(files.there())


@pytest.fixture
def in_turn(game: Any) -> Any:
    """Runs of three trials, one after the other: the second is the best, the first the worst."""

    def make(store: Store, **arguments: Any) -> Any:
        def searcher() -> Searcher:
            points = ListPoints([{"x": x} for x in (200.0, 0.0, 100.0)])
            return FullLength(points, 3, 3, max_concurrent=1)

        arguments = {"num_models": 3, "num_epochs": 1, "make_searcher": searcher, **arguments}
        return game(store, InlineBackend(), **arguments)

    return make


def test_states_that_an_extension_needs_again_survive_another_way_to_keep_them(
    in_turn: Any, result_of: Any
) -> None:
    expected = in_turn(MemoryStore())
    expected.play()
    expected.num_epochs = 2
    run = in_turn(MemoryStore(), options=Options(keep="all"))
    run.play()
    run.num_epochs, run.options = 2, Options(keep="best")
    assert result_of(run.play()) == result_of(expected.play())


def test_a_state_that_may_go_is_kept_if_the_run_is_extended_before_it_does(
    in_turn: Any, result_of: Any
) -> None:
    class Watched(MemoryStore):
        """Counts how often somebody has looked for commands."""

        looks = 0

        def list(self, prefix: str = "") -> Any:
            if "control" in prefix:
                type(self).looks += 1
            return super().list(prefix)

    asked = False

    def extend(request: Any) -> None:
        """In the third trial's first unit: the first one's state goes once another segment is written."""
        nonlocal asked
        if request.trial == 2 and not asked:
            asked = True
            control.request(run.store, {"do": "extend", "num_models": None, "num_epochs": 2})
            seen = Watched.looks
            while Watched.looks < seen + 3:  # then the command is in the queue, before this unit's end
                pause.wait(0.005)

    def flush(state: RunState, record: Any) -> None:
        if record["r"] == "extend":
            run.flush()

    pause = threading.Event()
    expected = in_turn(MemoryStore())
    expected.play()
    expected.num_epochs = 2
    options = Options(keep="best", control_seconds=0.005)
    run = in_turn(Watched(), options=options, behaviour=extend, on_record=flush)
    assert result_of(run.play()) == result_of(expected.play())
