"""How much of a run is left: the same number for the command line, the table while it goes on, and the pages."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from hopyard.documents.runs import facts_json
from hopyard.hopper.history import UnitFollower, totals_of
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.tune.outlook import expected_end, outlook_of
from hopyard.tune.progress import ProgressDisplay


class MadeUp:
    """A run of made-up records, of which each trial makes two visits an epoch and is not validated by itself."""

    run_id, status, holder = "r", "running", {"pid": 1}

    def __init__(self, **settings: Any) -> None:
        self.state, self.records = RunState(), list[JournalRecord]()
        self.text = io.StringIO()
        self.display = ProgressDisplay(console=Console(file=self.text, width=200))
        self.settings = {"kind": "random", "seed": 0, "search_space": None, **settings}
        header = {"run_id": "r", "created": 0.0, "layout": {"train": 2, "validate": 1}, "num_epochs": 5}
        metric = {"key": "val_accuracy", "mode": "max"}
        self.apply({"r": "run", **header, "metric": metric, "settings": self.settings})
        self.apply({"r": "session", "offset": 0.0, "workers": 1, "backend": "local"})

    def apply(self, record: JournalRecord) -> None:
        self.records.append(record)
        self.state.apply(record)
        self.display(self.state, record)

    def trial(self, *numbers: int) -> None:
        for number in numbers:
            self.apply({"r": "trial", "n": number, "params": {}, "g": 0})

    def visit(self, trial: int, begin: float, end: float, worker: int = 0) -> None:
        visits = self.state.trials[trial].progress.visits
        state = {"digest": f"{visits}", "files": [], "nbytes": 0}
        self.apply({
            "r": "unit", "t": [trial], "e": 0, "ph": "train", "p": visits % 2, "w": worker, "v": visits, "n": visits,
            "to": None, "last": False, "a": begin, "z": end, "s": [state], "m": [{}],
            "moved": 0, "written": 0, "read": 0,
        })  # fmt: skip

    def control(self, number: int, do: str, at: float | None = None) -> None:
        self.apply({"r": "control", "c": number, "do": do, **({} if at is None else {"z": at})})

    def waiting(self) -> list[str]:
        return []

    @property
    def frozen_at(self) -> list[str]:
        return []

    def units(self) -> list[JournalRecord]:
        state, follower, units = RunState(), UnitFollower(), list[JournalRecord]()
        for record in self.records:
            state.apply(record)
            units += follower.add(state, record)
        return units

    def told(self) -> tuple[float | None, float | None]:
        """Progress and expected end of the run's document; the table has the same number of seconds left."""
        document = facts_json(self, totals_of(self.units(), self.state.pauses), [])
        progress, end = document["progress"], document["expected_end_seconds"]
        headline = self.display._headline()
        if end is not None:
            assert f", about {end - self.state.clock:.0f} s left;" in headline
        else:
            assert "left" not in headline
        return progress, end


def test_a_trial_that_fails_early_has_nothing_left_and_is_not_taken_for_trained() -> None:
    run = MadeUp(num_models=4)
    run.trial(0, 1, 2, 3)
    run.visit(0, 0.0, 10.0)
    assert run.told() == (1 / 40, 10.0 + 39 * 10.0)
    run.apply({"r": "end", "t": 1, "status": "failed", "error": None, "z": 11.0})
    progress, end = run.told()
    assert progress == pytest.approx(1 / 30), "one visit of three trials that go on, each of ten"
    assert end == pytest.approx(11.0 + 29 * 11.0)
    run.visit(2, 11.0, 20.0)
    run.apply({"r": "end", "t": 2, "status": "stopped", "by": "user", "z": 20.0})
    progress, end = run.told()
    assert progress == pytest.approx(2 / 21), "what was done counts, also of a trial that was stopped"
    assert end == pytest.approx(20.0 + 19 * 10.0)


def test_trials_that_are_still_to_begin_are_left() -> None:
    run = MadeUp(num_models=3)
    run.trial(0)
    run.visit(0, 0.0, 2.0)
    assert run.told() == (1 / 30, 2.0 + 29 * 2.0)


def test_a_clone_is_more_to_do() -> None:
    run = MadeUp(num_models=1)
    run.trial(0)
    run.visit(0, 0.0, 2.0)
    run.apply({"r": "trial", "n": 1, "params": {}, "g": 0, "source": None, "draws": 0, "clone": 0})
    assert run.told() == (1 / 20, 2.0 + 19 * 2.0)


def test_a_run_that_is_extended_has_more_left() -> None:
    run = MadeUp(num_models=1)
    run.trial(0)
    run.visit(0, 0.0, 2.0)
    run.apply({"r": "extend", "num_epochs": 10, "settings": {**run.settings, "num_models": 2}, "c": 1})
    assert run.told() == (1 / 40, 2.0 + 39 * 2.0)


def test_time_paused_is_no_time_in_which_work_was_done() -> None:
    run = MadeUp(num_models=1)
    run.trial(0)
    run.visit(0, 0.0, 10.0)
    run.control(1, "pause", 12.0)
    assert run.told() == (1 / 10, None), "nobody knows when it goes on"
    run.visit(0, 10.0, 20.0)  # was under way when it was paused
    assert outlook_of(run.state).seconds_left == pytest.approx(8 * 10.0)
    run.control(2, "resume", 1020.0)
    run.visit(0, 1020.0, 1030.0)
    progress, end = run.told()
    assert progress == pytest.approx(3 / 10)
    assert end == pytest.approx(1030.0 + 7 * 10.0)
    totals = totals_of(run.units(), run.state.pauses)
    assert (totals.seconds, totals.paused, totals.busy) == (1030.0, 1000.0, 1.0), "idle is what is neither"


def test_a_unit_that_outlasts_a_pause_leaves_none() -> None:
    run = MadeUp(num_models=2)
    run.trial(0, 1)
    run.visit(0, 0.0, 5.0)
    run.control(1, "pause", 6.0)
    run.control(2, "resume", 9.0)
    run.visit(1, 1.0, 11.0, worker=1)
    totals = totals_of(run.units(), run.state.pauses)
    assert totals.paused == 0.0
    assert totals.busy == pytest.approx(15 / 22)


@pytest.mark.parametrize("ends", ["session", "stop"])
def test_a_pause_ends_with_its_driver(ends: str) -> None:
    run = MadeUp(num_models=1)
    run.trial(0)
    run.visit(0, 0.0, 10.0)
    run.control(1, "pause", 10.0)
    if ends == "stop":
        run.control(2, "stop", 50.0)
        run.apply({"r": "finish", "status": "stopped"})
    run.apply({"r": "session", "offset": 50.0, "workers": 1, "backend": "local"})
    run.visit(0, 50.0, 60.0)
    assert run.state.paused_seconds() == pytest.approx(40.0)
    assert run.told() == (2 / 10, 60.0 + 8 * 10.0)


def test_a_journal_of_an_older_version_has_no_time_of_commands() -> None:
    run = MadeUp(num_models=1)
    run.trial(0)
    run.visit(0, 0.0, 10.0)
    run.control(1, "pause")
    run.control(2, "resume")
    run.visit(0, 10.0, 20.0)
    assert run.told() == (2 / 10, 20.0 + 8 * 10.0)


@pytest.mark.parametrize("kind", ["asha", "hyperband"])
def test_of_trials_that_are_compared_at_rungs_those_that_have_ended_are_counted(kind: str) -> None:
    run = MadeUp(num_models=4, kind=kind)
    run.trial(0, 1)
    run.visit(0, 0.0, 10.0)
    assert run.told() == (0.0, None)
    run.apply({"r": "end", "t": 0, "status": "stopped", "z": 10.0})
    assert run.told() == (1 / 4, None)


def test_nobody_knows_the_end_of_a_run_that_nobody_drives() -> None:
    run = MadeUp(num_models=1)
    run.trial(0)
    assert run.told() == (0.0, None), "nothing is done yet"
    run.visit(0, 0.0, 10.0)
    assert expected_end(run.state, False) is None
    run.apply({"r": "finish", "status": "completed"})
    assert outlook_of(run.state).progress == 1.0
    assert expected_end(run.state, True) is None
