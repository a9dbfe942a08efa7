"""The Searcher contract: proposes trials and decides which go on; decides only, no I/O.

Rules that every implementation must keep (``search.testing`` checks them):

* **Pure.** What a searcher answers depends only on its arguments, its seed and the calls made
  so far; it does no I/O and reads no clock. Replaying the same calls gives the same answers,
  which is how a resumed run gets its searcher back.
* **Trials are numbered** by the searcher from 0 in order of creation, without gaps.
* **Lengths are epochs.** ``Train(trial, epochs)`` lets a trial train until it has done that
  many epochs in all; it is validated after each of them, and each validation is told.
* **Ends.** A trial ends by ``Stop`` (decided against it) or by reaching ``num_epochs``. After
  ``exited`` nothing more is asked for it. When no trial is under way and no operation is
  returned, the search is over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Create:
    """Begin a trial. ``source`` names a trial whose state it starts from, or None."""

    trial: int
    params: Mapping[str, Any]
    source: int | None = None


@dataclass(frozen=True)
class Train:
    """Let ``trial`` train until it has done ``epochs`` epochs in all."""

    trial: int
    epochs: int


@dataclass(frozen=True)
class Stop:
    """End ``trial``: its budget goes to others."""

    trial: int


Operation: TypeAlias = Create | Train | Stop


class Searcher(ABC):
    """Decides which points are tried, and for how long. See the module's text for the rules."""

    @abstractmethod
    def start(self) -> list[Operation]:
        """The first operations."""

    @abstractmethod
    def validated(self, trial: int, epoch: int, value: float) -> list[Operation]:
        """``trial`` has done ``epoch`` epochs (from 1); ``value`` is the metric, smaller is better."""

    @abstractmethod
    def exited(self, trial: int, reason: str) -> list[Operation]:
        """``trial`` ended: ``reason`` is ``"completed"``, ``"stopped"`` or ``"failed"``."""
