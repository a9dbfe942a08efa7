"""Units that do nothing, in a module that workers can import, as they import real ones; runs of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.backend import Backend
from hopyard.hopper.decisions import Decisions, replay
from hopyard.hopper.hopper import Hopper
from hopyard.hopper.journal import Journal
from hopyard.hopper.scheduler import Layout, Unit
from hopyard.hopper.state import RunState, TrialState
from hopyard.hopper.work import Options
from hopyard.objects import StateRef
from hopyard.search import Searcher
from hopyard.storage import LocalStore


@dataclass(frozen=True)
class Found:
    states: tuple[StateRef | None, ...]
    metrics: tuple[dict[str, Any], ...]
    errors: tuple[None, ...] = (None,)
    rows: int = 0
    bytes_written: int = 0
    bytes_moved: int = 0
    bytes_read: int = 0
    bytes_beside: int | None = None
    asks_epochs: tuple[str, ...] = ()
    ended: tuple[bool, ...] = (False,)
    kinds: tuple[str | None, ...] = (None,)
    alone: tuple[str, ...] = ("",)


def nothing(unit: Unit) -> Found:
    state = StateRef("0" * 64, (), 0, (("model", StateRef("0" * 64, (), 0)),))
    if unit.phase == "train":
        return Found((state,), ({"loss": [1.0, 1.0]},))
    return Found((None,), ({"values": {"loss": 1.0}} if unit.last else {"partition": 0, "states": {}},))


def work(unit: Unit, trials: Sequence[TrialState], save: bool) -> tuple[Callable[..., Found], tuple[Unit]]:
    return nothing, (unit,)


def run(backend: Backend, folder: Path, searcher: Searcher, layout: Layout, epochs: int) -> RunState:
    """A run of such units from its beginning to its end, its journal on disk."""
    store = LocalStore(folder)
    journal = Journal(store)
    state = RunState()
    decisions = Decisions(state, searcher, 8)
    key = "val_loss" if layout.validate else "train_loss"
    header: dict[str, Any] = {"r": "run", "run_id": "r", "settings": {}, "seed": 0, "num_epochs": epochs}
    header |= {"layout": {"train": layout.train, "validate": layout.validate}, "order_groups": 8}
    header |= {"metric": {"key": key, "mode": "min"}}
    journal.append(header)
    pending = replay([header], state, decisions)
    hopper = Hopper(
        store=store,
        state=state,
        journal=journal,
        decisions=decisions,
        backend=backend,
        work=work,
        options=Options(),
    )
    hopper.run(pending)
    journal.close()
    return state
