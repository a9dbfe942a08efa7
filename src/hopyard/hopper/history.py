"""What a journal says was done: the committed units, and whether they keep the rules of a schedule."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

from hopyard.hopper.scheduler import Layout
from hopyard.hopper.state import Record, RunState


def read_state(records: Iterable[Record]) -> RunState:
    """The state that the records lead to, going back to what is durable."""
    state = RunState()
    for record in records:
        state.apply(record)
    state.roll_back()
    return state


def committed_units(records: Iterable[Record]) -> list[Record]:
    """The unit records that count: those undone by a lost worker or driver are left out."""
    state, units = RunState(), defaultdict[int, list[tuple[int, Record]]](list)
    for index, record in enumerate(records):
        state.apply(record)
        if record["r"] == "unit":
            for number in record["t"]:
                units[number].append((index, record))
        elif record["r"] in ("back", "session"):
            for number in record["t"] if record["r"] == "back" else list(units):
                _undo(units[number], state.trials[number].durable.visits)
    for number, trial in state.trials.items():
        _undo(units[number], trial.durable.visits)
    kept = {index: record for done in units.values() for index, record in done}
    return [kept[index] for index in sorted(kept)]


def _undo(units: list[tuple[int, Record]], visits: int) -> None:
    while units and units[-1][1]["v"] >= visits:
        units.pop()


def broken_rules(records: Iterable[Record]) -> list[str]:
    """The rules of model hopping that the committed units break, in words; empty if none.

    * A trial visits each partition exactly once in each phase of an epoch that it has completed, and
      at most once in the others.
    * A trial is never in two units at a time, and neither is a worker.
    """
    records = list(records)
    layout = read_state(records).layout
    units = committed_units(records)
    by_trial, by_worker = defaultdict[int, list[Record]](list), defaultdict[int, list[Record]](list)
    for unit in units:
        by_worker[unit["w"]].append(unit)
        for number in unit["t"]:
            by_trial[number].append(unit)
    broken = [line for number, done in by_trial.items() for line in _wrong_visits(number, done, layout)]
    broken += [line for number, done in by_trial.items() for line in _overlaps(f"trial {number}", done)]
    broken += [line for number, done in by_worker.items() for line in _overlaps(f"worker {number}", done)]
    return broken


def _wrong_visits(number: int, units: list[Record], layout: Layout) -> list[str]:
    counts = Counter((unit["e"], unit["ph"], unit["p"]) for unit in units)
    wrong = [f"trial {number} visited {key} {times} times" for key, times in counts.items() if times > 1]
    last = max(unit["e"] for unit in units)
    for epoch in range(last):
        done = sum(1 for key in counts if key[0] == epoch)
        if done != layout.units:
            wrong.append(f"trial {number} made {done} of {layout.units} visits in epoch {epoch + 1}")
    return wrong


def _overlaps(who: str, units: list[Record]) -> list[str]:
    ordered = sorted(units, key=lambda unit: (unit["a"], unit["z"]))
    return [
        f"{who} was in two units at {after['a']:.6f} s"
        for before, after in itertools.pairwise(ordered)
        if after["a"] < before["z"]
    ]
