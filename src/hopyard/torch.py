"""Public names for PyTorch: :class:`TorchEstimator`."""

from __future__ import annotations

from importlib.util import find_spec

from hopyard.missing import missing_extra, name_of_elsewhere

if find_spec("torch") is None:
    raise missing_extra("torch", "torch", "hopyard.torch")

from hopyard.training.torch.estimator import TorchEstimator

__all__ = ["TorchEstimator"]


def __getattr__(name: str) -> type:
    return name_of_elsewhere(__name__, name, __all__)
