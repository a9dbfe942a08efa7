"""Public names for PyTorch Lightning: :class:`LightningEstimator`."""

from __future__ import annotations

from importlib.util import find_spec

from hopyard.missing import missing_extra, name_of_elsewhere

if not any(find_spec(name) for name in ("lightning", "pytorch_lightning")):
    raise missing_extra("lightning", "lightning", "hopyard.lightning")

from hopyard.training.lightning.estimator import LightningEstimator

__all__ = ["LightningEstimator"]


def __getattr__(name: str) -> type:
    return name_of_elsewhere(__name__, name, __all__)
