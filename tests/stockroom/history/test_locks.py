"""Writers share, the collector is alone, and dead holders hold nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopyard.errors import StorageError
from hopyard.stockroom.history.locks import (
    alone,
    collecting,
    read_commits,
    reading,
    replacing,
    writing,
)
from hopyard.storage import LocalStore, MemoryStore

HOLD = """
import sys
from hopyard.storage import LocalStore
from hopyard.stockroom.history.locks import reading, writing
store = LocalStore(sys.argv[1])
with writing(store) if sys.argv[2] == "write" else reading(store, "c" * 64):
    print("holding", flush=True)
    sys.stdin.read()
"""


def holder(store: LocalStore, what: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, store.url, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=60)


def test_writers_share_and_keep_the_collector_out_until_they_die(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "repository")
    other = holder(store, "write")
    with writing(store), writing(store):
        pass
    with (
        pytest.raises(StorageError, match=r"is being written to, .*so nothing can be deleted.*Try again"),
        collecting(store),
    ):
        raise AssertionError
    kill(other)
    with collecting(store):
        pass


def test_an_error_of_the_collector_itself_is_not_taken_for_a_writer(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), collecting(LocalStore(tmp_path)):
        raise BlockingIOError


def test_what_readers_hold_is_known_until_they_end_or_die(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "repository")
    assert read_commits(store) == set()
    other = holder(store, "read")
    with reading(store, "a" * 64), reading(store, "b" * 64):
        assert read_commits(store) == {"a" * 64, "b" * 64, "c" * 64}
    assert read_commits(store) == {"c" * 64}
    kill(other)
    assert read_commits(store) == set()
    assert list((tmp_path / "repository" / "readers").iterdir()) == []


def test_a_store_without_files_locks_nothing() -> None:
    store = MemoryStore()
    with ExitStack() as stack:
        for lock in (writing(store), collecting(store), reading(store, "a" * 64)):
            stack.enter_context(lock)
        assert read_commits(store) == set()
    assert list(store.list()) == []


def test_a_file_system_that_may_not_be_written_to_can_be_read() -> None:
    with reading(LocalStore("/proc/repository"), "a" * 64):
        pass


# Marks


def mark(store: LocalStore) -> bytes | None:
    with writing(store) as told:
        return told()


def test_the_mark_stays_until_somebody_may_delete(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first = mark(store)
    assert first is not None
    assert mark(store) == first
    with reading(store, "a" * 64):
        assert mark(store) == first
    seen = {first}
    for deleting in (collecting, alone, replacing):
        with deleting(store):
            inside = (tmp_path / "gc.lock").read_bytes()
        seen |= {inside, mark(store)}
        assert first not in (inside, mark(store))
        first = mark(store)
    assert None not in seen
    assert len(seen) == 5  # of `replacing` one before and one behind


@pytest.mark.parametrize("content", [b"", b"a" * 20, b"f" * 33, b"f" * 32 + b"\n\n", b"g" * 32 + b"\n"])
def test_what_is_no_mark_is_replaced(tmp_path: Path, content: bytes) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "gc.lock").write_bytes(content)
    found = mark(store)
    assert found == (tmp_path / "gc.lock").read_bytes() == mark(store)
    assert found != content


def test_who_has_no_room_for_a_mark_leaves_none(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert mark(store) is not None
    code = """
import resource, sys
from hopyard.storage import LocalStore
from hopyard.stockroom.history.locks import collecting, writing
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
store = LocalStore(sys.argv[1])
with collecting(store):
    pass
with writing(store) as told:
    assert told() is None
"""
    subprocess.run([sys.executable, "-c", code, store.url], check=True)
    assert (tmp_path / "gc.lock").read_bytes() == b""
    assert mark(store) is not None


def test_who_cannot_change_the_mark_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"gc\.lock"), collecting(store):
        raise AssertionError


def test_without_locks_there_is_no_mark() -> None:
    with writing(MemoryStore()) as told:
        assert told() is None
