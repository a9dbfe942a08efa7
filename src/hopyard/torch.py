"""What users import for PyTorch: :class:`TorchEstimator`."""

from __future__ import annotations

from typing import NoReturn

from hopyard.errors import missing_extra, no_name

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_extra("torch", "torch", "hopyard.torch") from error

from hopyard.training.torch.estimator import TorchEstimator

__all__ = ["TorchEstimator"]


def __getattr__(name: str) -> NoReturn:
    raise no_name(__name__, name, __all__)
