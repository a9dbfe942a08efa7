"""Scheduler of visits, of trials to partitions on workers: events in, instructions out.

The scheduler does no I/O, reads no clock and starts no thread. A caller feeds it events and
carries out the :class:`Start` instructions it returns. It keeps three invariants, which
``validate`` checks: a trial is on one worker at most, a worker makes one visit at a time, and no
idle worker is left beside a ready trial that it may run.

=============  ==========================================  ==============
trial is        event                                       trial becomes
=============  ==========================================  ==============
(unknown)      ``add``                                     ready | parked
ready          (an eligible worker is idle)                running
running        ``done``: more to do                        ready
running        ``done``: reached its target                parked
running        ``worker_down``                             lost
ready, parked  ``worker_down`` of the only holder          lost
running, lost  ``returned`` (worker lost, disk full)       ready | parked
parked         ``extend``                                  ready
any            ``end``                                     (forgotten)
=============  ==========================================  ==============

A trial trains up to its target, and is validated there and at the end of each epoch.

Priority of trials: the lowest ``urgency``; then by ``order``: the most seconds left to the target, by what
the trial's units took so far (``"longest"``), or the fewest visits (``"greedy"``); then the trial whose state
the worker holds; then round the trials, each worker from the one it took last. Trials that nothing is known of
go before measured ones, the longest way first.

Trials of one *kind* that are to make the same visit may make it together, on one worker: as many as are ready, up to a
limit, or their share where other workers would be idle.

Implementation: every trial has a number, and sets of trials are bits of Python's integers: trials that are ready,
trials of each priority, trials that may next go to each *site* (the partitions that live on the same workers), trials
whose state each worker holds. A worker may take the intersection of two sets, for any number of trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import floor, log
from typing import Any, Literal

from hopyard.hopper.bits import Queue, QueueKey, bits, lowest
from hopyard.hopper.entries import Site, TrialEntry, TrialStatus, burden
from hopyard.hopper.orders import VisitOrder
from hopyard.hopper.units import Layout, Position, Start, Unit

__all__ = ["Layout", "Position", "Scheduler", "Start", "TrialStatus", "Unit"]


_SOME = 16  # idle sites compared before one is chosen
_FINENESS = 1 / log(1.02)  # remaining times within 2% are alike, so that a hop can be saved


class Scheduler:
    """Dense scheduling of fixed or free visit orders.

    Args:
        layout: partitions of an epoch's two phases.
        train_order, validate_order: visit orders by group and epoch.
        homes: for each partition the workers that can read it; None: all of them.
        order: priority of trials, ``"longest"`` or ``"greedy"``.
        free: a trial may visit the partitions of an epoch in training in any order that suits the
            workers. Results then depend on timing. (Validation keeps its order.)
        hop_seconds: cost of a trial going on where its state is not; a worker prefers a trial
            whose state it holds to one that has up to so much more left to do.
        most: trials that make a visit together.
    """

    def __init__(
        self,
        layout: Layout,
        train_order: VisitOrder,
        validate_order: VisitOrder,
        homes: Mapping[int, frozenset[int]] | None = None,
        *,
        order: Literal["longest", "greedy"] = "longest",
        free: bool = False,
        hop_seconds: float = 0.0,
        most: int = 1,
    ) -> None:
        self.layout = layout
        self.train_order: VisitOrder = train_order
        self.validate_order: VisitOrder = validate_order
        self._longest, self._free, self._hop_seconds = order == "longest", free, hop_seconds
        self._entries: dict[int, TrialEntry] = {}
        self._slots: list[TrialEntry | None] = []
        self._vacant: list[int] = []
        self._busy: dict[int, list[int]] = {}
        self._released: dict[
            int, list[TrialEntry]
        ] = {}  # of units under way, those whose visit is noted already
        self._most = most
        self._alike: dict[tuple[Any, ...], int] = {}  # ready trials that may make a visit together
        self._idle: set[int] = set()
        self._ready = Queue()
        self._pinned = 0  # trials whose state only their holder has
        self._held: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._seconds, self._measured = 0.0, 0
        self.paused: bool = False
        self._all = (1 << layout.train) - 1
        self._lay_out_sites(homes)

    def _lay_out_sites(self, homes: Mapping[int, frozenset[int]] | None) -> None:
        self._sites: list[Site] = []
        self._site_of: list[int] = []
        self._sites_of: dict[int, tuple[int, ...]] = {}
        self._open = 0  # sites that have an idle worker
        known: dict[frozenset[int] | None, int] = {}
        for partition in range(max(self.layout.train, self.layout.validate)):
            workers = None if homes is None else frozenset(homes[partition])
            number = known.setdefault(workers, len(known))
            if number == len(self._sites):
                self._sites.append(Site(workers=max(1, len(workers or ()))))
                for worker in workers or ():
                    self._sites_of[worker] = (*self._sites_of.get(worker, ()), number)
            self._sites[number].partitions |= 1 << partition
            self._site_of.append(number)
        self._everywhere = (0,) if homes is None else ()
        self._train_sites = sum({1 << site for site in self._site_of[: self.layout.train]})

    # Events ---------------------------------------------------------------------------------

    def worker_up(self, worker: int) -> list[Start]:
        """``worker`` can take a unit."""
        return [] if worker in self._busy or worker in self._idle else self._employ(worker)

    def worker_down(self, worker: int) -> list[int]:
        """``worker`` is gone. Returns the trials whose state existed only there; the caller says with
        ``returned`` from which visit these, and the one that was running there, go on."""
        self._set_busy(worker)
        self._released.pop(worker, None)
        for running in self._busy.pop(worker, ()):
            self._entries[running].status, self._entries[running].worker = TrialStatus.LOST, None
        lost = [self._slot(bit) for bit in bits(self._held.get(worker, 0) & self._pinned)]
        for entry in lost:
            self._unqueue(entry)
            entry.status = TrialStatus.LOST
        for bit in bits(self._held.pop(worker, 0)):
            self._slot(bit).holder = None
            self._pinned &= ~bit
        self._taken.pop(worker, None)
        return [entry.number for entry in lost]

    def add(
        self,
        trial: int,
        group: int,
        position: Position,
        target: int,
        urgency: float = 0,
        expected: float | None = None,
        kind: str | None = None,
    ) -> list[Start]:
        """A trial begins, or goes on, at ``position`` and may train up to ``target`` visits in all. ``expected``:
        what all of these take, in seconds, if that is known. ``kind``: see ``set_kind``."""
        assert trial not in self._entries, f"trial {trial} was added before"
        slot = self._vacant.pop() if self._vacant else len(self._slots)
        entry = TrialEntry(trial, 1 << slot, group, target, urgency, expected=expected, kind=kind)
        self._slots[slot : slot + 1] = [entry]
        self._entries[trial] = entry
        self._place(entry, position)
        return self._settle(entry)

    def set_kind(self, trial: int, kind: str | None) -> None:
        """Trials of one kind may make visits together from the next one on; None: this one makes its visits alone."""
        entry = self._entries[trial]
        is_ready = entry.status is TrialStatus.READY
        if is_ready:
            self._unqueue(entry)
        entry.kind = kind
        if is_ready:
            self._queue(entry)

    def extend(self, trial: int, target: int, urgency: float = 0) -> list[Start]:
        """The trial may train up to ``target`` visits in all."""
        entry = self._entries[trial]
        entry.target, entry.urgency, entry.expected = target, urgency, None
        if entry.status not in (TrialStatus.READY, TrialStatus.PARKED):
            return []
        self._unqueue(entry)
        return self._settle(entry)

    def end(self, trial: int) -> list[Start]:
        """Nothing more is wanted of the trial. Its worker, if any, is free for others."""
        entry = self._entries.pop(trial)
        worker = entry.worker
        self._unqueue(entry)
        self._aim(entry, 0)
        self._hold(entry, None)
        slot = entry.bit.bit_length() - 1
        self._slots[slot] = None
        self._vacant.append(slot)
        for released in self._released.values():
            released[:] = [each for each in released if each is not entry]
        return [] if worker is None else self._release(worker, trial)

    def done(self, trial: int, seconds: float | None = None, resident: bool = False) -> list[Start]:
        """The running unit of ``trial`` is committed; it took ``seconds``. ``resident``: its state is nowhere
        but in the memory of the worker that ran it, so that the next unit must run there. The worker takes another unit
        once this is said, or ``end`` or ``returned``, of all trials that made the visit together."""
        entry = self._entries[trial]
        worker, unit = entry.worker, entry.unit
        assert worker is not None, f"trial {trial} is not running"
        assert unit is not None
        entry.worker = entry.unit = None
        entry.status = TrialStatus.PARKED
        if seconds is not None:
            self._measure(entry, seconds)
        self._advance(entry, unit)
        self._hold(entry, worker, resident)
        self._queue(entry)
        return self._release(worker, trial, entry)

    def returned(
        self, trial: int, position: Position, idle: bool = True, anywhere: bool = False
    ) -> list[Start]:
        """The trial goes on from ``position`` (its last durable state), wherever it can. ``idle``:
        the worker that ran it, if any, can take another unit. ``anywhere``: any worker may do its next unit,
        wherever the partition lives."""
        entry = self._entries[trial]
        entry.anywhere = anywhere
        worker = entry.worker
        self._unqueue(entry)
        entry.worker = entry.unit = None
        self._hold(entry, None)
        self._place(entry, position)
        if worker is None or not idle:
            if worker is not None:
                self._forget(worker, trial)
            return self._settle(entry)
        self._queue(entry)
        return self._release(worker, trial, entry)

    def _release(self, worker: int, trial: int, entry: TrialEntry | None = None) -> list[Start]:
        """The worker no longer runs ``trial``, which is ready or parked, or gone. It takes another unit if it runs none
        of the others that made the visit."""
        released = self._released.setdefault(worker, [])
        if entry is not None:
            released.append(entry)
        if not self._forget(worker, trial):
            return []
        return self._employ(worker, self._released.pop(worker))

    def _forget(self, worker: int, trial: int) -> bool:
        """Note that the worker no longer runs ``trial``; whether it runs nothing any more."""
        running = self._busy[worker]
        running.remove(trial)
        if not running:
            del self._busy[worker]
        return not running

    def pause(self) -> None:
        """Start nothing until ``resume``."""
        self.paused = True

    def resume(self) -> list[Start]:
        self.paused = False
        return [start for worker in sorted(self._idle) for start in self._pick(worker)]

    # Questions ------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of units under way."""
        return len(self._busy)

    def has(self, trial: int) -> bool:
        """Whether the trial was added and has not ended."""
        return trial in self._entries

    def is_under_way(self, trial: int) -> bool:
        """Whether a unit of the trial is running."""
        return trial in self._entries and self._entries[trial].status is TrialStatus.RUNNING

    def unit_of(self, trial: int) -> Unit:
        """The unit that the trial is doing or, as far as is known, will do next."""
        entry = self._entries[trial]
        return entry.unit or self._unit(entry, None)

    def validate(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        running = {n: p for n, p in self._entries.items() if p.status is TrialStatus.RUNNING}
        busy = [(worker, number) for worker, numbers in self._busy.items() for number in numbers]
        assert sorted((p.worker, n) for n, p in running.items() if p.worker is not None) == sorted(busy), (
            "a worker and its trials disagree"
        )
        assert all(self._busy.values()), "a worker runs nothing"
        assert not self._idle & self._busy.keys(), "a worker is idle and busy at once"
        ready = {p.bit for p in self._entries.values() if p.status is TrialStatus.READY}
        assert sum(ready) == self._ready.members, "a trial's status and the queue disagree"
        self._ready.validate()
        alike = [p.visit for p in self._entries.values() if p.visit is not None]
        assert sum(self._alike.values()) == sum(p.bit for p in self._entries.values() if p.visit is not None)
        assert set(alike) == self._alike.keys(), "trials that may make a visit together disagree"
        for number, trial in self._entries.items():
            due = self._is_due(trial)
            assert trial.status is not TrialStatus.READY or due, f"trial {number} is ready with nothing to do"
            assert trial.status is not TrialStatus.PARKED or not due, (
                f"trial {number} is parked with work to do"
            )
            assert trial.holder is None or self._held[trial.holder] & trial.bit, (
                f"nobody holds trial {number}"
            )
        for worker in self._idle:
            waiting = [self._slot(bit).number for bit in bits(self._candidates(worker))]
            assert self.paused or not waiting, f"trials {waiting} wait beside the idle worker {worker}"
        for number, site in enumerate(self._sites):
            bound = sum(p.bit for p in self._entries.values() if p.sites >> number & 1)
            assert bound == site.bound, f"the trials bound for site {number} disagree"
            assert bool(site.idle) == bool(self._open >> number & 1), f"site {number} is open or not"

    # What a trial does next ------------------------------------------------------------------

    def _is_validation_next(self, entry: TrialEntry) -> bool:
        if not self.layout.validate or not entry.trained or entry.validated == entry.trained:
            return False
        at_a_stop = entry.trained % self.layout.train == 0 or entry.trained == entry.target
        return at_a_stop or entry.step > 0

    def _is_due(self, entry: TrialEntry) -> bool:
        return entry.trained < entry.target or self._is_validation_next(entry)

    def _place(self, entry: TrialEntry, position: Position) -> None:
        entry.visits, entry.trained = position.visits, position.trained
        entry.step, entry.validated = position.step, position.validated
        if self._free:
            left = self._all & ~sum(1 << partition for partition in position.seen)
            entry.todo = left or self._all  # all were seen: what follows the validation is the next epoch
            entry.reach = sum({1 << self._site_of[bit.bit_length() - 1] for bit in bits(entry.todo)})

    def _advance(self, entry: TrialEntry, unit: Unit) -> None:
        entry.visits += 1
        if unit.phase == "train":
            entry.trained += 1
            entry.todo &= ~(1 << unit.partition)
            site = self._site_of[unit.partition]
            if not entry.todo & self._sites[site].partitions:
                entry.reach &= ~(1 << site)
            if not entry.todo:
                entry.todo, entry.reach = self._all, self._train_sites
            return
        entry.step += 1
        if entry.step == self.layout.validate:
            entry.step, entry.validated = 0, entry.trained

    def _unit(self, entry: TrialEntry, worker: int | None) -> Unit:
        if self._is_validation_next(entry):
            epoch, last = (entry.trained - 1) // self.layout.train, entry.step + 1 == self.layout.validate
            partition = self.validate_order(entry.group, epoch)[entry.step]
            return Unit(entry.number, epoch, "validate", partition, entry.visits, entry.trained, last)
        epoch, step = divmod(entry.trained, self.layout.train)
        here = self._partitions_here(entry, worker) if self._free else 0
        if here and here & (here - 1) == 0:
            partition = here.bit_length() - 1
        else:
            order = self.train_order(entry.group, epoch)
            ahead = (*order[step:], *order[:step]) if here else (order[step],)
            partition = next(j for j in ahead if not here or here >> j & 1)
        last = step + 1 == self.layout.train or entry.trained + 1 == entry.target
        return Unit(entry.number, epoch, "train", partition, entry.visits, entry.trained, last)

    def _partitions_here(self, entry: TrialEntry, worker: int | None) -> int:
        """The partitions, as bits, that the trial may visit next, on the worker: those at the site that has
        most to do for each of its workers."""
        near = () if worker is None else self._sites_of.get(worker, ())
        sites = [site for number in near if (site := self._sites[number]).partitions & entry.todo]
        if not sites:
            return entry.todo
        if len(sites) == 1:
            return entry.todo & sites[0].partitions
        return entry.todo & max(sites, key=burden).partitions

    def _look_ahead(self, entry: TrialEntry) -> int:
        """Sites where the next unit may be, as bits."""
        everywhere = (1 << len(self._sites)) - 1
        if self._free and not self._is_validation_next(entry):
            entry.unit = None
            return everywhere if entry.anywhere else entry.reach
        entry.unit = self._unit(entry, None)
        return everywhere if entry.anywhere else 1 << self._site_of[entry.unit.partition]

    # Sets of trials --------------------------------------------------------------------------

    def _slot(self, bit: int) -> TrialEntry:
        entry = self._slots[bit.bit_length() - 1]
        assert entry is not None
        return entry

    def _aim(self, entry: TrialEntry, sites: int) -> None:
        for site in bits(entry.sites ^ sites):
            self._sites[site.bit_length() - 1].bound ^= entry.bit
        entry.sites = sites

    def _hold(self, entry: TrialEntry, worker: int | None, only: bool = False) -> None:
        """The trial's state is on the worker, and perhaps nowhere else."""
        if entry.holder is not None and entry.holder != worker:
            self._held[entry.holder] ^= entry.bit
        if worker is not None:
            self._held[worker] = self._held.get(worker, 0) | entry.bit
        entry.holder = worker
        self._pinned = self._pinned | entry.bit if only else self._pinned & ~entry.bit

    def _measure(self, entry: TrialEntry, seconds: float) -> None:
        entry.seconds, entry.measured = entry.seconds + seconds, entry.measured + 1
        self._seconds, self._measured = self._seconds + seconds, self._measured + 1

    def _left(self, entry: TrialEntry) -> int:
        """Units left to the target, with one validation."""
        return entry.target - entry.trained + self.layout.validate - entry.step

    def _seconds_left(self, entry: TrialEntry) -> float:
        if entry.expected is not None:
            return entry.expected - entry.seconds
        if entry.measured:
            return self._left(entry) * entry.seconds / entry.measured
        return self._left(entry) * (self._seconds / self._measured if self._measured else 0.0)

    def _key(self, entry: TrialEntry) -> QueueKey:
        if not self._longest:
            return (entry.urgency, 1, entry.visits)
        if not entry.measured and entry.expected is None:
            return (entry.urgency, 0, -self._left(entry))
        return (entry.urgency, 1, -floor(log(max(self._seconds_left(entry), 1e-9)) * _FINENESS))

    def _queue(self, entry: TrialEntry) -> None:
        """Make the trial ready if it has something to do."""
        entry.status = TrialStatus.READY if self._is_due(entry) else TrialStatus.PARKED
        if entry.status is TrialStatus.PARKED:
            self._aim(entry, 0)
            entry.unit = None
            return
        self._aim(entry, self._look_ahead(entry))
        self._ready.add(entry.bit, self._key(entry))
        if entry.kind is not None and self._most > 1 and not entry.anywhere:
            place = (
                entry.group,
                entry.target,
                entry.visits,
                entry.trained,
                entry.step,
                entry.validated,
                entry.todo,
            )
            entry.visit = (entry.kind, *place)
            self._alike[entry.visit] = self._alike.get(entry.visit, 0) | entry.bit

    def _unqueue(self, entry: TrialEntry) -> None:
        """The trial is not ready any more."""
        self._ready.discard(entry.bit)
        if entry.visit is not None:
            self._alike[entry.visit] ^= entry.bit
            if not self._alike[entry.visit]:
                del self._alike[entry.visit]
            entry.visit = None

    # Who takes what -------------------------------------------------------------------------

    def _candidates(self, worker: int) -> int:
        """The trials that the worker may take now."""
        bound = 0
        for site in self._sites_of.get(worker, self._everywhere):
            bound |= self._sites[site].bound
        found = self._ready.members & bound
        if self._pinned:
            found = found & ~self._pinned | self._ready.members & self._pinned & self._held.get(worker, 0)
        return found

    def _choose(self, worker: int, candidates: int) -> TrialEntry:
        first = self._ready.first(candidates)
        held = self._held.get(worker, 0)
        if first & held:
            return self._slot(lowest(first & held))
        if self._hop_seconds and candidates & held:
            best, near = self._slot(lowest(first)), self._slot(lowest(self._ready.first(candidates & held)))
            loss = self._seconds_left(best) - self._seconds_left(near)
            if near.urgency == best.urgency and loss <= self._hop_seconds:
                return near
        after = first & -(self._taken.get(worker, 0) << 1)
        return self._slot(lowest(after or first))

    def _pick(self, worker: int) -> list[Start]:
        """The worker takes what it can, or is idle."""
        candidates = 0 if self.paused else self._candidates(worker)
        if not candidates:
            self._set_idle(worker)
            return []
        return [self._start(worker, self._choose(worker, candidates))]

    def _employ(self, worker: int, entries: Sequence[TrialEntry] = ()) -> list[Start]:
        """The worker takes a unit. ``entries`` have just become ready; if the worker can do something
        else, others that have nothing to do may have them."""
        starts = []
        own = sum(entry.bit for entry in entries)
        if own and self._open and self._candidates(worker) & ~own:
            starts = self._offer(*entries)
        starts += self._pick(worker)
        return starts + self._offer(*entries)

    def _settle(self, entry: TrialEntry) -> list[Start]:
        """The trial is ready or parked, and in the first case an idle worker takes it."""
        self._queue(entry)
        return self._offer(entry)

    def _offer(self, *entries: TrialEntry) -> list[Start]:
        starts = []
        for entry in entries:
            worker = None if self.paused or entry.status is not TrialStatus.READY else self._idle_for(entry)
            if worker is not None:
                starts.append(self._start(worker, entry))
        return starts

    def _idle_for(self, entry: TrialEntry) -> int | None:
        """An idle worker that may take the trial: the one that holds its state, or one with much to do."""
        if self._pinned & entry.bit:
            return entry.holder if entry.holder in self._idle else None
        if entry.holder in self._idle:
            near = self._sites_of.get(entry.holder, self._everywhere)
            if any(entry.sites >> site & 1 for site in near):
                return entry.holder
        some = islice(bits(entry.sites & self._open), _SOME)
        sites = [self._sites[site.bit_length() - 1] for site in some]
        return lowest(max(sites, key=burden).idle).bit_length() - 1 if sites else None

    def _start(self, worker: int, entry: TrialEntry) -> Start:
        self._set_busy(worker)
        entries = [entry, *self._companions(worker, entry)]
        units = []
        for each in entries:
            self._unqueue(each)
            each.status, each.worker, each.anywhere = TrialStatus.RUNNING, worker, False
            each.unit = each.unit or self._unit(each, worker)
            units.append(each.unit)
        self._busy[worker] = [each.number for each in entries]
        self._taken[worker] = entry.bit
        return Start(worker, tuple(units))

    def _companions(self, worker: int, entry: TrialEntry) -> list[TrialEntry]:
        """Trials that make the next visit of ``entry`` with it."""
        if entry.visit is None:
            return []
        alike = self._alike[entry.visit]
        found = alike & self._candidates(worker) & ~entry.bit
        most = self._most
        if found and self._idle and not self._ready.members & ~alike:  # which others would do nothing beside
            most = min(most, -(-(found.bit_count() + 1) // (len(self._idle) + 1)))
        return [self._slot(bit) for bit in islice(bits(found), most - 1)]

    def _set_idle(self, worker: int) -> None:
        self._idle.add(worker)
        for site in self._sites_of.get(worker, self._everywhere):
            self._sites[site].idle |= 1 << worker
            self._open |= 1 << site

    def _set_busy(self, worker: int) -> None:
        if worker not in self._idle:
            return
        self._idle.discard(worker)
        for site in self._sites_of.get(worker, self._everywhere):
            self._sites[site].idle ^= 1 << worker
            if not self._sites[site].idle:
                self._open ^= 1 << site
