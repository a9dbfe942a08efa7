"""Whereabouts of the data of a search: the bytes of each partition that machines have on their own disks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopyard.backend.preflight import WorkerFacts
from hopyard.data import Dataset
from hopyard.data.base import Partitioned
from hopyard.storage.hosts import bytes_at


@dataclass(frozen=True)
class Whereabouts:
    """Whereabouts of one partition.

    Attributes:
        size: bytes of its row groups in their files.
        held: bytes of them by the name of the host that has them.
    """

    size: int
    held: Mapping[str, int]

    @property
    def shares(self) -> dict[str, float]:
        """The part of the bytes, 0 to 1, by the name of the host that has it."""
        return {host: size / max(1, self.size) for host, size in self.held.items()}


def whereabouts(data: Partitioned | None, partitions: int) -> list[Whereabouts]:
    """The whereabouts of each partition; empty where a store does not know them, or nothing else than a store has the
    rows. Of a file that several partitions share, each is taken to be everywhere where the file is."""
    parts = data.partitions(partitions) if data is not None and partitions else []

    known: dict[str, Mapping[str, int]] = {}
    found = []
    for part in parts:
        if not isinstance(part, Dataset) or part.store is None:
            return []
        sizes, held = part.file_bytes(), Counter[str]()
        for entry in part.manifest.files:
            if entry.name not in known:
                known[entry.name] = part.store.hosts(entry.name)
            there = known[entry.name]
            if not there:
                return []
            for host, size in there.items():
                held[host] += min(size, entry.size) * sizes[entry.name] // max(1, entry.size)
        found.append(Whereabouts(sum(sizes.values()), dict(held)))
    return found


def held_by_nodes(
    facts: Sequence[WorkerFacts], places: Sequence[Sequence[Whereabouts]]
) -> list[dict[str, int]]:
    """Of each partition, the bytes that the workers' nodes have.

    Args:
        places: of the partitions of each split.
    """
    found = [Counter[str]() for _ in range(max(map(len, places), default=0))]
    for split in places:
        for number, place in enumerate(split):
            for node, host in {fact.node: fact.host for fact in facts}.items():
                found[number][node] += int(bytes_at(host, place.held))
    return [dict(each) for each in found]
