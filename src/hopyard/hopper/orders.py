"""Homes of partitions, and the order in which the trials of a group visit them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def homes_of(nodes: Sequence[str], partitions: int) -> dict[int, frozenset[int]] | None:
    """The workers that read each partition: those of one node, and of a few where the load would else be uneven.

    Partitions and workers are laid side by side, the workers node by node; a partition lives on the nodes of the
    workers that it lies beside. So all workers have equally much to do, and nodes share at most one partition with
    the next one.

    Args:
        nodes: of each worker, where it is; workers of a node read the same files.

    Returns: the workers by partition; None on one node, where any worker reads any partition.
    """
    if len(set(nodes)) < 2:
        return None
    workers, beside = len(nodes), sorted(nodes)
    homes = {}
    for partition in range(partitions):
        first, end = partition * workers // partitions, -(-(partition + 1) * workers // partitions)
        homes[partition] = frozenset(w for w, node in enumerate(nodes) if node in beside[first:end])
    return homes
