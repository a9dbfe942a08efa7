"""A run whose drivers are killed on several machines in turn, on whichever directory the subclass gives."""

from __future__ import annotations

import ast
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from tests.nfs_facts import Clients

# A driver, which is given what lets its machine be at work. Before anything is there it looks for all that will be.
_DRIVER = """
import pickle, sys
import numpy as np, torch
from hopyard.backend import InlineBackend
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, hp_log

at_work, names, moment = pickle.load(sys.stdin.buffer)
random = np.random.default_rng(0)
features = random.standard_normal((64, 4)).astype(np.float32)
data = {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}

def estimator(params):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
    return TorchEstimator(model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), ["accuracy"], 8, {"lr": params["lr"]})

with at_work() as root:
    local = LocalStore(root / "store")
    assert not any(map(local.exists, names))
    assert not local.runs.folders() or not names
    print("ready", flush=True)
    sys.stdin.buffer.read(1)
    store = FaultyStore(local, Fault("kill_after", at=moment)) if moment else local
    run = RandomSearch(InlineBackend(), store, estimator, {"lr": hp_log(1e-3, 1e-1)}, num_models=2, num_epochs=2,
                       num_partitions=2, progress=False).fit(data).run
    assert run.broken_rules() == []
    found = {n: (t.params, t.history, t.best.value, t.best.state.digest) for n, t in run.state.trials.items()}
    print((found, sorted(local.names())), flush=True)
"""

AtWork = Callable[[], AbstractContextManager[Path]]


class _Driver:
    """A process that waits until it is told to fit, with what it saw before."""

    def __init__(self, at_work: AtWork, names: list[str], moment: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(pickle.dumps((at_work, names, moment)))
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"ready\n"

    def fit(self) -> tuple[int, str]:
        """The exit status, and what the process printed."""
        said, _ = self._process.communicate(b"\n", timeout=200)
        return self._process.returncode, said.decode()


class RunsOnNfs:
    """Inherit, and define the fixture ``clients``."""

    @pytest.fixture
    def clients(self) -> Clients:
        raise NotImplementedError

    def test_a_run_whose_driver_is_killed_on_one_machine_and_on_the_other_ends_with_the_same_bits(
        self, clients: Clients, tmp_path: Path
    ) -> None:
        status, said = _Driver(partial(nullcontext, tmp_path / "undisturbed"), [], 0).fit()
        assert status == 0
        expected, names = ast.literal_eval(said)
        drivers = [
            _Driver(at_work, names, moment)
            for at_work, moment in ((clients.a, 12), (clients.b, 5), (clients.a, 7), (clients.b, 0))
        ]
        for driver in drivers[:-1]:
            assert driver.fit() == (-signal.SIGKILL, "")
        status, said = drivers[-1].fit()
        assert status == 0
        assert ast.literal_eval(said)[0] == expected
