"""Terms of the scheduler: units, positions of trials, the layout of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Unit:
    """One visit of one trial to one partition.

    Attributes:
        trial: number of the trial.
        epoch: from 0.
        phase: ``"train"`` or ``"validate"``.
        partition: number of the partition.
        visit: units that the trial has done before, of both phases.
        trained: train units among them.
        last: of a train unit, whether a validation (or, without validation, the end of an epoch or
            the target) follows; of a validate unit, whether it ends the validation.
    """

    trial: int
    epoch: int
    phase: str
    partition: int
    visit: int
    trained: int
    last: bool


@dataclass(frozen=True)
class Start:
    """Run a unit on ``worker`` now: ``units`` are the same visit of several trials."""

    worker: int
    units: tuple[Unit, ...]

    @property
    def unit(self) -> Unit:
        """The first of the units."""
        return self.units[0]

    @cached_property
    def trials(self) -> tuple[int, ...]:
        return tuple(unit.trial for unit in self.units)


@dataclass(frozen=True)
class Layout:
    """Layout of an epoch: ``train`` visits, then ``validate`` visits."""

    train: int
    validate: int

    @property
    def units(self) -> int:
        return self.train + self.validate


@dataclass(frozen=True)
class Position:
    """Position of a trial in its visits.

    Attributes:
        visits: units done, of both phases.
        trained: train units among them.
        step: validate units done of the validation under way; 0 if none is.
        validated: ``trained`` at the last complete validation.
        seen: partitions visited in training in the present epoch; only free orders need it.
    """

    visits: int = 0
    trained: int = 0
    step: int = 0
    validated: int = 0
    seen: frozenset[int] = frozenset()
