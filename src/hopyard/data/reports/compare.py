"""Whether two splits are distributed alike, as far as their samples tell.

Numbers are compared by the largest distance of their cumulative distributions (the statistic of Kolmogorov
and Smirnov), strings by half the sum of the distances of their shares (total variation). A distance counts as
strong above 0.1, if it is also beyond what chance gives two samples of these sizes: 1.95 sqrt(1/n + 1/m), which
one in a thousand exceeds, for the first; three times the expected distance for the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

STRONG = 0.1


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
    """Whether the distance is strong, for samples of so many rows."""
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
