"""Runs as the dashboard follows them: each record of a journal is read once, however many pages look at it."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import cached_property
from typing import Any

from hopyard.errors import HopyardError, StorageError
from hopyard.hopper.history import Summing, Totals, UnitFollower, unfitting
from hopyard.hopper.journal import JournalFollower, first_record, holder
from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.objects import StateRef
from hopyard.objects.frozen import urls_elsewhere
from hopyard.storage import Store
from hopyard.tune.asking import waiting_commands
from hopyard.tune.listing import check_header, find_run, status_of
from hopyard.tune.watching import command_message
from hopyard.web.units import UnitTable

LOCAL_SECONDS = 0.5
"""Between two looks at a run in a directory."""
REMOTE_SECONDS = 5.0
"""Between two looks at a run in a store with a URL; each look is four small requests."""


MARKS = {"pause": 0, "resume": 1, "stop": 2, "kill": 3, "driver": 4}
"""Marks in a schedule: commands of users to the run, and a driver that goes on with it after another one."""

_STORED = StateRef("", (), 0, (("model", StateRef("", (), 0)),))
"""Instead of the references to states, which no page shows: those of thousands of trials take much memory."""


class _Shown(RunState):
    """The state of a run as pages show it: without references to states."""

    def _state_of(self, reference: Any) -> StateRef:
        return _STORED


class _Compact(dict[str, Any]):
    """A trial's history whose values take eight bytes each."""

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The values of a metric."""
        if name not in self:
            self[name] = array("d")
        return self[name]


class WatchedRun:
    """A run of which the records are read as they come. Any thread may call it.

    Attributes:
        run_id: its name in the store.
        count: records read so far; the version of all that is shown of it.
        state: what they lead to.
        units: its units that are known to count.
        holder: who drives it now, or None.
        every: seconds between two looks at it.
        lock: held while the state is looked at or changed.
    """

    def __init__(
        self, store: Store, run_id: str, every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.run_id: str = run_id
        self.every: float = every
        self._store, self._clock = store, clock
        self.lock: threading.RLock = threading.RLock()
        self._folder = find_run(store, run_id)
        self._where = f"run {run_id} in {self._folder.url}"
        self._follower = JournalFollower(self._folder)
        self._looked = -float("inf")
        self._failed: StorageError | None = None
        self._driver: str | None = None
        self._starting = threading.Lock()
        self._reading: Future[None] | None = None
        self.state: RunState = _Shown()
        self.holder: dict[str, Any] | None = None
        self.count: int = 0
        self.units: UnitTable = UnitTable()
        self._follow, self._sums = UnitFollower(), Summing()
        self._alone_at = 0
        """Number of the last record that names trials that train alone."""
        self._marks: list[tuple[float, int]] = []
        self._changed: dict[int, int] = {}
        self._stopped_by: dict[int, str] = {}
        self._messages: list[tuple[int, str]] = []
        self._seen_waiting: tuple[float, list[str]] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the search was called with."""
        settings: dict[str, Any] = self.state.header["settings"]
        return settings

    @property
    def status(self) -> str:
        """See ``Run.status``."""
        return status_of(self.state, self.holder)

    @property
    def share(self) -> float:
        """The share of the journal that is read so far, 0 to 1."""
        return self._follower.share

    def begin_reading(self) -> Future[None]:
        """Has a thread read the journal for the first time, from the first such call on; done once it is read, or
        cannot be, which the next look tells."""
        with self._starting:
            if self._reading is None:
                self._reading = Future()
                threading.Thread(target=self._read, name=f"hopyard-web-{self.run_id}", daemon=True).start()
            return self._reading

    def is_read(self, patience: float | None = None) -> bool:
        """Whether the journal was read once, as a thread does from the first such call on.

        Args:
            patience: seconds to wait for it; None: until it is read.
        """
        return bool(wait([self.begin_reading()], patience).done)

    def _read(self) -> None:
        try:
            with contextlib.suppress(HopyardError, OSError):  # whoever looks next is told
                self.refresh()
        finally:
            assert self._reading is not None
            self._reading.set_result(None)

    def refresh(self) -> None:
        """Read what is new, unless that was done a moment ago.

        Raises:
            NotFoundError: the run, or its store, has vanished.
            StorageError: it cannot be read.
        """
        with self.lock:
            if self._failed is not None:
                raise self._failed
            if self._clock() - self._looked < self.every:
                return
            before = self.count
            held = holder(self._folder)  # before reading: what a driver writes is there before it lets go
            driver = None if held is None else held.get("driver")
            if driver not in (None, self._driver) and self.is_replaced():
                raise self._replaced()
            for record in self._follower.records():
                try:
                    if driver is None and self.count == before and self.is_replaced():
                        raise self._replaced()  # by a run that nobody drives any more
                    self._take(record)
                except Exception as error:  # the rest of its segment would be missed by the next look
                    self._failed = unfitting(error, self.count + 1, self._where)
                    raise self._failed from error
            self._driver = driver or self._driver
            if self.count == before and (held is None or self._follower.is_ahead) and self.is_replaced():
                find_run(self._store, self.run_id)  # says so if it was deleted
                raise self._replaced()
            self.holder, self._looked = held, self._clock()

    def is_replaced(self) -> bool:
        """Whether another run has come in its place since it was first read, as ``fresh=True`` or a deletion lets it.
        Reads the first record of the journal."""
        if self.count == 0:
            return self._failed is not None  # its beginning could not be read, and may be another one by now
        return bool(first_record(self._folder).get("created") != self.state.header["created"])

    def _replaced(self) -> StorageError:
        return StorageError(f"run {self.run_id} was begun anew since it was looked at. Open it again.")

    def _take(self, record: JournalRecord) -> None:
        if self.count == 0:
            check_header([record], self._where)
        kind = record["r"]
        if "alone" in record:
            self._alone_at = self.count + 1
        if kind == "unit":
            record["s"] = list(map(bool, record["s"]))
        self.state.apply(record)
        self.count += 1
        for unit in self._follow.add(self.state, record):
            self.units.add(unit)
            self._sums.add(unit)
        if kind == "unit":
            for number in record["t"]:
                self._changed[number] = self.count
        else:
            self._note(record)

    def _note(self, record: JournalRecord) -> None:
        """Note what a record that is no unit has changed."""
        kind = record["r"]
        mark = _mark(self.state, record)
        if mark is not None:
            self._marks.append((self.state.clock, MARKS[mark]))
        numbers = record.get("t", ())
        if kind == "trial":
            trial = self.state.trials[record["n"]]
            trial.history, trial.ended_at = _Compact(), array("d")  # type: ignore[assignment]
            numbers = (trial.number,)
        elif kind == "end":
            numbers = (record["t"],)
            if "by" in record:
                self._stopped_by[record["t"]] = record["by"]
        elif kind in ("session", "extend", "finish"):
            numbers = self.state.trials
        elif kind == "control" and record.get("trial") in self.state.trials:
            numbers = (record["trial"],)
        for number in numbers:
            self._changed[number] = self.count
        if message := _message(record):
            self._messages.append((self.count, message))

    def changed_since(self, version: int) -> list[TrialState]:
        """Trials that have changed since."""
        return [
            self.state.trials[n] for n, at in self._changed.items() if at > version and n in self.state.trials
        ]

    def messages_since(self, version: int) -> list[str]:
        """What happened since that is no result: commands of users, lost workers, extensions."""
        return [text for at, text in self._messages if at > version]

    @cached_property
    def frozen_at(self) -> list[str]:
        """URLs of the places from which the run reads frozen tensors, beside the store; asked for once."""
        return urls_elsewhere(self._folder)

    def waiting(self) -> list[str]:
        """Commands that wait until the run goes on, in words; none while somebody drives it, who answers them."""
        if self.holder is not None:
            return []
        return waiting_commands(self._folder, self.state.controls)

    def seen_waiting(self) -> list[str]:
        """As ``waiting``, but asked for once a look, however many pages follow the run."""
        if self._seen_waiting is None or self._seen_waiting[0] != self._looked:
            self._seen_waiting = self._looked, self.waiting()
        return self._seen_waiting[1]

    def alone_changed_since(self, version: int) -> bool:
        """Whether another trial has begun to train alone since."""
        return self._alone_at > version

    def unsettled(self) -> UnitTable:
        """Units after those that are known to count: a worker that is lost may undo them."""
        units = UnitTable()
        for unit in self._follow.rest():
            units.add(unit)
        return units

    def marks(self) -> list[tuple[float, int]]:
        """What users and drivers did to the schedule: when, in seconds since the run began, and one of ``MARKS``."""
        return self._marks

    def stopped_by(self, trial: TrialState) -> str | None:
        """Who has stopped a trial: ``"user"``, ``"itself"``, ``"searcher"``; None: nobody."""
        by = self._stopped_by.get(trial.number)
        return by or ("searcher" if trial.status == "stopped" else None)

    def broken_rules(self) -> list[str] | None:
        """The rules of model hopping that the committed units break, in words; None: they are too many to look."""
        return self.units.broken_rules(self._follow.rest(), self.state.layout)

    def totals(self) -> Totals:
        """Totals of the units so far."""
        return self._sums.followed_by(self._follow.rest()).totals(self.state.pauses)


def _mark(state: RunState, record: JournalRecord) -> str | None:
    """The name, in ``MARKS``, of what a record did to the whole schedule; None: nothing."""
    if record["r"] == "session" and state.sessions > 1:
        return "driver"
    if record["r"] == "control" and record.get("trial") is None and "refused" not in record:
        return record["do"] if record["do"] in MARKS else None
    return None


def _message(record: JournalRecord) -> str | None:
    if record["r"] == "lost":
        trials = ", ".join(map(str, record["t"]))
        return f"worker {record['w']} was lost in a unit of trial {trials}: {record['why']}"
    return command_message(record)


class WatchedRuns:
    """All runs that pages have looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[int, str], WatchedRun] = {}

    def get(self, place: int, store: Store, run_id: str, remote: bool) -> WatchedRun:
        """The run, which is read by ``refresh``.

        Raises:
            NotFoundError: there is none.
        """
        key = (place, run_id)
        with self._lock:
            if key not in self._runs:
                self._runs[key] = WatchedRun(store, run_id, REMOTE_SECONDS if remote else LOCAL_SECONDS)
            return self._runs[key]

    def forget(self, place: int, run_id: str) -> None:
        """Begin anew at the next look: the run was deleted, or begun anew under the same name."""
        with self._lock:
            self._runs.pop((place, run_id), None)
