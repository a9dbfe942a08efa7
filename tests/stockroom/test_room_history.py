"""History, git, remotes and care through the calls of a stockroom."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopyard import StockRoom
from hopyard.errors import BehindError, ConflictError, CorruptError, NotFoundError, UsageError
from hopyard.stockroom.git import Head
from hopyard.stockroom.git import read as read_head
from hopyard.stockroom.history.graph import graph
from hopyard.stockroom.history.references import References
from hopyard.stockroom.remotes import fetching
from hopyard.stockroom.session.git_driver import merge_heads
from hopyard.storage import LocalStore


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockRoom]:
    with StockRoom.init(tmp_path / "repo") as stock:
        put(stock, "begin", lr=0.1)
        yield stock


def put(stock: StockRoom, message: str | None = None, /, **values: Any) -> str:
    with stock.enable_write(message):
        for name, value in values.items():
            stock.experiment[name] = value
    assert stock.head.commit is not None
    return stock.head.commit


# Looking


def test_differences_go_down_to_samples_tensors_and_values(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.data["image"] = np.zeros((20, 2))
        stock.data["text"] = {"a": "x"}
        stock.model["net"] = {"w": torch.zeros(4), "b": torch.ones(1)}
    with stock.enable_write():
        for key in range(10):
            stock.data["image"][key] = np.ones(2)
        stock.data["image"].extend(np.ones((1, 2)))
        del stock.data["text"]
        stock.model["net"] = {"w": torch.full((4,), 2.0), "c": torch.ones(1)}
        stock.experiment["lr"] = 0.2
    diff = stock.diff("HEAD~1", "HEAD")
    assert [(thing.path, thing.how) for thing in diff] == [
        ("data/image", "changed"), ("data/text", "removed"), ("experiment/lr", "changed"), ("model/net", "changed"),
    ]  # fmt: skip
    assert list(diff["data/image"].samples())[-2:] == [(9, "changed"), (20, "added")]
    assert diff["experiment/lr"].values == (0.1, 0.2)
    assert [(moved.path, moved.how, moved.moved) for moved in diff["model/net"].tensors()] == [
        ("w", "changed", 4.0), ("c", "added", None), ("b", "removed", None),
    ]  # fmt: skip
    text = str(diff)
    assert "10 samples changed, 1 sample added" in text
    assert "and 3 more" in text
    assert "0.1 -> 0.2" in text
    assert "w: moved by 4" in text
    with pytest.raises(NotFoundError, match="'data/imag' does not differ; did you mean 'data/image'"):
        diff["data/imag"]
    assert str(stock.diff("HEAD", "HEAD")) == "nothing differs"


def test_what_is_staged_differs_too(stock: StockRoom) -> None:
    writer = StockRoom(stock.place.root, enable_write=True)
    writer.experiment["lr"] = 5
    for room in (writer, stock):
        assert room.diff()["experiment/lr"].values == (0.1, 5)


def test_the_graph_of_a_merge(stock: StockRoom) -> None:
    stock.branch("dev")
    put(stock, "main 1", a=1)
    stock.switch("dev")
    put(stock, "dev 1", b=1)
    stock.switch("main")
    stock.merge("dev")
    lines = [f"{lanes} {commit.message if commit else ''}".rstrip() for lanes, commit in graph(stock.log())]
    assert lines == ["* Merge dev", "|\\", "| * dev 1", "* | main 1", "|/", "* begin"]
    assert len(stock.log(limit=2)) == 2
    assert [commit.message for commit in stock.log("dev")] == ["dev 1", "begin"]
    assert stock.labels()[stock.branches()["dev"]] == ["dev"]


# Branches


def test_branches_and_tags_are_made_once_and_deleted_with_care(stock: StockRoom) -> None:
    stock.branch("dev")
    stock.tag("v1")
    with pytest.raises(UsageError, match="there is a branch 'dev' already, at"):
        stock.branch("dev")
    with pytest.raises(UsageError, match="cannot be the name of a branch"):
        stock.branch("a b")
    with pytest.raises(UsageError, match="this is on the branch 'main', so it cannot be deleted"):
        stock.delete_branch("main")
    stock.switch("dev")
    put(stock, x=1)
    stock.switch("main")
    with pytest.raises(UsageError, match="the branch 'dev' has commits that no other branch or tag has"):
        stock.delete_branch("dev")
    stock.delete_branch("dev", force=True)
    stock.delete_tag("v1")
    assert (list(stock.branches()), stock.tags()) == (["main"], {})
    with pytest.raises(NotFoundError, match="there is no tag 'v1'"):
        stock.delete_tag("v1")


def test_switching_with_staged_changes_is_refused(stock: StockRoom) -> None:
    stock.branch("old")
    put(stock, lr=0.2)
    writer = StockRoom(stock.place.root, enable_write=True)
    writer.experiment["lr"] = 0.3
    for call in (lambda: writer.switch("old"), lambda: writer.merge("old"), lambda: writer.pull("x")):
        with pytest.raises(UsageError, match="would leave behind what is staged upon"):
            call()
    with pytest.raises(NotFoundError, match="'olt' is no branch, tag or commit here; did you mean 'old'"):
        writer.switch("olt")
    with (
        pytest.raises(UsageError, match="switch was called within"),
        stock.enable_write(),
    ):
        stock.switch("old")
    writer.reset()
    assert writer.switch("old") == Head("old", stock.branches()["old"])
    assert writer.experiment["lr"] == 0.1


def test_a_conflict_is_resolved_by_a_function(stock: StockRoom) -> None:
    stock.branch("dev")
    put(stock, lr=0.2)
    stock.switch("dev")
    put(stock, lr=0.4)
    stock.switch("main")
    before = stock.head
    with pytest.raises(ConflictError, match="1 change conflicts:") as caught:
        stock.merge("dev")
    assert stock.head == before
    assert (caught.value.conflicts[0].ours, caught.value.conflicts[0].theirs) == (0.2, 0.4)
    stock.merge("dev", resolve=lambda conflict: (conflict.ours + conflict.theirs) / 2)
    assert stock.experiment["lr"] == pytest.approx(0.3)
    assert stock.merge("dev").how == "up to date"


def test_a_text_that_a_side_has_is_no_side(stock: StockRoom) -> None:
    stock.branch("dev")
    for branch, text in (("main", "theirs"), ("dev", "zzz")):
        stock.switch(branch)
        with stock.enable_write():
            stock.data["w"] = {0: text}
            stock.experiment["w"] = text
    stock.switch("main")
    before = stock.head
    with pytest.raises(
        UsageError, match=r"data/w.*was resolved with None, as by a function that lacks a return"
    ):
        stock.merge("dev", resolve=lambda conflict: None)
    assert stock.head == before
    stock.merge("dev", resolve=lambda conflict: min(conflict.ours, conflict.theirs))
    assert (stock.data["w"][0], stock.experiment["w"]) == ("theirs", "theirs")


def test_a_function_says_by_a_side_that_a_sample_goes(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.data["w"] = {0: "a", 1: "b"}
    stock.branch("dev")
    with stock.enable_write():
        stock.data["w"][0] = "c"
    stock.switch("dev")
    with stock.enable_write():
        del stock.data["w"][0]
    stock.switch("main")
    with pytest.raises(UsageError, match="'theirs', which removes what that side removed"):
        stock.merge("dev", resolve=lambda conflict: conflict.theirs)
    stock.merge("dev", resolve=lambda conflict: "theirs")
    assert list(stock.data["w"]) == [1]


def test_a_conflict_of_models_is_resolved_by_a_side(stock: StockRoom) -> None:
    stock.branch("dev")
    for branch, values in (("main", np.zeros(3)), ("dev", np.ones(3))):
        stock.switch(branch)
        with stock.enable_write():
            stock.model["net"] = {"w": values}
    with pytest.raises(
        UsageError, match="was resolved with None, but it is resolved with 'ours' or 'theirs'"
    ):
        stock.merge("main", resolve=lambda conflict: None)
    stock.merge("main", resolve=lambda conflict: "theirs")
    assert stock.model["net"]["w"].tolist() == [0, 0, 0]


def test_a_commit_is_reverted(stock: StockRoom) -> None:
    second = put(stock, lr=0.2, other=1)
    put(stock, third=3)
    stock.revert(second)
    assert (stock.experiment["lr"], list(stock.experiment)) == (0.1, ["lr", "third"])
    assert stock.log()[0].message.startswith("Revert 'experiment/lr, experiment/other added'")


# Without a branch


def test_a_detached_commit_is_always_said_and_named_when_it_is_left(stock: StockRoom) -> None:
    put(stock, lr=0.2)
    stock.switch("HEAD~1")
    with pytest.warns(
        UserWarning, match=r"committed to no branch: head\.stock names a commit.* Make a branch"
    ):
        mine = put(stock, other=1)
    with pytest.warns(UserWarning, match=rf"no branch or tag has .* left, {mine[:12]} .*NAME {mine[:12]}"):
        stock.switch("main")
    stock.branch("kept", mine)
    stock.switch(mine)
    stock.switch("main")  # a branch has it: nothing is said
    stock.switch("HEAD~1")
    stock.switch("main")


def test_commits_upon_an_older_commit_are_detached_until_a_branch_is_made(stock: StockRoom) -> None:
    old = stock.head.commit
    put(stock, lr=0.2)
    head = stock.place.head
    head.write_text(f"branch main\ncommit {old}\n")  # as git checkout does
    room = StockRoom(stock.place.root)
    assert room.experiment["lr"] == 0.1
    assert room.head == Head(None, old)
    assert "commits are detached: head.stock was put back to" in str(room.status())
    with pytest.warns(
        UserWarning, match=r"was committed to no branch: head\.stock was put back to .* Make a branch for it"
    ):
        mine = put(room, other=1)
    assert read_head(head) == Head(None, mine)
    assert room.branches()["main"] == stock.head.commit
    room.branch("mine")
    assert read_head(head) == Head("mine", mine)
    put(room, more=1)
    room.switch("main")
    room.merge("mine")
    assert (room.experiment["lr"], room.experiment["other"]) == (0.2, 1)


def test_a_head_that_git_moves_meanwhile_stays(stock: StockRoom) -> None:
    moved = Head("dev", stock.branch("dev"))
    put(stock, lr=2)
    block = stock.enable_write()
    block.__enter__()
    stock.experiment["lr"] = 3
    stock.place.head.write_text(f"branch dev\ncommit {moved.commit}\n")
    with pytest.warns(
        UserWarning, match="was committed to the branch 'main', .*head.stock was changed meanwhile, to 'dev'"
    ):
        block.__exit__(None, None, None)
    assert read_head(stock.place.head) == moved
    assert stock.branches()["main"] != moved.commit


def test_git_merges_head_stock_with_the_data_that_it_names(tmp_path: Path, git: Callable[..., str]) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    stock = StockRoom.init(folder)
    cli(folder, "init", "--git-driver")
    put(stock, lr=0.1)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "begin")
    git(folder, "checkout", "-q", "-b", "dev")
    stock.branch("dev")
    stock.switch("dev")
    put(stock, dev=1)
    git(folder, "commit", "-q", "-a", "-m", "dev")
    git(folder, "checkout", "-q", "main")
    room = StockRoom(folder)
    assert list(room.experiment) == ["lr"]
    put(room, main=1)
    git(folder, "commit", "-q", "-a", "-m", "main")
    git(folder, "merge", "-q", "dev")
    merged = StockRoom(folder)
    assert list(merged.experiment) == ["dev", "lr", "main"]
    assert merged.head.branch == "main"
    assert merged.status().behind == merged.branches()["main"] == merged.log()[0].parents[0]
    assert len(merged.log()[0].parents) == 2
    git(folder, "clean", "-fdxq")
    assert merged.verify().ok


def cli(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hopyard", "stock", *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "no-config"))

    def run(folder: Path, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


# Kills

_KILLED = """
import os, signal, sys
from pathlib import Path
from hopyard import StockRoom
from hopyard.stockroom.session import tree
from hopyard.stockroom.history import references, stage

stock = StockRoom(sys.argv[1], enable_write=True)
stock.experiment["lr"] = 0.9

def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before":
    references.References.move = die
elif sys.argv[2] == "after":
    tree.WorkingTree.set_head = die
else:
    stage.HeldStage.drop = die
stock.commit("killed")
"""


@pytest.mark.parametrize("moment", ["before", "after", "cleared"])
def test_a_commit_that_was_killed_is_finished_or_has_not_happened(stock: StockRoom, moment: str) -> None:
    before = stock.head.commit
    command = [sys.executable, "-c", _KILLED, str(stock.place.root), moment]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    writer = StockRoom(stock.place.root, enable_write=True)
    assert writer.experiment["lr"] == 0.9
    status = writer.status()
    assert status.detached is None
    assert status.elsewhere == {}
    assert read_head(stock.place.head) == writer.head
    if moment == "before":
        assert writer.head.commit == before
        assert status.staged == [("experiment/lr", "changed")]
        writer.commit("again")
    else:
        assert writer.log()[0].message == "killed"
        assert status.staged == []
    assert writer.branches() == {"main": writer.head.commit}
    assert writer.verify().ok


# Remotes


def test_two_clones_work_together(stock: StockRoom, tmp_path: Path) -> None:
    with stock.enable_write():
        stock.data["image"] = np.arange(400).reshape(100, 4)
        stock.model["net"] = {"w": torch.arange(3.0)}
    url = tmp_path / "remote"
    assert stock.push(url).branches == {"main": (None, stock.head.commit)}
    assert stock.push().branches == {}
    assert list(stock.remotes()) == ["origin"]
    copy = StockRoom.clone(url, tmp_path / "copy", fetch="never")
    with pytest.raises(NotFoundError, match=r"stock.fetch\(data=\['image'\]\)"):
        copy.data["image"][0]
    with StockRoom(tmp_path / "copy") as other:
        assert other.data["image"][99].tolist() == [396, 397, 398, 399]
    copy.fetch(models=True)
    assert copy.model["net"]["w"].tolist() == [0, 1, 2]
    put(copy, copy=1)
    copy.push()
    put(stock, mine=1)
    with pytest.raises(BehindError, match="Pull first"):
        stock.push()
    assert stock.pull().how == "merged"
    assert list(stock.experiment) == ["copy", "lr", "mine"]
    stock.push()
    assert copy.pull().how == "forward"
    assert list(copy.experiment) == ["copy", "lr", "mine"]
    assert copy.status().remotes == {"origin/main": (0, 0)}


def test_a_pull_that_conflicts_says_how_to_merge(stock: StockRoom, tmp_path: Path) -> None:
    stock.push(tmp_path / "remote")
    copy = StockRoom.clone(tmp_path / "remote", tmp_path / "copy")
    put(copy, lr=1)
    copy.push()
    put(stock, lr=2)
    with pytest.raises(ConflictError, match="hopyard stock merge origin/main --resolve ours"):
        stock.pull()
    assert stock.experiment["lr"] == 2
    stock.merge("origin/main", resolve="theirs")
    assert stock.experiment["lr"] == 1


def test_a_branch_of_the_remote_is_made_here_by_switching(stock: StockRoom, tmp_path: Path) -> None:
    stock.branch("dev")
    stock.push(tmp_path / "remote", branches=["main", "dev"])
    copy = StockRoom.clone(tmp_path / "remote", tmp_path / "copy")
    assert copy.switch("dev") == Head("dev", stock.head.commit)


def test_remotes_that_are_not_there_are_named(stock: StockRoom, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no remote is known here. Give its address"):
        stock.push()
    with pytest.raises(NotFoundError, match=r"A folder is written as \./orgin"):
        stock.push("orgin")
    with pytest.raises(NotFoundError, match="there is no stockroom at"):
        StockRoom.clone(tmp_path / "nowhere", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "nowhere").exists()
    stock.push(tmp_path / "remote")
    stock.forget_remote("origin")
    assert stock.remotes() == {}


def test_who_commits_while_a_pull_fetches_is_not_waited_for(
    stock: StockRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others of this working tree wait only while the branch moves; the pull merges what they committed."""
    stock.push(tmp_path / "remote")
    with StockRoom.clone(tmp_path / "remote", tmp_path / "copy") as copy:
        put(copy, copy=1)
        copy.push()

    def fetch(*arguments: Any, **named: Any) -> Any:
        fetched = fetching.fetch(*arguments, **named)
        with StockRoom(stock.place.root) as other:
            put(other, other=1)
        return fetched

    monkeypatch.setattr("hopyard.stockroom.remotes.pulling.fetch", fetch)
    assert stock.pull().how == "merged"
    assert list(stock.experiment) == ["copy", "lr", "other"]
    assert stock.head == Head("main", stock.branches()["main"])


# Care


def test_garbage_of_a_remote_is_collected_there(stock: StockRoom, tmp_path: Path) -> None:
    stock.branch("dev")
    stock.switch("dev")
    with stock.enable_write():
        stock.data["large"] = np.random.default_rng(0).random(10_000)
    stock.push(tmp_path / "remote", ["main", "dev"])
    there = References(LocalStore(tmp_path / "remote"))
    there.set("heads/dev", None, "Ada")
    assert stock.gc(remote="origin", dry_run=True).freed > 70_000
    assert stock.gc(remote=tmp_path / "remote").freed > 70_000
    assert stock.gc(remote="origin").objects == 0
    assert len(stock.data["large"]) == 10_000
    with StockRoom.clone(tmp_path / "remote", tmp_path / "copy") as copy:
        assert copy.verify().ok
        assert list(copy.experiment) == ["lr"]


def test_garbage_goes_and_what_is_staged_stays(stock: StockRoom) -> None:
    writer = StockRoom(stock.place.root, enable_write=True)
    writer.data["big"] = np.random.default_rng(0).standard_normal((200, 1000))
    writer.commit("big")
    writer.reset("HEAD~1")
    writer.data["kept"] = np.ones((300, 1000))
    stock.close()
    freed = writer.gc().freed
    assert freed > 1_000_000
    assert writer.data["kept"][299].sum() == 1000
    again = StockRoom(stock.place.root, enable_write=True)
    assert again.data["kept"][0].sum() == 1000
    again.commit("kept")
    assert again.verify().ok


def test_a_sample_is_purged_from_history_and_stage(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.data["face"] = np.arange(12).reshape(6, 2)
    writer = StockRoom(stock.place.root, enable_write=True)
    writer.experiment["staged"] = 1
    report = writer.purge("face", key=3, why="asked by the person")
    assert report.keys == [3]
    with pytest.raises(NotFoundError, match="purged"):
        StockRoom(stock.place.root).data["face"][3]
    assert writer.experiment["staged"] == 1
    assert writer.data["face"][4].tolist() == [8, 9]
    assert writer.verify().ok


def test_a_staged_file_that_was_emptied_is_damage_and_clears_nothing(stock: StockRoom) -> None:
    root = stock.place.root
    with StockRoom(root, enable_write=True) as writer:
        writer.experiment["before"] = 1
        writer.experiment["after"] = 2
    *_, last = sorted((stock.place.objects / "stage").glob("*/*/*"))
    last.write_bytes(b"")
    rule = rf"{last} is empty. It is a staged write.* hopyard stock reset"
    for reads in (
        lambda: StockRoom(root, enable_write=True),
        lambda: StockRoom(root).status(),
        lambda: StockRoom(root).diff(),
        lambda: StockRoom(root).merge("HEAD"),
    ):
        with pytest.raises(CorruptError, match=rule):
            reads()
    (problem,) = StockRoom(root).verify().problems
    assert (problem.kind, problem.name) == ("unreadable", str(last.relative_to(stock.place.objects)))
    assert StockRoom.verify_in(root, repair=True).ok
    with StockRoom(root, enable_write=True) as again:
        assert again.status().staged == [("experiment/before", "added")]
        again.experiment["after"] = 3
        assert again.verify().ok
    for staged in (stock.place.objects / "stage").glob("*/*/*"):
        staged.unlink()
    with pytest.raises(CorruptError, match=r"the staged write .* is missing.* hopyard stock verify --repair"):
        StockRoom(root).status()
    (problem,) = StockRoom(root).verify().problems
    assert "is missing" in problem.reason
    assert StockRoom.verify_in(root, repair=True).ok
    with StockRoom(root, enable_write=True) as again:
        assert again.status().staged == []
        assert again.verify().ok


def test_staged_writes_that_cancel_out_are_nothing_for_commit_merge_and_the_driver(stock: StockRoom) -> None:
    root = stock.place.root
    head = stock.head
    assert head.commit is not None
    for goes_on in (
        lambda: StockRoom(root).merge(str(head.commit)),
        lambda: StockRoom(root, enable_write=True).merge(str(head.commit)),
        lambda: merge_heads(stock.place, [], head, head),
    ):
        with StockRoom(root, enable_write=True) as writer:
            writer.experiment["only"] = 1
            writer.data["only"] = [1, 2]
            del writer.experiment["only"], writer.data["only"]
        goes_on()
        assert not list((stock.place.objects / "stage").glob("*/*/*"))
    with StockRoom(root, enable_write=True) as writer:
        writer.experiment["only"] = 1
        del writer.experiment["only"]
        with pytest.raises(UsageError, match="nothing has changed"):
            writer.commit("nothing")
        assert not list((stock.place.objects / "stage").glob("*/*/*"))
        writer.experiment["only"] = 1
        with pytest.raises(UsageError, match="merge would leave behind what is staged"):
            StockRoom(root).merge(str(head.commit))


def test_both_sides_convert_a_column_of_which_a_sample_was_purged(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as stock:
        with stock.enable_write():
            stock.data["x"] = np.arange(4, dtype=np.uint8)
        stock.branch("dev")
        stock.purge("x", 2)

        def convert(*gone: int, **more: int) -> None:
            with stock.enable_write():
                kept = {key: value.astype(np.float32) for key, value in stock.data["x"].items()}
                stock.data["x"] = {key: value for key, value in kept.items() if key not in gone}
                for key in more.values():
                    stock.data["x"][key] = np.float32(7)

        convert(1)
        stock.switch("dev")
        convert(anew=2)
        assert stock.merge("main").how == "merged"
        assert {key: float(value) for key, value in stock.data["x"].items()} == {0: 0, 2: 7, 3: 3}
