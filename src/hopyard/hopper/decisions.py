"""Decisions of the searcher that follow from a record, as further records.

Decisions are a function of the records before them, so a resumed run gets its searcher back by
replaying the journal, and a journal cut between a record and its consequences loses nothing: the
consequences are found again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hopyard.errors import MetricError, SettingsError
from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.search.base import Create, Operation, Searcher, Train
from hopyard.wording import nearest


class Decisions:
    """Asks the searcher at the right moments and says it in records.

    Args:
        searcher: new, with the budget that the run began with: ``extend`` records give it more.

    Attributes:
        targets: visits in all that each trial may train so far.
    """

    def __init__(self, state: RunState, searcher: Searcher, order_groups: int) -> None:
        self._state, self._searcher, self._groups = state, searcher, order_groups
        self.targets: dict[int, int] = {}
        self._allowed: list[int] = []
        self._extension: tuple[tuple[int | None, int], list[Operation]] | None = None

    def start(self) -> list[JournalRecord]:
        """The records that begin a run."""
        return self._records(self._searcher.start())

    def after(self, record: JournalRecord) -> list[JournalRecord]:
        """The records that follow from one that has just been applied."""
        if record["r"] == "end":
            self.targets.pop(record["t"], None)
            by_searcher = _decision_key(record) is not None
            return [] if by_searcher else self._records(self._searcher.exited(record["t"]))
        if record["r"] == "extend":
            return self._after_extension(record)
        found: list[JournalRecord] = []
        for number in record["t"] if record["r"] == "unit" else ():
            trial = self._state.trials[number]
            progress = trial.progress
            if progress.trained == progress.validated == self.targets[number]:
                found += self._after_validation(trial)
        return found

    def check_extension(self, num_models: int | None, num_epochs: int) -> list[int]:
        """Check that an ``extend`` record with this budget may follow; if so, it must be the next one.

        Returns: the trials that will train on.

        Raises:
            SettingsError: the search cannot be extended that way; nothing has changed.
        """
        budget = num_models, num_epochs * self._state.layout.train
        operations = self._searcher.extend(*budget)
        self._extension = budget, operations
        return [
            each.trial for each in operations if isinstance(each, Train) and each.trial in self._state.trials
        ]

    def check_measured(self, record: JournalRecord) -> None:
        """Check that a trial's validation has the evaluation metric, before the unit record is applied: a unit that is
        not in the journal is done again.

        Raises:
            MetricError: the evaluation metric is missing; names the metrics there are.
        """
        key = self._state.metric.key
        for number, metrics in zip(record["t"], record["m"], strict=True):
            trial = self._state.trials[number]
            measured = {f"val_{name}" for name in metrics.get("values", ())}
            visits = [each for _, each in trial.progress.train]
            if not self._state.layout.validate:
                visits.append(metrics)
            measured |= {f"train_{name}" for each in visits for name in each}
            ends = "values" in metrics or (not self._state.layout.validate and record["last"])
            if ends and key not in measured and key not in trial.history:
                raise MetricError(
                    f"the evaluation metric {key} is not among what trial {number} measured: {sorted(measured)}"
                    f"{nearest(key, measured, '.')} Name one of these as evaluation_metric, or let the estimator "
                    "measure it: nothing is lost, and the run goes on from here once it does."
                )

    def take_allowed(self) -> list[int]:
        """Trials whose targets have changed since the last call."""
        allowed, self._allowed = self._allowed, []
        return allowed

    def urgency(self, trial: int) -> int:
        """Virtual time at which the trial's next result is due: the trial due first should train first."""
        return self._searcher.due(trial)

    def _after_extension(self, record: JournalRecord) -> list[JournalRecord]:
        num_models = record.get("num_models", record["settings"].get("num_models"))
        budget = num_models, self._state.num_epochs * self._state.layout.train
        known, self._extension = self._extension, None
        operations = known[1] if known and known[0] == budget else self._searcher.extend(*budget)
        return self._records(operations)

    def _after_validation(self, trial: TrialState) -> list[JournalRecord]:
        metric = self._state.metric
        value = trial.measured(metric.key)
        told = math.inf if math.isnan(value) else metric.smaller_is_better(value)
        return self._records(self._searcher.validated(trial.number, trial.progress.trained, told))

    def _records(self, operations: Iterable[Operation]) -> list[JournalRecord]:
        records: list[JournalRecord] = []
        for operation in operations:
            number = operation.trial
            if isinstance(operation, Create):
                group, params = number % self._groups, dict(operation.params)
                records.append(
                    {"r": "trial", "n": number, "params": params, "g": group, "source": operation.source}
                )
            elif isinstance(operation, Train):
                self.targets[number] = operation.visits
                self._allowed.append(number)
            else:
                records.append({"r": "end", "t": number, "status": self._status_of(number)})
        return records

    def _status_of(self, number: int) -> str:
        """Status of a trial that the searcher ends: ``completed`` after the whole budget, else ``stopped``."""
        trained = self._state.trials[number].progress.trained
        return "completed" if trained >= self._state.num_visits else "stopped"


def replay(records: Iterable[JournalRecord], state: RunState, decisions: Decisions) -> list[JournalRecord]:
    """Apply a journal's records to ``state``.

    Args:
        records: gone through twice.

    Returns the decisions that the journal's end cut off: to be applied and appended next.

    Raises:
        SettingsError: the searcher now decides differently from what the journal holds.
    """
    void = _void(records)
    expected: dict[tuple[str, int], JournalRecord] = {}
    for index, record in enumerate(records):
        if index in void:
            state.apply(record)
            continue
        key = _decision_key(record)
        if key in expected:
            _check_same(expected.pop(key), record)
        elif key is not None:
            raise SettingsError(
                f"the journal holds {record}, which the searcher does not decide now. The run was made with another "
                "version or other settings; give another run_id, or fresh=True to start anew."
            )
        state.apply(record)
        following = decisions.start() if record["r"] == "run" else decisions.after(record)
        expected.update((key, found) for found in following if (key := _decision_key(found)) is not None)
    return list(expected.values())


def _void(records: Iterable[JournalRecord]) -> set[int]:
    """Indices of the records that a later one takes ``back``: a trial's failure, and all of a trial that it forgets,
    since it followed from failures. The searcher never hears of these."""
    void: set[int] = set()
    failed: dict[int, int] = {}
    begun: dict[int, list[int]] = {}
    for index, record in enumerate(records):
        if record["r"] == "trial":
            begun[record["n"]] = [index]
        elif record["r"] == "end":
            begun[record["t"]].append(index)
            if record["status"] == "failed":
                failed[record["t"]] = index
        elif record["r"] == "back":
            void.update(failed[number] for number in record["t"] if number in failed)
            void.update(index for number in record.get("forget", ()) for index in begun[number])
    return void


def _decision_key(record: JournalRecord) -> tuple[str, int] | None:
    """Key of a record that follows from others; None for records of events."""
    if record["r"] == "trial":
        return ("trial", record["n"])
    if record["r"] == "end" and record["status"] != "failed" and "by" not in record:
        return (record["status"], record["t"])
    return None


def _check_same(decided: JournalRecord, recorded: JournalRecord) -> None:
    if {**decided, "z": None} != {**recorded, "z": None}:
        raise SettingsError(
            f"the journal holds {recorded}, but the searcher now decides {decided}. The run was made with another "
            "version or other settings; give another run_id, or fresh=True to start anew."
        )
