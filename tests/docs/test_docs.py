"""The documentation is true: its code runs, its commands exist, all are in it. Rules: tools/pages.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import pages


def test_commands_and_links_exist_and_every_command_is_documented() -> None:
    assert pages.problems() == []


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: str(path.relative_to(pages.ROOT)))
def test_code_runs(path: Path, tmp_path: Path) -> None:
    done = pages.run_page(pages.read_page(path), tmp_path)
    assert done.returncode == 0, done.stdout
