"""How much of each law and enumeration a run of the suite goes through.

``HOPYARD_TESTS`` is the level: ``quick`` (``make test``), ``ci`` (``make test-all``) or ``exhaustive`` (``make
test-exhaustive``). What a level does not go through whole it samples, by the seed ``HOPYARD_SEED``, which pytest's
header shows.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

LEVELS = ("quick", "ci", "exhaustive")
LEVEL = os.environ.get("HOPYARD_TESTS", "quick")
if LEVEL not in LEVELS:
    raise ValueError(f"HOPYARD_TESTS is {LEVEL!r}, but it must be one of {', '.join(LEVELS)}.")
FORKS = sys.platform == "linux" and LEVEL != "exhaustive"
"""Whether Python processes are forked off one; at the level ``exhaustive`` each starts as it does for users."""
SEED = int(os.environ.get("HOPYARD_SEED", "0"))

Case = TypeVar("Case")


def by_level(quick: int, ci: int, exhaustive: int) -> int:
    """The number that belongs to the level of this run."""
    return {"quick": quick, "ci": ci, "exhaustive": exhaustive}[LEVEL]


def sample(name: str, cases: Iterable[Case], quick: int, ci: int) -> list[Case]:
    """So many of the cases, in their order; all of them where the level is ``exhaustive``.

    Args:
        name: of the enumeration, so that different ones are sampled differently by one seed.
    """
    every = list(cases)
    number = by_level(quick, ci, len(every))
    if number >= len(every):
        return every
    chosen = random.Random(f"{SEED} {name}").sample(range(len(every)), number)
    return [every[at] for at in sorted(chosen)]


def diagonal(name: str, *axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations that have each value of each axis at least once, as few as that takes; all where the level is
    ``exhaustive``.

    Args:
        name: of the enumeration, so that different ones are drawn differently by one seed.
    """
    every = [list(axis) for axis in axes]
    if LEVEL == "exhaustive":
        return list(itertools.product(*every))
    chosen = random.Random(f"{SEED} {name}")
    turned = [itertools.islice(itertools.cycle(axis), chosen.randrange(len(axis)), None) for axis in every]
    return list(itertools.islice(zip(*turned, strict=False), max(map(len, every))))


def moments(name: str, quick: int, ci: int) -> Iterator[int]:
    """0, 1, 2, ... without an end, one in so many of them; all where the level is ``exhaustive``.

    For what is done until it is no longer interrupted: nobody knows before how many moments there are.
    """
    one_in = by_level(quick, ci, 1)
    chosen = random.Random(f"{SEED} {name}")
    for start in itertools.count(step=one_in):
        yield start + chosen.randrange(one_in)
