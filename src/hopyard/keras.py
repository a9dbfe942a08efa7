"""What users import for Keras 3: :class:`KerasEstimator`, also under its name in Cerebro, ``SparkEstimator``."""

from __future__ import annotations

import importlib.util
import os

from hopyard.errors import MissingExtraError, missing_extra

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name == "keras":
        raise missing_extra("keras", "tensorflow", "hopyard.keras") from error
    _there = [name for name in ("tensorflow", "torch", "jax") if importlib.util.find_spec(name)]
    _instead = f", or set KERAS_BACKEND to what is there: {', '.join(_there)}" if _there else ""
    _chosen = os.environ.get("KERAS_BACKEND") or "tensorflow (or that of ~/.keras/keras.json)"
    raise MissingExtraError(
        f"Keras runs on the backend {_chosen}, which needs the package {error.name!r}, and that is not "
        f"installed. Install it{_instead}."
    ) from error

from hopyard.training.keras.estimator import KerasEstimator

SparkEstimator = KerasEstimator

__all__ = ["KerasEstimator", "SparkEstimator"]
