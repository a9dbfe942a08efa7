"""Steering a run from another terminal: a driver in a process of its own; the test lets each unit end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hopyard import open_run
from hopyard.cli import app
from hopyard.errors import NotFoundError, RunHeldError, SettingsError, UsageError
from hopyard.hopper.journal import JournalFollower, read_records
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.storage import LocalStore

SCRIPT = """
import os
from pathlib import Path

import numpy as np
import torch

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import ASHA, RandomSearch, hp_log

here = Path(__file__).parent


def wait_for_a_permit(batch, rng):
    if (here / "store/runs").exists():  # not while one batch is checked
        permits = os.open(here / "permits", os.O_RDONLY)
        os.read(permits, 1)
        os.close(permits)
    return batch


def estimator(params):
    return TorchEstimator(
        torch.nn.Linear(4, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(), ["accuracy"], batch_size=100,
        optimizer_params=params, transform=wait_for_a_permit,
    )


random = np.random.default_rng(0)
features = random.standard_normal((64, 4)).astype("float32")
KIND(
    LocalBackend(num_workers=1, device="cpu"), LocalStore(here / "store"), estimator, {"lr": hp_log(0.001, 0.1)},
    num_models=3, num_epochs=2, num_partitions=2, run_id="nightly",
).fit({"features": features, "label": (features.sum(axis=1) > 0).astype("int64")})
"""
UNITS = 2 * 2
"""Training units of a trial; the last partition's validation needs no permit."""


class Driver:
    """The script above, running."""

    def __init__(self, folder: Path, kind: str = "RandomSearch") -> None:
        self.folder = folder
        (folder / "search.py").write_text(SCRIPT.replace("KIND(", f"{kind}("))
        os.mkfifo(folder / "permits")
        self._permits = os.open(folder / "permits", os.O_RDWR)
        self.store = LocalStore(folder / "store")
        self.state = RunState()
        self._started: list[subprocess.Popen[str]] = []
        self.process = self.start("search.py")
        self.folder_of_run = self.store.runs.at("nightly")
        self._tail = JournalFollower(self.folder_of_run)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Python in a process, and a session, of its own."""
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def permit(self, units: int) -> None:
        """Let so many training units end."""
        os.write(self._permits, b"." * units)

    def wait(self, condition: Callable[[RunState], Any]) -> None:
        """Return once the journal leads to a state of which this is true."""
        deadline = time.monotonic() + 120
        while True:
            for record in self._tail.new():
                self.state.apply(record)
            if self.state.header and condition(self.state):
                return
            assert time.monotonic() < deadline, self.process.poll()
            threading.Event().wait(0.02)

    def records(self) -> list[JournalRecord]:
        return list(read_records(self.folder_of_run))

    def ended(self) -> int:
        """The exit status, once it has ended."""
        self.said = self.process.communicate(timeout=120)[0]
        return self.process.returncode

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        os.close(self._permits)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    found = Driver(tmp_path)
    yield found
    found.close()


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``hopyard run <command> store nightly ...`` in this process; its errors come as they are."""
    monkeypatch.chdir(tmp_path)

    def call(command: str, *arguments: str) -> str:
        result = CliRunner().invoke(
            app, ["run", command, "store", "nightly", *arguments], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output

    return call


def list_runs(folder: Path) -> str:
    return CliRunner().invoke(app, ["run", "list", str(folder / "store")], catch_exceptions=False).output


def test_a_run_is_paused_watched_and_resumed_from_another_terminal(
    driver: Driver, run_command: Callable[..., str]
) -> None:
    driver.wait(lambda state: state.trials)  # what was asked for earlier is looked at before
    assert re.search(rf"nightly +running \(.*, pid {driver.process.pid}\)", list_runs(driver.folder))
    with pytest.raises(RunHeldError, match=rf"pid {driver.process.pid}.* and is not paused.*--take-over"):
        run_command("resume")
    assert "run nightly is paused: units under way end" in run_command("pause")
    assert re.search(rf"nightly +paused \(.*, pid {driver.process.pid}\)", list_runs(driver.folder))
    assert "hopyard run resume store nightly" in run_command("describe")
    watcher = driver.start("-m", "hopyard", "run", "watch", "store", "nightly")
    assert watcher.stdout is not None
    assert watcher.stdout.readline().startswith("run nightly on 1 local worker: 2 partitions, 2 epochs")
    driver.permit(3 * UNITS)
    run = open_run(driver.store, "nightly")
    assert run.status == "paused"
    assert run.resume() == "run nightly goes on."
    assert driver.ended() == 0, driver.said
    seen = watcher.communicate(timeout=120)[0]
    assert "a user's command: resume" in seen
    assert len(re.findall(r"trial \d lr=\S+  epoch [12]/2  train_loss", seen)) == 3 * 2
    assert seen.endswith("run nightly: completed\n")
    kinds = [record.get("do", record["r"]) for record in driver.records()]
    assert kinds[kinds.index("pause") : kinds.index("resume")].count("unit") <= 1, "what was under way"
    assert driver.said.count("paused by a user's command") == 1


def test_trials_are_stopped_the_budget_grows_and_the_run_is_stopped(
    driver: Driver, run_command: Callable[..., str]
) -> None:
    driver.wait(lambda state: len(state.trials) == 3)
    with pytest.raises(UsageError, match="the run has no trial 9; it has 3 so far, the first is 0"):
        run_command("stop", "--trial", "9")
    with pytest.raises(SettingsError, match=r"did not extend: .*num_models=2 .*a budget can only grow"):
        run_command("extend", "--num-models", "2")
    assert "extended: num_models=4, num_epochs=2 in all" in run_command("extend", "--num-models", "4")
    assert "trial 1 of run nightly is stopped" in run_command("stop", "--trial", "1")
    driver.permit(1)
    driver.wait(lambda state: state.trials[1].status == "stopped" and state.units)
    with pytest.raises(UsageError, match="trial 1 is stopped already"):
        run_command("stop", "--trial", "1")
    driver.permit(2 * UNITS)
    driver.wait(lambda state: state.best is not None)
    assert "run nightly stops: units under way end first" in run_command("stop")
    driver.permit(1)
    assert driver.ended() == 0, driver.said
    assert re.search(r"nightly +stopped +\d{4}", list_runs(driver.folder))
    trials = open_run(driver.store, "nightly").state.trials
    assert [number for number, trial in trials.items() if trial.status == "stopped"] == [1]
    assert any(trial.running for trial in trials.values())


def test_without_a_driver_an_extension_waits_until_the_run_is_resumed(
    driver: Driver, run_command: Callable[..., str]
) -> None:
    driver.permit(3 * UNITS)
    assert driver.ended() == 0, driver.said
    assert run_command("pause") == "run nightly is not running, so there is nothing to pause.\n"
    assert run_command("stop") == "run nightly is not running, so there is nothing to stop.\n"
    assert run_command("stop", "--trial", "2") == "trial 2 is completed already: there is nothing to stop.\n"
    with pytest.raises(NotFoundError, match="run nightly has no trial 7; it has 3, the first is 0"):
        run_command("stop", "--trial", "7")
    with pytest.raises(SettingsError, match="num_epochs is 1, but run nightly has 2; a budget can only grow"):
        run_command("extend", "--num-epochs", "1")
    with pytest.raises(UsageError, match="extend was given no budget"):
        run_command("extend")
    assert "is finished" in run_command("resume")
    assert "nobody drives run nightly now: the command is kept" in run_command("extend", "--num-models", "4")
    assert "a larger budget or a clone waits for it: hopyard run resume" in run_command("describe")
    driver.permit(2 * UNITS)  # one batch is checked, too
    run_command("resume")
    after = open_run(driver.store, "nightly")
    assert after.status == "completed"
    assert [trial.status for trial in after.state.trials.values()] == ["completed"] * 4
    assert after.broken_rules() == []
    assert "is finished" in run_command("resume")


def test_trials_are_cloned_while_the_run_goes_on_and_after_it_has_ended(
    driver: Driver, run_command: Callable[..., str]
) -> None:
    driver.wait(lambda state: len(state.trials) == 3)
    with pytest.raises(
        UsageError, match="run nightly did not clone: the run has no trial 9; it has 3 so far"
    ):
        run_command("clone", "9")
    with pytest.raises(
        UsageError, match="did not clone: trial 1 has no saved weights: no training unit of it"
    ):
        run_command("clone", "1", "--weights")
    said = "trial 3 of run nightly is a clone of trial 1 with lr=1.0; it begins when a worker is free. lr=1 lies out"
    assert said in " ".join(run_command("clone", "1", "--set", "lr=1").split())
    driver.permit(1)
    driver.wait(lambda state: any(trial.durable.trained for trial in state.trials.values()))
    (begun,) = [number for number, trial in driver.state.trials.items() if trial.durable.trained]
    answer = json.loads(run_command("clone", str(begun), "--weights", "--json"))
    assert (answer["run"], answer["clone_of"], answer["trials"]) == ("nightly", begun, [4])
    assert answer["said"].startswith(
        f"trial 4 of run nightly is a clone of trial {begun} with its weights; it begins"
    )
    driver.permit(5 * UNITS - 2)
    assert driver.ended() == 0, driver.said
    assert "trial 3 begins as a clone of trial 1\n" in driver.said
    assert f"trial 4 begins as a clone of trial {begun}, with its weights\n" in driver.said
    run = open_run(driver.store, "nightly")
    assert {trial.status for trial in run.state.trials.values()} == {"completed"}
    assert run.state.trials[4].history == {k: v[-2:] for k, v in run.state.trials[begun].history.items()}
    lineage = {
        line.split()[0]: line.split()[4:] for line in run_command("describe").splitlines() if "lr=" in line
    }
    assert lineage["3"] == ["1", "lr=1"]
    assert lineage["4"][:2] == [str(begun)] * 2
    answer = json.loads(run_command("clone", "0", "--json"))
    assert (answer["trials"], answer["said"].split(":")[0]) == (None, "nobody drives run nightly now")
    driver.permit(2 * UNITS)  # one batch is checked, too
    run_command("resume")
    after = open_run(driver.store, "nightly").state.trials
    assert after[5].history == after[0].history


def test_ctrl_c_ends_the_driver_of_a_paused_run(driver: Driver, run_command: Callable[..., str]) -> None:
    driver.wait(lambda state: state.trials)  # what was asked for earlier is looked at before
    run_command("pause")
    driver.permit(1)
    driver.wait(lambda state: state.units)
    os.killpg(driver.process.pid, signal.SIGINT)
    assert driver.ended() == -signal.SIGINT
    assert "interrupted after 1 unit" in driver.said
    assert re.search(r"nightly +interrupted +\d{4}", list_runs(driver.folder))
    watched = run_command("watch")
    assert "run nightly: interrupted; go on with it: hopyard run resume store nightly" in watched


def test_a_driver_that_does_not_end_can_be_taken_over(
    driver: Driver, run_command: Callable[..., str]
) -> None:
    driver.wait(lambda state: len(state.trials) == 3)
    os.kill(driver.process.pid, signal.SIGSTOP)
    driver.permit(4 * UNITS)  # the worker of the one that hangs takes some
    run_command("resume", "--take-over")
    assert open_run(driver.store, "nightly").status == "completed"
    os.kill(driver.process.pid, signal.SIGCONT)
    assert driver.ended() == 1
    assert "RunHeldError" in driver.said
    assert len({r["pid"] for r in driver.records() if r["r"] == "session"}) == 2


def test_watching_a_run_that_has_ended_shows_its_table_and_ends(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    [run_id] = [path.name for path in (finished / "store/runs").iterdir()]
    shown = CliRunner().invoke(app, ["run", "watch", "store", run_id], catch_exceptions=False).output
    words = " ".join(shown.split())  # lines may break anywhere
    assert "16 of 16 training units" in words
    assert "4 completed, 2 failed" in words
    assert shown.endswith(f"run {run_id}: completed\n")


@pytest.mark.parametrize("command", ["watch", "pause", "resume", "stop", "compare", "describe"])
def test_an_unknown_run_is_an_error_that_names_the_nearest(
    command: str, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    [run_id] = [path.name for path in (finished / "store/runs").iterdir()]
    with pytest.raises(NotFoundError, match=f"holds no run '{run_id}x'; did you mean '{run_id}'"):
        CliRunner().invoke(app, ["run", command, "store", f"{run_id}x"], catch_exceptions=False)


def test_runs_are_compared_and_exported(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    [run_id] = [path.name for path in (finished / "store/runs").iterdir()]
    shown = CliRunner().invoke(app, ["run", "compare", "store", run_id, run_id], catch_exceptions=False)
    assert len(re.findall(rf"{run_id} +completed +6 ", shown.output)) == 2
    assert "kind=" not in shown.output  # they differ in nothing
    target = str(tmp_path / "trials.jsonl")
    said = CliRunner().invoke(app, ["run", "export", "store", run_id, target], catch_exceptions=False)
    assert said.output == f"run {run_id} is exported to {target}\n"
    assert len(Path(target).read_text().splitlines()) == 6
