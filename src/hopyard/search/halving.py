"""Common part of the halving searches: several brackets as one searcher.

A :class:`Bracket` decides for trials of its own which of them train on. :class:`Halving` numbers the trials of all
brackets, takes their points from one proposer, and keeps to the number of trials that may train at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from hopyard.checks import integer
from hopyard.errors import UsageError
from hopyard.search.base import Create, Operation, Proposer, Searcher, Stop, Train
from hopyard.search.brackets import Divisor


@dataclass(eq=False)
class Bracket(ABC):
    """``num_models`` trials that are compared at ``rungs``: ascending lengths; the last is the full one.

    A rung that is no longer than the one before needs no training: a trial that goes on to it is there at once, with
    the value that it has. ``max_concurrent`` is how many trials of the bracket train at once, None: all.
    """

    num_models: int
    rungs: Sequence[int]
    divisor: Divisor
    max_concurrent: int | None = None

    def __post_init__(self) -> None:
        self.left: int = integer("num_models", self.num_models, 1)
        self.rungs = checked_rungs(self.rungs)
        self.training: dict[int, int] = {}  # trial -> the rung that it trains for
        self.expected: list[int] = [0] * len(self.rungs)  # how many train for each rung

    def train(self, trial: int, rung: int) -> Train:
        """Let ``trial`` train to ``rung``."""
        self.training[trial] = rung
        self.expected[rung] += 1
        return Train(trial, self.rungs[rung])

    def trained(self, trial: int) -> int:
        """Note that ``trial`` trains no more; returns the rung that it trained for."""
        rung = self.training.pop(trial)
        self.expected[rung] -= 1
        return rung

    def has_room(self) -> bool:
        return self.max_concurrent is None or len(self.training) < self.max_concurrent

    @abstractmethod
    def reported(self, trial: int, value: float) -> None:
        """``trial`` has reached its rung with ``value``, which is not NaN."""

    @abstractmethod
    def exited(self, trial: int) -> None:
        """``trial``, which trained or waited, is no more. It counts as the worst of its rung."""

    @abstractmethod
    def next_to_train(self) -> tuple[int, int] | None:
        """The waiting trial that trains next, and the rung for which, or None: a new trial's turn, if any are left."""

    @abstractmethod
    def hopeless(self) -> list[int]:
        """Waiting trials that will never train again, each told once."""


class Halving(Searcher):
    """``brackets`` as one searcher with one ``proposer``, ``max_concurrent`` trials at once in all (None: no limit).

    Slots go to the brackets in their order, and in each to trials that train on before new ones.
    """

    def __init__(
        self, proposer: Proposer, brackets: Sequence[Bracket], max_concurrent: int | None = None
    ) -> None:
        proposer.check(sum(bracket.left for bracket in brackets))
        self._proposer = proposer
        self._brackets = brackets
        self._max_concurrent = max_concurrent
        self._created = 0
        self._bracket_of: dict[int, Bracket] = {}

    def start(self) -> list[Operation]:
        return self._filled()

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._proposer.observed(trial, visits, value)
        self._bracket_of[trial].reported(trial, math.inf if math.isnan(value) else value)
        return [*self._stops(), *self._filled()]

    def exited(self, trial: int) -> list[Operation]:
        self._proposer.ended(trial)
        self._bracket_of.pop(trial).exited(trial)
        return [*self._stops(), *self._filled()]

    def stopped_early(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._proposer.observed(trial, visits, value)
        return self.exited(trial)

    def _has_room(self) -> bool:
        most = self._max_concurrent
        return most is None or sum(len(bracket.training) for bracket in self._brackets) < most

    def _filled(self) -> list[Operation]:
        operations: list[Operation] = []
        for bracket in self._brackets:
            while bracket.has_room() and self._has_room():
                if found := bracket.next_to_train():
                    operations.append(bracket.train(*found))
                elif bracket.left:
                    operations.extend(self._new(bracket))
                else:
                    break
        return operations + self._stops()

    def _new(self, bracket: Bracket) -> list[Operation]:
        params = self._proposer.propose(self._created)
        if params is None:
            bracket.left = 0
            return []
        trial = self._created
        self._created += 1
        bracket.left -= 1
        self._bracket_of[trial] = bracket
        return [Create(trial, params), bracket.train(trial, 0)]

    def _stops(self) -> list[Operation]:
        trials = [trial for bracket in self._brackets for trial in bracket.hopeless()]
        for trial in trials:
            del self._bracket_of[trial]
            self._proposer.ended(trial)
        return [Stop(trial) for trial in trials]


def checked_rungs(rungs: Sequence[int]) -> list[int]:
    """Raises UsageError unless there are rungs, ascending, of whole visits."""
    ascending = [integer("every one of rungs", rung, 1) for rung in rungs]
    if not ascending or ascending != sorted(ascending):
        raise UsageError(
            f"rungs={rungs!r}, but it must be ascending lengths, the last of them the full one. Write rungs=[1, 4, 16]."
        )
    return ascending
