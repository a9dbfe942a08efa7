"""Stores around others pass the suite, and do what they are for, also in parts and after they travelled."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.storage.test_conformance import OwnSuite

from hopyard.errors import NotWritableError, StorageError, UnreachableError, UsageError
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.testing import (
    CachingStore,
    CountingStore,
    Fault,
    FaultyStore,
    ReadOnlyStore,
    SlowStore,
    Wrapper,
)


@pytest.mark.parametrize("kind", [Wrapper, CountingStore, SlowStore, CachingStore, FaultyStore])
class TestWrappers(OwnSuite):
    @pytest.fixture
    def store(self, kind: type[Wrapper], tmp_path: Path) -> Store:
        inner = LocalStore(tmp_path / "store")
        return SlowStore(inner, latency=0) if kind is SlowStore else kind(inner)


def test_the_parts_of_a_search_are_where_the_inner_store_has_them(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path / "store", train_path=tmp_path / "train", runs_path=tmp_path / "runs")
    store = CountingStore(inner)
    store.train_data.put("a", b"123")
    store.runs.at("one").put("b", b"4")
    pickle.loads(pickle.dumps(store)).logs.put("c", b"5")
    assert (tmp_path / "train" / "a").read_bytes() == b"123"
    assert (tmp_path / "runs" / "one" / "b").read_bytes() == b"4"
    assert (tmp_path / "store" / "logs" / "c").read_bytes() == b"5"
    assert store.asked == ["put train_data/a", "put runs/one/b"]
    assert (store.single_train, store.single_val) == (True, False)


def test_calls_and_bytes_are_counted_and_nothing_goes_past(tmp_path: Path) -> None:
    store = CountingStore(LocalStore(tmp_path / "store"))
    store.put("a", bytes(1000))
    assert store.put_new("b", bytes(10))
    assert not store.put_new("b", bytes(10))
    (tmp_path / "file").write_bytes(bytes(100))
    store.put_file("c", tmp_path / "file")
    assert store.get("a", 5, 20) == bytes(20)
    assert store.names() == {"a", "b", "c"}
    store.delete("c")
    assert (store.path("a"), store.staging()) == (None, None)
    assert store.calls == {"put": 1, "put_new": 2, "put_file": 1, "get": 1, "list": 1, "delete": 1}
    assert (store.sent, store.received) == (1120, 20)
    store.reset()
    assert (store.calls.total(), store.sent, store.received, store.asked) == (0, 0, 0, [])


def test_a_store_for_reading_is_not_changed_by_any_call(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path / "store")
    inner.put("a", b"1")
    store = ReadOnlyStore(inner)
    assert store.get("a") == b"1"
    (tmp_path / "file").write_bytes(b"2")
    for write in (
        lambda: store.put("a", b"2"),
        lambda: store.put_new("b", b"2"),
        lambda: store.put_file("b", tmp_path / "file"),
        lambda: store.delete("a"),
        lambda: store.runs.put("b", b"2"),
    ):
        with pytest.raises(
            NotWritableError, match=r"is opened for reading only, so '.*' cannot be written or deleted"
        ):
            write()
    assert (tmp_path / "file").exists()
    assert {name: inner.get(name) for name in inner.names()} == {"a": b"1"}


def test_a_slow_store_waits_for_each_answer_and_all_bytes_pass_at_one_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(SlowStore, "_wait", staticmethod(waits.append))
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    store = SlowStore(MemoryStore(), latency=0.5, bytes_per_second=1000)
    store.put("a", bytes(2000))
    assert waits == [0.5, 2.0]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(store.get, "a").result() == bytes(2000)
    store.get("a", 0, 500)
    assert waits == [0.5, 2.0, 0.5, 2.0, 0.5, 2.5]
    with pytest.raises(UsageError, match="latency"):
        SlowStore(MemoryStore(), latency=-1)


def test_kept_objects_are_given_while_they_are_as_they_were(tmp_path: Path) -> None:
    counted = CountingStore(LocalStore(tmp_path))
    store = CachingStore(counted, max_bytes=202)
    for name in "abc":
        store.put(name, name.encode() * 100)
    for _ in range(3):
        assert store.get("a") == b"a" * 100
        assert store.get("a", 10, 5) == b"aaaaa"
    assert counted.calls["get"] == 1
    counted.inner.put("a", b"new")
    assert store.get("a") == b"new"
    assert counted.calls["get"] == 2
    for name in "bcb":
        store.get(name)
    assert counted.calls["get"] == 4  # b and c are kept, and a, which was not asked for longest, went
    store.get("a")
    assert counted.calls["get"] == 5
    counted.inner.delete("b")
    with pytest.raises(StorageError):
        store.get("b")
    assert pickle.loads(pickle.dumps(store)).get("c") == b"c" * 100


@pytest.mark.parametrize(("action", "written"), [("unreachable", False), ("unanswered", True)])
def test_a_write_without_an_answer_happened_or_not(action: str, written: bool) -> None:
    store = FaultyStore(MemoryStore(), Fault(action, at=2))  # type: ignore[arg-type]
    store.put("a", b"1")
    with pytest.raises(
        UnreachableError, match=r"writing 'b' in memory://.* got no answer \(injected\)\. Look at the"
    ):
        store.put_new("b", b"2")
    assert store.exists("b") is written
    assert store.writes == ["a", "b"]
