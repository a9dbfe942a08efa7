"""The rows of one epoch in their order: one window at hand, the next ones on their way."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Protocol

from hopyard.data.contract import EpochStream
from hopyard.data.files.fetching import next_turn, taking_turn
from hopyard.data.order import Rows, Window
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.views import Batch, Ordered, RowGroupView, Wanted, join
from hopyard.data.recipe.decoding import DecodingThreads

_AHEAD = 2  # windows: the second fills the wire while the last row groups of the first are decoded
_MANY_ROWS = 1 << 18  # their order takes milliseconds, in which row groups are decoded


class Rowset(Protocol):
    """Rows that any can be gathered from, numbered from 0."""

    def gather(self, rows: Rows, buffers: Buffers) -> Batch:
        """The rows of these numbers, in this order."""


class Rowsets(Protocol):
    """Provider of the rows of windows: a ``Reader``, or an object that makes other rows of a reader's."""

    def view(
        self, wanted: Wanted, groups: Sequence[int] | None, stopped: threading.Event | None
    ) -> Rowset | None:
        """The rows of these groups one after another, None: of all. None if ``stopped`` was set before."""

    def fetches(self, wanted: Wanted) -> bool:
        """Whether rows come from objects into the node cache: to make more of them ahead takes no memory."""


class WindowStream(EpochStream):
    """The windows of an epoch, one after another, gathered from by position.

    Args:
        reader: of what the windows' groups are.
        wanted: of a batch.
        windows: as ``epoch_windows`` made them.
    """

    def __init__(self, reader: Rowsets, wanted: Wanted, windows: Sequence[Window]) -> None:
        self._reader = reader
        self._wanted = wanted
        self._windows = windows
        self._ends = list(accumulate(window.rows for window in windows))
        self._start = self._stop = 0
        self._most = max((window.rows for window in windows), default=0)
        self._ahead: dict[int, Future[tuple[Rowset | None, Rows]]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._stopped = threading.Event()
        self._process = os.getpid()

    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Positions [first, last); behind the end comes the start."""
        if self._start <= first and last <= self._stop:
            return self._gather(first - self._start, last - self._start, buffers)
        parts = list(self._parts(first, last, buffers))
        whole = join([part for _, part in parts], buffers)
        if len(parts) > 1:  # of numbers of rows that do not come again
            buffers.forget({rows for rows, _ in parts})
        return whole

    def begin(self, first: int, last: int, buffers: Buffers, threads: DecodingThreads) -> Callable[[], Batch]:
        if not (self._start <= first and last <= self._stop and isinstance(self._view, RowGroupView)):
            return super().begin(first, last, buffers, threads)  # rows are put together once they are whole
        waits: list[Callable[[], None]] = []
        buffers.begun = threads, waits
        try:
            batch = self._gather(first - self._start, last - self._start, buffers)
        finally:
            buffers.begun = None

        def finish() -> Batch:
            for wait in waits:
                wait()
            return batch

        return finish

    def views(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Rows as ``batch`` gives them, but as views where they lie side by side in one window."""
        if not (self._start <= first and last <= self._stop):
            self._open(bisect_right(self._ends, first % self._ends[-1]))
        if self._start <= first and last <= self._stop and isinstance(self._view, RowGroupView):
            return self._view.look(self._order[first - self._start : last - self._start], buffers)
        return self.batch(first, last, buffers)

    def close(self) -> None:
        """End the work in the background: at most the rest of one row group."""
        self._leave_to_parent()
        self._stopped.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _parts(self, first: int, last: int, buffers: Buffers) -> Iterator[tuple[int, Batch]]:
        """A batch for each window that the positions are in, and how many rows it has."""
        while first < last:
            place = first % self._ends[-1]
            if not self._start <= place < self._stop:
                self._open(bisect_right(self._ends, place))
            taken = min(last - first, self._stop - place)
            begin = place - self._start
            yield taken, self._gather(begin, begin + taken, buffers)
            first += taken

    def _gather_rows(self, first: int, last: int, buffers: Buffers) -> Batch:
        return self._view.gather(self._order[first:last], buffers)

    def _leave_to_parent(self) -> None:
        """Forget, in a fork, the work in the background: its thread is only in the parent."""
        if self._process != os.getpid():
            self._ahead, self._pool = {}, None
            self._stopped, self._process = threading.Event(), os.getpid()

    def _open(self, number: int) -> None:
        self._leave_to_parent()
        fetches, later = self._reader.fetches(self._wanted), range(number + 1, number + 1 + _AHEAD)
        if fetches:  # what is wanted next is asked for right behind what is wanted now
            self._begin([number, *later], fetches)
        ahead = self._ahead.pop(number, None)
        view, order = self._load(number, next_turn()) if ahead is None else ahead.result()
        assert view is not None  # only close() stops the loading of a window
        self._view, self._order = view, order
        self._gather = Ordered(view, order).gather if isinstance(view, RowGroupView) else self._gather_rows
        self._stop = self._ends[number]
        self._start = self._stop - self._windows[number].rows
        self._ahead = {each: coming for each, coming in self._ahead.items() if each > number}
        if not fetches:
            self._begin(later, fetches)

    def _begin(self, numbers: Sequence[int], fetches: bool) -> None:
        """Begin to load windows, but for the last if they are more than one and not fetched."""
        rows = 0
        for number in numbers:
            if number >= len(self._windows):
                return
            rows += self._windows[number].rows
            if number > numbers[0] and rows > self._most and not fetches:
                return
            if number not in self._ahead:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(1 + _AHEAD, "hopyard-window")
                self._ahead[number] = self._pool.submit(self._load, number, next_turn())

    def _load(self, number: int, turn: int) -> tuple[Rowset | None, Rows]:
        window = self._windows[number]
        groups = None if len(self._windows) == 1 else window.groups
        with taking_turn(turn):
            if window.rows < _MANY_ROWS:
                return self._reader.view(self._wanted, groups, self._stopped), window.order()
            with ThreadPoolExecutor(1, "hopyard-order") as pool:
                order = pool.submit(window.order)
                return self._reader.view(self._wanted, groups, self._stopped), order.result()
