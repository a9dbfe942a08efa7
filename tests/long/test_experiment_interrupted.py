"""An adaptive_asha experiment that is paused, and loses its driver and its machine, has the undisturbed outcome."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.experiment.conftest import TRIAL
from tests.sampling import by_level

from hopyard.storage import LocalStore
from hopyard.tune.asking import ask
from hopyard.tune.listing import find_run

RUN = """
import json, os, sys
from hopyard.backend import LocalBackend
from hopyard.experiment import complete, create
from hopyard.storage import LocalStore

folder, store, data = sys.argv[1:]
if os.path.isdir(data):
    with open(os.path.join(data, "driver"), "w") as file:
        file.write(str(os.getpid()))
run = create(
    complete({
        "entrypoint": "model_def:Trial",
        "data": {"where": data},
        "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": 0, "base": 10}},
        "searcher": {"name": "adaptive_asha", "metric": "loss", "max_trials": 9, "max_length": {"batches": 36},
                     "divisor": 3, "max_concurrent_trials": 3},
        "scheduling_unit": 4,
    }),
    folder, LocalStore(store), LocalBackend(num_workers=2),
)
best = {name: value.tolist() for name, value in run.best.torch().state_dict().items()}
trials = [[trial.number, trial.params, trial.status, trial.history, trial.restarts] for trial in run.state.ranked()]
assert run.broken_rules() == []
print("outcome", json.dumps([trials, best, run.state.sessions]))
"""

EVENTS = """
    def train_batch(self, batch, model):
        import os, pathlib, signal
        where = pathlib.Path(self.context.get_data_config()["where"])
        if where.is_dir():
            with open(where / "batches", "ab") as file:
                file.write(b".")
                count = file.tell()
            for event in sorted(where.glob("at-*")):
                _, number, action = event.name.split("-")
                if count >= int(number):
                    try:
                        event.unlink()
                    except FileNotFoundError:  # the other worker was faster
                        continue
                    if action == "reboot":
                        os.killpg(int((where / "driver").read_text()), signal.SIGKILL)
                        os.kill(os.getpid(), signal.SIGKILL)
                    elif action == "crash":
                        os.kill(int((where / "driver").read_text()), signal.SIGKILL)
                    print(f"event {action}", flush=True)
        x, y = batch
"""


def test_a_pause_a_crash_and_a_reboot_change_nothing(tmp_path: Path) -> None:
    folder, events = tmp_path / "definition", tmp_path / "events"
    folder.mkdir()
    code = TRIAL.replace("    def train_batch(self, batch, model):\n        x, y = batch\n", EVENTS, 1)
    assert "reboot" in code
    (folder / "model_def.py").write_text(code.replace("batch_size=8)", "batch_size=8, shuffle=True)"))
    # An identical configuration: where nothing is, nothing happens.
    undisturbed = outcome(tmp_path, tmp_path / "calm")
    events.mkdir()
    more = by_level(0, 0, 2)  # deaths
    for event in ("at-12-pause", "at-25-crash", "at-38-reboot", *("at-50-crash", "at-60-reboot")[:more]):
        (events / event).touch()
    disturbed, ends = None, []
    while disturbed is None:
        disturbed, status = drive(tmp_path, tmp_path / "store", events)
        ends.append(status)
    assert not list(events.glob("at-*"))
    assert ends == [-signal.SIGKILL] * (2 + more) + [0]
    assert disturbed[2] == 3 + more
    assert disturbed[:2] == undisturbed[:2]


def outcome(root: Path, store: Path) -> Any:
    """The outcome of an experiment to which nothing happens."""
    found, status = drive(root, store, root / "events")
    assert status == 0
    return found


def drive(root: Path, store: Path, events: Path) -> tuple[Any, int]:
    """Run the experiment, or go on with it, until it or its driver ends; a pause is followed by a resumption.

    Returns: the outcome, None if the driver was killed, and its exit status.
    """
    command = [sys.executable, "-c", RUN, str(root / "definition"), str(store), str(events)]
    found, lines, run_id = None, [], ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            lines.append(line)
            if line.startswith("run experiment-"):
                run_id = line.split()[1]
            if "event pause" in line:
                ask(find_run(LocalStore(store), run_id), run_id, {"do": "pause"})
            if "paused by a user's command" in line:
                ask(find_run(LocalStore(store), run_id), run_id, {"do": "resume"})
            if line.startswith("outcome "):
                found = json.loads(line.removeprefix("outcome "))
    assert found is not None or driver.returncode == -signal.SIGKILL, "".join(lines)
    return found, driver.returncode
