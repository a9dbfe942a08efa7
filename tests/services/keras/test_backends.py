"""The tests of Keras again on its other backends: a process has one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.sampling import sample

FILES = [
    f"test_{name}.py"
    for name in ("estimator", "hopping", "keras_trial", "losses", "pack", "sharing", "steps")
]
BOTH = ["keras_guide", "traced", "functions"]
TRIALS = [
    f"(keras_trial and {which})" for which in ("anew", "interrupts and error", "hops and keras_dataset")
]
# JAX compiles for every number of rows, which takes minutes in all.
CHOSEN = {
    "torch": [
        "onnx",
        "(equals_fit and (sgd or two or custom or mixed))",
        "sharing",
        "(added_losses and sample_weight and True)",
        *TRIALS,
        *BOTH,
    ],
    "jax": [
        "(equals_fit and sgd)",
        "(added_losses and sample_weight and False)",
        "test_pack",
        *sample("trials on JAX", TRIALS, quick=1, ci=1),
        *BOTH,
    ],
}


@pytest.mark.parametrize("backend", CHOSEN)
def test_on_another_backend(backend: str, needs: Callable[[object, str], None], tmp_path: Path) -> None:
    needs(find_spec("keras"), "Keras")
    needs(find_spec(backend), backend)
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", " or ".join(CHOSEN[backend])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--basetemp={tmp_path}/pytest", *files],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
