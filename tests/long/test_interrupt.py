"""Ctrl-C in the middle: a word, the shell's exit code, no worker left, and the same script goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import numpy as np, torch
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, RandomSearch, hp_choice, hp_log

folder, backend, wait = sys.argv[1:]
random = np.random.default_rng(0)
features = random.standard_normal((64, 4)).astype(np.float32)
data = {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}

def estimator(params):
    return TorchEstimator(torch.nn.Linear(4, 2), torch.optim.Adam, torch.nn.CrossEntropyLoss(), ["accuracy"], 8, params)

class Wait(Callback):
    def on_epoch_end(self, trial, epoch, metrics):
        if wait == "wait":
            print("waiting", flush=True)
            sys.stdin.read()

used = InlineBackend() if backend == "inline" else LocalBackend(num_workers=2, device="cpu")
model = RandomSearch(used, LocalStore(folder), estimator, {"lr": hp_log(1e-3, 1e-1)}, num_models=3, num_epochs=3,
                     num_partitions=2, progress=False, callbacks=[Wait()]).fit(data)
print("best", model.trial, model.info.value, model.run.state.units, model.run.broken_rules())
"""


def test_a_run_that_is_interrupted_says_so_and_goes_on_when_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # Ctrl-C reaches all processes of the terminal, so the workers too.
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "store", "local", "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert next(line for line in process.stdout if line == "waiting\n")
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert re.search(
        r"interrupted after \d+ units; run the same script again to go on \(run random-\w+\)\.", said
    )
    assert errors.rstrip().endswith("KeyboardInterrupt")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    again = [sys.executable, script, tmp_path / "store", "inline", "go"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=120, check=True)
    first, last = done.stdout.splitlines()
    assert re.match(r"run random-\w+ goes on after \d+ units\.", first)
    assert last.endswith(f" {3 * 3 * (2 + 2)} []")
