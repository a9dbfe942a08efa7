"""Watching a run that another process drives: the same table and lines, fed by its journal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from hopyard.hopper.control import cloned_in_words
from hopyard.hopper.history import apply_record
from hopyard.hopper.journal import JournalFollower, holder
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.storage import Store
from hopyard.tune.asking import WAIT
from hopyard.tune.listing import check_header, status_of

FULL = "the run waits: its store is full, or does not answer. It goes on by itself once it can."


class Display(Protocol):
    """A display of a run, such as ``ProgressDisplay``: an observer of its records, and the place of messages."""

    def show(self, state: RunState, session: JournalRecord) -> None:
        """Begin with what was done so far, or with a driver's new session."""

    def say(self, message: str) -> None:
        """Show a message."""

    def show_table(self) -> None:
        """Show, at the end, all trials as they are, unless that was shown all along."""

    def __call__(self, state: RunState, record: JournalRecord) -> None:
        """Show what the record has changed; ``state`` is that after it."""


def watch(folder: Store, run_id: str, progress: Display, wait: Callable[[float], object] = WAIT) -> RunState:
    """Show the run in ``folder`` until nobody drives it: one that has ended, at once.

    Returns: its state then; ``finished`` is None if its driver is gone.
    """
    every = 0.5 if folder.path("journal") else 2.0
    tail, state, session = JournalFollower(folder), RunState(), {"workers": 0, "backend": ""}
    held = holder(folder)  # before reading: what a driver writes is there before it lets go
    records = tail.new()
    where, count = f"run {run_id} in {folder.url}", itertools.count(1)
    check_header(records, where)
    for record in records:
        apply_record(state, record, next(count), where)
        session = record if record["r"] == "session" else session
    progress.show(state, session)
    was_full = False
    while held is not None:
        if bool(held.get("is_full")) != was_full:
            was_full = not was_full
            progress.say(FULL if was_full else "the run goes on.")
        wait(every)
        held = holder(folder)
        for record in tail.new():
            apply_record(state, record, next(count), where)
            if record["r"] == "session":
                progress.show(state, record)
            else:
                progress(state, record)
            if message := command_message(record):
                progress.say(message)
    progress.show_table()
    return state


def status(state: RunState) -> str:
    """The status of a run that nobody drives."""
    return status_of(state, None)


def command_message(record: JournalRecord) -> str | None:
    """The announcement of a user's command or an extension, as the driver itself says it where it runs; None for all
    else."""
    if record["r"] == "extend":
        return (
            f"the run is extended: num_models={record.get('num_models')}, num_epochs={record['num_epochs']}"
        )
    if record["r"] == "control" and "refused" not in record:
        if record["do"] == "clone":
            return f"a user's command: clone {cloned_in_words(record)}"
        trial = "" if record.get("trial") is None else f" trial {record['trial']}"
        return f"a user's command: {record['do']}{trial}"
    return None
