"""The rows that a report looks at: as many as its page needs, the same ones every time."""

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
"""Of a column at most so many bytes are looked at: wide columns have smaller samples."""

_FEWEST_ROWS = 100
_DECODED_GROUPS = (
    16  # of what must be decoded, so many row groups, far from one another, unless they are small
)


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of a column.

    Attributes:
        column: what it is.
        rows: (n,) their numbers in the dataset, rising.
        values: as a batch holds them.
        missing: (n,) bool, which are null, where the files say so; None: none, or prepared data, which holds fill
            values.
        complete: these are all rows.
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
) -> dict[str, Sample]:
    """At most ``rows`` rows of some columns; fewer of those whose rows are large.

    Args:
        masks: of columns, the one that says which of its rows are null.
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
            samples[name] = Sample(
                dataset.schema[name], chosen, batch[name], missing, len(chosen) == len(dataset)
            )
    return samples


def packs_of(dataset: Dataset, columns: Sequence[Column], rows: int) -> Iterator[list[Column]]:
    """The columns in packs that are sampled together: of at most ``COLUMN_BYTES``, or one column."""
    pack: list[Column] = []
    size = 0.0
    for column in columns:
        its = row_bytes(dataset, column) * _count(dataset, column.name, rows)
        if pack and size + its > COLUMN_BYTES:
            yield pack
            pack, size = [], 0.0
        pack.append(column)
        size += its
    yield pack


def _count(dataset: Dataset, name: str, rows: int) -> int:
    at_most = max(int(COLUMN_BYTES // max(row_bytes(dataset, dataset.schema[name]), 1)), _FEWEST_ROWS)
    return min(rows, at_most, len(dataset))


def row_bytes(dataset: Dataset, column: Column) -> float:
    """Bytes of a row; where rows differ, of all columns of an average row as it is stored."""
    return dataset.manifest.nbytes / max(len(dataset), 1) if column.width is None else column.width


def spread_rows(dataset: Dataset, count: int, mapped: bool) -> Rows:
    """Numbers of ``count`` rows, one from each of as many equal stretches of the dataset, drawn with a fixed seed.

    What must be decoded is drawn from some of the row groups only, spread alike.
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
    drawn = np.random.Generator(np.random.PCG64(derive_seed("report", total, count)))
    return drawn.integers(bounds[:-1], bounds[1:])
