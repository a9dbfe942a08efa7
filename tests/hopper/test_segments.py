"""Merging loses nothing, whoever reads, writes or is killed meanwhile."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import CorruptError, FormatError, RunHeldError, UnreachableError
from hopyard.hopper import segments as segments_module
from hopyard.hopper.segments import Segments
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.base import Buffer, Entry
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.storage.format import format_header
from hopyard.storage.wrappers import Call, T, Wrapper


def body(number: int) -> bytes:
    if number == 1:
        return json.dumps({"r": "run", "format": format_header("run"), "n": 1}).encode() + b"\n"
    return b"".join(json.dumps({"r": "x", "n": number, "i": i}).encode() + b"\n" for i in range(number % 3))


def driver(store: Store) -> Segments:
    segments = Segments(store)
    segments.seek_end()
    return segments


def written(store: Store, count: int) -> Segments:
    segments = driver(store)
    for number in range(count):
        segments.append(body(number + 1))
    return segments


def records(store: Store) -> list[Any]:
    return [json.loads(line) for found in Segments(store).read() for line in found.splitlines()]


def bodies(count: int) -> list[Any]:
    return [json.loads(line) for number in range(count) for line in body(number + 1).splitlines()]


def merge(segments: Segments) -> None:
    segments.merge()
    segments.tidy()


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path) if request.param == "local" else MemoryStore()


def test_a_merged_journal_has_the_same_records_in_few_objects(store: Store) -> None:
    segments = written(store, 100)
    merge(segments)
    names = [entry.name for entry in store.list()]
    assert names == ["journal/000000000001-000000000099", "journal/000000000100"]
    assert records(store) == bodies(100)
    for number in range(100, 110):
        segments.append(body(number + 1))
    assert records(store) == bodies(110)
    assert driver(store).last == segments.last


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it, and the store holds what is durable."""


class Dying(MemoryStore):
    """The objects of another store; at the given write or delete, before or after it, its user dies."""

    def __init__(self, inner: Store, at: int, after: bool) -> None:
        super().__init__()
        self.inner, self.left, self.after = inner, at, after

    def _do(self, action: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        done = action()
        if self.left == 0:
            raise Killed
        return done

    def put(self, name: str, data: Buffer) -> None:
        self._do(lambda: self.inner.put(name, data))

    def put_new(self, name: str, data: Buffer) -> bool:
        return bool(self._do(lambda: self.inner.put_new(name, data)))

    def delete(self, name: str) -> None:
        self._do(lambda: self.inner.delete(name))

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.get(name, start, length)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self.inner.list(prefix)

    def size(self, name: str) -> int | None:
        return self.inner.size(name)


def drive(store: Store, acknowledged: list[int]) -> None:
    """A session: open, merge, append and merge again, until there are 16 segments of records."""
    segments = driver(store)
    segments.find_merged()
    segments.tidy()
    segments.merge()
    for number in range(len(records(store)), 16):
        segments.append(json.dumps({"n": number}).encode() + b"\n")
        acknowledged[0] = number + 1
        if number % 4 == 3:
            merge(segments)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_driver_killed_at_any_write_or_delete_loses_nothing_and_doubles_nothing(after: bool) -> None:
    moment = 0
    while True:
        moment += 1
        store, acknowledged = MemoryStore(), [0]
        try:
            drive(Dying(store, moment, after), acknowledged)
        except Killed:
            found = records(store)
            assert [record["n"] for record in found] == list(range(len(found))), moment
            assert len(found) in (acknowledged[0], acknowledged[0] + 1), moment
            drive(store, acknowledged)
            assert [record["n"] for record in records(store)] == list(range(16)), moment
            again = driver(store)
            again.find_merged()
            again.tidy()
            assert len(list(store.list())) <= 8, moment
            continue
        assert moment > 30
        return


class Paged(MemoryStore):
    """A listing in pages of one name; after the given number of names, in all listings, something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.countdown = -1
        self.meanwhile: Callable[[], object] = lambda: None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        name = ""
        while True:
            entries = super().list(prefix)
            entry = next((entry for entry in entries if entry.name > name), None)
            self.countdown -= 1
            if self.countdown == 0:
                self.meanwhile()
            if entry is None:
                return
            name = entry.name
            yield entry


def paged(merged_before: bool, last: int) -> tuple[Paged, Segments]:
    """A store with so many segments, of which the first five may be merged, and what writes there."""
    store = Paged()
    writer = written(store, 5)
    if merged_before:
        merge(writer)
    for number in range(6, last + 1):
        writer.append(body(number))
    return store, writer


@pytest.mark.parametrize("merged_before", [False, True])
def test_a_reader_in_the_middle_of_a_listing_or_of_the_records_misses_none(merged_before: bool) -> None:
    def meanwhile(writer: Segments) -> None:
        merge(writer)
        writer.append(body(8))

    def listed(moment: int) -> Paged:
        """A store that changes at a moment of its listings."""
        store, writer = paged(merged_before, 7)
        store.countdown, store.meanwhile = moment, functools.partial(meanwhile, writer)
        return store

    for moment in range(1, 40):
        store, writer = paged(merged_before, 7)
        reading = Segments(store).read()
        store.countdown, store.meanwhile = moment, functools.partial(meanwhile, writer)
        found = [json.loads(line) for part in reading for line in part.splitlines()]
        assert found in (bodies(7), bodies(8)), moment
        assert Segments(listed(moment)).ends() in ((body(1), body(7)), (body(1), body(8))), moment
        for look in (Segments.first_line, Segments.end):
            assert look(Segments(listed(moment))) in (body(1)[:-1], body(7), body(8)), moment
    for read in range(8):
        store, writer = paged(merged_before, 6)
        reading = Segments(store).read()
        first = [part for _, part in zip(range(read), reading, strict=False)]
        meanwhile(writer)
        parts = [*first, *reading]
        assert [json.loads(line) for part in parts for line in part.splitlines()][: len(bodies(6))] == bodies(
            6
        )


@pytest.mark.parametrize("seen", range(1, 8))
@pytest.mark.parametrize("merged_before", [False, True])
def test_an_overtaken_driver_cannot_append_where_merged_segments_were_deleted(
    seen: int, merged_before: bool
) -> None:
    store = MemoryStore()
    old = written(store, seen)
    if merged_before:
        merge(old)
    new = driver(store)
    new.fence()
    for number in range(seen, 12):
        new.append(body(number + 1))
    merge(new)
    before = [entry.name for entry in store.list()]
    for _ in range(2):
        with pytest.raises(RunHeldError, match=r"was written by another process.*run again"):
            old.append(b"late\n")
    assert [entry.name for entry in store.list()] == before
    assert records(store) == bodies(12)


def test_an_overtaken_driver_that_merges_does_no_harm() -> None:
    store = MemoryStore()
    old = written(store, 6)
    merge(old)
    for number in range(6, 9):
        old.append(body(number + 1))
    new = driver(store)
    new.fence()
    for number in range(9, 12):
        new.append(body(number + 1))
    new.merge()
    with pytest.raises(RunHeldError):
        old.append(b"late\n")
    merge(old)
    assert records(store) == bodies(12)
    new.append(body(13))
    merge(new)
    assert records(store) == [*bodies(12), *bodies(13)[len(bodies(12)) :]]


def test_archives_are_few_and_written_few_times() -> None:
    store = MemoryStore()
    segments = driver(store)
    for number in range(4000):
        segments.append(b'{"n":%d}\n' % number)
        if segments.last - segments.archived > 10:
            merge(segments)
            assert len(list(store.list())) < 25
    assert [record["n"] for record in records(store)] == list(range(4000))


@pytest.mark.parametrize("piece", [30, 1 << 21])
@given(steps=st.lists(st.tuples(st.sampled_from("amtTroO"), st.integers(1, 3)), max_size=40))
def test_any_order_of_appends_merges_takeovers_and_readings(piece: int, steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_module, "_PIECE", piece)
        follow(steps)


def follow(steps: list[tuple[str, int]]) -> None:
    store, model = MemoryStore(), list[bytes]()
    drivers = [driver(store)]
    tail, tailed = Segments(store), list[bytes]()
    for number, (what, count) in enumerate(steps):
        if what == "a":
            for i in range(count):
                drivers[-1].append(line := b'{"n":%d,"i":%d}\n' % (number, i))
                model.append(line)
        elif what == "m":
            drivers[-1].merge()
        elif what == "t":
            drivers[-1].tidy(count)
        elif what == "T":
            drivers.append(driver(store))
            drivers[-1].fence()
            drivers[-1].find_merged()
        elif what == "r":
            assert b"".join(Segments(store).read()) == b"".join(model)
            ends = (model[0] if model else b"", model[-1] if model else b"")
            assert Segments(store).ends() == ends
            assert (Segments(store).first_line(), Segments(store).end()) == (ends[0][:-1], ends[1])
        elif what == "O":
            tailed += tail.read()
            assert b"".join(tailed) == b"".join(model)
        elif model and len(drivers) > 1 and drivers[-2].last:
            with pytest.raises(RunHeldError):
                drivers[-2].append(b"late\n")
    assert b"".join(Segments(store).read()) == b"".join(model)
    assert b"".join([*tailed, *tail.read()]) == b"".join(model)


def test_a_merge_that_the_store_refuses_is_tried_again() -> None:
    inner = MemoryStore()
    segments = written(FaultyStore(inner, Fault("error", match="journal/*-*", times=2)), 9)
    for _ in range(2):
        merge(segments)
        assert records(inner) == bodies(9)
        assert segments.archived == 0
    merge(segments)
    assert segments.archived == 8
    assert records(inner) == bodies(9)
    assert len(list(inner.list())) == 2


def test_what_is_damaged_in_an_archive_or_missing_is_told(store: Store) -> None:
    segments = written(store, 9)
    merge(segments)
    [archive] = [entry.name for entry in store.list("journal") if "-" in entry.name]
    data = store.get(archive)
    for damaged in (
        data[:-1],
        data[:20],
        data.replace(b'"nbytes":', b'"nbytes":9'),
        data[:-5] + b"12345",
        b"\n",
    ):
        store.put(archive, damaged)
        with pytest.raises(
            CorruptError, match=r"000000000001-0.* is not what was written: the part from byte 0 on"
        ):
            records(store)
        with pytest.raises(CorruptError, match="is not what was written"):
            Segments(store).ends()
    store.put(archive, data.replace(b'"version":1', b'"version":9'))
    with pytest.raises(FormatError, match="in format 9"):
        records(store)
    store.delete(archive)
    with pytest.raises(CorruptError, match=r"lacks 000000000002, but has 000000000009: its history is torn"):
        list(driver_behind(store, 1).read())
    with pytest.raises(CorruptError, match=r"lacks 000000000001, but has 000000000009: its history is torn"):
        Segments(store).ends()


def driver_behind(store: Store, number: int) -> Segments:
    segments = Segments(store)
    segments.last = number
    return segments


def test_a_journal_whose_first_archive_is_gone_is_damaged_and_not_empty(store: Store) -> None:
    merge(written(store, 100))
    [archive] = [entry.name for entry in store.list() if "-" in entry.name]
    store.delete(archive)
    with pytest.raises(CorruptError, match=r"lacks 000000000001, but has 000000000100: .* Restore"):
        records(store)


class Measured(MemoryStore):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        found = super().get(name, start, length)
        self.nbytes += len(found)
        return found


@pytest.mark.parametrize("first", [100, 200_000], ids=["short", "long"])
def test_the_ends_of_a_long_journal_are_told_by_few_bytes_of_it(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "_PIECE", 1 << 18)
    store, noise = Measured(), random.Random(0)
    segments = driver(store)
    texts = [noise.randbytes(size).hex() for size in (first, *[2000] * 500)]
    for text in texts:
        segments.append(json.dumps({"text": text}).encode() + b"\n")
    merge(segments)
    whole = sum(entry.size for entry in store.list())
    assert whole > 1_000_000
    for look, found, most in (
        (Segments.first_line, texts[0], first * 3 + 80_000),
        (Segments.end, texts[-1], 6000),
        (lambda segments: b"".join(segments.ends()), texts[0], first * 3 + 300_000),
    ):
        store.nbytes = 0
        assert json.loads(look(Segments(store)).splitlines()[0])["text"] == found
        assert store.nbytes < most


class Unanswering(Wrapper):
    """A store of which one call gets no answer: that of a number, whatever it calls, before or after it acted."""

    def __init__(self, inner: Store, at: int, acts: bool) -> None:
        super().__init__(inner)
        self.left, self._acts = at, acts

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        self.left -= 1
        if self.left:
            return action()
        if self._acts:
            action()
        raise UnreachableError(f"{call} of {name!r} got no answer.")


@pytest.mark.parametrize("acts", [False, True])
def test_a_call_without_an_answer_is_not_taken_for_another_driver(acts: bool) -> None:
    for moment in itertools.count(1):
        inner = MemoryStore()
        store = Unanswering(inner, moment, acts)

        def answered(call: Callable[[], T]) -> T:
            try:
                return call()
            except UnreachableError:  # the hopper waits, and does the same again
                return call()

        segments = answered(lambda: driver(store))  # noqa: B023
        for number in range(8):
            data = json.dumps({"n": number}).encode() + b"\n"
            answered(lambda: segments.append(data))  # noqa: B023
            if number == 4:
                answered(lambda: merge(segments))  # noqa: B023
        assert records(inner) == [{"n": number} for number in range(8)], moment
        if store.left > 0:
            break
    assert moment > 20
