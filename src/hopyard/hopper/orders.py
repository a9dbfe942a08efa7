"""Homes of partitions, and the order in which the trials of a group visit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

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


def homes_of(
    nodes: Sequence[str], partitions: int, held: Sequence[Mapping[str, int]] = ()
) -> dict[int, frozenset[int]] | None:
    """The workers that read each partition: those of one node, and of a few where the load would else be uneven.

    Places for partitions and workers are laid side by side, the workers node by node; a place is on the nodes of the
    workers that it lies beside. So all workers have equally much to do, and nodes share at most one partition with
    the next one. Partitions take the places where, all together, most of their bytes are on the node already; of
    such ways, and where nothing is known, in their order as far as that goes.

    Args:
        nodes: of each worker, where it is; workers of a node read the same files.
        held: of each partition, the bytes that nodes have; empty: unknown.

    Returns: the workers by partition; None on one node, where any worker reads any partition.
    """
    if len(set(nodes)) < 2:
        return None
    workers, beside = len(nodes), sorted(nodes)
    places = []
    for place in range(partitions):
        first, end = place * workers // partitions, -(-(place + 1) * workers // partitions)
        places.append(beside[first:end])
    taken = _nearest(beside, [*held, *[{}] * (partitions - len(held))]) if held else range(partitions)
    return {
        partition: frozenset(w for w, node in enumerate(nodes) if node in places[place])
        for partition, place in enumerate(taken)
    }


def _nearest(beside: Sequence[str], held: Sequence[Mapping[str, int]]) -> list[int]:
    """The place of each partition, so that the most bytes are on the nodes of the places; of such ways one by which
    the most partitions keep their own number.

    Args:
        beside: of each worker, node by node, where it is.
        held: of each partition, the bytes that nodes have.
    """
    count, workers = len(held), len(beside)
    gains = np.zeros((count, count), np.float64)  # of a partition, at a place
    for worker, node in enumerate(beside):
        has = np.array([each.get(node, 0) for each in held], np.float64)
        for place in range(worker * count // workers, -(-(worker + 1) * count // workers)):
            begin, end = (
                max(worker * count, place * workers),
                min((worker + 1) * count, (place + 1) * workers),
            )
            gains[:, place] += has * (end - begin)
    return matched(np.floor(gains * min(1.0, 2**36 / max(1.0, gains.max()))) * (count + 1) + np.eye(count))


def matched(gains: npt.NDArray[np.float64]) -> list[int]:
    """The column of each row of a square of whole numbers by which the sum is the largest.

    Kuhn's and Munkres' method: rows come one after another, each by the cheapest path of rows that change columns.
    """
    count = len(gains)
    costs = gains.max() - gains
    row_price, column_price = np.zeros(count), np.zeros(count + 1)
    row_at = np.full(count + 1, -1)  # of each column; the last one is where a new row waits
    for row in range(count):
        row_at[count], column = row, count
        least, before = np.full(count, np.inf), np.full(count, count)
        seen = np.zeros(count + 1, bool)
        while row_at[column] >= 0:
            seen[column] = True
            here = row_at[column]
            slack = costs[here] - row_price[here] - column_price[:count]
            better = ~seen[:count] & (slack < least)
            least[better], before[better] = slack[better], column
            column = int(np.where(seen[:count], np.inf, least).argmin())
            step = least[column]
            row_price[row_at[seen]] += step
            column_price[seen] -= step
            least[~seen[:count]] -= step
        while column != count:
            row_at[column], column = row_at[before[column]], int(before[column])
    places = np.empty(count, np.int64)
    places[row_at[:count]] = np.arange(count)
    return [int(place) for place in places]
