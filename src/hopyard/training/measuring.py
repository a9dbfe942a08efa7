"""What a pack gains, in CPU time, measured with as few steps as tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hopyard.wording import describe_bytes

clock: Callable[[], float] = time.process_time
"""Seconds of CPU time; what else runs on the processor does not count."""

LEAST_GAIN = 1.1
"""With a smaller one trials train alone."""
_SHORT_SECONDS = 0.03
"""A turn that takes less is repeated for so long."""
LONG_SECONDS = 0.2
"""Beside which it does not count what a first call has to prepare."""
_TURNS_OF_SHORT = 5
"""At least."""
_TURNS_OF_LONG = 3
"""At most."""
MOST_PARAMETERS = 16_000_000
"""Bytes of a model's own parameters, beyond which to read them takes longer than what models save together; and those
of all members are in memory at once."""
CLEAR = 1.05
"""How many times more or less than the gain that is asked for is clear, so that no other turn is needed."""


def too_large(nbytes: int) -> str:
    """Why a model with parameters of so many bytes trains alone."""
    most, own = describe_bytes(MOST_PARAMETERS), describe_bytes(nbytes)
    return f"its parameters take {own}, and models of over {most} gain nothing together"


def seconds(do: Callable[[], Any]) -> float:
    """CPU time that a call takes; the second time, as the first one may have things to prepare, unless it is long."""
    taken = seconds_once(do)
    return taken if taken >= LONG_SECONDS else seconds_once(do)


def gain(
    alone: Callable[[], Any],
    together: Callable[[], Any],
    width: int,
    least: float,
    until: float,
    first: tuple[float, float] | None = None,
) -> float:
    """How many times as long ``alone`` takes ``width`` times as ``together`` once, in CPU time, measured in turns.

    The least of each counts: what else runs on the processor disturbs a long call more than a short one. Short calls
    have turns of equal work. Of long ones ``alone`` is called once in a turn, and there is no other turn where it is
    clear on which side of ``least`` the gain is; but a gain is seen twice, as a first call may have things to prepare.

    Args:
        until: no other turn begins that is expected to end later.
        first: seconds that they took before; None: they are called for that.
    """
    one, stack = first or (seconds_once(alone), seconds_once(together))
    ones, stacks = [one], [stack]
    if width * ones[0] + stacks[0] < _SHORT_SECONDS:
        return _gain_of_short(alone, together, width)
    while len(ones) < _TURNS_OF_LONG and clock() + ones[-1] + stacks[-1] <= until:
        lowest, highest = width * min(ones) / max(stacks), width * max(ones) / min(stacks)
        if (lowest >= least * CLEAR and len(ones) > 1) or highest <= least / CLEAR:
            break
        ones.append(seconds_once(alone))
        stacks.append(seconds_once(together))
    return width * min(ones) / max(min(stacks), 1e-9)


def seconds_once(do: Callable[[], Any]) -> float:
    """CPU time that a call takes."""
    begun = clock()
    do()
    return clock() - begun


def _gain_of_short(alone: Callable[[], Any], together: Callable[[], Any], width: int) -> float:
    def all_alone() -> None:
        for _ in range(width):
            alone()

    ones: list[float] = []
    stacks: list[float] = []
    end = clock() + _SHORT_SECONDS
    while len(ones) < _TURNS_OF_SHORT or clock() < end:
        ones.append(seconds_once(all_alone))
        stacks.append(seconds_once(together))
    return min(ones) / max(min(stacks), 1e-9)
