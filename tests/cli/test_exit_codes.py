"""The statuses with which real processes of the command end, as docs/cli.md documents them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Hopyard, run_python
from tests.cli.shapes import document

from hopyard import StockRoom
from hopyard.storage import LocalStore
from hopyard.tune import list_runs


def test_0_if_all_went_well(tmp_path: Path, hopyard: Hopyard) -> None:
    done = hopyard("version", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_1_for_an_error_that_a_user_can_mend(tmp_path: Path, hopyard: Hopyard) -> None:
    done = hopyard("run", "list", "no-such", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("NotFoundError: no-such does not exist here")


def test_1_if_the_working_directory_is_gone(tmp_path: Path) -> None:
    code = """
import os, sys
from hopyard.cli import main
os.mkdir("gone")
os.chdir("gone")
os.rmdir(os.getcwd())
sys.argv[1:] = ["run", "list", "store"]
main()
"""
    done = run_python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "the working directory is gone. Change to one that exists.\n"


def test_1_for_findings_of_a_check(tmp_path: Path, hopyard: Hopyard) -> None:
    (tmp_path / "file").write_text("no store")
    done = hopyard("store", "check", "file", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert document(done.stdout)["ok"] is False


def test_1_if_a_question_is_answered_by_no(tmp_path: Path, hopyard: Hopyard) -> None:
    done = hopyard("stock", "purge", "x", "--key", "1", "--why", "x", cwd=tmp_path, stdin="n\n")
    assert done.returncode == 1
    assert "Aborted" in done.stderr


def test_1_if_nobody_reads_on(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "hopyard", "version", "--json"],
        cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    "arguments", [["version"], ["version", "--json"], ["--help"], ["stock", "log", "--json"]]
)
def test_1_if_the_output_finds_no_space(arguments: list[str], tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as room, room.enable_write("much to show" * 10_000):
        room.experiment["x"] = 1
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hopyard", *arguments],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "standard output cannot be written to (No space left on device), so the rest is not shown; what the command "
        "has done stays done. Make space there, or let it write elsewhere.\n"
    )


@pytest.mark.parametrize(
    "arguments", [["no-such"], ["version", "--no-such"], ["run", "list"], ["plan", "--rows", "x"]]
)
def test_2_for_what_the_command_line_does_not_take(
    arguments: list[str], tmp_path: Path, hopyard: Hopyard
) -> None:
    done = hopyard(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--help' for help." in done.stderr


def test_2_if_nothing_leaks_but_some_cannot_be_compared(tmp_path: Path, hopyard: Hopyard) -> None:
    with StockRoom.init(tmp_path) as room, room.enable_write("two columns"):
        room.data["numbers"] = np.arange(3)
        room.data["texts"] = {"a": "x"}
    done = hopyard("stock", "leaks", "numbers", "texts", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert document(done.stdout)[0]["error"]


def test_130_after_ctrl_c(tmp_path: Path) -> None:
    pipe = tmp_path / "searcher.json"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "hopyard", "plan", "--searcher", str(pipe)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with pipe.open("wb"):  # opens once the command reads the other end
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("ending", "status"),
    [("sys.exit(75)", 75), ("os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM)],
)
def test_run_resume_ends_as_the_script_does(
    ending: str, status: int, script: Path, python: Hopyard, hopyard: Hopyard
) -> None:
    assert python("search.py", cwd=script).returncode == -signal.SIGKILL
    [run_id] = list_runs(LocalStore(script / "store"))
    (script / "search.py").write_text(f"import os, signal, sys\n{ending}\n")
    assert hopyard("run", "resume", "store", run_id, cwd=script).returncode == status
