"""Public names for PyTorch: :class:`TorchEstimator`."""

from __future__ import annotations

from hopyard.missing import missing_extra, name_of_later

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_extra("torch", "torch", "hopyard.torch") from error

from hopyard.training.torch.estimator import TorchEstimator

__all__ = ["TorchEstimator"]


def __getattr__(name: str) -> type:
    return name_of_later(__name__, name, __all__)
