"""Batches read from a store while a model trains: one object each, or records of a fixed size out of larger objects.

A :class:`Stream` gives batches by number. Requests for the batches that come next are under way while one is used: in
the order that is given to :meth:`Stream.batches`, or, where batches are asked for by number, in the order in which they
were asked for so far, if those numbers are evenly spaced (all of them, every other one in one of two workers, or those
of one rank). At most ``AHEAD_BYTES`` are here before they are asked for, in all workers of a DataLoader together.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from hopyard.checks import integer
from hopyard.errors import CorruptError, DataError, HopyardError, StorageError, UsageError
from hopyard.experiment.remote import REQUEST, RemoteObject, find
from hopyard.missing import missing_extra
from hopyard.storage import HDFSStore, ObjectStore, Store
from hopyard.storage.forks import check_process

AHEAD_BYTES: int = 64 << 20
"""Bytes of batches that are in memory or on their way before they are asked for."""

_AT_ONCE = 16  # requests
_FEWEST_AT_ONCE = 4  # requests of one of many workers
_AT_ONCE_OPENED = 16  # URLs that are looked at
_LEAST = 16 << 10  # bytes that each batch counts for at least, so that not too many are begun


def stream(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    decode: Callable[[bytearray], Any] = bytes,
    *,
    record_bytes: int | None = None,
    batch_size: int | None = None,
    header_bytes: int | None = None,
) -> Stream:
    """Batches that are read from a store when they are asked for, or shortly before.

    ::

        stream("s3://bucket/train/part-*.npy", lambda data: np.load(io.BytesIO(data)))
        stream("s3://bucket/train.bin", decode, record_bytes=3073, batch_size=256)

    Args:
        urls: of an object, all objects below a prefix, or those that match a pattern (``*``, ``?``, ``[...]``), in the
            order of their names; or several of these, in their order. Stores are those of ``download``.
        decode: makes a batch of the bytes of an object, or of ``batch_size`` records. It may keep them, and write to
            them.
        record_bytes: size of a record, where objects hold records; None: each object is a batch.
        batch_size: records of a batch; 1 if not given. The last batch has what is left, and batches go on from one
            object to the next.
        header_bytes: before the first record of each object.

    Raises:
        NotFoundError: there is no object.
        DataError: an object does not hold a whole number of records, or there is none.
        UsageError: an argument is not as described here.
        StorageError: the store cannot be read.
    """
    if not callable(decode):
        raise UsageError(f"decode={decode!r}, but it must be a function of the bytes of a batch.")
    if record_bytes is None and (batch_size is not None or header_bytes is not None):
        raise UsageError(
            "batch_size= and header_bytes= were given without record_bytes=, but they are about records, and without "
            "it each object is a batch. Give the size of a record, too."
        )
    one = isinstance(urls, str | os.PathLike)
    given = [urls] if one else list(urls)  # type: ignore[arg-type]
    if not given:
        raise UsageError(
            "urls=[], but there must be at least one URL of an object. Give a URL, or a pattern."
        )
    stores: dict[str, Store] = {}
    with ThreadPoolExecutor(min(_AT_ONCE_OPENED, len(given)), "hopyard-stream") as pool:
        found = list(pool.map(lambda url: find(url, stores, patterns=True), given))
    objects = [each for some in found for each in some.objects]
    if record_bytes is None:
        return Stream(objects, _WholeObjects([each.size for each in objects]), decode)
    size = integer("record_bytes", record_bytes, 1)
    header = integer("header_bytes", header_bytes or 0, 0)
    most = integer("batch_size", 1 if batch_size is None else batch_size, 1)
    return Stream(objects, _Records(_counts(objects, size, header), size, header, most), decode)


def _counts(objects: Sequence[RemoteObject], record: int, header: int) -> list[int]:
    """Records of each object."""
    for each in objects:
        left = (each.size - header) % record
        if each.size < header or left:
            behind = f" behind a header of {header:,}" if header else ""
            raise DataError(
                f"{each.url} has {each.size:,} bytes, which is not a whole number of records of {record:,} bytes"
                f"{behind}: {left:,} are left over. Correct record_bytes=, or give the size of what is before the "
                "first record as header_bytes=."
            )
    counts = [(each.size - header) // record for each in objects]
    if not sum(counts):
        raise DataError(f"{objects[0].url} holds no record. Give an object with at least one.")
    return counts


@dataclass(frozen=True)
class _Piece:
    """Bytes [start, start + length) of an object, by its number."""

    number: int
    start: int
    length: int


class _WholeObjects:
    """Batches that are one object each."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.largest: int = max(sizes)
        """Bytes of the largest batch."""

    def __len__(self) -> int:
        return len(self._sizes)

    def pieces(self, index: int) -> list[_Piece]:
        return [_Piece(index, 0, self._sizes[index])]


class _Records:
    """Batches of so many records, which follow each other in objects that begin with a header."""

    def __init__(self, counts: Sequence[int], record: int, header: int, batch_size: int) -> None:
        self._ends = list(itertools.accumulate(counts))
        self._record, self._header, self._batch_size = record, header, batch_size
        self.largest: int = min(batch_size, self._ends[-1]) * record
        """Bytes of the largest batch."""

    def __len__(self) -> int:
        return -(-self._ends[-1] // self._batch_size)

    def pieces(self, index: int) -> list[_Piece]:
        first, found = index * self._batch_size, []
        last = min(first + self._batch_size, self._ends[-1])
        while first < last:
            number = bisect.bisect_right(self._ends, first)
            end = min(last, self._ends[number])
            begin = self._ends[number - 1] if number else 0
            start = self._header + (first - begin) * self._record
            found.append(_Piece(number, start, (end - first) * self._record))
            first = end
        return found


class Stream:
    """Batches by number, read ahead; made by :func:`stream`.

    What torch calls a map-style dataset: ``DataLoader(data, batch_size=None, num_workers=2)`` takes it as it is, and so
    do samplers. Threads may share one. It pickles, if ``decode`` does; each process opens the store itself, also one
    that was forked. Objects that are replaced or deleted while the stream is used are errors, as far as it can be seen:
    by size and version of objects that were given one by one, else by the size, and in one process by the version.
    """

    def __init__(
        self,
        objects: Sequence[RemoteObject],
        layout: _WholeObjects | _Records,
        decode: Callable[[bytearray], Any],
    ) -> None:
        self._objects, self._layout, self._decode = objects, layout, decode
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._opened: _Reader | None = None
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in ("_objects", "_layout", "_decode")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._layout)

    def __getitem__(self, index: Any) -> Any:
        """A batch.

        Raises:
            IndexError: there are not so many.
            CorruptError: an object was replaced since the stream was made.
            StorageError: it cannot be read.
        """
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return self._decoded(self._reader().take(self._checked(index)))

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Several batches, which are read at once; torch asks so where it makes a batch of them."""
        reader = self._reader()
        return [self._decoded(coming) for coming in [reader.take(self._checked(each)) for each in indices]]

    def __iter__(self) -> Iterator[Any]:
        return self.batches()

    def batches(self, order: Iterable[int] | None = None) -> Iterator[Any]:
        """The batches of these numbers, such as a sampler gives, read ahead in this order; None: all in turn."""
        numbers = range(len(self)) if order is None else map(self._checked, order)
        ahead = _Ahead(self._reader(), enumerate(numbers))
        try:
            for place in itertools.count():
                coming = ahead.take(place)
                if coming is None:
                    return
                yield self._decoded(coming)
        finally:
            ahead.close()

    def as_torch(self) -> Any:
        """The same as a ``torch.utils.data.Dataset``, for programs that look for one."""
        return _torch_dataset()(self)

    def as_keras(self, workers: int = 4) -> Any:
        """The same as a ``keras.utils.PyDataset``, for ``fit``, which asks in the order that it chooses.

        Args:
            workers: threads that read and decode ahead of Keras.
        """
        return _keras_dataset()(self, integer("workers", workers, 1))

    def fetch(self, index: int) -> Any:
        """A batch as ``[index]`` gives it, where the caller itself asks ahead, in several threads."""
        [coming] = self._reader().begin([self._checked(index)])
        return self._decoded(coming)

    def most_ahead(self) -> int:
        """Number of the largest batches that ``AHEAD_BYTES`` hold, and 2 at least."""
        return max(2, AHEAD_BYTES // _weight(self._layout.largest))

    def _checked(self, index: Any) -> int:
        number = integer("index", index)
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"batch {number} was asked for, but the stream has {len(self):,}, numbered from 0 on. Give a number "
                "below len(stream), or iterate over the stream."
            )
        return number % len(self)

    def _reader(self) -> _Reader:
        if self._process != os.getpid():  # threads and connections are the parent's
            self._forget()
        with self._lock:
            if self._opened is None:
                self._opened = _Reader(self._objects, self._layout)
            return self._opened

    def _decoded(self, coming: _Coming) -> Any:
        data = coming.result()
        try:
            return self._decode(data)
        except Exception as error:
            first = self._layout.pieces(coming.index)[0]
            error.add_note(
                f"This is decode= of {len(data):,} bytes, batch {coming.index}, which begins at byte {first.start:,} "
                f"of {self._objects[first.number].url}."
            )
            raise


class _Coming:
    """The bytes of a batch, on their way.

    Attributes:
        index: number of the batch.
        size: bytes.
        data: where they are put.
    """

    def __init__(self, index: int, size: int) -> None:
        self.index, self.size = index, size
        self.data = bytearray(size)
        self._answers: list[_Answer] = []

    def expect(self, answer: _Answer) -> None:
        self._answers.append(answer)

    def want(self) -> None:
        """Let nobody cancel the requests, which others may share that turn out not to be wanted."""
        for answer in self._answers:
            answer.is_wanted = True

    def cancel(self) -> None:
        for answer in self._answers:
            if not answer.is_wanted:
                answer.future.cancel()

    def result(self) -> bytearray:
        for answer in self._answers:
            answer.future.result()
        return self.data


@dataclass
class _Answer:
    """The answer to a request, and whether somebody waits for it."""

    future: Future[None]
    is_wanted: bool = False


class _Request:
    """Bytes [start, end) of an object, and the batches that parts of them belong to."""

    def __init__(self, number: int, start: int) -> None:
        self.number, self.start, self.end = number, start, start
        self.batches: list[_Coming] = []
        self._starts: list[int] = []
        self._views: list[memoryview] = []

    def add(self, coming: _Coming, view: memoryview) -> None:
        self.batches.append(coming)
        self._starts.append(self.end)
        self._views.append(view)
        self.end += len(view)

    def keep(self, position: int, piece: memoryview) -> None:
        """Put bytes of the object, from ``position`` on, where they belong."""
        end = position + len(piece)
        at = max(0, bisect.bisect_right(self._starts, position) - 1)
        while at < len(self._starts) and self._starts[at] < end:
            start, view = self._starts[at], self._views[at]
            first, last = max(position, start), min(end, start + len(view))
            view[first - start : last - start] = piece[first - position : last - position]
            at += 1


class _Reader:
    """The threads of this process that wait for answers, and what they ask for.

    Args:
        objects, layout: of the stream.
    """

    def __init__(self, objects: Sequence[RemoteObject], layout: _WholeObjects | _Records) -> None:
        self._objects, self._layout = objects, layout
        self._versions: dict[int, str | None] = {}
        self._workers = _workers()
        self.most: int = AHEAD_BYTES // self._workers
        """Bytes that this process reads ahead."""
        at_once = max(_FEWEST_AT_ONCE, _AT_ONCE // self._workers)
        self._pool = ThreadPoolExecutor(at_once, "hopyard-stream")
        self._elsewhere = _Elsewhere(objects, at_once) if _is_cut_off(objects) else None
        self._lock = threading.Lock()
        self._ahead = _Ahead(self, iter(()))
        self._first: int | None = None
        self._last: int | None = None
        self._step: int | None = None  # between the last two numbers that were asked for
        self._stride: int | None = None  # between those that are read ahead

    def size(self, index: int) -> int:
        """Bytes of a batch."""
        return sum(each.length for each in self._layout.pieces(index))

    def begin(self, indices: Sequence[int]) -> list[_Coming]:
        """Ask for batches; neighbours in an object travel together."""
        begun, request = [], None
        for index in indices:
            pieces = self._layout.pieces(index)
            coming = _Coming(index, sum(each.length for each in pieces))
            begun.append(coming)
            view, most = memoryview(coming.data), 0
            for piece in pieces:
                most = self._objects[piece.number].request
                start, left = piece.start, piece.length
                while left:
                    if request is not None and (
                        (request.number, request.end) != (piece.number, start)
                        or request.end - request.start >= most
                    ):
                        self._send(request)
                        request = None
                    request = request or _Request(piece.number, start)
                    length = min(left, most - (request.end - request.start))
                    request.add(coming, view[:length])
                    view, start, left = view[length:], start + length, left - length
        if request is not None:
            self._send(request)
        return begun

    def _send(self, request: _Request) -> None:
        answer = _Answer(self._pool.submit(self._receive, request))
        for each in request.batches:
            each.expect(answer)

    def _receive(self, request: _Request) -> None:
        number, start, length = request.number, request.start, request.end - request.start
        if self._elsewhere is None:
            version = self._objects[number].receive(start, length, request.keep)
        else:
            data, version = self._elsewhere.receive(number, start, length)
            request.keep(start, memoryview(data))
        if self._versions.setdefault(number, version) != version:
            raise CorruptError(
                f"{self._objects[number].url} was replaced while it was read, by an object of the same size. Let "
                "nothing write to it while it is used, and start again."
            )

    def take(self, index: int) -> _Coming:
        """A batch on its way, and, if the numbers that were asked for are evenly spaced, those that follow."""
        with self._lock:
            coming = self._ahead.take(index)
            if coming is None:
                self._ahead.close()
                self._stride = self._stride_from(index)
                end = index + 1 if self._stride is None else len(self._layout)
                numbers = range(index, end, self._stride or 1)
                self._ahead = _Ahead(self, zip(numbers, numbers, strict=True))
                coming = self._ahead.take(index)
                assert coming is not None
            self._step = None if self._last is None else index - self._last
            self._last = index
            return coming

    def _stride_from(self, index: int) -> int | None:
        """The distance between the numbers that will be asked for after this one, which was not expected; None: nobody
        knows."""
        if self._last is None:
            self._first = index
            return self._workers if index < self._workers else None
        if self._stride is not None and index == self._first:  # the next epoch
            return self._stride
        step = index - self._last
        return step if step == self._step and step > 0 else None


class _Ahead:
    """Batches in the order in which they are expected, of which the next ones are on their way.

    Args:
        order: (key, number of a batch); no key comes twice.
    """

    def __init__(self, reader: _Reader, order: Iterator[tuple[int, int]]) -> None:
        self._reader, self._order = reader, order
        self._waiting: dict[int, _Coming] = {}
        self._size = 0
        self._most = min(REQUEST, reader.most)  # at first, so that the first batch is not behind many others
        self._refill()

    def take(self, key: int) -> _Coming | None:
        """The batch of a key; None: it is not on its way."""
        coming = self._waiting.pop(key, None)
        if coming is not None:
            coming.want()
            self._size -= _weight(coming.size)
            self._most = min(2 * self._most, self._reader.most)
            self._refill()
        return coming

    def _refill(self) -> None:
        """Ask for more once an eighth of what may be here is used up, so that neighbours can travel together."""
        if self._waiting and self._size > self._most - self._most // 8:
            return
        keys, numbers = [], []
        while self._size < self._most and (following := next(self._order, None)) is not None:
            keys.append(following[0])
            numbers.append(following[1])
            self._size += _weight(self._reader.size(following[1]))
        self._waiting.update(zip(keys, self._reader.begin(numbers), strict=True))

    def close(self) -> None:
        """Ask for no more of what is not on the wire yet."""
        for coming in self._waiting.values():
            coming.cancel()
        self._waiting.clear()


def _weight(size: int) -> int:
    """What a batch counts towards the bytes that are read ahead."""
    return max(size, _LEAST)


def _workers() -> int:
    """Number of worker processes of the DataLoader that this process works for; 1 if it is none of them."""
    if "torch" not in sys.modules:
        return 1
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return 1 if info is None else info.num_workers


# In a process that was forked off one that had used the store


def _is_cut_off(objects: Sequence[RemoteObject]) -> bool:
    """Whether the library that sends requests does not work here: its threads are in the process that was forked."""
    kinds = {kind for each in objects for kind in (ObjectStore, HDFSStore) if isinstance(each.store, kind)}
    try:
        for kind in kinds:
            check_process(kind.__name__)
    except UsageError:
        return True
    return False


_BOOTSTRAP = (
    "import sys; descriptors = list(map(int, sys.argv[1].split(','))); sys.path[:] = sys.argv[2:]; del sys.argv[1:]; "
    "from hopyard.experiment.streams import serve; serve(descriptors)"
)


class _Elsewhere:
    """A new process that reads for this one.

    Args:
        objects: that it reads from.
        at_once: number of ranges that it reads at once.
    """

    def __init__(self, objects: Sequence[RemoteObject], at_once: int) -> None:
        pairs = [multiprocessing.Pipe() for _ in range(at_once)]
        theirs = [each.fileno() for _, each in pairs]
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, ",".join(map(str, theirs)), *map(os.path.abspath, sys.path)],
            stdin=subprocess.PIPE,
            pass_fds=theirs,
            start_new_session=True,  # it ends with this process, and not by Ctrl-C before it
        )
        self._idle = queue.SimpleQueue[Connection]()
        for ours, its in pairs:
            its.close()
            self._idle.put(ours)
        weakref.finalize(self, _end, process, [ours for ours, _ in pairs])
        self._url = objects[0].url
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # if it ended, reading says so
            pickle.dump(objects, process.stdin)

    def receive(self, number: int, start: int, length: int) -> tuple[bytes, str | None]:
        """Bytes of an object, by its number, and its version. Raises as ``RemoteObject.receive``."""
        connection = self._idle.get()
        try:
            connection.send((number, start, length))
            failed, version = connection.recv()
            if failed is not None:
                raise failed
            return connection.recv_bytes(), version
        except (EOFError, OSError) as error:
            raise StorageError(
                f"{self._url} cannot be read: the process that read it for this one, which was forked, has ended. Look "
                "at its output above, or start workers by 'spawn' (multiprocessing_context='spawn' of a DataLoader)."
            ) from error
        finally:
            self._idle.put(connection)


def _end(process: subprocess.Popen[bytes], connections: Sequence[Connection]) -> None:
    for each in connections:
        each.close()
    process.kill()
    process.wait()


def serve(descriptors: Sequence[int]) -> None:
    """Read what is asked for on each of these connections, until they are closed."""
    objects = pickle.load(sys.stdin.buffer)
    for descriptor in descriptors:
        threading.Thread(target=_answer, args=(Connection(descriptor), objects)).start()


def _answer(connection: Connection, objects: Sequence[RemoteObject]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            number, start, length = connection.recv()
            data = bytearray(length)

            def keep(position: int, piece: memoryview, data: bytearray = data, start: int = start) -> None:
                data[position - start : position - start + len(piece)] = piece

            try:
                version = objects[number].receive(start, length, keep)
            except HopyardError as error:
                connection.send((error, None))
            else:
                connection.send((None, version))
                connection.send_bytes(data)


# What frameworks look for


@functools.cache
def _torch_dataset() -> type[Any]:
    try:
        from torch.utils.data import Dataset
    except ImportError:
        raise missing_extra("torch", "torch", "stream(...).as_torch()") from None

    class StreamDataset(Dataset[Any]):
        """A stream as torch's map-style dataset."""

        def __init__(self, data: Stream) -> None:
            self.stream = data

        def __len__(self) -> int:
            return len(self.stream)

        def __getitem__(self, index: int) -> Any:
            return self.stream[index]

        def __getitems__(self, indices: Iterable[int]) -> list[Any]:
            return self.stream.__getitems__(indices)

        def __reduce__(self) -> tuple[Callable[[Stream], Any], tuple[Stream]]:
            return Stream.as_torch, (self.stream,)

    return StreamDataset


@functools.cache
def _keras_dataset() -> type[Any]:
    try:
        import keras
    except ImportError:
        raise missing_extra("keras", "tensorflow", "stream(...).as_keras()") from None

    class StreamDataset(keras.utils.PyDataset):  # type: ignore[misc]
        """A stream as Keras' dataset of batches, which threads of Keras read."""

        def __init__(self, data: Stream, workers: int) -> None:
            super().__init__(workers=workers, max_queue_size=data.most_ahead())
            self.stream = data

        def __len__(self) -> int:
            return len(self.stream)

        def __getitem__(self, index: int) -> Any:
            return self.stream.fetch(index) if self.workers > 1 else self.stream[index]

        def __reduce__(self) -> tuple[Callable[[Stream, int], Any], tuple[Stream, int]]:
            return Stream.as_keras, (self.stream, self.workers)

    return StreamDataset
