"""References: one winner each time, whoever else moves them, on every store."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import by_level

from hopyard.errors import CorruptError, UsageError
from hopyard.stockroom.history.references import References, Tip, check_name, logs
from hopyard.stockroom.maintenance.repairing import repair_logs
from hopyard.storage import LocalStore, MemoryStore, Store, open_store
from hopyard.storage.base import Entry

A, B, C = "a" * 64, "b" * 64, "c" * 64


class CountingStore(MemoryStore):
    """Counts how often it is asked."""

    asked = 0
    listed = 0
    got = 0

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.got += 1
        return super().get(name, start, length)

    def exists(self, name: str) -> bool:
        self.asked += 1
        return super().exists(name)

    def list(self, prefix: str = "") -> Any:
        self.listed += 1
        return super().list(prefix)


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "repository") if request.param == "files" else MemoryStore()


def moved(references: References, name: str, *commits: str | None) -> Tip:
    for commit in commits:
        assert references.move(name, references.tip(name), commit, "Ada") is not None
    return references.tip(name)


def test_a_reference_is_made_moved_deleted_and_made_again(store: Store) -> None:
    references = References(store)
    assert references.tip("heads/main") == Tip(0, None)
    assert moved(references, "heads/main", A) == Tip(1, A)
    assert moved(references, "heads/main", B) == Tip(2, B)
    assert moved(references, "heads/main", None) == Tip(3, None)
    assert references.names("heads") == {}
    assert moved(references, "heads/main", C) == Tip(4, C)
    assert References(store).tip("heads/main") == Tip(4, C)
    log = list(references.log("heads/main"))
    assert [(move.number, move.commit, move.by) for move in log] == [
        (4, C, "Ada"), (3, None, "Ada"), (2, B, "Ada"), (1, A, "Ada"),
    ]  # fmt: skip
    assert all(new.time >= old.time for new, old in pairwise(log))


def test_who_is_late_is_told_and_changes_nothing(store: Store) -> None:
    references, other = References(store), References(store)
    tip = other.tip("heads/main")
    moved(references, "heads/main", A)
    assert other.move("heads/main", tip, B, "Bob") is None
    assert references.tip("heads/main") == other.tip("heads/main") == Tip(1, A)
    assert other.set("heads/main", B, "Bob") == Tip(2, B)


def test_references_are_listed_by_kind_with_the_names_they_were_given(store: Store) -> None:
    references = References(store)
    names = ["main", "feature/x", "Zoë", "a=b", "v1.0", "deadbeef", "x%y"]
    for name in names:
        moved(references, f"heads/{name}", A, B)
    moved(references, "tags/v1", A)
    moved(references, "remotes/origin/main", C)
    moved(references, "remotes/my/feature/x", B)
    moved(references, "worktrees/worktree-a..b=2Fc.lock", B)
    assert references.names("heads") == dict.fromkeys(sorted(names), B)
    assert references.names("tags") == {"v1": A}
    assert references.names("remotes") == {"my/feature/x": B, "origin/main": C}
    assert references.names("worktrees") == {"worktree-a..b=2Fc.lock": B}
    assert [entry.name for entry in store.list("refs/remotes")] == [
        "refs/remotes/my/feature=2Fx/000000000001", "refs/remotes/origin/main/000000000001",
    ]  # fmt: skip


def test_the_last_entry_is_found_with_few_questions_and_without_listing() -> None:
    store = CountingStore()
    writer = References(store)
    for number in range(1, 1001):
        writer.set("heads/main", f"{number:064x}", "Ada")
        if number in (1, 2, 3, 4, 5, 31, 32, 33, 127, 1000):
            store.asked = 0
            assert References(store).tip("heads/main") == Tip(number, f"{number:064x}")
            assert store.asked <= 2 * number.bit_length() + 1
    store.asked = 0
    assert writer.tip("heads/main").number == 1000
    assert store.asked == 1
    assert store.listed == 0


def test_references_are_listed_with_one_question_for_each() -> None:
    store = CountingStore()
    for name in "abc":
        moved(References(store), f"heads/{name}", A, B)
    store.asked = store.got = 0
    references = References(store)
    assert references.names("heads") == dict.fromkeys("abc", B)
    assert (store.listed, store.asked, store.got) == (1, 0, 3)
    assert references.names("heads") == dict.fromkeys("abc", B)
    assert (store.listed, store.asked, store.got) == (2, 0, 3)  # entries never change
    moved(References(store), "heads/b", C)
    assert references.names("heads") == {"a": B, "b": C, "c": B}


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_is_told(bit: int) -> None:
    store = MemoryStore()
    moved(References(store), "heads/main", A)
    name = "refs/heads/main/000000000001"
    data = store.get(name)
    for at in range(len(data)):
        store.put(name, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        with pytest.raises(CorruptError, match="is no entry of a reference"):
            References(store).tip("heads/main")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def entries(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("refs/heads/main/*")}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("harm", [Path.unlink, emptied])
def test_an_entry_that_is_gone_or_emptied_is_told_and_put_back(
    tmp_path: Path, harm: Callable[[Path], None], number: int
) -> None:
    store = LocalStore(tmp_path)
    moved(References(store), "heads/main", A, B, C)
    before = entries(tmp_path)
    harm(tmp_path / f"refs/heads/main/{number:012d}")
    (log,), _ = logs(store)
    assert list(log.failures) == [f"refs/heads/main/{number:012d}"]
    assert [move.commit for move in log.entries.values()] == [A, B, C]
    if number == 3:
        for look in (lambda: References(store).tip("heads/main"), lambda: References(store).names("heads")):
            with pytest.raises(CorruptError, match=r"refs/heads/main.*hopyard stock verify --repair"):
                look()
    assert repair_logs(store, [log], None)
    assert entries(tmp_path) == before
    assert References(store).tip("heads/main") == Tip(3, C)
    assert not logs(store)[0][0].failures


def test_a_whole_log_that_is_gone_is_told(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    moved(References(store), "heads/main", A, B)
    before = entries(tmp_path)
    shutil.rmtree(tmp_path / "refs/heads/main")
    with pytest.raises(CorruptError, match="ends with entry 0, but has had 2"):
        References(store).names("heads")
    with pytest.raises(CorruptError, match="ends with entry 0, but has had 2"):
        References(store).set("heads/main", C, "Ada")
    assert repair_logs(store, logs(store)[0], None)
    assert entries(tmp_path) == before


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_copies_that_are_cut_off_or_changed_are_no_damage_and_are_made_anew(tmp_path: Path, cut: int) -> None:
    """As after a machine's crash: copies are not synced."""
    store = LocalStore(tmp_path)
    moved(References(store), "heads/main", A, B)
    copies = tmp_path / "copies/heads/main"
    whole = copies.read_bytes()
    cut = min(cut, len(whole) - 1)
    for data in (
        whole[:cut],
        whole[:cut] + bytes([whole[cut] ^ 1]) + whole[cut + 1 :],
        whole[:cut] + bytes(50),
    ):
        copies.write_bytes(data)
        assert References(store).tip("heads/main") == Tip(2, B)
        (log,), _ = logs(store)
        assert not log.failures
        (tmp_path / "refs/heads/main/000000000002").rename(tmp_path / "kept")
        assert logs(store)[0][0].copies  # they were made anew
        (tmp_path / "kept").rename(tmp_path / "refs/heads/main/000000000002")
    copies.write_bytes(whole[:cut])
    assert moved(References(store), "heads/main", C) == Tip(3, C)
    (tmp_path / "refs/heads/main/000000000003").unlink()
    with pytest.raises(CorruptError, match="ends with entry 2, but has had 3"):
        References(store).tip("heads/main")


@pytest.mark.parametrize("number", [4, 999_999_999_999])
@pytest.mark.parametrize("has_copies", [True, False])
def test_a_log_with_a_gap_is_refused_and_told(tmp_path: Path, number: int, has_copies: bool) -> None:
    store = LocalStore(tmp_path)
    moved(References(store), "heads/main", A, B)
    if not has_copies:
        shutil.rmtree(tmp_path / "copies")
    entry = tmp_path / "refs/heads/main/000000000002"
    shutil.copy(entry, entry.with_name(f"{number:012d}"))
    rule = rf"has no entry 3, but has {number}, and numbers have no gaps.*"
    step = "hopyard stock verify --repair" if number == 4 else f"move refs/heads/main/{number:012d}"
    with pytest.raises(CorruptError, match=rule + step):
        References(store).names("heads")
    (log,), _ = logs(store)
    told = f"refs/heads/main/{3 if number == 4 else number:012d}"
    assert list(log.failures) == [told]
    assert repair_logs(store, [log], None) == (number == 4)
    if number == 4:
        assert References(store).names("heads") == {"main": B}
    else:
        entry.with_name(f"{number:012d}").unlink()
        assert References(store).tip("heads/main") == Tip(2, B)


def test_entries_that_come_while_a_log_is_listed_are_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    moved(References(store), "heads/main", A, B, C)
    listed = store.list

    def lacking(prefix: str = "") -> Iterator[Entry]:
        return (entry for entry in listed(prefix) if not entry.name.endswith("2"))

    monkeypatch.setattr(store, "list", lacking)
    assert References(store).names("heads") == {"main": C}


def test_an_entry_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    moved(References(store), "heads/main", A)
    os.truncate(tmp_path / "refs/heads/main/000000000001", 1 << 40)
    rule = (
        f"has {1 << 40} bytes, and the largest that Hopyard writes there have 1048576.*stock verify --repair"
    )
    for look in (lambda: References(store).tip("heads/main"), lambda: References(store).names("heads")):
        with pytest.raises(CorruptError, match=rule):
            look()
    (log,), _ = logs(store)
    assert repair_logs(store, [log], None)
    assert References(store).tip("heads/main") == Tip(1, A)


def test_without_copies_a_log_is_as_long_as_it_is(tmp_path: Path) -> None:
    """Whoever is killed after the entry was made and before it was copied leaves this."""
    store = LocalStore(tmp_path)
    moved(References(store), "heads/main", A, B)
    shutil.rmtree(tmp_path / "copies")
    assert moved(References(store), "heads/main", C) == Tip(3, C)
    (log,), _ = logs(store)
    assert not log.failures
    assert (tmp_path / "copies/heads/main").read_bytes().count(b"commit") == 3


def test_a_pickled_copy_sees_the_same(tmp_path: Path) -> None:
    references = References(LocalStore(tmp_path))
    copy = pickle.loads(pickle.dumps(references))
    moved(references, "tags/v1", A)
    assert copy.tip("tags/v1") == Tip(1, A)


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("heads/a b", "' '"), ("heads/a~1", "'~'"), ("heads/a^", "'^'"), ("heads/a..b", "'..'"), ("heads/-f", "'-'"),
        ("heads/a/", "'/'"), ("heads/a//b", "'//'"), ("heads/a/.b", "'/.'"), ("heads/x.lock", "'.lock'"),
        ("heads/HEAD", "'HEAD'"), ("tags/" + A, "'aaa"), ("remotes/origin/a:b", "':'"), ("tags/a\n", r"'\n'"),
        ("heads/@{1}", "'@{'"),
    ],
)  # fmt: skip
def test_names_that_revisions_or_git_could_not_hold_are_refused(name: str, because: str) -> None:
    with pytest.raises(UsageError, match=rf"cannot be .*, because of {re.escape(because)}.*Use another"):
        References(MemoryStore()).move(name, Tip(0, None), A, "Ada")


@pytest.mark.parametrize("name", ["main", "head/main", "remotes/origin", "", "heads", "heads/"])
def test_what_is_no_reference_says_what_is(name: str) -> None:
    with pytest.raises(UsageError, match=r"is no reference: these are heads/BRANCH|because it is empty"):
        check_name(name)


def test_names_that_are_too_long_are_refused() -> None:
    assert check_name("heads/" + "x" * 200)
    with pytest.raises(
        UsageError, match=r"has 201 bytes as it is stored, but may have 200.*Use a shorter one"
    ):
        check_name("heads/" + "ö" * 33 + "xxx")


def test_foreign_files_and_damaged_entries_are_named(store: Store) -> None:
    references = References(store)
    moved(references, "heads/main", A)
    store.put("refs/heads/main/000000000002", b"{}")
    with pytest.raises(
        CorruptError, match=r"refs/heads/main/000000000002 is no entry of a reference .KeyError"
    ):
        references.tip("heads/main")
    store.put("refs/heads/README", b"")
    with pytest.raises(CorruptError, match=r"holds 'refs/heads/README', but only entries of references"):
        references.names("heads")


def race(store: Store, me: int, rounds: int, barrier: Any, results: Any) -> None:
    references = References(store)
    won = []
    for turn in range(rounds):
        tip = references.tip("heads/main")
        barrier.wait(60)
        if references.move("heads/main", tip, f"{me:032x}{turn:032x}", str(me)) is not None:
            won.append(turn)
        barrier.wait(60)
    for turn in range(rounds):
        references.set("heads/free", f"{me:032x}{turn:032x}", str(me))
    results.put((me, won))


def run_race(store: Store, racers: int, rounds: int) -> None:
    """Each round exactly one process wins; and of moves that are repeated until they win none is lost."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(racers), context.Queue()
    processes = [
        context.Process(target=race, args=(store, me, rounds, barrier, results)) for me in range(racers)
    ]
    for process in processes:
        process.start()
    won = dict(results.get(timeout=300) for _ in processes)
    for process in processes:
        process.join(60)
    assert Counter(turn for turns in won.values() for turn in turns) == dict.fromkeys(range(rounds), 1)
    references = References(store)
    assert references.tip("heads/main").number == rounds
    for move in references.log("heads/main"):
        assert move.number - 1 in won[int(move.by)]
    free = [move.commit for move in references.log("heads/free")]
    assert sorted(map(str, free)) == [
        f"{me:032x}{turn:032x}" for me in range(racers) for turn in range(rounds)
    ]


def test_of_processes_that_race_exactly_one_wins_each_time(tmp_path: Path) -> None:
    run_race(LocalStore(tmp_path), racers=4, rounds=by_level(10, 10, 25))


def test_of_processes_that_race_in_a_bucket_exactly_one_wins_each_time(s3_url: str) -> None:
    run_race(open_store(s3_url), racers=3, rounds=by_level(2, 2, 4))
