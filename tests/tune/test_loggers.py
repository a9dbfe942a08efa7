"""Callbacks of MLflow and Weights & Biases without their packages; with them: tests/services/tracking."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("name", "package"), [("MLflowCallback", "mlflow"), ("WandbCallback", "wandb")])
def test_a_logger_whose_package_is_missing_says_what_to_install(name: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import hopyard.tune; hopyard.tune.{name}()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"hopyard.errors.MissingExtraError: {name} needs the package" in done.stderr
    assert f"Install it with: pip install 'hopyard[{package}]'" in done.stderr


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import hopyard.tune

    with pytest.raises(AttributeError, match=r"module 'hopyard.tune' has no attribute 'NeptuneCallback'"):
        _ = hopyard.tune.NeptuneCallback
