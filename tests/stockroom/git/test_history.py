"""Every commit that git's history names is found, or it is an error."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hopyard.errors import StorageError
from hopyard.stockroom.git import Head, at, commits_in_history, find, write

from .repositories import A, B, C, D, Git, commit_head

E, F = "e" * 64, "f" * 64


def test_all_versions_on_all_branches_and_tags(repository: Path, git: Git) -> None:
    commit_head(repository, Head("main", B))
    git(repository, "checkout", "-b", "dev", "HEAD~1")
    commit_head(repository, Head("dev", C))
    git(repository, "tag", "v1")
    git(repository, "checkout", "main")
    git(repository, "branch", "-D", "dev")
    git(repository, "rm", "head.stock")
    git(repository, "commit", "-m", "without")
    assert commits_in_history(at(repository)) == {A, B, C}


def test_a_side_that_a_merge_threw_away(repository: Path, git: Git) -> None:
    git(repository, "checkout", "-b", "dev")
    commit_head(repository, Head("dev", B))
    commit_head(repository, Head("dev", C))
    git(repository, "checkout", "main")
    commit_head(repository, Head("main", D))
    git(repository, "merge", "-s", "ours", "dev")
    git(repository, "branch", "-D", "dev")
    git(repository, "reflog", "expire", "--expire=all", "--all")
    assert commits_in_history(find(repository)) == {A, B, C, D}


def test_a_version_that_only_a_merge_made(repository: Path, git: Git) -> None:
    git(repository, "checkout", "-b", "dev")
    commit_head(repository, Head("dev", B))
    git(repository, "checkout", "main")
    commit_head(repository, Head("main", C))
    git(repository, "merge", "dev", code=1)
    (repository / "head.stock").write_text(f"commit {D}\n")
    git(repository, "commit", "-am", "merged")
    assert commits_in_history(find(repository)) == {A, B, C, D}


def test_stashes_and_reflogs(repository: Path, git: Git) -> None:
    for commit in (B, C):
        write(repository / "head.stock", Head("main", commit))
        git(repository, "stash")
    (repository / "new").mkdir()
    write(repository / "new" / "head.stock", Head("main", D))
    git(repository, "stash", "-u")
    commit_head(repository, Head("main", E))
    git(repository, "reset", "--hard", "HEAD~1")
    assert commits_in_history(find(repository)) == {A, B, C, D, E}


def test_indexes_of_all_worktrees(repository: Path, git: Git) -> None:
    git(repository, "worktree", "add", "../tree")
    write(repository / "head.stock", Head("main", B))
    git(repository, "add", ".")
    write(repository.parent / "tree" / "head.stock", Head("tree", C))
    git(repository.parent / "tree", "add", ".")
    for place in (find(repository), find(repository.parent / "tree")):
        assert commits_in_history(place) == {A, B, C}


def test_a_detached_worktree_and_a_merge_under_way(repository: Path, tmp_path: Path, git: Git) -> None:
    git(repository, "worktree", "add", "--detach", "../tree")
    commit_head(repository.parent / "tree", Head(None, B))
    git(tmp_path, "clone", str(repository), "other")
    commit_head(tmp_path / "other", Head("main", D))
    commit_head(tmp_path / "other", Head("main", C))
    commit_head(repository, Head("main", E))
    git(repository, "reflog", "expire", "--expire=all", "--all")
    git(repository, "-c", "pull.rebase=false", "pull", str(tmp_path / "other"), "main", code=1)
    assert commits_in_history(find(repository)) == {A, B, C, D, E}


def test_folders_that_were_renamed_and_other_stockrooms(repository: Path, git: Git) -> None:
    (repository / "old").mkdir()
    commit_head(repository / "old", Head("main", B))
    git(repository, "mv", "old", "new")
    git(repository, "commit", "-m", "renamed")
    assert commits_in_history(find(repository / "new")) == {A, B}


def test_settings_of_the_user_hide_nothing(repository: Path, git: Git, own_configuration: Path) -> None:
    with own_configuration.open("a") as file:
        file.write("[log]\n follow = true\n showRoot = false\n showSignature = true\n diffMerges = off\n")
        file.write("[core]\n pager = false\n quotePath = true\n[diff]\n noprefix = true\n renames = copies\n")
        file.write("[color]\n ui = always\n")
    commit_head(repository, Head("main", B))
    first = git(repository, "rev-list", "--max-parents=0", "HEAD").strip()
    git(repository, "replace", "--graft", "HEAD")  # pretends that there was nothing before
    assert first
    assert commits_in_history(find(repository)) == {A, B}


def test_versions_that_mean_nothing_count_for_what_they_name(repository: Path, git: Git) -> None:
    (repository / "head.stock").write_text(
        f"<<<<<<< x\r\ncommit {B.upper()}\r\n=======\r\ncommit {C}\r\n>>>>>>> y\r\n"
    )
    git(repository, "commit", "-am", "with markers")
    (repository / "head.stock").write_bytes(b"\xff\x00 commit " + b"d" * 65)
    git(repository, "commit", "-am", "broken")
    assert commits_in_history(find(repository)) == {A, B, C}


def test_sha256_repositories(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "--object-format=sha256")
    commit_head(tmp_path, Head("main", A))
    commit_head(tmp_path, Head("main", B))
    assert commits_in_history(find(tmp_path)) == {A, B}


def test_without_git_nothing_is_named(tmp_path: Path) -> None:
    assert commits_in_history(at(tmp_path)) == set()


def blob(repository: Path, git: Git, name: str) -> Path:
    """The file of a loose object."""
    identity = git(repository, "rev-parse", name).strip()
    return repository / ".git" / "objects" / identity[:2] / identity[2:]


@pytest.mark.parametrize("name", ["HEAD~1", "HEAD~1^{tree}", "HEAD~1:head.stock"])
@pytest.mark.parametrize("lost", [True, False])
def test_a_damaged_repository_is_refused(repository: Path, git: Git, name: str, lost: bool) -> None:
    commit_head(repository, Head("main", B))
    file = blob(repository, git, name)
    file.unlink()
    if not lost:
        file.write_bytes(b"not zlib")
    with pytest.raises(StorageError, match=r"(?s)fsck.*nothing is deleted; then try again"):
        commits_in_history(find(repository))


@pytest.mark.parametrize("content", ["junk\n", f"{'1' * 40}\n"])
def test_a_broken_branch_is_refused(repository: Path, content: str) -> None:
    (repository / ".git" / "refs" / "heads" / "bad").write_text(content)
    with pytest.raises(StorageError, match=r"(?s)bad object refs/heads/bad.*nothing is deleted"):
        commits_in_history(find(repository))


def test_a_partial_clone_fetches_nothing_and_says_what_brings_all(
    repository: Path, tmp_path: Path, git: Git
) -> None:
    commit_head(repository, Head("main", B))
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--filter=blob:none", f"file://{repository}", "part")
    with pytest.raises(StorageError, match="It is a partial clone") as caught:
        commits_in_history(find(tmp_path / "part"))
    command = str(caught.value).partition("of the file: git ")[2].partition("\n")[0]
    git(tmp_path, *shlex.split(command))
    assert commits_in_history(find(tmp_path / "part")) == {A, B}


def test_a_repository_that_is_gone_is_refused(repository: Path) -> None:
    place = find(repository)
    (repository / ".git").rename(repository / "elsewhere")
    with pytest.raises(StorageError, match="is gone, so what its history needs is not known"):
        commits_in_history(place)


def test_what_may_not_be_read_is_refused(repository: Path, git: Git) -> None:
    (repository / ".git" / "FETCH_HEAD").mkdir()
    with pytest.raises(StorageError, match=r"(?s)reading .*FETCH_HEAD failed: .*nothing is deleted"):
        commits_in_history(find(repository))


def test_a_split_index_of_another_worktree(repository: Path, git: Git) -> None:
    git(repository, "worktree", "add", "../tree")
    write(repository.parent / "tree" / "head.stock", Head("tree", C))
    git(repository.parent / "tree", "add", ".")
    git(repository.parent / "tree", "update-index", "--split-index")
    assert commits_in_history(find(repository)) == {A, C}
