"""The Searcher contract: proposes trials and decides which go on; decides only, no I/O.

Rules that every implementation must keep (``search.testing`` checks them):

* **Pure.** What a searcher answers depends only on its arguments, its seed and the calls made
  so far; it does no I/O and reads no clock. Replaying the same calls gives the same answers,
  which is how a resumed run gets its searcher back.
* **Trials are numbered** by the searcher from 0 in order of creation, without gaps.
* **Lengths are visits**: whole visits of a trial to partitions in training. ``Train(trial, visits)``
  lets a trial train until it has made that many in all, more than it has made and at most those of
  the budget; then it waits. It is validated there, and ``validated`` is told, once: the searcher says
  ``Train`` with a greater number, or ``Stop``, then or in the answer to any later call. A trial that
  waits costs nothing but its state.
* **Ends.** A trial ends by ``Stop``, which may only be said of one that waits, or by itself or a user:
  then ``exited`` (or ``stopped_early``) is told. Nothing more is said of a trial that has ended. When no trial may
  train and no operation is returned, the search is over, and every trial must have ended.
* **Copies.** ``Create(trial, params, source)`` begins a trial with the state and the visits that the trial
  ``source``, which waits, has made; ``Train`` counts these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hopyard.errors import SettingsError


@dataclass(frozen=True)
class Create:
    """Begin a trial. ``source`` names a waiting trial whose state it starts from, or None."""

    trial: int
    params: Mapping[str, Any]
    source: int | None = None


@dataclass(frozen=True)
class Train:
    """Let ``trial`` train until it has made ``visits`` visits in all."""

    trial: int
    visits: int


@dataclass(frozen=True)
class Stop:
    """End ``trial``, which waits: it has trained to its end, or its budget goes to others."""

    trial: int


Operation: TypeAlias = Create | Train | Stop


class Searcher(ABC):
    """Decides which points are tried, and for how long. See the module's text for the rules.

    Attributes:
        independent: whether what it says of a trial depends on that trial's own calls alone (and on those of its
            replicates, in any order). If not, the order in which results arrive matters, and a reproducible run puts it
            ``InVirtualTime``.
        num_points: how many points it trains to the end, unless it is told otherwise; None: it decides that as results
            come.
    """

    independent: bool = False
    num_points: int | None = None

    @abstractmethod
    def start(self) -> list[Operation]:
        """The first operations."""

    @abstractmethod
    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        """``trial`` has made the ``visits`` it was allowed; ``value`` is the metric, smaller is better,
        infinite if it was no number."""

    @abstractmethod
    def exited(self, trial: int) -> list[Operation]:
        """``trial`` ended although the searcher did not say ``Stop``: it failed, or a user stopped it."""

    def stopped_early(self, trial: int, visits: int, value: float) -> list[Operation]:
        """``trial`` has exited because ``EpochByEpoch``, which looks at it more often than this searcher, stopped it;
        ``value`` is the trial's value after ``visits``, which the searcher may have been told before. A searcher that
        learns from values should override this."""
        return self.exited(trial)

    def extend(self, num_models: int | None, visits: int) -> list[Operation]:
        """The budget has grown: so many trials (None: as many as before), and so many visits of a trial, in all.
        Trials that had trained to their end may be let train on, now or in the answer to a later call.

        Raises:
            SettingsError: this search cannot be extended that way; nothing has changed. The text has the word
                "extended", for which the suite looks.
        """
        raise SettingsError(
            "this search cannot be extended: what it decided depends on its budget. "
            "Start a new run with the larger budget and another run_id."
        )

    def due(self, trial: int) -> int:
        """Urgency of ``trial`` for the scheduler: the virtual time at which it is due (see ``InVirtualTime``).
        Lower is more urgent; 0 for all where no trial waits for another."""
        return 0


class Proposer(ABC):
    """Source of the points of trials: a list, random draws, or a model of the observations.

    As pure as a searcher. ``propose`` is called once for each trial, in order of their numbers.

    Attributes:
        learns: whether points depend on what was observed.
    """

    learns: bool = False

    @abstractmethod
    def propose(self, trial: int) -> dict[str, Any] | None:
        """The point of ``trial``, or None if every different point was proposed."""

    def check(self, num_models: int) -> None:  # noqa: B027 - most spaces have no end of points
        """Raises SpaceError if so many trials cannot be made: the space "has only 9 different points" (words that the
        suite looks for), or a user asked for more points than that to be tried first."""

    def observed(self, trial: int, visits: int, value: float) -> None:  # noqa: B027 - most proposers do not learn
        """``trial`` was validated after ``visits`` visits; ``value``: smaller is better, may be infinite."""

    def ended(self, trial: int) -> None:  # noqa: B027 - most proposers do not learn
        """Nothing more is observed of ``trial``."""


@dataclass(frozen=True)
class Budget:
    """Budget of a run: trials (None: as many as the search makes), epochs of a trial, partitions of an epoch."""

    num_models: int | None
    num_epochs: int
    partitions: int

    @property
    def visits(self) -> int:
        """Visits of a trial that is trained to the end."""
        return self.num_epochs * self.partitions
