"""A store is tried as Hopyard uses it, and what it lacks is said."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopyard.cli.tree import app
from hopyard.errors import NotWritableError
from hopyard.storage import Buffer, LocalStore, MemoryStore, ObjectStore, Store, check_store
from hopyard.storage.base import PrefixStore
from hopyard.storage.faults import Fault, FaultyStore

ALL = [
    "list", "write, read, delete", "write only if the name is free", "replace and read at once", "read ranges", "clock",
    "1 MB", "a request", "a unit of a search",
]  # fmt: skip


@pytest.fixture(params=["files", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "files":
        return LocalStore(tmp_path / "store")
    return MemoryStore() if request.param == "memory" else ObjectStore(request.getfixturevalue("s3_url"))


def test_a_store_that_works_says_so_and_keeps_nothing(store: Store) -> None:
    store.put("mine/a", b"1")
    report = check_store(store, megabytes=1)
    assert report.ok, str(report)
    assert [check.name for check in report.checks] == ALL
    assert str(report).startswith(f"{store.url}\n  list ")
    assert "of 8 writers at once one won" in str(report)
    assert report.seconds.keys() == {"write", "read", "list", "delete"}
    assert all(seconds > 0 for seconds in report.seconds.values())
    assert store.names() == {"mine/a"}


class Broken(MemoryStore):
    """A store that breaks one promise, and whose parts do, too."""

    def __init__(self, promise: str) -> None:
        super().__init__()
        self._promise = promise
        self._old: dict[str, bytes] = {}

    def at(self, prefix: str) -> Store:
        return PrefixStore(self, prefix)

    def put(self, name: str, data: Buffer) -> None:
        if self._promise == "writable":
            raise NotWritableError(
                f"{self.url}/{name} cannot be written: the server forbids it. Ask for the right."
            )
        if self._promise == "current" and self.exists(name):
            self._old[name] = super().get(name)
        super().put(name, data)

    def put_new(self, name: str, data: Buffer) -> bool:
        if self._promise == "conditional":
            super().put(name, data)
            return True
        return super().put_new(name, data)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if self._promise == "ranges":
            return super().get(name)
        return self._old.get(name) or super().get(name, start, length)

    def delete(self, name: str) -> None:
        if self._promise != "deletes":
            super().delete(name)

    def written_at(self, name: str) -> float | None:
        return time.time() + {"ahead": 7200.0, "behind": -300.0}.get(self._promise, 0.0)


@pytest.mark.parametrize(
    ("promise", "check", "found"),
    [
        ("writable", "write, read, delete", "cannot be written: the server forbids it. Ask for the right."),
        (
            "deletes",
            "write, read, delete",
            "an object that was deleted is still there. Look at caches between",
        ),
        (
            "conditional",
            "write only if the name is free",
            "of 8 writers at once 8 were told that they had the name",
        ),
        (
            "current",
            "replace and read at once",
            "an object that was replaced was read as it was before. Look at",
        ),
        ("ranges", "read ranges", "a range of an object is not that part of it. Look at what is between"),
        ("ahead", "clock", "the store's clock is 2 h 0 min ahead of this machine's. Set the clocks by NTP"),
        ("behind", "clock", "the store's clock is 5 min behind this machine's. Set the clocks by NTP"),
    ],
)
def test_what_a_store_lacks_is_said_with_the_next_step(promise: str, check: str, found: str) -> None:
    report = check_store(Broken(promise), megabytes=1)
    assert not report.ok
    (failed,) = [each for each in report.checks if not each.ok]
    assert (failed.name, found in failed.found) == (check, True), failed.found
    assert f"NO: {failed.found}" in str(report)


def test_what_was_written_until_it_failed_is_removed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    report = check_store(FaultyStore(store, Fault("error", at=12, times=10**6)), megabytes=1)
    assert not report.ok
    assert store.names() == set()


def test_the_command_ends_with_status_1_where_something_is_missing(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["store", "check", str(tmp_path / "store"), "--megabytes", "1"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{tmp_path}/store\n  list ")
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["store", "check", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert "NO: " in done.output
    assert {path.name for path in tmp_path.iterdir()} == {"store", "file"}
