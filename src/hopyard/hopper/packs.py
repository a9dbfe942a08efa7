"""Packs that trials of a search will train in: the real scheduler, on their first visits."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hopyard.checks import integer
from hopyard.hopper.orders import rotating_order
from hopyard.hopper.scheduler import Layout, Position, Scheduler, Start
from hopyard.wording import counted

_WORTH_SAYING = 1.1
"""Times as fast, from which the gain of another precision is part of the sentence."""
MOST_TOGETHER = 16
"""Trials that make a visit together, at most."""
_NO_OTHER = (
    "no other trial of their architecture is to visit the same partition at the same time; order_groups=1, fewer "
    "partitions or fewer workers would let them"
)
NO_MODEL = "the gain is unknown, as no model is at hand: search.check(data) builds some and measures it"


@dataclass(frozen=True)
class PlannedPack:
    """Trials that are expected to train together.

    Attributes:
        trials: their numbers.
        gain: how many times as long a batch takes them one by one as together, in CPU time; None: unknown.
    """

    trials: tuple[int, ...]
    gain: float | None = None


@dataclass(frozen=True)
class PackingPlan:
    """How trials are expected to train on their first visits. Results do not depend on it.

    Attributes:
        packs: of at least two trials each, in the order in which they begin.
        alone: numbers of the trials that train one at a time, by the reason.
        unknown: a sentence on what of this is not known, and why; empty: all is known.
        begin_alone: numbers of the trials in packs that begin one at a time, and train together once a worker has
            trained models like theirs for some hundred batches, since recording these takes time.
        bf16_gain: how many times as long gradients of a batch take as with ``precision="bf16"``, in CPU time; None: the
            CPU has no units for it, or it was not measured. That precision is never taken by itself: results differ.
    """

    packs: Sequence[PlannedPack] = ()
    alone: Mapping[str, Sequence[int]] = field(default_factory=dict)
    unknown: str = ""
    begin_alone: Sequence[int] = ()
    bf16_gain: float | None = None

    def __str__(self) -> str:
        """The plan as a sentence without its full stop."""
        said = []
        if self.packs:
            number = sum(len(pack.trials) for pack in self.packs)
            said.append(
                f"{counted(number, 'trial')} {'would ' if self.unknown else ''}train together in {self._sizes}"
            )
            gains = sorted(pack.gain for pack in self.packs if pack.gain is not None)
            if gains:
                ends = dict.fromkeys(f"{gain:.1f}" for gain in (gains[0], gains[-1]))
                said[0] += f", gradients of a batch {' to '.join(ends)} times as fast as one by one"
            if self.begin_alone:
                later = len(self.begin_alone)
                begin = (
                    "each begins by itself" if later == number else f"{later:,} of them begin by themselves"
                )
                said[0] += f"; {begin}, until a worker has trained such models for some hundred batches"
        whole = not self.packs and len(self.alone) == 1
        for why, trials in self.alone.items():
            who = (
                "trials train"
                if whole
                else "1 trial trains"
                if len(trials) == 1
                else f"{len(trials):,} trials train"
            )
            said.append(f"{who} one at a time: {why}")
        if self.packs and self.unknown:
            said.append(self.unknown)
        if self.bf16_gain is not None and self.bf16_gain > _WORTH_SAYING:
            said.append(
                f"with precision='bf16', which has other results, gradients of a batch would take "
                f"{1 / self.bf16_gain:.2f} times as long"
            )
        return "; ".join(said)

    @property
    def _sizes(self) -> str:
        """``2 packs of 16 and 1 pack of 8``."""
        sizes = [len(pack.trials) for pack in self.packs]
        texts = [
            f"{counted(sizes.count(size), 'pack')} of {size}" for size in sorted(set(sizes), reverse=True)
        ]
        return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def plan_packs(
    trials: int,
    workers: int,
    partitions: int,
    *,
    order_groups: int | None = None,
    kinds: Sequence[str] | None = None,
    reasons: Sequence[str] = (),
    gains: Mapping[str, float] | None = None,
    unknown: str = NO_MODEL,
    seed: int = 0,
) -> PackingPlan:
    """Say which trials are expected to train together, in which packs.

    Packs form anew at every visit, from the trials that are ready then; these are the packs of the first visits, if all
    trials begin at once and take equally long.

    Args:
        trials: how many begin, numbered from 0.
        workers: how many.
        partitions: of the training data.
        order_groups: trials n and n + order_groups visit partitions in the same order; None: as many as partitions.
        kinds: of each trial, equal marks for those whose models are alike; empty: it trains alone; None: all are alike.
        reasons: of each trial, why it trains alone; empty: it does not.
        gains: by kind, how many times as long a batch takes trials one by one as together.
        unknown: a sentence on what is not known, and why.
        seed: of the visit orders.

    Raises:
        UsageError: an argument is impossible.
    """
    trials, workers = integer("trials", trials, 1), integer("workers", workers, 1)
    partitions = integer("partitions", partitions, 1)
    groups = partitions if order_groups is None else integer("order_groups", order_groups, 1)
    kinds = ["alike"] * trials if kinds is None else kinds
    packs: list[PlannedPack] = []
    alone: dict[str, list[int]] = {}
    for numbers in _first_visits(kinds, workers, partitions, groups, seed):
        if len(numbers) > 1:
            packs.append(PlannedPack(numbers, (gains or {}).get(kinds[numbers[0]])))
        else:
            why = reasons[numbers[0]] if numbers[0] < len(reasons) else ""
            alone.setdefault(why or _NO_OTHER, []).append(numbers[0])
    return PackingPlan(packs, {why: sorted(found) for why, found in alone.items()}, unknown)


def _first_visits(
    kinds: Sequence[str], workers: int, partitions: int, groups: int, seed: int
) -> list[tuple[int, ...]]:
    """Trials of each first visit, in order of their start."""
    order = rotating_order(partitions, groups, seed)
    scheduler = Scheduler(Layout(partitions, 0), order, order, most=MOST_TOGETHER)
    scheduler.pause()
    for trial, kind in enumerate(kinds):
        scheduler.add(trial, trial % groups, Position(), 1, kind=kind or None)
    for worker in range(workers):
        scheduler.worker_up(worker)
    found: list[tuple[int, ...]] = []
    running: list[tuple[int, int, Start]] = []  # a heap, by the moment of the end

    def begin(starts: Sequence[Start], now: int) -> None:
        for start in starts:
            found.append(tuple(sorted(start.trials)))
            heapq.heappush(running, (now + len(start.trials), len(found), start))

    begin(scheduler.resume(), 0)
    while running:
        now, _, start = heapq.heappop(running)
        for trial in start.trials:
            begin(scheduler.done(trial), now)
    return found
