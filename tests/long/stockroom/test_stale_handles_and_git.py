"""Stockrooms open upon one working tree while git checks out, commits and merges beneath them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.long.stockroom.model import content
from tests.stockroom.git.conftest import run_git

from hopyard import StockRoom
from hopyard.stockroom.git import find
from hopyard.stockroom.git.driver import install


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
