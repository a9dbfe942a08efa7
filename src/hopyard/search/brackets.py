"""Division of a budget into rungs and brackets, computed with whole numbers.

A *rung* is a length at which trials are compared; the last is the full length. A *bracket* is a number of trials with
rungs of their own: few rungs stop few trials early, many stop many. Determined's tables are met exactly, with three of
its mistakes mended: logarithms are counted in powers (floats lose a rung of 1000 by 10 and of 243 by 3), brackets
given by hand never make more trials than asked for, and never train more of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from hopyard.checks import choice, integer
from hopyard.errors import UsageError

Divisor: TypeAlias = int | Fraction

MODES = ("aggressive", "standard", "conservative")


@dataclass(frozen=True)
class Share:
    """Share of one bracket in a search: rungs, trials, and how many of these train at once."""

    num_rungs: int
    num_models: int
    max_concurrent: int


def checked_divisor(divisor: float | Fraction) -> Divisor:
    """The divisor as an exact number: 2.5 is 5/2. Raises UsageError unless it is at least 2 and finite."""
    is_number = isinstance(divisor, int | float | Fraction) and not isinstance(divisor, bool)
    try:
        exact = Fraction(str(divisor)) if is_number else Fraction(0)
    except ValueError:  # not finite
        exact = Fraction(0)
    if exact < 2:
        raise UsageError(
            f"divisor={divisor!r}, but it must be a number of at least 2: of so many trials one trains on. "
            "Write divisor=3 or divisor=4."
        )
    return int(exact) if exact.denominator == 1 else exact


def log_floor(value: int, divisor: Divisor) -> int:
    """The greatest k with ``divisor**k <= value``, for ``value`` of at least 1."""
    k, power = 0, divisor
    while power <= value:
        k, power = k + 1, power * divisor
    return k


def rungs(num_rungs: int, divisor: Divisor, max_length: int) -> list[int]:
    """Determined's rungs: ``max_length / divisor**k`` rounded down, at least 1; short ones may repeat."""
    num_rungs = integer("num_rungs", num_rungs, 1)
    max_length = integer("max_length", max_length, 1)
    return [max(int(max_length // divisor**k), 1) for k in reversed(range(num_rungs))]


def rungs_in_visits(num_rungs: int, divisor: Divisor, visits: int) -> list[int]:
    """The rungs of a run, in visits: rounded up, and without repetition.

    Where there are more rungs than ``visits`` can be divided into, the shortest ones would all be of one visit: they
    are one rung, since a trial cannot be compared twice at the same length.
    """
    num_rungs = integer("num_rungs", num_rungs, 1)
    visits = integer("visits", visits, 1)
    return sorted({int(-(-visits // divisor**k)) for k in range(num_rungs)})


def brackets(
    num_models: int,
    max_length: int,
    divisor: Divisor = 4,
    *,
    mode: str = "standard",
    max_rungs: int = 5,
    bracket_rungs: Sequence[int] = (),
    max_concurrent: int = 16,
) -> list[Share]:
    """The brackets of an adaptive ASHA, those with the most rungs first. Never more than ``num_models`` trials in all.

    Args:
        num_models: trials in all.
        max_length: the full length, in any unit; a bracket has no more rungs than it can be divided into.
        divisor: of so many trials at a rung one trains on.
        mode: which numbers of rungs there are, up to m: ``aggressive`` [m], ``standard`` the upper half,
            ``conservative`` [1..m].
        max_rungs: the most that m may be.
        bracket_rungs: the numbers of rungs themselves, in place of ``mode`` and ``max_rungs``.
        max_concurrent: trials at once in all; 0 for as many in each bracket as the last one has, or ``divisor``.

    Raises:
        UsageError: an impossible number or an unknown mode.
    """
    integer("max_trials", num_models, 1)
    max_length = integer("max_length", max_length, 1)
    max_rungs = integer("max_rungs", max_rungs, 1)
    concurrency_given(max_concurrent)
    choice("mode", mode, MODES, advice="Write mode='standard'.")
    if bracket_rungs:
        numbers = [integer("every number of bracket_rungs", number, 1) for number in bracket_rungs]
    else:
        most = min(max_rungs, log_floor(max_length, divisor) + 1, log_floor(num_models, divisor) + 1)
        first = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
        numbers = list(range(first, most + 1))
    numbers.sort(reverse=True)
    trials = trials_of(numbers, num_models, divisor)
    limits = concurrency(max_concurrent, divisor, trials)
    return [Share(*each) for each in zip(numbers, trials, limits, strict=False)]


def trials_of(num_rungs: Sequence[int], num_models: int, divisor: Divisor) -> list[int]:
    """Trials of each bracket, so that all get about the same training: weights ``divisor**(r - 1) / r``, rounded down.

    What is left goes to the first. Each has at least one as long as there are any: the last brackets may get none and
    are left out (Determined gives them one, and makes more trials than asked for).
    """
    weights = [Fraction(divisor) ** (number - 1) / number for number in num_rungs]
    shares: list[int] = []
    for weight in weights:
        share = max(int(weight / sum(weights) * num_models), 1)
        shares.append(min(share, num_models - sum(shares)))
    shares[0] += num_models - sum(shares)
    return [share for share in shares if share]


def concurrency(max_concurrent: int, divisor: Divisor, trials: Sequence[int]) -> list[int]:
    """Number of trials of each bracket that train at once: an even share, the remainder to the first brackets.

    0: as many in each as the last bracket has, or ``divisor`` if that is more. A bracket's share is at least 1; where
    there are more brackets than ``max_concurrent``, the whole search must be held to it besides.
    """
    if max_concurrent == 0:
        return [max(trials[-1], int(divisor))] * len(trials)
    share, left = divmod(max(max_concurrent, len(trials)), len(trials))
    return [share + (index < left) for index in range(len(trials))]


def concurrency_given(max_concurrent: int) -> int:
    """``max_concurrent`` if it is a whole number of at least 0."""
    rule = "an integer, or 0 for the searcher's own choice"
    return integer(
        "max_concurrent_trials", max_concurrent, 0, rule=rule, advice="Write max_concurrent_trials=16."
    )
