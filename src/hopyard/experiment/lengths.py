"""Lengths of trials in visits: of partitions, or, where a trial has its own loader, of stretches of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from hopyard.data.base import Partitioned
from hopyard.data.columns.policies import Policies
from hopyard.data.schema import Schema
from hopyard.errors import UsageError
from hopyard.hopper.passes import Passes, divided

Unit: TypeAlias = Literal["epochs", "batches", "records"]

_VISITS_OF_AN_EPOCH = 10
"""Visits between validations where a loader does not say how long it is."""


@dataclass(frozen=True)
class Facts:
    """Facts about the data of a trial, which only its own code knows.

    Attributes:
        kind: ``"dataset"``: it trains on a dataset of Hopyard's, ``"loader"``: on a loader of its own, ``"function"``.
        train, val: the datasets; None where it has a loader of its own.
        pass_batches: batches of a pass over the trial's own loader; None: unknown.
        batch_size: rows of a batch.
        columns: columns of a batch of the dataset.
    """

    kind: Literal["dataset", "loader", "function"]
    train: Partitioned | None = None
    val: Partitioned | None = None
    pass_batches: int | None = None
    batch_size: int = 1
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Visits:
    """Visits of a trial that reads its own loader, each a stretch of the batches that follow each other.

    Attributes:
        per_epoch: visits from one validation to the next.
        total: visits of a trial that trains to the end.
        unit: unit of the length that was asked for.
        length: the length of the whole trial, in that unit.
        rounds: rounds of that length, each of which ends with a visit.
        passes: of a length in batches or records, how passes over the first trial's loader are divided into visits;
            None: the length is in epochs, or that loader does not say how long a pass is.
    """

    per_epoch: int
    total: int
    unit: Unit
    length: int
    rounds: int = 1
    passes: Passes | None = None

    def batches(self, visit: int, pass_batches: int | None, batch_size: int) -> int:
        """Batches of one visit.

        Args:
            visit: its number among the trial's visits, from 0.
            pass_batches: batches of one pass over the trial's loader; None: unknown.
            batch_size: rows of a batch.
        """
        return self._before(visit + 1, pass_batches, batch_size) - self._before(
            visit, pass_batches, batch_size
        )

    def _before(self, visits: int, pass_batches: int | None, batch_size: int) -> int:
        """Batches of the first so many visits."""
        if self.unit == "epochs":
            assert pass_batches is not None  # `visits_of` has looked
            epochs, more = divmod(visits, self.per_epoch)
            return epochs * pass_batches + more * pass_batches // self.per_epoch
        of_round = _batches_of(self.unit, self.length // self.rounds, batch_size)
        if self.passes is None:
            return visits * self.rounds * of_round // self.total
        own = replace(self.passes, batches=pass_batches or self.passes.batches, round_batches=of_round)
        if own.fits():
            return own.before(visits)
        # Its passes or batches differ too much from the first trial's, whose validations it shares.
        return self.passes.before(visits) * own.total // self.passes.total


def visits_of(
    length: Mapping[str, int], rounds: int, stretch: int, pass_batches: int | None, batch_size: int
) -> Visits:
    """The visits of trials that read loaders of their own.

    Args:
        length: as in the configuration: ``{"epochs": 8}``.
        rounds: how often a trial trains so long.
        stretch: batches of a visit, the configuration's ``scheduling_unit``.
        pass_batches, batch_size: of the first trial's loader.

    Raises:
        UsageError: the length is in epochs, and the loader does not know its own.
    """
    ((unit, number),) = length.items()
    if unit == "epochs":
        if not pass_batches:
            raise UsageError(
                f"max_length is {{epochs: {number}}}, but the training data loader does not say how many batches an "
                "epoch has: len() of it fails or is 0. Write max_length: {batches: N}, or give the loader a __len__."
            )
        per_epoch = -(-pass_batches // stretch)
        return Visits(per_epoch, rounds * number * per_epoch, "epochs", rounds * number)
    in_unit: Unit = "batches" if unit == "batches" else "records"
    of_round = _batches_of(in_unit, number, batch_size)
    if pass_batches:
        passes = divided(pass_batches, of_round, rounds, stretch)
        return Visits(passes.visits, rounds * passes.round_visits, in_unit, rounds * number, rounds, passes)
    each = -(-of_round // stretch)
    return Visits(min(each, _VISITS_OF_AN_EPOCH), rounds * each, in_unit, rounds * number, rounds)


def _batches_of(unit: Unit, number: int, batch_size: int) -> int:
    """Batches of a length in batches or records."""
    return number if unit == "batches" else -(-number // batch_size)


@dataclass(frozen=True)
class Stretch:
    """Rows of one visit, which the trial's own loader gives."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def batches(self, *_: Any, **__: Any) -> Sequence[Mapping[str, Any]]:
        """Nothing: only the trial's code reads its data."""
        return ()


@dataclass(frozen=True)
class OwnData:
    """Stands for the data of trials that read loaders of their own, where a search has datasets.

    Attributes:
        fingerprint: of what decides which data they read: the model definition and the configuration.
        num_row_groups: visits of an epoch.
        rows: of all its visits, as far as that is known.
    """

    fingerprint: str
    num_row_groups: int
    rows: int

    schema: ClassVar[Schema] = Schema(())
    policies: ClassVar[Policies] = Policies(schema)

    def __len__(self) -> int:
        return self.rows

    def partitions(self, p: int) -> list[Stretch]:
        """One stretch for each visit of an epoch."""
        return [Stretch(self.rows // p)] * p
