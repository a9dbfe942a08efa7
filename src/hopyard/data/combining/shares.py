"""Datasets that the positions of a mixture take their rows from: exact shares, in an order that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.order import permutation
from hopyard.objects.digests import derive_seed

Picks: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""Numbers of datasets."""

BLOCK = 4096  # positions that are permuted together; a change of it changes every mixture's order


class Shares:
    """The shares of a mixture's datasets in its positions.

    Of the first x positions, dataset k has ``counts(x)[k]``: weights[k] * x / sum(weights) to within less than the
    number of datasets, never falling with x. Within each block of ``BLOCK`` positions the order of the picks
    is a permutation (``order.py``) by (seed, epoch, block). So the number of rows of an epoch, and the number of
    each dataset's, depend on neither seed nor epoch, and any position is found without those before it.

    Args:
        weights: positive, of each dataset.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        rests = [sum(weights[number:], Fraction(0)) for number in range(len(weights))]
        self._ratios = [
            (weight / rest).as_integer_ratio() for weight, rest in zip(weights, rests, strict=True)
        ]

    def counts(self, positions: int) -> list[int]:
        """Number of the first ``positions`` that each dataset has: a share of those that datasets before it leave."""
        counts, left = [], positions
        for numerator, denominator in self._ratios:
            counts.append(left * numerator // denominator)
            left -= counts[-1]
        return counts

    def until_first(self, rows: Sequence[int]) -> int:
        """The most positions that take no more than its ``rows`` from any dataset."""
        return _least(lambda x: any(c > r for c, r in zip(self.counts(x), rows, strict=True))) - 1

    def until_last(self, rows: Sequence[int]) -> int:
        """The fewest positions that take at least its ``rows`` from every dataset."""
        return _least(lambda x: all(c >= r for c, r in zip(self.counts(x), rows, strict=True)))

    def draw(self, block: int, positions: int, seed: int, epoch: int) -> Picks:
        """The dataset of each position of a block, of an epoch of ``positions``."""
        start = block * BLOCK
        each = np.subtract(self.counts(min(start + BLOCK, positions)), self.counts(start))
        dtype = np.uint16 if len(each) <= 1 << 16 else np.uint32  # short ones are sorted fastest
        picks: Picks = np.repeat(np.arange(len(each), dtype=dtype), each)
        return picks[permutation(len(picks), derive_seed("order of a mixture", seed, epoch, block))]


def _least(holds: Callable[[int], bool]) -> int:
    """The least number from 0 for which a condition holds that holds for all larger ones."""
    high = 1
    while not holds(high):
        high *= 2
    low = 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def fractions_of(weights: Sequence[float | Fraction]) -> list[Fraction]:
    """Weights as exact shares of 1."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact, Fraction(0))
    return [weight / total for weight in exact]
