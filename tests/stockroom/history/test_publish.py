"""Commits: all or nothing, one after the other however many are made at once."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hopyard.errors import ConflictError, StorageError
from hopyard.stockroom.history.commits import log, read_commit
from hopyard.stockroom.history.locks import collecting
from hopyard.stockroom.history.publish import commit_draft
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.faults import Fault, FaultyStore

from .repository import Repository, change, contents


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "repository") if request.param == "files" else MemoryStore()


def test_a_commit_moves_the_branch_and_the_draft_goes_on_from_it(store: Store) -> None:
    repository = Repository(store)
    draft = repository.draft(None)
    change(draft, {"a": 1}, {"x": {1: "a"}})
    facts = "Bob <b@c>", {"commit": "c" * 40, "branch": "main", "dirty": False}
    first = commit_draft(draft, repository.references, "heads/main", [], "first", lambda: facts)
    assert first is not None
    assert (first.author, first.git, first.message, first.parents) == (*facts, "first", ())
    assert repository.references.tip("heads/main").commit == first.digest
    assert not draft.changed
    with collecting(store):  # the draft has let it in
        pass
    assert repository.publish(draft, first.digest) is None
    change(draft, {"a": None}, {"x": {2: "b"}})
    second = repository.publish(draft, first.digest)
    assert second is not None
    assert Repository(store).contents(second.digest) == contents(draft) == {"x": {1: "a", 2: "b"}}
    assert [commit.message for commit in log(repository.objects, second.digest)] == ["", "first"]
    assert [entry.by for entry in repository.references.log("heads/main")] == ["Ada <a@b>", "Bob <b@c>"]


def test_a_commit_takes_two_packfiles_and_one_reference(tmp_path: Path) -> None:
    store = FaultyStore(LocalStore(tmp_path))
    repository = Repository(store)
    draft = repository.draft(None)
    change(draft, {"a": 1}, {"x": {1: "a"}, "y": {2: 0.5}})
    repository.publish(draft)
    assert [name.rpartition("-")[0] or name for name in store.writes] == [
        "packfiles/data", "packfiles/meta", "refs/heads/main/000000000001",
    ]  # fmt: skip


def test_whoever_is_slower_carries_the_changes_onto_what_is_there(store: Store) -> None:
    repository = Repository(store)
    base = repository.publish(made := repository.draft(None), message="nothing")
    assert base is None
    change(made, {"a": 1, "b": 1}, {"x": {1: "a"}})
    base = repository.publish(made)
    assert base is not None
    mine, other = repository.draft(base.digest), repository.draft(base.digest)
    held = mine.column("x")
    change(mine, {"a": 2}, {"x": {2: "mine"}})
    change(other, {"b": 2}, {"x": {3: "other"}})
    faster = repository.publish(other, base.digest)
    slower = repository.publish(mine, base.digest)
    assert faster is not None
    assert slower is not None
    assert slower.parents == (faster.digest,)
    assert slower.generation == 3
    expected = {"a": 2, "b": 2, "x": {1: "a", 2: "mine", 3: "other"}}
    assert repository.contents(slower.digest) == contents(mine) == expected
    held[4] = "late"
    assert contents(mine)["x"] == dict(held) == {**expected["x"], 4: "late"}


def test_what_conflicts_with_a_faster_commit_leaves_all_as_it_was(store: Store) -> None:
    repository = Repository(store)
    draft = repository.draft(None)
    change(draft, {"a": 1}, {"x": {1: "a"}})
    base = repository.publish(draft)
    assert base is not None
    mine, other = repository.draft(base.digest), repository.draft(base.digest)
    change(other, {"a": 2}, {"x": {1: "other"}})
    faster = repository.publish(other, base.digest)
    change(mine, {"a": 3, "b": 1}, {"x": {1: "mine"}})
    for _ in range(2):
        with pytest.raises(
            ConflictError, match=r"'main' has moved to .* 2 of the changes conflict"
        ) as caught:
            repository.publish(mine, base.digest)
        assert [(conflict.path, conflict.key) for conflict in caught.value.conflicts] == [
            ("data/x", 1), ("experiment/a", None),
        ]  # fmt: skip
        assert "data/x[1]: both changed (base 'a', ours 'other', theirs 'mine')" in str(caught.value)
        assert str(caught.value).endswith("Nothing was committed.")
        assert contents(mine) == {"a": 3, "b": 1, "x": {1: "mine"}}
        assert [path for path, _ in mine.changes()] == ["data/x", "experiment/a", "experiment/b"]
        assert faster is not None
        assert repository.references.tip("heads/main").commit == faster.digest
    own = repository.publish(mine, base.digest, branch="mine")
    assert own is not None
    assert repository.contents(own.digest) == {"a": 3, "b": 1, "x": {1: "mine"}}


def test_a_merge_has_both_parents_also_if_it_changes_nothing(store: Store) -> None:
    repository = Repository(store)
    draft = repository.draft(None)
    change(draft, {"a": 1}, {})
    base = repository.publish(draft)
    assert base is not None
    other = repository.commit(base.digest, values={"b": 1})
    merge = repository.publish(repository.draft(base.digest), base.digest, other)
    assert merge is not None
    assert merge.parents == (base.digest, other)


def test_a_working_tree_at_no_branch_logs_its_commits(store: Store) -> None:
    repository = Repository(store)
    for number in range(2):
        draft = repository.draft(None)
        change(draft, {"a": number}, {})
        commit = commit_draft(draft, repository.references, "worktrees/main", [], "", lambda: ("Ada", None))
        assert commit is not None
        assert commit.parents == ()
        assert repository.references.tip("worktrees/main").commit == commit.digest
    assert repository.references.names("heads") == {}


def test_a_full_disk_or_a_failing_git_leaves_the_draft_to_be_committed_later(tmp_path: Path) -> None:
    store = FaultyStore(LocalStore(tmp_path), *(Fault("full", at=at) for at in (1, 3, 5)))
    repository = Repository(store)
    draft = repository.draft(None)
    change(draft, {"a": 1}, {"x": {1: "a"}})

    def fails() -> Any:
        raise StorageError("git refuses")

    with pytest.raises(StorageError, match="git refuses"):
        commit_draft(draft, repository.references, "heads/main", [], "", fails)
    for _ in range(3):
        with pytest.raises(StorageError, match="no space is left"):
            repository.publish(draft)
        assert contents(draft) == {"a": 1, "x": {1: "a"}}
        assert repository.references.names("heads") == {}
    commit = repository.publish(draft)
    assert commit is not None
    assert Repository(LocalStore(tmp_path)).contents(commit.digest) == {"a": 1, "x": {1: "a"}}


def write_rounds(store: Store, me: str, rounds: int) -> None:
    """Commit ``rounds`` times, each upon what was there before the last commit of anybody: mostly not the tip."""
    repository = Repository(store)
    tip = repository.references.tip("heads/main").commit
    for number in range(rounds):
        draft = repository.draft(tip)
        change(draft, {f"{me}{number}": number}, {"x": {f"{me}{number}": me}})
        commit = repository.publish(draft, *([tip] if tip else []), message=f"{me}{number}")
        assert commit is not None
        tip = commit.digest


def check_serial(store: Store, writers: list[str], rounds: int) -> None:
    """Each commit adds what its writer wrote to the one before it, and every writer's are in order."""
    repository = Repository(store)
    tip = repository.references.tip("heads/main").commit
    assert tip is not None
    made = list(log(repository.objects, tip))[::-1]
    names = [commit.message for commit in made]
    assert sorted(names) == sorted(f"{me}{number}" for me in writers for number in range(rounds))
    for me in writers:
        assert [name for name in names if name.startswith(me)] == [
            f"{me}{number}" for number in range(rounds)
        ]
    expected: dict[str, Any] = {"x": {}}
    for commit in made:
        me, number = commit.message[0], int(commit.message[1:])
        expected[commit.message] = number
        expected["x"][commit.message] = me
        assert repository.contents(commit.digest) == expected


def test_threads_that_commit_at_once_equal_some_serial_order() -> None:
    store = MemoryStore()
    threads = [threading.Thread(target=write_rounds, args=(store, me, 6)) for me in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_serial(store, ["a", "b", "c"], 6)


def test_processes_that_commit_at_once_equal_some_serial_order(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_rounds, args=(store, me, 6)) for me in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    check_serial(store, ["a", "b"], 6)


KILL = """
import os, sys
sys.path.insert(0, sys.argv[2])
from repository import Repository, change
from hopyard.stockroom.history.stage import Stage
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore

BEFORE = {"a": 1, "x": {1: "a"}}
STAGED = {"a": 2, "x": {1: "a"}}
AFTER = {"a": 2, "x": {1: "a", 2: "b"}, "large": "y" * 10_000}

class DyingStore(FaultyStore):
    counted = (*FaultyStore.counted, "delete")

def begin(folder):
    repository = Repository(LocalStore(folder))
    draft = repository.draft(None)
    change(draft, {"a": 1}, {"x": {1: "a"}})
    return repository.publish(draft).digest

def staged(repository, tip):
    stage = Stage(repository.store, "main", tip)
    draft = repository.draft(tip)
    draft.apply(map(WriteOperation.decode, stage.operations()))
    return stage, draft

def work(store, tip):
    repository = Repository(store)
    stage, draft = staged(repository, tip)
    draft._told = lambda operation: stage.append(operation.encode())
    change(draft, {"a": 2}, {})
    change(draft, {}, {"x": {2: "b"}})
    change(draft, {"large": "y" * 10_000}, {})
    repository.publish(draft, tip)
    stage.clear()

from repository import contents
seen = []
for moment in range(1, 100):
    for action in ("kill_before", "kill_after"):
        folder = f"{sys.argv[1]}/{action}-{moment}"
        tip = begin(folder)
        pid = os.fork()
        if pid == 0:
            work(DyingStore(LocalStore(folder), Fault(action, at=moment)), tip)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        repository = Repository(LocalStore(folder))
        head = repository.references.tip("heads/main").commit
        state = repository.contents(head)
        assert state == (BEFORE if head == tip else AFTER), (folder, state)
        stage, draft = staged(repository, head)
        found = contents(draft)
        if head == tip:
            assert found in (BEFORE, STAGED, {**STAGED, "x": AFTER["x"]}, AFTER), (folder, found)
        else:
            assert found == AFTER
            for orphan in stage.orphans():
                # What was committed already changes nothing when it is applied again.
                draft.apply(map(WriteOperation.decode, orphan.operations()))
                assert not draft.changed, folder
        seen.append((action, moment, status, head != tip))
        change(draft, {"next": 1}, {})
        assert repository.publish(draft, head) is not None
        assert repository.contents(repository.references.tip("heads/main").commit) == {**found, "next": 1}
    if status == 0:
        break
print(*seen[-1], len(seen), sum(late for *_, late in seen))
"""


def test_killed_at_any_operation_of_the_store_a_commit_is_done_or_not(tmp_path: Path) -> None:
    """Staged writes, packfiles, commit, reference, clearing the stage."""
    done = subprocess.run(
        [sys.executable, "-c", KILL, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    action, _, status, late, count, committed = done.stdout.split()
    assert (action, status, late) == ("kill_after", "0", "True")
    assert int(count) >= 24
    assert int(committed) >= 10


def test_commits_of_the_state_are_read_by_a_new_repository(tmp_path: Path) -> None:
    repository = Repository(LocalStore(tmp_path))
    draft = repository.draft(None)
    change(draft, {"a": 1}, {})
    commit = repository.publish(draft)
    assert commit is not None
    assert vars(read_commit(Repository(LocalStore(tmp_path)).objects, commit.digest)) == vars(commit)
