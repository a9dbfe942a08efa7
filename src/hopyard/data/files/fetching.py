"""Row groups of objects on their way into memory: few large requests, several at once, begun before they are needed."""

from __future__ import annotations

import heapq
import itertools
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from hopyard.data.files.stored import StoredFile

T = TypeVar("T")

AHEAD_BYTES = 96 << 20
"""Bytes of objects that are in memory or on their way at once, in a process; each reader has one row group anyway."""

_REQUEST = 16 << 20  # bytes at most: over 30 ms and 100 MB/s, larger ones gain nothing
_GAP = (
    64 << 10
)  # bytes between chunks that are fetched with them: less than what passes in the time of a request
_ITEMS_AHEAD = 64  # of a reader: each may be a file in memory and a claim, of 1,024 descriptors in a process
_AT_ONCE = 16  # requests: small ones need many to fill a wire
_BYTES_AT_ONCE = 64 << 20  # of requests: fills 1 GB/s at 30 ms; of more, all come only when all are here
_DICTIONARY = 100  # bytes that old writers did not count to a chunk (PARQUET-816)


class Fetch:
    """Columns of row groups of one object, on their way. Close it, or wait for its result, in the end.

    Attributes:
        file: the object.
        nbytes: of the chunks and the gaps between them.
        closed: nobody wants the bytes any more.
    """

    def __init__(
        self, requests: Requests, file: StoredFile, groups: Sequence[int], columns: Iterable[str]
    ) -> None:
        self._requests = requests
        self.file: StoredFile = file
        self._chunks = [(group, leaf) for leaf in file.leaves_of(columns) for group in groups]
        self._coming: list[Future[None]] = []
        self.closed: bool = False
        stretches = _stretches(file, self._chunks)
        self.nbytes: int = sum(end - start for start, end in stretches)
        self._descriptor = memory_file()
        for start, end in stretches:
            requests.add(self, start, end)

    def expect(self, coming: Future[None]) -> None:
        """Count an answer, which was asked for together with another fetch's, to this one's."""
        self._coming.append(coming)

    def receive(self, start: int, data: memoryview) -> None:
        """Keep bytes of the object."""
        while data:
            written = os.pwrite(self._descriptor, data, start)
            start, data = start + written, data[written:]

    def result(self) -> StoredFile:
        """The object as a file in memory, in which these chunks are, and nothing else.

        Raises:
            CorruptError: the object was changed, or a chunk is not what was written.
            StorageError: they cannot be read.
        """
        try:
            self._requests.send(self)
            for coming in self._coming:
                coming.result()
            os.ftruncate(self._descriptor, self.file.size)
            self.file.check_fetched(self._descriptor, self._chunks)
        except BaseException:
            self.close()
            raise
        near = replace(self.file, path=Path(f"/dev/fd/{self._descriptor}"), origin=self.file)
        near.__dict__.update(_footer=self.file.footer, _checks=None)  # compared already
        weakref.finalize(near, os.close, self._descriptor)
        self._descriptor = -1
        return near

    def close(self) -> None:
        """Drop the bytes that have come, and wait for no more of them."""
        if self._descriptor < 0:
            return
        self.closed = True
        self._requests.send(self)
        for coming in self._coming:
            coming.exception()  # an answer on its way comes before its memory goes
        os.close(self._descriptor)
        self._descriptor = -1


@dataclass
class _Range:
    """Bytes [start, end) of an object, and the fetches that want parts of them."""

    start: int
    end: int
    wanted: list[tuple[Fetch, int, int]] = field(default_factory=list)


class Requests:
    """Requests for stretches of objects that are asked for one after another: neighbours travel together.

    The last one waits for its successor, until :meth:`send`. Threads may share it. Requests of this process are sent in
    the order of their turns, which is that of ``Requests`` being made where the thread has none (:func:`taking_turn`).
    """

    def __init__(self) -> None:
        self._turn: int = getattr(_here, "turn", None) or next(_turns)
        self._open: _Range | None = None
        self._lock = threading.Lock()

    def add(self, fetch: Fetch, start: int, end: int) -> None:
        """Ask for [start, end) of the fetch's object."""
        with self._lock:
            last = self._open
            if (
                last is None
                or last.wanted[0][0].file != fetch.file
                or not last.start <= start <= last.end + _GAP
            ):
                self._send()
                last = self._open = _Range(start, start)
            last.end = max(end, last.end)
            last.wanted.append((fetch, start, end))
            while last.end - last.start >= _REQUEST:
                cut = last.start + _REQUEST
                rest = _Range(cut, last.end, [each for each in last.wanted if each[2] > cut])
                last.end = cut
                self._send()
                last = self._open = rest if rest.wanted else None
                if last is None:
                    return

    def send(self, fetch: Fetch | None = None) -> None:
        """Wait for no successor any more, if this fetch (None: any) wants a part of the last request."""
        with self._lock:
            if self._open is not None and (
                fetch is None or any(each is fetch for each, _, _ in self._open.wanted)
            ):
                self._send()

    def _send(self) -> None:
        wanted, self._open = self._open, None
        if wanted is not None:
            coming = _wire.send(self._turn, wanted)
            for fetch, _, _ in wanted.wanted:
                fetch.expect(coming)


_turns = itertools.count(1)
_here = threading.local()


def next_turn() -> int:
    """A turn behind all that there were."""
    return next(_turns)


@contextmanager
def taking_turn(turn: int) -> Iterator[None]:
    """While this lasts, the requests of this thread are sent before those of later turns."""
    _here.turn = turn
    try:
        yield
    finally:
        del _here.turn


def _receive(wanted: _Range) -> None:
    if all(fetch.closed for fetch, _, _ in wanted.wanted):
        return

    def keep(position: int, data: memoryview) -> None:
        for fetch, start, end in wanted.wanted:
            first, last = max(start, position), min(end, position + len(data))
            if first < last:
                fetch.receive(first, data[first - position : last - position])

    file = wanted.wanted[0][0].file
    file.receive(wanted.start, wanted.end - wanted.start, keep)


class Ahead(Generic[T]):
    """Items one after another with their fetches, of which the next ones are under way. Threads may share it.

    Args:
        items: in the order in which they are taken; asked for in one thread at a time.
        begin: begins the fetches of an item.
    """

    def __init__(self, items: Iterable[T], begin: Callable[[T, Requests], Sequence[Fetch]]) -> None:
        self._items, self._begin = iter(items), begin
        self._requests = Requests()
        self._waiting: deque[tuple[T, Sequence[Fetch], int]] = deque()
        self._is_over = False
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[tuple[T, Sequence[Fetch]] | None]:
        """The next item with its fetches, which count as long as the context lasts; None: there is none."""
        with self._lock:
            while not self._is_over and (not self._waiting or self._looks_ahead()):
                self._add()
            taken = self._waiting.popleft() if self._waiting else None
        try:
            yield None if taken is None else taken[:2]
        finally:
            for fetch in () if taken is None else taken[1]:
                fetch.close()
            _wire.count(0 if taken is None else -taken[2])

    def _looks_ahead(self) -> bool:
        """Whether the next item is to be begun before it is taken. Items that fetch nothing are left to others."""
        return bool(self._waiting[-1][1]) and len(self._waiting) < _ITEMS_AHEAD and _wire.used < AHEAD_BYTES

    def _add(self) -> None:
        try:
            item = next(self._items)
        except StopIteration:
            self._is_over = True
            self._requests.send()
            return
        fetches = self._begin(item, self._requests)
        size = sum(fetch.nbytes for fetch in fetches)
        self._waiting.append((item, fetches, size))
        _wire.count(size)

    def close(self) -> None:
        """Take no more: fetches that nobody took are closed."""
        with self._lock:
            self._is_over = True
            for _, fetches, size in self._waiting:
                for fetch in fetches:
                    fetch.close()
                _wire.count(-size)
            self._waiting.clear()


def fetched_ahead(
    items: Iterable[T], begin: Callable[[T, Requests], Sequence[Fetch]]
) -> Iterator[tuple[T, Sequence[Fetch]]]:
    """The items of an :class:`Ahead`, for one thread; an item's fetches count until the next one is asked for."""
    ahead = Ahead(items, begin)
    try:
        while True:
            with ahead.taken() as taken:
                if taken is None:
                    return
                yield taken
    finally:
        ahead.close()


def fetched(file: StoredFile, groups: Sequence[int], columns: Iterable[str]) -> StoredFile:
    """The file, if it is at a path; else columns of its row groups as a file in memory. Raises as ``Fetch.result``."""
    return file if file.path is not None else Fetch(Requests(), file, groups, columns).result()


def fetched_groups(
    file: StoredFile, groups: Sequence[int], columns: Iterable[str]
) -> Iterator[tuple[int, StoredFile]]:
    """Each row group with the file, or with a file in memory that has these columns of it; the next ones are on
    their way. Raises as ``Fetch.result``."""
    if file.path is not None:
        yield from ((group, file) for group in groups)
        return
    columns = list(columns)
    for group, (fetch,) in fetched_ahead(
        groups, lambda group, requests: [Fetch(requests, file, [group], columns)]
    ):
        yield group, fetch.result()


def memory_file() -> int:
    """Descriptor of a file without a name, which is gone when it is closed: in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hopyard", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _stretches(file: StoredFile, chunks: Iterable[tuple[int, int]]) -> list[list[int]]:
    """[start, end) of chunks that follow each other, in order."""
    stretches: list[list[int]] = []
    for start, end in sorted(file.chunk_bounds(group, leaf) for group, leaf in chunks):
        end = min(end + (0 if file.checks else _DICTIONARY), file.size)
        if stretches and start - stretches[-1][1] <= _GAP:
            stretches[-1][1] = max(end, stretches[-1][1])
        elif 0 <= start < end:
            stretches.append([start, end])
    return stretches


class _Wire:
    """Threads that wait for answers, and the bytes that are here or on their way, of the whole process; a fork has its
    own.

    Attributes:
        used: these bytes.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.used = 0
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Condition()
        self._waiting: list[tuple[int, int, _Range, Future[None]]] = []  # a heap
        self._sent = itertools.count()
        self._passing = 0  # bytes

    def count(self, more: int) -> None:
        with self._lock:
            self.used += more

    def send(self, turn: int, wanted: _Range) -> Future[None]:
        """Have a range received, behind those of earlier turns; the future is done when it is."""
        coming = Future[None]()
        with self._lock:
            heapq.heappush(self._waiting, (turn, next(self._sent), wanted, coming))
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_AT_ONCE, "hopyard-fetch")
            self._threads.submit(self._receive_next)
        return coming

    def _receive_next(self) -> None:
        with self._lock:
            self._lock.wait_for(
                lambda: not self._passing or self._passing + self._next_size() <= _BYTES_AT_ONCE
            )
            size = self._next_size()
            _, _, wanted, coming = heapq.heappop(self._waiting)
            self._passing += size
        failed: BaseException | None = None
        try:
            _receive(wanted)
        except BaseException as error:
            failed = error
        with self._lock:
            self._passing -= size
            self._lock.notify_all()
        if failed is None:
            coming.set_result(None)
        else:
            coming.set_exception(failed)

    def _next_size(self) -> int:
        wanted = self._waiting[0][2]
        return wanted.end - wanted.start


_wire = _Wire()
os.register_at_fork(after_in_child=_wire.forget)
