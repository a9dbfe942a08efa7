"""Runs and trials in words: drivers, states, epochs, parameters and values of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.hopper.state import RunState, TrialState
from hopyard.tune.callbacks import flat_params
from hopyard.wording import counted

IN_RUNGS = ("asha", "hyperband")
"""Kinds of search that compare trials at rungs: most train for a small part of their epochs, and how much is left,
nobody knows."""


def describe_state(state: RunState, trial: TrialState) -> str:
    """A trial's status; ``"waiting"`` if it has trained as far as the searcher has allowed so far, and ``"not begun"``
    or ``"unfinished"`` in a run that has ended before it, or whose driver gave up."""
    if trial.running and (state.finished is not None or state.gave_up is not None):
        return "unfinished" if trial.progress.visits else "not begun"
    return "waiting" if trial.waits else trial.status


def describe_epochs(epochs: float) -> str:
    """``2`` or ``0.25``: epochs done."""
    return f"{epochs:.4g}" if epochs < 1000 else f"{epochs:.0f}"


def describe_holder(holder: Mapping[str, Any]) -> str:
    """``host a, pid 1, since 2026-01-01 10:00:00``: as far as a driver has said who it is."""
    known = [f"{name} {holder[name]}" for name in ("host", "pid", "since") if name in holder]
    return ", ".join(known) or "it has not said who it is yet"


def describe_length(state: RunState) -> str:
    """``3 epochs``: how long trials train that are not stopped; empty where nobody knows, see ``is_endless``."""
    return "" if is_endless(state) else counted(state.num_epochs, _epoch(state))


def describe_place(state: RunState, epochs: float) -> str:
    """``epoch 2/8``, ``report 2/8`` of a function, or ``report 2`` of one that returns when it likes: how far a trial
    is."""
    return f"{_epoch(state)} {describe_epochs(epochs)}" + (
        "" if is_endless(state) else f"/{state.num_epochs}"
    )


def is_endless(state: RunState) -> bool:
    """Whether trials train until their own code ends, and the run's number of epochs is only larger than any."""
    return bool(state.header.get("endless"))


def is_function(state: RunState) -> bool:
    """Whether trials are functions, which have reports in place of epochs, and no partitions."""
    return _epoch(state) == "report"


def _epoch(state: RunState) -> str:
    """The word for what a trial's code does from one validation to the next."""
    return str(state.header.get("epoch", "epoch"))


def describe_params(params: Any) -> str:
    """``lr=0.01 width=64`` from a point of a search space; nested names are joined with dots."""
    return " ".join(f"{name}={text}" for name, text in plain_params(params))


def plain_params(params: Any) -> list[tuple[str, str]]:
    """Names, joined with dots, and values in words of a point of a search space."""
    flat = flat_params(params, ".")
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in flat.items()
    ]


def describe_mean(mean: float | None, spread: float | None) -> str:
    """``0.8125 ± 0.0210``: a mean over replicates, and their standard deviation."""
    return describe_number(mean) + (f" ± {describe_number(spread)}" if spread is not None else "")


def describe_number(value: float | None) -> str:
    """A metric's value in four decimals, or in four digits if that would hide it; nothing for None."""
    if value is None:
        return ""
    return f"{value:.4f}" if value == 0 or 0.01 <= abs(value) < 1e5 else f"{value:.4g}"
