"""The data of a search, in whatever form it was given: identified, peeked into, prepared."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from hopyard.data import Dataset, Ragged, Source, prepare
from hopyard.data.preparing.prepare import dataset_fingerprint, peek
from hopyard.errors import ColumnError, DataError, UsageError, nearest
from hopyard.objects import digest_json
from hopyard.tune.arguments import Arguments

_PEEKED = ("feature_columns", "label_columns", "nulls", "ragged")
Arrays = dict[str, npt.NDArray[Any] | Ragged]


@dataclass(frozen=True)
class Splits:
    """Prepared data: what a run trains on and, if any, is validated on.

    Attributes:
        train, val: the datasets.
        fingerprint: identifies their rows and the order of these.
    """

    train: Dataset
    val: Dataset | None
    fingerprint: str

    @classmethod
    def of(cls, train: Dataset, val: Dataset | None) -> Splits:
        """Datasets that exist already."""
        found = [train.fingerprint, val.fingerprint if val is not None else None]
        return cls(train, val, digest_json(found, "splits"))


class Inputs(ABC):
    """Data that a search may train on."""

    @property
    @abstractmethod
    def has_validation(self) -> bool:
        """Whether there is, or will be, a validation set."""

    @abstractmethod
    def fingerprint(self) -> str | None:
        """Identifies the data without preparing it; None if only preparation can (one-shot iterators)."""

    @abstractmethod
    def head(self, rows: int) -> Arrays:
        """The first rows, which are not lost to preparation."""

    @abstractmethod
    def prepare(self, progress: Callable[[int, int], None], announce: Callable[[str], None]) -> Splits:
        """Data ready for training; waits, and says so, while the store is full.

        Raises:
            UsageError: more partitions are asked for than there can be; said before anything is written.
        """


@dataclass
class Raw(Inputs):
    """Data that still has to be prepared into the store."""

    source: Source
    val: Source | None
    arguments: Arguments

    @property
    def has_validation(self) -> bool:
        return self.val is not None or self.arguments.validation is not None

    def fingerprint(self) -> str | None:
        return dataset_fingerprint(self.source, **self._how())

    def head(self, rows: int) -> Arrays:
        how = self._how()
        validation = None if how.pop("val") is not None else how.pop("validation")
        return peek(self.source, rows, validation, **{name: how[name] for name in _PEEKED})

    def prepare(self, progress: Callable[[int, int], None], announce: Callable[[str], None]) -> Splits:
        prepared = prepare(
            self.source,
            self.arguments.store,
            **self._how(),
            progress=progress,
            wait=threading.Event().wait,
            announce=announce,
            accept=lambda groups: check_partitions(self.arguments, groups),
        )
        check_partitions(self.arguments, prepared.train.num_row_groups)
        return Splits(prepared.train, prepared.val, prepared.fingerprint)

    def _how(self) -> dict[str, Any]:
        """How the data is prepared."""
        arguments = self.arguments
        return {
            "validation": arguments.validation,
            "feature_columns": list(arguments.feature_columns),
            "label_columns": list(arguments.label_columns),
            "seed": arguments.seed,
            "nulls": arguments.nulls,
            "ragged": arguments.ragged,
            "val": self.val,
        }


@dataclass
class Ready(Inputs):
    """Data that models can visit as it is."""

    splits: Splits
    arguments: Arguments

    @property
    def has_validation(self) -> bool:
        return self.splits.val is not None

    def fingerprint(self) -> str:
        return self.splits.fingerprint

    def head(self, rows: int) -> Arrays:
        train, val = self.splits.train, self.splits.val
        wanted = (*self.arguments.feature_columns, *self.arguments.label_columns)
        check_columns(wanted, train.schema.names, "training")
        check_partitions(self.arguments, train.num_row_groups)
        if val is not None:
            check_columns(wanted, val.schema.names, "validation")
            check_alike(wanted, train, val)
        return train[0:rows]

    def prepare(self, progress: Callable[[int, int], None], announce: Callable[[str], None]) -> Splits:
        return self.splits


def check_partitions(arguments: Arguments, row_groups: int) -> None:
    """Raise UsageError if more partitions are asked for than the training data has row groups."""
    asked = arguments.num_partitions
    if asked is not None and asked > row_groups:
        raise UsageError(
            f"num_partitions is {asked}, but the training data has {row_groups} row groups, and a partition needs at "
            f"least one. Give num_partitions={row_groups} or less."
        )


def check_alike(wanted: tuple[str, ...], train: Dataset, val: Dataset) -> None:
    """Raise DataError if a column is of another kind in the validation data."""
    for name in wanted:
        if train.schema[name] != val.schema[name]:
            raise DataError(
                f"column {name!r} is {train.schema[name]} in the training data, but {val.schema[name]} in the "
                "validation data. Give both the same dtype and shape."
            )


def check_columns(wanted: tuple[str, ...], there: Any, what: str) -> None:
    """Raise ColumnError if a feature or label column does not exist in the data that ``what`` names."""
    missing = [name for name in dict.fromkeys(wanted) if name not in there]
    if missing:
        raise ColumnError(
            f"the {what} data has no column {missing[0]!r}{nearest(missing[0], there, '.')} It has {list(there)}; "
            "name them with feature_columns=[...] and label_columns=[...]."
        )
