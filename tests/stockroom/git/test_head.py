"""``head.stock``: read tolerantly, replaced whole, never guessed at."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import CorruptError, NotWritableError, StorageError, UsageError
from hopyard.stockroom.git import Head, read, write
from hopyard.storage import files
from hopyard.storage.temporary import machine

A, B, C = "a" * 64, "b" * 64, "c" * 64

names = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1).filter(
    lambda name: name == name.strip()
)
heads = st.builds(Head, st.none() | names, st.none() | st.text("0123456789abcdef", min_size=64, max_size=64))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "head.stock"


def test_the_file_is_a_few_plain_lines(file: Path) -> None:
    write(file, Head("main", A))
    title, *lines = file.read_text().splitlines()
    assert title.startswith("# StockRoom: ")
    assert lines == ["branch main", f"commit {A}"]


@given(head=heads)
def test_what_was_written_is_read(head: Head, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("head") / "head.stock"
    write(file, head)
    assert read(file) == head


@given(
    head=heads,
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    space=st.text(" \t", max_size=3),
    mark=st.sampled_from(["", "\ufeff"]),
)
def test_spaces_line_ends_blank_lines_and_a_mark_change_nothing(
    head: Head, end: str, space: str, mark: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("head") / "head.stock"
    write(file, head)
    lines = [space + line + space for line in file.read_text().split("\n")]
    file.write_bytes((mark + (end + space + end + "# a comment" + end).join(lines)).encode())
    assert read(file) == head


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "is empty"), (" \n\t\n", "is empty"), ("branch main\n", "has no line that begins with commit")],
)
def test_a_file_that_was_emptied_or_cut_off_is_no_new_stockroom(file: Path, content: str, said: str) -> None:
    file.write_text(content)
    with pytest.raises(CorruptError, match=rf"{said}, so it does not say.*hopyard stock verify --repair"):
        read(file)
    with pytest.raises(CorruptError, match=said):
        write(file, Head(None, A))
    assert file.read_text() == content


def test_that_nothing_is_committed_yet_is_said(file: Path) -> None:
    write(file, Head("main", None))
    assert file.read_text().splitlines()[1:] == ["branch main", "commit none"]
    assert read(file) == Head("main", None)


def test_a_digest_may_have_capitals(file: Path) -> None:
    file.write_text(f"commit {A.upper()}")
    assert read(file) == Head(None, A)


def test_comments_of_the_user_stay(file: Path) -> None:
    file.write_text(f"# ours, see wiki\nbranch main\ncommit {A}\n# end\n")
    write(file, Head("dev", B))
    assert file.read_text() == f"# ours, see wiki\n# end\nbranch dev\ncommit {B}\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "colour blue\n",
            "line 1 of {file} is 'colour blue', but only 'stockroom ID' (16 hex digits), 'branch NAME', ",
        ),
        (f"{A}\n", "is '" + A + "', but only 'stockroom ID'"),
        ("\n\nbranch\n", "line 3 of {file} is 'branch', but only"),
        ("commit abc\n", "names the commit 'abc' (3 characters), but a commit has 64 hex digits"),
        (f"commit {'g' * 64}\n", "(64 characters), but a commit has 64 hex digits"),
        ("branch a\nbranch b\n", "two lines 'branch ...' ('a' and 'b'), but a working tree is at one branch"),
        ("branch \udcff\n", "is not UTF-8 text: it begins with b'branch"),
    ],
)
def test_what_is_not_understood_is_refused_and_left(file: Path, content: str, said: str) -> None:
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(CorruptError) as caught:
        read(file)
    assert said.format(file=file) in str(caught.value)
    assert "git checkout HEAD -- head.stock" in str(caught.value) or "Remove the wrong line" in str(
        caught.value
    )
    with pytest.raises(CorruptError):
        write(file, Head("main", B))
    assert file.read_bytes() == content.encode(errors="surrogateescape")


CONFLICT = f"""# StockRoom
<<<<<<< HEAD
branch main
commit {A}
||||||| merged common ancestors
commit {C}
=======
branch dev
commit {B}
>>>>>>> dev
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_conflict_of_git_says_how_to_merge(file: Path, end: str) -> None:
    file.write_bytes(CONFLICT.replace("\n", end).encode())
    with pytest.raises(UsageError) as caught:
        read(file)
    said = str(caught.value)
    assert f"{file} holds a merge conflict of git between {A[:12]} and {B[:12]}" in said
    assert "init --git-driver\n    git checkout --merge -- head.stock\n    git add head.stock" in said
    before = file.read_bytes()
    with pytest.raises(UsageError):
        write(file, Head("main", A))
    assert file.read_bytes() == before


def test_a_file_that_is_not_there_cannot_be_read(file: Path) -> None:
    with pytest.raises(StorageError, match=f"reading {file} failed: .*No such file"):
        read(file)


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\u2028b", "a\0", "\udcff"])
def test_a_branch_that_no_line_can_hold_is_refused(file: Path, name: str) -> None:
    write(file, Head("main", A))
    with pytest.raises(UsageError, match=r"the branch name .* cannot stand in head\.stock"):
        write(file, Head(name, A))
    assert read(file) == Head("main", A)


@pytest.mark.parametrize("commit", ["abc", A.upper(), A + "\n"])
def test_a_commit_is_64_hex_digits(file: Path, commit: str) -> None:
    with pytest.raises(UsageError, match="is not a commit: give all its 64 lower-case hex digits"):
        write(file, Head("main", commit))
    assert not file.exists()


def test_mode_stays_and_a_new_file_honours_the_umask(file: Path) -> None:
    before = os.umask(0o027)
    try:
        write(file, Head("main", A))
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o640
    file.chmod(0o664)
    write(file, Head("main", B))
    assert file.stat().st_mode & 0o777 == 0o664


def test_equal_content_is_not_written_anew(file: Path) -> None:
    write(file, Head("main", A))
    before = file.stat()
    write(file, Head("main", A))
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_link_stays_a_link(tmp_path: Path, file: Path) -> None:
    (tmp_path / "data").mkdir()
    file.symlink_to("data/head.stock")
    write(file, Head("main", A))
    assert file.is_symlink()
    assert read(tmp_path / "data" / "head.stock") == Head("main", A)


def test_a_failed_write_leaves_the_old_file_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, Head("main", A))

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(files, "rename", refuse)
    with pytest.raises(NotWritableError, match=f"{file} cannot be written"):
        write(file, Head("main", B))
    assert read(file) == Head("main", A)
    assert [entry.name for entry in file.parent.iterdir()] == ["head.stock"]


def test_only_what_the_dead_left_is_removed(file: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = file.with_name(f"head.stock.tmp-{machine()}-{dead.pid}-0123456789ab")
    alive = file.with_name(f"head.stock.tmp-{machine()}-{os.getpid()}-0123456789ab")
    elsewhere = file.with_name(f"head.stock.tmp-00000000-{dead.pid}-0123456789ab")
    foreign = file.with_name("head.stock.tmp-mine")
    for each in (left, alive, elsewhere, foreign):
        each.write_text("x")
    write(file, Head("main", A))
    assert {entry.name for entry in file.parent.iterdir()} == {
        "head.stock", alive.name, elsewhere.name, foreign.name
    }  # fmt: skip
    for each in (elsewhere, foreign):  # the machine may have been started anew since then, or be another one
        os.utime(each, (0, 0))
    write(file, Head("main", B))
    assert {entry.name for entry in file.parent.iterdir()} == {"head.stock", alive.name, foreign.name}
