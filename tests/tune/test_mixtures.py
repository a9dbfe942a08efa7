"""A mixture of data as a hyperparameter: a step weighs rows by the source they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hopyard.backend import InlineBackend
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

ROWS, RATE, EPOCHS = 60, 0.1, 3
SHARES = [0.1, 0.5, 0.9]
Batch = Mapping[str, torch.Tensor]


def rows(seed: int) -> dict[str, np.ndarray]:
    """Two sources with opposite slopes, so that the best slope for a mixture follows from the shares."""
    random = np.random.default_rng(seed)
    features, source = random.normal(size=(ROWS, 1)).astype("float32"), random.integers(0, 2, ROWS)
    slope = np.where(source == 1, 2.0, -1.0)
    return {"x": features, "source": source, "y": (features[:, 0] * slope).astype("float32")}


def mixed(params: dict[str, Any]) -> TorchEstimator:
    shares = torch.tensor([1 - params["share"], params["share"]])

    def step(model: torch.nn.Module, batch: Batch, weigh: bool = True) -> dict[str, torch.Tensor]:
        errors = (model(batch["x"])[:, 0] - batch["y"]) ** 2
        weights = shares[batch["source"].long()] if weigh else torch.ones_like(errors)
        return {"loss": (errors * weights).sum() / weights.sum(), "weight": weights.sum()}

    def validate_step(model: torch.nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        return step(model, batch, weigh=False)

    torch.manual_seed(0)
    return TorchEstimator(
        model=torch.nn.Linear(1, 1, bias=False),
        step=step,
        validate_step=validate_step,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": RATE},
        batch_size=ROWS,
    )


def by_hand(
    slope: float, share: float, train: dict[str, np.ndarray], val: dict[str, np.ndarray]
) -> list[float]:
    """The validation losses of gradient descent over all rows at once, in float64."""
    x, y = train["x"][:, 0].astype(float), train["y"].astype(float)
    weights = np.where(train["source"] == 1, share, 1 - share)
    losses = []
    for _ in range(EPOCHS):
        slope -= RATE * np.sum(weights * 2 * (slope * x - y) * x) / weights.sum()
        losses.append(float(np.mean((slope * val["x"][:, 0] - val["y"]) ** 2)))
    return losses


def test_each_trial_weighs_the_sources_by_its_own_shares_and_all_are_measured_alike() -> None:
    train, val = rows(0), rows(1)
    search = GridSearch(
        InlineBackend(),
        MemoryStore(),
        mixed,
        {"share": hp_choice(SHARES)},
        num_epochs=EPOCHS,
        feature_columns=["x", "source"],
        label_columns=["y"],
        num_partitions=1,
        progress=False,
    )
    best = search.fit(train, val)
    torch.manual_seed(0)
    slope = torch.nn.Linear(1, 1, bias=False).weight.item()
    expected = {share: by_hand(slope, share, train, val) for share in SHARES}
    for model in best.get_all_models():
        share = model.params["share"]
        np.testing.assert_allclose(model.get_history()["val_loss"], expected.pop(share), rtol=1e-4)
    assert not expected
