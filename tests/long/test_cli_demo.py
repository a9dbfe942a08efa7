"""The demo, as a newcomer types it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import by_level

from hopyard.cli import demo
from hopyard.storage import LocalStore
from hopyard.tune import list_runs, open_run


def test_the_demo_shows_the_best_and_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "TRIALS", 2)
    monkeypatch.setattr(demo, "EPOCHS", 2)
    demo.demo(kill=False, run_id=None, die=False)
    [run_id] = list_runs(LocalStore("experiments/digits"))
    check_shown(capsys.readouterr().out, run_id, 2)


def check_shown(shown: str, run_id: str, trials: int) -> None:
    """Of the run in the folder ``experiments/digits``."""
    run = open_run(LocalStore("experiments/digits"), run_id)
    assert run.status == "completed"
    assert len(run.models) == trials
    assert run.broken_rules() == []
    assert f"Trial {run.best.trial} is the best of {trials}" in shown
    for picture in ("schedule", "curves"):
        [path] = re.findall(rf"experiments/\S+-{picture}\.svg", shown)
        assert Path(path).read_text().startswith("<svg")
    for command in (f"run describe experiments/digits {run_id}", "data inspect experiments/digits"):
        assert f"hopyard {command}" in shown


SMALLER = """
import subprocess, sys
from hopyard.cli import app, demo

run, (program, trials, epochs, *arguments) = subprocess.run, sys.argv
demo.TRIALS, demo.EPOCHS = int(trials), int(epochs)

def run_smaller(command, check):
    assert command[:3] == [sys.executable, "-m", "hopyard"]
    return run([sys.executable, program, trials, epochs, *command[3:]], check=check)

subprocess.run = run_smaller
app(arguments)
"""
"""The command with fewer trials and epochs, also where it starts itself."""


def test_the_demo_killed_halfway_ends_in_the_identical_result(
    tmp_path: Path, hopyard: Any, python: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, epochs = by_level(4, 4, demo.TRIALS), by_level(4, 4, demo.EPOCHS)
    if trials == demo.TRIALS:
        shown = hopyard("demo", "--kill", cwd=tmp_path)
    else:
        (tmp_path / "smaller.py").write_text(SMALLER)
        shown = python("smaller.py", str(trials), str(epochs), "demo", "--kill", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    every = trials * epochs * demo.PARTITIONS * 2
    [units] = re.findall(r"it ended by SIGKILL after ([\d,]+) units", shown.stdout)
    assert 0 < int(units.replace(",", "")) < every
    assert f"{every:,} units, 0 of them done twice" in shown.stdout
    assert shown.stdout.endswith("the result is identical, to the last bit.\n")
    monkeypatch.chdir(tmp_path)
    [killed] = [each for each in list_runs(LocalStore("experiments/digits")) if each.startswith("killed")]
    check_shown(shown.stdout, killed, trials)
    assert open_run(LocalStore("experiments/digits"), killed).best.info.value > 0.9


def test_commands_are_shown_as_this_shell_finds_them(tmp_path: Path, python: Any) -> None:
    code = "from hopyard.cli.demo import _program; print(_program('python'))"
    elsewhere = python("-c", code, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}).stdout.strip()
    assert elsewhere == str(Path(sys.executable).parent / "python")
    folder = str(Path(sys.executable).parent)
    assert python("-c", code, cwd=tmp_path, env={"PATH": folder}).stdout.strip() == "python"
