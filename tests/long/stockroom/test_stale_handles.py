"""Several stockrooms open upon one working tree: each learns where the tree stands before it does anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.model import Content, content

from hopyard import StockRoom
from hopyard.errors import ConflictError, PurgedError, UsageError

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
