"""The data of a search, in whatever form it was given: identified, peeked into, prepared."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from hopyard.data import Dataset, Ragged, Source, prepare
from hopyard.data.prepare import dataset_fingerprint, peek
from hopyard.errors import ColumnError, nearest
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

    @abstractmethod
    def fingerprint(self) -> str | None:
        """Identifies the data without preparing it; None if only preparation can (one-shot iterators)."""

    @abstractmethod
    def head(self, rows: int) -> Arrays:
        """The first rows, which are not lost to preparation."""

    @abstractmethod
    def prepare(self, progress: Callable[[int, int], None], announce: Callable[[str], None]) -> Splits:
        """Data ready for training; waits, and says so, while the store is full."""


@dataclass
class Raw(Inputs):
    """Data that still has to be prepared into the store."""

    source: Source
    val: Source | None
    arguments: Arguments

    def fingerprint(self) -> str | None:
        return dataset_fingerprint(self.source, **self._how())

    def head(self, rows: int) -> Arrays:
        how = self._how()
        validation = None if how.pop("val") is not None else how.pop("validation")
        return peek(self.source, rows, validation, **{name: how[name] for name in _PEEKED})

    def prepare(self, progress: Callable[[int, int], None], announce: Callable[[str], None]) -> Splits:
        wait = threading.Event().wait
        store = self.arguments.store
        prepared = prepare(self.source, store, **self._how(), progress=progress, wait=wait, announce=announce)
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

    def fingerprint(self) -> str:
        return self.splits.fingerprint

    def head(self, rows: int) -> Arrays:
        wanted = (*self.arguments.feature_columns, *self.arguments.label_columns)
        check_columns(wanted, self.splits.train.schema.names)
        return self.splits.train[0:rows]

    def prepare(self, progress: Callable[[int, int], None], announce: Callable[[str], None]) -> Splits:
        return self.splits


def check_columns(wanted: tuple[str, ...], there: Any) -> None:
    """Raise ColumnError if a feature or label column does not exist."""
    missing = [name for name in dict.fromkeys(wanted) if name not in there]
    if missing:
        raise ColumnError(
            f"the data has no column {missing[0]!r}{nearest(missing[0], there, '.')} It has {list(there)}; "
            "name them with feature_columns=[...] and label_columns=[...]."
        )
