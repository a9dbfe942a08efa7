"""A store with runs as a user's script leaves them, and the command as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

SCRIPT = '''
"""A search over 96 rows; dies by SIGKILL after the first epoch until the file `lived` exists."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

from hopyard.backend import InlineBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, GridSearch, hp_choice


class Die(Callback):
    def on_epoch_end(self, trial, epoch, metrics):
        if not Path("lived").exists():
            Path("lived").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def estimator(params):
    if params["width"] == 3:
        raise ValueError("three is not enough")
    model = torch.nn.Sequential(torch.nn.Linear(4, params["width"]), torch.nn.Linear(params["width"], 2))
    return TorchEstimator(
        model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), metrics=["accuracy"], batch_size=8,
        optimizer_params={"lr": params["lr"]},
    )


random = np.random.default_rng(0)
features = random.standard_normal((96, 4)).astype("float32")
model = GridSearch(
    InlineBackend(), LocalStore("store"), estimator, {"width": hp_choice([4, 3, 8]), "lr": hp_choice([0.1, 0.001])},
    num_epochs=2, num_partitions=2, evaluation_metric="accuracy",
    fresh="--fresh" in sys.argv, seed=int(os.environ.get("SEED", "0")), callbacks=[Die()],
).fit({"features": features, "label": (features.sum(axis=1) > 0).astype("int64")})
print("the best:", model.info.value)
'''

Hopyard = Callable[..., subprocess.CompletedProcess[str]]


def run_python(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **(env or {})}
    environ.pop("COLUMNS", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environ,
        input=stdin,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="session")
def python() -> Hopyard:
    """Python in a process of its own: ``python("script.py", cwd=folder)``."""
    return run_python


@pytest.fixture(scope="session")
def hopyard() -> Hopyard:
    """The command in a process of its own: ``hopyard("run", "list", "store", cwd=folder)``."""
    return lambda *arguments, **options: run_python("-m", "hopyard", *arguments, **options)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script above as ``search.py``, in a folder of its own."""
    (tmp_path / "search.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the script was killed after an epoch. Tests leave it so."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "search.py").write_text(SCRIPT)
    assert run_python("search.py", cwd=folder).returncode == -signal.SIGKILL
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the script ran undisturbed: its store is ``store``."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "search.py").write_text(SCRIPT)
    (folder / "lived").touch()
    done = run_python("search.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder
