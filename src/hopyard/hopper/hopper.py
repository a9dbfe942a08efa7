"""The run loop: events from workers in, units out.

One thread, one queue, no polling: the loop sleeps until a unit ends, the journal fails, a user's command
arrives, a timer for a full disk goes off, or the process is told to end. All that it decides follows from the
journal (``state``, ``decisions``) and the scheduler; here they meet the backend.
"""

from __future__ import annotations

import functools
import math
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias

from hopyard.backend import Backend
from hopyard.errors import (
    Evidence,
    HopyardError,
    Preempted,
    RunError,
    SettingsError,
    StateLostError,
    StorageError,
    StorageFullError,
    TrialError,
    UnitTimeoutError,
    UsageError,
    WorkerLostError,
    WorkerMismatchError,
)
from hopyard.hopper.clones import check_clone, donors_of
from hopyard.hopper.control import Command, in_words, larger_budget
from hopyard.hopper.decisions import Decisions
from hopyard.hopper.journal import Journal
from hopyard.hopper.notice import Notice, announce_if_heard
from hopyard.hopper.orders import rotating_order
from hopyard.hopper.retention import Retention, check_states_are_kept
from hopyard.hopper.scheduler import Position, Scheduler, Start, Unit
from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.hopper.watcher import Watcher
from hopyard.hopper.work import Options, UnitOutcome, Work, evidence_of, unit_record
from hopyard.storage import Store
from hopyard.storage.waiting import PASSING, until
from hopyard.wording import counted

Observer: TypeAlias = Callable[[RunState, JournalRecord], None]
"""Called on the driver with every record, in order, when the state is as that record left it."""

ALIKE = 3
"""That many points of the space, all of whose trials fail alike before any unit is done, stop a run."""

FOR_GOOD = ("ConfigError", "CorruptError", "DivergedError", "EstimatorError", "MetricError", "UsageError")
"""Kinds of errors that a restart cannot mend."""

PREEMPTED = "preempted"
"""Status of a run whose driver was told to end."""


@dataclass(frozen=True)
class _Ended:
    start: Start
    future: Future[UnitOutcome]
    began: float


@dataclass(frozen=True)
class _JournalFailed:
    error: BaseException


@dataclass(frozen=True)
class _Retry:
    """Event: space may have been made."""


@dataclass(frozen=True)
class _Asked:
    number: int
    command: Command


@dataclass(frozen=True)
class _Noticed:
    """Event: the process is told to end, or its grace is over."""


_Event: TypeAlias = _Ended | _JournalFailed | _Retry | _Asked | _Noticed


class Hopper:
    """Drives one run from where its journal ends to its own end.

    Args:
        store: the run's folder.
        state: what replaying the journal gave.
        decisions: the searcher, replayed likewise.
        work: makes the call for a unit.
        check_epochs: raises SettingsError if trials, as their training is made, cannot have so many epochs.
        notice: hears that the process is to end, and how long units under way may take then.
        announce: takes messages for the user.
    """

    def __init__(
        self,
        *,
        store: Store,
        state: RunState,
        journal: Journal,
        decisions: Decisions,
        backend: Backend,
        work: Work,
        options: Options,
        observers: Sequence[Observer] = (),
        homes: Mapping[int, frozenset[int]] | None = None,
        announce: Callable[[str], None] = print,
        check_epochs: Callable[[Sequence[TrialState], int], None] = lambda trials, num_epochs: None,
        notice: Notice | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notice = Notice() if notice is None else notice
        self._store, self._state, self._journal, self._decisions = store, state, journal, decisions
        self._backend, self._work, self._options = backend, work, options
        self._observers, self._announce, self._clock = observers, announce, clock
        self._check_epochs = check_epochs
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._retention = Retention(store, state, options.keep, options.keep_n)
        layout, header = state.layout, state.header
        self._scheduler = Scheduler(
            layout,
            rotating_order(layout.train, header["order_groups"], header["seed"]),
            rotating_order(max(layout.validate, 1), header["order_groups"], header["seed"]),
            homes,
            free=options.free_orders,
            hop_seconds=options.hop_seconds,
            most=options.most_together,
        )
        self._alone: dict[int, str] = {}
        """Why trials train alone, as far as workers have said so in this session."""
        self._kinds: dict[int, str | None] = {}
        """By trials, as workers have said: a mark of those that it may train with; None: it trains alone."""
        self._kind_of_new: str | None = "" if options.packs_first else None
        """Kind of trials of which no worker has said anything."""
        self._may_stay_resident = homes is None and options.checkpoint_every != "unit"
        self._saved_at: dict[int, float] = {}
        self._must_save: set[int] = set()
        self._failures: list[tuple[int, Evidence]] = []
        self._before_failures = 0
        """How many trials there were before the first failure."""
        self._shown: set[tuple[type[Exception], str, int | None]] = set()
        self._timer: threading.Timer | None = None
        self._stopping: str | None = None
        self._waits_until: str | None = None  # what the run waits for, in words
        self._held = False
        """Whether a user has paused the run."""
        self._killed = False
        """Whether a user has ended it without waiting for the units under way."""
        self._watcher = Watcher(
            store, options.control_seconds, lambda *asked: self._events.put(_Asked(*asked))
        )
        self._unshown: JournalRecord | None = None
        """The last record, if observers were not told of it yet: that can wait until workers have what to do."""
        self._left_behind = False
        """Whether a unit ended in a way that may have left files that no record names."""
        self._origin = clock() - state.clock
        self._ends_at = math.inf if options.time_budget is None else state.clock + options.time_budget
        journal.on_failure = lambda error: self._events.put(_JournalFailed(error))

    def run(self, pending: Sequence[JournalRecord] = ()) -> str:
        """Drive the run until no trial is under way.

        Args:
            pending: decisions that the journal's end cut off, and an ``extend`` record if the budget grows.

        Returns: ``"completed"``; ``"failed"``, where every trial has; or what ended it: ``"time budget"``,
            ``"stopped"`` by a user, or ``"preempted"``.
        """
        with self._notice.deferred(lambda: self._events.put(_Noticed())):
            try:
                self._begin(pending)
                self._watcher.start()
                self._mind_the_notice()
                while self._goes_on():
                    event = self._events.get()
                    self._mind_the_budget()
                    self._mind_the_notice()
                    self._handle(event)
                    self._show()
                    self._retention.delete(self._journal.durable, self._scheduler.is_under_way)
                return self._finish()
            finally:
                self._show()
                self._watcher.stop()
                if self._timer is not None:
                    self._timer.cancel()

    # The loop -------------------------------------------------------------------------------

    def _begin(self, pending: Sequence[JournalRecord]) -> None:
        offset, workers = self._now(), self._backend.num_workers
        whereabouts = self._journal.whereabouts()
        output = {} if self._options.output is None else {"output": self._options.output}
        self._commit(
            {"r": "session", "offset": offset, "workers": workers, "backend": self._backend.name}
            | whereabouts
            | output
        )
        known = [trial.number for trial in self._state.trials.values() if trial.running]
        self._scheduler.pause()
        for number in known:
            self._add(self._state.trials[number])
        for record in pending:
            self._commit(record)
        # The fence: nobody else commits from here on, so that sweeping harms nobody. An extension comes before it, or
        # what only it needs would be swept away.
        self._journal.flush()
        self._retention.sweep()
        for number, command in self._watcher.waiting(self._state.controls):
            self._obey(number, command, waited=True)
        for trial in [trial for trial in self._state.trials.values() if trial.running]:
            if trial.stop_asked:
                self._end_for_user(trial.number)
            elif trial.code_has_ended:
                self._end_by_itself(trial.number)
        for worker in range(workers):
            self._scheduler.worker_up(worker)
        self._resume()
        self._show()

    def _finish(self) -> str:
        goes_on = any(trial.running for trial in self._state.trials.values())
        status = self._stopping if self._stopping and goes_on else self._state.outcome
        self._journal.flush()
        self._retention.delete(self._journal.durable, self._scheduler.is_under_way)
        # Who goes on with a run that was preempted, sweeps at first, and has the time for it.
        if self._left_behind and status != PREEMPTED:
            self._retention.sweep()
        self._commit({"r": "finish", "status": status} | self._state.summary())
        self._show()
        self._journal.flush()
        return status

    def _goes_on(self) -> bool:
        if self._scheduler.running:
            return not self._abandons()
        running = [trial.number for trial in self._state.trials.values() if trial.running]
        if not running or self._stopping:
            return False
        if not self._scheduler.paused:  # neither by a full disk nor by a user
            raise RunError(
                f"trials {running} wait, no unit is under way, and the searcher asks for nothing more. "
                "A searcher must train or stop every trial that it creates."
            )
        return True

    def _handle(self, event: _Event) -> None:
        if isinstance(event, _Ended):
            self._unit_ended(event)
        elif isinstance(event, _JournalFailed):
            raise event.error
        elif isinstance(event, _Asked):
            self._obey(event.number, event.command)
        elif isinstance(event, _Retry):
            self._resume()

    def _resume(self) -> None:
        if self._stopping is None and not self._held:
            self._start(self._scheduler.resume())

    def _mind_the_budget(self) -> None:
        if self._stopping is None and self._now() >= self._ends_at:
            self._stopping = "time budget"
            self._announce(f"the time budget is spent after {self._state.so_far}; start again to go on.")
            self._scheduler.pause()

    def _mind_the_notice(self) -> None:
        if self._notice.given is None or self._stopping == PREEMPTED:
            return
        self._stopping = PREEMPTED
        self._scheduler.pause()
        if self._scheduler.running:
            announce_if_heard(
                self._announce,
                f"{self._notice.given}: no more units are begun; up to {self._notice.grace:g} seconds for the "
                f"{counted(self._scheduler.running, 'unit')} under way.",
            )

    def _abandons(self) -> bool:
        """Whether the units under way had their time. Their workers end, so that they write nothing behind the run's
        back; whoever goes on does the units again."""
        over = self._killed or (self._notice.given is not None and self._notice.expired)
        if not over or not self._events.empty():
            return False
        self._backend.stop()
        self._left_behind = True
        return True

    def _unit_ended(self, ended: _Ended) -> None:
        error, start = ended.future.exception(), ended.start
        if error is None:
            self._unit_done(ended, ended.future.result())
            return
        self._left_behind = True
        if self._notice.given is not None:
            # The signal may have ended what the unit needs: a JVM, a process that reads its data. No trial fails by it.
            self._give_up(start.trials)
        elif isinstance(error, PASSING):
            self._pause(start.trials, error)
        elif isinstance(error, StateLostError) and any(map(self._is_behind, start.trials)):
            self._state_lost(start.trials, error)
        elif isinstance(error, WorkerLostError | UnitTimeoutError):
            self._worker_lost(start, error)
        elif isinstance(error, StorageError | WorkerMismatchError):
            # No trial can help it: once it is mended, the run goes on. The record is for the history,
            # and a driver that was taken over learns that by it.
            self._commit({"r": "back", "t": list(start.trials), "why": str(error)})
            self._journal.flush()
            raise error
        else:
            self._fail(start, dict.fromkeys(start.trials, evidence_of(error, start)))

    def _unit_done(self, ended: _Ended, outcome: UnitOutcome) -> None:
        start = ended.start
        failed = {
            number: error
            for number, error in zip(start.trials, outcome.errors, strict=True)
            if error is not None
        }
        done = [number for number in start.trials if number not in failed]
        if done:
            self._note_done(ended, outcome, done, self._note_kinds(start, outcome))
        if failed:
            self._left_behind = True
            if self._notice.given is not None:
                self._give_up(list(failed))
            else:
                self._fail(start, failed)

    def _note_kinds(self, start: Start, outcome: UnitOutcome) -> dict[int, str]:
        """Note who may train with whom from now on. Returns why some trials will train alone, if that is new."""
        news = {}
        for number, kind, why in zip(start.trials, outcome.kinds, outcome.alone, strict=True):
            self._kinds[number] = kind
            self._scheduler.set_kind(number, kind)
            if why and self._alone.get(number) != why:
                self._alone[number] = news[number] = why
        if self._kind_of_new is None and any(kind is not None for kind in outcome.kinds):
            self._kind_of_new = ""
            for trial in self._state.trials.values():
                if trial.number not in self._kinds and self._scheduler.has(trial.number):
                    self._scheduler.set_kind(trial.number, "")
        return news

    def _note_done(
        self, ended: _Ended, outcome: UnitOutcome, numbers: Sequence[int], alone: Mapping[int, str]
    ) -> None:
        """Commit the visit of ``numbers``, trials of a unit that have not failed."""
        trains = ended.start.unit.phase == "train"
        target = self._decisions.targets.get(numbers[0])
        record = unit_record(ended.start, outcome, numbers, alone, ended.began, self._now(), target)
        states = dict(zip(ended.start.trials, outcome.states, strict=True))
        for number in numbers:
            if trains and states[number] is not None:
                self._saved_at[number] = record["z"]
        self._store_again()
        self._decisions.check_measured(record)
        # The searcher is asked here, before the scheduler goes on, so that a trial that it stops
        # starts nothing more.
        self._commit(record)
        starts: list[Start] = []
        for number in numbers:
            trial = self._state.trials[number]
            if trial.running and trial.stop_asked:
                self._end_for_user(number)
            elif trial.running and trial.code_has_ended:
                self._end_by_itself(number)
            elif trial.running:
                took = (record["z"] - record["a"]) / len(numbers)
                starts += self._scheduler.done(number, took, resident=trains and states[number] is None)
        # What the trial no longer needs may go only while none of its units is under way; others need not wait.
        goes_on = {number for start in starts for number in start.trials}
        for number in numbers:
            if number in goes_on:
                self._retention.delete_of(number, self._journal.durable)
        self._start(starts)
        for number in numbers:
            if number not in goes_on:
                self._retention.delete_of(number, self._journal.durable)

    def _commit(self, record: JournalRecord) -> None:
        """Apply, journal and show a record, and then all that follows from it."""
        records = deque([record])
        while records:
            record = records.popleft()
            self._show()
            self._state.apply(record)
            number = self._journal.append(record)
            for trial in self._with_other_states(record):
                self._retention.changed(self._state.trials[trial], number)
            self._tell_scheduler(record)
            self._unshown = record
            records += self._decisions.after(record)
            for trial in self._decisions.take_allowed():
                if self._scheduler.has(trial):
                    target, urgency = self._decisions.targets[trial], self._decisions.urgency(trial)
                    self._start(self._scheduler.extend(trial, target, urgency))

    def _with_other_states(self, record: JournalRecord) -> Sequence[int]:
        """The trials that need other states after the record than before."""
        match record["r"]:
            case "end":
                return (record["t"],)
            case "trial":
                return () if record["source"] is None else (record["n"],)
            case "unit":
                return tuple(record["t"])
            case "extend":
                return [trial.number for trial in self._state.trials.values() if trial.running]
        return ()

    def _tell_scheduler(self, record: JournalRecord) -> None:
        match record["r"]:
            case "trial":
                self._add(self._state.trials[record["n"]])
            case "end":
                self._start(self._scheduler.end(record["t"]))
            case "extend":
                for trial in self._state.trials.values():
                    if trial.running and not self._scheduler.has(trial.number):
                        self._add(trial)

    def _add(self, trial: TrialState) -> None:
        target = self._decisions.targets.get(trial.number, trial.progress.trained)
        urgency = self._decisions.urgency(trial.number)
        position = trial.progress.position()
        kind = self._kinds.get(trial.number, self._kind_of_new)
        self._start(self._scheduler.add(trial.number, trial.group, position, target, urgency, kind=kind))

    def _start(self, starts: Sequence[Start]) -> None:
        if not self._backend.isolated:  # which runs units here, so that nobody would be told before they end
            self._show()
        for start in starts:
            if self._notice.given is not None:
                self._give_up(start.trials)
                continue
            trials = [self._state.trials[number] for number in start.trials]
            fn, args = self._work(start.unit, trials, any(map(self._must_be_saved, start.units)))
            began = self._now()
            try:
                with nullcontext() if self._backend.isolated else self._notice.in_unit():
                    future = self._backend.submit(start.worker, fn, *args)
            except Preempted:
                self._give_up(start.trials)
            else:
                future.add_done_callback(functools.partial(self._ended, start, began))

    def _give_up(self, numbers: Sequence[int]) -> None:
        """Leave a unit to whoever goes on with the run, as the process is to end."""
        self._scheduler.pause()
        for number in numbers:
            self._scheduler.returned(number, self._position(number))

    def _ended(self, start: Start, began: float, future: Future[UnitOutcome]) -> None:
        self._events.put(_Ended(start, future, began))

    def _must_be_saved(self, unit: Unit) -> bool:
        if unit.last or not self._may_stay_resident or unit.trial in self._must_save:
            return True
        every = self._options.checkpoint_every
        return isinstance(every, float) and self._now() - self._saved_at.get(unit.trial, 0.0) >= every

    # What goes wrong ------------------------------------------------------------------------

    def _pause(self, numbers: Sequence[int], error: StorageError) -> None:
        self._roll_back(numbers, str(error))
        was_paused = self._scheduler.paused
        self._scheduler.pause()  # first, or the worker would begin what ends in the same way
        for number in numbers:
            self._scheduler.returned(number, self._position(number))
        if was_paused:
            return
        self._timer = threading.Timer(self._options.retry_seconds, self._events.put, (_Retry(),))
        self._timer.daemon = True
        self._timer.start()
        if self._waits_until is None:
            self._waits_until = until(error)
            is_full = isinstance(error, StorageFullError)
            if is_full:  # what does not answer takes a minute to refuse this
                self._journal.tell_full(True)
            self._announce(
                f"paused: {error} The run goes on by itself once {self._waits_until}; or press Ctrl-C, "
                f"{'make space, and run the same script again' if is_full else 'and run the same script again later'}."
            )

    def _store_again(self) -> None:
        if self._waits_until is not None and not self._scheduler.paused:
            self._announce(f"{self._waits_until} again: the run goes on.")
            self._waits_until = None
            self._journal.tell_full(False)

    def _roll_back(self, numbers: Sequence[int], why: str) -> None:
        """Set trials back to their durable progress, where more of it was only in the memory of a lost worker."""
        behind = [number for number in numbers if self._is_behind(number)]
        if behind:
            self._commit({"r": "back", "t": behind, "why": why})

    def _is_behind(self, number: int) -> bool:
        """Whether something of the trial is in a worker's memory alone."""
        trial = self._state.trials[number]
        return trial.progress != trial.durable

    def _state_lost(self, numbers: Sequence[int], error: BaseException) -> None:
        """Redo the lost part of trials whose worker has gone unnoticed, which is not the unit's fault, and save all
        states from here on, so that this happens to a trial once."""
        self._must_save.update(numbers)
        self._roll_back(numbers, str(error))
        for number in numbers:
            self._start(self._scheduler.returned(number, self._position(number)))

    def _worker_lost(self, start: Start, error: BaseException) -> None:
        """Repeat the unit on a fresh worker, of each trial alone; the second loss in one unit fails the trial."""
        numbers = start.trials
        orphans = [number for number in self._scheduler.worker_down(start.worker) if number not in numbers]
        self._commit(
            {"r": "lost", "w": start.worker, "t": list(numbers), "z": self._now(), "why": str(error)}
        )
        self._roll_back([*numbers, *orphans], str(error))
        self._must_save.update((*numbers, *orphans))
        for number in orphans:
            self._start(self._scheduler.returned(number, self._position(number), idle=False))
        failed = [number for number in numbers if self._state.trials[number].losses >= 2]
        if failed:
            self._fail(start, dict.fromkeys(failed, evidence_of(error, start)))
        for number in numbers:
            if number not in failed:  # anywhere: a machine that loses every worker must not fail every trial
                position = self._position(number)
                self._start(self._scheduler.returned(number, position, idle=False, anywhere=True))
        self._start(self._scheduler.worker_up(start.worker))

    def _fail(self, start: Start, errors: Mapping[int, Evidence]) -> None:
        """End trials that failed, or let those go on from their last durable state that may be restarted."""
        for number, error in errors.items():
            trial = self._state.trials[number]
            may_be_restarted = trial.restarts < self._options.max_restarts and error.kind not in FOR_GOOD
            if may_be_restarted and self._scheduler.has(number):
                self._restart(trial, replace(error, worker=start.worker))
                continue
            if not self._failures:
                self._before_failures = len(self._state.trials)
            found = replace(error, worker=start.worker)
            self._failures.append((number, found))
            failed = {"r": "end", "t": number, "status": "failed", "error": found.to_json()}
            self._commit(failed | {"z": self._now()})
        self._raise_if_all_fail_alike()

    def _restart(self, trial: TrialState, error: Evidence) -> None:
        why = f"{error.kind}: {error.message}"
        self._commit(
            {"r": "again", "t": [trial.number], "z": self._now(), "why": why, "error": error.to_json()}
        )
        again = f"restart {trial.restarts} of {self._options.max_restarts}"
        self._announce(f"trial {trial.number} failed and goes on from its last state ({again}). {why}")
        self._start(self._scheduler.returned(trial.number, self._position(trial.number)))

    def _raise_if_all_fail_alike(self) -> None:
        failed, trials = self._failures, self._state.trials
        if self._state.units or len(failed) < min(ALIKE * self._state.replicates, len(trials)):
            return
        if len({(evidence.kind, evidence.message) for _, evidence in failed}) == 1:
            before = self._before_failures
            numbers = [number for number, _ in failed if number < before]
            forget = [number for number in trials if number >= before]
            self._commit({"r": "back", "t": numbers, "why": "all fail alike", "forget": forget})
            who = f"the first {len(failed)} trials fail alike" if len(failed) > 1 else "the only trial fails"
            raise TrialError(
                f"{who}, before any unit is done, so the run stops. "
                f"Mend {'what they share' if len(failed) > 1 else 'it'} and run it again.\n{failed[0][1].describe()}",
                failed[0][1],
            )

    def _show(self) -> None:
        """Tell observers of the last record, while the state is as that left it."""
        record, self._unshown = self._unshown, None
        if record is not None:
            for observer in self._observers:
                self._observe(observer, record)

    def _observe(self, observer: Observer, record: JournalRecord) -> None:
        """An observer that fails is shown, once for each place where it does, and costs no work."""
        try:
            observer(self._state, record)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = type(error), frame.filename, frame.lineno
            if place not in self._shown:
                self._shown.add(place)
                said = str(error) if isinstance(error, HopyardError) else f"\n{traceback.format_exc()}"
                self._announce(f"a callback failed; the run goes on. {said}")

    def _position(self, number: int) -> Position:
        return self._state.trials[number].progress.position()

    # What users ask for -------------------------------------------------------------------

    def _obey(self, number: int, command: Command, waited: bool = False) -> None:
        """Carry out a command, once. ``waited``: it was there when this driver began; a ``pause``, ``resume`` or
        ``stop`` of the run is then void, unless it was asked of this driver."""
        if number <= self._state.controls:
            return
        what = command["do"]
        if what == "extend":
            self._extend_as_asked(number, command)
            return
        if what == "clone":
            self._clone_as_asked(number, command)
            return
        refused = self._refusal(command, waited)
        if refused:
            self._refuse(number, command, refused)
            return
        self._commit({"r": "control", "c": number, **command, "z": self._now()})
        if command.get("trial") is not None:
            if not self._scheduler.is_under_way(command["trial"]):  # else after its unit
                self._end_for_user(command["trial"])
        elif what in ("stop", "kill"):
            self._announce(f"stopped by a user's command after {self._state.so_far}.")
            self._stopping, self._killed = "stopped", what == "kill"
            self._scheduler.pause()
        elif what == "pause" and not self._held:
            self._held = True
            self._scheduler.pause()
            self._announce("paused by a user's command; `hopyard run resume` goes on.")
        elif what == "resume" and self._held:
            self._held = False
            self._announce("the run goes on.")
            self._resume()

    def _extend_as_asked(self, number: int, command: Command) -> None:
        settings = self._state.header["settings"]
        try:
            num_models, num_epochs = larger_budget(
                command, settings.get("num_models"), self._state.num_epochs
            )
            check_states_are_kept(self._store, self._state, num_epochs)
            trains_on = set(self._decisions.check_extension(num_models, num_epochs))
            if num_epochs > self._state.num_epochs:
                trials = self._state.trials.values()
                # Running ones, too: units go on as the run was begun.
                self._check_epochs(
                    [trial for trial in trials if trial.running or trial.number in trains_on], num_epochs
                )
        except SettingsError as error:
            self._refuse(number, command, str(error))
            return
        budget = {"num_models": num_models, "num_epochs": num_epochs}
        settings = settings | {name: total for name, total in budget.items() if name in settings}
        self._commit({"r": "extend", **budget, "settings": settings, "c": number})

    def _clone_as_asked(self, number: int, command: Command) -> None:
        trial = command["trial"]
        try:
            params, outside = check_clone(self._store, self._state, command)
            if self._failures and not self._state.units and trial >= self._before_failures:
                raise UsageError(
                    f"trial {trial} may be taken back as long as all fail. Ask again once a unit is done"
                )
        except StorageError:
            raise
        except Exception as error:  # what a user has written never ends the run, now and whenever it goes on
            said = str(error) if isinstance(error, UsageError) else f"it cannot be checked: {error!r}"
            self._refuse(number, command, said)
            return
        begun = self._decisions.next_numbers(len(donors_of(self._state, trial)))
        more = {"outside": outside} if outside else {}
        weights = command.get("weights", False)
        self._commit(
            {"r": "control", "c": number, **command, "params": params, "weights": weights, "begun": begun}
            | more
        )

    def _refusal(self, command: Command, waited: bool) -> str | None:
        """Reason why a command for the run, or the stop of a trial, cannot be obeyed; None if it can."""
        number = command.get("trial")
        if number is None:
            void = waited and command.get("driver") != self._journal.driver
            return "it was given before this driver began" if void else None
        trial = self._state.trials.get(number)
        if trial is None:
            return f"the run has no trial {number}; it has {len(self._state.trials)} so far, the first is 0"
        return None if trial.running else f"trial {number} is {trial.status} already"

    def _refuse(self, number: int, command: Command, why: str) -> None:
        self._announce(f"a user's command was not obeyed ({in_words(command)}): {why}")
        self._commit({"r": "control", "c": number, **command, "refused": why})

    def _end_for_user(self, number: int) -> None:
        self._commit({"r": "end", "t": number, "status": "stopped", "by": "user", "z": self._now()})

    def _end_by_itself(self, number: int) -> None:
        self._commit({"r": "end", "t": number, "status": "completed", "by": "itself", "z": self._now()})

    def _now(self) -> float:
        """Seconds since the run began, on a clock that goes on from session to session."""
        return round(self._clock() - self._origin, 6)
