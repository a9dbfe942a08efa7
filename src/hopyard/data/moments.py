"""Count, mean and spread of numbers that come some at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass
class Moments:
    """Count, mean and sum of squared distances from it: of numbers, or of each element of arrays of one shape.

    Merged as in Chan, Golub, LeVeque: *Updating Formulae and a Pairwise Algorithm for Computing Sample Variances*
    (1979). Sums that are too large for float64 become infinite or NaN.
    """

    count: Any = 0
    mean: Any = 0.0
    squares: Any = 0.0

    @classmethod
    def of_rows(cls, numbers: npt.NDArray[np.float64]) -> Moments:
        """Moments of rows (n, *shape), element by element; NaN does not count."""
        there = ~np.isnan(numbers)
        count = there.sum(0)
        numbers = np.where(there, numbers, 0.0)
        mean = numbers.sum(0) / np.maximum(count, 1)
        return cls(count, mean, (np.where(there, numbers - mean, 0.0) ** 2).sum(0))

    def merge(self, other: Moments) -> None:
        count = self.count + other.count
        divisor = np.maximum(count, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            distance = other.mean - self.mean
            between = distance * distance * (self.count * other.count / divisor)
            self.squares = self.squares + (other.squares + between)
            self.mean = self.mean + distance * (other.count / divisor)
        self.count = count
