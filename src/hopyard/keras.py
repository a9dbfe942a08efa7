"""Public names for Keras 3: :class:`KerasEstimator`, also under its name in Cerebro, ``SparkEstimator``.

Keras itself is imported where models are made: in workers, not in a program that only starts a search.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from hopyard.errors import MissingExtraError
from hopyard.missing import missing_extra, name_of_elsewhere
from hopyard.training.keras.estimator import KerasEstimator

_BACKENDS = ("tensorflow", "torch", "jax")


def _backend() -> str:
    """Backend that Keras will choose: of the environment, else of Keras's configuration, else TensorFlow."""
    if chosen := os.environ.get("KERAS_BACKEND"):
        return chosen
    home = os.environ.get("KERAS_HOME")
    directory = Path(home) if home else Path.home() / ".keras"
    with suppress(OSError, ValueError, TypeError, KeyError):  # as Keras: what cannot be read does not count
        return str(json.loads((directory / "keras.json").read_bytes())["backend"])
    return "tensorflow"


def _check() -> None:
    if find_spec("keras") is None:
        raise missing_extra("keras", "tensorflow", "hopyard.keras")
    needed = _backend()
    if needed in _BACKENDS and find_spec(needed) is None:
        there = [name for name in _BACKENDS if find_spec(name)]
        instead = f", or set KERAS_BACKEND to what is there: {', '.join(there)}" if there else ""
        raise MissingExtraError(
            f"Keras runs on the backend {needed}, which needs the package {needed!r}, and that is not installed. "
            f"Install it{instead}."
        )
    # Workers run on it too, for any configuration of their machine.
    os.environ.setdefault("KERAS_BACKEND", needed)


_check()

SparkEstimator = KerasEstimator

__all__ = ["KerasEstimator", "SparkEstimator"]


def __getattr__(name: str) -> type:
    return name_of_elsewhere(__name__, name, __all__)
