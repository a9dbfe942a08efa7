"""The list of quick tests that may take long only becomes shorter."""

from __future__ import annotations

import subprocess
from pathlib import Path

import slow


def commit(root: Path, text: str) -> None:
    (root / slow.NAME).write_text(text)
    subprocess.run(["git", "-C", root, "add", "."], check=True)
    author = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "-C", root, *author, "commit", "-qm", "change"], check=True)


def test_lines_may_go_and_none_may_come(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / slow.NAME).write_text("a\nb\n")
    assert slow.added(tmp_path) == []  # no history
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    commit(tmp_path, "a\nb\nc\n")
    assert slow.added(tmp_path) == []
    (tmp_path / slow.NAME).write_text("a\nc\nd\n")
    assert slow.added(tmp_path) == ["d"]  # not committed yet
    commit(tmp_path, "a\nc\nd\n")
    assert slow.added(tmp_path) == ["d"]  # committed
    commit(tmp_path, "a\n")
    assert slow.added(tmp_path) == []


def test_our_own_list_has_become_no_longer() -> None:
    slow.main()
