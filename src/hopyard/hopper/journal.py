"""The append-only records of a run.

A journal is a numbered log of segments, each a few JSON lines. One driver writes it: it holds the
run's lease, and its first segment is its fence, because a number can be taken only once. A driver
that was overtaken fails at its next segment and has changed nothing.

Appending never waits: a writer thread puts one segment after the other, and each holds all that
arrived while the one before was on its way. What must happen after a record is safe (deleting the
state that it replaces) is handed over with the record.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hopyard.errors import CorruptError
from hopyard.hopper.state import Record
from hopyard.objects import Lease, NumberedLog
from hopyard.storage import Store
from hopyard.storage.full import wait_for_space


def read_records(store: Store) -> Iterator[Record]:
    """The records of the run in ``store`` (the run's folder), in order; none if there is no run."""
    for number, segment in NumberedLog(store, "journal").read():
        try:
            lines = segment.decode().splitlines()
            yield from (json.loads(line) for line in lines)
        except ValueError as error:
            raise CorruptError(
                f"journal segment {number} in {store.url} is not what was written ({error}). "
                "Restore it from a copy, or start the run anew with fresh=True."
            ) from error


@dataclass(frozen=True)
class _Item:
    record: Record
    then: Callable[[], None] | None = None


_STOP = _Item({})


class Journal:
    """The journal of one run, open for writing by this driver.

    Attributes:
        driver: a name for this driver, new for each.
        records: what the journal held when it was opened.
        on_failure: called once, on the writer's thread, with what made writing impossible.

    Args:
        store: the run's folder.
        announce: called with a message when the disk is full and with one when it goes on.

    Raises:
        RunHeldError: another driver holds the run.
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
        self._store = store
        self._announce = announce
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self._closing = threading.Event()
        self._wait = wait if wait is not None else self._closing.wait
        self._lease = Lease(store, "lease", {"driver": self.driver, **_whereabouts()})
        self._lease.acquire(take_over=take_over)
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._failed: BaseException | None = None
        try:
            self.records = list(read_records(store))
            self._log = NumberedLog(store, "journal")
        except BaseException:
            self._lease.release()
            raise
        self._thread = threading.Thread(target=self._write, name="hopyard-journal", daemon=True)
        self._thread.start()

    def whereabouts(self) -> dict[str, Any]:
        """Who writes: for the session record and for messages."""
        return {"driver": self.driver, **_whereabouts()}

    def append(self, record: Record, then: Callable[[], None] | None = None) -> None:
        """Write ``record`` soon; call ``then`` on the writer's thread once it is durable."""
        self._queue.put(_Item(record, then))

    def flush(self) -> None:
        """Return when everything appended so far is durable.

        Raises whatever made writing impossible.
        """
        written = threading.Event()
        self._queue.put(_Item({}, written.set))
        written.wait()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Write what is left and give the run back. Does not raise what ``flush`` would."""
        self._queue.put(_STOP)
        self._closing.set()
        self._thread.join()
        self._lease.release()

    def _write(self) -> None:
        try:
            while True:
                items = [self._queue.get()]
                while not self._queue.empty():
                    items.append(self._queue.get())
                stopping = any(item is _STOP for item in items)
                self._write_segment([item for item in items if item is not _STOP])
                if stopping:
                    return
        except BaseException as error:
            self._failed = error
            self.on_failure(error)
            self._answer_flushes()

    def _answer_flushes(self) -> None:
        """After a failure nothing is written any more; who waits learns it."""
        while (item := self._queue.get()) is not _STOP:
            if not item.record and item.then is not None:
                item.then()

    def _write_segment(self, items: list[_Item]) -> None:
        lines = [json.dumps(item.record, separators=(",", ":")) for item in items if item.record]
        if lines:
            segment = ("\n".join(lines) + "\n").encode()
            wait_for_space(lambda: self._log.append(segment), announce=self._announce, wait=self._wait)
        for item in items:
            if item.then is not None:
                item.then()


def _whereabouts() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}
