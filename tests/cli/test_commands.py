"""What commands show, and what they say when something is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from hopyard import __version__
from hopyard.cli import app
from hopyard.errors import NotFoundError
from hopyard.storage import LocalStore
from hopyard.tune import list_runs


@pytest.fixture
def run_id(finished: Path) -> str:
    [found] = list_runs(LocalStore(finished / "store"))
    return found


@pytest.fixture
def invoke(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in this process; its errors come as they are."""
    monkeypatch.chdir(finished)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_version(invoke: Any) -> None:
    assert invoke("version") == f"{__version__}\n"


def test_list_shows_a_line_per_run(invoke: Any, run_id: str) -> None:
    title, line = invoke("run", "list", "store").splitlines()
    assert title.split() == ["run", "status", "begun", "trials", "best"]
    assert re.fullmatch(
        rf"{run_id} +completed +\d{{4}}-\d\d-\d\d \d\d:\d\d +6 +val_accuracy [01]\.\d{{4}} *", line
    )


def test_list_says_which_stores_below_a_folder_hold_runs(invoke: Any) -> None:
    assert "holds no runs. These do: store." in invoke("run", "list", ".")


def test_describe_shows_leaderboard_failures_and_the_rules(invoke: Any, run_id: str) -> None:
    shown = invoke("run", "describe", "store", run_id)
    assert f"run {run_id}: completed, grid search, seed 0" in shown
    assert "search space: {'width': {'hp_choice': [4, 3, 8]}" in shown
    assert "6 trials (4 completed, 2 failed), 2 epochs over 2 partitions" in shown
    assert len(re.findall(r"trial \d failed: ValueError: three is not enough", shown)) == 2
    assert "in estimator" in shown
    assert re.search(
        r"\d+ units on 1 worker in \d+\.\d s, busy \d+% of the time; 0 hops between workers", shown
    )
    assert re.search(
        r"states that moved: 0\.0 MB read by workers that lacked them, \d\.\d MB written\n"
        r"data that stayed: \d\.\d MB of batches read by workers from their partitions\n",
        shown,
    )
    assert "one unit at a time: yes" in shown
    assert "hopyard run resume" not in shown


def test_describe_shows_as_many_trials_as_asked(invoke: Any, run_id: str) -> None:
    shown = invoke("run", "describe", "store", run_id, "--most", "1")
    assert "and 5 more" in shown


def test_lines_fit_a_terminal_of_80_columns(
    invoke: Any, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = re.search(r"(?s)trial +val_accuracy.*?\n\n", invoke("run", "describe", "store", run_id))
    assert table is not None
    assert len(table[0].strip().splitlines()) == 7
    assert max(len(line.rstrip()) for line in table[0].splitlines()) <= 80


def test_inspect_shows_both_splits_of_a_store(invoke: Any) -> None:
    shown = invoke("data", "inspect", "store")
    assert "train: 72 rows in 24 row groups" in shown
    assert "val: 24 rows" in shown
    assert re.search(r"features +float32\[4\] .* mapped", shown)


def test_inspect_shows_parquet_as_it_is(invoke: Any, tmp_path: Path) -> None:
    pd.DataFrame({"age": [1, 2, 3]}).to_parquet(tmp_path / "people.parquet")
    shown = invoke("data", "inspect", str(tmp_path / "people.parquet"))
    assert "3 rows in 1 row groups, 1 file" in shown
    assert "Parquet files as they are, without a manifest" in shown


@pytest.mark.parametrize(
    "arguments", [("list", "nowhere"), ("describe", "nowhere", "x"), ("resume", "nowhere", "x")]
)
def test_a_store_that_is_not_there_is_an_error_and_is_not_made(
    arguments: tuple[str, ...], invoke: Any
) -> None:
    with pytest.raises(
        NotFoundError, match=r"nowhere does not exist here \(.*\)\. Give the path that LocalStore"
    ):
        invoke("run", *arguments)
    assert not Path("nowhere").exists()


def test_a_file_is_no_store(invoke: Any) -> None:
    Path("script.py").touch()
    with pytest.raises(NotFoundError, match=r"script\.py is no directory\. Give the path that LocalStore"):
        invoke("run", "list", "script.py")


def test_an_unknown_run_is_an_error_that_names_the_nearest(invoke: Any, run_id: str) -> None:
    with pytest.raises(NotFoundError, match=f"holds no run '{run_id}x'; did you mean '{run_id}'"):
        invoke("run", "describe", "store", f"{run_id}x")


def test_an_error_ends_the_command_with_its_message_alone(finished: Path, hopyard: Any) -> None:
    ended = hopyard("data", "inspect", "nowhere", cwd=finished)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("NotFoundError: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run describe store ", {"RUN"}),
        ("run pause store RUN", {"RUN"}),
        ("run compare store RUN ", {"RUN"}),
        ("run describe nowhere ", set()),
        ("run describe store x", set()),
        ("run clone store RUN ", {"0", "1", "2", "3", "4", "5"}),
        ("run stop store RUN --trial 2", {"2"}),
        ("run clone store another ", set()),
        ("model register net --store store --run ", {"RUN"}),
    ],
)
def test_a_shell_is_offered_runs_and_trials(
    words: str, offered: set[str], run_id: str, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    given = ["hopyard", *words.replace("RUN", run_id).split(" ")]
    env = {
        "_HOPYARD_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(given),
        "COMP_CWORD": str(len(given) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(given),
    }
    found = CliRunner().invoke(app, prog_name="hopyard", env=env).output.split()
    assert set(found) == {run_id if each == "RUN" else each for each in offered}
