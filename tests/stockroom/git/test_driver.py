"""The merge driver, by a real ``git merge``."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.errors import HopyardError, UsageError
from hopyard.stockroom.git import Head, at, find, mark_unmerged, read, write
from hopyard.stockroom.git.driver import ARGUMENTS, install, offer, run

from .repositories import ID, A, B, C, D, Git, commit_head

# Stands in for the command: merges to D, unless the file `refuse` is there.
MERGE = f"""
import sys
from pathlib import Path
from hopyard.errors import UsageError
from hopyard.stockroom.git import Head, facts, find
from hopyard.stockroom.git.driver import run

def merge(base, ours, theirs):
    place = find(Path(sys.argv[4]).parent)
    where = (str(place.root), str(place.objects), place.worktree, facts(place).branch)
    Path("seen").write_text(repr((base, ours, theirs, where)))
    if Path("refuse").exists():
        raise UsageError("3 samples of image conflict")
    return Head(ours.branch, "{D}")

raise SystemExit(run(*map(Path, sys.argv[1:4]), merge, Path(sys.argv[4]).parent))
"""


@pytest.fixture
def parted(repository: Path, git: Git) -> Path:
    """The repository with the driver, and two branches that moved head.stock: main to B, dev to C."""
    place = find(repository)
    install(place)
    script = repository.parent / "merge.py"
    script.write_text(MERGE)
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} {' '.join(ARGUMENTS[2:])}"
    git(repository, "config", "merge.hopyard.driver", command)
    git(repository, "add", ".")
    git(repository, "commit", "-m", "attributes")
    git(repository, "checkout", "-b", "dev")
    commit_head(repository, Head("dev", C))
    git(repository, "checkout", "main")
    commit_head(repository, Head("main", B))
    return repository


def test_git_merge_merges_the_data(parted: Path, git: Git) -> None:
    git(parted, "merge", "dev")
    assert read(parted / "head.stock") == Head("main", D)
    where = (str(parted), str(parted / ".git" / "hopyard" / ID), "main", "main")
    assert (parted / "seen").read_text() == repr(([A], Head("main", B), Head("dev", C), where))
    assert git(parted, "status", "--porcelain", "--untracked-files=no") == ""


def test_a_conflict_is_reported_and_leaves_our_side(parted: Path, git: Git) -> None:
    (parted / "refuse").touch()
    said = git(parted, "merge", "dev", code=1)
    assert "head.stock was not merged: 3 samples of image conflict" in said
    assert f"    hopyard stock merge {C} --base {A}\n    git add head.stock" in said
    assert read(parted / "head.stock") == Head("main", B)
    assert read(parted / "head.stock").unmerged == ((C, A),)
    assert git(parted, "status", "--porcelain", "--untracked-files=no") == "UU head.stock\n"


def test_a_stockroom_in_a_folder_is_named(parted: Path, git: Git) -> None:
    folder = parted / "a b"
    folder.mkdir()
    (folder / ".gitattributes").write_text("head.stock merge=hopyard\n")
    commit_head(folder, Head("main", A))
    git(parted, "checkout", "-b", "x")
    commit_head(folder, Head("x", C))
    git(parted, "checkout", "main")
    commit_head(folder, Head("main", B))
    git(parted, "merge", "x")
    assert read(folder / "head.stock") == Head("main", D)
    assert str(folder) in (parted / "seen").read_text()


def test_a_worktree_merges_into_the_shared_objects(parted: Path, git: Git) -> None:
    git(parted, "worktree", "add", "-b", "feature", "../tree")
    tree = parted.parent / "tree"
    git(tree, "merge", "dev")
    assert read(tree / "head.stock") == Head("main", D)
    where = (str(tree), str(parted / ".git" / "hopyard" / ID), "worktree-tree", "feature")
    assert repr(where) in (tree / "seen").read_text()


def test_without_a_common_version_the_base_says_nothing(tmp_path: Path) -> None:
    base, ours, theirs = tmp_path / "base", tmp_path / "ours", tmp_path / "theirs"
    base.touch()
    write(ours, Head("main", B))
    write(theirs, Head("dev", C))
    seen = []

    def merge(*versions: object) -> Head:
        seen.append(versions)
        return Head("main", D)

    assert run(base, ours, theirs, merge, tmp_path) == 0
    assert seen == [([], Head("main", B), Head("dev", C))]
    assert read(ours) == Head("main", D)
    write(theirs, Head("main", D))
    assert run(base, ours, theirs, merge, tmp_path) == 0
    assert len(seen) == 1  # equal sides need no merge


def test_a_side_that_is_not_understood_is_a_conflict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, ours, theirs = tmp_path / "base", tmp_path / "ours", tmp_path / "theirs"
    base.touch()
    write(ours, Head("main", B))
    theirs.write_text("colour blue\n")

    def merge(*_: object) -> Head:
        raise HopyardError("not reached")

    assert run(base, ours, theirs, merge, tmp_path) == 1
    said = capsys.readouterr().err
    assert "'colour blue'" in said
    assert "hopyard stock merge THE_OTHER_COMMIT" in said
    assert read(ours) == Head("main", B)


def test_what_one_side_has_not_merged_is_unmerged_in_the_result(tmp_path: Path) -> None:
    base, ours, theirs = (tmp_path / name for name in ("base", "ours", "theirs"))
    for file, head in ((base, Head("main", A)), (ours, Head("main", B)), (theirs, Head("dev", C))):
        write(file, head)
    mark_unmerged(base, [(D, None)])
    mark_unmerged(ours, [(D, None), (B, A)])
    mark_unmerged(theirs, [(C, D)])  # and D is merged there
    assert run(base, ours, theirs, lambda *_: Head("main", D), tmp_path) == 0
    assert set(read(ours).unmerged) == {(B, A), (C, D)}
    write(ours, Head("x", A))
    assert set(read(ours).unmerged) == {(B, A), (C, D)}  # until they are merged
    mark_unmerged(ours, [], {B, C})
    assert read(ours).unmerged == ()


# Offering and installing


def test_what_is_offered_is_what_install_does(repository: Path, tmp_path: Path, git: Git) -> None:
    git(tmp_path, "clone", str(repository), "copy")
    by_hand, by_us = find(tmp_path / "copy"), find(repository)
    text = offer(by_hand)
    assert text is not None
    assert f"{shlex.quote(sys.executable)} -m hopyard stock merge-driver %O %A %B %P" in text
    commands = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    subprocess.run(["sh", "-e", "-c", commands], cwd=by_hand.root, check=True)
    install(by_us)
    assert offer(by_hand) is None
    assert offer(by_us) is None
    for name in ("merge.hopyard.driver", "merge.hopyard.name", "merge.hopyard.recursive"):
        assert git(by_us.root, "config", "--local", name) == git(by_hand.root, "config", "--local", name)
    assert (repository / ".gitattributes").read_text() == (by_hand.root / ".gitattributes").read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, b"head.stock merge=hopyard\n"),
        (b"*.bin binary", b"*.bin binary\nhead.stock merge=hopyard\n"),
        (b"*.bin binary\r\n", b"*.bin binary\r\nhead.stock merge=hopyard\r\n"),
        (b"*.stock  merge=hopyard\n", b"*.stock  merge=hopyard\n"),
        (b"* merge=union\n", b"* merge=union\nhead.stock merge=hopyard\n"),
    ],
)
def test_attributes_are_appended_once(repository: Path, before: bytes | None, after: bytes) -> None:
    file = repository / ".gitattributes"
    if before is not None:
        file.write_bytes(before)
    install(find(repository))
    install(find(repository))
    assert file.read_bytes() == after


def test_a_clone_that_has_only_the_attributes_is_offered_the_driver(
    repository: Path, tmp_path: Path, git: Git
) -> None:
    install(find(repository))
    git(repository, "add", ".")
    git(repository, "commit", "-m", "attributes")
    git(tmp_path, "clone", str(repository), "copy")
    assert offer(find(repository)) is None
    assert offer(find(tmp_path / "copy")) is not None


def test_a_stockroom_in_a_folder_has_its_own_attributes(repository: Path) -> None:
    folder = repository / "sub"
    folder.mkdir()
    install(at(folder))
    assert (folder / ".gitattributes").exists()
    assert not (repository / ".gitattributes").exists()


def test_an_attribute_that_overrides_ours_is_an_error(repository: Path) -> None:
    (repository / ".git" / "info" / "attributes").write_text("head.stock merge=union\n")
    with pytest.raises(
        UsageError, match=r"with the attribute merge=union, .*info/attributes.*Remove it there"
    ):
        install(find(repository))


def test_without_git_nothing_is_offered_or_installed(tmp_path: Path) -> None:
    assert offer(at(tmp_path)) is None
    with pytest.raises(UsageError, match=r"is in no git repository.*First: git init"):
        install(at(tmp_path))
