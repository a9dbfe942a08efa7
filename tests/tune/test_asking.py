"""Commands for a run: what is said when no driver answers, or the driver ends meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.errors import RunError, UsageError
from hopyard.hopper.control import pending
from hopyard.hopper.journal import Journal
from hopyard.storage import MemoryStore
from hopyard.tune.asking import ask, asked


def held_run() -> tuple[MemoryStore, Journal]:
    """A run that a driver holds which answers nothing."""
    store = MemoryStore()
    journal = Journal(store)
    journal.append({"r": "run"})
    journal.flush()
    return store, journal


def test_a_driver_that_does_not_answer_in_time_is_named_and_the_command_stays() -> None:
    store, journal = held_run()
    now = iter(range(100))
    with pytest.raises(
        RunError,
        match=r"the driver of run r \(host .*, pid \d+, since .*\) has not answered within 3 s\. It will pause when "
        r"it gets to it.*`hopyard run resume --take-over`",
    ):
        asked(store, "r", {"do": "pause"}, patience=3, clock=lambda: next(now), wait=lambda seconds: None)
    journal.close()
    assert pending(store, 0) == [(1, {"do": "pause", "driver": journal.driver})]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ({"do": "pause"}, "nobody drives run r now: it has ended, so there is nothing to pause."),
        ({"do": "extend", "num_models": 9}, "nobody drives run r now: the command is kept until it goes on"),
    ],
)
def test_a_driver_that_ends_meanwhile_is_waited_for_no_longer(command: dict[str, Any], text: str) -> None:
    store, journal = held_run()
    assert asked(store, "r", command, wait=lambda seconds: journal.close()).said.startswith(text)


@pytest.mark.parametrize("command", [{"do": "extend", "num_models": "20"}, {"do": "stop", "trial": "first"}])
def test_what_is_no_command_is_refused_though_nobody_drives_the_run(command: dict[str, Any]) -> None:
    store, journal = held_run()
    journal.close()
    with pytest.raises(
        UsageError, match=r"is no command for a run: (num_models|trial) is '.*'; give a whole number"
    ):
        ask(store, "r", command)


def test_an_answer_that_is_the_last_thing_a_driver_writes_is_found() -> None:
    store, journal = held_run()

    def answer(seconds: float) -> None:
        journal.append({"r": "control", "c": 1, "do": "stop"})
        journal.close()

    assert asked(store, "r", {"do": "stop"}, wait=answer).said.startswith(
        "run r stops: units under way end first"
    )
