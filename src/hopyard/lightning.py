"""What users import for PyTorch Lightning: :class:`LightningEstimator`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NoReturn

from hopyard.errors import missing_extra, no_name

if not any(find_spec(name) for name in ("lightning", "pytorch_lightning")):
    raise missing_extra("lightning", "lightning", "hopyard.lightning")

from hopyard.training.lightning.estimator import LightningEstimator

__all__ = ["LightningEstimator"]


def __getattr__(name: str) -> NoReturn:
    raise no_name(__name__, name, __all__)
