"""The tests of Keras again on its other backends: a process has one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

# JAX compiles for every number of rows, which takes minutes in all.
WHOLE = "keras_guide or traced or (added_losses and sample_weight and True) or ignored_class or functions"
TRIALS = "(keras_trial and (anew or (interrupts and error) or (hops and keras_dataset)))"
CHOSEN = {
    "torch": f"onnx or (equals_fit and (sgd or two or custom or mixed)) or sharing or {TRIALS} or {WHOLE}",
    "jax": f"(equals_fit and sgd) or {TRIALS} or {WHOLE}",
}


@pytest.mark.parametrize("backend", CHOSEN)
def test_on_another_backend(backend: str, needs: Callable[[object, str], None], tmp_path: Path) -> None:
    needs(find_spec("keras"), "Keras")
    needs(find_spec(backend), backend)
    folder = Path(__file__).parent
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", CHOSEN[backend]]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--basetemp={tmp_path}/pytest", str(folder)],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
