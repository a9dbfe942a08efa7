"""Real git in temporary repositories, with a configuration of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hopyard.stockroom.git import Head

from .repositories import A, Git, commit_head, run_git


@pytest.fixture(autouse=True)
def own_configuration(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    needs: Callable[[object, str], None],
) -> Path:
    """Nothing of the user's git reaches a test; the file that is git's global configuration."""
    needs(shutil.which("git"), "git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text(
        "[user]\n name = Ada\n email = ada@example.org\n[init]\n defaultBranch = main\n"
        '[protocol "file"]\n allow = always\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return home / ".gitconfig"


@pytest.fixture
def git() -> Git:
    return run_git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository whose first commit has a file and a ``head.stock`` at commit A."""
    folder = tmp_path / "project"
    folder.mkdir()
    run_git(folder, "init")
    (folder / "train.py").write_text("print(1)\n")
    commit_head(folder, Head("main", A))
    return folder
