"""Commands are imported when they run, which nobody sees but by the time that it takes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from hopyard import StockRoom, cli
from hopyard.cli import app, model, stock
from hopyard.cli.commands import Later
from hopyard.stockroom.git import read

PARSERS = {"click", "pydantic", "rich", "typer"}
HEAVY = {"torch", "pandas", "scipy", "sklearn", "polars", "tensorflow", "jax"}
ROOMS = {"hopyard.tune", "hopyard.training", "hopyard.hopper", "hopyard.search", "hopyard.backend"}


def loaded_by(*arguments: str, folder: Path, code: int = 0) -> set[str]:
    """Names of the modules that a new ``hopyard`` imports; of those outside Hopyard the first part."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hopyard", *arguments],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    names = [line.rpartition("|")[2].strip() for line in lines]
    return {".".join(name.split(".")[: 2 if name.startswith("hopyard.") else 1]) for name in names}


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """A stockroom with two branches; their versions of ``head.stock``, and the common one, are beside it."""
    with StockRoom.init(tmp_path / "room") as room:

        def commit(name: str) -> None:
            with room.enable_write(name):
                room.data[name] = np.arange(3)
            copy(room.place.head, tmp_path / name)

        commit("base")
        room.branch("topic")
        commit("ours")
        room.switch("topic")
        commit("theirs")
        room.switch("main")
    return tmp_path


def test_the_merge_driver_imports_no_parser_and_no_room_that_merges_nothing(parted: Path) -> None:
    loaded = loaded_by("stock", "merge-driver", "base", "ours", "theirs", "room/head.stock", folder=parted)
    assert "hopyard.stockroom" in loaded
    assert loaded & {*PARSERS, *ROOMS, *HEAVY} == set()
    merged = read(parted / "ours").commit
    assert merged not in (None, read(parted / "theirs").commit)
    with StockRoom(parted / "room") as room:
        assert set(room.at(str(merged)).data) == {"base", "ours", "theirs"}


def test_the_merge_driver_that_cannot_merge_says_why_and_ends_with_status_1(parted: Path) -> None:
    (parted / "theirs").write_text("nothing that this version understands\n")
    done = subprocess.run(
        [sys.executable, "-m", "hopyard", "stock", "merge-driver", "base", "ours", "theirs", "room/head.stock"],
        cwd=parted, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "head.stock was not merged: " in done.stderr


def test_an_interrupted_merge_driver_ends_with_the_status_of_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Path) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("hopyard.stockroom.session.git_driver.run_driver", interrupted)
    monkeypatch.setattr(
        sys, "argv", ["hopyard", "stock", "merge-driver", "base", "ours", "theirs", "head.stock"]
    )
    with pytest.raises(SystemExit, match=r"^130$"):
        cli.main()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["version"], ["stock", "merge-driver", "base"], ["no-such"]]
)
def test_what_runs_no_command_of_a_room_imports_none(arguments: list[str], tmp_path: Path) -> None:
    code = 0 if arguments[0] in ("--help", "version") else 2
    loaded = loaded_by(*arguments, folder=tmp_path, code=code)
    assert loaded & {*ROOMS, *HEAVY} == set()
    assert ("hopyard.stockroom" in loaded) == (arguments[0] == "stock")


@pytest.mark.parametrize("arguments", [["stock", "log"], ["model", "list"], ["model", "--help"]])
def test_a_command_of_a_stockroom_imports_no_room_that_trains(arguments: list[str], parted: Path) -> None:
    loaded = loaded_by(*arguments, folder=parted / "room")
    assert "hopyard.stockroom" in loaded
    assert loaded & {*ROOMS, *HEAVY} == set()


def later_commands() -> list[Any]:
    groups = [typer.main.get_command(each) for each in (app, stock.app, model.app)]
    return [each for group in groups for each in group.commands.values() if isinstance(each, Later)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("later", later_commands(), ids=lambda later: later.name)
def test_a_command_that_is_imported_later_has_the_help_that_it_is_listed_with(later: Later) -> None:
    paragraph = inspect.cleandoc(later.command.help).partition("\n\n")[0]
    assert later.help == " ".join(paragraph.split())
    assert later.command.name == later.name
    assert not later.command.hidden
    assert [each.name for each in later.params] == [each.name for each in later.command.params]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (
            [""],
            [
                "demo",
                "plan",
                "version",
                "experiment",
                "create",
                "run",
                "data",
                "store",
                "model",
                "web",
                "stock",
            ],
        ),
        (["r"], ["run"]),
        (["run", "re"], ["resume"]),
        (["data", "cache", "l"], ["list"]),
        (["plan", "--batch"], ["--batch-size"]),
        (["stock", "rep"], ["reproduce"]),
        (["model", "re"], ["register", "renumber"]),
        (["stock", "reproduce", "--tr"], ["--trust"]),
    ],
)
def test_a_shell_is_offered_commands_that_are_imported_later(words: list[str], offered: list[str]) -> None:
    given = {
        "_HOPYARD_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("hopyard", *words)),
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": " ".join(("hopyard", *words)),
    }
    assert CliRunner().invoke(app, prog_name="hopyard", env=given).output.split() == offered
