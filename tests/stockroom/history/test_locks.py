"""Writers share, the collector is alone, and dead holders hold nothing."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopyard.errors import StorageError
from hopyard.stockroom.history.locks import collecting, read_commits, reading, writing
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
