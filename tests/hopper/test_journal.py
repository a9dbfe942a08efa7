"""The journal: what is durable, what is not believed, and who may write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopyard.backend import InlineBackend
from hopyard.errors import CorruptError, RunHeldError, StorageError, StorageFullError
from hopyard.hopper.journal import Journal, read_records
from hopyard.objects import NumberedLog
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.faults import Fault, FaultyStore

RECORDS = [{"r": "x", "n": number, "value": value} for number, value in enumerate([0.1, 1e-300, None, "ü\n"])]


def written(store: Store) -> Store:
    journal = Journal(store)
    for record in RECORDS:
        journal.append(record)
    journal.close()
    return store


def test_what_was_appended_is_read_in_order_by_everybody_and_by_the_next_driver() -> None:
    store = written(MemoryStore())
    assert list(read_records(store)) == RECORDS
    journal = Journal(store)
    assert journal.records == RECORDS
    journal.append({"r": "more"})
    journal.flush()
    assert journal.durable == 1
    journal.close()
    assert list(read_records(store)) == [*RECORDS, {"r": "more"}]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"garbage\n",
        lambda data: data[:-1],
        lambda data: data[: data.index(b"\n") + 1],  # ends with a whole record
        lambda data: data.replace(b"0.1", b"0.2"),
        lambda data: data.replace(b"x", b"\xff", 1),
    ],
)
def test_a_segment_that_is_not_what_was_written_is_an_error_and_gives_the_run_back(
    damage: Callable[[bytes], bytes],
) -> None:
    store = written(MemoryStore())
    [segment] = [entry.name for entry in store.list("journal")]
    store.put(segment, damage(store.get(segment)))
    for _ in range(2):
        with pytest.raises(
            CorruptError,
            match=r"segment 1 of the journal in memory:.* is not what was written: its \d+ bytes",
        ):
            Journal(store)


def test_a_segment_that_another_driver_adds_after_reading_is_noticed() -> None:
    store = written(MemoryStore())
    journal = Journal(store)
    other = NumberedLog(store, "journal")
    other.append(b"of a driver that was thought to be dead")
    journal.append({"r": "x"})
    with pytest.raises(
        RunHeldError, match=r"was written by another process, so this one has lost what it held"
    ):
        journal.flush()
    journal.close()
    assert other.refresh() == other.last
    assert journal.durable == 0


@pytest.mark.parametrize("then", ["flush", "close"])
def test_a_journal_that_cannot_write_says_so_once_and_lets_nobody_wait(then: str) -> None:
    """Also if the one who waits, or closes, stands in the queue together with what cannot be written."""
    for attempt in range(20):
        journal = Journal(FaultyStore(MemoryStore(), Fault("error", match="journal/*", times=100)))
        failures: list[BaseException] = []
        journal.on_failure = failures.append
        for number in range(attempt):
            journal.append({"r": "x", "n": number})
        journal.append({"r": "x"})
        if then == "flush":
            for _ in range(2):
                with pytest.raises(StorageError, match="injected"):
                    journal.flush()
        journal.close()
        assert len(failures) == 1


def test_closing_ends_the_wait_for_space_and_a_later_driver_finds_what_fitted() -> None:
    store = MemoryStore()
    journal = Journal(FaultyStore(store, Fault("full", at=2, times=10**6, match="journal/*")), announce=str)
    journal.append({"r": "first"})
    journal.flush()
    failures: list[BaseException] = []
    journal.on_failure = failures.append
    journal.append({"r": "second"})
    journal.close()
    assert isinstance(failures[0], StorageFullError)
    assert list(read_records(store)) == [{"r": "first"}]


HOLD = """
import sys
from hopyard.hopper.journal import Journal
from hopyard.storage import LocalStore
journal = Journal(LocalStore(sys.argv[1]))
journal.append({"r": "x"})
journal.flush()
print(flush=True)
sys.stdin.read()
"""


def test_a_second_driver_is_told_who_holds_the_run_and_takes_it_at_once_when_that_one_is_killed(
    tmp_path: Path,
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(
            RunHeldError, match=rf"is held by another driver \(.*pid {holder.pid}.*driver \w+\)"
        ):
            Journal(LocalStore(tmp_path))
        holder.kill()
        holder.wait()
        journal = Journal(LocalStore(tmp_path))
    assert journal.records == [{"r": "x"}]
    journal.close()


@pytest.mark.parametrize("make", [lambda path: MemoryStore(), LocalStore])
def test_a_driver_whose_run_is_taken_over_stops_at_its_next_record_and_harms_nothing(
    game: Any, result_of: Any, make: Callable[[Path], Store], tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    store = make(tmp_path)
    first, second = game(store, InlineBackend()), game(store, InlineBackend(), take_over=True)
    outcomes = []

    def taken_over(state: Any, record: Any) -> None:
        if record["r"] == "unit" and state.units == 12 and not outcomes:
            first.flush()  # a segment under way might come between, and the one who takes over would fail
            outcomes.append(result_of(second.play()))

    first.on_record = taken_over
    with pytest.raises(RunHeldError, match="was written by another process"):
        first.play()
    assert outcomes == [expected]
    assert result_of(game(store, InlineBackend()).play()) == expected
