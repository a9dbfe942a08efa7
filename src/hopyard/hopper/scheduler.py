"""Which pack visits which partition on which worker next: events in, instructions out.

The scheduler does no I/O, reads no clock and starts no thread. A caller feeds it events and
carries out the :class:`Start` instructions it returns. It keeps three invariants, which
``validate`` checks: a pack is on one worker at most, a worker has one pack at most, and no
idle worker is left beside a ready pack that it may run.

=============  ==========================================  ==============
pack is        event                                       pack becomes
=============  ==========================================  ==============
(unknown)      ``add``                                     ready | parked
ready          (an eligible worker is idle)                running
running        ``done``: more to do                        ready
running        ``done``: reached its target                parked
running        ``returned`` (worker lost, disk full)       ready
parked         ``extend``                                  ready
any            ``end``                                     (forgotten)
=============  ==========================================  ==============

Who goes first: the pack with the fewest visits done, so that all trials advance together;
among those the one whose state the worker holds; then the lowest number. A decision costs
O(log packs).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from hopyard.hopper.orders import VisitOrder


@dataclass(frozen=True)
class Unit:
    """One visit of one pack to one partition.

    Attributes:
        pack: number of the pack.
        epoch: from 0.
        phase: ``"train"`` or ``"validate"``.
        partition: number of the partition.
        visit: units that the pack has done before, of both phases.
        trained: train units among them.
        last: whether it is the last of its phase in this epoch.
    """

    pack: int
    epoch: int
    phase: str
    partition: int
    visit: int
    trained: int
    last: bool


@dataclass(frozen=True)
class Start:
    """Run ``unit`` on ``worker`` now."""

    worker: int
    unit: Unit


@dataclass(frozen=True)
class Layout:
    """What an epoch consists of: ``train`` visits, then ``validate`` visits."""

    train: int
    validate: int

    @property
    def units(self) -> int:
        return self.train + self.validate


class Status(Enum):
    READY = "ready"
    RUNNING = "running"
    PARKED = "parked"


@dataclass
class _Pack:
    group: int
    visits: int
    target: int
    status: Status = Status.PARKED
    worker: int | None = None
    holder: int | None = None
    pinned: bool = False
    stamp: int = 0


_Key: TypeAlias = tuple[int, int, int]  # visits, pack, stamp
_ANYWHERE = -1


@dataclass
class Scheduler:
    """Greedy dense scheduling of fixed visit orders.

    Args:
        layout: partitions of an epoch's two phases.
        train_order, validate_order: visit orders by group and epoch.
        homes: for each partition the workers that can read it; None: all of them.
    """

    layout: Layout
    train_order: VisitOrder
    validate_order: VisitOrder
    homes: Mapping[int, frozenset[int]] | None = None
    _packs: dict[int, _Pack] = field(default_factory=dict)
    _busy: dict[int, int] = field(default_factory=dict)
    _idle: set[int] = field(default_factory=set)
    _idle_heap: list[int] = field(default_factory=list)
    _ready: dict[int, list[_Key]] = field(default_factory=dict)
    _check: set[int] = field(default_factory=set)
    _paused: bool = False

    # Events ---------------------------------------------------------------------------------

    def worker_up(self, worker: int) -> list[Start]:
        """``worker`` can take a unit."""
        if worker not in self._busy:
            self._set_idle(worker)
        return self._dispatch()

    def worker_down(self, worker: int) -> list[int]:
        """``worker`` is gone. Returns the packs whose state existed only there; the caller says
        with ``returned`` from which visit they go on."""
        self._idle.discard(worker)
        self._busy.pop(worker, None)
        return [number for number, pack in self._packs.items() if pack.pinned and pack.holder == worker]

    def add(self, pack: int, group: int, visits: int, epochs: int) -> list[Start]:
        """A pack begins (or goes on) after ``visits`` visits and may do ``epochs`` epochs in all."""
        self._packs[pack] = _Pack(group, visits, epochs * self.layout.units)
        self._make_ready_if_due(pack)
        return self._dispatch()

    def extend(self, pack: int, epochs: int) -> list[Start]:
        """The pack may do ``epochs`` epochs in all."""
        self._packs[pack].target = epochs * self.layout.units
        if self._packs[pack].status is Status.PARKED:
            self._make_ready_if_due(pack)
        return self._dispatch()

    def end(self, pack: int) -> list[Start]:
        """Nothing more is wanted of the pack. Its worker, if any, is free for others."""
        gone = self._packs.pop(pack)
        if gone.worker is not None:
            self._release(gone.worker)
        return self._dispatch()

    def done(self, pack: int, resident: bool = False) -> list[Start]:
        """The running unit of ``pack`` is committed. ``resident``: its state is nowhere but in the
        memory of the worker that ran it, so that the next unit must run there."""
        entry = self._packs[pack]
        worker = entry.worker
        assert worker is not None
        entry.visits += 1
        entry.holder, entry.pinned = worker, resident
        self._release(worker)
        self._make_ready_if_due(pack)
        return self._dispatch()

    def returned(self, pack: int, visits: int, idle: bool = True) -> list[Start]:
        """The pack goes on from ``visits`` (its last durable state), wherever it can. ``idle``:
        the worker that ran it, if any, can take another unit."""
        entry = self._packs[pack]
        if entry.worker is not None and idle:
            self._release(entry.worker)
        entry.visits, entry.worker, entry.holder, entry.pinned = visits, None, None, False
        self._make_ready_if_due(pack)
        return self._dispatch()

    def pause(self) -> None:
        """Start nothing until ``resume``."""
        self._paused = True

    def resume(self) -> list[Start]:
        self._paused = False
        self._check |= self._idle
        return self._dispatch()

    # Questions ------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many units are under way."""
        return len(self._busy)

    @property
    def paused(self) -> bool:
        return self._paused

    def has(self, pack: int) -> bool:
        """Whether the pack was added and has not ended."""
        return pack in self._packs

    def is_under_way(self, pack: int) -> bool:
        """Whether a unit of the pack is running."""
        return pack in self._packs and self._packs[pack].status is Status.RUNNING

    def unit_of(self, pack: int) -> Unit:
        """The unit that the pack is doing or will do next."""
        entry = self._packs[pack]
        epoch, step = divmod(entry.visits, self.layout.units)
        if step < self.layout.train:
            partition = self.train_order(entry.group, epoch)[step]
            trained, last = epoch * self.layout.train + step, step == self.layout.train - 1
            return Unit(pack, epoch, "train", partition, entry.visits, trained, last)
        step -= self.layout.train
        partition = self.validate_order(entry.group, epoch)[step]
        trained, last = (epoch + 1) * self.layout.train, step == self.layout.validate - 1
        return Unit(pack, epoch, "validate", partition, entry.visits, trained, last)

    def validate(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        running = {n: p for n, p in self._packs.items() if p.status is Status.RUNNING}
        assert {p.worker: n for n, p in running.items()} == self._busy, "a worker and its pack disagree"
        assert not self._idle & self._busy.keys(), "a worker is idle and busy at once"
        for number, pack in self._packs.items():
            due = pack.visits < pack.target
            assert pack.status is not Status.READY or due, f"pack {number} is ready with nothing to do"
            assert pack.status is not Status.PARKED or not due, f"pack {number} is parked with work to do"
            if pack.status is Status.READY and not self._paused:
                eligible = self._eligible(number)
                free = self._idle if eligible is None else self._idle & eligible
                assert not free, f"pack {number} waits beside idle workers {sorted(free)}"

    # How ------------------------------------------------------------------------------------

    def _eligible(self, number: int) -> frozenset[int] | None:
        """The workers that may run the pack's next unit; None: all."""
        pack = self._packs[number]
        if pack.pinned and pack.holder is not None:
            return frozenset((pack.holder,))
        return None if self.homes is None else self.homes[self.unit_of(number).partition]

    def _make_ready_if_due(self, number: int) -> None:
        pack = self._packs[number]
        pack.stamp += 1
        pack.worker = None
        pack.status = Status.READY if pack.visits < pack.target else Status.PARKED
        if pack.status is Status.PARKED:
            return
        eligible = self._eligible(number)
        places = set(eligible) if eligible is not None else {_ANYWHERE}
        if eligible is None and pack.holder is not None:
            places.add(pack.holder)
        for place in places:
            heapq.heappush(self._ready.setdefault(place, []), (pack.visits, number, pack.stamp))
        self._check |= places & self._idle

    def _set_idle(self, worker: int) -> None:
        if worker not in self._idle:
            self._idle.add(worker)
            heapq.heappush(self._idle_heap, worker)
        self._check.add(worker)

    def _release(self, worker: int) -> None:
        if self._busy.pop(worker, None) is not None:
            self._set_idle(worker)

    def _top(self, place: int) -> _Key | None:
        """The first pack waiting at a place; entries that were overtaken by events are dropped."""
        heap = self._ready.get(place)
        while heap:
            _, number, stamp = heap[0]
            pack = self._packs.get(number)
            if pack is not None and pack.stamp == stamp and pack.status is Status.READY:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _pick(self, worker: int) -> int | None:
        """The pack that an idle worker should take."""
        own, anywhere = self._top(worker), self._top(_ANYWHERE)
        if own is None or (anywhere is not None and anywhere[0] < own[0]):
            return None if anywhere is None else anywhere[1]
        return own[1]

    def _start(self, worker: int, number: int) -> Start:
        pack = self._packs[number]
        pack.status, pack.worker = Status.RUNNING, worker
        self._idle.discard(worker)
        self._busy[worker] = number
        return Start(worker, self.unit_of(number))

    def _lowest_idle(self) -> int | None:
        while self._idle_heap and self._idle_heap[0] not in self._idle:
            heapq.heappop(self._idle_heap)
        return self._idle_heap[0] if self._idle_heap else None

    def _dispatch(self) -> list[Start]:
        starts: list[Start] = []
        if self._paused:
            return starts
        for worker in sorted(self._check & self._idle):
            number = self._pick(worker)
            if number is not None:
                starts.append(self._start(worker, number))
        self._check.clear()
        while (first := self._top(_ANYWHERE)) is not None:
            holder = self._packs[first[1]].holder
            free = holder if holder in self._idle else self._lowest_idle()
            if free is None:
                break
            number = self._pick(free)
            assert number is not None
            starts.append(self._start(free, number))
        return starts
