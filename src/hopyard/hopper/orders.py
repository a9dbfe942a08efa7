"""In which order the trials of a group visit the partitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias

VisitOrder: TypeAlias = Callable[[int, int], tuple[int, ...]]
"""(order group, epoch from 0) -> the partitions in order of visit."""


@lru_cache(maxsize=64)
def _permutation(partitions: int, epoch: int, seed: int) -> tuple[int, ...]:
    def key(partition: int) -> bytes:
        return blake2b(f"visit/{seed}/{epoch}/{partition}".encode(), digest_size=16).digest()

    return tuple(sorted(range(partitions), key=key))


def rotating_order(partitions: int, groups: int, seed: int) -> VisitOrder:
    """A fresh permutation per epoch, rotated by the group.

    Trials of different groups are then at different partitions at the same step of an epoch,
    so that equal units fill all workers. The order is a function of (partitions, groups, seed,
    group, epoch) alone: no number of workers and no timing changes it.
    """

    @lru_cache(maxsize=1024)
    def order(group: int, epoch: int) -> tuple[int, ...]:
        base = _permutation(partitions, epoch, seed)
        shift = group % groups % partitions
        return base[shift:] + base[:shift]

    return order
