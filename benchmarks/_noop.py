"""Units that do nothing, in a module that workers can import, as they import real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.hopper.scheduler import Unit
from hopyard.hopper.state import TrialState
from hopyard.objects import StateRef


@dataclass(frozen=True)
class Found:
    states: tuple[StateRef | None, ...]
    metrics: tuple[dict[str, Any], ...]
    errors: tuple[None, ...] = (None,)
    rows: int = 0
    bytes_written: int = 0


def nothing(unit: Unit) -> Found:
    state = StateRef("0" * 64, (), 0, (("model", StateRef("0" * 64, (), 0)),))
    if unit.phase == "train":
        return Found((state,), ({"loss": [1.0, 1.0]},))
    return Found((None,), ({"values": {"loss": 1.0}} if unit.last else {"partition": 0, "states": {}},))


def work(unit: Unit, trials: Sequence[TrialState], save: bool) -> tuple[Callable[..., Found], tuple[Unit]]:
    return nothing, (unit,)
