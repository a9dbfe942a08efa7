"""Distributions of a column in the splits of a dataset, as series to draw over one another, and their distances.

Numbers are compared by the largest distance of their cumulative distributions (the statistic of Kolmogorov and
Smirnov), strings by half the sum of the distances of their shares (total variation). A distance counts as strong above
0.1, if it is also beyond what chance gives two samples of these sizes: 1.95 sqrt(1/n + 1/m), which one in a thousand
exceeds, for the first; three times the expected distance for the second.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import Ragged
from hopyard.data.reports.sample import ColumnSample

MOST_BARS = 24
"""Different values of integers and booleans that have a share each."""

MOST_VALUES = 10
"""Number of strings that are named, among strings that occur more than once."""

STRONG = 0.1
"""Distance above which two distributions differ strongly."""

_EXAMPLES = 3
_FLOAT_BARS = 8
_FEWEST_BINS, _MOST_BINS = 8, 36
# Cut off on each side where the tails would squeeze the rest into fewer bins.
_TAILS = 0.005
_SQUEEZED = 2.5
# Differences of larger numbers might be infinite.
_HUGE = np.finfo(np.float64).max / 8
# Of a split's column; more are thinned out evenly.
_MOST_ELEMENTS = 2_000_000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Numbers:
    """Numbers in the rows of a sample.

    Attributes:
        values: (n,) the finite ones, of all elements of all rows that are not null.
        nan, infinite: counts of the others.
        whole: the numbers are integers or booleans.
    """

    values: npt.NDArray[Any]
    nan: int
    infinite: int
    whole: bool

    @classmethod
    def of(cls, rows: Any) -> Numbers:
        """The elements of rows, which are an array (n, ...) or ``Ragged``."""
        values = (rows.values if isinstance(rows, Ragged) else rows).reshape(-1)
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
    def of_lengths(cls, sample: ColumnSample) -> Numbers:
        """Values, characters or bytes of each row of a sample that is not null."""
        rows = sample.present()
        lengths = rows.lengths if isinstance(rows, Ragged) else np.array([len(row) for row in rows], np.int64)
        return cls(lengths, 0, 0, True)


@dataclass(frozen=True)
class Histogram:
    """Shares of the values in bins.

    Attributes:
        edges: (bins + 1,) bounds, rising.
        shares: of each split (bins,); with ``outside`` they sum to 1.
        outside: of each split, the share of values beyond the first and the last edge.
        whole: the values are integers, which lie in the middle of their bins.
    """

    edges: Floats
    shares: tuple[Floats, ...]
    outside: tuple[float, ...]
    whole: bool


@dataclass(frozen=True)
class ValueShares:
    """Shares of single values.

    Attributes:
        labels: the values as text, rising.
        shares: of each split (values,), summing to 1.
    """

    labels: tuple[str, ...]
    shares: tuple[Floats, ...]


def distribution(splits: Sequence[Numbers], boolean: bool = False) -> Histogram | ValueShares | None:
    """Shares of few different values, or a histogram with the same bins for all splits; None without any value."""
    filled = [split.values for split in splits if len(split.values)]
    if not filled:
        return None
    pooled = np.concatenate(filled)
    few = MOST_BARS if splits[0].whole else _FLOAT_BARS
    distinct = np.unique(pooled)
    if len(distinct) <= few and not (splits[0].whole and int(distinct[-1]) - int(distinct[0]) > 4 * few):
        if splits[0].whole and len(distinct) > 2:
            # Values that do not occur are seen as gaps.
            distinct = np.arange(int(distinct[0]), int(distinct[-1]) + 1)
        labels = tuple(_label(value, boolean) for value in distinct.tolist())
        if len(labels) <= few:
            return ValueShares(labels, tuple(_shares_of(split.values, distinct) for split in splits))
    edges = _edges(pooled.astype(np.float64), splits[0].whole)
    shares = [np.histogram(split.values.astype(np.float64), edges)[0] for split in splits]
    counts = [max(len(split.values), 1) for split in splits]
    return Histogram(
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
    if high / 2 - low / 2 >= _HUGE:  # eighths are exact
        return _edges(values / 8, whole) * 8
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
class FrequentStrings:
    """The most frequent strings.

    Attributes:
        values: strings that occur more than once, at most ``MOST_VALUES``, most frequent first, equals in the order
            of the alphabet; some examples if there are none.
        shares: of each split (values,).
        others: number of different strings beside them.
        unique: no string occurs twice.
    """

    values: tuple[str, ...]
    shares: tuple[Floats, ...]
    others: int
    unique: bool


def count_strings(splits: Sequence[Sequence[str]]) -> tuple[list[Counter[str]], FrequentStrings | None]:
    """Occurrences of each string, by split, and the most frequent strings of all splits; None without any string."""
    counts = [Counter(split) for split in splits]
    pooled = sum(counts, Counter[str]())
    if not pooled:
        return counts, None
    ranked = sorted(pooled, key=lambda value: (-pooled[value], value))
    unique = pooled[ranked[0]] == 1
    named = ranked[:_EXAMPLES] if unique else [each for each in ranked[:MOST_VALUES] if pooled[each] > 1]
    shares = tuple(np.array([count[value] for value in named]) / max(count.total(), 1) for count in counts)
    return counts, FrequentStrings(tuple(named), shares, len(pooled) - len(named), unique)


def distance_of_numbers(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """0 to 1: the largest distance between the shares of values that are at most x, over all x."""
    if not len(one) or not len(other):
        return 0.0
    one, other = np.sort(one), np.sort(other)
    both = np.concatenate([one, other])
    return float(
        np.abs(
            np.searchsorted(one, both, "right") / len(one)
            - np.searchsorted(other, both, "right") / len(other)
        ).max()
    )


def numbers_differ(distance: float, rows: int, other_rows: int) -> bool:
    """Whether the distance is strong for samples of ``rows`` and ``other_rows`` rows."""
    if not rows or not other_rows:
        return False
    return distance > max(STRONG, 1.95 * math.sqrt(1 / rows + 1 / other_rows))


def strings_differ(one: Mapping[str, int], other: Mapping[str, int]) -> tuple[float, bool]:
    """The total variation of two samples' counts, and whether it is strong."""
    rows, other_rows = sum(one.values()), sum(other.values())
    if not rows or not other_rows:
        return 0.0, False
    distance = chance = 0.0
    for value in one.keys() | other.keys():
        first, second = one.get(value, 0), other.get(value, 0)
        distance += abs(first / rows - second / other_rows) / 2
        pooled = (first + second) / (rows + other_rows)
        chance += math.sqrt(2 / math.pi * pooled * (1 - pooled) * (1 / rows + 1 / other_rows)) / 2
    return distance, distance > max(STRONG, 3 * chance)


def missing_differs(missing: int, rows: int, other_missing: int, other_rows: int) -> bool:
    """Whether shares of missing rows differ by more than 0.1, and by four standard errors."""
    if not rows or not other_rows:
        return False
    pooled = (missing + other_missing) / (rows + other_rows)
    error = math.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / other_rows))
    return abs(missing / rows - other_missing / other_rows) > max(STRONG, 4 * error)
