"""A run whose units train nothing but remember where they were, to test all around the training."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import pytest
from tests.sampling import moments

from hopyard.backend import Backend, InlineBackend
from hopyard.errors import Evidence, StateLostError
from hopyard.hopper.decisions import Decisions, replay
from hopyard.hopper.hopper import Hopper
from hopyard.hopper.journal import Journal, read_records
from hopyard.hopper.notice import Notice
from hopyard.hopper.scheduler import Unit
from hopyard.hopper.state import JournalRecord, RunState, TrialState, trial_folder
from hopyard.hopper.work import Options
from hopyard.objects import StateRef, load_state, save_state
from hopyard.search import FullLength, Patience, RandomPoints, Searcher, hp_uniform
from hopyard.storage import MemoryStore, Store

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LAYOUT = {"train": 3, "validate": 2}


@dataclass(frozen=True)
class Visit:
    store: Store
    trial: int
    x: float
    unit: Unit
    state: StateRef | None
    home: int | None
    save: bool
    carried: tuple[dict[str, Any], ...]
    draws: int
    behaviour: Callable[[Visit], Any] | None = None


@dataclass(frozen=True)
class Found:
    states: tuple[StateRef | None, ...]
    metrics: tuple[dict[str, Any], ...]
    errors: tuple[Evidence | None, ...] = (None,)
    rows: int = 10
    bytes_written: int = 1
    bytes_moved: int = 0
    bytes_read: int = 0
    asks_epochs: tuple[str, ...] = ("",)
    ended: tuple[bool, ...] = (False,)
    kinds: tuple[str | None, ...] = (None,)
    alone: tuple[str, ...] = ("",)
    bytes_beside: int | None = None


def resident_states() -> dict[tuple[str, int], list[Any]]:
    """In a worker: the visits of trials whose state was not to be saved. Every task brings its own copy of
    this file, so they are kept in a module that stays."""
    module = sys.modules.setdefault("kept_between_units", types.ModuleType("kept_between_units"))
    states: dict[tuple[str, int], list[Any]] = module.__dict__.setdefault("states", {})
    return states


def visit(request: Visit) -> Found:
    """The state is the list of visits; the loss depends on all of them. A behaviour returns a failure, "ended" of code
    that came to its end, or None."""
    unit, folder = request.unit, request.store.at(trial_folder(request.trial))
    home = folder if request.home is None else request.store.at(trial_folder(request.home))
    said = None if request.behaviour is None else request.behaviour(request)
    if isinstance(said, Evidence):
        return Found((None,), ({},), (said,))
    resident = resident_states().pop((request.store.url, request.trial), None)
    if request.state is not None:
        visits = load_state(home, request.state)["model"]
    elif unit.trained and (resident is None or len(resident) != unit.trained):
        raise StateLostError(f"the state of trial {request.trial} is not here")
    else:
        visits = resident if unit.trained else []
    if unit.phase == "train":
        visits, state = [*visits, [unit.epoch, unit.partition]], None
        if request.save:
            state = save_state(folder, {"model": visits}, parts=("model",))
        else:
            resident_states()[request.store.url, request.trial] = visits
        return Found((state,), ({"loss": [request.x * unit.partition, 2.0]},), ended=(said == "ended",))
    if unit.last:
        for part in request.carried:
            assert load_state(folder, StateRef.from_json(part["states"]["ref"])) == [
                unit.epoch,
                part["partition"],
            ]
        wave = (7 * unit.epoch + 3 * request.draws) % 5  # trials improve and stall at different epochs
        value = request.x + wave + sum(p * (k + 1) for k, (_, p) in enumerate(visits)) * 1e-6
        return Found((None,), ({"values": {"loss": value}},))
    states = save_state(folder, [unit.epoch, unit.partition])  # as those of a metric that are large
    return Found((None,), ({"partition": unit.partition, "states": {"ref": states.to_json()}},))


@dataclass
class Work:
    store: Store
    behaviour: Callable[[Visit], Any] | None = None

    def __call__(self, unit: Unit, trials: Sequence[TrialState], save: bool) -> Any:
        [trial] = trials
        progress, x = trial.progress, trial.params["x"]
        carried = progress.carried
        return visit, (
            Visit(
                self.store,
                trial.number,
                x,
                unit,
                progress.state,
                progress.home,
                save,
                carried,
                trial.draws_as,
                self.behaviour,
            ),
        )


@dataclass
class Game:
    """One way to drive runs in a store, with everything that a test wants to change."""

    store: Store
    backend: Backend
    num_models: int = 4
    num_epochs: int = 2
    options: Options = field(default_factory=Options)
    patience: int | None = None
    take_over: bool = False
    clock: Callable[[], float] = time.monotonic
    behaviour: Callable[[Visit], Any] | None = None
    make_searcher: Callable[[], Searcher] | None = None
    layout: dict[str, int] = field(default_factory=lambda: dict(LAYOUT))
    metric: str = "val_loss"
    extends: bool = True
    """Whether a run that has another budget is given the one of the game."""
    unsynced: bool = False
    on_record: Callable[[RunState, JournalRecord], None] | None = None
    notice: Notice | None = None
    of_header: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.messages: list[str] = []

    def play(self) -> RunState:
        states = self.store.unsynced() if self.unsynced else self.store
        journal = Journal(
            self.store, take_over=self.take_over, unsynced=self.unsynced, announce=self.messages.append
        )
        self.flush = journal.flush
        try:
            state = RunState()
            known: Iterable[JournalRecord] = journal.replay()
            first = next(iter(known), None)
            if first is None:
                first = self.header()
                journal.append(first)
                known = [first]
            decisions = Decisions(
                state, self.searcher(first["settings"]["num_models"], first["num_epochs"]), 3
            )
            pending = replay(known, state, decisions)
            pending += self.extension(state)
            observers = [self.on_record] if self.on_record else []
            Hopper(
                store=self.store,
                state=state,
                journal=journal,
                decisions=decisions,
                backend=self.backend,
                work=Work(states, self.behaviour),
                options=self.options,
                observers=observers,
                announce=self.messages.append,
                notice=self.notice,
                clock=self.clock,
            ).run(pending)
            return state
        finally:
            journal.close()

    def searcher(self, num_models: int, num_epochs: int) -> Searcher:
        if self.make_searcher is not None:
            return self.make_searcher()
        points = RandomPoints({"x": hp_uniform(0, 1)}, 1)
        searcher: Searcher = FullLength(points, num_models, num_epochs * LAYOUT["train"])
        return searcher if self.patience is None else Patience(searcher, self.patience, LAYOUT["train"])

    def header(self) -> JournalRecord:
        fixed = {"run_id": "r", "layout": self.layout, "seed": 5, "order_groups": 3}
        budget = {"num_epochs": self.num_epochs, "settings": {"num_models": self.num_models}}
        return {"r": "run", **fixed, **budget, "metric": {"key": self.metric, "mode": "min"}} | self.of_header

    def extension(self, state: RunState) -> list[JournalRecord]:
        """What gives the run the budget that is asked for now."""
        settings = {"num_models": self.num_models}
        budget = {**settings, "num_epochs": self.num_epochs}
        if state.budgets[-1] == budget or not self.extends:
            return []
        return [{"r": "extend", **budget, "settings": settings}]

    def records(self) -> list[JournalRecord]:
        return list(read_records(self.store))


def outcome(state: RunState) -> list[tuple[Any, ...]]:
    """What must be the same however a run came about."""
    return [
        (t.number, t.params, t.status, t.epochs, t.history, t.best.value if t.best else None)
        for t in state.ranked()
    ]


@pytest.fixture
def game() -> type[Game]:
    return Game


@pytest.fixture
def result_of() -> Callable[[RunState], list[tuple[Any, ...]]]:
    return outcome


def killed_after_each_record(game: Any, **arguments: Any) -> Iterator[tuple[int, Any]]:
    """Runs whose driver ended after the first record, the second, and so on, up to the last; below the level
    ``exhaustive`` after one of so many."""
    for stop in (1 + moment for moment in moments("records", 5, 3)):
        run = game(MemoryStore(), InlineBackend(), **arguments)
        seen = 0

        def stopping(state: Any, record: Any, stop: int = stop) -> None:
            nonlocal seen
            seen += 1
            if seen == stop:
                raise KeyboardInterrupt

        run.on_record = stopping
        try:
            run.play()
        except KeyboardInterrupt:
            run.on_record = None
            yield stop, run
        else:
            return
