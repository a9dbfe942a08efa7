"""The driver: order, memory, progress, processes and what goes wrong."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import DataError, StorageError, UsageError, WorkerLostError
from hopyard.stockroom.importers.base import ColumnSource
from hopyard.stockroom.importers.run import ImportProgress, read_columns
from hopyard.stockroom.importers.testing import gathered


def count_up(start, stop):
    return np.arange(start, stop)


def texts(start, stop):
    return ["x" * n for n in range(start, stop)]


def numbers(name="n", count=10, read=count_up):
    return ColumnSource(name, count, "tensor", "int64", (), read)


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    chunk_bytes=st.integers(1, 400),
    data=st.data(),
)
def test_every_sample_from_the_start_comes_once_and_in_order(counts, chunk_bytes, data):
    columns = [
        numbers(f"c{n}", count) if n % 2 else ColumnSource(f"c{n}", count, "string", "object", (), texts)
        for n, count in enumerate(counts)
    ]
    start = {c.name: data.draw(st.integers(0, c.count)) for c in columns if data.draw(st.booleans())}
    came = {c.name: start.get(c.name, 0) for c in columns}
    by_name = {c.name: c for c in columns}
    for name, first, samples in read_columns(columns, start=start, chunk_bytes=chunk_bytes):
        assert first == came[name]
        came[name] += len(samples)
        assert list(samples) == list(by_name[name].read(first, came[name]))
    assert came == {c.name: c.count for c in columns}


def test_columns_of_one_count_go_together():
    columns = [numbers("a", 4), numbers("b", 4), numbers("c", 2)]
    order = [(name, start) for name, start, _ in read_columns(columns, chunk_bytes=32)]
    assert order == [("a", 0), ("b", 0), ("a", 2), ("b", 2), ("c", 0)]


def test_chunks_keep_to_their_bytes_also_where_sizes_differ():
    column = ColumnSource("t", 2000, "string", "object", (), texts)
    sizes = [sum(map(len, samples)) for _, _, samples in read_columns([column], chunk_bytes=20_000)]
    assert max(sizes) < 60_000  # texts grow while it reads
    assert len(sizes) > 50


def test_little_is_read_ahead():
    asked = []

    def read(start, stop):
        asked.append(stop)
        return np.arange(start, stop)

    chunks = read_columns([numbers(count=1000, read=read)], chunk_bytes=80)
    next(chunks)
    assert asked == [10]


def test_progress_says_rate_and_time_left(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr("hopyard.stockroom.importers.run.time.monotonic", lambda: float(next(now)))
    seen = []
    for _ in read_columns([numbers(count=10)], chunk_bytes=32, start={"n": 2}, watch=seen.append):
        pass
    assert seen == [ImportProgress(6, 10, 1.0, 4.0, 1.0), ImportProgress(10, 10, 2.0, 4.0, 0.0)]


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ({"n": 11}, r"Column 'n' is to start at sample 11, but it has 10 samples."),
        ({"n": -1}, r"to start at sample -1"),
        ({"m": 0}, r"Column 'm' is to start at sample 0, but the columns are n."),
    ],
)
def test_starts_are_checked(start, text):
    with pytest.raises(UsageError, match=text):
        next(read_columns([numbers()], start=start))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (
            lambda a, b: np.arange(a, b, dtype=np.int8),
            r"Sample 0 of column 'n': it is of dtype int8, but the column of int64",
        ),
        (
            lambda a, b: np.zeros((b - a, 2), np.int64),
            r"Sample 0 of column 'n': it is of shape \(2,\), but the column of \(\)",
        ),
        (
            lambda a, b: np.zeros(b - a + 1, np.int64),
            r"Sample 0 of column 'n': the source gave 2 samples instead of 1.",
        ),
        (lambda a, b: [1] * (b - a), r"it is of shape \(\), but the column of \(\)"),
        (
            lambda a, b: 1 / 0,
            r"Sample 0 of column 'n' cannot be read \(ZeroDivisionError: division by zero\). Look at",
        ),
    ],
)
def test_sources_that_break_their_word_are_named(read, text):
    with pytest.raises(DataError, match=text):
        gathered(read_columns([numbers(read=read)]))


def test_texts_and_variable_arrays_are_checked():
    for kind, value, text in [
        ("string", b"x", r"the source gave no list of str, but the column is of string."),
        ("bytes", "x", r"the source gave no list of bytes"),
        ("tensor", "x", r"it is of dtype str, but the column of uint8."),
    ]:
        dtype, shape = ("uint8", None) if kind == "tensor" else ("object", ())
        column = ColumnSource("c", 2, kind, dtype, shape, lambda a, b, value=value: [value] * (b - a))
        with pytest.raises(DataError, match=text):
            gathered(read_columns([column]))


def broken_at_7(start, stop):
    if start <= 7 < stop:
        raise OSError("disk")
    return np.arange(start, stop)


@pytest.mark.parametrize("processes", [0, 2])
def test_all_before_a_sample_that_fails_was_given(processes):
    chunks = read_columns([numbers(read=broken_at_7)], processes=processes, chunk_bytes=16)
    assert [list(next(chunks)[2]) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(StorageError, match=r"Sample 7 of column 'n' cannot be read \(OSError: disk\)"):
        next(chunks)


def test_processes_give_the_same_in_the_same_order():
    columns = [numbers("a", 500), ColumnSource("t", 500, "string", "object", (), texts), numbers("b", 30)]
    here = list(read_columns(columns, chunk_bytes=2000))
    there = list(read_columns(columns, chunk_bytes=2000, processes=2))
    assert gathered(iter(here)) == gathered(iter(there))


def test_closures_reach_the_processes_but_not_what_cannot_be_pickled():
    factor = 3

    def scaled(start, stop):
        return np.arange(start, stop) * factor

    assert gathered(read_columns([numbers(read=scaled)], processes=1))["n"] == list(range(0, 30, 3))
    lock = threading.Lock()

    def locked(start, stop):
        with lock:
            return np.arange(start, stop)

    with pytest.raises(
        UsageError,
        match=r"The columns cannot be sent to other processes \(TypeError: .*read it with processes=0",
    ):
        next(read_columns([numbers(read=locked)], processes=1))


def killed(start, stop):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_said():
    with pytest.raises(
        WorkerLostError, match=r"A process that reads samples ended before its work was done. .*memory"
    ):
        next(read_columns([numbers(read=killed)], processes=1))


def test_stopping_early_ends_the_processes():
    code = """
import multiprocessing
from hopyard.stockroom.importers.base import ColumnSource
from hopyard.stockroom.importers.run import read_columns
import numpy as np
def read(start, stop): return np.arange(start, stop)
if __name__ == "__main__":
    chunks = read_columns([ColumnSource("n", 10**6, "tensor", "int64", (), read)], processes=2, chunk_bytes=800)
    print(next(chunks)[1])
    chunks.close()
    print(multiprocessing.active_children())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "[]"], done.stderr
