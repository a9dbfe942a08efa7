"""Trunks and estimators that tests of trunks share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import nn

from hopyard.torch import TorchEstimator

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file

WIDTH, HIDDEN, CLASSES, BATCH = 12, 64, 3, 32


class Features(nn.Module):
    """A user's own trunk; ``gives`` says in which form."""

    def __init__(self, gives: str = "tensor") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(WIDTH, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.drop = nn.Dropout(0.5)
        self.gives = gives

    def forward(self, features: torch.Tensor) -> Any:
        hidden = self.drop(torch.relu(self.norm(self.linear(features))))
        if self.gives == "tensor":
            return hidden
        return (hidden, features) if self.gives == "tuple" else {"hidden": hidden, "raw": features}


class Head(nn.Module):
    """Of two inputs, by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN + WIDTH, CLASSES)

    def forward(self, hidden: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat([hidden, raw], dim=1))


def estimator(trunk: nn.Module | None, head: nn.Module | None = None, **arguments: Any) -> TorchEstimator:
    given: dict[str, Any] = {
        "optimizer": torch.optim.SGD, "optimizer_params": {"lr": 0.05, "momentum": 0.9},
        "loss": nn.CrossEntropyLoss(), "metrics": ["accuracy"], "batch_size": BATCH, "trunk": trunk,
    }  # fmt: skip
    return TorchEstimator(head or nn.Linear(HIDDEN, CLASSES), **(given | arguments))


def with_features(params: dict[str, Any]) -> TorchEstimator:
    return estimator(Features(), optimizer_params={"lr": params.get("lr", 0.05), "momentum": 0.9})


def function(name: str, forward: Callable[[nn.Module, torch.Tensor], Any], **attributes: Any) -> nn.Module:
    """A trunk without weights that does this, in evaluation mode."""
    made = type(name, (nn.Module,), {"forward": forward})().eval()
    for key, value in attributes.items():
        setattr(made, key, value)
    return made


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(two) and all(torch.equal(one[name], two[name]) for name in one)


def rows(n: int = 400) -> dict[str, Any]:
    random = np.random.default_rng(1)
    features = random.standard_normal((n, WIDTH)).astype(np.float32)
    return {"features": features, "label": np.digitize(features[:, 0] + features[:, 1], [-0.5, 0.5])}
