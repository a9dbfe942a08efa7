"""Checks that schedules of learning rates stay as they are when trials may train for more epochs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hopyard.errors import SettingsError
from hopyard.training.build import build_replica
from hopyard.training.program import Program


def check_schedule(
    program: Program, params: dict[str, Any], trial: int, num_epochs: int, asks_epochs: str = ""
) -> None:
    """Compare the options that schedules give for ``num_epochs`` and for the fewer epochs of ``program``.

    The estimator function is called for each, on the CPU of this process.

    Args:
        asks_epochs: where training asks for the number of epochs besides, see ``Replica``.

    Raises:
        SettingsError: a trial that trains on would not end where a run of ``num_epochs`` had ended; says what differs.
    """
    what, difference = (
        ("training", asks_epochs) if asks_epochs else _of_schedules(program, params, trial, num_epochs)
    )
    if difference:
        raise SettingsError(
            f"num_epochs is {num_epochs} now and was {program.num_epochs}, but the {what} of trial {trial} follows "
            f"from num_epochs: {difference.rstrip('.')}. Epochs that were trained for fewer epochs cannot be "
            f"part of a run of more. Give fresh=True, or another run_id, with num_epochs={num_epochs}; a schedule "
            "that does not use num_epochs (StepLR, steps counted from the begin) can be extended, and so can "
            "num_models."
        )


def _of_schedules(program: Program, params: dict[str, Any], trial: int, num_epochs: int) -> tuple[str, str]:
    before = replace(program, init_from=None)
    try:
        old = build_replica(before, params, trial, device="cpu").schedule(num_epochs)
        first = next(old, None)
        if first is None:
            return "schedule", ""
        new = build_replica(replace(before, num_epochs=num_epochs), params, trial, device="cpu").schedule(
            num_epochs
        )
        return "schedule", _first_difference(itertools.chain([first], old), new)
    except Exception as error:
        return "schedule", f"going through it failed with {type(error).__name__}: {error}"


def _first_difference(old: Iterator[Mapping[str, Any]], new: Iterator[Mapping[str, Any]]) -> str:
    nothing: Mapping[str, Any] = {}
    for step, (before, after) in enumerate(itertools.zip_longest(old, new, fillvalue=nothing)):
        for name in sorted(before.keys() | after.keys()):
            if repr(before.get(name)) != repr(after.get(name)):
                return f"{name} after {step} steps is {after.get(name)!r} instead of {before.get(name)!r}"
    return ""
