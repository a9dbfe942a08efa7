"""History in a journal: the committed units, and the rules of a schedule that they break."""

from __future__ import annotations

import copy
import itertools
import math
from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from hopyard.errors import CorruptError, StorageError
from hopyard.hopper.scheduler import Layout
from hopyard.hopper.state import JournalRecord, Pause, RunState, paused_between


@dataclass(frozen=True)
class Traffic:
    """Traffic of the committed units of a run: hops, and bytes carried from place to place.

    Attributes:
        hops: number of times that a trial's next unit was on another worker.
        moved: bytes of states that workers read from the store, since they did not have them in memory.
        written: bytes of states and metrics that workers wrote to it.
        read: bytes of the batches that workers read from their partitions. These are not moved: what is far away comes
            to a machine once, into its node cache.
        beside: bytes among them that the reader's host should have on its own disks, by what the store said of the
            blocks' places when the run began or went on; None: no unit knew.
        away: bytes among them that it should not have; None: no unit knew.
    """

    hops: int
    moved: int
    written: int
    read: int
    beside: int | None = None
    away: int | None = None


def traffic_of(units: Iterable[JournalRecord]) -> Traffic:
    """The sums over committed units."""
    return _summed(units).traffic()


@dataclass(frozen=True)
class Totals:
    """Totals of the committed units of a run.

    Attributes:
        units: number of them, each trial's by itself; workers: of those that did them.
        seconds: from the start of the first to the end of the last; 0 without any.
        paused: seconds among them in which a user had paused the run and no unit was under way.
        busy: share of the workers' time in these seconds, but those paused, in which they were in a unit, 0 to 1; the
            rest is idle. None without any unit.
        traffic: hops, and bytes carried.
        packs: how often so many trials have made a visit together.
        alone: by reasons, trials that train with no other.
    """

    units: int
    workers: int
    seconds: float
    paused: float
    busy: float | None
    traffic: Traffic
    packs: dict[int, int]
    alone: dict[str, list[int]]


class Summing:
    """Sums over the committed units of a run, added one by one in their order."""

    def __init__(self) -> None:
        self._places: MutableMapping[int, int] = {}
        self._moved = self._written = self._read = 0
        self._beside: int | None = None
        self._away = 0
        self._hops = 0
        self._workers: set[int] = set()
        self._begin, self._end, self._worked = math.inf, -math.inf, 0.0
        self._packs = Counter[int]()
        self._alone: dict[str, set[int]] = {}

    def followed_by(self, units: Iterable[JournalRecord]) -> Summing:
        """Sums over these units and others after them; these sums stay as they are."""
        sums = copy.copy(self)
        sums._places, sums._packs = ChainMap({}, self._places), self._packs.copy()
        sums._workers = self._workers.copy()
        sums._alone = {why: numbers.copy() for why, numbers in self._alone.items()}
        for unit in units:
            sums.add(unit)
        return sums

    def add(self, unit: JournalRecord) -> None:
        """Add a unit, as the journal records it."""
        begin, end, worker, trials = unit["a"], unit["z"], unit["w"], unit["t"]
        self._moved += unit["moved"]
        self._written += unit["written"]
        self._read += unit["read"]
        for trial in trials:
            if self._places.get(trial, worker) != worker:
                self._hops += 1
            self._places[trial] = worker
        if unit.get("beside") is not None:
            self._beside = (self._beside or 0) + unit["beside"]
            self._away += unit["read"] - unit["beside"]
        self._workers.add(worker)
        if begin < self._begin:
            self._begin = begin
        if end > self._end:
            self._end = end
        self._worked += end - begin
        self._packs[len(trials)] += 1
        if "alone" in unit:
            for number, why in unit["alone"].items():
                self._alone.setdefault(why, set()).add(int(number))

    def traffic(self) -> Traffic:
        """The traffic of the units so far."""
        away = None if self._beside is None else self._away
        return Traffic(self._hops, self._moved, self._written, self._read, self._beside, away)

    def totals(self, pauses: Sequence[Pause] = ()) -> Totals:
        """The totals of the units so far, in a run with such pauses."""
        if not self._packs:
            return Totals(0, 0, 0.0, 0.0, None, self.traffic(), {}, {})
        seconds, workers = self._end - self._begin, len(self._workers)
        paused = paused_between(pauses, self._begin, self._end)
        busy = self._worked / (workers * (seconds - paused)) if seconds > paused else None
        alone = sorted((min(numbers), why, sorted(numbers)) for why, numbers in self._alone.items())
        visits = sum(count * times for count, times in self._packs.items())
        packs = dict(sorted(self._packs.items()))
        return Totals(
            visits,
            workers,
            seconds,
            paused,
            busy,
            self.traffic(),
            packs,
            {why: numbers for _, why, numbers in alone},
        )


def totals_of(units: Iterable[JournalRecord], pauses: Sequence[Pause] = ()) -> Totals:
    """The totals of committed units, in a run with such pauses."""
    return _summed(units).totals(pauses)


def _summed(units: Iterable[JournalRecord]) -> Summing:
    sums = Summing()
    for unit in units:
        sums.add(unit)
    return sums


def read_state(records: Iterable[JournalRecord], where: str = "this run") -> RunState:
    """The state that the records lead to, going back to durable progress.

    Args:
        where: the run and its place, for messages.

    Raises:
        CorruptError: a record is not as Hopyard writes them, or does not follow from those before it.
        FormatError: a later version has written it.
    """
    state = RunState()
    for number, record in enumerate(records, 1):
        apply_record(state, record, number, where)
    state.roll_back()
    return state


def apply_record(state: RunState, record: JournalRecord, number: int, where: str) -> None:
    """Apply a record of the journal: see ``read_state``, which it raises the errors of.

    Args:
        number: of the record in the journal, from 1.
    """
    try:
        state.apply(record)
    except Exception as error:
        raise unfitting(error, number, where) from error


def unfitting(error: Exception, number: int, where: str) -> StorageError:
    """The error to raise where applying a record has raised ``error``: that one, if it is about the store; else one
    that names the record, which is not as Hopyard writes records.

    Args:
        number: of the record in the journal, from 1.
        where: the run and its place.
    """
    if isinstance(error, StorageError):
        return error
    return CorruptError(
        f"record {number} of the journal of {where} does not follow from those before it ({error!r}). Restore the "
        "journal from a copy, or begin the run anew with fresh=True."
    )


class UnitFollower:
    """Unit records that count, found while the records of a run come: those undone by a lost worker or driver are
    left out."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[JournalRecord, dict[int, bool | None]]] = {}
        """Units that come next, by the number of the record: of each trial whether it counts; None: not known yet."""
        self._pending = defaultdict[int, list[int]](list)
        """Numbers of the records of each trial's units of which that is not known."""
        self._count = 0

    def add(self, state: RunState, record: JournalRecord) -> Sequence[JournalRecord]:
        """Units that are known to count by now, in order; ``state`` is that after ``record``."""
        kind = record["r"]
        if not self._open:
            if kind != "unit":
                return ()
            if _is_durable(state, record):
                return (record,)
        self._count += 1
        if kind == "unit":
            self._open[self._count] = (record, dict.fromkeys(record["t"]))
            for number in record["t"]:
                self._pending[number].append(self._count)
                self._settle(number, state.trials[number].durable.visits)
        elif kind in ("back", "again", "session"):
            for number in list(self._pending) if kind == "session" else record["t"]:
                self._settle(number, state.trials[number].durable.visits, undone=True)
        found = list[JournalRecord]()
        while self._open:
            first = next(iter(self._open))
            unit, counts = self._open[first]
            if None in counts.values():
                break
            del self._open[first]
            found += _of(unit, counts)
        return found

    def rest(self) -> Iterator[JournalRecord]:
        """Units that count, of those that ``add`` has not given yet: units before them may still be undone."""
        for unit, counts in self._open.values():
            yield from _of(unit, counts)

    def _settle(self, number: int, visits: int, undone: bool = False) -> None:
        """A trial's units before so many visits count; those after them are undone, or may be."""
        left = []
        for index in self._pending.pop(number, ()):
            unit, counts = self._open[index]
            if unit["v"] < visits:
                counts[number] = True
            elif undone:
                counts[number] = False
            else:
                left.append(index)
        if left:
            self._pending[number] = left


def _is_durable(state: RunState, unit: JournalRecord) -> bool:
    return all(state.trials[number].durable.visits > unit["v"] for number in unit["t"])


def _of(unit: JournalRecord, counts: Mapping[int, bool | None]) -> Iterator[JournalRecord]:
    """The record of a unit as if only the trials for which it counts had done it; nothing if it counts for none."""
    slots = [slot for slot, number in enumerate(unit["t"]) if counts[number]]
    if len(slots) == len(unit["t"]):
        yield unit
    elif slots:
        yield unit | {name: [unit[name][slot] for slot in slots] for name in ("t", "s", "m")}


def committed_units(records: Iterable[JournalRecord]) -> list[JournalRecord]:
    """The unit records that count: those undone by a lost worker or driver are left out."""
    state, follower, units = RunState(), UnitFollower(), list[JournalRecord]()
    for record in records:
        state.apply(record)
        units += follower.add(state, record)
    return [*units, *follower.rest()]


def broken_rules(records: Iterable[JournalRecord]) -> list[str]:
    """The rules of model hopping that the committed units break, in words; empty if none.

    * A trial visits each partition exactly once in each phase of an epoch that it has completed, and
      at most once in the others.
    * A trial is never in two units at a time, and neither is a worker.
    """
    records = list(records)
    return rules_broken_by(committed_units(records), Layout(**records[0]["layout"]))


def rules_broken_by(units: Iterable[JournalRecord], layout: Layout) -> list[str]:
    """The rules of model hopping that these committed units break, in words; empty if none."""
    by_trial, by_worker = (
        defaultdict[int, list[JournalRecord]](list),
        defaultdict[int, list[JournalRecord]](list),
    )
    for unit in units:
        by_worker[unit["w"]].append(unit)
        for number in unit["t"]:
            by_trial[number].append(unit)
    broken = [line for number, done in by_trial.items() for line in _wrong_visits(number, done, layout)]
    broken += [line for number, done in by_trial.items() for line in _overlaps(f"trial {number}", done)]
    broken += [line for number, done in by_worker.items() for line in _overlaps(f"worker {number}", done)]
    return broken


def _wrong_visits(number: int, units: list[JournalRecord], layout: Layout) -> list[str]:
    visits = [(unit["n"], unit["e"], unit["ph"], unit["p"]) for unit in units]
    training = Counter((epoch, partition) for _, epoch, phase, partition in visits if phase == "train")
    validation = Counter((trained, partition) for trained, _, phase, partition in visits if phase != "train")
    wrong = [
        f"trial {number} trained on partition {partition} {times} times in epoch {epoch + 1}"
        for (epoch, partition), times in training.items()
        if times > 1
    ]
    wrong += [
        f"trial {number} was validated on partition {partition} {times} times after {trained} visits"
        for (trained, partition), times in validation.items()
        if times > 1
    ]
    began, ended = visits[0][0], visits[-1][0]
    for epoch in range(began // layout.train, ended // layout.train):
        expected = layout.train - (began % layout.train if epoch == began // layout.train else 0)
        done = sum(1 for trained_in, _ in training if trained_in == epoch)
        if done != expected:
            wrong.append(f"trial {number} made {done} of {expected} visits in epoch {epoch + 1}")
        checked = sum(1 for trained, _ in validation if trained == (epoch + 1) * layout.train)
        if checked != layout.validate and (epoch + 1) * layout.train < ended:
            wrong.append(
                f"trial {number} made {checked} of {layout.validate} validations in epoch {epoch + 1}"
            )
    return wrong


def _overlaps(who: str, units: list[JournalRecord]) -> list[str]:
    ordered = sorted(units, key=lambda unit: (unit["a"], unit["z"]))
    return [
        f"{who} was in two units at {after['a']:.6f} s"
        for before, after in itertools.pairwise(ordered)
        if after["a"] < before["z"]
    ]
