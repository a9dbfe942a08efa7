"""Notes of the scheduler on trials, and on partitions that live together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from hopyard.hopper.units import Unit


class TrialStatus(Enum):
    READY = "ready"
    RUNNING = "running"
    PARKED = "parked"
    LOST = "lost"


@dataclass(slots=True)
class TrialEntry:
    """A trial; sets of trials, partitions and sites are bits."""

    number: int
    bit: int
    group: int
    target: int
    urgency: float
    visits: int = 0
    trained: int = 0
    step: int = 0
    validated: int = 0
    todo: int = 0  # partitions not yet seen in this epoch, as bits
    reach: int = 0  # their sites, as bits; both only with free orders
    status: TrialStatus = TrialStatus.PARKED
    sites: int = 0  # where its next unit may be, as bits
    anywhere: bool = False  # its next unit may be on any worker
    worker: int | None = None
    holder: int | None = None
    unit: Unit | None = None  # what it does, or will do if that is settled
    seconds: float = 0.0  # of the units that were measured
    measured: int = 0
    expected: float | None = None  # seconds of all units to the target, if that is known
    kind: str | None = None  # trials of one kind may make a visit together
    visit: tuple[Any, ...] | None = None  # while ready, a mark of those that may make its next visit with it


@dataclass(slots=True)
class Site:
    """Partitions that live on the same workers."""

    partitions: int = 0
    workers: int = 1  # how many; only compared between sites
    bound: int = 0  # trials whose next unit may be here
    idle: int = 0  # workers


def burden(site: Site) -> float:
    """Trials bound for the site, for each of its workers."""
    return site.bound.bit_count() / site.workers
