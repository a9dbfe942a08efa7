"""Columns that are computed of all rows: once a machine, kept in the node cache as long as that has room."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import NodeCache, list_cache, open_dataset, prepare
from hopyard.data.combining import computed
from hopyard.data.combining.computed import computed_columns
from hopyard.data.dataset import Dataset
from hopyard.errors import NotWritableError
from hopyard.storage import LocalStore, MemoryStore

ROWS = 1000


@pytest.fixture(autouse=True)
def _nothing_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    computed._held.clear()
    computed._warned.clear()


def dataset(path: Path, **options: Any) -> Dataset:
    """Rows 0 to 999 in row groups of 100, compressed, so that they are decoded."""
    if not path.exists():
        rows = pa.table({"row": np.arange(ROWS), "text": [str(row) for row in range(ROWS)]})
        pq.write_table(rows, path, row_group_size=100)
    return open_dataset(path, **options)


class Squares:
    """Computes two columns of the rows, and counts the rows that it was asked for."""

    def __init__(self, rows: Dataset) -> None:
        self.rows = rows
        self.computed = 0

    def __call__(self) -> Iterator[dict[str, Any]]:
        for batch in self.rows.loader(64, columns=["row"]):
            self.computed += len(batch["row"])
            yield {
                "square": batch["row"] ** 2,
                "pair": np.stack([batch["row"]] * 2, axis=1).astype("float32"),
            }

    def columns(self, key: str = "squares") -> Any:
        return computed_columns(self.rows, key, self, "squares")

    def right(self) -> bool:
        found, rows = self.columns(), self.rows[:]["row"]
        return bool((found["square"] == rows**2).all() and (found["pair"] == rows[:, None]).all())


@pytest.mark.parametrize("window", [None, 3000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_is_that_of_the_rows_that_come(tmp_path: Path, window: int | None, shuffle: bool) -> None:
    for part in dataset(tmp_path / "a.parquet").partitions(3):
        batches = part.loader(64, shuffle, 7, columns=["row"], window=window, epoch=2)
        came = np.concatenate([batch["row"] for batch in batches])
        order = part.order(7, 2, shuffle, part.reach(window))
        assert part.reach(window) == (None if window is None else pytest.approx(100, abs=100))
        assert (part[order]["row"] == came).all()


def test_columns_are_computed_once_and_found_again(tmp_path: Path) -> None:
    squares = Squares(dataset(tmp_path / "a.parquet"))
    assert squares.right()
    assert squares.right()
    assert squares.computed == ROWS
    assert computed._held == {}, "they are mapped"
    assert "squares" in str(list_cache())


def test_other_rows_and_other_keys_are_computed_anew(tmp_path: Path) -> None:
    rows = dataset(tmp_path / "a.parquet")
    squares = [Squares(part) for part in rows.partitions(2)]
    assert all(each.right() for each in squares)
    assert sum(each.computed for each in squares) == ROWS
    squares[0].columns("others")
    assert squares[0].computed == 2 * len(squares[0].rows)


def test_a_file_that_was_written_anew_is_computed_anew(tmp_path: Path) -> None:
    assert Squares(dataset(tmp_path / "a.parquet")).right()
    (tmp_path / "a.parquet").unlink()
    again = Squares(dataset(tmp_path / "a.parquet"))
    assert again.right()
    assert again.computed == ROWS


def test_threads_that_want_the_same_compute_it_once(tmp_path: Path) -> None:
    squares = Squares(dataset(tmp_path / "a.parquet"))
    threads = [threading.Thread(target=squares.columns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert squares.computed == ROWS


def test_without_a_cache_they_are_held_in_memory(tmp_path: Path) -> None:
    squares = Squares(dataset(tmp_path / "a.parquet", cache=False))
    assert squares.right()
    assert squares.right()
    assert squares.computed == ROWS
    # What is known of files lies there too, and no entry.
    there = {file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()}
    assert there <= {"known", "CACHEDIR.TAG"}
    store = MemoryStore()
    made = prepare({"row": np.arange(ROWS)}, store, validation=None)
    assert Squares(made.train).right()
    assert {file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()} == there


def test_a_cache_that_is_too_small_keeps_none_of_them_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = dataset(tmp_path / "a.parquet", cache=NodeCache(tmp_path / "small", limit=100))
    squares = Squares(rows)
    with caplog.at_level(logging.WARNING, "hopyard"):
        assert squares.right()
        assert squares.right()
    said = (
        f"squares take 16,000 bytes for 1000 rows, for which the node cache {tmp_path / 'small'} has no room, so that "
        "every process holds some in memory. Allow it more than 100 bytes (HOPYARD_CACHE_BYTES), or free its disk."
    )
    assert [record.getMessage() for record in caplog.records] == [said]
    assert list_cache(NodeCache(tmp_path / "small")).files == ()
    assert squares.computed == 64 + ROWS, "the first rows told the size"


def test_what_is_held_is_bounded_also_while_more_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dataset(tmp_path / "a.parquet", cache=False)
    squares, held = Squares(rows), set()

    def compute() -> Iterator[dict[str, Any]]:
        for columns in squares():
            yield columns
            held.add(len(computed._held))

    for bound, others in ((20_000, 0), (40_000, 1), (100, 0)):  # 16 bytes a row
        monkeypatch.setattr(computed, "HELD_BYTES", bound)
        for key in "abc":
            computed_columns(rows, key, compute, "squares")
        assert len(computed._held) == 1 + others
        computed._held.clear()
        held.clear()
        for key in "abc":
            computed_columns(rows, key, compute, "squares")
        assert max(held) == others


def test_threads_that_want_the_same_compute_it_once_also_without_a_cache(tmp_path: Path) -> None:
    squares = Squares(dataset(tmp_path / "a.parquet", cache=False))
    begun = threading.Barrier(4)

    def ask() -> None:
        begun.wait()
        squares.columns()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert squares.computed == ROWS


@pytest.mark.parametrize("call", ["pwrite", "replace"])
def test_a_full_disk_leaves_them_in_memory_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    store = LocalStore(tmp_path / "store")
    rows = prepare({"row": np.arange(ROWS)}, store, validation=None).train

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    squares = Squares(rows)
    with caplog.at_level(logging.WARNING, "hopyard"), monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        assert squares.right()
        squares.columns("others")
    assert [record.getMessage() for record in caplog.records] == [
        "squares are held in memory if they are not in the cache yet: [Errno 28] No space left on device"
    ]
    assert not list(tmp_path.glob("cache/*.flat"))
    assert not list(tmp_path.glob("cache/*.part"))
    squares.columns("a third")
    assert len(list(tmp_path.glob("cache/*.flat"))) == 1


def test_a_failure_while_they_are_computed_leaves_nothing(tmp_path: Path) -> None:
    rows = dataset(tmp_path / "a.parquet")

    def compute() -> Iterator[dict[str, Any]]:
        yield {"square": np.zeros(64)}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        computed_columns(rows, "squares", compute, "squares")
    assert list_cache().files == ()
    assert Squares(rows).right()


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError, NotWritableError])
def test_an_error_of_what_computes_is_not_taken_for_one_of_the_caches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[Exception], after: int
) -> None:
    rows = dataset(tmp_path / "a.parquet")
    calls = []

    def compute() -> Iterator[dict[str, Any]]:
        calls.append(1)
        for _ in range(after):
            yield {"square": np.zeros(64)}
        raise kind("of the user")

    with caplog.at_level(logging.WARNING, "hopyard"), pytest.raises(kind, match="of the user") as caught:
        computed_columns(rows, "squares", compute, "squares")
    assert caught.value.__context__ is None
    assert len(calls) == 1
    assert caplog.records == []
    assert list_cache().files == ()
    assert Squares(rows).right()


def test_a_kill_while_they_are_computed_leaves_none_of_them(tmp_path: Path) -> None:
    """The process dies when half of the rows are written."""
    rows = dataset(tmp_path / "a.parquet")
    child = os.fork()
    if not child:  # pragma: no cover
        columns = Squares(rows)()

        def compute() -> Iterator[dict[str, Any]]:
            for _ in range(ROWS // 64 // 2):
                yield {name: values + 1 for name, values in next(columns).items()}
            os.kill(os.getpid(), signal.SIGKILL)

        computed_columns(rows, "squares", compute, "squares")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.glob("cache/*.part"))) == 1
    assert "squares" not in str(list_cache())
    squares = Squares(rows)
    assert squares.right()
    assert squares.computed == ROWS
    assert list(tmp_path.glob("cache/*.part")) == []


def test_what_is_thrown_out_of_the_cache_stays_readable(tmp_path: Path) -> None:
    squares = Squares(dataset(tmp_path / "a.parquet"))
    found = squares.columns()
    assert NodeCache().clear() > 0
    assert (found["square"] == np.arange(ROWS) ** 2).all()
    assert squares.right()
    assert squares.computed == 2 * ROWS
