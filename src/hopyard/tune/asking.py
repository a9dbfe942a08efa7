"""Asking for something of a run that another process may drive: written to its store, answered in its journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.errors import NotFoundError, RunError, SettingsError, UsageError
from hopyard.hopper.clones import check_clone
from hopyard.hopper.control import check_command, cloned_in_words, in_words, is_kept, pending, request
from hopyard.hopper.history import read_state
from hopyard.hopper.journal import JournalFollower, holder, read_records
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.storage import Store
from hopyard.tune.listing import check_header

PATIENCE = 60.0
"""Seconds to wait for an answer. A driver looks every half second, or every five where its store has a URL; one that
trains in its own process answers after the unit under way."""

_LOOK_EVERY = 0.1

WAIT = threading.Event().wait
"""Of an event that nobody sets: other processes cannot."""

RESUMED_RUN = "HOPYARD_RESUMED_RUN"
"""Environment variable by which `hopyard run resume` says which run is meant: ``fresh=True`` goes on with it."""
TAKEN_OVER_RUN = "HOPYARD_TAKEN_OVER_RUN"
"""Environment variable by which `hopyard run resume --take-over` says which run is to be taken over."""


@dataclass(frozen=True)
class Reply:
    """What came of a command, in words, and the driver's record of it; None: there is none so far."""

    said: str
    record: JournalRecord | None = None


def ask(folder: Store, run_id: str, command: Mapping[str, Any]) -> str:
    """What came of ``command`` in words: see ``asked``."""
    return asked(folder, run_id, command).said


def asked(
    folder: Store,
    run_id: str,
    command: Mapping[str, Any],
    *,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = WAIT,
) -> Reply:
    """Ask for ``command`` (see ``hopyard.hopper.control``), and wait until the driver has answered.

    Without a driver, an extension, a clone and the stop of a trial are kept until the run goes on, and for the rest
    there is nothing to do.

    Raises:
        UsageError: it is no command, or the driver has refused it; says why.
        SettingsError: the run cannot be extended that way.
        NotFoundError: there is no such trial.
        RunError: no answer came in time. The command stays, and is obeyed if the driver gets to it.
    """
    check_command(command)
    held, what, more = holder(folder), command["do"], ""
    kept = is_kept(command)
    if held is None:
        if not kept:
            return Reply(f"run {run_id} is not running, so there is nothing to {what}.")
        records = list(read_records(folder))
        where = f"run {run_id} in {folder.url}"
        check_header(records, where)
        state = read_state(records, where)
        nothing = _check(state, run_id, command)
        if nothing:
            return Reply(nothing)
        if what == "clone":
            try:
                more = _allowed(check_clone(folder, state, command)[1])
            except UsageError as error:
                raise UsageError(_did_not(run_id, command, str(error))) from None
    tail = JournalFollower(folder, from_end=True)
    number = request(folder, command, None if held is None else held.get("driver"))
    until = clock() + patience
    while held is not None and clock() < until:
        held = holder(folder)  # before looking: what a driver writes is there before it lets go
        for record in tail.new():
            if record.get("c") == number:
                return Reply(_said(run_id, record), record)
        if held is not None:
            wait(_LOOK_EVERY)
    if held is None:
        kept_words = (
            "the command is kept until it goes on, by `hopyard run resume` or by starting its script again."
        )
        so = kept_words + more if kept else f"it has ended, so there is nothing to {what}."
        return Reply(f"nobody drives run {run_id} now: {so}")
    who = ", ".join(f"{name} {held[name]}" for name in ("host", "pid", "since") if name in held)
    raise RunError(
        f"the driver of run {run_id} ({who}) has not answered within {patience:g} s. It will {what} when it gets "
        "to it: after the unit under way if it trains in its own process. If it hangs, take the run over "
        "by `hopyard run resume --take-over`."
    )


def waiting_commands(folder: Store, after: int) -> list[str]:
    """Commands after number ``after`` that wait until the run goes on, in words, if nobody drives it now."""
    return [in_words(command) for _, command in pending(folder, after) if is_kept(command)]


def more_is_asked(folder: Store, after: int) -> bool:
    """Whether a user asked for a larger budget, or for a clone, by a command after number ``after``."""
    return any(command["do"] in ("extend", "clone") for _, command in pending(folder, after))


def _said(run_id: str, record: JournalRecord) -> str:
    if record["r"] == "extend":
        budget = {name: record.get(name) for name in ("num_models", "num_epochs")}
        return f"run {run_id} is extended: {', '.join(f'{k}={v}' for k, v in budget.items() if v)} in all."
    if "refused" in record:
        error = SettingsError if record["do"] == "extend" else UsageError
        raise error(_did_not(run_id, record, record["refused"]))
    if record["do"] == "clone":
        begun, of = record["begun"], cloned_in_words(record)
        outside = _allowed(record.get("outside", ()))
        if len(begun) > 1:
            who = f"trials {begun[0]} to {begun[-1]} of run {run_id} are clones of the point of {of}"
            return f"{who}; they begin when workers are free.{outside}"
        return (
            f"trial {begun[0]} of run {run_id} is a clone of {of}; it begins when a worker is free.{outside}"
        )
    if record.get("trial") is not None:
        return (
            f"trial {record['trial']} of run {run_id} is stopped; a unit of it that is under way ends first."
        )
    return {
        "pause": f"run {run_id} is paused: units under way end, and nothing more begins until it is resumed.",
        "resume": f"run {run_id} goes on.",
        "stop": f"run {run_id} stops: units under way end first. Its script, started again, goes on with it.",
        "kill": f"run {run_id} ends now: units under way are given up, and done again if it goes on.",
    }[record["do"]]


def _did_not(run_id: str, command: Mapping[str, Any], why: str) -> str:
    return f"run {run_id} did not {command['do']}: {why.rstrip('.')}."


def _allowed(outside: Sequence[str]) -> str:
    """Sentences on values that the search would not have proposed; each begins with a blank."""
    return "".join(f" {each}, which is allowed." for each in outside)


def _check(state: RunState, run_id: str, command: Mapping[str, Any]) -> str | None:
    """Refuse a command, before it is kept, that cannot be carried out; a text if there is nothing to do."""
    number = command.get("trial")
    if number is not None:
        if number not in state.trials:
            raise NotFoundError(
                f"run {run_id} has no trial {number}; it has {len(state.trials)}, the first is 0. "
                "`hopyard run describe` shows them."
            )
        trial = state.trials[number]
        if command["do"] == "clone":
            return None
        return (
            None if trial.running else f"trial {number} is {trial.status} already: there is nothing to stop."
        )
    known = {"num_models": state.header["settings"].get("num_models"), "num_epochs": state.num_epochs}
    for name, now in known.items():
        asked = command.get(name)
        if asked is not None and now is not None and asked < now:
            raise SettingsError(
                f"{name} is {asked}, but run {run_id} has {now}; a budget can only grow. Give more than {now}."
            )
    return None
