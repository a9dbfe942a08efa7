"""The data of a search, given in any form: identified, peeked into, prepared."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data import Dataset, Ragged, Source, as_source, prepare
from hopyard.data.base import Partitioned
from hopyard.data.columns.convert import convert_columns, from_values
from hopyard.data.combining.computed import computed_columns
from hopyard.data.contract import RowSource
from hopyard.data.converter.converter import SparkDatasetConverter
from hopyard.data.order import Rows, permutation
from hopyard.data.preparing.exchange import FrameSource
from hopyard.data.preparing.prepare import dataset_fingerprint, peek
from hopyard.data.preparing.prepared import check_filled, check_labels
from hopyard.data.preparing.request import Watch, source_names
from hopyard.data.preparing.split import check_share, held_by_share, warn_of_common, warn_of_overlap
from hopyard.data.schema import Schema
from hopyard.data.sources.hashing import Hashes, content_hashes
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.objects import derive_seed, digest_json
from hopyard.stockroom.data import JoinedSamples
from hopyard.stockroom.data.datasets import StoredFiles
from hopyard.tune.arguments import Arguments
from hopyard.wording import nearest

_PEEKED = ("feature_columns", "label_columns", "nulls", "ragged", "masked")
_HASHED_AT_ONCE = 4096  # rows
Arrays = dict[str, npt.NDArray[Any] | Ragged]


@dataclass(frozen=True)
class Splits:
    """Prepared data: training data of a run and, if any, validation data.

    Attributes:
        train, val: the datasets.
        fingerprint: identifies their rows and the order of these.
    """

    train: Partitioned
    val: Partitioned | None
    fingerprint: str

    @classmethod
    def of(cls, train: Partitioned, val: Partitioned | None) -> Splits:
        """Datasets that exist already."""
        found = [train.fingerprint, val.fingerprint if val is not None else None]
        return cls(train, val, digest_json(found, "splits"))


class SearchData(ABC):
    """Data that a search may train on.

    Attributes:
        given: training and validation data as the search got them; None for a validation set that is split off.
    """

    given: tuple[Any, Any]

    @property
    @abstractmethod
    def has_validation(self) -> bool:
        """Whether there is, or will be, a validation set."""

    @property
    def engine(self) -> str | None:
        """Engine whose tasks read the data and write it; None: none."""
        return None

    @abstractmethod
    def fingerprint(self) -> str | None:
        """Identifies the data without preparing it; None if only preparation can (one-shot iterators)."""

    @abstractmethod
    def training_rows(self) -> int | None:
        """Rows that will be trained on; None if only preparation counts them."""

    @abstractmethod
    def head(self, rows: int) -> Arrays:
        """The first rows, which are not lost to preparation."""

    @abstractmethod
    def prepare(self, watch: Watch | None, announce: Callable[[str], None]) -> Splits:
        """Data ready for training; waits, and says so, while the store is full.

        Raises:
            UsageError: more partitions are asked for than there can be; said before anything is written.
        """


@dataclass
class Raw(SearchData):
    """Data that still has to be prepared into the store."""

    source: Source
    val: Source | None
    arguments: Arguments
    given: tuple[Any, Any]

    @property
    def has_validation(self) -> bool:
        return self.val is not None or self.arguments.validation is not None

    @property
    def engine(self) -> str | None:
        return self.source.frame.engine if isinstance(self.source, FrameSource) else None

    def fingerprint(self) -> str | None:
        return dataset_fingerprint(self.source, **self._how(), store=self.arguments.store)

    def training_rows(self) -> int | None:
        rows, share = self.source.rows, self.arguments.validation
        if self.val is not None or share is None or rows is None:
            return rows
        return None if isinstance(share, str) else rows - round(rows * share)

    def head(self, rows: int) -> Arrays:
        how = self._how()
        validation = None if how.pop("val") is not None else how.pop("validation")
        return peek(self.source, rows, validation, **{name: how[name] for name in _PEEKED})

    def prepare(self, watch: Watch | None, announce: Callable[[str], None]) -> Splits:
        prepared = prepare(
            self.source,
            self.arguments.store,
            **self._how(),
            watch=watch,
            wait=threading.Event().wait,
            announce=announce,
            accept=lambda groups: check_partitions(self.arguments, groups),
        )
        check_partitions(self.arguments, prepared.train.num_row_groups)
        return Splits(prepared.train, prepared.val, prepared.fingerprint)

    def _how(self) -> dict[str, Any]:
        """Arguments of the preparation."""
        arguments, features = self.arguments, self.arguments.feature_columns
        filled = {name for data in self.given if isinstance(data, RowSource) for name in data.filled()}
        masked = arguments.steps.masked(features, arguments.nulls)
        masked += [name for name in arguments.steps.read(features) if name in filled]
        return {
            "validation": arguments.validation,
            "feature_columns": list(arguments.source_columns),
            "label_columns": list(arguments.label_columns),
            "seed": arguments.seed,
            "nulls": arguments.nulls,
            "ragged": arguments.ragged,
            "masked": list(dict.fromkeys(masked)),
            "val": self.val,
        }


@dataclass
class Ready(SearchData):
    """Data that models can visit as it is."""

    splits: Splits
    arguments: Arguments
    given: tuple[Partitioned, Partitioned | None]

    @property
    def has_validation(self) -> bool:
        return self.splits.val is not None

    def fingerprint(self) -> str:
        return self.splits.fingerprint

    def training_rows(self) -> int:
        return len(self.splits.train)

    def head(self, rows: int) -> Arrays:
        train, val = self.splits.train, self.splits.val
        wanted = (*self.arguments.source_columns, *self.arguments.label_columns)
        _check_padded(train.schema, self.arguments)
        check_columns(wanted, train.schema.names, "training")
        check_labels((train, val), self.arguments.label_columns)
        self.arguments.steps.check_made(train.schema.names)
        check_filled((train, val), self.arguments.steps.read(self.arguments.feature_columns))
        check_partitions(self.arguments, train.num_row_groups)
        if val is not None:
            check_columns(wanted, val.schema.names, "validation")
            check_alike(wanted, train, val)
        return train[0:rows]

    def prepare(self, watch: Watch | None, announce: Callable[[str], None]) -> Splits:
        return self.splits


def inputs_of(data: Any, val: Any, arguments: Arguments) -> SearchData:
    """The data of a search from the data given: as it is where models can visit it so, else to be prepared."""
    data, val = _opened(data), _opened(val)
    if isinstance(val, Mapping) and hasattr(
        data, "mapInArrow"
    ):  # as Spark ML gives its estimators' parameters
        if val:
            raise UsageError(
                f"fit(df, {sorted(map(str, val))}) gives parameters as Spark ML does, but a search takes them when it "
                "is made; the second argument here is val=, a DataFrame of rows to validate on."
            )
        val = None
    if val is None and not isinstance(arguments.validation, str | float | int | None):
        val = arguments.validation
    _warn_of_common_rows(data, val)
    if isinstance(data, Dataset) and isinstance(val, Dataset):
        return Ready(Splits.of(data, val), arguments, (data, val))
    check_labels((data, val), arguments.label_columns)
    check_filled((data, val), arguments.steps.read(arguments.feature_columns))
    splits = _versions(data, val, arguments)
    if splits is not None:
        return Ready(splits, arguments, (data, val))
    warn_of_overlap(data, arguments.validation if val is None else None)
    named = [*arguments.source_columns, *arguments.label_columns]
    names = source_names(named, arguments.nulls, arguments.ragged)
    sources = as_source(data, names), None if val is None else as_source(val, names)
    arguments.steps.check_made(sources[0].columns)
    return Raw(*sources, arguments, (data, val))


def _check_padded(schema: Schema, arguments: Arguments) -> None:
    """Raise UsageError if lists of a dataset are to be padded, which was opened without."""
    wanted = {name.removesuffix("_length") for name in (*arguments.source_columns, *arguments.label_columns)}
    lists = [column.name for column in schema if column.kind == "ragged" and column.name in wanted]
    if lists and arguments.ragged == "pad":
        raise UsageError(
            "ragged='pad' holds for data that the search prepares, but the training data was opened or prepared "
            f"before, and its column {lists[0]!r} holds lists of several lengths. Give fit() the files themselves, "
            "search.fit('train.parquet', 'val.parquet'), or prepare both together, prepare(train, val=val, "
            "ragged='pad'), for fit_on_prepared_data()."
        )


def _opened(data: Any) -> Any:
    """The dataset of a converter; all else as it is."""
    return data.dataset() if isinstance(data, SparkDatasetConverter) else data


def origin(data: Partitioned | None) -> str | None:
    """Version of the data and its place, in words, if it is data of a stockroom."""
    if isinstance(data, JoinedSamples):
        return data.where
    return data.store.url if isinstance(data, Dataset) and isinstance(data.store, StoredFiles) else None


def is_version(data: Any) -> bool:
    """Whether this is data of a stockroom: a dataset, or samples of columns. It never changes."""
    return isinstance(data, Partitioned) and origin(data) is not None


def _versions(data: Any, val: Any, arguments: Arguments) -> Splits | None:
    """Data of a stockroom, read where it lies; None: it has to be prepared first."""
    given = [data] if val is None else [data, val]
    if not is_version(data) or not all(isinstance(each, Partitioned) for each in given):
        return None
    kinds = {
        each.schema[name].kind
        for each in given
        for name in arguments.source_columns
        if name in each.schema.names
    }
    if "ragged" in kinds and arguments.ragged != "keep":
        return None
    if val is not None or arguments.validation is None:
        parts: tuple[Partitioned, Partitioned | None] | None = (_shuffled(data, arguments.seed), val)
    else:
        parts = _split(data, arguments.validation, arguments)
    return parts and Splits(*parts, Splits.of(data, val).fingerprint)


def _shuffled(data: Partitioned, seed: int) -> Partitioned:
    """Shuffle samples: the order of their keys often is that of their labels. Datasets were shuffled before."""
    return data.part(_order(len(data), seed)) if isinstance(data, JoinedSamples) else data


def _split(data: Partitioned, share: Any, arguments: Arguments) -> tuple[Partitioned, Partitioned] | None:
    """Training and validation set, as ``prepare`` splits rows; None: it cannot be split where it lies."""
    if isinstance(share, str):
        return None
    check_share(share)
    hashes = _content_hashes(data, [*arguments.feature_columns, *arguments.label_columns])
    held = held_by_share(hashes, float(share), arguments.seed)
    if isinstance(data, JoinedSamples):
        order = _order(len(data), arguments.seed)
        return data.part(order[~held[order]]), data.part(order[held[order]])
    assert isinstance(data, Dataset)
    return data.rows_where(~held), data.rows_where(held)


def _content_hashes(data: Partitioned, columns: list[str]) -> Hashes:
    """Hash of each row's values in these columns, or in all if none is known: computed once a machine."""
    names = [name for name in dict.fromkeys(columns) if name in data.schema] or data.schema.names

    def compute() -> Iterator[dict[str, npt.NDArray[Any]]]:
        for batch in data.loader(_HASHED_AT_ONCE, columns=names):
            yield {"hash": content_hashes(convert_columns(batch, from_values))}

    key = digest_json(names, "hopyard.row-hashes")
    return np.asarray(computed_columns(data, key, compute, "hashes of rows, by which they are split")["hash"])


def _warn_of_common_rows(train: Any, val: Any) -> None:
    """Say how many rows of a validation set are trained on, as far as that is known without reading any."""
    if isinstance(train, Dataset) and isinstance(val, Dataset):
        warn_of_common(val.common_rows(train), len(val))
    elif isinstance(train, JoinedSamples) and isinstance(val, JoinedSamples):
        warn_of_common(val.common_samples(train), len(val))


def _order(count: int, seed: int) -> Rows:
    return permutation(count, derive_seed(seed, "split"))


def check_partitions(arguments: Arguments, row_groups: int) -> None:
    """Raise UsageError if more partitions are asked for than the training data has row groups."""
    asked = arguments.num_partitions
    if asked is not None and asked > row_groups:
        raise UsageError(
            f"num_partitions is {asked}, but the training data has {row_groups} row groups, and a partition needs at "
            f"least one. Give num_partitions={row_groups} or less."
        )


def check_alike(wanted: tuple[str, ...], train: Partitioned, val: Partitioned) -> None:
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
