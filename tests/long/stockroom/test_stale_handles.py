"""Several stockrooms open upon one working tree: each learns where the tree stands before it does anything."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.model import Content, content, copied, merged
from tests.sampling import by_level
from tests.stockroom.git.conftest import run_git

from hopyard import StockRoom
from hopyard.errors import ConflictError, PurgedError, UsageError
from hopyard.stockroom.git import find
from hopyard.stockroom.git.driver import install

Handles = list[StockRoom]


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[Handles]:
    """Three of one working tree, with ``x`` 1 and the column ``c`` {0: 0} committed."""
    StockRoom.init(tmp_path / "stock").close()
    made = [StockRoom(tmp_path / "stock", enable_write=True) for _ in range(3)]
    made[0].experiment["x"] = 1
    made[0].data["c"] = {0: np.array(0)}
    made[0].commit("first")
    yield made
    for each in made:
        each.close()


def fresh(handles: Handles) -> Content:
    with StockRoom(handles[0].place.root, enable_write=True) as stock:
        return content(stock)


def committed(handles: Handles) -> Content:
    with StockRoom(handles[0].place.root) as stock:
        return content(stock)


def value(handles: Handles, number: int) -> str:
    handles[0].experiment["x"] = number
    return handles[0].commit(str(number))


# Blocks


@pytest.mark.filterwarnings("ignore:.* was committed to no branch:UserWarning")
@pytest.mark.parametrize("is_detached", [False, True])
def test_a_block_takes_back_what_another_commits_meanwhile(handles: Handles, is_detached: bool) -> None:
    a, b, _ = handles
    if is_detached:
        a.switch(a.resolve("HEAD"))
    a.experiment["x"] = 2
    a.experiment["secret"] = "s"
    a.data["c"][1] = np.array(1)
    with b.enable_write():
        b.experiment["x"] = 1
        del b.experiment["secret"]
        del b.data["c"][1]
        b.experiment["z"] = 0
        a.experiment["y"] = 5
        a.commit("another")
    expected = {"experiment/x": 1, "experiment/y": 5, "experiment/z": 0, "data/c": {0: 0}}
    assert committed(handles) == content(a) == content(b) == expected
    assert [each.message for each in b.log()][1] == "another"


def test_a_block_that_takes_back_all_that_was_staged_keeps_what_another_stages_meanwhile(
    handles: Handles,
) -> None:
    a, b, c = handles
    a.experiment["y"] = 1
    a.data["c"][1] = np.array(1)
    with b.enable_write():
        del b.experiment["y"]
        del b.data["c"][1]
        a.data["c"][20] = np.array(92)
    expected = {"experiment/x": 1, "data/c": {0: 0, 20: 92}}
    assert [content(each) for each in (a, b, c)] == [expected] * 3
    assert fresh(handles) == expected
    assert committed(handles) == {"experiment/x": 1, "data/c": {0: 0}}


def test_a_block_that_takes_back_all_that_was_staged_does_so_where_another_has_committed_it(
    handles: Handles,
) -> None:
    a, b, _ = handles
    a.experiment["y"] = 1
    with b.enable_write():
        del b.experiment["y"]
        a.commit("another")
    assert committed(handles) == content(a) == content(b) == {"experiment/x": 1, "data/c": {0: 0}}


def test_a_block_that_takes_back_what_another_changes_meanwhile_is_a_conflict(handles: Handles) -> None:
    a, b, _ = handles
    a.experiment["y"] = 1
    block = b.enable_write()
    block.__enter__()
    del b.experiment["y"]
    a.experiment["y"] = 2
    with pytest.raises(
        ConflictError, match=r"with what others have staged[^!]*Nothing of the block has happened"
    ):
        block.__exit__(None, None, None)
    assert fresh(handles) == content(b) == {"experiment/x": 1, "experiment/y": 2, "data/c": {0: 0}}


def discard(stock: StockRoom) -> None:
    stock.reset()


def take_back(stock: StockRoom) -> None:
    """Clear the log by a commit of what takes all of it back."""
    del stock.experiment["y"], stock.data["c"][1]
    with pytest.raises(UsageError, match="nothing has changed"):
        stock.commit("nothing")


@pytest.mark.parametrize("gone", [discard, take_back])
def test_a_block_does_not_commit_what_others_discard_meanwhile(
    handles: Handles, gone: Callable[[StockRoom], None]
) -> None:
    a, b, c = handles
    a.experiment["y"] = 1
    a.data["c"][1] = np.array(1)
    with b.enable_write():
        b.experiment["z"] = 1
        b.data["c"][2] = np.array(2)
        gone(a)
    expected = {"experiment/x": 1, "experiment/z": 1, "data/c": {0: 0, 2: 2}}
    assert [content(each) for each in (a, b, c)] == [expected] * 3
    assert committed(handles) == fresh(handles) == expected


def test_a_commit_in_a_block_does_not_have_what_others_discard_before_it(handles: Handles) -> None:
    a, b, _ = handles
    a.experiment["y"] = 1
    with b.enable_write():
        b.experiment["z"] = 1
        with suppress(RuntimeError), b.enable_write():
            b.experiment["undone"] = 1
            a.reset()
            b.commit("in it")
            b.experiment["later"] = 1
            raise RuntimeError
    assert committed(handles) == content(b) == {
        "experiment/x": 1, "experiment/z": 1, "experiment/undone": 1, "data/c": {0: 0},
    }  # fmt: skip


@pytest.mark.parametrize("is_bulk", [True, False])
def test_a_block_that_changes_what_others_discard_meanwhile_is_a_conflict(
    handles: Handles, is_bulk: bool
) -> None:
    a, b, _ = handles
    a.data["c"][1] = np.array(1)
    block = b.enable_write()
    block.__enter__()
    b.data["c"].update({key: np.array(5) for key in range(1, 2000 if is_bulk else 2)})
    a.reset()
    with pytest.raises(
        ConflictError,
        match=r"^others have discarded or staged anew what was staged in this working tree when this was begun, and 1 "
        r"of the changes conflict with it(.|\n)*Nothing was committed. Nothing of the block has happened. Run it again",
    ):
        block.__exit__(None, None, None)
    assert committed(handles) == content(b) == fresh(handles) == {"experiment/x": 1, "data/c": {0: 0}}


def test_a_block_writes_to_what_was_staged_below_it_and_carried_upon_a_commit_of_another(
    handles: Handles,
) -> None:
    a, b, c = handles
    with a.enable_write():
        a.experiment["a"] = 1
        c.data["d"] = {0: np.array(0)}
        block = b.enable_write()
        block.__enter__()
        b.data["d"][1] = np.array(1)
    b.experiment["b"] = 1
    block.__exit__(None, None, None)
    expected = {
        "experiment/x": 1, "experiment/a": 1, "experiment/b": 1, "data/c": {0: 0}, "data/d": {0: 0, 1: 1},
    }  # fmt: skip
    assert committed(handles) == content(a) == content(b) == content(c) == expected


@pytest.mark.parametrize("call", ["merge", "revert", "pull"])
def test_a_block_counts_from_what_another_brings_meanwhile(
    handles: Handles, call: str, tmp_path: Path
) -> None:
    a, b, _ = handles
    a.push(tmp_path / "remote")
    with StockRoom.clone(tmp_path / "remote", tmp_path / "clone") as clone:
        with clone.enable_write():
            clone.experiment["dev"] = 1
        clone.push()
    a.fetch()
    a.experiment["y"] = 1
    with b.enable_write():
        b.experiment["z"] = 1
        a.commit("another")
        if call == "merge":
            a.merge("origin/main")
        elif call == "revert":
            a.revert("HEAD")
        else:
            a.pull()
    brought = {} if call == "revert" else {"experiment/dev": 1, "experiment/y": 1}
    expected = {"experiment/x": 1, "experiment/z": 1, "data/c": {0: 0}} | brought
    assert committed(handles) == content(a) == content(b) == expected


def test_a_block_counts_from_where_another_lets_its_branch_go_back_to(handles: Handles) -> None:
    a, b, _ = handles
    value(handles, 2)
    a.experiment["y"] = 1
    with b.enable_write():
        b.experiment["z"] = 1
        a.reset("HEAD~1")
    assert committed(handles) == content(a) == content(b) == {
        "experiment/x": 1, "experiment/z": 1, "data/c": {0: 0},
    }  # fmt: skip


def test_a_block_commits_to_the_branch_that_another_leaves(handles: Handles) -> None:
    a, b, _ = handles
    a.branch("old")
    value(handles, 2)
    a.experiment["y"] = 1
    block = b.enable_write()
    block.__enter__()
    b.experiment["z"] = 1
    a.commit("another")
    a.switch("old")
    with pytest.warns(UserWarning, match="To go there: hopyard stock switch main"):
        block.__exit__(None, None, None)
    assert a.head.branch == b.head.branch == "old"
    assert committed(handles) == content(a) == content(b) == {"experiment/x": 1, "data/c": {0: 0}}
    assert content(b.at("main")) == {
        "experiment/x": 2, "experiment/y": 1, "experiment/z": 1, "data/c": {0: 0},
    }  # fmt: skip


@pytest.mark.parametrize(
    "write",
    [
        lambda column: column.update({7: np.array(7)}),
        lambda column: column.append(np.array(7)),
        lambda column: column.pop(1),
        lambda column: column.clear(),
    ],
    ids=["update", "append", "pop", "clear"],
)
def test_a_column_that_was_removed_refuses_a_write_before_it_reads_what_is_gone(
    handles: Handles, write: Callable[[Any], object]
) -> None:
    a, b, _ = handles
    a.data["c"][1] = np.array(1)
    column = b.data["c"]
    with suppress(RuntimeError), b.enable_write():
        del b.data["c"]
        raise RuntimeError
    with pytest.raises(UsageError, match=r"'c' was removed or replaced.*Take it anew: stock.data\['c'\]"):
        write(column)
    assert content(b) == {"experiment/x": 1, "data/c": {0: 0, 1: 1}}


# Where they are


@pytest.mark.parametrize("is_writing", [True, False])
def test_reset_counts_from_where_the_working_tree_is(handles: Handles, is_writing: bool) -> None:
    with StockRoom(handles[0].place.root, enable_write=is_writing) as stale:
        for number in (2, 3, 4):
            value(handles, number)
        stale.reset("HEAD~1")
        assert content(stale)["experiment/x"] == 3
    assert committed(handles)["experiment/x"] == 3


@pytest.mark.parametrize(
    "named",
    [
        lambda s: s.head.commit,
        lambda s: s.resolve("HEAD"),
        lambda s: s.log()[0].digest,
        lambda s: s.branch("dev"),
        lambda s: s.tag("v1"),
        lambda s: next(commit for commit, names in s.labels().items() if "HEAD" in names),
    ],
    ids=["head", "resolve", "log", "branch", "tag", "labels"],
)
def test_head_is_what_another_has_committed(handles: Handles, named: Callable[[StockRoom], str]) -> None:
    commit = value(handles, 2)
    assert named(handles[1]) == commit


def test_at_and_diff_are_of_what_another_has_committed(handles: Handles) -> None:
    value(handles, 2)
    value(handles, 3)
    a, b, c = handles
    assert b.at("HEAD").experiment["x"] == 3
    assert str(c.diff("HEAD~1", "HEAD")) == str(a.diff("HEAD~1", "HEAD"))
    assert "2 -> 3" in str(c.diff("HEAD~1", "HEAD"))


@pytest.mark.filterwarnings("ignore:.* was committed to no branch:UserWarning")
@pytest.mark.parametrize("is_writing", [True, False])
def test_a_branch_leaves_the_working_tree_where_another_has_moved_it(
    handles: Handles, is_writing: bool
) -> None:
    first = value(handles, 2)
    value(handles, 3)
    handles[0].switch(first)
    with StockRoom(handles[0].place.root, enable_write=is_writing) as stale:
        last = value(handles, 7)
        assert stale.branch("mine") == (last if is_writing else first)
    assert content(handles[0])["experiment/x"] == committed(handles)["experiment/x"] == 7
    assert handles[0].head.branch == ("mine" if is_writing else None)


@pytest.mark.parametrize("is_writing", [True, False])
def test_the_branch_that_another_has_gone_to_is_not_deleted(handles: Handles, is_writing: bool) -> None:
    with StockRoom(handles[0].place.root, enable_write=is_writing) as stale:
        handles[0].branch("dev")
        handles[0].switch("dev")
        with pytest.raises(UsageError, match="this is on the branch 'dev', so it cannot be deleted"):
            stale.delete_branch("dev")
    assert set(handles[0].branches()) == {"main", "dev"}


@pytest.mark.parametrize("is_block", [False, True])
def test_a_commit_goes_to_the_branch_that_another_has_gone_to(handles: Handles, is_block: bool) -> None:
    a, b, _ = handles
    a.branch("dev")
    b.experiment["x"] = 2
    a.switch("dev")  # the same commit: what is staged stays so
    if is_block:
        with b.enable_write("two"):
            b.experiment["y"] = 5
    else:
        b.commit("two")
    assert b.head.branch == "dev"
    assert content(a) == content(b) == committed(handles)
    assert [b.at(name).experiment["x"] for name in ("main", "dev")] == [1, 2]


def test_after_gc_a_handle_is_where_another_has_committed_and_its_columns_can_be_written(
    handles: Handles,
) -> None:
    a, b, _ = handles
    column = b.data["c"]
    b.experiment["y"] = 2
    with a.enable_write():
        a.experiment["z"] = 3
    b.gc()
    assert b.head == a.head
    assert (
        content(b)
        == content(a)
        == {"experiment/x": 1, "experiment/y": 2, "experiment/z": 3, "data/c": {0: 0}}
    )
    column[5] = np.array(5)
    assert fresh(handles)["data/c"] == {0: 0, 5: 5}


def test_after_a_purge_a_handle_is_where_another_has_committed(handles: Handles) -> None:
    a, b, _ = handles
    a.data["c"][1] = np.array(1)
    a.commit("one")
    b.experiment["y"] = 2
    with a.enable_write():
        a.experiment["z"] = 3
    column = b.data["c"]
    assert column[1] == 1
    b.purge("c", 1)
    assert b.head == a.head
    assert content(b) == fresh(handles)
    with pytest.raises(PurgedError):
        column[1]
    column[5] = np.array(5)
    assert fresh(handles)["data/c"] == {0: 0, 5: 5}


# git


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """``main`` with ``x`` 2, and git's branch ``old`` with ``x`` 1."""
    run_git(tmp_path, "init")
    with StockRoom.init(tmp_path) as stock:
        for number in (1, 2):
            with stock.enable_write():
                stock.experiment["x"] = number
            run_git(tmp_path, "add", "-A")
            run_git(tmp_path, "commit", "-m", str(number))
            if number == 1:
                run_git(tmp_path, "branch", "old")
    return tmp_path


def test_an_open_writer_sees_what_git_checks_out(project: Path) -> None:
    with StockRoom(project, enable_write=True) as writer:
        column_of_main = writer.experiment["x"]
        run_git(project, "checkout", "old")
        assert (column_of_main, writer.experiment["x"], writer.head.branch) == (2, 1, "old")
        writer.experiment["s"] = 1
        writer.commit("on old")
    with StockRoom(project) as reader:
        assert content(reader) == {"experiment/x": 1, "experiment/s": 1}
        assert reader.head.branch == "old"


def test_what_is_staged_stays_with_the_commit_that_git_leaves(project: Path) -> None:
    with StockRoom(project, enable_write=True) as writer:
        writer.experiment["s1"] = 1
        run_git(project, "checkout", "old")
        writer.experiment["s2"] = 2
        assert content(writer) == {"experiment/x": 1, "experiment/s2": 2}
        writer.commit("on old")
        run_git(project, "commit", "-am", "on old")
        run_git(project, "checkout", "-")
        assert content(writer) == {"experiment/x": 2, "experiment/s1": 1}


def test_an_open_writer_commits_to_gits_branch_also_where_head_stock_is_the_same(project: Path) -> None:
    with StockRoom(project, enable_write=True) as writer:
        assert writer.experiment["x"] == 2
        run_git(project, "checkout", "-b", "dev")
        assert writer.head.branch == "dev"
        writer.experiment["x"] = 3
        run_git(project, "checkout", "-b", "other")
        writer.commit("three")
        assert writer.head.branch == "other"
        assert writer.at("other").experiment["x"] == 3
        assert writer.at("main").experiment["x"] == 2


def left_while_a_block_is_open(writer: StockRoom, *git: str) -> None:
    """Commit ``b`` by a block, with ``s`` staged below it, in which ``git`` runs."""
    writer.experiment["s"] = 1
    with writer.enable_write():
        writer.experiment["b"] = 1
        run_git(writer.place.root, *git)


AWAY = (
    r"^\w+ was committed to the branch 'main', where it was begun, but \S+head.stock was changed meanwhile, to 'old' "
    r"at \w+, and stays so. To have its data here, too: hopyard stock merge main. To go there: git checkout main, then "
    r"hopyard stock switch main.$"
)


def test_a_block_commits_to_the_branch_that_git_leaves_and_stays_away_from_the_one_it_goes_to(
    project: Path,
) -> None:
    with StockRoom(project, enable_write=True) as writer:
        with pytest.warns(UserWarning, match=AWAY):
            left_while_a_block_is_open(writer, "checkout", "old")
        assert (writer.head.branch, content(writer)) == ("old", {"experiment/x": 1})
        assert content(writer.at("main")) == {"experiment/x": 2, "experiment/s": 1, "experiment/b": 1}
        assert "where this is not" not in str(writer.status())
        assert run_git(project, "status", "--porcelain") == ""
        run_git(project, "checkout", "main")
        writer.switch("main")
        assert (writer.head.branch, content(writer)) == ("main", content(writer.at("main")))
        run_git(project, "commit", "-am", "block")
        run_git(project, "checkout", "old")
        writer.merge("main")
        assert (writer.head.branch, content(writer)) == ("old", content(writer.at("main")))


def test_a_block_that_git_has_left_commits_upon_what_others_commit_before_and_after_that(
    project: Path,
) -> None:
    with StockRoom(project, enable_write=True) as writer, StockRoom(project, enable_write=True) as other:
        writer.experiment["s"] = 1
        block = writer.enable_write()
        block.__enter__()
        writer.experiment["b"] = 1
        other.experiment["before"] = 1
        other.commit("before")
        run_git(project, "checkout", "-f", "old")
        other.experiment["after"] = 1
        other.commit("after")
        other.experiment["later"] = 1
        with pytest.warns(UserWarning, match=AWAY):
            block.__exit__(None, None, None)
        assert content(writer) == content(other) == {
            "experiment/x": 1, "experiment/after": 1, "experiment/later": 1,
        }  # fmt: skip
        assert content(writer.at("old")) == {"experiment/x": 1, "experiment/after": 1}
        assert content(writer.at("main")) == {
            "experiment/x": 2, "experiment/s": 1, "experiment/b": 1, "experiment/before": 1,
        }  # fmt: skip


def test_a_block_goes_along_with_git_to_a_branch_at_the_same_commit(project: Path) -> None:
    with StockRoom(project, enable_write=True) as writer:
        left_while_a_block_is_open(writer, "checkout", "-b", "dev")
        assert writer.head.branch == "dev"
        assert content(writer.at("main")) == {"experiment/x": 2}
        run_git(project, "commit", "-am", "block")
    with StockRoom(project) as reader:
        assert (reader.head.branch, content(reader)) == (
            "dev", {"experiment/x": 2, "experiment/s": 1, "experiment/b": 1},
        )  # fmt: skip


def test_a_block_goes_along_with_git_to_no_branch(project: Path) -> None:
    with StockRoom(project, enable_write=True) as writer:
        with pytest.warns(UserWarning, match=r"was committed to no branch: git has checked out a commit"):
            left_while_a_block_is_open(writer, "switch", "--detach")
        assert writer.head.branch is None
        assert content(writer) == {"experiment/x": 2, "experiment/s": 1, "experiment/b": 1}
        assert content(writer.at("main")) == {"experiment/x": 2}
        writer.branch("kept")
        assert content(writer.at("kept")) == content(writer)


def test_a_block_that_was_begun_on_no_branch_says_how_to_keep_its_commit(project: Path) -> None:
    run_git(project, "switch", "--detach")
    with StockRoom(project, enable_write=True) as writer:
        with pytest.warns(UserWarning, match="was committed to no branch") as warned:
            left_while_a_block_is_open(writer, "checkout", "old")
        assert (writer.head.branch, content(writer)) == ("old", {"experiment/x": 1})
        said = next(str(each.message) for each in warned if "Keep it" in str(each.message))
        found = re.search(r"Keep it by a branch: hopyard stock branch NAME (\w+)\.", said)
        assert found is not None
        writer.branch("kept", found[1])
        assert content(writer.at("kept")) == {"experiment/x": 2, "experiment/s": 1, "experiment/b": 1}
        assert writer.head.branch == "old"


def test_a_block_counts_from_where_git_goes_back_to_on_its_branch(project: Path) -> None:
    with StockRoom(project, enable_write=True) as writer:
        left_while_a_block_is_open(writer, "reset", "--hard", "HEAD~1")
        assert writer.head.branch == "main"
        assert content(writer) == content(writer.at("main")) == {"experiment/x": 1, "experiment/b": 1}


def test_a_block_of_one_worktree_and_a_commit_of_another_to_its_branch(project: Path) -> None:
    beside = project.parent / f"{project.name}-beside"
    with StockRoom(project, enable_write=True) as writer:
        writer.experiment["s"] = 1
        block = writer.enable_write()
        block.__enter__()
        writer.experiment["b"] = 1
        run_git(project, "checkout", "old")
        run_git(project, "worktree", "add", str(beside), "main")
        with StockRoom(beside) as other, other.enable_write():
            other.experiment["o"] = 1
        with pytest.warns(UserWarning, match=AWAY):
            block.__exit__(None, None, None)
        assert content(writer) == {"experiment/x": 1}
        assert content(writer.at("main")) == {
            "experiment/x": 2, "experiment/s": 1, "experiment/b": 1, "experiment/o": 1,
        }  # fmt: skip
    with StockRoom(beside) as other:
        assert content(other) == {"experiment/x": 2, "experiment/o": 1}


@pytest.mark.parametrize("call", ["merge", "cherry-pick"])
def test_a_block_counts_from_what_git_brings_meanwhile_by_the_driver(project: Path, call: str) -> None:
    install(find(project))
    run_git(project, "add", "-A")
    run_git(project, "commit", "-m", "driver")
    run_git(project, "checkout", "-b", "dev")
    with StockRoom(project) as stock, stock.enable_write():
        stock.experiment["d"] = 1
    run_git(project, "commit", "-am", "dev")
    run_git(project, "checkout", "main")
    with StockRoom(project) as stock, stock.enable_write():
        stock.experiment["m"] = 1
    run_git(project, "commit", "-am", "main")
    with StockRoom(project, enable_write=True) as writer:
        with writer.enable_write():
            writer.experiment["b"] = 1
            run_git(project, call, "dev")
        assert writer.head.branch == "main"
        assert content(writer) == content(writer.at("main")) == {
            "experiment/x": 2, "experiment/m": 1, "experiment/d": 1, "experiment/b": 1,
        }  # fmt: skip


# All of it


class Walk:
    """Three handles that do whatever they can, and dicts that say what is there then."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        StockRoom.init(folder).close()
        self.folder = folder
        self.handles = [StockRoom(folder, enable_write=True) for _ in range(3)]
        self.columns: list[Any] = [None] * 3
        self.now: Content = {}
        self.commits: dict[str, tuple[Content, str | None]] = {}
        self.tags: dict[str, str] = {}
        self.branch: str | None = "main"
        self.here: str | None = None
        self.handles[0].data["c"] = {0: np.array(0)}
        self.now = {"data/c": {0: 0}}
        self.arrive(self.handles[0].commit("first"), self.now)

    @property
    def base(self) -> Content:
        assert self.here is not None
        return self.commits[self.here][0]

    @property
    def is_clean(self) -> bool:
        return self.now == self.base

    def arrive(self, commit: str, what: Content) -> None:
        self.commits[commit] = copied(what), self.here
        self.here = commit

    def write(self, stock: StockRoom, state: Content) -> None:
        key, number = self.random.randrange(4), self.random.randrange(5)
        name = f"experiment/{'xyz'[key % 3]}"
        what = self.random.choice(["set", "set", "delete", "sample", "sample", "drop", "clear"])
        if what == "set":
            stock.experiment[name[-1]] = state[name] = number
        elif what == "delete" and name in state:
            del stock.experiment[name[-1]], state[name]
        elif what == "sample":
            stock.data["c"][key] = np.array(number)
            state["data/c"][key] = number
        elif what == "drop" and key in state["data/c"]:
            del stock.data["c"][key], state["data/c"][key]
        elif what == "clear" and not self.random.randrange(3):
            stock.data["c"].clear()
            state["data/c"].clear()

    def commit(self, stock: StockRoom) -> None:
        content(stock)  # what it has not seen, it does not commit
        if self.is_clean:
            with pytest.raises(UsageError, match="nothing has changed"):
                stock.commit("nothing")
        else:
            self.arrive(stock.commit("c"), self.now)

    def block(self, stock: StockRoom) -> None:
        others = [each for each in self.handles if each is not stock]
        begun, mine, before, branch = copied(self.now), copied(self.now), self.here, self.branch
        is_staged = is_gone = False  # below the block: a write; and what was
        try:
            with stock.enable_write():
                is_staged = bool(stock._session.stage.entries())
                for _ in range(self.random.randrange(6)):
                    what, here = self.random.randrange(24), self.here
                    if what < 12:
                        self.write(stock, mine)
                    elif what < 21:
                        self.write(self.random.choice(others), self.now)
                    elif what < 23:
                        self.random.choice([self.commit, self.commit, self.reset])(self.random.choice(others))
                        is_gone = True
                    else:
                        self.switch(self.random.choice(others))
                        is_gone = is_gone or self.here != here
                assert content(stock) == mine
                tip = self.tip(branch)
            is_ok = True
        except ConflictError:
            is_ok = False
        goes_along = self.here == before or (
            self.branch == branch and (branch is not None or self.is_before(before, self.here))
        )
        if goes_along:
            parent, after = self.here, self.now
        else:  # another has gone elsewhere
            parent = before if branch is None else tip
            after = self.commits[str(parent)][0]
        base = self.commits[str(parent)][0]
        if is_staged and is_gone:  # it counts from what stands there, and commits all of that
            result, conflicts = merged(begun, mine, after, None)
            later = result
        else:  # what others stage behind it stays staged
            result, conflicts = (mine, set()) if is_staged else merged(begun, mine, base, None)
            later, more = merged(begun if is_staged else base, result, after, None)
            conflicts |= more
        assert is_ok == (not conflicts)
        if not is_ok:
            return
        commit = self.tip(self.branch if goes_along else branch)
        if result != base:
            assert commit is not None
            assert commit not in self.commits
        if commit is not None and commit not in self.commits:
            made = stock.at(commit)
            assert content(made) == result
            assert list(made.commit.parents) == [parent]
            self.commits[commit] = copied(result), parent
            if goes_along:
                self.here = commit
        if goes_along:
            self.now = later

    def tip(self, branch: str | None) -> str | None:
        stock = self.handles[0]
        return stock.local.references.tip(stock._session.tree.reference(branch)).commit

    def is_before(self, before: str | None, commit: str | None) -> bool:
        while commit not in (None, before):
            commit = self.commits[str(commit)][1]
        return commit == before

    def reset(self, stock: StockRoom) -> None:
        assert self.here is not None
        before = self.commits[self.here][1]
        if before is None or self.random.randrange(2):
            stock.reset()
        else:
            stock.reset("HEAD~1")
            self.here = before
        self.now = copied(self.base)

    def switch(self, stock: StockRoom) -> None:
        name = self.random.choice([*stock.branches(), *self.tags])
        commit = stock.branches().get(name) or self.tags[name]
        if not self.is_clean and commit != self.here:
            with pytest.raises(UsageError, match="would leave behind"):
                stock.switch(name)
            return
        stock.switch(name)
        self.branch = None if name in self.tags else name
        if commit != self.here:
            self.here = commit
            self.now = copied(self.base)

    def name(self, stock: StockRoom) -> None:
        assert self.here is not None
        number = len(stock.branches()) + len(self.tags)
        if self.random.randrange(2):
            assert stock.tag(f"t{number}") == self.here
            self.tags[f"t{number}"] = self.here
        else:
            assert stock.branch(f"b{number}") == self.here
            self.branch = self.branch or f"b{number}"

    def delete(self, stock: StockRoom) -> None:
        if self.branch is not None:
            with pytest.raises(UsageError, match="this is on the branch"):
                stock.delete_branch(self.branch, force=True)

    def take(self, stock: StockRoom) -> None:
        """A column that stays, and is written to whatever happened meanwhile."""
        at = self.handles.index(stock)
        column, number = self.columns[at], self.random.randrange(5)
        if column is None:
            self.columns[at] = stock.data["c"]
        else:
            try:
                column[7] = np.array(number)
            except UsageError:  # another has put a column in its place
                self.columns[at] = None
            else:
                self.now["data/c"][7] = number

    def step(self) -> None:
        stock = self.random.choice(self.handles)
        what = self.random.choice("wwwwbbbbccrssnndgtto")
        if what == "w":
            self.write(stock, self.now)
        elif what == "c":
            content(stock)
            self.commit(stock)
        elif what == "g":
            stock.gc()
        elif what == "o":  # and so all look, which else only some do
            for each in self.handles:
                self.check(each)
        else:
            {
                "b": self.block,
                "r": self.reset,
                "s": self.switch,
                "n": self.name,
                "d": self.delete,
                "t": self.take,
            }[what](stock)
        self.check(self.random.choice(self.handles))
        with StockRoom(self.folder, enable_write=True) as fresh:
            self.check(fresh)

    def check(self, stock: StockRoom) -> None:
        ask = self.random.randrange(4)
        if ask == 0:
            assert (stock.head.branch, stock.head.commit) == (self.branch, self.here)
        elif ask == 1:
            assert content(stock.at("HEAD")) == self.base
        elif ask == 2:
            assert stock.log(limit=1)[0].digest == self.here
        else:
            assert content(stock) == self.now


@pytest.mark.filterwarnings("ignore:.*was committed to")
@pytest.mark.parametrize("seed", range(by_level(2, 6, 400)))
def test_handles_agree_whatever_they_do(tmp_path: Path, seed: int) -> None:
    walk = Walk(tmp_path / "stock", seed)
    for _ in range(40):
        walk.step()
    for each in walk.handles:
        assert content(each) == walk.now
        assert (each.head.branch, each.head.commit) == (walk.branch, walk.here)
        each.close()
    with StockRoom(walk.folder) as reader:
        assert content(reader) == walk.base
        assert reader.verify().ok
