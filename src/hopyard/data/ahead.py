"""Batches of an epoch made ahead: while one is used, a thread gathers the next ones, and others decode them, one batch
right behind the other.

For rows that are decoded for every batch; gathering others takes less time than handing them over.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from hopyard.data.contract import EpochStream
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.views import Batch
from hopyard.data.recipe.decoding import DecodingThreads

_AHEAD = 2  # batches


class AheadStream(EpochStream):
    """The stream that ``open_stream`` opens, used by a thread of its own, in memory of its own.

    Args:
        open_stream: opens the rows of an epoch; called once a process.
        spans: [first, last) of the batches that will be asked for. Others may be asked for, too: they are made when
            they are, and those that are left behind are not made ahead.
        spare: memory that earlier streams of the loader have left, for this one to take and leave.
    """

    def __init__(
        self, open_stream: Callable[[], EpochStream], spans: Iterator[tuple[int, int]], spare: list[Buffers]
    ) -> None:
        self._open, self._spans, self._spare = open_stream, spans, spare
        self._stream = open_stream()
        self._buffers: Buffers | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._threads = DecodingThreads()
        self._coming: deque[tuple[int, int, Future[Callable[[], Batch]]]] = deque()
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
        return made.result()()

    def close(self) -> None:
        self._leave_to_parent()
        self._coming.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._threads.close()
        if self._buffers is not None:
            self._spare.append(self._buffers)
        self._pool = self._buffers = None
        self._stream.close()

    def _submit(self, first: int, last: int, buffers: Buffers) -> Future[Callable[[], Batch]]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "hopyard-ahead")
        if self._buffers is None:  # those given may be in use by the thread of an iteration that was left
            self._buffers = self._spare.pop() if self._spare else copy.copy(buffers)
        return self._pool.submit(self._stream.begin, first, last, self._buffers, self._threads)

    def _leave_to_parent(self) -> None:
        """Open, in a fork, the rows anew: the thread that uses the stream is only in the parent."""
        if self._process != os.getpid():
            self._coming.clear()
            self._stream, self._threads, self._process = self._open(), DecodingThreads(), os.getpid()
            self._pool = self._buffers = None
