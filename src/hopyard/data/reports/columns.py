"""What a report says of a column: numbers of each split, and a chart that shows the splits over one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import Ragged
from hopyard.data.reports.sample import Sample

MOST_BARS = 24
"""Integers and booleans with so few different values get a bar for each."""

MOST_VALUES = 10
"""Of strings, so many of the most frequent ones are named, if they are there more than once."""

_EXAMPLES = 3

_FLOAT_BARS = 8
_FEWEST_BINS, _MOST_BINS = 8, 36
_TAILS = 0.005  # on each side, cut off where they would squeeze the rest into fewer bins
_SQUEEZED = 2.5
_MOST_ELEMENTS = 2_000_000  # of a split's column: rows beyond are left out of charts

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Numbers:
    """Numbers in a sample's rows, of which charts are drawn.

    Attributes:
        values: (n,) the finite ones, of all elements of all rows that are not null.
        nan, infinite: how many others there are.
        whole: they are integers or booleans.
    """

    values: npt.NDArray[Any]
    nan: int
    infinite: int
    whole: bool

    @classmethod
    def of(cls, rows: Any) -> Numbers:
        values = rows.values if isinstance(rows, Ragged) else rows.reshape(-1)
        values = values[:: -(-max(len(values), 1) // _MOST_ELEMENTS)]
        if values.dtype == bool:
            values = values.astype(np.uint8)
        if values.dtype.kind != "f":
            return cls(values, 0, 0, True)
        nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        if nan or infinite:
            values = values[np.isfinite(values)]
        return cls(values.astype(np.float64), nan, infinite, False)

    @classmethod
    def of_lengths(cls, lengths: npt.NDArray[np.int64]) -> Numbers:
        return cls(lengths, 0, 0, True)


@dataclass(frozen=True)
class Bins:
    """A histogram.

    Attributes:
        edges: (bins + 1,) bounds.
        shares: of each split (bins,), summing to 1 with what is outside.
        outside: of each split, the share of values beyond the first and last edge.
        whole: values are integers.
    """

    edges: Floats
    shares: tuple[Floats, ...]
    outside: tuple[float, ...]
    whole: bool


@dataclass(frozen=True)
class Values:
    """Shares of single values, of each split (values,)."""

    labels: tuple[str, ...]
    shares: tuple[Floats, ...]


def chart_numbers(splits: Sequence[Numbers], boolean: bool = False) -> Bins | Values | None:
    """Bars of few values, or a histogram with the same bins for all splits; None without any value."""
    filled = [split.values for split in splits if len(split.values)]
    if not filled:
        return None
    pooled = np.concatenate(filled)
    few = MOST_BARS if splits[0].whole else _FLOAT_BARS
    distinct = np.unique(pooled)
    if len(distinct) <= few and not (splits[0].whole and distinct[-1] - distinct[0] > 4 * few):
        if splits[0].whole and len(distinct) > 2:
            distinct = np.arange(int(distinct[0]), int(distinct[-1]) + 1)  # gaps are seen as gaps
        labels = tuple(_label(value, boolean) for value in distinct.tolist())
        if len(labels) <= few:
            return Values(labels, tuple(_shares_of(split.values, distinct) for split in splits))
    edges = _edges(pooled.astype(np.float64), splits[0].whole)
    shares = [np.histogram(split.values.astype(np.float64), edges)[0] for split in splits]
    counts = [max(len(split.values), 1) for split in splits]
    return Bins(
        edges,
        tuple(found / count for found, count in zip(shares, counts, strict=True)),
        tuple(
            (len(split.values) - float(found.sum())) / count
            for split, found, count in zip(splits, shares, counts, strict=True)
        ),
        splits[0].whole,
    )


def _label(value: float | int, boolean: bool) -> str:
    if boolean:
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _shares_of(values: npt.NDArray[Any], distinct: npt.NDArray[Any]) -> Floats:
    places = np.searchsorted(distinct, values)
    shares: Floats = np.bincount(places, minlength=len(distinct)) / max(len(values), 1)
    return shares


def _edges(values: Floats, whole: bool) -> Floats:
    """Bins over all values, or without the tails if those would leave the rest in a few bins.

    Their width is that of Freedman and Diaconis (1981) within bounds; integers lie in the middle of theirs.
    """
    low, high = float(values.min()), float(values.max())
    first, third = np.quantile(values, [0.25, 0.75])
    inner_low, inner_high = np.quantile(values, [_TAILS, 1 - _TAILS])
    if high - low > _SQUEEZED * (inner_high - inner_low) > 0:
        low, high = float(inner_low), float(inner_high)
    width = 2 * float(third - first) / len(values) ** (1 / 3)
    wanted = (high - low) / width if width else _MOST_BINS
    count = int(min(max(wanted, _FEWEST_BINS), _MOST_BINS))
    if not whole:
        edges = np.linspace(low, high, count + 1)
        return edges if (np.diff(edges) > 0).all() else np.array([low, np.nextafter(high, np.inf)])
    step = max(int(np.ceil((high - low + 1) / count)), 1)
    bins = int(np.ceil((high - low + 1) / step))
    edges = np.floor(low) - 0.5 + step * np.arange(bins + 1, dtype=np.float64)
    return np.asarray(edges, np.float64)


@dataclass(frozen=True)
class Frequent:
    """The most frequent strings.

    Attributes:
        values: those that are there more than once, at most ``MOST_VALUES``, most frequent first, equals in the order
            of the alphabet; some examples if there are none.
        shares: of each split (values,).
        others: how many different ones there are beside them.
        unique: no value is there twice.
    """

    values: tuple[str, ...]
    shares: tuple[Floats, ...]
    others: int
    unique: bool


def count_strings(splits: Sequence[Sequence[str]]) -> tuple[list[dict[str, int]], Frequent | None]:
    """How often each string is there, by split, and the most frequent ones of all."""
    counts = [_counts(split) for split in splits]
    pooled: dict[str, int] = {}
    for its in counts:
        for value, count in its.items():
            pooled[value] = pooled.get(value, 0) + count
    if not pooled:
        return counts, None
    ranked = sorted(pooled, key=lambda value: (-pooled[value], value))
    unique = pooled[ranked[0]] == 1
    named = ranked[:_EXAMPLES] if unique else [each for each in ranked[:MOST_VALUES] if pooled[each] > 1]
    shares = tuple(
        np.array([its.get(value, 0) for value in named]) / max(len(split), 1)
        for its, split in zip(counts, splits, strict=True)
    )
    return counts, Frequent(tuple(named), shares, len(pooled) - len(named), unique)


def _counts(values: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def lengths_of(sample: Sample) -> npt.NDArray[np.int64]:
    """Values, characters or bytes of each row that is not null."""
    rows = sample.present()
    return rows.lengths if isinstance(rows, Ragged) else np.array([len(row) for row in rows], np.int64)
