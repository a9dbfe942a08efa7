"""Runs to which anything happens at random moments: units end in any order, workers are lost, the disk is full,
trials fail, drivers die, users interfere."""

from __future__ import annotations

import itertools
import queue
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hopper.attentive import Attentive

from hopyard.backend import Backend
from hopyard.errors import Evidence, StorageFullError, WorkerLostError
from hopyard.hopper import hopper
from hopyard.hopper.control import pending, request
from hopyard.hopper.history import UnitFollower, broken_rules, committed_units, read_state
from hopyard.hopper.orders import rotating_order
from hopyard.hopper.state import RunState
from hopyard.hopper.work import Options
from hopyard.search import FullLength, InVirtualTime, Patience, RandomPoints, Searcher, hp_uniform
from hopyard.search.asha import Asha
from hopyard.search.pbt import Pbt
from hopyard.search.testing import Chaotic
from hopyard.storage import MemoryStore

SPACE = {"x": hp_uniform(0, 1)}
MODELS, EPOCHS = 6, 4


def full() -> Searcher:
    return Patience(FullLength(RandomPoints(SPACE, 1), MODELS, 12, max_concurrent=3), 2, 3)


def asha() -> Searcher:
    return InVirtualTime(Asha(RandomPoints(SPACE, 1), MODELS, [2, 4, 12], 2, max_concurrent=4))


def population() -> Searcher:
    return InVirtualTime(Pbt(RandomPoints(SPACE, 1), SPACE, MODELS, 4, 3, truncate_fraction=0.5))


def chaotic(seed: int) -> Callable[[], Searcher]:
    return lambda: InVirtualTime(Chaotic(seed, MODELS))


SEARCHERS = st.sampled_from([full, asha, population]) | st.integers(0, 10**6).map(chaotic)


class Clockwork(Backend):
    """Workers of which one that is drawn ends its unit whenever the driver waits; also the driver's queue.

    ``losses`` and ``full`` are how likely it is that a unit loses its worker (at most once), or finds no space.
    """

    name, isolated, threads_per_worker, running = "clockwork", False, 1, True

    def __init__(self, chance: random.Random, workers: int, losses: float = 0.0, full: float = 0.0) -> None:
        self.chance, self.workers, self.losses, self.full = chance, workers, losses, full
        self.lost_before: set[Any] = set()
        self.on_turn: Callable[[], None] = lambda: None
        self.begin()

    def begin(self) -> None:
        """As a new process."""
        self.under_way: dict[int, tuple[Future[Any], Any, Any]] = {}
        self.memory: dict[int, set[Any]] = {worker: set() for worker in range(self.workers)}
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        resident().clear()

    @property
    def num_workers(self) -> int:
        return self.workers

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def surrounded(self, env: Any = None, prefix: Any = None) -> Clockwork:
        raise AssertionError("the run loop takes workers as they are")

    def submit(self, worker: int, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        assert worker not in self.under_way, "a worker has one unit at a time"
        future: Future[Any] = Future()
        self.under_way[worker] = future, fn, args
        return future

    def put(self, event: Any) -> None:
        self.events.put(event)

    def get(self) -> Any:
        self.on_turn()
        while self.events.empty() and self.under_way:
            self.turn()
        return self.events.get(timeout=20)  # a timer for a full disk; nothing else can come

    def turn(self) -> None:
        worker = self.chance.choice(sorted(self.under_way))
        future, fn, [visit] = self.under_way.pop(worker)
        unit, fate = (visit.trial, visit.unit.visit), self.chance.random()
        if fate < self.losses and unit not in self.lost_before:
            self.lost_before.add(unit)
            for key in self.memory.pop(worker):
                resident().pop(key, None)
            self.memory[worker] = set()
            future.set_exception(WorkerLostError("the worker is gone"))
        elif self.losses < fate < self.losses + self.full:
            future.set_exception(StorageFullError("the disk is full."))
        else:
            self.memory[worker].add((visit.store.url, visit.trial))
            try:
                future.set_result(fn(visit))
            except Exception as error:
                future.set_exception(error)


class AtOnce(threading.Timer):
    """A timer that goes off when it is started, in no thread of its own: what happens is the same each time."""

    def start(self) -> None:
        self.function(*self.args)


def resident() -> dict[Any, Any]:
    """What the units of the ``game`` keep in memory."""
    kept = sys.modules.get("kept_between_units")
    return kept.__dict__.setdefault("states", {}) if kept else {}


def ticking() -> Callable[[], float]:
    """A clock by which all that happens takes alike, so that a failure is found again."""
    seconds = itertools.count(0.0, 0.001)
    return lambda: next(seconds)


def failing(seed: int, share: float) -> Callable[[Any], Evidence | None]:
    """That share of trials fails at some unit, always the same."""

    def behaviour(visit: Any) -> Evidence | None:
        rng = random.Random(f"{seed} {visit.draws}")
        fails = rng.random() < share and visit.unit.visit >= rng.randint(1, 15)
        return Evidence("ValueError", f"trial {visit.draws} is broken") if fails else None

    return behaviour


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Clockwork], None]:
    def patch(backend: Clockwork) -> None:
        monkeypatch.setattr(hopper, "queue", types.SimpleNamespace(SimpleQueue=lambda: backend))
        monkeypatch.setattr(threading, "Timer", AtOnce)

    return patch


def drive(run: Any, deaths: list[int]) -> Any:
    """Play to the end of the run, with a driver that dies at each of these records after it began."""
    for death in deaths:
        seen = 0

        def dying(state: Any, record: Any, death: int = death) -> None:
            nonlocal seen
            seen += 1
            if seen == death:
                raise KeyboardInterrupt

        run.on_record = dying
        run.backend.begin()
        try:
            run.play()
        except KeyboardInterrupt:
            continue
        break
    run.on_record = None
    run.backend.begin()
    return run.play()


def needed_files(state: Any, keep: str) -> set[str]:
    """The states that an ended run keeps."""
    measured = [trial for trial in state.ranked() if trial.best is not None]
    kept = {
        "completed": [trial for trial in state.trials.values() if trial.status == "completed"],
        "all": list(state.trials.values()),
        "best": measured[:1],
    }[keep]
    needed = [(trial, reference) for trial in kept for reference in trial.live_states()]
    needed += [(trial, trial.best.state) for trial in measured[:1]]
    return {f"{trial.number:05d}/{name}" for trial, reference in needed for name in reference.files}


@given(
    make_searcher=SEARCHERS,
    seed=st.integers(0, 10**6),
    workers=st.integers(1, 4),
    validate=st.sampled_from([0, 1, 2]),
    every=st.sampled_from(["unit", "epoch", 1e-9, 3600.0]),
    keep=st.sampled_from(["completed", "all", "best"]),
    losses=st.sampled_from([0.0, 0.1]),
    full=st.sampled_from([0.0, 0.05]),
    fails=st.sampled_from([0.0, 0.3, 1.0]),
    deaths=st.lists(st.integers(1, 60), max_size=4),
)
def test_whatever_happens_the_outcome_is_that_of_a_quiet_run(
    make_searcher: Any,
    seed: int,
    workers: int,
    validate: int,
    every: Any,
    keep: str,
    losses: float,
    full: float,
    fails: float,
    deaths: list[int],
    game: Any,
    result_of: Any,
    patched: Any,
) -> None:
    arguments = {
        "num_models": MODELS,
        "num_epochs": EPOCHS,
        "make_searcher": make_searcher,
        "layout": {"train": 3, "validate": validate},
        "metric": "val_loss" if validate else "train_loss",
        "behaviour": failing(seed, fails),
    }
    quiet = Clockwork(random.Random(0), 1)
    patched(quiet)
    expected = result_of(game(MemoryStore(), quiet, **arguments).play())
    backend = Clockwork(random.Random(seed), workers, losses, full)
    patched(backend)
    options = Options(checkpoint_every=every, keep=keep, retry_seconds=0.0, control_seconds=3600.0)
    run = game(MemoryStore(), backend, options=options, clock=ticking(), **arguments)
    state = drive(run, deaths)
    assert state.finished == state.outcome
    assert result_of(state) == expected
    assert broken_rules(run.records()) == []
    assert committed_units(run.records()) == last_of_each_visit(run.records())
    follow_from_everywhere(run.records())
    there = {entry.name for entry in run.store.list() if entry.name.endswith(".safetensors")}
    assert there == needed_files(state, keep)
    assert result_of(read_state(run.records())) == expected


def last_of_each_visit(records: list[Any]) -> list[Any]:
    """Units that count, by their definition: a visit that was undone was done again, or lies behind what is durable."""
    durable, last = read_state(records).trials, {}
    for index, record in enumerate(records):
        if record["r"] == "unit":
            (number,) = record["t"]
            if record["v"] < durable[number].durable.visits:
                last[number, record["v"]] = index
    return [records[index] for index in sorted(last.values())]


def follow_from_everywhere(records: list[Any]) -> None:
    """A follower gives each unit once, in order, and at any time, with the rest, those that count until then."""
    state, follower, given = RunState(), UnitFollower(), []
    for index, record in enumerate(records):
        state.apply(record)
        given += follower.add(state, record)
        if index % 7 == 0:
            assert [*given, *follower.rest()] == last_of_each_visit(records[: index + 1])
    assert [*given, *follower.rest()] == committed_units(records)


def units_after_being_stopped(records: list[Any]) -> Iterator[int]:
    """For each trial that a user stops, how many of its units are done between that and its end."""
    for index, record in enumerate(records):
        if (
            record["r"] == "control"
            and record["do"] == "stop"
            and "trial" in record
            and "refused" not in record
        ):
            after = [each for each in records[index:] if record["trial"] in (each.get("t"), *_trials(each))]
            ends = [each["r"] for each in after].index("end")
            yield sum(each["r"] == "unit" for each in after[:ends])


def _trials(record: Any) -> list[int]:
    return list(record["t"]) if record["r"] == "unit" else []


CLONES = st.builds(
    lambda trial, x, weights: {
        "do": "clone", "trial": trial, "params": {} if x is None else {"x": x}, "weights": weights
    },
    st.integers(0, MODELS + 4), st.none() | st.sampled_from([0.25, 3.0]), st.booleans(),
)  # fmt: skip
COMMANDS = st.one_of(
    CLONES,
    st.sampled_from([{"do": "pause"}, {"do": "resume"}, {"do": "stop"}]),
    st.integers(0, MODELS + 2).map(lambda trial: {"do": "stop", "trial": trial}),
    st.tuples(st.none() | st.integers(1, 10), st.integers(1, 7)).map(
        lambda asked: {"do": "extend", "num_models": asked[0], "num_epochs": asked[1]}
    ),
)


@given(
    make_searcher=SEARCHERS,
    seed=st.integers(0, 10**6),
    workers=st.integers(1, 3),
    every=st.sampled_from(["unit", "epoch"]),
    keep=st.sampled_from(["completed", "all"]),
    fails=st.sampled_from([0.0, 0.3]),
    commands=st.lists(st.tuples(st.integers(0, 40), COMMANDS), min_size=1, max_size=6),
    deaths=st.lists(st.integers(1, 60), max_size=3),
)
def test_whatever_users_ask_for_the_run_ends_and_its_journal_replays(
    make_searcher: Any,
    seed: int,
    workers: int,
    every: Any,
    keep: str,
    fails: float,
    commands: list[tuple[int, dict[str, Any]]],
    deaths: list[int],
    game: Any,
    result_of: Any,
    patched: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(seed)
    backend = Clockwork(chance, workers, losses=0.05)
    patched(backend)
    monkeypatch.setattr(hopper, "Watcher", Attentive)
    options = Options(checkpoint_every=every, keep=keep, retry_seconds=0.0)
    run = game(
        MemoryStore(), backend, MODELS, EPOCHS, options,
        make_searcher=make_searcher, behaviour=failing(seed, fails), extends=False, clock=ticking(),
    )  # fmt: skip
    waits = iter(commands)
    turns, coming = 0, next(waits, None)

    def on_turn() -> None:
        nonlocal turns, coming
        turns += 1
        while coming is not None and turns >= coming[0]:
            request(run.store, coming[1])
            coming, turns = next(waits, None), 0
        if backend.events.empty() and not backend.under_way:  # paused: nothing else can happen
            request(run.store, {"do": "resume"})
        Attentive.last.look()

    backend.on_turn = on_turn
    state = drive(run, deaths)
    for _ in range(len(commands)):
        if state.finished == "completed":
            break
        state = drive(run, [])
    assert state.finished == "completed"
    assert not any(trial.running for trial in state.trials.values())
    assert broken_rules(run.records()) == []
    answered = [record["c"] for record in run.records() if "c" in record]
    assert answered == sorted(set(answered))
    assert max(units_after_being_stopped(run.records()), default=0) <= 1
    assert sorted(state.trials) == [*range(len(state.trials))]
    assert cloned(state) == begun_by_users(run.records())
    assert_histories_are_those_of_the_visits(state)
    assert result_of(drive(run, [])) == result_of(state)


def cloned(state: Any) -> list[Any]:
    """Clones that there are: number, donor, whether it began with its weights."""
    clones = [trial for trial in state.trials.values() if trial.clone_of is not None]
    return [(trial.number, trial.clone_of, trial.source is not None) for trial in clones]


def begun_by_users(records: list[Any]) -> list[Any]:
    """The same, of what users have asked for and were not refused."""
    obeyed = [each for each in records if each.get("do") == "clone" and "refused" not in each]
    return [(number, each["trial"], each["weights"]) for each in obeyed for number in each["begun"]]


def assert_histories_are_those_of_the_visits(state: Any) -> None:
    """Histories as a plain model has them: of each trial the visits that it and its donors made, one after another."""
    order, size = rotating_order(3, 3, 5), 3

    def path(trial: Any, visits: int) -> list[int]:
        own = [order(trial.group, visit // size)[visit % size] for visit in range(visits)]
        if trial.source is None:
            return own
        return [*path(state.trials[trial.source], trial.began), *own[trial.began :]]

    for trial in state.trials.values():
        first, expected = trial.began // size, []
        for epoch in range(first, first + trial.epochs):
            visited = path(trial, (epoch + 1) * size)
            wave = (7 * epoch + 3 * trial.draws_as) % 5
            expected.append(trial.params["x"] + wave + sum(p * (k + 1) for k, p in enumerate(visited)) * 1e-6)
        assert trial.history.get("val_loss", [])[: trial.epochs] == expected


@given(
    make_searcher=SEARCHERS,
    seed=st.integers(0, 10**6),
    workers=st.integers(1, 4),
    every=st.sampled_from(["unit", "epoch", 3600.0]),
    keep=st.sampled_from(["completed", "all", "best"]),
    fails=st.sampled_from([0.0, 0.3]),
    clones=st.lists(st.tuples(st.integers(0, 30), CLONES), min_size=1, max_size=5),
    deaths=st.lists(st.integers(1, 60), max_size=4),
)
def test_whatever_is_cloned_the_search_comes_to_what_it_would_have_been(
    make_searcher: Any,
    seed: int,
    workers: int,
    every: Any,
    keep: str,
    fails: float,
    clones: list[tuple[int, dict[str, Any]]],
    deaths: list[int],
    game: Any,
    patched: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hopper, "Watcher", Attentive)
    arguments = {
        "num_models": MODELS,
        "num_epochs": EPOCHS,
        "make_searcher": make_searcher,
        "behaviour": failing(seed, fails),
        "extends": False,
    }
    quiet = Clockwork(random.Random(0), 1)
    patched(quiet)
    expected = of_search(game(MemoryStore(), quiet, **arguments).play())
    backend = Clockwork(random.Random(seed), workers, losses=0.05)
    patched(backend)
    options = Options(checkpoint_every=every, keep=keep)
    run = game(MemoryStore(), backend, options=options, clock=ticking(), **arguments)
    waits, turns = list(clones), 0

    def on_turn() -> None:
        nonlocal turns
        turns += 1
        while waits and turns >= waits[0][0]:
            request(run.store, waits.pop(0)[1])
            turns = 0
        Attentive.last.look()

    backend.on_turn = on_turn
    state = drive(run, deaths)
    while pending(run.store, state.controls):
        state = drive(run, [])
    assert of_search(state) == expected
    assert state.finished == state.outcome
    assert cloned(state) == begun_by_users(run.records())
    assert not any(trial.running for trial in state.trials.values())
    assert_histories_are_those_of_the_visits(state)
    assert broken_rules(run.records()) == []
    there = {entry.name for entry in run.store.list() if entry.name.endswith(".safetensors")}
    assert there == needed_files(state, keep)


def of_search(state: Any) -> list[Any]:
    """What the trials of the search came to, by the searcher's numbers."""
    return sorted(
        (t.draws_as, t.group, t.params, t.status, t.epochs, t.history, t.best and t.best.value)
        for t in state.trials.values()
        if t.clone_of is None
    )
