"""The append-only records of a run.

A journal is a numbered log of segments, each a few JSON lines and a digest of them. One driver writes
it: it holds the run's lease, and its first segment is its fence, because a number can be taken only
once. A driver that was overtaken fails at its next segment and has changed nothing.

Appending never waits: a writer thread puts one segment after the other, and each holds all that
arrived while the one before was on its way. What must wait until a record is safe (deleting the
state that it replaces) compares the record's number with ``durable``.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from hopyard.errors import CorruptError
from hopyard.hopper.state import Record
from hopyard.objects import Lease, NumberedLog, digest
from hopyard.storage import Store
from hopyard.storage.full import wait_for_space

FOLDER = "journal"
_DOMAIN = "hopyard.journal"


def read_records(store: Store) -> Iterator[Record]:
    """The records of the run in ``store`` (the run's folder), in order; none if there is no run.

    Raises:
        CorruptError: a segment is missing, or is not what was written.
    """
    return _records(NumberedLog(store, FOLDER), store)


def has_records(store: Store) -> bool:
    """Whether there is a run in ``store`` (a run's folder), without reading it."""
    return next(store.list(FOLDER), None) is not None


def _records(log: NumberedLog, store: Store) -> Iterator[Record]:
    for number, segment in log.read():
        body, mark = segment[:-_MARK], segment[-_MARK:]
        if mark != _mark(body):
            raise CorruptError(
                f"segment {number} of the journal in {store.url} is not what was written: its {len(segment)} bytes "
                "do not have their digest. Restore it from a copy, or start the run anew with fresh=True."
            )
        yield from map(json.loads, body.splitlines())


def _mark(body: bytes) -> bytes:
    return f"{digest(body, _DOMAIN)}\n".encode()


_MARK = len(_mark(b""))


class _Stop:
    """The last item of a writer's queue."""


_Item: TypeAlias = Record | threading.Event | _Stop


class Journal:
    """The journal of one run, open for writing by this driver.

    Attributes:
        driver: a name for this driver, new for each.
        records: what the journal held when it was opened.
        durable: how many of the records appended by this driver are durable.
        on_failure: called once, on the writer's thread, with what made writing impossible.

    Args:
        store: the run's folder.
        take_over: hold the run whoever holds it now; that driver's next segment then fails.
        announce: called with a message when the disk is full.
        wait: see ``hopyard.storage.full.wait_for_space``; closing the journal ends the wait by default.

    Raises:
        RunHeldError: another driver holds the run.
        CorruptError: a segment is not what was written.
    """

    def __init__(
        self,
        store: Store,
        *,
        take_over: bool = False,
        announce: Callable[[str], None] = print,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.driver = uuid.uuid4().hex[:12]
        self.durable = 0
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self._announce = announce
        self._closing = threading.Event()
        self._wait = wait if wait is not None else self._closing.wait
        self._appended = 0
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._failed: BaseException | None = None
        # One log reads and appends, so that a segment that another driver adds in between is noticed.
        self._log = NumberedLog(store, FOLDER)
        self._lease = Lease(store, "lease", {"driver": self.driver, **_whereabouts()})
        self._lease.acquire(take_over=take_over)
        try:
            self.records = list(_records(self._log, store))
        except BaseException:
            self._lease.release()
            raise
        self._thread = threading.Thread(target=self._write, name="hopyard-journal", daemon=True)
        self._thread.start()

    def whereabouts(self) -> dict[str, Any]:
        """Who writes: for the session record and for messages."""
        return {"driver": self.driver, **_whereabouts()}

    def append(self, record: Record) -> int:
        """Write ``record`` soon. Returns its number: it is durable once ``durable`` is not below."""
        self._queue.put(record)
        self._appended += 1
        return self._appended

    def flush(self) -> None:
        """Return when everything appended so far is durable.

        Raises whatever made writing impossible.
        """
        settled = threading.Event()
        self._queue.put(settled)
        settled.wait()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Write what is left and give the run back. Does not raise what ``flush`` would."""
        try:
            self._queue.put(_Stop())
            self._closing.set()
            self._thread.join()
        finally:
            self._lease.release()

    def _write(self) -> None:
        """On the writer's thread: after a failure nothing is written any more; who waits learns it."""
        stopping = False
        while not stopping:
            items = [self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get())
            records = [item for item in items if isinstance(item, dict)]
            if records and self._failed is None:
                try:
                    self._write_segment(records)
                    self.durable += len(records)
                except BaseException as error:
                    self._failed = error
                    self.on_failure(error)
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
            stopping = any(isinstance(item, _Stop) for item in items)

    def _write_segment(self, records: list[Record]) -> None:
        lines = [json.dumps(record, separators=(",", ":")) for record in records]
        body = ("\n".join(lines) + "\n").encode()
        segment = body + _mark(body)
        wait_for_space(lambda: self._log.append(segment), announce=self._announce, wait=self._wait)


def _whereabouts() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}
