"""What a run shows while it goes on: the right counts, the right trials, at a cost that stays flat."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from hopyard.hopper.state import RunState
from hopyard.tune.progress import MOST_ROWS, ProgressDisplay


class Screen:
    """A run of made-up records, and the table that shows it."""

    def __init__(self, mode: str = "max", epochs: int = 2, layout: Any = None, settings: Any = None) -> None:
        self.text = io.StringIO()
        console = Console(file=self.text, force_terminal=False, width=120, height=60)
        self.progress = ProgressDisplay(console=console)
        self.state = RunState()
        self.console = console
        header = {
            "run_id": "r", "layout": layout or {"train": 1, "validate": 1}, "num_epochs": epochs,
            "settings": settings or {},
        }  # fmt: skip
        self.apply({"r": "run", **header, "metric": {"key": "val_accuracy", "mode": mode}})
        self.apply({"r": "session", "offset": 0.0, "workers": 2, "backend": "local"})

    def apply(self, record: dict[str, Any]) -> None:
        self.state.apply(record)
        self.progress(self.state, record)

    def trial(self, number: int) -> None:
        self.apply({"r": "trial", "n": number, "params": {"lr": number / 7}, "g": 0})

    def epoch(self, number: int, value: float) -> None:
        visit = self.state.trials[number].progress.visits
        part = {"digest": f"{visit}", "files": [], "nbytes": 0}
        unit = {"r": "unit", "t": [number], "e": visit // 2, "p": 0, "w": 1, "a": 0.0, "z": 1.0, "to": None,
                "last": False}  # fmt: skip
        state = {**part, "parts": {"model": part}}
        self.apply({**unit, "ph": "train", "v": visit, "s": [state], "m": [{"loss": [value, 1.0]}]})
        metrics = {"values": {"accuracy": value}}
        self.apply({**unit, "ph": "validate", "v": visit + 1, "s": [None], "m": [metrics]})

    def lines(self) -> list[str]:
        with self.console.capture() as capture:
            self.console.print(self.progress)
        return [line.rstrip() for line in capture.get().splitlines()]


def test_units_are_counted_as_long_as_they_count() -> None:
    screen = Screen(epochs=3)
    screen.trial(0)
    screen.trial(1)
    screen.epoch(0, 0.5)
    assert "1 of 6 training units" in screen.lines()[0]
    screen.apply({"r": "end", "t": 1, "status": "stopped"})
    assert "1 of 3 training units" in screen.lines()[0]
    screen.apply({"r": "unit", "t": [0], "e": 1, "ph": "train", "p": 0, "w": 1, "v": 2, "a": 0.0, "z": 1.0,
                  "to": None, "last": False, "s": [None], "m": [{"loss": [1.0, 1.0]}]})  # fmt: skip
    assert "2 of 3 training units" in screen.lines()[0]
    screen.apply({"r": "back", "t": [0], "why": "its worker was lost"})
    assert "1 of 3 training units" in screen.lines()[0]


def test_of_many_trials_those_that_go_on_and_are_best_are_shown() -> None:
    screen = Screen()
    for number in range(MOST_ROWS + 6):
        screen.trial(number)
        screen.epoch(number, number / 100)
    screen.apply({"r": "end", "t": 29, "status": "stopped"})
    lines = screen.lines()
    assert [int(line.split()[0]) for line in lines[2 : 2 + MOST_ROWS]] == [*range(28, 4, -1)]
    assert lines[-1].strip() == "and 6 more trials"


def test_few_trials_are_shown_in_order_and_with_what_became_of_them() -> None:
    screen = Screen("min")
    for number in (0, 1, 2):
        screen.trial(number)
    screen.epoch(1, 0.25)
    screen.apply({"r": "end", "t": 2, "status": "failed", "error": {"kind": "ValueError", "message": "no"}})
    lines = screen.lines()
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2"]
    assert lines[3].split() == ["1", "1", "0.2500", "0.2500", "1", "lr=0.1429"]
    assert "failed" in lines[4]
    assert "trial 2 {'lr': 0.2857142857142857} failed: ValueError: no" in screen.text.getvalue()


def test_a_record_of_one_trial_touches_no_other(monkeypatch: Any) -> None:
    screen = Screen()
    for number in range(1000):
        screen.trial(number)
    touched: list[int] = []
    update = ProgressDisplay._update
    monkeypatch.setattr(
        ProgressDisplay, "_update", lambda self, state, trial, worker: touched.append(trial.number)
        or update(self, state, trial, worker)
    )  # fmt: skip
    monkeypatch.setattr(RunState, "ranked", None)
    screen.epoch(7, 0.5)
    screen.apply({"r": "end", "t": 7, "status": "completed"})
    assert set(touched) == {7}


def test_of_trials_that_fail_alike_only_the_first_is_shown_with_its_traceback() -> None:
    screen = Screen()
    for number, message in enumerate(["too wide", "too wide", "too deep"]):
        screen.trial(number)
        error = {"kind": "ValueError", "message": message, "traceback": f"in estimator {number}"}
        screen.apply({"r": "end", "t": number, "status": "failed", "error": error})
    said = screen.text.getvalue()
    assert "trial 0 {'lr': 0.0} failed: ValueError: too wide\n" in said
    assert "failed like trial 0: ValueError: too wide\n" in said
    assert "in estimator" not in said  # if all fail alike, the error that ends the run has it
    screen.apply({"r": "finish", "status": "failed"})
    said = screen.text.getvalue()
    assert "trial 0 {'lr': 0.0} failed: ValueError: too wide (train" in said
    assert [number for number in range(3) if f"in estimator {number}" in said] == [0, 2]


def test_rungs_within_epochs_waiting_trials_and_copies_are_shown_as_what_they_are() -> None:
    screen = Screen(
        "min", epochs=2, layout={"train": 4, "validate": 1}, settings={"kind": "asha", "num_models": 2}
    )
    screen.trial(0)
    part = {"digest": "0", "files": [], "nbytes": 0}
    unit = {"r": "unit", "t": [0], "e": 0, "p": 0, "w": 1, "to": 1, "a": 0.0, "z": 1.0}
    state = {**part, "parts": {"model": part}}
    screen.apply(
        {**unit, "ph": "train", "v": 0, "n": 0, "last": True, "s": [state], "m": [{"loss": [1.0, 2.0]}]}
    )
    assert "1 running" in screen.lines()[0]
    metrics = {"values": {"accuracy": 0.75}}
    screen.apply({**unit, "ph": "validate", "v": 1, "n": 1, "last": True, "s": [None], "m": [metrics]})
    headline, _, row = screen.lines()
    assert headline == "run r on 2 local workers: 1 training units, 0 s; 1 waiting"
    assert row.split() == ["0", "0.25", "0.5000", "0.7500", "waiting", "lr=0"]
    screen.apply({"r": "trial", "n": 1, "params": {"lr": 0.5}, "g": 0, "source": 0})
    assert screen.lines()[3].split() == ["1", "0.25", "lr=0.5", "(copy", "of", "0)"]
    assert "1 training units" in screen.lines()[0], "the copy has trained nothing itself"
    screen.apply({"r": "end", "t": 0, "status": "stopped"})
    assert "0.7500" in screen.lines()[2], "what was measured stays"
    said = screen.text.getvalue().splitlines()
    assert said[1:] == [
        "trial 0 lr=0  epoch 0.25/2  train_loss 0.5  val_accuracy 0.75",
        "trial 1 begins as a copy of trial 0",
        "trial 0 is stopped at epoch 0.25/2",
    ]


def test_a_larger_budget_and_trials_to_come_are_counted() -> None:
    screen = Screen(epochs=2, settings={"kind": "random", "num_models": 5})
    screen.trial(0)
    assert "0 of 10 training units" in screen.lines()[0]
    budget = {"num_epochs": 3, "num_models": 6}
    screen.apply({"r": "extend", **budget, "settings": {"kind": "random", **budget}, "c": 1})
    assert "0 of 18 training units" in screen.lines()[0]
    screen.apply({"r": "control", "c": 2, "do": "pause"})
    assert "paused, 0 of 18" in screen.lines()[0]
    screen.apply({"r": "control", "c": 3, "do": "pause", "refused": "no"})
    screen.apply({"r": "control", "c": 4, "do": "resume"})
    assert "paused" not in screen.lines()[0]


def prepared(enabled: bool, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal, color_system=None)
    with ProgressDisplay(enabled, console).preparing() as watch:
        if watch is not None:
            watch("reading", 0.5, None)
            watch("writing", 0, 1200)
            watch("writing", 1200, 1200)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_preparation_is_a_bar_on_a_terminal_and_a_line_at_the_end() -> None:
    assert prepared(enabled=True, terminal=False) == "prepared 1,200 rows\n"
    assert prepared(enabled=False, terminal=True) == ""
    shown = prepared(enabled=True, terminal=True)
    assert all(text in shown for text in ("reading", "50%", "writing", "1,200 of 1,200 rows"))
    assert shown.endswith("prepared 1,200 rows\n")


def test_data_that_is_there_is_not_said_to_be_prepared() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with ProgressDisplay(True, console).preparing() as watch:
        assert watch is not None
        watch("reading", 7, None)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""
