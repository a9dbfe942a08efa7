"""PyTorch is imported only for those who use it, and its absence says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_common_part_does_not_import_pytorch() -> None:
    assert (
        output_of("import sys, hopyard.training, hopyard.training.metrics; print('torch' in sys.modules)")
        == "False"
    )


def test_without_pytorch_the_face_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
try:
    import hopyard.torch
except ImportError as error:
    print(type(error).__name__, error)
"""
    said = output_of(code)
    assert said.startswith(
        "MissingExtraError hopyard.torch needs the package 'torch', which is not installed."
    )
    assert said.endswith("pip install 'hopyard[torch]'")


def test_a_backend_of_keras_that_is_not_installed_is_named_with_those_that_are() -> None:
    pytest.importorskip("keras")
    code = """
import importlib.util, os, sys
os.environ["KERAS_BACKEND"] = "jax"
sys.modules["jax"] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in ("jax", "tensorflow") else find(name, *more)
try:
    import hopyard.keras
except ImportError as error:
    print(type(error).__name__, error)
"""
    assert output_of(code) == (
        "MissingExtraError Keras runs on the backend jax, which needs the package 'jax', and that is not installed. "
        "Install it, or set KERAS_BACKEND to what is there: torch."
    )


def test_keras_is_not_imported_to_start_a_search_and_its_configured_backend_goes_to_workers(
    tmp_path: Path,
) -> None:
    pytest.importorskip("keras")
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    code = f"""
import os, sys
os.environ.pop("KERAS_BACKEND", None)
os.environ["KERAS_HOME"] = {str(tmp_path)!r}
import hopyard.keras
from hopyard.worker_start import common_env
print(common_env(1)["KERAS_BACKEND"], [name for name in ("keras", "tensorflow", "torch") if name in sys.modules])
"""
    assert output_of(code) == "torch []"
