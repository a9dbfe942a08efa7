"""Batches of an epoch made ahead: while one is used, a thread makes the next ones.

For rows that are decoded for every batch; gathering others takes less time than handing them over.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from hopyard.data.contract import EpochStream
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.views import Batch

_AHEAD = 2  # batches; with the one in use they fit in the buffers that are kept


class AheadStream(EpochStream):
    """The stream that ``open_stream`` opens, used by a thread of its own.

    Args:
        open_stream: opens the rows of an epoch; called once a process.
        spans: [first, last) of the batches that will be asked for. Others may be asked for, too: they are made when they
            are, and those that are left behind are not made ahead.
    """

    def __init__(self, open_stream: Callable[[], EpochStream], spans: Iterator[tuple[int, int]]) -> None:
        self._open, self._spans = open_stream, spans
        self._coming: deque[tuple[int, int, Future[Batch]]] = deque()
        self._stream = open_stream()
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        self._leave_to_parent()
        while self._coming and self._coming[0][0] < first:  # they were left out
            self._coming.popleft()[2].cancel()
        if self._coming and self._coming[0][:2] == (first, last):
            made = self._coming.popleft()[2]
        else:
            made = self._submit(first, last, buffers)
        self._make_ahead(last, buffers)
        return made.result()

    def views(self, first: int, last: int, buffers: Buffers) -> Batch:
        self._leave_to_parent()
        return self._run().submit(self._stream.views, first, last, buffers).result()

    def close(self) -> None:
        self._leave_to_parent()
        self._coming.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._stream.close()

    def _make_ahead(self, first: int, buffers: Buffers) -> None:
        """Begin the next batches whose rows begin at ``first`` or behind."""
        while len(self._coming) < _AHEAD and (span := next(self._spans, None)) is not None:
            if span[0] >= first:
                self._coming.append((*span, self._submit(*span, buffers)))

    def _submit(self, first: int, last: int, buffers: Buffers) -> Future[Batch]:
        return self._run().submit(self._stream.batch, first, last, buffers)

    def _run(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "hopyard-ahead")
        return self._pool

    def _leave_to_parent(self) -> None:
        """Open, in a fork, the rows anew: the thread that uses the stream is only in the parent."""
        if self._process != os.getpid():
            self._coming.clear()
            self._stream, self._pool, self._process = self._open(), None, os.getpid()
