"""Decisions of the searcher that follow from a record, as further records.

Decisions are a function of the records before them, so a resumed run gets its searcher back by
replaying the journal, and a journal cut between a record and its consequences loses nothing: the
consequences are found again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hopyard.errors import MetricError, SettingsError
from hopyard.hopper.clones import donors_of, with_changes
from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.search.base import Create, Operation, Searcher, Train
from hopyard.wording import nearest


class Decisions:
    """Asks the searcher at the right moments and says it in records.

    Args:
        searcher: new, with the budget that the run began with: ``extend`` records give it more.

    Searchers number their trials without gaps; where a user has cloned some, the run's numbers of the searcher's
    trials are larger than those. Clones, of which it never hears (see ``hopper.clones``), are led to their ends here.

    Attributes:
        targets: visits in all that each trial may train so far.
    """

    def __init__(self, state: RunState, searcher: Searcher, order_groups: int) -> None:
        self._state, self._searcher, self._groups = state, searcher, order_groups
        self._numbers: list[int] = []
        """By the searcher's number of a trial that of the run."""
        self._searchers: dict[int, int] = {}
        """The other way round; clones are not there."""
        self._begun = 0
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
            number = self._searchers.get(record["t"])
            by_searcher = _decision_key(record) is not None
            return [] if by_searcher or number is None else self._records(self._searcher.exited(number))
        if record["r"] == "extend":
            return self._after_extension(record)
        if record["r"] == "control":
            return self._clones(record) if record["do"] == "clone" and "refused" not in record else []
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
        known = len(self._numbers)
        train_on = [
            self._numbers[each.trial] for each in operations if isinstance(each, Train) and each.trial < known
        ]
        return train_on + [
            trial.number for trial in self._trials_of_users() if self._trains_on(trial, budget[1])
        ]

    def next_numbers(self, count: int) -> list[int]:
        """Numbers that so many trials will have that begin next."""
        return [*range(self._begun, self._begun + count)]

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
        number = self._searchers.get(trial)
        return 0 if number is None else self._searcher.due(number)

    def _after_extension(self, record: JournalRecord) -> list[JournalRecord]:
        num_models = record.get("num_models", record["settings"].get("num_models"))
        budget = num_models, self._state.num_epochs * self._state.layout.train
        known, self._extension = self._extension, None
        operations = known[1] if known and known[0] == budget else self._searcher.extend(*budget)
        for trial in self._trials_of_users():
            if trial.running:
                self._train(trial.number, self._state.num_visits)
        return self._records(operations)

    def _clones(self, record: JournalRecord) -> list[JournalRecord]:
        """The trials that begin by a user's command, each like one of the donor's point."""
        records: list[JournalRecord] = []
        donors = donors_of(self._state, record["trial"])
        for number, donor in zip(self.next_numbers(len(donors)), donors, strict=True):
            begin = {"r": "trial", "n": number, "params": with_changes(donor.params, record["params"])}
            source = donor.number if record["weights"] else None
            more = {"g": donor.group, "source": source, "draws": donor.draws_as, "clone": donor.number}
            records.append(begin | more)
            self._train(number, self._state.num_visits)
        self._begun += len(records)
        return records

    def _trials_of_users(self) -> list[TrialState]:
        return [trial for trial in self._state.trials.values() if trial.clone_of is not None]

    def _trains_on(self, trial: TrialState, visits: int) -> bool:
        """Whether a clone will train on where trials have so many visits."""
        return trial.running or (trial.status == "completed" and trial.progress.trained < visits)

    def _train(self, number: int, visits: int) -> None:
        self.targets[number] = visits
        self._allowed.append(number)

    def _after_validation(self, trial: TrialState) -> list[JournalRecord]:
        number = self._searchers.get(trial.number)
        if number is None:
            return [{"r": "end", "t": trial.number, "status": self._status_of(trial.number)}]
        metric = self._state.metric
        value = trial.measured(metric.key)
        told = math.inf if math.isnan(value) else metric.smaller_is_better(value)
        return self._records(self._searcher.validated(number, trial.progress.trained, told))

    def _records(self, operations: Iterable[Operation]) -> list[JournalRecord]:
        records: list[JournalRecord] = []
        for operation in operations:
            if isinstance(operation, Create):
                records.append(self._beginning(operation))
                continue
            number = self._numbers[operation.trial]
            if isinstance(operation, Train):
                self._train(number, operation.visits)
            else:
                records.append({"r": "end", "t": number, "status": self._status_of(number)})
        return records

    def _beginning(self, create: Create) -> JournalRecord:
        """The record that begins a trial of the searcher's."""
        number, self._begun = self._begun, self._begun + 1
        self._numbers.append(number)
        self._searchers[number] = create.trial
        source = None if create.source is None else self._numbers[create.source]
        begin = {"r": "trial", "n": number, "params": dict(create.params), "g": create.trial % self._groups}
        draws = {} if number == create.trial else {"draws": create.trial}
        return begin | {"source": source} | draws

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
