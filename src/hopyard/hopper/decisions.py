"""What follows from a record: the searcher's decisions, as further records.

Decisions are a function of the records before them, so a resumed run gets its searcher back by
replaying the journal, and a journal cut between a record and its consequences loses nothing: the
consequences are found again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hopyard.errors import SettingsError
from hopyard.hopper.state import Record, RunState
from hopyard.search.base import Create, Operation, Searcher, Train


class Decisions:
    """Asks the searcher at the right moments and says it in records.

    Attributes:
        targets: epochs in all that each trial may do so far.
    """

    def __init__(self, state: RunState, searcher: Searcher, order_groups: int) -> None:
        self._state, self._searcher, self._groups = state, searcher, order_groups
        self.targets: dict[int, int] = {}
        self._trained: list[int] = []

    def start(self) -> list[Record]:
        """The records that begin a run."""
        return self._records(self._searcher.start())

    def after(self, record: Record) -> list[Record]:
        """The records that follow from one that has just been applied."""
        if record["r"] == "end":
            return self._records(self._searcher.exited(record["t"], record["status"]))
        if record["r"] != "unit":
            return []
        found: list[Record] = []
        for number in record["t"]:
            trial = self._state.trials[number]
            if trial.progress.visits % self._state.layout.units == 0:
                found += self._after_epoch(number, trial.epochs)
        return found

    def take_trained(self) -> list[int]:
        """Trials whose targets have changed since the last call."""
        trained, self._trained = self._trained, []
        return trained

    def _after_epoch(self, number: int, epoch: int) -> list[Record]:
        metric = self._state.metric
        value = self._state.trials[number].history.get(metric.key, [math.nan])[-1]
        told = math.inf if math.isnan(value) else metric.smaller_is_better(value)
        found = self._records(self._searcher.validated(number, epoch, told))
        stopped = any(record["r"] == "end" and record["t"] == number for record in found)
        if epoch >= self._state.num_epochs and not stopped:
            found.append({"r": "end", "t": number, "status": "completed"})
        return found

    def _records(self, operations: Iterable[Operation]) -> list[Record]:
        records: list[Record] = []
        for operation in operations:
            if isinstance(operation, Create):
                group = operation.trial % self._groups
                params = dict(operation.params)
                records.append(
                    {
                        "r": "trial",
                        "n": operation.trial,
                        "params": params,
                        "g": group,
                        "source": operation.source,
                    }
                )
            elif isinstance(operation, Train):
                self.targets[operation.trial] = operation.epochs
                self._trained.append(operation.trial)
            else:
                records.append({"r": "end", "t": operation.trial, "status": "stopped"})
        return records


def replay(records: Iterable[Record], state: RunState, decisions: Decisions) -> list[Record]:
    """Apply a journal's records to ``state``.

    What the searcher hears is what it would have heard if the run had had its present budget from the
    start: an end that a later record takes back is not told.

    Returns the decisions that the journal's end cut off: to be applied and appended next.

    Raises:
        SettingsError: the searcher now decides differently from what the journal holds.
    """
    records = list(records)
    taken_back = _taken_back(records)
    expected: dict[tuple[str, int], Record] = {}
    for index, record in enumerate(records):
        key = _decision_key(record)
        if key in expected:
            _check_same(expected.pop(key), record)
        elif key is not None and record.get("status") != "completed":
            raise SettingsError(
                f"the journal holds {record}, which the searcher does not decide now. The run was made with another "
                "version or other settings; give another run_id, or fresh=True to start anew."
            )
        state.apply(record)
        if index in taken_back:
            continue
        following = decisions.start() if record["r"] == "run" else decisions.after(record)
        expected.update((key, found) for found in following if (key := _decision_key(found)) is not None)
        if record["r"] == "extend":
            _drop_completions(expected, state)
    return list(expected.values())


def _taken_back(records: Sequence[Record]) -> set[int]:
    """Indices of the records by which a trial ended that goes on later (``extend``, ``back``)."""
    taken_back: set[int] = set()
    ends: dict[int, int] = {}
    epochs = 0
    for index, record in enumerate(records):
        if record["r"] == "end":
            ends[record["t"]] = index
        elif record["r"] == "back":
            taken_back.update(ends[number] for number in record["t"] if number in ends)
        elif record["r"] == "extend" and record["num_epochs"] > epochs:
            taken_back.update(i for i in ends.values() if records[i]["status"] == "completed")
        epochs = record.get("num_epochs", epochs)
    return taken_back


def _drop_completions(expected: dict[tuple[str, int], Record], state: RunState) -> None:
    """The journal's end cut them off before the budget grew: these trials are simply not completed."""
    for status, number in list(expected):
        if status == "completed" and state.trials[number].epochs < state.num_epochs:
            del expected[status, number]


def _decision_key(record: Record) -> tuple[str, int] | None:
    """What identifies a record that follows from others; None for records of what happened."""
    if record["r"] == "trial":
        return ("trial", record["n"])
    if record["r"] == "end" and record["status"] != "failed":
        return (record["status"], record["t"])
    return None


def _check_same(decided: Record, recorded: Record) -> None:
    if {**decided, "z": None} != {**recorded, "z": None}:
        raise SettingsError(
            f"the journal holds {recorded}, but the searcher now decides {decided}. The run was made with another "
            "version or other settings; give another run_id, or fresh=True to start anew."
        )
