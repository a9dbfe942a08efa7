"""Ctrl-C at any moment, failing journals, trials that all fail: nothing is lost, nobody is left running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hopyard.backend import LocalBackend
from hopyard.errors import StorageError, TrialError
from hopyard.hopper.journal import Journal
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

SCRIPT = """
import os, sys
import numpy as np, torch
from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, RandomSearch, hp_log

random = np.random.default_rng(0)
features = random.standard_normal((400, 4)).astype(np.float32)
data = {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}

def estimator(params):
    return TorchEstimator(torch.nn.Linear(4, 2), torch.optim.Adam, torch.nn.CrossEntropyLoss(), ["accuracy"], 8,
                          {"lr": params["lr"]})

class Tell(Callback):
    def on_epoch_end(self, trial, epoch, metrics):
        print("epoch", trial.number, epoch, flush=True)

RandomSearch(LocalBackend(num_workers=2, device="cpu"), LocalStore(sys.argv[1]), estimator,
             {"lr": hp_log(1e-3, 1e-1)}, num_models=6, num_epochs=int(sys.argv[2]), callbacks=[Tell()],
             run_id="r", progress=False).fit(data)
"""


def children_of(pid: int) -> set[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return {int(line) for line in found.stdout.split()}


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_ctrl_c_ends_the_workers_gives_the_run_back_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "500"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.startswith("epoch 3 2"):
                break
        workers = children_of(driver.pid)
        driver.send_signal(signal.SIGINT)
        said = driver.stdout.read()
    assert driver.returncode == -signal.SIGINT or driver.returncode == 130
    assert "run the same script again to go on (run r)." in said
    assert len(workers) >= 2
    assert all(is_gone(pid) for pid in workers)
    journal = Journal(LocalStore(tmp_path).runs.at("r"))  # nobody holds it
    journal.close()
    assert sum(record["r"] == "unit" for record in journal.records) > 20


@pytest.mark.parametrize("at", [1, 2, 3, 5, 9, 14])
def test_a_journal_that_cannot_be_written_ends_the_run_which_then_goes_on(
    at: int, search: Any, make_rows: Any, contents_of: Any
) -> None:
    """With a metric whose states are too large for the journal, so that they are in files."""

    def with_auc(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0)), torch.optim.Adam,
            torch.nn.BCEWithLogitsLoss(), ["auc"], 64, {"lr": params["lr"]},
        )  # fmt: skip

    data = make_rows(2400)
    data["label"] = data["label"].astype(np.float32)
    arguments = {"estimator_gen_fn": with_auc, "evaluation_metric": "auc", "num_models": 2}
    whole = search(MemoryStore(), **arguments).fit(data)
    store = MemoryStore()
    broken = FaultyStore(store, Fault("error", at=at, match="runs/*/journal/*", times=1))
    with contextlib.suppress(StorageError):  # a fast run has fewer segments
        search(broken, **arguments).fit(data)
    model = search(store, **arguments).fit(data)
    assert contents_of(model.run) == contents_of(whole.run)
    parts = [unit["m"][0] for unit in model.run.units() if unit["ph"] == "validate"]
    assert any("ref" in part.get("states", {}) for part in parts)
    files = {
        entry.name.rpartition("/")[2] for entry in store.list("runs") if entry.name.endswith(".safetensors")
    }
    states = [state for trial in model.run.state.trials.values() for state in trial.live_states()]
    assert files == {name for state in states for name in state.files}


def test_trials_that_all_fail_alike_end_the_run_while_others_are_under_way(
    make_rows: Any, tmp_path: Path
) -> None:
    def failing(params: dict[str, Any]) -> TorchEstimator:
        def transform(batch: Any, rng: Any) -> Any:
            if (tmp_path / "runs").exists():  # not yet while one batch is checked
                if params["x"] >= 3:
                    (tmp_path / f"pid-{os.getpid()}").touch()
                    threading.Event().wait(60)  # a unit that takes long
                raise ValueError("the sensor file is missing")
            return batch

        return TorchEstimator(
            torch.nn.Linear(4, 2), torch.optim.SGD, torch.nn.CrossEntropyLoss(),
            optimizer_params={"lr": 0.1}, transform=transform,
        )  # fmt: skip

    space = {"x": hp_choice([0, 1, 2, 3, 4])}
    search = GridSearch(
        LocalBackend(num_workers=3, device="cpu"), LocalStore(tmp_path), failing, space, 1, progress=False
    )
    began = time.monotonic()
    with pytest.raises(TrialError, match="the first 3 trials fail alike, before any unit is done") as caught:
        search.fit(make_rows())
    assert time.monotonic() - began < 50
    assert "the sensor file is missing" in str(caught.value)
    assert all(is_gone(int(path.name.removeprefix("pid-"))) for path in tmp_path.glob("pid-*"))
