"""What users import for Keras 3: :class:`KerasEstimator`, also under its name in Cerebro, ``SparkEstimator``."""

from __future__ import annotations

from hopyard.errors import missing_extra

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_extra("keras", "tensorflow", "hopyard.keras") from error

from hopyard.training.keras.estimator import KerasEstimator

SparkEstimator = KerasEstimator

__all__ = ["KerasEstimator", "SparkEstimator"]
