"""gc: what is needed stays readable, what is not goes, whenever it is killed."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import moments
from tests.stockroom.git.repositories import run_git
from tests.stockroom.maintenance.histories import begun, full, reopened, size_of
from tests.stockroom.maintenance.stores import FullDisk, KillingStore
from tests.stockroom.remotes.repositories import at, commit, content, root_of, samples, tip, whole

from hopyard.errors import CorruptError, StorageError, StorageFullError
from hopyard.stockroom.data import SampleColumn
from hopyard.stockroom.git import Head, Place
from hopyard.stockroom.git import at as place_at
from hopyard.stockroom.git import write as write_head
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.locks import reading, writing
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.stage import Stage
from hopyard.stockroom.maintenance import gc, verify
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.remotes import Repository
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import LocalStore, MemoryStore


def dropped(repository: Repository, branch: str, **columns: Any) -> str:
    """A commit that nothing leads to any more."""
    made = commit(repository, branch, **columns)
    repository.references.set(f"heads/{branch}", None, "Ada")
    return made


def is_here(repository: Repository, digest: str) -> bool:
    return not reopened(repository).objects.missing([digest])


def test_what_nothing_leads_to_goes_and_all_else_stays(tmp_path: Path) -> None:
    repository = full(tmp_path / "store", tmp_path)
    before = content(repository, tip(repository)), content(repository, tip(repository, "dev"))
    kept = size_of(repository.store)
    made = dropped(repository, "tried", image=samples(60, start=1000, size=30_000))
    repository.store.put("files/" + "e" * 64, b"unneeded" * 1000)
    repository.store.put("=2Fother/packfiles/data-" + "0" * 64, b"another stockroom's")
    repository.store.put("packfiles/mine.txt", b"not ours")
    size = size_of(repository.store)
    planned = gc(repository, dry_run=True)
    assert planned.is_dry
    assert size_of(repository.store) == size
    done = gc(repository)
    assert done.freed == size - size_of(repository.store) > 1_800_000
    assert abs(planned.freed - done.freed) < 0.15 * done.freed  # headers and padding of new packfiles
    assert "MB were freed" in str(done)
    assert "MB would be freed" in str(planned)
    assert (done.files, done.objects > 2) == (1, True)
    assert size_of(repository.store) < kept + 50_000
    assert not is_here(repository, made)
    assert repository.store.exists("=2Fother/packfiles/data-" + "0" * 64)
    assert repository.store.exists("packfiles/mine.txt")
    repository.store.delete("packfiles/mine.txt")
    assert not verify(reopened(repository)).problems
    assert (content(repository, tip(repository)), content(repository, tip(repository, "dev"))) == before
    again = gc(repository)
    assert (again.freed, again.packfiles, again.files) == (0, 0, 0)


def test_on_a_full_disk_what_is_deleted_makes_room_for_what_is_packed_anew(tmp_path: Path) -> None:
    repository = full(tmp_path / "store", tmp_path)
    dropped(repository, "tried", image=samples(60, start=1000, size=30_000))
    repository.store.put("files/" + "e" * 64, b"unneeded" * 1000)
    before = content(repository, tip(repository))
    disk = FullDisk(tmp_path / "store", size_of(repository.store) + 10_000)
    with pytest.raises(StorageFullError):
        disk.put("packfiles/mine", bytes(10_001))
    with pytest.raises(
        StorageFullError, match=r"[\d.]+ MB that nothing needed were freed before that, and all else"
    ):
        gc(at(disk))
    assert content(reopened(repository), tip(repository)) == before
    disk = FullDisk(tmp_path / "store", size_of(repository.store) + 2_500_000)
    assert gc(at(disk)).packfiles > 5
    assert content(reopened(repository), tip(repository)) == before
    assert not verify(reopened(repository)).problems


def test_many_small_packfiles_become_one_of_each_group(tmp_path: Path) -> None:
    repository = begun(tmp_path)
    for number in range(12):
        commit(repository, image=samples(1, start=number, size=3_001), values={"n": number})
    column = SampleColumn(repository.objects, "image", column_record(repository, "image"))
    open_before = column[...]
    names = {entry.name for entry in repository.store.list("packfiles")}
    assert len(names) == 36
    done = gc(repository)
    assert done.packfiles == 36
    left = [entry.name for entry in repository.store.list("packfiles")]
    assert sorted(name[:15] for name in left) == ["packfiles/data-", "packfiles/meta-"]
    assert np.array_equal(column[...], open_before)  # also by whoever had it open
    assert not verify(reopened(repository)).problems
    # Values are aligned again, so that one table has them all.
    places = reopened(repository).objects.locate_many(
        [name for name, place in repository.objects.packed(fragments_of(repository)).items()]
    )
    for digest, place in places.items():
        count = len(repository.objects.read(digest)) // 3_001
        assert (place.stop - 3_001 * count) % 3_001 == 0


def fragments_of(repository: Repository) -> list[str]:
    from hopyard.stockroom.maintenance.roots import roots_of_store

    walk = roots_of_store(repository.store).walk(repository.objects)
    return [digest for digest, named in walk.found.items() if named.kind == "fragment"]


def column_record(repository: Repository, name: str) -> ColumnRecord:
    commit_digest = tip(repository)
    record = Snapshot(repository.objects, root_of(repository, commit_digest), commit_digest).record(
        "data", name
    )
    assert isinstance(record, ColumnRecord)
    return record


def test_everything_that_leads_to_commits_keeps_them(tmp_path: Path) -> None:
    repository = begun(tmp_path)
    kept = {
        name: dropped(repository, f"b{number}", **{f"c{number}": samples(3, seed=number)})
        for number, name in enumerate(["tags/t", "remotes/origin/x", "worktrees/one", "worktrees/two"])
    }
    for name, digest in kept.items():
        repository.references.set(name, digest, "Ada")
    repository.references.set("worktrees/two", kept["tags/t"], "Ada")  # it moved on; its log keeps the commit
    staged_upon = dropped(repository, "upon", u=samples(2))
    Stage(repository.store, "main", staged_upon).append(
        WriteOperation(things=(("data", "u", None),)).encode()
    )
    draft = Draft(repository.objects, None)
    draft.column("large").update(samples(5, seed=9))
    draft.flush()
    draft.release()
    record = draft.column("large").flush()
    assert record is not None
    Stage(repository.store, "gone", None).append(
        WriteOperation(things=(("data", "large", record.to_json()),)).encode()
    )
    read = dropped(repository, "read", r=samples(2, seed=7))
    away = dropped(repository, "away", a=samples(2, seed=8))
    with reading(repository.store, read):
        gc(repository)
        for digest in [*kept.values(), staged_upon, read]:
            content(reopened(repository), digest)
        staged = Draft(reopened(repository).objects, None)
        staged.apply(map(WriteOperation.decode, Stage(repository.store, "gone", None).operations()))
        assert len(staged.column("large")[...]) == 5
        assert not is_here(repository, away)
    gc(repository)
    assert not is_here(repository, read)


def test_git_keeps_what_any_head_in_its_history_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": str(tmp_path),
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    project = tmp_path / "project"
    project.mkdir()
    run_git(project, "init", "-q", "-b", "main")
    run_git(project, "config", "user.name", "Ada")
    run_git(project, "config", "user.email", "a@b")
    place = place_at(project)
    place.objects.parent.mkdir()
    repository = begun(place.objects)
    old, other, disk, away = (dropped(repository, f"b{n}", **{f"c{n}": samples(2, seed=n)}) for n in range(4))
    write_head(place.head, Head("main", old))
    run_git(project, "add", "head.stock")
    run_git(project, "commit", "-qm", "old")
    run_git(project, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "side")
    write_head(tmp_path / "tree/head.stock", Head("side", other))
    write_head(place.head, Head("main", disk))
    gc(repository, place)
    assert all(is_here(repository, digest) for digest in (old, other, disk))
    assert not is_here(repository, away)
    refuses_without_git(repository, place, monkeypatch)
    assert all(is_here(repository, digest) for digest in (old, other, disk))


def refuses_without_git(repository: Repository, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    more = dropped(repository, "more", more=samples(2))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nothing")
        with pytest.raises(StorageError, match="Until git's history can be read, nothing is deleted"):
            gc(repository, place)
    assert is_here(repository, more)


def test_what_is_not_certain_deletes_nothing(tmp_path: Path) -> None:
    repository = full(tmp_path / "store", tmp_path)
    meta = sorted((tmp_path / "store/packfiles").glob("meta-*"))[0]  # of what is kept; names are random
    dropped(repository, "tried", x=samples(3))
    meta.rename(tmp_path / "aside")
    names = list(repository.store.list("packfiles"))
    with pytest.raises(CorruptError, match=r"nothing was deleted:\n(.*\n)+Verify lists all of it"):
        gc(repository)
    assert list(repository.store.list("packfiles")) == names
    (tmp_path / "aside").rename(meta)
    gc(repository)
    assert not verify(reopened(repository)).problems


def test_who_writes_is_waited_for(tmp_path: Path) -> None:
    repository = begun(tmp_path)
    commit(repository, x=samples(2))
    told: list[str] = []
    with (
        writing(repository.store),
        pytest.raises(
            StorageError,
            match=r"is being written to.*Try again when the blocks .* have ended\. 0\.1 seconds were waited",
        ),
    ):
        gc(repository, wait=0.1, tell=told.append)
    assert told == [f"waiting for those who write to {repository.store.url}, at most 0.1 seconds"]
    entered, leave = threading.Event(), threading.Event()

    def write() -> None:
        with writing(repository.store):
            entered.set()
            leave.wait(30)

    writer = threading.Thread(target=write)
    writer.start()
    entered.wait(30)
    gc(repository, tell=lambda _: leave.set())
    writer.join()


def test_without_locks_only_what_is_known_for_long_goes() -> None:
    repository = begun(MemoryStore())
    commit(repository, x=samples(2))
    made = dropped(repository, "tried", y=samples(2, seed=1))
    day = datetime(2030, 1, 1, tzinfo=UTC)
    first = gc(repository, clock=lambda: day)
    assert first.young > 0
    assert "too new to be deleted" in str(first)
    assert gc(repository, clock=lambda: day + timedelta(days=13)).freed == 0
    assert is_here(repository, made)
    assert gc(repository, clock=lambda: day + timedelta(days=14)).freed > 0
    assert not is_here(repository, made)
    assert not verify(reopened(repository)).problems


def test_without_locks_what_was_needed_until_now_is_kept_for_as_long() -> None:
    """It may be about to be needed again: a push finds it, and does not send it."""
    repository = begun(MemoryStore())
    commit(repository, x=samples(2))
    made = commit(repository, "tried", y=samples(2, seed=1))
    day = datetime(2030, 1, 1, tzinfo=UTC)
    gc(repository, clock=lambda: day)
    repository.references.set("heads/tried", None, "Ada")
    assert gc(repository, clock=lambda: day + timedelta(days=20)).freed == 0
    repository.references.set("heads/again", made, "Ada")
    assert gc(repository, clock=lambda: day + timedelta(days=40)).young == 0
    repository.references.set("heads/again", None, "Ada")
    assert gc(repository, clock=lambda: day + timedelta(days=60)).freed == 0
    assert is_here(repository, made)
    assert gc(repository, clock=lambda: day + timedelta(days=74)).freed > 0
    assert not is_here(repository, made)


def test_without_locks_who_keeps_less_is_warned() -> None:
    repository = begun(MemoryStore())
    with pytest.warns(
        UserWarning, match=r"has no locks, and only what nobody needed for 1 day, 0:00:00 is kept.*14"
    ):
        gc(repository, keep=timedelta(days=1))
    gc(repository, keep=timedelta(days=1), dry_run=True)


_GC = """
import pickle, sys
from hopyard.stockroom.maintenance import gc
from tests.stockroom.remotes.repositories import at
gc(at(pickle.load(sys.stdin.buffer)))
"""


def killed(code: str, *given: object) -> bool:
    process = subprocess.run(
        [sys.executable, "-c", code], input=b"".join(map(pickle.dumps, given)), cwd=Path(__file__).parents[3],
        check=False,
    )  # fmt: skip
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def test_a_gc_that_is_killed_at_any_operation_leaves_all_readable(tmp_path: Path) -> None:
    repository = full(tmp_path / "store", tmp_path)
    dropped(repository, "tried", image=samples(60, start=1000, size=30_000))
    repository.store.put("files/" + "e" * 64, b"unneeded" * 1000)
    expected = {branch: content(repository, tip(repository, branch)) for branch in ("main", "dev")}
    for number in moments("gc", quick=4, ci=2):
        if not killed(_GC, KillingStore(LocalStore(tmp_path / "store"), 1 + number)):
            break
        assert not [p for p in verify(reopened(repository)).problems if p.name != "files/" + "e" * 64]
        for branch, value in expected.items():
            assert content(reopened(repository), tip(repository, branch)) == value
    assert number >= 4
    assert gc(repository).freed == 0


def test_a_gc_that_fails_at_any_operation_can_be_done_again(tmp_path: Path) -> None:
    repository = full(tmp_path / "store", tmp_path)
    dropped(repository, "tried", image=samples(60, start=1000, size=30_000))
    expected = content(repository, tip(repository))
    number = 1
    while True:
        store = KillingStore(LocalStore(tmp_path / "store"), number, fails=True)
        try:
            gc(at(store))
            break
        except StorageError as error:
            assert "injected" in str(error)  # noqa: PT017
        assert content(reopened(repository), tip(repository)) == expected
        number += 1
    assert number > 3


@pytest.mark.filterwarnings("ignore:.*has no locks")
@given(
    st.lists(
        st.tuples(st.sampled_from(["commit", "drop", "tag", "worktree", "merge", "gc"]), st.integers(0, 3)),
        max_size=14,
    )
)
def test_over_any_history_what_is_shown_stays_whole(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    repository = begun(
        MemoryStore() if len(steps) % 5 == 0 else tmp_path / str(len(list(tmp_path.iterdir())))
    )
    expected: dict[str, Any] = {}
    for step, (do, which) in enumerate(steps):
        name = f"b{which}"
        there = repository.references.tip(f"heads/{name}").commit
        other = repository.references.tip(f"heads/b{(which + 1) % 4}").commit
        if do == "commit":
            made = commit(repository, name, values={"step": step}, x=samples(3, start=which * 2, seed=step))
            expected[made] = content(repository, made)
        elif do == "merge" and there and other and there != other:
            made = commit(repository, name, merged=other)
            expected[made] = content(repository, made)
        elif do in ("tag", "worktree") and there:
            repository.references.set(f"{do}s/{'t' if do == 'tag' else 'w'}{step}", there, "Ada")
        elif do == "drop" and there:
            repository.references.set(f"heads/{name}", None, "Ada")
        elif do == "gc":
            gc(repository, keep=timedelta(0))
    gc(repository, keep=timedelta(0))
    shown = whole(repository.store)
    for digest in shown:
        assert content(reopened(repository), digest) == expected[digest]
    assert not verify(reopened(repository)).problems
    assert gc(repository, keep=timedelta(0)).freed == 0
