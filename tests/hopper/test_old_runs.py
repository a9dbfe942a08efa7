"""Runs of earlier versions: they open, replay to the same decisions, and go on to their end.

``samples/<version>/<name>.journal`` are the segments of one run's journal, one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopyard import open_run
from hopyard.backend import InlineBackend
from hopyard.hopper.decisions import Decisions, replay
from hopyard.hopper.history import broken_rules, read_state
from hopyard.hopper.hopper import Hopper
from hopyard.hopper.journal import Journal, read_records
from hopyard.hopper.scheduler import Unit
from hopyard.hopper.state import JournalRecord, RunState, TrialState, trial_folder
from hopyard.hopper.work import Options
from hopyard.objects import StateRef, save_state
from hopyard.search import Budget
from hopyard.storage import MemoryStore, Store
from hopyard.tune import RandomSearch, hp_loguniform
from hopyard.tune.listing import summary, summary_of

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*/*.journal"))
SEGMENT = re.compile(rb"(?:\{.*\}\n)+[0-9a-f]{64}\n")

pytestmark = pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")


def stored(sample: Path) -> MemoryStore:
    """A store with the run as the earlier version left it."""
    store, content = MemoryStore(), sample.read_bytes()
    segments = SEGMENT.findall(content)
    assert b"".join(segments) == content
    for number, segment in enumerate(segments, 1):
        store.runs.at(sample.stem).put(f"journal/{number:012d}", segment)
    return store


def replayed(records: Sequence[JournalRecord]) -> tuple[RunState, Decisions, list[JournalRecord]]:
    """As ``fit`` does it: the searcher of the present version, with the budget that the run began with."""
    header = records[0]
    begun = header["settings"]
    assert begun["search_space"] == {"lr": {"hp_loguniform": [-3, 0]}}
    assert begun["kind"] == RandomSearch.kind
    search = RandomSearch(
        InlineBackend(),
        MemoryStore(),
        lambda params: None,
        {"lr": hp_loguniform(-3, 0)},
        begun["num_models"],
        begun["num_epochs"],
        seed=begun["seed"],
        patience=begun["patience"],
        evaluation_metric=begun["evaluation_metric"],
    )
    state = RunState()
    budget = Budget(begun["num_models"], begun["num_epochs"], header["layout"]["train"])
    decisions = Decisions(state, search._searcher(budget), header["order_groups"])
    return state, decisions, replay(records, state, decisions)


class Found:
    errors, rows, bytes_written, bytes_moved, bytes_read = (None,), 1, 1, 0, 0
    asks_epochs, bytes_beside, ended = ("",), None, (False,)
    kinds, alone = (None,), ("",)

    def __init__(self, state: StateRef | None, metrics: dict[str, Any]) -> None:
        self.states, self.metrics = (state,), (metrics,)


class Work:
    """Units that train nothing and measure the same each time: the states of these runs are not in the repository."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __call__(self, unit: Unit, trials: Sequence[TrialState], save: bool) -> Any:
        [trial] = trials

        def visit() -> Found:
            if unit.phase == "train":
                folder = self.store.at(trial_folder(trial.number))
                state = save_state(folder, {"model": [unit.visit]}, parts=("model",))
                return Found(state, {"loss": [1.0, 2.0]})
            if not unit.last:
                return Found(None, {"partition": unit.partition, "states": {"inline": {}}})
            return Found(None, {"values": {"loss": 0.5, "accuracy": trial.number / 8}})

        return visit, ()


def resumed(store: Store, name: str) -> RunState:
    folder = store.runs.at(name)
    journal = Journal(folder)
    try:
        state, decisions, pending = replayed(list(journal.replay()))
        Hopper(
            store=folder,
            state=state,
            journal=journal,
            decisions=decisions,
            backend=InlineBackend(),
            work=Work(folder),
            options=Options(),
        ).run(pending)
    finally:
        journal.close()
    return state


def test_it_opens(sample: Path) -> None:
    run = open_run(stored(sample), sample.stem)
    units = run.units()
    assert run.status == {"budget": "time budget", "interrupted": "interrupted"}.get(sample.stem, "completed")
    assert len(run.trials()) == run.settings["num_models"]
    assert len(run.schedule()) == len(units) == run.state.units
    assert run.broken_rules() == []
    for number, trial in run.state.trials.items():
        assert {len(values) for values in run.histories()[number].values()} <= {trial.epochs}
    ended = [trial for trial in run.state.trials.values() if trial.epochs]
    if ended:
        best = min(ended, key=run.state.rank)
        assert run.best.trial == best.number
        assert run.best.info.value == max(best.history["val_accuracy"])
        assert run.best.get_history()["val_loss"] == best.history["val_loss"]


def test_today_the_same_is_decided(sample: Path) -> None:
    records = list(read_records(stored(sample).runs.at(sample.stem)))
    state, _, pending = replayed(records)
    assert pending == []
    state.roll_back()
    known = read_state(records)
    assert state.ranked() == known.ranked()
    assert {n: t.status for n, t in state.trials.items()} == {n: t.status for n, t in known.trials.items()}


def test_wherever_it_was_cut_the_rest_is_decided_again(sample: Path) -> None:
    records = list(read_records(stored(sample).runs.at(sample.stem)))
    for cut in range(1, len(records)):
        _, _, pending = replayed(records[:cut])
        following = [record for record in records[cut:] if record["r"] not in ("session", "finish")]
        assert following[: len(pending)] == pending


def test_it_goes_on_to_its_end(sample: Path) -> None:
    store = stored(sample)
    before = open_run(store, sample.stem)
    state = resumed(store, sample.stem)
    assert state.finished == "completed"
    assert {trial.status for trial in state.trials.values()} <= {"completed", "stopped"}
    after = open_run(store, sample.stem)
    assert after.units()[: len(before.units())] == before.units()
    assert broken_rules(read_records(store.runs.at(sample.stem))) == []
    epochs = {trial.epochs for trial in state.trials.values() if trial.status == "completed"}
    assert epochs <= {state.num_epochs}
    units = state.units
    assert resumed(store, sample.stem).units == units


def test_a_list_tells_what_the_whole_journal_tells(sample: Path) -> None:
    store = stored(sample)
    state = read_state(read_records(store.runs.at(sample.stem)))
    listed, whole = summary(store, sample.stem), summary_of(sample.stem, state, None)
    assert replace(listed, header={}) == replace(whole, header={})
    assert listed.header["created"] == whole.header["created"]
