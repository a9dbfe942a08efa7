"""Batches made ahead: which, by whom, in what order, and what becomes of errors, forks and ends."""

import multiprocessing
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.ahead import AheadStream
from hopyard.data.contract import EpochStream
from hopyard.data.reading.buffers import Buffers
from hopyard.errors import CorruptError


class Counted(EpochStream):
    """Numbers as rows; notes who asks for which."""

    def __init__(self, asked, bad=()):
        self.asked, self.bad, self.closed, self._busy = asked, bad, False, threading.Lock()

    def batch(self, first, last, buffers):
        assert self._busy.acquire(blocking=False), "a stream belongs to one thread at a time"
        try:
            self.asked.append((first, last))
            if first in self.bad:
                raise CorruptError(f"row {first}")
            rows = buffers.empty(last - first, np.dtype("int64"), ())
            rows[:] = np.arange(first, last)
            return {"row": rows}
        finally:
            self._busy.release()

    def close(self):
        self.closed = True


def spans(rows, size):
    return [(first, min(first + size, rows)) for first in range(0, rows, size)]


def test_batches_come_in_order_each_made_once_and_two_ahead():
    asked, opened = [], []
    stream = AheadStream(lambda: opened.append(Counted(asked)) or opened[-1], iter(spans(100, 7)), [])
    buffers, held = Buffers(), []
    for number, (first, last) in enumerate(spans(100, 7)):
        held.append(stream.batch(first, last, buffers)["row"])
        assert len(asked) <= number + 3
    assert [row for batch in held for row in batch] == list(range(100)), "what is held is not written over"
    assert sorted(asked) == spans(100, 7)
    assert len(opened) == 1
    stream.close()
    assert all(each.closed for each in opened)


@given(st.integers(1, 60), st.integers(1, 9), st.data())
def test_whatever_is_asked_for_comes(rows, size, data):
    every = spans(rows, size)
    stream = AheadStream(lambda: Counted([]), iter(every), [])
    for first, last in data.draw(st.lists(st.sampled_from(every), max_size=20)):
        assert stream.batch(first, last, Buffers())["row"].tolist() == list(range(first, last))
    stream.close()


def test_memory_goes_from_one_epoch_to_the_next_and_never_to_two_at_once():
    spare, given = [], Buffers()
    first = AheadStream(lambda: Counted([]), iter(spans(100, 7)), spare)
    first.batch(0, 7, given)
    second = AheadStream(lambda: Counted([]), iter(spans(100, 7)), spare)
    kept = second.batch(0, 7, given)["row"]
    assert len({id(given), id(first._buffers), id(second._buffers)}) == 3
    own = first._buffers
    first.close()
    second.close()
    third = AheadStream(lambda: Counted([]), iter(spans(100, 7)), spare)
    for span in spans(100, 7):
        third.batch(*span, given)
    assert kept.tolist() == list(range(7))
    third.close()
    assert len(spare) == 2
    assert any(each is own for each in spare)


def test_an_error_is_raised_for_its_batch():
    stream = AheadStream(lambda: Counted([], bad={14}), iter(spans(28, 7)), [])
    for first, last in [(0, 7), (7, 14)]:
        assert stream.batch(first, last, Buffers())["row"][0] == first
    with pytest.raises(CorruptError, match="row 14"):
        stream.batch(14, 21, Buffers())
    assert stream.batch(21, 28, Buffers())["row"][0] == 21
    stream.close()


def test_no_thread_stays_behind_and_none_begins_before_a_batch():
    before = set(threading.enumerate())
    stream = AheadStream(lambda: Counted([]), iter(spans(100, 7)), [])
    assert set(threading.enumerate()) == before
    stream.batch(0, 7, Buffers())
    stream.close()
    stream.close()
    assert set(threading.enumerate()) <= before
    unused = Counted([])
    AheadStream(lambda: unused, iter([]), []).close()
    assert unused.closed


def _rest(stream, pipe):
    pipe.send([stream.batch(*span, Buffers())["row"].tolist() for span in spans(28, 7)[1:]])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_goes_on_with_a_stream_of_its_own():
    stream = AheadStream(lambda: Counted([]), iter(spans(28, 7)), [])
    stream.batch(0, 7, Buffers())
    mine, its = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_rest, args=(stream, its))
    child.start()
    assert mine.poll(30)
    expected = [list(range(first, last)) for first, last in spans(28, 7)[1:]]
    assert mine.recv() == expected
    child.join(30)
    assert [stream.batch(*span, Buffers())["row"].tolist() for span in spans(28, 7)[1:]] == expected
    stream.close()
