"""History in a journal: the committed units, and the rules of a schedule that they break."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from hopyard.hopper.scheduler import Layout
from hopyard.hopper.state import JournalRecord, RunState


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
    places: dict[int, int] = {}
    hops, sums, known = 0, Counter[str](), False
    for unit in units:
        sums.update({name: unit[name] for name in ("moved", "written", "read")})
        for trial in unit["t"]:
            hops += places.get(trial, unit["w"]) != unit["w"]
            places[trial] = unit["w"]
        if unit.get("beside") is not None:
            known = True
            sums.update(beside=unit["beside"], away=unit["read"] - unit["beside"])
    places_known = (sums["beside"], sums["away"]) if known else (None, None)
    return Traffic(hops, sums["moved"], sums["written"], sums["read"], *places_known)


@dataclass(frozen=True)
class Totals:
    """Totals of the committed units of a run.

    Attributes:
        units: number of them, each trial's by itself; workers: of those that did them.
        seconds: from the start of the first to the end of the last; 0 without any.
        busy: share of these seconds in which workers were in a unit, 0 to 1; None without any unit.
        traffic: hops, and bytes carried.
        packs: how often so many trials have made a visit together.
        alone: by reasons, trials that train with no other.
    """

    units: int
    workers: int
    seconds: float
    busy: float | None
    traffic: Traffic
    packs: dict[int, int]
    alone: dict[str, list[int]]


def totals_of(units: Sequence[JournalRecord]) -> Totals:
    """The totals of committed units."""
    traffic = traffic_of(units)
    if not units:
        return Totals(0, 0, 0.0, None, traffic, {}, {})
    workers = len({unit["w"] for unit in units})
    seconds = max(unit["z"] for unit in units) - min(unit["a"] for unit in units)
    worked = sum(unit["z"] - unit["a"] for unit in units)
    busy = worked / (workers * seconds) if seconds else None
    packs = Counter(len(unit["t"]) for unit in units)
    alone: dict[str, list[int]] = {}
    for number, why in sorted((int(n), why) for unit in units for n, why in unit.get("alone", {}).items()):
        if number not in alone.setdefault(why, []):
            alone[why].append(number)
    visits = sum(count * times for count, times in packs.items())
    return Totals(visits, workers, seconds, busy, traffic, dict(sorted(packs.items())), alone)


def read_state(records: Iterable[JournalRecord]) -> RunState:
    """The state that the records lead to, going back to durable progress."""
    state = RunState()
    for record in records:
        state.apply(record)
    state.roll_back()
    return state


def committed_units(records: Iterable[JournalRecord]) -> list[JournalRecord]:
    """The unit records that count: those undone by a lost worker or driver are left out."""
    state, units = RunState(), defaultdict[int, list[tuple[int, JournalRecord]]](list)
    for index, record in enumerate(records):
        state.apply(record)
        if record["r"] == "unit":
            for number in record["t"]:
                units[number].append((index, record))
        elif record["r"] in ("back", "again", "session"):
            for number in list(units) if record["r"] == "session" else record["t"]:
                _undo(units[number], state.trials[number].durable.visits)
    for number, trial in state.trials.items():
        _undo(units[number], trial.durable.visits)
    kept: dict[int, JournalRecord] = {}
    trials = defaultdict[int, set[int]](set)
    for number, done in units.items():
        for index, record in done:
            kept[index] = record
            trials[index].add(number)
    return [_of(kept[index], trials[index]) for index in sorted(kept)]


def _of(record: JournalRecord, trials: Container[int]) -> JournalRecord:
    """The record of a unit, as if only these trials of it had done it."""
    slots = [slot for slot, number in enumerate(record["t"]) if number in trials]
    if len(slots) == len(record["t"]):
        return record
    return record | {name: [record[name][slot] for slot in slots] for name in ("t", "s", "m")}


def _undo(units: list[tuple[int, JournalRecord]], visits: int) -> None:
    while units and units[-1][1]["v"] >= visits:
        units.pop()


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
