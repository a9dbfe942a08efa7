"""git checks out, branches, merges and clones; the data follow."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.long.stockroom.crashes import dying
from tests.long.stockroom.model import content
from tests.stockroom.git.repositories import run_git

from hopyard import StockRoom
from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.git import Head, find, read
from hopyard.stockroom.git.driver import install
from hopyard.stockroom.session.git_driver import merge_heads


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two git commits, each with its own data."""
    folder = tmp_path / "project"
    folder.mkdir()
    run_git(folder, "init")
    with StockRoom.init(folder) as stock:
        for number in (0, 1):
            write(stock, number)
            save(folder, f"{number}")
    return folder


def write(stock: StockRoom, number: int, key: int = 0) -> None:
    with stock.enable_write():
        if "x" not in stock.data:
            stock.data["x"] = {key: np.array(number)}
        else:
            stock.data["x"][key] = np.array(number)
        stock.experiment["lr"] = number / 10 if key == 0 else stock.experiment["lr"]


def save(folder: Path, message: str) -> None:
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-m", message)


def test_what_git_checks_out_is_read_and_written_upon(project: Path) -> None:
    run_git(project, "checkout", "-b", "older", "HEAD~1")
    with StockRoom(project) as stock:
        assert stock.experiment["lr"] == 0
        old = stock.head.commit
        write(stock, 9)
        assert stock.log()[0].parents == (old,)
        assert stock.head.branch == "older"
    save(project, "older goes on")
    run_git(project, "checkout", "main")
    with StockRoom(project) as stock:
        assert content(stock) == {"data/x": {0: 1}, "experiment/lr": 0.1}
    assert run_git(project, "status", "--porcelain") == ""


def test_nothing_that_git_cleans_is_lost(project: Path) -> None:
    run_git(project, "clean", "-fdx")
    (project / "a" / "b").mkdir(parents=True)
    with StockRoom(project / "a" / "b") as stock:
        assert stock.place.root == project.resolve()
        assert stock.data["x"][0] == 1


@pytest.mark.parametrize("ending", ["\n", "\n\n", "\r\n", "  \n"])
def test_white_space_in_head_stock_does_not_matter(project: Path, ending: str) -> None:
    head = project / "head.stock"
    head.write_bytes(head.read_bytes().replace(b"\n", ending.encode()))
    with StockRoom(project) as stock:
        assert stock.data["x"][0] == 1


def test_a_clone_of_git_says_where_data_are_brought_from(project: Path, tmp_path: Path) -> None:
    with StockRoom(project) as stock:
        stock.push(tmp_path / "remote")
    run_git(tmp_path, "clone", str(project), "cloned")
    with pytest.raises(NotFoundError, match="hopyard stock clone URL"):
        StockRoom(tmp_path / "cloned")
    with StockRoom.clone(tmp_path / "remote", tmp_path / "cloned") as cloned:
        assert content(cloned) == {"data/x": {0: 1}, "experiment/lr": 0.1}


def test_what_git_pulls_is_brought_from_the_remote(project: Path, tmp_path: Path) -> None:
    remote, cloned = tmp_path / "remote", tmp_path / "cloned"
    run_git(tmp_path, "clone", str(project), "cloned")
    with StockRoom(project) as stock:
        stock.push(remote)
        copy = StockRoom.clone(remote, cloned)
        for number in (2, 3):
            write(stock, number)
        save(project, "3")
        run_git(cloned, "pull")
        with pytest.raises(
            NotFoundError,
            match=r"which is neither in .* nor came from origin .*Push it from where it was made",
        ):
            StockRoom(cloned)
        stock.push()
    with pytest.raises(NotFoundError, match=r"fetch='never' was given. Bring it: hopyard stock fetch"):
        StockRoom(cloned, fetch="never")
    with StockRoom(cloned) as opened:
        assert content(opened) == {"data/x": {0: 3}, "experiment/lr": 0.3}
        assert len(opened.log()) == 4
        assert opened.status().branch == "main"
    write(copy, 4)  # also by who had it open before
    assert [copy.experiment["lr"], copy.at("HEAD~1").experiment["lr"]] == [0.4, 0.3]
    copy.push()
    copy.close()


def test_a_commit_that_git_brought_arrives_also_after_a_kill(project: Path, tmp_path: Path) -> None:
    with StockRoom(project) as stock:
        stock.push(tmp_path / "remote")
        StockRoom.clone(tmp_path / "remote", tmp_path / "cloned").close()
        for number in (2, 3):
            write(stock, number)
            stock.push()
        at, died = 0, True
        while died:
            folder = shutil.copytree(tmp_path / "cloned", tmp_path / f"{at}")
            shutil.copy(stock.place.head, folder)
            with dying(at) as counter, StockRoom(folder):
                pass
            died, at = counter.is_dead, at + 1
            with StockRoom(folder) as opened:
                assert content(opened) == content(stock)
                assert len(opened.log()) == 4
        assert at > 2


def test_a_commit_that_git_brought_comes_from_a_remote_that_is_not_known(
    project: Path, tmp_path: Path
) -> None:
    with StockRoom(project) as stock:
        stock.push(tmp_path / "remote")
        run_git(tmp_path, "clone", str(project), "cloned")
        StockRoom.clone(tmp_path / "remote", tmp_path / "cloned").close()
        write(stock, 2)
        save(project, "2")
        stock.push(tmp_path / "other", name="other")
    run_git(tmp_path / "cloned", "pull")
    with pytest.raises(NotFoundError, match=r"hopyard stock clone URL .* --name NAME"):
        StockRoom(tmp_path / "cloned")
    with pytest.raises(UsageError, match="is a stockroom already"):
        StockRoom.clone(tmp_path / "other", tmp_path / "cloned")
    with StockRoom.clone(tmp_path / "other", tmp_path / "cloned", "other") as cloned:
        assert content(cloned) == {"data/x": {0: 2}, "experiment/lr": 0.2}
        assert list(cloned.remotes()) == ["origin", "other"]


def test_git_pull_merges_data_that_only_the_remote_has(project: Path, tmp_path: Path) -> None:
    remote, cloned = tmp_path / "remote", tmp_path / "cloned"
    with StockRoom(project) as stock:
        stock.push(remote)
        run_git(tmp_path, "clone", str(project), "cloned")
        with StockRoom.clone(remote, cloned) as copy:
            install(copy.place)
            write(copy, 6, key=6)
            save(cloned, "6")
        write(stock, 5, key=5)
        save(project, "5")
        stock.push()
    run_git(cloned, "pull", "--no-rebase", "--no-edit")
    with StockRoom(cloned) as merged:
        assert content(merged)["data/x"] == {0: 1, 5: 5, 6: 6}
        assert merged.status().remotes == {"origin/main": (2, 0)}  # its own commit, and the merge


def test_status_counts_nothing_more_than_the_remote_after_git_pull(project: Path, tmp_path: Path) -> None:
    remote, cloned = tmp_path / "remote", tmp_path / "cloned"
    with StockRoom(project) as stock:
        stock.push(remote)
        run_git(tmp_path, "clone", str(project), "cloned")
        copy = StockRoom.clone(remote, cloned)
        write(stock, 2)
        save(project, "2")
        stock.push()
        run_git(cloned, "pull")
        assert copy.status().remotes == {"origin/main": (0, 0)}
        for number in (3, 4):
            write(stock, number)
            stock.push()
            if number == 3:
                save(project, "3")
        run_git(cloned, "pull")  # git has not got the remote's last commit
        assert copy.status().remotes == {"origin/main": (0, 1)}
        assert copy.pull().how == "forward"
        assert copy.status().remotes == {"origin/main": (0, 0)}
        copy.close()


def test_what_git_pulls_is_read_where_the_remotes_branch_cannot_be(project: Path, tmp_path: Path) -> None:
    remote, cloned = tmp_path / "remote", tmp_path / "cloned"
    with StockRoom(project) as stock:
        stock.push(remote)
        run_git(tmp_path, "clone", str(project), "cloned")
        copy = StockRoom.clone(remote, cloned)
        write(stock, 2)
        save(project, "2")
        stock.push()
        packfiles = {file.name for file in (remote / "packfiles").iterdir()}
        write(stock, 3)
        stock.push()
    for file in (remote / "packfiles").iterdir():
        if file.name not in packfiles:
            file.unlink()
    run_git(cloned, "pull")
    assert copy.status().remotes == {"origin/main": (1, 0)}  # as it was last seen
    copy.close()
    with StockRoom(cloned) as copy:
        assert content(copy) == {"data/x": {0: 2}, "experiment/lr": 0.2}
        with pytest.raises(NotFoundError):
            copy.fetch()


@pytest.fixture
def parted(project: Path) -> Path:
    """The project with the merge driver, and two branches that both changed data."""
    with StockRoom(project) as stock:
        install(stock.place)
        save(project, "driver")
        run_git(project, "checkout", "-b", "dev")
        stock.branch("dev")
        stock.switch("dev")
        write(stock, 5, key=5)
        save(project, "dev")
        run_git(project, "checkout", "main")
    with StockRoom(project) as stock:
        write(stock, 6, key=6)
        save(project, "main")
    return project


def test_git_merges_the_data_of_two_branches(parted: Path, tmp_path: Path) -> None:
    run_git(parted, "merge", "dev", "-m", "both")
    with StockRoom(parted) as stock:
        assert content(stock)["data/x"] == {0: 1, 5: 5, 6: 6}
        behind = stock.branches()["main"]
        assert stock.status().behind == behind != stock.head.commit
        assert f"the branch itself is still at {behind[:12]}: git brought head.stock here" in str(
            stock.status()
        )
        assert stock.gc().objects == 0
        assert stock.head.branch == "main"
        stock.push(tmp_path / "remote")
        assert stock.branches()["main"] == stock.head.commit
        assert stock.status().behind is None
    with StockRoom.clone(tmp_path / "remote", tmp_path / "copy") as copy:
        assert content(copy)["data/x"] == {0: 1, 5: 5, 6: 6}


def test_a_merge_that_git_drops_leaves_the_branch(parted: Path) -> None:
    run_git(parted, "merge", "dev", "--no-commit", "--no-ff")
    run_git(parted, "merge", "--abort")
    with StockRoom(parted) as stock:
        assert stock.head.branch == "main"
        assert content(stock)["data/x"] == {0: 1, 6: 6}
        write(stock, 7, key=7)
        assert stock.head.branch == "main"


def test_a_merge_driver_that_dies_at_any_write_leaves_the_branch(parted: Path) -> None:
    """git writes head.stock after the driver, and not at all if that is killed."""
    mine = read(parted / "head.stock")
    with StockRoom(parted) as stock:
        theirs = Head("dev", stock.branches()["dev"])
        base = stock.resolve("dev~1")
    for at in range(20):
        with dying(at) as counter:
            merge_heads(find(parted), [base], mine, theirs)
        with StockRoom(parted) as stock:
            assert stock.head == Head(mine.branch, mine.commit)
            assert stock.verify().ok
        if not counter.is_dead:
            break
    assert at == 2  # a packfile of metadata, and the log of the working tree
    run_git(parted, "merge", "dev", "-m", "both")
    with StockRoom(parted) as stock:
        assert stock.head.branch == "main"
        assert content(stock)["data/x"] == {0: 1, 5: 5, 6: 6}


def stock_command(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "hopyard", "stock", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_the_command_line_in_a_git_repository(project: Path) -> None:
    assert "branch main" in stock_command(project, "status")
    assert "nothing has changed" in stock_command(project, "commit", "-m", "clean", code=1)
    with StockRoom(project, enable_write=True) as stock:
        stock.experiment["wd"] = True
    stock_command(project, "commit", "-m", "first", "-m", "second")
    with StockRoom(project) as stock:
        assert stock.experiment["wd"] is True
        assert isinstance(stock.log()[0].message, str)
        assert stock.log()[0].message.startswith("first")
    assert "lr" in stock_command(project, "list")
    stock_command(project, "verify")


def test_what_was_staged_in_a_worktree_that_git_removed_is_not_in_another_of_its_name(project: Path) -> None:
    tree = project.parent / "tree"
    for other in ("first", "second"):
        run_git(project, "worktree", "add", "--detach", str(tree))
        with StockRoom(tree, enable_write=True) as stock:
            stock.experiment[other] = "staged"
        with StockRoom(tree, enable_write=True) as stock:
            assert [name for name in stock.experiment if name != "lr"] == [other]
        run_git(project, "worktree", "remove", "--force", str(tree))
    run_git(project, "worktree", "add", "--detach", str(tree))
    with (
        StockRoom(tree) as stock,
        pytest.warns(UserWarning, match="committed to no branch"),
        stock.enable_write(),
    ):
        stock.experiment["mine"] = 1
    moved = project.parent / "moved"
    with StockRoom(tree, enable_write=True) as stock:
        stock.experiment["kept"] = 1
    run_git(project, "worktree", "move", str(tree), str(moved))
    with StockRoom(moved, enable_write=True) as stock:
        assert set(stock.experiment) == {"lr", "mine", "kept"}


def test_a_worktree_that_is_opened_by_many_at_first_loses_nothing(project: Path) -> None:
    tree = project.parent / "tree"
    run_git(project, "worktree", "add", "--detach", str(tree))
    code = "import sys; from hopyard import StockRoom; s = StockRoom(sys.argv[1], enable_write=True); "
    code += "s.experiment[sys.argv[2]] = 1; s.close()"
    writers = [subprocess.Popen([sys.executable, "-c", code, tree, f"value-{n}"]) for n in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    with StockRoom(tree, enable_write=True) as stock:
        assert {f"value-{n}" for n in range(4)} <= set(stock.experiment)
