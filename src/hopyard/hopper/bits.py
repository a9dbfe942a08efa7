"""Sets of small numbers as the bits of integers, and such a set in order of priority.

Python's integers have any width: the intersection of two sets of ten thousand numbers takes a fraction of
a microsecond, and each set a kilobyte.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TypeAlias

QueueKey: TypeAlias = tuple[float, int, int]
"""Lower goes first."""

_LEVELS_FOR_ONE = 5  # going through so many priorities costs what looking at one member costs


def bits(mask: int) -> Iterator[int]:
    """The bits of ``mask``, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def lowest(mask: int) -> int:
    """The lowest bit of ``mask``."""
    return mask & -mask


class Queue:
    """A set of bits, each with a priority.

    Attributes:
        members: all of them.
    """

    def __init__(self) -> None:
        self.members: int = 0
        self._key_of: dict[int, QueueKey] = {}  # by position, not bit: hashing a wide integer costs its width
        self._levels: dict[QueueKey, int] = {}
        self._keys: list[QueueKey] = []

    def add(self, bit: int, key: QueueKey) -> None:
        level = self._levels.get(key, 0)
        if not level:
            insort(self._keys, key)
        self._levels[key] = level | bit
        self._key_of[bit.bit_length()] = key
        self.members |= bit

    def discard(self, bit: int) -> None:
        key = self._key_of.pop(bit.bit_length(), None)
        if key is None:
            return
        self.members ^= bit
        level = self._levels[key] ^ bit
        if level:
            self._levels[key] = level
        else:
            del self._levels[key]
            del self._keys[bisect_left(self._keys, key)]

    def first(self, candidates: int) -> int:
        """Bits of ``candidates``, all of them members, that go first."""
        count = candidates.bit_count()
        if count * count * _LEVELS_FOR_ONE > len(
            self._keys
        ):  # about len(keys) / count priorities until one is met
            return next(found for key in self._keys if (found := self._levels[key] & candidates))
        keys = [(self._key_of[bit.bit_length()], bit) for bit in bits(candidates)]
        first = min(key for key, _ in keys)
        return sum(bit for key, bit in keys if key == first)

    def validate(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        assert sum(self._levels.values()) == self.members, "a member is missing, or stands at two priorities"
        assert sorted(self._levels) == self._keys, "the priorities are out of order"
        for bit in bits(self.members):
            assert self._levels[self._key_of[bit.bit_length()]] & bit, (
                "a member does not stand at its priority"
            )
