"""The journal: what is durable, what is not believed, and who may write."""

from __future__ import annotations

import itertools
import math
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.backend import InlineBackend
from hopyard.errors import CorruptError, RunHeldError, StorageError, StorageFullError
from hopyard.hopper.journal import Journal, JournalFollower, holder, read_records
from hopyard.hopper.segments import Segments
from hopyard.objects import NumberedLog
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.base import Buffer, Entry
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
    assert list(journal.replay()) == RECORDS
    journal.append({"r": "more"})
    journal.flush()
    assert journal.durable == 1
    journal.close()
    assert list(read_records(store)) == [*RECORDS, {"r": "more"}]


DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: b"garbage\n",
    lambda data: data[:-1],
    lambda data: data[: data.index(b"\n") + 1],  # ends with a whole record
    lambda data: data.replace(b"lost", b"lust"),
    lambda data: data.replace(b"l", b"\xff", 1),
]


def segments(store: Store) -> list[str]:
    return [entry.name for entry in store.list("journal")]


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.text(), _VALUES), min_size=1, max_size=5))
def test_many_records_are_read_as_few_are(records: list[dict[str, Any]]) -> None:
    small, large = MemoryStore(), MemoryStore()
    for store, padding in ((small, ""), (large, "x" * (1 << 22))):
        journal = Journal(store)
        journal.append({"padding": padding})
        journal.flush()
        for record in [*records, {"not a number": math.nan, "none above": -math.inf}]:
            journal.append(record)
        journal.close()
    _, *read, odd = read_records(large)
    assert read == records
    assert list(read_records(small))[1:-1] == records
    assert math.isnan(odd["not a number"])
    assert odd["none above"] == -math.inf


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_last_segment_is_put_aside_with_a_warning_and_nothing_else_is_lost(
    damage: Callable[[bytes], bytes],
) -> None:
    store = written(MemoryStore())
    journal = Journal(store)
    journal.append({"r": "lost"})
    journal.close()
    last = segments(store)[-1]
    damaged = damage(store.get(last))
    store.put(last, damaged)
    with pytest.warns(
        UserWarning, match=rf"last segment of the journal in memory:.*, {len(damaged)} bytes\) is damaged"
    ):
        assert list(read_records(store)) == RECORDS
    tail = JournalFollower(store)
    assert tail.new() == RECORDS
    assert tail.new() == []
    messages: list[str] = []
    journal = Journal(store, announce=messages.append)
    [message] = messages
    assert f"the {len(damaged)} bytes of segment {int(last[-12:])} are left out and kept in cut/" in message
    assert "The units in it are done again; nothing else is lost." in message
    [kept] = [entry.name for entry in store.list("cut")]
    assert store.get(kept) == damaged
    assert list(journal.replay()) == RECORDS
    journal.append({"r": "again"})
    journal.flush()
    journal.close()
    assert list(read_records(store)) == [*RECORDS, {"r": "again"}]
    assert tail.new() == [{"r": "again"}]


def test_a_damaged_last_segment_after_merging_is_put_aside_too() -> None:
    store = MemoryStore()
    for number in range(6):
        journal = Journal(store, merge_at=4)
        journal.append({"n": number})
        journal.close()
    *_, last = [entry.name for entry in store.list("journal") if "-" not in entry.name]
    store.put(last, b"")
    messages: list[str] = []
    for number in (5, 6):
        journal = Journal(store, merge_at=4, announce=messages.append)
        assert list(journal.replay()) == [{"n": before} for before in range(number)]
        journal.append({"n": number})
        journal.flush()
        journal.close()
    assert len(messages) == 1
    assert list(read_records(store)) == [{"n": before} for before in range(7)]


def test_states_that_the_last_segment_replaces_are_kept_until_another_one_follows() -> None:
    """Or the run could not go on from the segment before, if power failed."""
    put, may_put = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def put_new(self, name: str, data: Buffer) -> bool:
            done = super().put_new(name, data)
            if name.startswith("journal/"):
                put.set()
                may_put.wait(30)
            return done

    journal = Journal(Slow())
    journal.append({"r": "x"})
    assert put.wait(30)
    may_put.set()
    assert journal.durable == 0
    journal.flush()
    assert journal.durable == 1
    journal.close()


@pytest.mark.parametrize("merged", [False, True])
def test_damage_in_the_middle_is_an_error_that_says_what_to_do_and_gives_the_run_back(merged: bool) -> None:
    store = written(MemoryStore())
    for _ in range(3):
        written(store)
    if merged:
        Journal(store, merge_at=4).close()
    for name in [entry.name for entry in store.list("journal")][:1]:
        store.put(name, store.get(name).replace(b"0.1", b"0.2")[:-1])
    for _ in range(2):
        journal = Journal(store)
        with pytest.raises(
            CorruptError, match=r"is not what was written.*Restore it from a copy, or start the run"
        ):
            list(journal.replay())
        journal.close()


def test_many_segments_are_merged_while_it_runs_when_it_is_opened_and_at_its_end() -> None:
    store = MemoryStore()
    journal = Journal(store, merge_at=16)
    tail, seen = JournalFollower(store), []
    for number in range(200):
        journal.append({"r": "x", "n": number})
        journal.flush()
        seen += tail.new()
    assert len(list(store.list("journal"))) < 30
    journal.close()
    assert len(list(store.list("journal"))) < 12
    assert [record["n"] for record in seen] == list(range(200))
    assert tail.new() == []
    assert list(read_records(store)) == seen
    old = written(MemoryStore())
    for _ in range(20):
        written(old)
    expected = list(read_records(old))
    assert len(segments(old)) > 20
    journal = Journal(old, merge_at=16)
    assert len(list(old.list("journal"))) == 2
    assert list(journal.replay()) == list(journal.replay()) == expected
    journal.close()


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.calls.append(f"get {name}")
        return super().get(name, start, length)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        self.calls.append(f"list {prefix}")
        return super().list(prefix)


@pytest.mark.parametrize("merge_at", [4, 256])
def test_watching_a_run_that_does_nothing_costs_one_listing(merge_at: int) -> None:
    store = Counting()
    tail = JournalFollower(store)
    assert tail.new() == []
    for number in range(6):
        journal = Journal(store, merge_at=merge_at)
        journal.append({"n": number})
        journal.close()
    assert tail.new() == [{"n": number} for number in range(6)]
    for _ in range(2):
        store.calls.clear()
        assert tail.new() == []
        assert store.calls == ["list journal"]


def test_records_before_a_line_that_is_none_are_given_once_and_the_others_when_it_is_mended() -> None:
    store, found = MemoryStore(), list[int]()
    tail, segments = JournalFollower(store), Segments(store)
    segments.append(b'{"n":0}\n')
    segments.append(b'{"n":1}\n{"n":2}\nhello\n{"n":4}\n')
    for _ in range(2):
        with pytest.raises(CorruptError, match=r"has a line that is no record, but b'hello'\. Restore it"):
            found.extend(record["n"] for record in tail.records())
    assert found == [0, 1, 2]
    store.delete("journal/000000000002")
    mended = Segments(store)
    mended.seek_end()
    mended.append(b'{"n":1}\n{"n":2}\n{"n":3}\n{"n":4}\n')
    mended.append(b'{"n":5}\n{"n":6}\n')
    assert [record["n"] for record in tail.new()] == [3, 4, 5, 6]
    assert tail.new() == []


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


@pytest.mark.parametrize("at", [1, 2])
def test_a_store_that_does_not_answer_for_a_while_is_waited_for(at: int) -> None:
    """Also by a segment without records, which is the second."""
    store, said = MemoryStore(), list[str]()
    faulty = FaultyStore(store, Fault("unreachable", at=at, times=3, match="journal/*"))
    journal = Journal(faulty, announce=said.append, wait=lambda seconds: False)
    journal.append({"r": "x"})
    journal.flush()
    journal.close()
    assert list(read_records(store)) == [{"r": "x"}]
    assert [message.partition(":")[0] for message in said] == ["paused"]


def test_nothing_tells_whose_a_segment_without_records_is() -> None:
    store = MemoryStore()
    journal = Journal(
        FaultyStore(store, Fault("unanswered", at=2, match="journal/*")),
        announce=list[str]().append,
        wait=lambda seconds: False,
    )
    journal.append({"r": "x"})
    with pytest.raises(
        StorageError,
        match=r"writing 'journal/000000000002' in memory.* got no answer at first; now it is there, and nothing tells "
        r"whether another driver wrote it. The run ended there; start it again, and it goes on\.",
    ):
        journal.flush()
    journal.close()
    assert list(read_records(store)) == [{"r": "x"}]


def test_closing_ends_the_wait_for_space_and_a_later_driver_finds_what_fitted() -> None:
    store = MemoryStore()
    journal = Journal(
        FaultyStore(store, Fault("full", at=3, times=10**6, match="journal/*")), announce=[""].append
    )
    journal.append({"r": "first"})
    journal.flush()
    failures: list[BaseException] = []
    journal.on_failure = failures.append
    journal.append({"r": "second"})
    journal.close()
    assert isinstance(failures[0], StorageFullError)
    assert list(read_records(store)) == [{"r": "first"}]


HOLD = """
import pickle, sys
from hopyard.hopper.journal import Journal
from hopyard.storage import LocalStore
journal = Journal(LocalStore(sys.argv[1]))
journal.append({"r": "x"})
journal.flush()
print(journal.driver, flush=True)
sys.stdin.read()
"""


def test_a_second_driver_is_told_who_holds_the_run_and_takes_it_at_once_when_that_one_is_killed(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    assert holder(store) is None
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        found = holder(store)
        assert found is not None
        assert (found["pid"], found["driver"], found["host"]) == (process.pid, name, socket.gethostname())
        with pytest.raises(
            RunHeldError,
            match=rf"is held by another driver \(host .*pid {process.pid}, since 20.*driver {name}\)\..*"
            r"run the search with take_over=True \(--take-over on the command line\)",
        ):
            Journal(store)
        process.kill()
        process.wait()
        assert holder(store) is None
        journal = Journal(store)
    assert list(journal.replay()) == [{"r": "x"}]
    found = holder(store)
    assert found is not None
    assert found["pid"] == os.getpid()
    journal.close()
    assert holder(store) is None


def test_the_holder_is_known_on_stores_without_files() -> None:
    store = MemoryStore()
    assert holder(store) is None
    journal = Journal(store)
    found = holder(store)
    assert found is not None
    assert (found["pid"], found["driver"]) == (os.getpid(), journal.driver)
    journal.close()
    assert holder(store) is None


WRITE = """
import itertools, sys
from hopyard.errors import RunHeldError
from hopyard.hopper.journal import Journal
from hopyard.storage import LocalStore
journal = Journal(LocalStore(sys.argv[1]), merge_at=8)
try:
    for number in itertools.count(len(list(journal.replay()))):
        journal.append({"n": number})
        journal.flush()
        print(number, flush=True)
except RunHeldError:
    pass
"""


def writing(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITE, str(folder)], stdout=subprocess.PIPE, text=True)


def test_a_driver_killed_while_it_writes_and_merges_loses_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    acknowledged = -1
    for records in (3, 20, 33):
        with writing(tmp_path) as process:
            assert process.stdout is not None
            for _ in range(records):
                acknowledged = int(process.stdout.readline())
            process.kill()
            acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        found = [record["n"] for record in read_records(LocalStore(tmp_path))]
        assert found in (list(range(acknowledged + 1)), list(range(acknowledged + 2)))


def test_a_takeover_succeeds_while_the_other_driver_writes_and_merges_without_a_pause(tmp_path: Path) -> None:
    for attempt in range(3):
        folder = tmp_path / f"{attempt}"
        with writing(folder) as process:
            assert process.stdout is not None
            process.stdout.readline()
            journal = Journal(LocalStore(folder), take_over=True)
            journal.append({"n": "mine"})
            journal.flush()
            acknowledged = [0, *map(int, process.stdout.read().split())][-1]
        journal.close()
        found = [record["n"] for record in read_records(LocalStore(folder))]
        assert found[-1] == "mine"
        assert found[:-1] in (list(range(acknowledged + 1)), list(range(acknowledged + 2)))


@pytest.mark.parametrize("make", [lambda path: MemoryStore(), LocalStore])
def test_a_driver_whose_run_is_taken_over_stops_at_its_next_record_and_harms_nothing(
    game: Any, result_of: Any, make: Callable[[Path], Store], tmp_path: Path
) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    store = make(tmp_path)
    first, second = game(store, InlineBackend()), game(store, InlineBackend(), take_over=True)
    outcomes: list[Any] = []

    def taken_over(state: Any, record: Any) -> None:
        if record["r"] == "unit" and state.units == 12 and not outcomes:
            first.flush()  # a segment under way might come between, and the one who takes over would fail
            outcomes.append(result_of(second.play()))

    first.on_record = taken_over
    with pytest.raises(RunHeldError, match="was written by another process"):
        first.play()
    assert outcomes == [expected]
    assert result_of(game(store, InlineBackend()).play()) == expected


@pytest.mark.parametrize("merge_at", [4, 256])
def test_a_run_whose_last_segment_is_torn_goes_on_to_the_same_result(
    game: Any, result_of: Any, merge_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the states are there that the units before the torn segment left."""
    defaults = Journal.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "merge_at", merge_at)
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    for units in range(1, 40, 4):
        store = MemoryStore()

        def interrupt(state: Any, record: Any, units: int = units) -> None:
            if state.units == units:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            game(store, InlineBackend(), on_record=interrupt).play()
        last = max(entry.name for entry in store.list() if re.fullmatch(r"journal/\d{12}", entry.name))
        store.put(last, store.get(last)[:-10])
        again = game(store, InlineBackend())
        assert result_of(again.play()) == expected
        assert any("bytes of segment" in message for message in again.messages)
        assert list(store.list("cut"))


def test_a_run_goes_on_on_its_own_clock_when_that_of_the_machine_goes_back(game: Any, result_of: Any) -> None:
    expected = result_of(game(MemoryStore(), InlineBackend()).play())
    store, ends = MemoryStore(), []

    def interrupt(state: Any, record: Any) -> None:
        ends.append(state.clock)
        if state.units == 9:
            raise KeyboardInterrupt

    late = itertools.count(1000.0, 0.5)
    with pytest.raises(KeyboardInterrupt):
        game(store, InlineBackend(), clock=late.__next__, on_record=interrupt).play()
    state = game(store, InlineBackend(), clock=itertools.count(-5.0, 0.5).__next__).play()
    assert result_of(state) == expected
    assert state.clock > ends[-1] > 0
    records = list(read_records(store))
    times = [record["z"] for record in records if record["r"] == "unit"]
    assert times == sorted(times)
    assert [record["offset"] >= ends[-1] for record in records if record["r"] == "session"] == [False, True]
