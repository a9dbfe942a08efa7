"""Commands of users to a run while it goes on, from any process that sees its store.

Commands are JSON objects in a numbered log, ``control/``; the driver looks for new ones and answers each
with a ``control`` record in the journal, so that one that was applied is not applied again after a restart.

    {"do": "pause"}                       units under way end, and nothing more begins
    {"do": "resume"}
    {"do": "stop"}                        the run ends; {"do": "stop", "trial": 3}: only that trial
    {"do": "kill"}                        the run ends at once: units under way are given up
    {"do": "extend", "num_models": 20, "num_epochs": null}     the budget grows; null: as it is
    {"do": "clone", "trial": 3, "params": {"lr": 0.01}, "weights": false}    a trial like trial 3, see hopper.clones

``driver`` beside them names the driver that held the run then: a ``pause``, ``resume``, ``stop`` or ``kill`` of the
run is void for one that came later, and is obeyed by one that was still beginning.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hopyard.errors import NotFoundError, RunHeldError, SettingsError, UsageError
from hopyard.hopper.journal import has_records
from hopyard.objects import NumberedLog
from hopyard.storage import Store
from hopyard.wording import brief, nearest, shown

Command: TypeAlias = dict[str, Any]

_FOLDER = "control"


def _is_trial(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_total(value: Any) -> bool:
    return value is None or (_is_trial(value) and value > 0)


def _is_changes(value: Any) -> bool:
    return isinstance(value, dict) and all(value) and _is_json(value)


def _is_json(value: Any) -> bool:
    match value:
        case dict():
            return all(isinstance(name, str) and _is_json(each) for name, each in value.items())
        case list():
            return all(map(_is_json, value))
        case float():
            return math.isfinite(value)
        case int():
            return abs(value) <= sys.float_info.max
    return value is None or isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_COMMANDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "pause": {},
    "resume": {},
    "stop": {"trial": _is_trial},
    "kill": {},
    "extend": {"num_models": _is_total, "num_epochs": _is_total},
    "clone": {"trial": _is_trial, "params": _is_changes, "weights": _is_flag},
}
"""What each command may say besides ``do``, and which values."""

_RULES: dict[Callable[[Any], bool], str] = {
    _is_trial: "a whole number (the first trial is 0)",
    _is_total: "a whole number above 0",
    _is_changes: "a mapping from names of hyperparameters to values of JSON, which has no infinite numbers",
    _is_flag: "true or false",
}


def in_words(command: Command) -> str:
    """A command for messages: ``extend num_models=20``."""
    if command["do"] == "clone":
        return f"clone {cloned_in_words(command)}"
    given = {name: value for name, value in _fields(command).items() if value is not None}
    return " ".join([command["do"], *(f"{name}={value}" for name, value in given.items())])


def cloned_in_words(command: Mapping[str, Any]) -> str:
    """What a ``clone`` asks for: ``trial 3 with lr=0.01 and its weights``."""
    changes = ", ".join(f"{name}={brief(value)}" for name, value in (command.get("params") or {}).items())
    more = " and ".join(filter(None, [changes, "its weights" if command.get("weights") else ""]))
    return f"trial {command['trial']}" + (f" with {more}" if more else "")


def is_kept(command: Mapping[str, Any]) -> bool:
    """Whether a command that is given while nobody drives the run waits until it goes on: an extension, a clone, the
    stop of a trial."""
    return command["do"] == "extend" or command.get("trial") is not None


def check_command(command: Mapping[str, Any]) -> None:
    """Raise UsageError if it is no command; lists those there are."""
    problem = _problem(command)
    if problem:
        raise UsageError(f"{dict(command)} is no command for a run: {problem}")


def request(store: Store, command: Mapping[str, Any], driver: str | None = None) -> int:
    """Ask the driver of the run in ``store`` (the run's folder) for something; it is durable on return.

    Args:
        driver: the name of the driver that holds the run.

    Returns: the command's number; ``{"r": "control", "c": <number>}`` in the journal is the answer.

    Raises:
        UsageError: it is no command.
        NotFoundError: there is no run.
    """
    check_command(command)
    if not has_records(store):
        raise NotFoundError(f"there is no run at {store.url}, so nobody would obey. List the runs there are.")
    log = NumberedLog(store, _FOLDER)
    asked = dict(command) if driver is None else {**command, "driver": driver}
    while True:
        try:
            return log.append(json.dumps(asked).encode())
        except RunHeldError:  # another terminal took the number
            log.refresh()


def pending(store: Store, after: int) -> list[tuple[int, Command]]:
    """The commands after number ``after``, in their one order, with their numbers.

    What this version does not understand (a later one asked for it) is left out.
    """
    found = []
    for number, data in NumberedLog(store, _FOLDER).read(after + 1):
        try:
            command = json.loads(data)
        except ValueError:
            continue
        if isinstance(command, dict) and not _problem(command):
            found.append((number, command))
    return found


def larger_budget(command: Command, num_models: int | None, num_epochs: int) -> tuple[int | None, int]:
    """The num_models and num_epochs that an ``extend`` command asks for, of a run that has these now.

    Raises:
        SettingsError: one of them is less.
    """
    models, epochs = command.get("num_models") or num_models, command.get("num_epochs") or num_epochs
    if epochs < num_epochs or (models or 0) < (num_models or 0):
        raise SettingsError(
            f"num_models={models} and num_epochs={epochs} are asked for, but the run has num_models={num_models} and "
            f"num_epochs={num_epochs}; a budget can only grow. Give as much or more."
        )
    return models, epochs


def _fields(command: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in command.items() if name not in ("do", "driver")}


def _problem(command: Mapping[str, Any]) -> str | None:
    do = command.get("do")
    if not isinstance(do, str) or do not in _COMMANDS:
        meant = nearest(do, _COMMANDS, ".") if isinstance(do, str) else "."
        return f"there is no {do!r}{meant} Known are: {', '.join(_COMMANDS)}."
    fields = _fields(command)
    for name, value in fields.items():
        if name not in _COMMANDS[do]:
            known = _COMMANDS[do]
            return f"{do} takes {', '.join(known) or 'nothing'}, not {name!r}{nearest(name, known, '.')}"
        if not _COMMANDS[do][name](value):
            return f"{name} is {shown(value)}; give {_RULES[_COMMANDS[do][name]]}."
    if do == "extend" and all(value is None for value in fields.values()):
        return "extend needs num_models or num_epochs: how many there are to be in all."
    if do == "clone" and "trial" not in fields:
        return "clone needs trial: the number of the trial that is cloned."
    return None
