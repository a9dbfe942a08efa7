"""The stage: durable, in order, cleared at once, and of one commit only."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.power import Cut, Cuts, recording, scratch_disk

from hopyard.errors import CorruptError, UsageError
from hopyard.stockroom.history.stage import Stage, StagePosition, stages
from hopyard.storage import LocalStore, MemoryStore, Store

A, B = "a" * 64, "b" * 64


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "repository") if request.param == "files" else MemoryStore()


def test_operations_come_back_in_order_until_they_are_cleared(store: Store) -> None:
    stage = Stage(store, "main", A)
    assert stage.operations() == []
    for number in range(12):
        stage.append(b"%d" % number)
    assert Stage(store, "main", A).operations() == [b"%d" % number for number in range(12)]
    stage.clear()
    assert stage.operations() == []
    assert list(store.list("stage/main/" + A)) == []
    stage.append(b"again")
    stage.clear()
    stage.clear()
    assert Stage(store, "main", A).operations() == []


def test_what_others_clear_and_write_meanwhile_stays_in_order(store: Store) -> None:
    mine, other = Stage(store, "main", None), Stage(store, "main", None)
    for number in range(5):
        mine.append(b"old %d" % number)
    other.clear()
    other.append(b"1")
    mine.append(b"2")
    other.append(b"3")
    mine.append(b"4")
    assert mine.operations() == [b"1", b"2", b"3", b"4"]


def test_what_others_wrote_behind_a_place_is_found_until_that_is_cleared(store: Store) -> None:
    mine, other = Stage(store, "main", A), Stage(store, "main", A)
    assert mine.since(None) == []
    known = mine.append(b"mine")
    assert other.since(known) == []
    added = [other.append(b"other %d" % number) for number in range(3)]
    assert [entry.position for entry in mine.since(known) or []] == added
    assert [entry.operations for entry in mine.since(added[1]) or []] == [(b"other 2",)]
    assert mine.since(added[2]) == []
    other.clear()
    assert mine.since(known) is None
    assert mine.since(added[2]) is None
    assert mine.since(None) == []
    other.append(b"again")
    assert mine.since(known) is None


def test_a_place_upon_another_commit_or_in_another_working_tree_is_unknown(store: Store) -> None:
    known = Stage(store, "main", A).append(b"x")
    for stage in (Stage(store, "main", B), Stage(store, "two", A)):
        stage.append(b"x")
        assert stage.since(known) is None


def test_several_operations_are_one_entry_and_may_replace_all_that_is_there(store: Store) -> None:
    stage = Stage(store, "main", A)
    with stage.held() as log:
        log.append(b"1", b"", b"2")
        assert stage.operations() == [b"1", b"", b"2"]
        log.append(b"3")
        log.replace([b"2", b"3"])
    assert Stage(store, "main", A).operations() == [b"2", b"3"]
    assert len(stage.numbers()) == 1
    stage.append(b"4")
    assert Stage(store, "main", A).operations() == [b"2", b"3", b"4"]


def test_a_stage_of_another_commit_or_working_tree_is_not_seen_but_named(store: Store) -> None:
    Stage(store, "worktree-x", A).append(b"of a")
    Stage(store, "main", A).append(b"of main")
    now = Stage(store, "worktree-x", B)
    assert now.operations() == []
    assert [(stage.base, stage.operations()) for stage in now.orphans()] == [(A, [b"of a"])]
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
        Stage(store, "main", A).operations()


def name_of(stage: Stage, number: int) -> str:
    return f"{stage.prefix}/{number:012d}"


RULE = r"It is a staged write, which nothing else has\. Restore .* stock verify --repair; or discard all .* stock reset"


def check_damaged(store: Store, what: str) -> None:
    """Whoever reads or writes gets the error; who discards all gets rid of it."""
    known = StagePosition(1, bytes(32))
    for uses in (
        lambda stage: stage.operations(),
        lambda stage: stage.since(known),
        lambda stage: stage.append(b"more"),
    ):
        with pytest.raises(CorruptError, match=f"{what}.*{RULE}"):
            uses(Stage(store, "main", A))
    stage = Stage(store, "main", A)
    stage.clear()
    assert stage.operations() == []
    stage.append(b"new")
    assert Stage(store, "main", A).operations() == [b"new"]


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("how", ["emptied", "cut to its seal", "cut short", "changed"])
def test_an_entry_that_was_damaged_clears_nothing_and_is_named(store: Store, at: int, how: str) -> None:
    stage = Stage(store, "main", A)
    numbers = [stage.append(b"write %d" % number).number for number in range(3)]
    name = name_of(stage, numbers[at])
    data = store.get(name)
    damaged = {
        "emptied": b"",
        "cut to its seal": data[:32],
        "cut short": data[:-1],
        "changed": data[:-1] + b"x",
    }
    store.put(name, damaged[how])
    check_damaged(store, f"{name} is (empty|damaged, or a copy)")


@pytest.mark.parametrize("source", range(4))
@pytest.mark.parametrize("target", range(4))
def test_an_entry_that_was_copied_over_another_is_found_out(store: Store, source: int, target: int) -> None:
    stage = Stage(store, "main", A)
    numbers = [stage.append(b"write %d" % (number % 2)).number for number in range(4)]
    if source != target:
        store.put(name_of(stage, numbers[target]), store.get(name_of(stage, numbers[source])))
        check_damaged(store, f"{name_of(stage, numbers[target])} is damaged, or a copy")


def test_an_entry_of_another_commit_or_working_tree_is_found_out(store: Store) -> None:
    stage = Stage(store, "main", A)
    for other in (Stage(store, "main", B), Stage(store, "two", A)):
        stage.clear()
        names = [name_of(one, one.append(b"x").number) for one in (stage, other)]
        store.put(names[0], store.get(names[1]))
        with pytest.raises(CorruptError, match="is damaged, or a copy"):
            Stage(store, "main", A).operations()


@pytest.mark.parametrize("gone", [{0}, {1}, {2}, {3}, {1, 2}, {0, 1}, {2, 3}, {0, 1, 2, 3}])
@pytest.mark.parametrize("how", ["deleted", "a folder"])
def test_entries_that_are_missing_are_found_out(tmp_path: Path, gone: set[int], how: str) -> None:
    store = LocalStore(tmp_path)
    stage = Stage(store, "main", A)
    numbers = [stage.append(b"write %d" % number).number for number in range(4)]
    for at in gone:
        store.delete(name_of(stage, numbers[at]))
        if how == "a folder":
            (tmp_path / name_of(stage, numbers[at])).mkdir()
    check_damaged(store, r"the staged write .* is missing, or another one is in its place")


def test_entries_that_changed_places_are_found_out(store: Store) -> None:
    stage = Stage(store, "main", A)
    names = [name_of(stage, stage.append(b"write %d" % number).number) for number in range(3)]
    first, second = store.get(names[1]), store.get(names[2])
    store.put(names[1], second)
    store.put(names[2], first)
    check_damaged(store, f"{names[2]} is damaged, or a copy")


def test_a_mark_that_is_missing_while_others_are_deleted_brings_nothing_back(tmp_path: Path) -> None:
    """A clearing that was killed, and of which the last file got lost then: what is left is no log."""
    store = LocalStore(tmp_path)
    stage = Stage(store, "main", A)
    numbers = [stage.append(b"%d" % number).number for number in range(3)]
    kept = store.get(name_of(stage, numbers[1]))
    stage.clear()
    stage.append(b"new")
    store.put(name_of(stage, numbers[1]), kept)
    assert Stage(store, "main", A).operations() == [b"new"]
    stage.clear()
    store.put(name_of(stage, numbers[1]), kept)
    with pytest.raises(CorruptError, match=r"the staged write before .* is missing"):
        Stage(store, "main", A).operations()


@pytest.mark.parametrize("noted", ["of a moment before", "empty", "gone", "garbage"])
def test_what_the_lock_says_may_be_old_after_the_machine_went_down(tmp_path: Path, noted: str) -> None:
    store, lock = LocalStore(tmp_path), tmp_path / "stage/main.lock"
    stage = Stage(store, "main", A)
    stage.append(b"1")
    data = {"of a moment before": lock.read_bytes(), "empty": b"", "garbage": b"\0" * 100}.get(noted)
    stage.append(b"2")
    stage.append(b"3")
    lock.unlink() if data is None else lock.write_bytes(data)
    again = Stage(store, "main", A)
    assert again.operations() == [b"1", b"2", b"3"]
    position = again.append(b"4")
    assert position.number == 4
    assert Stage(store, "main", A).operations() == [b"1", b"2", b"3", b"4"]
    assert Stage(store, "main", A).since(position) == []


def test_a_write_that_was_killed_before_it_was_noted_is_not_lost_by_the_next(tmp_path: Path) -> None:
    store, lock = LocalStore(tmp_path), tmp_path / "stage/main.lock"
    mine, killed = Stage(store, "main", A), Stage(store, "main", A)
    mine.append(b"1")
    before = lock.read_bytes()
    number = killed.append(b"2").number
    lock.write_bytes(b"%020d" % number + before[20:])  # given, and not noted as the last one
    mine.append(b"3")
    assert Stage(store, "main", A).operations() == [b"1", b"2", b"3"]


def test_folders_of_stages_go_with_their_last_entry(tmp_path: Path) -> None:
    stage = Stage(LocalStore(tmp_path), "main", A)
    stage.append(b"1")
    stage.clear()
    stage.append(b"2")
    with stage.held() as log:
        log.drop()
    assert list((tmp_path / "stage/main").iterdir()) == []


def test_what_is_staged_ahead_of_a_move_is_there_once_it_has_arrived(store: Store) -> None:
    mine, after = Stage(store, "main", A), Stage(store, "main", B)
    known = mine.append(b"committed")
    for _ in range(2):  # the first time it was killed, or overtaken
        with mine.held() as log:
            carried = log.upon(B).prepare([b"later"])
    assert mine.operations() == [b"committed"]
    assert mine.since(known) == []
    for _ in range(2):
        with mine.held() as log:
            log.upon(B).arrive(carried)
            log.drop()
    assert after.operations() == [b"later"]
    assert mine.since(known) is None
    after.append(b"more")
    assert Stage(store, "main", B).operations() == [b"later", b"more"]
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
    counted = (*FaultyStore.counted, "delete")

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
        found = stage.operations()
        assert found in ([], [b"0"], [b"0", b"1"], [b"0", b"1", b"2"], [b"new"]), (folder, found)
        print(action, moment, status, found)
        stage.append(b"next")
        assert stage.operations() == [*found, b"next"], folder
        stage.clear()
        assert list(LocalStore(folder).list(stage.prefix)) == []
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


def test_after_a_power_cut_all_is_staged_that_a_call_has_staged_and_nothing_that_it_has_cleared() -> None:
    with scratch_disk() as root:
        stage = Stage(LocalStore(root / "s"), "main", A)
        held: list[list[bytes]] = [[]]
        with recording(root) as record:

            def done(operations: list[bytes]) -> None:
                held.append(operations)
                record.done(len(held) - 1)

            for number in range(2):
                for each in (b"1", b"2", b"3"):
                    stage.append(each)
                    done([*held[-1], each])
                if number == 0:
                    stage.clear()
                    done([])
            with stage.held() as log:
                log.replace([b"4", b"5"])
                done([b"4", b"5"])
            stage.clear()
            done([])

        def look(done: list[int], cut: Cut) -> None:
            last = done[-1] if done else 0
            again = Stage(LocalStore(root / "s"), "main", A)
            assert again.operations() in held[last : last + 2]
            again.append(b"more")
            assert Stage(LocalStore(root / "s"), "main", A).operations()[-1] == b"more"

        Cuts("stage", record, 200, 300, 3000).check(root, look)
