"""Faults happen where they were asked for, and only there."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.errors import StorageError, StorageFullError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.faults import Fault, FaultyStore


def test_the_nth_matching_write_fails_and_no_other() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, Fault("full", at=2, times=2, match="runs/*"), Fault("error", match="other"))
    part = store.runs
    outcomes = []
    for number in range(5):
        store.put(f"else/{number}", b"")
        try:
            outcomes.append(part.put_new(f"{number}", b""))
        except StorageFullError:
            outcomes.append("full")
    assert outcomes == [True, "full", "full", True, True]
    assert [entry.name for entry in inner.list("runs")] == ["runs/0", "runs/3", "runs/4"]
    with pytest.raises(StorageError, match="injected"):
        store.put("other", b"")
    assert len(store.writes) == 11


def test_a_disk_is_full_until_there_is_space(tmp_path: Path) -> None:
    space = tmp_path / "space"
    store = FaultyStore(MemoryStore(), Fault("full", times=10**9, until=space))
    for _ in range(3):
        with pytest.raises(StorageFullError):
            store.put("a", b"")
    space.touch()
    store.put("a", b"")


def test_moved_parts_are_faulty_too(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path / "p", train_path=tmp_path / "t", runs_path=tmp_path / "r")
    store = FaultyStore(inner, Fault("full", at=2))
    assert store.single_train
    store.train_data.put("x", b"")
    with pytest.raises(StorageFullError):
        store.runs.at("one").put("y", b"")
    store.runs.put("z", b"")
    assert store.writes == ["train_data/x", "runs/one/y", "runs/z"]
    assert sorted(p.name for p in tmp_path.rglob("?") if p.is_file()) == ["x", "z"]


KILLED = """
import pickle, sys
store = pickle.load(sys.stdin.buffer)
for name in "abc":
    store.put(name, b"")
"""


@pytest.mark.parametrize(("action", "left"), [("kill_before", ["a"]), ("kill_after", ["a", "b"])])
def test_a_kill_ends_the_process_before_or_after_the_write_and_once(
    tmp_path: Path, action: str, left: list[str]
) -> None:
    inner = LocalStore(tmp_path / "store")
    store = FaultyStore(inner, Fault(action, at=2, once=tmp_path / "done"))  # type: ignore[arg-type]
    for returncode, names in ((-9, left), (0, ["a", "b", "c"])):
        done = subprocess.run(
            [sys.executable, "-c", KILLED], input=pickle.dumps(store), timeout=60, check=False
        )
        assert done.returncode == returncode
        assert [entry.name for entry in inner.list()] == names
