"""Logs of an experiment: the lines that its trials print, kept in the store.

The driver hears the lines of its workers and writes them, about once a second, into the run's folder, and the
tracebacks of trials that fail with them:

    logs/<session>-<driver>-<number>.jsonl

``session`` counts the drivers of the run (6 digits), ``driver`` is the name of this one, and ``number`` (6 digits)
counts its files. A line of a file is an object: ``time`` (seconds since 1970, when the driver heard it), ``trials``
(their numbers; empty before a trial is told apart), ``worker``, ``stream`` (``stdout`` or ``stderr``) and ``text``.
The last file of a driver is written again with more lines until it has ``FILE_BYTES``; what a reader has read of it
stays as it was. A killed driver loses what its workers printed since the last write. Of each trial a driver keeps
``TRIAL_BYTES``, and says so in a line with ``"cut": true`` when there is more.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from hopyard.errors import Evidence, NotFoundError, StorageError, UsageError
from hopyard.hopper.journal import holder
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.storage import Store, open_store
from hopyard.tune.asking import WAIT
from hopyard.tune.listing import find_run
from hopyard.wording import describe_bytes

FOLDER = "logs"
FILE_BYTES = 256 * 1024
TRIAL_BYTES = 4 * 2**20
HELD_BYTES = 64 * 2**20
"""Bytes of lines that wait for a store that cannot be written; more are not kept."""
_PAGE_CHARACTERS = 4 * 2**20
"""Characters of lines above which a page ends."""
WRITE_EVERY = 1.0
"""Seconds between writes; stores with a URL get them five times less often, since each write is a request there."""

_TAGGED = re.compile(r"\[(?:trial (?P<trials>\d+(?:, \d+)*) · )?worker \d+\] ")
_log = logging.getLogger("hopyard")


@dataclass(frozen=True)
class LogLine:
    """A line that a trial printed, or of the traceback of its failure.

    Attributes:
        time: when the driver heard it.
        trial: number of the trial; None: the worker was not in a unit, such as when it checked the first trials.
        worker: number of the worker.
        stream: ``"stdout"`` or ``"stderr"``.
        text: the line.
    """

    time: datetime
    trial: int | None
    worker: int
    stream: str
    text: str


class Recorder:
    """Records the lines of workers: a listener of a backend, and an observer of the run, which says where to write.

    Lines heard before the run begins are written when it does.

    Args:
        runs: the store's runs.
        echo: show the lines, too, as they would be without a recorder.
        every: seconds between writes.
    """

    def __init__(self, runs: Store, echo: bool = True, every: float = WRITE_EVERY) -> None:
        self._runs, self._echo = runs, echo
        self._every = every if runs.path(FOLDER) else 5 * every
        self._folder: Store | None = None
        self._name = ""
        self._number, self._file, self._size = 0, list[bytes](), 0
        self._written: list[str] = []
        self._bytes: Counter[tuple[int, ...]] = Counter()
        self._waiting: deque[bytes] = deque()
        self._held = 0
        """Bytes of lines that are in memory."""
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._write, name="hopyard-logs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join()

    def __call__(self, state: RunState, record: JournalRecord) -> None:
        """Begin to write when a driver's session begins, and write why trials fail."""
        if record["r"] == "session":
            with self._changed:
                self._folder = self._runs.at(state.header["run_id"])
                self._name = f"{FOLDER}/{state.sessions:06d}-{record['driver']}"
                self._changed.notify()
        elif record["r"] in ("again", "end") and record.get("error"):
            number = record["t"] if record["r"] == "end" else record["t"][0]
            self._take_failure(number, Evidence.from_json(record["error"]), goes_on=record["r"] == "again")

    def _take_failure(self, trial: int, error: Evidence, *, goes_on: bool) -> None:
        """Take a trial's failure without its last output, which is here already; it is shown by the run's progress."""
        what = "failed, and goes on from its last state" if goes_on else "failed"
        for text in f"{what}: {replace(error, log='').describe()}".splitlines():
            line = {
                "time": round(time.time(), 3),
                "trials": (trial,),
                "worker": error.worker,
                "stream": "stderr",
            }
            with self._changed:
                self._take((trial,), line | {"text": text})

    def hear(self, worker: int, stream: str, text: str) -> None:
        """Take a line, with its tag."""
        tagged = _TAGGED.match(text)
        named = tagged["trials"] if tagged is not None else None
        trials = tuple(map(int, named.split(", "))) if named else ()
        line = {
            "time": round(time.time(), 3),
            "trials": trials,
            "worker": worker,
            "stream": stream,
            "text": text[tagged.end() :] if tagged is not None else text,
        }
        with self._changed:
            self._take(trials, line)
        target = sys.stdout if stream == "stdout" else sys.stderr
        if self._echo and target is not None:
            target.write(f"{text}\n")
            target.flush()

    def _take(self, trials: tuple[int, ...], line: dict[str, Any]) -> None:
        known = self._bytes[trials]
        if known > TRIAL_BYTES or self._held > HELD_BYTES:
            return
        data = _encoded(line)
        self._bytes[trials] += len(data)
        if known + len(data) > TRIAL_BYTES:
            cut = f"(more than {describe_bytes(TRIAL_BYTES)} were printed; what follows is not kept)"
            self._bytes[trials] = TRIAL_BYTES + 1
            data = _encoded(line | {"text": cut, "cut": True})
        self._held += len(data)
        self._waiting.append(data)
        self._changed.notify()

    def _write(self) -> None:
        """Write what is there, again and again, on the recorder's thread."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                closing = self._closing.is_set()
                lines, folder = list(self._waiting), self._folder
                self._waiting.clear()
            if folder is not None:
                self._write_lines(folder, lines, closing)
            if closing:
                return
            self._closing.wait(self._every)

    def _has_work(self) -> bool:
        return self._closing.is_set() or bool(self._folder is not None and (self._waiting or self._failed))

    def _write_lines(self, folder: Store, lines: list[bytes], closing: bool) -> None:
        """Logs cost no training: while a store cannot be written, lines wait, and at the end are given up."""
        self._file += lines
        try:
            while self._file:
                size, count = 0, 0
                while count < len(self._file) and size < FILE_BYTES:
                    size, count = size + len(self._file[count]), count + 1
                if size == self._size:
                    break
                name = f"{self._name}-{self._number:06d}.jsonl"
                folder.unsynced().put(name, b"".join(self._file[:count]))
                self._size = size
                if name not in self._written[-1:]:
                    self._written.append(name)
                if size >= FILE_BYTES:
                    del self._file[:count]
                    self._number, self._size = self._number + 1, 0
                    with self._changed:
                        self._held -= size
            if closing:
                folder.sync(self._written)
            self._failed = False
        except StorageError as error:
            if not self._failed or closing:
                _log.warning(f"what trials print is not kept for now; the experiment goes on. {error}")
            self._failed = True


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


# Reading


def read_logs(
    store: Store | str | os.PathLike[str],
    experiment: str,
    *,
    trial: int | None = None,
    since: datetime | None = None,
    tail: int | None = None,
    follow: bool = False,
    wait: Callable[[float], object] = WAIT,
) -> Iterator[LogLine]:
    """The lines that the trials of an experiment, or of another run, printed, in order, and why they failed.

    Args:
        trial: those of this trial only.
        since: those heard then or later.
        tail: only so many of the last ones; with ``follow``, before those to come.
        follow: go on, as lines come, until nobody drives the run.
        wait: waits for some seconds before the next look.

    Raises:
        NotFoundError: there is no such run; the message lists those there are.
    """
    folder = find_run(open_store(store), experiment)
    return _lines(_Reader(folder), folder, trial, since, tail, follow, wait)


def _lines(
    reader: _Reader,
    folder: Store,
    trial: int | None,
    since: datetime | None,
    tail: int | None,
    follow: bool,
    wait: Callable[[float], object],
) -> Iterator[LogLine]:

    def wanted() -> Iterator[LogLine]:
        for line in reader.new():
            if (trial is None or line.trial == trial) and (since is None or line.time >= since):
                yield line

    held = (
        holder(folder) if follow else None
    )  # before reading: what a driver writes is there before it lets go
    yield from wanted() if tail is None else deque(wanted(), tail)
    while held is not None:
        wait(0.5 if folder.path(FOLDER) else 2.0)
        held = holder(folder)
        yield from wanted()


class _Reader:
    """Reads the files of a run's logs, and what was added to them since."""

    def __init__(self, folder: Store) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def new(self) -> Iterator[LogLine]:
        for entry in self._folder.list(FOLDER):
            known = self._read.get(entry.name, 0)
            if entry.size > known:
                for _, end, lines in _read_on(self._folder, entry.name, known):
                    self._read[entry.name] = end
                    yield from lines


def _read_on(folder: Store, name: str, start: int) -> Iterator[tuple[int, int, list[LogLine]]]:
    """The lines of a file from a byte on: where each begins and ends, and the line of each of its trials."""
    with contextlib.suppress(NotFoundError):  # the run is being deleted
        for line in folder.get(name, start).splitlines(keepends=True):
            yield start, start + len(line), list(_lines_of(line))
            start += len(line)


@dataclass(frozen=True)
class LogPage:
    """Some lines of a log.

    Attributes:
        lines: in order.
        next: says where the lines behind these begin, those to come included.
        more: whether some of them are there already.
    """

    lines: Sequence[LogLine]
    next: str
    more: bool


def read_page(
    store: Store | str | os.PathLike[str],
    experiment: str,
    *,
    trial: int | None = None,
    after: str = "",
    most: int = 500,
) -> LogPage:
    """Lines that the trials of a run printed, as :func:`read_logs` gives them, so many at a time. Of what was read for
    the page before, nothing is read again; memory is that of one file and of the page. A line that a driver which was
    overtaken adds to its own file, once pages have come to files of the next driver, is on none of them.

    Args:
        trial: those of this trial only.
        after: ``next`` of the page before; empty: from the first line on.
        most: lines of the page; it has fewer where they are long.

    Raises:
        NotFoundError: there is no such run.
        UsageError: ``after`` is of another log, or of none.
    """
    folder = find_run(open_store(store), experiment)
    place = _place_of(folder, experiment, after)
    lines, size = list[LogLine](), 0
    for entry in folder.list(FOLDER):
        if entry.name < place[0]:
            continue
        start, given = place[1:] if entry.name == place[0] else (0, 0)
        if entry.size <= start:
            continue
        for begin, end, found in _read_on(folder, entry.name, start):
            for index, line in enumerate(found[given:], given):
                if trial is None or line.trial == trial:
                    if len(lines) == most or size > _PAGE_CHARACTERS:
                        return LogPage(lines, _named(entry.name, begin, index), True)
                    lines.append(line)
                    size += len(line.text)
            place, given = (entry.name, end, 0), 0
    return LogPage(lines, _named(*place) if place[0] else "", False)


def _named(name: str, start: int, given: int) -> str:
    """A place in a log: a file, a byte of it, and how many lines of those that begin there come before."""
    return f"{name.removeprefix(f'{FOLDER}/')}:{start}:{given}"


def _place_of(folder: Store, experiment: str, after: str) -> tuple[str, int, int]:
    if not after:
        return "", 0, 0
    found = re.fullmatch(r"([\w-]{1,100}\.jsonl):(\d{1,15}):(\d{1,9})", after, re.ASCII)
    if found is None or folder.size(f"{FOLDER}/{found[1]}") is None:
        raise UsageError(
            f"after is {after[:100]!r}, which is no place in the log of run {experiment}. Give `next` of an answer "
            "about this log, or leave it out to read from the first line on."
        )
    return f"{FOLDER}/{found[1]}", int(found[2]), int(found[3])


def _lines_of(data: bytes) -> Iterator[LogLine]:
    try:
        line = json.loads(data)
        at = datetime.fromtimestamp(line["time"], UTC)
        for trial in line["trials"] or (None,):
            yield LogLine(at, trial, line["worker"], line["stream"], line["text"])
    except (ValueError, KeyError, TypeError):  # power failed while it was written
        return


def parse_since(text: str, now: datetime | None = None) -> datetime:
    """The time that ``10m``, ``2h``, ``90s``, ``3d`` ago was, or that ``2026-01-31T10:00:00Z`` is.

    Raises:
        ValueError: it is neither.
    """
    span = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text)
    if span is not None:
        seconds = float(span[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[span[2]]
        try:
            return (now or datetime.now(UTC)) - timedelta(seconds=seconds)
        except OverflowError:  # before the year 1
            return datetime.min.replace(tzinfo=UTC)
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.astimezone()
