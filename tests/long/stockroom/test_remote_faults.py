"""Whatever is killed, full or broken, at whichever write: the remote never shows a commit that lacks anything."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sampling import SEED, by_level
from tests.stockroom.remotes.repositories import at, commit, content, samples, tip, whole

from hopyard.errors import StorageError
from hopyard.stockroom.remotes import FetchSelection, OnDemand, Repository, bring, fetch, pull, push, select
from hopyard.storage import LocalStore, MemoryStore, Store, open_store
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.storage.testing import CountingStore


@pytest.fixture
def small_packfiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a push has many writes."""
    monkeypatch.setattr("hopyard.stockroom.data.repacking.PACKFILE_BYTES", 20_000)


@pytest.fixture
def source(local: Repository) -> Repository:
    commit(local, image=samples(6, size=600_000), values={"lr": 1})
    commit(local, image=samples(2, size=600_000, seed=3), label={0: "cat"})
    local.references.set("tags/v1", tip(local), "Ada")
    return local


@pytest.mark.usefixtures("small_packfiles")
@pytest.mark.parametrize("action", ["full", "error"])
@pytest.mark.parametrize("where", ["files", "memory", "s3"])
def test_a_push_that_fails_at_any_write_is_done_again(
    where: str, action: str, source: Repository, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("s3_url") if where == "s3" else ""
    number, sent = 0, 0
    memory = MemoryStore()
    while True:
        number += 1
        inner = (
            LocalStore(tmp_path / "r")
            if where == "files"
            else memory
            if where == "memory"
            else open_store(url)
        )
        store = FaultyStore(inner, Fault(action, at=number))  # type: ignore[arg-type]
        try:
            sent = push(source, at(store, "origin", index=False), ["main"], ["v1"]).objects
            break
        except StorageError:
            pass
        assert whole(inner) <= {tip(source)}
    assert number > 3
    assert sent < 10  # the rest had arrived before
    assert whole(inner) == {tip(source)}


_PUSH = """
import pickle, sys
from hopyard.stockroom.data import repacking
from hopyard.stockroom.remotes import Repository, push
from hopyard.storage.faults import Fault, FaultyStore
from tests.stockroom.remotes.repositories import at
repacking.PACKFILE_BYTES = 20_000
folder, store, action, number = pickle.load(sys.stdin.buffer)
push(at(folder), at(FaultyStore(store, Fault(action, at=number)), "origin", index=False), ["main"], ["v1"])
"""

_PULL = """
import pickle, sys
from hopyard.stockroom.remotes import pull
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore
from tests.stockroom.remotes.repositories import at
folder, store, action, number = pickle.load(sys.stdin.buffer)
local = at(FaultyStore(LocalStore(folder), Fault(action, at=number)))
pull(local, at(store, "origin", index=False), "main", "Bob")
"""

_FETCH = """
import pickle, sys
from hopyard.stockroom.data import repacking
from hopyard.stockroom.remotes import Repository, FetchSelection, bring, fetch, select
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore
from tests.stockroom.remotes.repositories import at
repacking.PACKFILE_BYTES = 20_000
folder, store, action, number = pickle.load(sys.stdin.buffer)
local = at(FaultyStore(LocalStore(folder), Fault(action, at=number)))
remote = at(store, "origin", index=False)
fetched = fetch(local, remote)
bring(local, [remote], select(local.objects, fetched.heads.values(), FetchSelection(data=True)))
"""


def killed(code: str, *arguments: object) -> bool:
    process = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(arguments),
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


@pytest.mark.parametrize("action", ["kill_before", "kill_after"])
def test_a_push_that_is_killed_at_any_write_is_done_again(
    action: str, source: Repository, tmp_path: Path
) -> None:
    """Each push begins after what the one before has left."""
    store = LocalStore(tmp_path / "remote")
    number = 1
    while killed(_PUSH, tmp_path / "local", store, action, number):
        assert whole(store) <= {tip(source)}
        number += 1 if action == "kill_before" else 0
        assert number < 30
    assert whole(store) == {tip(source)}


@pytest.mark.parametrize("action", ["kill_before", "kill_after"])
def test_a_fetch_that_is_killed_at_any_write_is_done_again(
    action: str, source: Repository, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "remote")
    push(source, at(store, "origin"), ["main"], ["v1"])
    number = 1
    while killed(_FETCH, tmp_path / "copy", store, action, number):
        check(tmp_path / "copy", tip(source))
        number += 1 if action == "kill_before" else 0
        assert number < 30
    copy = at(tmp_path / "copy")
    assert content(copy, copy.references.names("remotes")["origin/main"]) == content(source, tip(source))


@pytest.mark.parametrize("action", ["kill_before", "kill_after"])
@pytest.mark.parametrize("has_own", [False, True], ids=["forward", "merged"])
def test_a_pull_that_is_killed_at_any_write_is_done_again(
    has_own: bool, action: str, source: Repository, tmp_path: Path
) -> None:
    """The branch is as it was, or has all of theirs."""
    store, folder = LocalStore(tmp_path / "remote"), tmp_path / "copy"
    push(source, at(store, "origin"), ["main"])
    copy = at(folder)
    pull(copy, at(store, "origin"), "main", "Bob")
    commit(source, values={"theirs": 1})
    push(source, at(store, "origin"), ["main"], ["v1"])
    before = commit(copy, values={"own": 2}) if has_own else tip(copy)
    number = 1

    def opened() -> Repository:
        absent = OnDemand(at(folder), [at(store, "origin", index=False)])
        return Repository.at(LocalStore(folder), folder / "index.sqlite", absent)

    while killed(_PULL, folder, store, action, number):
        left = opened()
        assert tip(left) == before or content(left, tip(left))["experiment/theirs"] == 1
        # A merge is another commit each time, so its packfile is the first change each time.
        number += 1 if action == "kill_before" or has_own else 0
        assert number < 30
    done = opened()
    assert content(done, tip(done)) == content(source, tip(source)) | (
        {"experiment/own": 2} if has_own else {}
    )
    assert done.references.names("remotes") == {"origin/main": tip(source)}
    assert done.references.names("tags").keys() == {"v1"}
    assert number > 2 or action == "kill_after"


def packfile_gone(folder: Path) -> None:
    next((folder / "packfiles").iterdir()).unlink()


def packfile_cut_off(folder: Path) -> None:
    os.truncate(max((folder / "packfiles").iterdir(), key=lambda path: path.stat().st_size), 700)


def rows_of_another_packfile(folder: Path) -> None:
    """As a crash of the machine may leave it: old rows of a packfile that is gone beside a new packfile of the same
    number."""
    last = max((folder / "packfiles").iterdir(), key=lambda path: path.stat().st_size)
    (index,) = folder.parent.glob("*/index-origin.sqlite")
    with sqlite3.connect(index) as db:
        name = f"packfiles/{last.name}"
        db.execute(
            "UPDATE OR IGNORE objects SET packfile = (SELECT min(number) FROM packfiles WHERE name != ?) "
            "WHERE packfile = (SELECT number FROM packfiles WHERE name = ?)", (name, name),
        )  # fmt: skip
    db.close()
    last.unlink()


@pytest.mark.usefixtures("small_packfiles")
@pytest.mark.parametrize("harm", [packfile_gone, packfile_cut_off, rows_of_another_packfile])
def test_what_a_remote_has_lost_is_sent_again(
    harm: Callable[[Path], None], source: Repository, tmp_path: Path
) -> None:
    """What is remembered of its packfiles is never taken for what is there."""
    folder = tmp_path / "remote"

    def there() -> Repository:
        return Repository.at(LocalStore(folder), tmp_path / "local" / "index-origin.sqlite", name="origin")

    push(source, there(), ["main"], ["v1"])
    shutil.rmtree(folder / "refs")
    shutil.rmtree(folder / "copies")
    harm(folder)
    push(source, there(), ["main"], ["v1"])
    assert whole(LocalStore(folder)) == {tip(source)}


@pytest.mark.parametrize("which", ["local/index.sqlite", "local/index-origin.sqlite"])
def test_a_flipped_bit_in_an_index_leaves_no_commit_incomplete(
    which: str, source: Repository, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "remote")
    index = tmp_path / "local" / "index-origin.sqlite"
    push(source, Repository.at(store, index, name="origin"), ["main"])
    commit(source, other=samples(3))
    remaining = {
        path: path.read_bytes() for path in sorted((tmp_path / "remote").rglob("*")) if path.is_file()
    }
    data = (tmp_path / which).read_bytes()
    used = [at for at in range(100, len(data)) if data[at]]
    for position in random.Random(SEED).sample(used, by_level(5, 5, 15)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        (tmp_path / which).write_bytes(flipped)
        push(at(tmp_path / "local"), Repository.at(store, index, name="origin"), ["main"])
        assert whole(store) == {tip(source)}
        shutil.rmtree(tmp_path / "remote")
        for path, content_before in remaining.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content_before)


def check(folder: Path, commit_digest: str) -> None:
    """What references name has all its metadata."""
    copy = at(folder)
    for kind in ("remotes", "tags"):
        for digest in copy.references.names(kind).values():
            assert digest == commit_digest
            found = list(select(copy.objects, [digest], FetchSelection(data=True, history=True)))
            assert len(found) >= 6


@pytest.mark.usefixtures("small_packfiles")
def test_what_has_arrived_is_not_sent_again(source: Repository) -> None:
    inner = MemoryStore()
    with pytest.raises(StorageError, match="injected"):
        push(source, at(FaultyStore(inner, Fault("full", match="packfiles/meta-*")), "origin"), ["main"])
    store = CountingStore(inner)
    push(source, at(store, "origin"), ["main"])
    assert not [name for name in store.asked if name.startswith("put packfiles/data")]


@pytest.mark.usefixtures("small_packfiles")
def test_a_full_disk_here_keeps_what_came(source: Repository, tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    push(source, at(store, "origin"), ["main"])
    folder = LocalStore(tmp_path / "copy")
    copy = at(folder)
    fetch(copy, at(store, "origin"))
    wanted = list(select(copy.objects, [tip(source)], FetchSelection(data=["image"])))
    full = at(FaultyStore(folder, Fault("full", at=4, match="packfiles/*", times=99)))
    with pytest.raises(StorageError, match="injected"):
        bring(full, [at(store, "origin")], wanted)
    came = 3
    result = bring(copy, [at(store, "origin")], wanted)
    assert result.objects == len(wanted) - came


def test_what_a_collector_takes_meanwhile_is_sent_again(source: Repository) -> None:
    """A packfile of the remote that the push relied on is deleted while the push is under way."""
    inner = MemoryStore()
    push(source, at(inner, "origin"), {"main": "old"})
    victim = next(entry.name for entry in inner.list("packfiles") if "data" in entry.name)
    inner.delete("refs/heads/old/000000000001")
    commit(source, other=samples(3))

    class Collected(CountingStore):
        def put(self, name: str, data: object) -> None:
            inner.delete(victim)
            super().put(name, data)  # type: ignore[arg-type]

    store: Store = Collected(inner)
    push(source, at(store, "origin"), ["main"])
    assert whole(inner) == {tip(source)}
