"""A search in other processes that goes on one epoch at a time, when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os
import sys

import numpy as np
import torch

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, hp_choice, hp_loguniform

GATE = os.path.abspath("gate")


class Gated(torch.nn.Linear):
    def forward(self, rows):
        if self.training:
            gate = os.open(GATE, os.O_RDWR)
            os.read(gate, 1)
            os.close(gate)
        return super().forward(rows)


def estimator(params):
    model = torch.nn.Sequential(Gated(4, params["width"]), torch.nn.Linear(params["width"], 2))
    return TorchEstimator(
        model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), metrics=["accuracy"], batch_size=96,
        optimizer_params={"lr": params["lr"]},
    )


random = np.random.default_rng(0)
features = random.standard_normal((96, 4)).astype("float32")
RandomSearch(
    LocalBackend(num_workers=1), LocalStore("store"), estimator,
    {"width": hp_choice([4, 8]), "lr": hp_loguniform(-3, -1)},
    num_models=int(sys.argv[1]), num_epochs=3, num_partitions=1, evaluation_metric="accuracy", run_id="steps",
    packing="serial", progress=False,
).fit({"features": features, "label": (features.sum(axis=1) > 0).astype("int64")})
"""


TRIED = 3
"""Steps until the first epoch of a new run begins: its trials are tried out before."""


class Driver:
    """Drives the run ``steps``, of trials of three epochs, in the store of a folder.

    Its one worker waits for a step before each epoch of a trial, and at first before it tries them out.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        os.mkfifo(folder / "gate")
        self._gate = os.open(folder / "gate", os.O_RDWR)
        (folder / "search.py").write_text(SCRIPT)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, trials: int, epochs: int = 0) -> None:
        """Begin the run, or go on with it, and do so many epochs."""
        if self._process is not None:
            self._process.communicate(timeout=120)
        self.store.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "search.py", str(trials)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.step(TRIED + epochs)

    def step(self, count: int = 1) -> None:
        os.write(self._gate, b"." * count)

    @property
    def is_alive(self) -> bool:
        """Whether its process goes on."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()
        self._process = None

    def wait(self) -> None:
        """Until it has ended by itself, and well."""
        assert self._process is not None
        said, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, said.decode()
        self._process = None

    def close(self) -> None:
        if self.is_alive:
            self.kill()
        elif self._process is not None:
            self._process.communicate()
        os.close(self._gate)
