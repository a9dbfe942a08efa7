"""The append-only records of a run.

A journal is a numbered log of segments (``hopper.segments``), each a few JSON lines and a digest of them.
One driver writes it: it holds the run's lease, and its first segment is its fence, because a number can be
taken only once. A driver that was overtaken fails at its next segment and has changed nothing.

Appending never waits: a writer thread puts one segment after the other, and each holds all that
arrived while the one before was on its way. What must wait until a record is safe (deleting the
state that it replaces) compares the record's number with ``durable``.

Many segments are merged into few objects by the driver: when it opens the journal, at its end, and in
between on the writer's thread.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import socket
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from hopyard.errors import CorruptError, StorageError
from hopyard.hopper.segments import FOLDER, Segments
from hopyard.hopper.state import JournalRecord, trial_folder, units_states
from hopyard.objects.lease import Lease, holder_of
from hopyard.storage import Store
from hopyard.storage.waiting import PASSING, wait_for_store

__all__ = [
    "FOLDER",
    "LEASE",
    "Journal",
    "JournalFollower",
    "Records",
    "first_and_last",
    "first_record",
    "has_records",
    "holder",
    "last_record",
    "read_records",
]

LEASE = "lease"
_MANY = 1 << 22
"""Bytes of records from which on a faster parser pays: to import it takes as long as what it saves of these, 30 ms."""
_SPACE = "lease.space"  # there while the holder has space: to delete it takes none


def read_records(store: Store) -> Iterator[JournalRecord]:
    """The records of the run in ``store`` (the run's folder), in order; none if there is no run.

    A last segment that a power failure damaged is left out, with a warning; the next driver puts it aside.

    Raises:
        CorruptError: a segment is missing, or is not what was written.
    """
    segments, parser = Segments(store), _Parser(store.url)
    for body in segments.read():
        yield from parser.records(body)
    if segments.torn is not None:
        number, size = segments.torn
        warnings.warn(
            f"the last segment of the journal in {store.url} (number {number}, {size} bytes) is damaged and left out; "
            "the units in it are done again when the run goes on.",
            stacklevel=2,
        )


class _Parser:
    """Reads the records of a journal in ``where`` from the lines of its segments, one after the other. Once they are
    many, pydantic's parser does it: the same values in less than half the time, except for what only Python's reads,
    such as halves of surrogate pairs."""

    def __init__(self, where: str) -> None:
        self._where, self._bytes = where, 0

    def records(self, body: bytes) -> Iterator[JournalRecord]:
        """The records of the next segment.

        Raises:
            CorruptError: a line is none.
        """
        self._bytes += len(body)
        if self._bytes < _MANY:
            for line in body.splitlines():
                yield _record(line, self._where)
            return
        from pydantic_core import from_json

        for line in body.splitlines():
            try:
                record = from_json(line, cache_strings="keys")
            except ValueError:
                record = None
            yield record if isinstance(record, dict) else _record(line, self._where)


def _record(line: bytes, where: str) -> JournalRecord:
    """A record, from its line.

    Raises:
        CorruptError: it is none, though it is what was written: another program wrote it.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise CorruptError(
            f"the journal in {where} has a line that is no record, but {line[:60]!r}. Restore it from a copy, or start "
            "the run anew with fresh=True."
        )
    return record


def first_and_last(store: Store) -> tuple[JournalRecord, JournalRecord]:
    """The first and the last record of the run in ``store``, without reading the others; empty ones if it has none."""
    first, last = (body or b"{}" for body in Segments(store).ends())
    return _record(first.splitlines()[0], store.url), _record(last.splitlines()[-1], store.url)


def first_record(store: Store) -> JournalRecord:
    """The first record of the run in ``store``, by which it is told from another of its name; an empty one if there is
    none, or none that can be read."""
    try:
        return _record(Segments(store).first_line(), store.url)
    except CorruptError:
        return {}


def last_record(store: Store) -> JournalRecord:
    """The last record of the run in ``store``, without reading the others; an empty one if it has none."""
    return _record((Segments(store).end() or b"{}").splitlines()[-1], store.url)


def has_records(store: Store) -> bool:
    """Whether there is a run in ``store`` (a run's folder), without reading it."""
    return next(store.list(FOLDER), None) is not None


def holder(store: Store) -> dict[str, Any] | None:
    """Driver of the run in ``store`` now (``host``, ``pid``, ``since``, ``driver``); None: nobody.

    ``is_full`` is True while the driver waits for its store: for space, or for an answer.
    """
    held = holder_of(store, LEASE)
    if held is not None:
        held["is_full"] = store.size(_SPACE) is None
    return held


class JournalFollower:
    """The records of the run in ``store`` as they come, for watching it."""

    def __init__(self, store: Store, from_end: bool = False) -> None:
        """``from_end``: without the records that are there already."""
        self._segments, self._parser = Segments(store), _Parser(store.url)
        self._given = 0
        """Records of the next segment that were given already, before a line that is none."""
        if from_end:
            self._segments.seek_end()

    @property
    def share(self) -> float:
        """The share of the records that is read, 0 to 1, as far as the last listing knows."""
        return self._segments.last / self._segments.highest if self._segments.highest else 0.0

    @property
    def is_ahead(self) -> bool:
        """Whether more was read than there is: the run was begun anew since."""
        return self._segments.highest < self._segments.last

    def records(self) -> Iterator[JournalRecord]:
        """The records since the last call, one by one; to be read to their end. Of a long journal only some are in
        memory at a time, which takes a third less time than all those of a segment.

        Raises:
            CorruptError: a line is no record; the next call tells it again, or finds it mended and goes on with it.
        """
        for body in self._segments.read():
            given, self._given = self._given, 0
            try:
                for record in itertools.islice(self._parser.records(body), given, None):
                    given += 1
                    yield record
            except CorruptError:
                self._segments.last, self._given = self._segments.last - 1, given
                raise

    def new(self) -> list[JournalRecord]:
        """The records since the last call. If there are none, and there is a run, this costs one listing."""
        found: list[JournalRecord] = []
        try:
            for record in self.records():
                found.append(record)
        except StorageError:  # the next call finds it again
            if not found:
                raise
        return found


class Records:
    """The records that a journal held when it was opened; each iteration reads them from the store anew."""

    def __init__(self, store: Store, last: int) -> None:
        self._store, self._last = store, last

    def __iter__(self) -> Iterator[JournalRecord]:
        segments, parser = Segments(self._store), _Parser(self._store.url)
        for body in segments.read() if self._last else ():
            yield from parser.records(body)
            if segments.last >= self._last:
                return


class _Stop:
    """The last item of a writer's queue."""


_Item: TypeAlias = JournalRecord | threading.Event | _Stop


class Journal:
    """The journal of one run, open for writing by this driver.

    Attributes:
        driver: a name for this driver, new for each.
        durable: how many of the records appended by this driver are durable, even if the segment that was written
            last is lost. ``flush`` makes it all of them.
        on_failure: called once, on the writer's thread, with the error that made writing impossible.

    Args:
        store: the run's folder.
        take_over: hold the run even if another driver holds it now; that driver's next segment then fails.
        merge_at: segments that lie there before they are merged; at opening and closing, a quarter of it.
        unsynced: units leave their states as ``Store.unsynced`` does; they become durable before the record that
            names them.
        announce: called with a message when the disk is full, or a damaged end was cut off.
        wait: see ``hopyard.storage.waiting.wait_for_store``; closing the journal ends the wait by default.

    Raises:
        RunHeldError: another driver holds the run.
    """

    def __init__(
        self,
        store: Store,
        *,
        take_over: bool = False,
        merge_at: int = 256,
        unsynced: bool = False,
        announce: Callable[[str], None] = print,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.driver: str = uuid.uuid4().hex[:12]
        self.durable: int = 0
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self._store, self._announce, self._merge_at = store, announce, merge_at
        self._closing = threading.Event()
        self._wait = wait if wait is not None else self._closing.wait
        self._appended = self._written = 0
        self._unsynced = unsynced
        self._synced: dict[int, frozenset[str]] = {}
        """The files of each trial's last state."""
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._failed: BaseException | None = None
        self._segments = Segments(store)
        self._lease = Lease(store, LEASE, {"driver": self.driver, **_whereabouts(), "is_full": False})
        self._lease.acquire(take_over=take_over)
        try:
            self.tell_full(False)
            self._open(take_over)
        except BaseException:
            self._lease.release()
            raise
        self._thread = threading.Thread(target=self._write, name="hopyard-journal", daemon=True)
        self._thread.start()

    def _open(self, take_over: bool) -> None:
        self._segments.seek_end()
        if self._segments.torn is not None:
            self._announce(self._segments.cut())
            self._segments.seek_end()
        if take_over:
            self._segments.fence()  # before anything is read, or a segment under way might come between
        self._segments.find_merged()
        # What is damaged or missing in the middle is told by who reads it.
        with contextlib.suppress(StorageError):
            self._merge_if(self._merge_at // 4)
            self._segments.tidy()
        self._last = self._segments.last

    def replay(self) -> Records:
        """Records of the journal when it was opened; they can be iterated any number of times.

        Iterating raises:
            CorruptError: a segment is missing, or is not what was written.
        """
        return Records(self._store, self._last)

    def whereabouts(self) -> dict[str, Any]:
        """Identity and place of this driver, for the session record and for messages."""
        return {"driver": self.driver, **_whereabouts()}

    def tell_full(self, is_full: bool) -> None:
        """Let callers of ``holder`` know whether the run waits for its store."""
        with contextlib.suppress(StorageError):
            if is_full:
                self._store.delete(_SPACE)
            else:
                self._store.put(_SPACE, b"")

    def append(self, record: JournalRecord) -> int:
        """Write ``record`` soon. Returns its number: it is durable once ``durable`` is not below."""
        self._queue.put(record)
        self._appended += 1
        return self._appended

    def flush(self) -> None:
        """Return when everything appended so far is durable.

        Raises the error that made writing impossible.
        """
        settled = threading.Event()
        self._queue.put(settled)
        settled.wait()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Write the records that are left and give the run back. Does not raise the errors that ``flush`` would."""
        try:
            self._queue.put(_Stop())
            self._closing.set()
            self._thread.join()
        finally:
            self._lease.release()

    def _write(self) -> None:
        """Write records, on the writer's thread. After a failure nothing more is written; waiting callers learn it."""
        stopping = False
        while not stopping:
            items = [self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get())
            waiting = [item for item in items if isinstance(item, threading.Event)]
            stopping = any(isinstance(item, _Stop) for item in items)
            if self._failed is None:
                try:
                    self._write_segment(
                        [item for item in items if isinstance(item, dict)], seal=bool(waiting)
                    )
                    self._tidy(stopping)
                except BaseException as error:
                    self._failed = error
                    self.on_failure(error)
            for item in waiting:
                item.set()

    def _write_segment(self, records: list[JournalRecord], seal: bool) -> None:
        if records:
            if self._unsynced:
                try:
                    self._sync_states(records)
                except StorageError:
                    self._append(
                        b""
                    )  # a driver that holds the run by now may have deleted them: then this says so
                    raise
            lines = [json.dumps(record, separators=(",", ":")) for record in records]
            self._append(("\n".join(lines) + "\n").encode())
            self.durable, self._written = self._written, self._written + len(records)
        # Only the last segment can be torn, so what is before it is safe: states that it replaces may go.
        if seal and self.durable < self._written:
            self._append(b"")
            self.durable = self._written

    def _sync_states(self, records: list[JournalRecord]) -> None:
        """Sync new states to the disk. An error here ends the run: bytes that a disk did not take may read as written
        for a while."""
        new: dict[str, None] = {}
        for record in records:
            for trial, state, metrics in units_states(record):
                known = self._synced.get(trial, frozenset())
                if state is not None:
                    self._synced[trial] = frozenset(state.files)
                files = [*(state.files if state else ()), *(metrics.files if metrics else ())]
                new |= {f"{trial_folder(trial)}/{name}": None for name in files if name not in known}
        self._store.sync(new)

    def _append(self, body: bytes) -> None:
        told: list[str] = []

        def announce(message: str) -> None:
            self.tell_full(True)
            told.append(message)
            self._announce(message)

        wait_for_store(lambda: self._segments.append(body), announce=announce, wait=self._wait)
        if told:
            self.tell_full(False)

    def _tidy(self, stopping: bool) -> None:
        """Keep the number of objects small, without making writers wait."""
        # It can wait; what counts is written.
        with contextlib.suppress(*PASSING):
            self._merge_if(self._merge_at // 4 if stopping else self._merge_at)
        with contextlib.suppress(StorageError):
            while self._segments.tidy(at_most=2) and (stopping or self._queue.empty()):
                pass

    def _merge_if(self, many: int) -> None:
        if self._segments.last - self._segments.archived > many:
            self._segments.merge()


def _whereabouts() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}
