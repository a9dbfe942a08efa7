"""Sampled rows of a dataset's columns: a bounded number of bytes, the same rows every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.dataset import Dataset
from hopyard.data.order import Rows
from hopyard.data.schema import Column
from hopyard.objects.digests import derive_seed

COLUMN_BYTES = 64 << 20
"""Bytes of a column that are read at most: wide columns have smaller samples."""

_FEWEST_ROWS = 100
# Row groups of what must be decoded, far from one another; more if they are small.
_DECODED_GROUPS = 16


@dataclass(frozen=True, eq=False)
class ColumnSample:
    """A sample of the rows of a column.

    Attributes:
        column: of the schema.
        rows: (n,) their numbers in the dataset, rising.
        values: as a batch holds them.
        missing: (n,) bool, the rows that are null, where the files say so; None: there are none, or the data is
            prepared and holds fill values.
        complete: the sample is of all rows.
    """

    column: Column
    rows: Rows
    values: Any
    missing: npt.NDArray[np.bool_] | None
    complete: bool

    def present(self) -> Any:
        """The values of the rows that are not null."""
        if self.missing is None or not self.missing.any():
            return self.values
        return self.values[np.flatnonzero(~self.missing)]


def sample_columns(
    dataset: Dataset, names: Sequence[str], rows: int, masks: Mapping[str, str]
) -> dict[str, ColumnSample]:
    """Samples of at most ``rows`` rows of some columns; fewer of columns whose rows are large.

    Args:
        masks: by column, the mask column of its null rows.
    """
    reader = dataset.reader()
    alike: dict[tuple[int, bool], list[str]] = {}
    for name in names:
        wanted = [name, *([masks[name]] if name in masks else [])]
        mapped = all(reader.is_mapped(dataset.schema[each]) for each in wanted)
        alike.setdefault((_count(dataset, name, rows), mapped), []).extend(wanted)
    samples = {}
    for (count, mapped), wanted in alike.items():
        chosen = spread_rows(dataset, count, mapped)
        batch = dataset.take(chosen, {name: name for name in wanted})
        for name in set(names) & set(wanted):
            missing = batch[masks[name]] if name in masks else None
            complete = len(chosen) == len(dataset)
            samples[name] = ColumnSample(dataset.schema[name], chosen, batch[name], missing, complete)
    return samples


def sampled_together(dataset: Dataset, columns: Sequence[Column], rows: int) -> Iterator[list[Column]]:
    """The columns in groups whose samples have at most ``COLUMN_BYTES`` together, or are of one column."""
    group: list[Column] = []
    group_bytes = 0.0
    for column in columns:
        column_bytes = _row_bytes(dataset, column) * _count(dataset, column.name, rows)
        if group and group_bytes + column_bytes > COLUMN_BYTES:
            yield group
            group, group_bytes = [], 0.0
        group.append(column)
        group_bytes += column_bytes
    yield group


def _count(dataset: Dataset, name: str, rows: int) -> int:
    at_most = max(int(COLUMN_BYTES // max(_row_bytes(dataset, dataset.schema[name]), 1)), _FEWEST_ROWS)
    return min(rows, at_most, len(dataset))


def _row_bytes(dataset: Dataset, column: Column) -> float:
    """Bytes of a row; where rows differ, of all columns of an average row as it is stored."""
    return dataset.manifest.nbytes / max(len(dataset), 1) if column.width is None else column.width


def spread_rows(dataset: Dataset, count: int, mapped: bool) -> Rows:
    """Numbers of ``count`` rows, one from each of as many equal stretches of the dataset, drawn with a fixed seed.

    Rows that must be decoded are drawn from some of the row groups only, which are spread alike.
    """
    total = len(dataset)
    if total <= count:
        return np.arange(total)
    if mapped:
        return _one_of_each_stretch(total, count)
    group_rows = np.array(dataset.group_rows, np.int64)
    firsts = np.concatenate([[0], np.cumsum(group_rows)])
    filled = np.flatnonzero(group_rows)
    needed = int(np.ceil(count / group_rows[filled].mean()))
    groups = filled[_middles(len(filled), min(len(filled), max(needed, _DECODED_GROUPS)))]
    within = np.concatenate([np.arange(firsts[group], firsts[group + 1]) for group in groups])
    return within[_one_of_each_stretch(len(within), min(count, len(within)))]


def _middles(total: int, count: int) -> Rows:
    return (np.arange(count) * 2 + 1) * total // (2 * count)


def _one_of_each_stretch(total: int, count: int) -> Rows:
    bounds = np.arange(count + 1) * total // count
    drawn = np.random.Generator(np.random.PCG64(derive_seed("sample", total, count)))
    return drawn.integers(bounds[:-1], bounds[1:])
