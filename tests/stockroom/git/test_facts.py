"""What git says, and that asking changes nothing."""

from __future__ import annotations

import ast
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import hopyard.stockroom.git as room
from hopyard.errors import StorageError
from hopyard.stockroom.git import (
    GitFacts,
    Head,
    at,
    author,
    commits_in_history,
    facts,
    find,
    finding,
    prepare,
    write,
)
from hopyard.stockroom.git.command import ask, demand
from hopyard.stockroom.git.driver import offer

from .repositories import A, B, Git, commit_head, digests


def test_commit_and_branch(repository: Path, git: Git) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()
    assert facts(find(repository)) == GitFacts(commit, "main", False)
    git(repository, "checkout", "--detach")
    assert facts(find(repository)) == GitFacts(commit, None, False)
    git(repository, "checkout", "-b", "a/ü")
    assert facts(find(repository)).branch == "a/ü"


def test_a_repository_without_commits(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init")
    assert facts(at(tmp_path)) == GitFacts(None, "main", False)
    assert commits_in_history(at(tmp_path)) == set()


def test_dirty_means_tracked_files_other_than_the_head(repository: Path, git: Git) -> None:
    place = find(repository)
    write(place.head, Head("main", B))
    (repository / "untracked.txt").write_text("x")
    assert facts(place).dirty is False
    (repository / "sub").mkdir()
    (repository / "train.py").write_text("print(2)\n")
    assert facts(place).dirty is True
    assert facts(at(repository / "sub")).dirty is True
    git(repository, "add", "train.py")
    assert facts(place).dirty is True


def test_no_time_leaves_only_dirty_unknown(repository: Path) -> None:
    known = facts(find(repository))
    assert facts(find(repository), seconds=0.0) == GitFacts(known.commit, known.branch, None)


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_git_that_does_not_end_is_killed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    place = find(repository)
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/process\nexec sleep 600\n")
    program.chmod(0o755)
    os.mkfifo(tmp_path / "process")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with suppress(ZeroDivisionError), finding(place, seconds=0.1) as found:
        process = int((tmp_path / "process").read_text())  # waits until it runs
        if is_asked:
            monkeypatch.undo()
            assert found() == replace(facts(place), dirty=None)
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_without_git_there_are_no_facts(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert facts(at(tmp_path)) == GitFacts(None, None, None)
    monkeypatch.setenv("PATH", "/nowhere")
    place = find(repository)
    assert facts(place) == GitFacts(None, None, None)
    assert author(place)
    assert offer(place) is None
    with pytest.raises(
        StorageError, match=r"no program git is on the PATH\. Install git.*\n.*nothing is deleted"
    ):
        commits_in_history(place)


def test_a_repository_of_another_user_says_what_to_run(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    said = f"belongs to another user.*git config --global --add safe.directory {repository}"
    with pytest.raises(StorageError, match=said):
        facts(find(repository))
    with pytest.raises(StorageError, match=f"(?s){said}.*nothing is deleted"):
        commits_in_history(find(repository))


# Who writes


def test_the_author_is_the_one_of_git(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, git: Git
) -> None:
    assert author(find(repository)) == author(at(tmp_path)) == "Ada <ada@example.org>"
    git(repository, "config", "user.name", "Ada L. Ü")
    assert author(find(repository)) == "Ada L. Ü <ada@example.org>"
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "other@example.org")
    assert author(find(repository)) == "Ada L. Ü <other@example.org>"


def test_where_git_knows_nobody_the_author_is_user_and_host(
    repository: Path, own_configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_configuration.write_text("[user]\n useConfigOnly = true\n")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "engine")
    assert author(find(repository)) == "ada <ada@engine>"
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada")
    assert author(find(repository)) == "Ada <ada@engine>"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "ada@example.org")
    assert author(find(repository)) == "Ada <ada@example.org>"


def test_a_user_without_a_name_has_a_number(
    repository: Path, own_configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_configuration.write_text("[user]\n useConfigOnly = true\n")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    assert author(find(repository)).startswith("uid-54321 <uid-54321@")


# Nothing of the user's is changed


def test_asking_changes_no_file_of_git_or_the_user(repository: Path, git: Git) -> None:
    commit_head(repository, Head("main", B))
    git(repository, "worktree", "add", "../tree")
    (repository / "train.py").touch()  # the index is stale: git status would like to refresh it
    (repository / "head.stock").touch()
    places = (find(repository), find(repository.parent / "tree"), at(repository / "sub"))
    for place in places:
        prepare(place)
    before, tree = digests(repository), digests(repository.parent / "tree")
    for place in places:
        if place.root.is_dir():
            facts(place), author(place), offer(place)
            assert commits_in_history(place) == {A, B}
    assert digests(repository) == before
    assert digests(repository.parent / "tree") == tree


@pytest.mark.parametrize(
    "arguments",
    [
        ("commit", "-m", "x"),
        ("symbolic-ref", "HEAD", "refs/heads/x"),
        ("config", "user.name", "x"),
        ("gc",),
        (),
    ],
)
def test_other_commands_of_git_are_never_run(repository: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="not among the commands that Hopyard may run"):
        ask(repository, *arguments)


def test_git_is_run_in_one_place() -> None:
    folder = Path(room.__file__).parent.parent
    running = {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "subprocess" in (getattr(node, "module", None), *(alias.name for alias in node.names))
    }
    assert "git/command.py" in running
    assert {name for name in running if name.startswith("git/")} == {"git/command.py"}


def test_a_failure_brings_what_git_said(repository: Path) -> None:
    with pytest.raises(StorageError, match=r"(?s)git rev-parse failed in .*: fatal: .*git -C .* fsck"):
        demand(repository, "rev-parse", "--verify", "no-such-name")
