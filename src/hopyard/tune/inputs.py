"""The data of a search, in whatever form it was given: identified, peeked into, prepared."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from hopyard.data import Dataset, Ragged, Source, prepare
from hopyard.data.prepare import peek
from hopyard.errors import ColumnError, nearest
from hopyard.objects import digest_json
from hopyard.tune.arguments import Arguments

Arrays = dict[str, npt.NDArray[Any] | Ragged]


@dataclass(frozen=True)
class Splits:
    """Prepared data: what a run trains on and, if any, is validated on."""

    train: Dataset
    val: Dataset | None

    @property
    def fingerprint(self) -> str:
        """Identifies the rows and their order."""
        return digest_json([self.train.fingerprint, self.val.fingerprint if self.val else None], "splits")


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
        sources = [self.source] + ([self.val] if self.val is not None else [])
        found = [source.fingerprint() for source in sources]
        if None in found:
            return None
        arguments = self.arguments
        how = {"validation": arguments.validation if self.val is None else None, "seed": arguments.seed}
        policies = {"nulls": arguments.nulls, "ragged": arguments.ragged}
        return digest_json({"sources": found} | how | policies, "inputs")

    def head(self, rows: int) -> Arrays:
        arguments = self.arguments
        columns = (list(arguments.feature_columns), list(arguments.label_columns))
        validation = None if self.val is not None else arguments.validation
        return peek(self.source, rows, validation, *columns, arguments.nulls, arguments.ragged)

    def prepare(self, progress: Callable[[int, int], None], announce: Callable[[str], None]) -> Splits:
        arguments = self.arguments
        prepared = prepare(
            self.source,
            arguments.store,
            arguments.validation,
            list(arguments.feature_columns),
            list(arguments.label_columns),
            seed=arguments.seed,
            nulls=arguments.nulls,
            ragged=arguments.ragged,
            val=self.val,
            progress=progress,
            wait=threading.Event().wait,
            announce=announce,
        )
        return Splits(prepared.train, prepared.val)


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
        head = self.splits.train[0:rows]
        return {name: head[name] for name in dict.fromkeys(wanted)}

    def prepare(self, progress: Callable[[int, int], None], announce: Callable[[str], None]) -> Splits:
        return self.splits


def check_columns(wanted: tuple[str, ...], there: Any) -> None:
    """Raise ColumnError if a feature or label column does not exist."""
    missing = [name for name in dict.fromkeys(wanted) if name not in there]
    if missing:
        raise ColumnError(
            f"the data has no column {missing[0]!r}{nearest(missing[0], there)} It has {list(there)}; "
            "name them with feature_columns=[...] and label_columns=[...]."
        )
