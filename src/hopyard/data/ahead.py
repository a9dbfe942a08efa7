"""Batches of an epoch made ahead: while one is used, threads make the next ones.

For rows that are decoded for every batch; gathering others takes less time than handing them over.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from hopyard.data.contract import EpochStream
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.views import Batch
from hopyard.data.recipe.decoding import usable_cores

_AHEAD = 2  # batches
_LANES = 2  # while a batch ends, and a core has nothing left to do of it, the next one is under way


@dataclass
class _Lane:
    """A stream, a thread that uses it, and memory for its batches."""

    stream: EpochStream
    buffers: Buffers
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "hopyard-ahead"))


class AheadStream(EpochStream):
    """The stream that ``open_stream`` opens, used by threads of its own.

    Args:
        open_stream: opens the rows of an epoch, for each thread.
        spans: [first, last) of the batches that will be asked for. Others may be asked for, too: they are made when they
            are, and those that are left behind are not made ahead.
    """

    def __init__(self, open_stream: Callable[[], EpochStream], spans: Iterator[tuple[int, int]]) -> None:
        self._open, self._spans = open_stream, spans
        self._lanes: deque[_Lane] = deque()  # the first one's turn is next
        self._first: EpochStream | None = open_stream()  # what is wrong with the files is said here
        self._coming: deque[tuple[int, int, Future[Batch]]] = deque()
        self._process = os.getpid()

    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        self._leave_to_parent()
        while self._coming and self._coming[0][0] < first:  # they were left out
            self._coming.popleft()[2].cancel()
        if self._coming and self._coming[0][:2] == (first, last):
            made = self._coming.popleft()[2]
        else:
            made = self._submit(first, last, buffers)
        while len(self._coming) < _AHEAD and (span := next(self._spans, None)) is not None:
            if span[0] >= last:
                self._coming.append((*span, self._submit(*span, buffers)))
        return made.result()

    def close(self) -> None:
        self._leave_to_parent()
        self._coming.clear()
        for lane in self._lanes:
            lane.pool.shutdown(wait=False, cancel_futures=True)
        for lane in self._lanes:
            lane.pool.shutdown()
            lane.stream.close()
        if self._first is not None:
            self._first.close()

    def _submit(self, first: int, last: int, buffers: Buffers) -> Future[Batch]:
        if len(self._lanes) < min(_LANES, usable_cores()):
            stream, self._first = self._first or self._open(), None
            self._lanes.appendleft(_Lane(stream, copy.copy(buffers)))
        lane = self._lanes[0]
        self._lanes.rotate(-1)
        return lane.pool.submit(lane.stream.batch, first, last, lane.buffers)

    def _leave_to_parent(self) -> None:
        """Open, in a fork, the rows anew: the threads that use the streams are only in the parent."""
        if self._process != os.getpid():
            self._coming.clear()
            self._lanes.clear()
            self._process = os.getpid()
