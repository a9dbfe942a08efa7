"""Row groups of objects on their way into memory: few large requests, several at once, begun before they are needed."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from hopyard.data.files.stored import StoredFile

T = TypeVar("T")

AHEAD_BYTES = 192 << 20
"""Bytes of objects that are in memory or on their way at once, in a loader; a row group that is larger is so alone."""

REQUEST_BYTES = 8 << 20
"""Bytes of a request at most: over 30 ms and 100 MB/s, larger ones gain nothing."""

_GAP = (
    64 << 10
)  # bytes between chunks that are fetched with them: less than what passes in the time of a request
_REQUESTS = 16  # at once: 8 of 8 MiB fill a wire of 1 GB/s, smaller ones need more of them
_DICTIONARY = 100  # bytes that old writers did not count to a chunk (PARQUET-816)


class Fetch:
    """Columns of row groups of one object, on their way. Close it, or wait for its result, in the end.

    Attributes:
        nbytes: of all requests.
    """

    def __init__(self, file: StoredFile, groups: Sequence[int], columns: Iterable[str]) -> None:
        self._file = file
        self._chunks = [(group, leaf) for leaf in file.leaves_of(columns) for group in groups]
        ranges = _ranges(file, self._chunks)
        self.nbytes: int = sum(end - start for start, end in ranges)
        self._descriptor = memory_file()
        pool = _requests.pool()
        self._coming: list[Future[None]] = [pool.submit(self._receive, *each) for each in ranges]

    def result(self) -> StoredFile:
        """The object as a file in memory, of which these chunks are there, and nothing else.

        Raises:
            CorruptError: the object was changed, or a chunk is not what was written.
            StorageError: they cannot be read.
        """
        try:
            for coming in self._coming:
                coming.result()
            os.ftruncate(self._descriptor, self._file.size)
            self._file.check_fetched(self._descriptor, self._chunks)
        except BaseException:
            self.close()
            raise
        path = Path(f"/dev/fd/{self._descriptor}")
        near = replace(self._file, path=path, origin=self._file)
        near.__dict__.update(_footer=self._file.footer, _checks=None)  # compared already
        weakref.finalize(near, os.close, self._descriptor)
        self._descriptor = -1
        return near

    def close(self) -> None:
        """Drop what has come, and ask for no more."""
        for coming in self._coming:
            coming.cancel()
        for coming in self._coming:
            if not coming.cancelled():
                coming.exception()  # those that were sent are answered before their memory goes
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _receive(self, start: int, end: int) -> None:
        data = memoryview(self._file.read(start, end - start))
        while data:
            written = os.pwrite(self._descriptor, data, start)
            start, data = start + written, data[written:]


def fetched(file: StoredFile, groups: Sequence[int], columns: Iterable[str]) -> StoredFile:
    """The file, if it is at a path; else columns of its row groups as a file in memory. Raises as ``Fetch.result``."""
    return file if file.path is not None else Fetch(file, groups, columns).result()


def fetched_groups(
    file: StoredFile, groups: Sequence[int], columns: Iterable[str]
) -> Iterator[tuple[int, StoredFile]]:
    """Each row group with the file, or with a file in memory that has these columns of it; the next ones are on
    their way. Raises as ``Fetch.result``."""
    if file.path is not None:
        yield from ((group, file) for group in groups)
        return
    columns = list(columns)
    for group, (fetch,) in fetched_ahead(groups, lambda group: [Fetch(file, [group], columns)]):
        yield group, fetch.result()


def fetched_ahead(
    items: Iterable[T], begin: Callable[[T], Sequence[Fetch]], most: int = AHEAD_BYTES
) -> Iterator[tuple[T, Sequence[Fetch]]]:
    """Each item with its fetches, of which the next ones are under way: as many as ``most`` bytes allow, one at least.

    Those of an item count until the next item is asked for. Fetches whose items were not given out are closed.
    """
    source = iter(items)
    waiting: deque[tuple[T, Sequence[Fetch], int]] = deque()
    used, is_over = 0, False
    try:
        while True:
            while not is_over and (not waiting or sum(each[2] for each in waiting) + used < most):
                try:
                    item = next(source)
                except StopIteration:
                    is_over = True
                    break
                fetches = begin(item)
                waiting.append((item, fetches, sum(fetch.nbytes for fetch in fetches)))
            if not waiting:
                return
            item, fetches, used = waiting.popleft()
            yield item, fetches
            used = 0
    finally:
        for _, fetches, _ in waiting:
            for fetch in fetches:
                fetch.close()


def memory_file() -> int:
    """Descriptor of a file without a name, which is gone when it is closed: in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hopyard", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _ranges(file: StoredFile, chunks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """[start, end) of the requests for these chunks, in order."""
    stretches: list[list[int]] = []
    for start, end in sorted(file.chunk_bounds(group, leaf) for group, leaf in chunks):
        end = min(end + (0 if file.checks else _DICTIONARY), file.size)
        if stretches and start - stretches[-1][1] <= _GAP:
            stretches[-1][1] = max(end, stretches[-1][1])
        elif 0 <= start < end:
            stretches.append([start, end])
    ranges: list[tuple[int, int]] = []
    for start, end in stretches:
        count = -(-(end - start) // REQUEST_BYTES)
        bounds = [start + (end - start) * number // count for number in range(count + 1)]
        ranges += pairwise(bounds)
    return ranges


class _Requests:
    """Threads that wait for answers, of the whole process; a fork has its own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_REQUESTS, "hopyard-fetch")
        return self._pool

    def forget(self) -> None:
        self._pool = None


_requests = _Requests()
os.register_at_fork(after_in_child=_requests.forget)
