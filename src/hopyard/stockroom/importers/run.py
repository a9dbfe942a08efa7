"""The driver: columns in chunks, in order, in this process or by several, with bounded memory.

Columns of the same count go together: samples [start, stop) of all of them are one task, as what is opened for one
column is often what the others need. So labels come with their images, chunk by chunk; within a column, starts rise.

Several processes are started fresh (``spawn``); a script that uses them needs ``if __name__ == "__main__":``. They are
worth it where samples are decoded; what is only mapped is faster here.
"""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import numpy as np

from hopyard.errors import (
    DataError,
    HopyardError,
    MissingExtraError,
    StorageError,
    UsageError,
    WorkerLostError,
)
from hopyard.stockroom.importers.base import ColumnSource, Samples
from hopyard.stockroom.importers.parcels import Parcel, unwrap, wrap
from hopyard.storage.temporary import temporary_name
from hopyard.wording import counted

CHUNK_BYTES = 8 << 20
"""Bytes of a chunk of all columns of a group, about."""

_FIRST = 32  # samples of unknown size in a first chunk
_MOST = 1 << 16  # samples of a chunk
_AHEAD = 2  # chunks under way for each process


@dataclass(frozen=True)
class ImportProgress:
    """Progress of an import.

    Attributes:
        done, total: samples of all columns, with those before a resumed start.
        seconds: since the run began.
        rate: samples per second of this run.
        left: seconds until the end at this rate; None: unknown yet.
    """

    done: int
    total: int
    seconds: float
    rate: float
    left: float | None


def read_columns(
    columns: Sequence[ColumnSource],
    *,
    processes: int = 0,
    start: Mapping[str, int] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    watch: Callable[[ImportProgress], None] | None = None,
) -> Iterator[tuple[str, int, Samples]]:
    """Name, number of the first sample, and samples: every sample of every column, once.

    Memory: at most two chunks for each process (one without processes); a chunk has one sample at least.

    Args:
        columns: of one importer, which stays open.
        processes: that read; 0: this one.
        start: first sample wanted of columns that were partly read before.
        chunk_bytes: of samples that are read and given together.
        watch: called after each chunk that was taken.

    Raises:
        DataError, CorruptError, ...: what reading a sample raised, with column and number before it. Nothing is lost:
            all before it was given, and a run can begin there.
        WorkerLostError: a process ended, killed for memory for example.
        UsageError: columns cannot be sent to processes; a start that is no sample.
    """
    names = [column.name for column in columns]
    starts = {column.name: 0 for column in columns} | dict(start or {})
    for name, first in starts.items():
        count = columns[names.index(name)].count if name in names else -1
        if not 0 <= first <= count:
            known = f"it has {count} samples" if name in names else f"the columns are {', '.join(names)}"
            raise UsageError(f"Column {name!r} is to start at sample {first}, but {known}.")
    groups: dict[tuple[int, int], list[int]] = {}
    for number, column in enumerate(columns):
        groups.setdefault((column.count, starts[column.name]), []).append(number)
    meter = _Meter(sum(starts.values()), sum(column.count for column in columns), watch)
    reader = _Processes(columns, processes) if processes else _Here(columns)
    try:
        for (count, first), numbers in groups.items():
            sizes = _Sizes([columns[number] for number in numbers], chunk_bytes)
            for begin, arrays in _ordered(reader, numbers, first, count, sizes):
                sizes.learn(arrays)
                for number, samples in zip(numbers, arrays, strict=True):
                    yield columns[number].name, begin, samples
                    meter.done += len(samples)
                meter.tell()
    finally:
        reader.close()


def _ordered(
    reader: _Here | _Processes, numbers: Sequence[int], first: int, count: int, sizes: _Sizes
) -> Iterator[tuple[int, list[Samples]]]:
    """Chunks of a group in order, ``reader.ahead`` of them under way."""
    waiting: deque[tuple[int, Callable[[], list[Samples]]]] = deque()
    while first < count or waiting:
        while first < count and len(waiting) < reader.ahead:
            stop = min(first + sizes.rows(), count)
            waiting.append((first, reader.submit(numbers, first, stop)))
            first = stop
        begin, result = waiting.popleft()
        yield begin, result()


class _Sizes:
    """Numbers of samples of a chunk. Samples of unknown size are as large as the largest chunk says so far; as this may
    be wrong, a chunk has at most twice the samples of one that was read."""

    def __init__(self, columns: Sequence[ColumnSource], chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._known = sum(column.width or 0 for column in columns)
        self._varying = [number for number, column in enumerate(columns) if column.width is None]
        self._largest = 0.0
        self._most = _FIRST if self._varying else _MOST

    def rows(self) -> int:
        return max(1, min(self._most, int(self._chunk_bytes / max(self._known + self._largest, 1))))

    def learn(self, arrays: Sequence[Samples]) -> None:
        for number in self._varying:
            size = sum(len(s) if isinstance(s, str | bytes) else s.nbytes for s in arrays[number])
            self._largest = max(self._largest, size / len(arrays[number]))
            self._most = min(max(self._most, 2 * len(arrays[number])), _MOST)


class _Meter:
    def __init__(self, done: int, total: int, watch: Callable[[ImportProgress], None] | None) -> None:
        self.done, self._total, self._watch = done, total, watch
        self._before, self._began = done, time.monotonic()

    def tell(self) -> None:
        if self._watch is None:
            return
        seconds = time.monotonic() - self._began
        rate = (self.done - self._before) / max(seconds, 1e-9)
        left = (self._total - self.done) / rate if rate else None
        self._watch(ImportProgress(self.done, self._total, seconds, rate, left))


class _Here:
    """Reads in this process, when the samples are asked for."""

    ahead = 1

    def __init__(self, columns: Sequence[ColumnSource]) -> None:
        self._columns = columns

    def submit(self, numbers: Sequence[int], start: int, stop: int) -> Callable[[], list[Samples]]:
        return lambda: _read([self._columns[number] for number in numbers], start, stop)

    def close(self) -> None:
        pass


class _Processes:
    """Reads in several processes, each of which was sent the columns once."""

    def __init__(self, columns: Sequence[ColumnSource], processes: int) -> None:
        try:
            sent = cloudpickle.dumps(list(columns))
        except Exception as error:  # pickling runs code of the columns
            raise UsageError(
                f"The columns cannot be sent to other processes ({type(error).__name__}: {error}). Make the source "
                "picklable, or read it with processes=0."
            ) from error
        self.ahead = _AHEAD * processes
        self._folder = Path(tempfile.mkdtemp(prefix=temporary_name()))
        self._pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (sent,))

    def submit(self, numbers: Sequence[int], start: int, stop: int) -> Callable[[], list[Samples]]:
        try:
            path = self._folder / f"{numbers[0]}-{start}"
            future: Future[Parcel] = self._pool.submit(_work, list(numbers), start, stop, path)
        except BrokenProcessPool as error:
            raise _lost() from error

        def result() -> list[Samples]:
            try:
                return unwrap(future.result())
            except BrokenProcessPool as error:
                raise _lost() from error

        return result

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _lost() -> WorkerLostError:
    return WorkerLostError(
        "A process that reads samples ended before its work was done. If it was killed for memory, use fewer processes "
        'or a smaller chunk_bytes; a script has to call this below `if __name__ == "__main__":`, or with processes=0.'
    )


_columns: list[ColumnSource] = []


def _begin(sent: bytes) -> None:
    _columns[:] = pickle.loads(sent)


def _work(numbers: Sequence[int], start: int, stop: int, path: Path) -> Parcel:
    return wrap(_read([_columns[number] for number in numbers], start, stop), path)


def _read(columns: Sequence[ColumnSource], start: int, stop: int) -> list[Samples]:
    return [_read_one(column, start, stop) for column in columns]


def _read_one(column: ColumnSource, start: int, stop: int) -> Samples:
    """Samples that were checked; what fails is tried again one by one, to say which sample it is."""
    try:
        samples = column.read(start, stop)
        check_samples(column, samples, stop - start)
        return samples
    except MissingExtraError:
        raise
    except Exception:
        for number in range(start, stop):
            try:
                check_samples(column, column.read(number, number + 1), 1)
            except Exception as error:
                raise _named(column, number, error) from error
        raise


def _named(column: ColumnSource, number: int, error: Exception) -> HopyardError:
    where = f"Sample {number} of column {column.name!r}"
    if isinstance(error, HopyardError):
        return type(error)(f"{where}: {error}")
    kind = StorageError if isinstance(error, OSError) else DataError
    return kind(f"{where} cannot be read ({type(error).__name__}: {error}). Look at the source there.")


def check_columns(columns: Sequence[ColumnSource]) -> None:
    """Raise DataError unless all columns of a split have as many samples, and are called as columns of it are."""
    first: dict[str, ColumnSource] = {}
    for column in columns:
        if column.split and not column.name.startswith(f"{column.split}-"):
            raise DataError(
                f"the column {column.name!r} is of the split {column.split!r}, but the names of a split's columns "
                f"begin with it. Call it '{column.split}-{column.name}'."
            )
        other = first.setdefault(column.split, column)
        if other.count != column.count:
            raise DataError(
                f"the column {other.name!r} has {counted(other.count, 'sample')}, and {column.name!r} has "
                f"{column.count:,}, but samples i of all columns of one split belong together, so these have the same "
                "count. Give columns of one length, or import each length from a source of its own; columns of another "
                "split are called by it, as 'test-image' (and an importer says so by ColumnSource.split)."
            )


def check_samples(column: ColumnSource, samples: Samples, count: int) -> None:
    """Raise DataError unless these are ``count`` samples as the column says they are."""
    if column.kind != "tensor":
        wanted: type = str if column.kind == "string" else bytes
        if not isinstance(samples, list) or not all(isinstance(each, wanted) for each in samples):
            raise DataError(
                f"the source gave no list of {wanted.__name__}, but the column is of {column.kind}."
            )
    elif column.shape is None:
        for array in samples:
            _check_array(array, column.dtype)
    elif isinstance(samples, np.ndarray):
        _check_array(samples, column.dtype)
        if samples.shape[1:] != column.shape:
            raise DataError(f"it is of shape {samples.shape[1:]}, but the column of {column.shape}.")
    else:
        shapes = {np.shape(each) for each in samples}
        raise DataError(
            f"it is of shape {', '.join(map(str, sorted(shapes)))}, but the column of {column.shape}. Give all samples "
            "one shape, or say that the column's differ (variable=)."
        )
    if len(samples) != count:
        raise DataError(f"the source gave {len(samples)} samples instead of {count}.")


def _check_array(array: object, dtype: str) -> None:
    found = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
    if found != dtype:
        raise DataError(f"it is of dtype {found}, but the column of {dtype}. Give all samples one dtype.")
