"""The demo, as a newcomer types it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from hopyard.storage import LocalStore
from hopyard.tune import list_runs, open_run


def test_the_demo_shows_the_best_of_sixteen_and_what_to_look_at(tmp_path: Path, hopyard: Any) -> None:
    shown = hopyard("demo", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    [run_id] = list_runs(LocalStore(tmp_path / "experiments/digits"))
    run = open_run(LocalStore(tmp_path / "experiments/digits"), run_id)
    assert run.status == "completed"
    assert len(run.models) == 16
    assert run.broken_rules() == []
    assert f"Trial {run.best.trial} is the best of 16" in shown.stdout
    assert run.best.info.value > 0.9
    for picture in ("schedule", "curves"):
        [path] = re.findall(rf"experiments/\S+-{picture}\.png", shown.stdout)
        assert (tmp_path / path).read_bytes().startswith(b"\x89PNG")
    for command in (f"run describe experiments/digits {run_id}", "data inspect experiments/digits"):
        assert f"hopyard {command}" in shown.stdout


def test_the_demo_killed_halfway_ends_in_the_identical_result(tmp_path: Path, hopyard: Any) -> None:
    shown = hopyard("demo", "--kill", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    [units] = re.findall(r"it ended by SIGKILL after ([\d,]+) units", shown.stdout)
    assert 0 < int(units.replace(",", "")) < 1280
    assert "1,280 units, 0 of them done twice" in shown.stdout
    assert shown.stdout.endswith("the result is identical, to the last bit.\n")
    assert len(list_runs(LocalStore(tmp_path / "experiments/digits"))) == 2


def test_commands_are_shown_as_this_shell_finds_them(tmp_path: Path, python: Any) -> None:
    code = "from hopyard.cli.demo import _program; print(_program('python'))"
    elsewhere = python("-c", code, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}).stdout.strip()
    assert elsewhere == str(Path(sys.executable).parent / "python")
    folder = str(Path(sys.executable).parent)
    assert python("-c", code, cwd=tmp_path, env={"PATH": folder}).stdout.strip() == "python"
