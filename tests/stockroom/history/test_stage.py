"""The stage: durable, in order, cleared at once, and of one commit only."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.errors import CorruptError, UsageError
from hopyard.stockroom.history.stage import Stage, stages
from hopyard.storage import LocalStore, MemoryStore, Store

A, B = "a" * 64, "b" * 64


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "repository") if request.param == "files" else MemoryStore()


def test_operations_come_back_in_order_until_they_are_cleared(store: Store) -> None:
    stage = Stage(store, "main", A)
    assert list(stage.operations()) == []
    for number in range(12):
        stage.append(b"%d" % number)
    assert list(Stage(store, "main", A).operations()) == [b"%d" % number for number in range(12)]
    stage.clear()
    assert list(stage.operations()) == []
    assert list(store.list("stage/main/" + A)) == []
    stage.append(b"again")
    stage.clear()
    stage.clear()
    assert list(Stage(store, "main", A).operations()) == []


def test_what_others_clear_and_write_meanwhile_stays_in_order(store: Store) -> None:
    mine, other = Stage(store, "main", None), Stage(store, "main", None)
    for number in range(5):
        mine.append(b"old %d" % number)
    other.clear()
    other.append(b"1")
    mine.append(b"2")
    other.append(b"3")
    mine.append(b"4")
    assert list(mine.operations()) == [b"1", b"2", b"3", b"4"]


def test_only_operations_that_are_named_are_cleared_if_there_are_others(store: Store) -> None:
    mine, other = Stage(store, "main", None), Stage(store, "main", None)
    known = {mine.append(b"mine 1")}
    other.append(b"other")
    known.add(mine.append(b"mine 2"))
    assert mine.entries() == {1: b"mine 1", 2: b"other", 3: b"mine 2"}
    mine.clear(known)
    assert mine.entries() == {2: b"other"}
    assert mine.append(b"mine 3") == 4, "no number is given twice"
    other.clear({2, 4, 99})
    assert list(store.list("stage/main/none")) == []


def test_a_stage_of_another_commit_or_working_tree_is_not_seen_but_named(store: Store) -> None:
    Stage(store, "worktree-x", A).append(b"of a")
    Stage(store, "main", A).append(b"of main")
    now = Stage(store, "worktree-x", B)
    assert list(now.operations()) == []
    assert [(stage.base, list(stage.operations())) for stage in now.orphans()] == [(A, [b"of a"])]
    now.append(b"of b")
    assert [stage.base for stage in now.orphans()] == [A]
    assert [stage.base for stage in Stage(store, "worktree-x", None).orphans()] == [A, B]
    assert {(stage.worktree, stage.base) for stage in stages(store)} == {
        ("main", A), ("worktree-x", A), ("worktree-x", B),
    }  # fmt: skip
    now.orphans()[0].clear()
    assert now.orphans() == []


def test_foreign_files_are_named(store: Store) -> None:
    store.put(f"stage/main/{A}/notes", b"")
    with pytest.raises(CorruptError, match=f"holds 'stage/main/{A}/notes', but only staged writes"):
        list(Stage(store, "main", A).operations())


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("how", ["emptied", "cut to its digest", "cut short", "changed"])
def test_a_file_that_was_damaged_clears_nothing_and_is_named(store: Store, at: int, how: str) -> None:
    stage = Stage(store, "main", A)
    numbers = [stage.append(b"write %d" % number) for number in range(3)]
    name = f"stage/main/{A}/{numbers[at]:012d}"
    data = store.get(name)
    damaged = {
        "emptied": b"", "cut to its digest": data[:32], "cut short": data[:-1], "changed": data[:-1] + b"x",
    }[how]  # fmt: skip
    store.put(name, damaged)
    what = "is empty" if how == "emptied" else "is damaged: its content has not the digest"
    rule = rf"{name} {what}.* It is a staged write.* discard all that is staged: hopyard stock reset"
    with pytest.raises(CorruptError, match=rule):
        list(Stage(store, "main", A).operations())
    with pytest.raises(CorruptError, match=rule), stage.held() as log:
        log.since(0, numbers[0] - 1)
    stage.clear()
    assert list(Stage(store, "main", A).operations()) == []


def test_no_number_is_given_twice_whatever_was_cleared(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    stage = Stage(store, "main", A)
    given = [stage.append(b"1"), stage.append(b"2")]
    stage.clear(given[1:])
    assert list(stage.entries()) == given[:1]
    given.append(Stage(store, "main", A).append(b"3"))
    stage.clear()
    given.append(Stage(store, "main", B).append(b"4"))
    assert given == sorted(set(given))
    # The machine went down, and the lock's file is of a moment before.
    (tmp_path / "stage/main.lock").write_bytes(b"1")
    assert Stage(store, "main", B).append(b"5") > given[-1]
    (tmp_path / "stage/main.lock").write_bytes(b"")
    assert list(Stage(store, "main", B).operations()) == [b"4", b"5"]


def test_who_looks_sees_what_others_wrote_since_and_whether_what_is_known_is_gone(store: Store) -> None:
    mine, other = Stage(store, "main", A), Stage(store, "main", A)
    known = mine.append(b"mine")
    with mine.held() as log:
        looked = log.last()
    added = other.append(b"other")
    with mine.held() as log:
        assert log.since(known, looked) == {added: b"other"}
        assert log.since(added, log.last()) == {}
    other.clear([known])
    with mine.held() as log:
        assert log.since(known, looked) is None
        assert log.since(added, log.last()) == {}


def test_what_is_not_in_a_commit_goes_on_upon_it(store: Store) -> None:
    mine, other = Stage(store, "main", A), Stage(store, "main", A)
    known = mine.append(b"mine")
    later = other.append(b"later")
    after = Stage(store, "main", B)
    with mine.held() as log:
        log.committed([known], after)
    assert after.entries() == {later: b"later"}
    assert mine.entries() == {}
    assert [stage.base for stage in stages(store)] == [B]


def test_a_thread_that_waits_for_itself_gets_an_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    rule = r"takes its samples from an iterator which itself writes or commits.*list\(\.\.\.\)"
    with Stage(store, "main", A).held(), pytest.raises(UsageError, match=rule):
        Stage(store, "main", A).append(b"x")


KILL = """
import os, sys
from hopyard.stockroom.history.stage import Stage
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore

class DyingStore(FaultyStore):
    # Deletes count as writes too: each may be the last thing that happens.
    def delete(self, name):
        kill = self._before(name)
        super().delete(name)
        self._after(kill)

def work(store):
    stage = Stage(store, "main", None)
    for number in range(3):
        stage.append(b"%d" % number)
    stage.clear()
    stage.append(b"new")

for moment in range(1, 100):
    for action in ("kill_before", "kill_after"):
        folder = f"{sys.argv[1]}/{action}-{moment}"
        pid = os.fork()
        if pid == 0:
            work(DyingStore(LocalStore(folder), Fault(action, at=moment)))
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        stage = Stage(LocalStore(folder), "main", None)
        found = list(stage.operations())
        assert found in ([], [b"0"], [b"0", b"1"], [b"0", b"1", b"2"], [b"new"]), (folder, found)
        print(action, moment, status, found)
        stage.append(b"next")
        assert list(stage.operations()) == [*found, b"next"], folder
        stage.clear()
        assert list(LocalStore(folder).list(stage._prefix)) == []
    if status == 0:
        break
"""


def test_killed_at_any_operation_of_the_store_nothing_is_torn(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILL, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 20, "3 appends, a mark, 4 deletes, 1 append, and once without a kill, each twice"
    assert lines[4] == "kill_before 3 9 [b'0', b'1']"
    assert lines[5] == "kill_after 3 9 [b'0', b'1', b'2']"
    assert lines[-1] == "kill_after 10 0 [b'new']"


def appends(store: Store, count: int) -> None:
    stage = Stage(store, "main", A)
    for number in range(count):
        stage.append(f"{os.getpid()} {number}".encode())


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=appends, args=(store, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    found = [operation.decode().split() for operation in Stage(store, "main", A).operations()]
    for process in processes:
        assert [int(number) for pid, number in found if pid == str(process.pid)] == list(range(20))
    assert len(found) == 60
