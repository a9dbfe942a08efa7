"""Summary of a dataset at a glance: for ``hopyard data inspect`` and for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hopyard.data.cache.node import NodeCache
from hopyard.data.dataset import Dataset
from hopyard.data.files.stored import StoredFile
from hopyard.data.manifest import ColumnStatistics
from hopyard.data.opening.opening import open_dataset
from hopyard.data.schema import Schema
from hopyard.errors import DataError, HopyardError, NotFoundError
from hopyard.terminal import Shown
from hopyard.wording import counted, describe_bytes, visible

_NAMED_VALUES = 3


@dataclass(frozen=True)
class DatasetSummary:
    """A dataset, described.

    Attributes:
        split: ``"train"`` or ``"val"``.
        rows, row_groups, files: number of each; nbytes: of all files.
        schema: the columns.
        mapped: of each column, whether batches are gathered straight from the files.
        statistics: by column; empty if ``prepare`` did not write the dataset.
        prepared: whether it did.
        fingerprint: of the dataset.
        created: when it was prepared, ISO 8601 in UTC; empty if it was not.
        settings: the arguments of ``prepare``.
        sortedness: of each scalar column of files that ``prepare`` did not write, how far rows are sorted by it; see
            :meth:`hopyard.data.reading.reader.Reader.sortedness`.
        partitions: columns of directories ``key=value/``, and the number of values of each.
        cached: number of row groups that the node cache holds decoded, in some choice of columns.
        notes: data that reading the files without more arguments would refuse.
    """

    split: str
    rows: int
    row_groups: int
    files: int
    nbytes: int
    schema: Schema
    mapped: Mapping[str, bool]
    statistics: Mapping[str, ColumnStatistics]
    prepared: bool
    fingerprint: str
    created: str
    settings: Mapping[str, Any]
    sortedness: Mapping[str, float] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    cached: int = 0
    notes: tuple[str, ...] = ()

    def __rich__(self) -> RenderableType:
        origin = "Parquet files as they are, without a manifest"
        if self.prepared:
            origin = f"prepared {self.created[:16].replace('T', ' ')} UTC"
        files = f"{counted(self.files, 'file')}, {describe_bytes(self.nbytes)}"
        lines = [
            f"{self.split}: {self.rows:,} rows in {self.row_groups} row groups, {files}",
            f"{origin}; fingerprint {self.fingerprint[:12]}",
        ]
        if self.settings:
            lines.append(
                ", ".join(f"{key}={value!r}" for key, value in self.settings.items() if key != "source")
            )
        if self.partitions:
            listed = ", ".join(f"{name} ({count} values)" for name, count in self.partitions.items())
            lines.append(f"columns of directories: {listed}")
        if self.cached:
            lines.append(
                f"the node cache holds decoded data of {self.cached} of {self.row_groups} row groups"
            )
        lines += [f"without more arguments: {note}" for note in self.notes]
        return Group(*map(Text, lines), self._columns())

    def _columns(self) -> Table:
        table = Table(box=None, pad_edge=False)
        known_of = ("min", "max", "mean", "std", "missing", "distinct") if self.statistics else ()
        order_of = ("sorted",) if self.sortedness else ()
        for title in ("column", "type", *known_of, *order_of, "read"):
            table.add_column(
                title, justify="left" if title in ("column", "type", "distinct", "read") else "right"
            )
        for column in self.schema:
            kind = str(column).removeprefix(f"{column.name}: ")
            known = self.statistics.get(column.name, ColumnStatistics())
            numbers = [_number(value) for value in (known.min, known.max, known.mean, known.std)]
            cells = [*numbers, str(known.missing), _distinct(known)] if self.statistics else []
            if self.sortedness:
                share = self.sortedness.get(column.name)
                cells.append("" if share is None else f"{share:.2f}")
            read = "mapped" if self.mapped[column.name] else "decoded"
            table.add_row(*map(Text, map(visible, (column.name, kind, *cells, read))))
        return table


@dataclass(frozen=True)
class Summary(Shown):
    """Summaries of the inspected splits."""

    splits: tuple[DatasetSummary, ...]

    def __rich__(self) -> RenderableType:
        return Group(*self.splits)


def inspect(data: Any) -> Summary:
    """Summarize ``data``: a ``Dataset``, or anything that ``open_dataset`` takes, with both splits of a store.

    Parquet files that ``open_dataset`` refuses without a policy for nulls are shown as ``nulls="mask"`` reads them,
    with the reason.

    Raises:
        NotFoundError: there is no dataset.
    """
    if isinstance(data, Dataset):
        return Summary((summarize(data),))
    train, notes = _opened(data)
    try:
        val = open_dataset(data, "val", nulls="mask" if notes else "error")
    except NotFoundError:
        return Summary((summarize(train, notes),))
    splits = (train, val) if train.manifest.split != val.manifest.split else (train,)
    return Summary(tuple(summarize(each, notes) for each in splits))


def _opened(data: Any) -> tuple[Dataset, tuple[str, ...]]:
    """The dataset, and why it cannot be opened without a policy."""
    try:
        return open_dataset(data), ()
    except DataError as error:
        try:
            return open_dataset(data, nulls="mask"), (str(error),)
        except DataError:
            raise error from None


def summarize(dataset: Dataset, notes: Sequence[str] = ()) -> DatasetSummary:
    """The summary of one dataset. Reads the footers of its files."""
    manifest, reader = dataset.manifest, dataset.reader()
    return DatasetSummary(
        split=manifest.split,
        rows=len(dataset),
        row_groups=dataset.num_row_groups,
        files=len(manifest.files),
        nbytes=manifest.nbytes,
        schema=manifest.schema,
        mapped={column.name: reader.is_mapped(column) for column in manifest.schema},
        statistics=manifest.statistics,
        prepared=dataset.prepared,
        fingerprint=dataset.fingerprint,
        created=manifest.created,
        settings=manifest.settings,
        sortedness=_sortedness(dataset),
        partitions={name: len(set(values)) for name, values in dataset.recipe.constants.items()},
        cached=cached_groups(dataset),
        notes=tuple(notes),
    )


def _sortedness(dataset: Dataset) -> dict[str, float]:
    if dataset.prepared:
        return {}
    found = {column.name: dataset.reader().sortedness(column.name) for column in dataset.schema}
    return {name: share for name, share in found.items() if share is not None}


def cached_groups(dataset: Dataset) -> int:
    """Number of row groups of the dataset's files that the node cache holds decoded, by the names of the files.

    Another choice of columns than yours, and an older version of a file, count too.
    """
    if dataset.cache is False:
        return 0
    names = {StoredFile.open(dataset.store, entry.name).name for entry in dataset.manifest.files}
    try:
        entries = (dataset.cache or NodeCache()).entries()
    except HopyardError:  # a cache that cannot be read holds nothing for anyone
        return 0
    found = {
        (file, group)
        for entry in entries
        for file, groups in entry.description.get("row_groups", {}).items()
        for group in groups
    }
    return sum(file in names for file, _ in found)


def _number(value: float | int | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _distinct(known: ColumnStatistics) -> str:
    values = known.distinct
    if values is None:
        return ""
    shown = ", ".join(map(str, values[:_NAMED_VALUES]))
    return f"{len(values)}: {shown}{', ...' if len(values) > _NAMED_VALUES else ''}"
