"""torchmetrics objects, merged over partitions, agree with the metrics by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hopyard.torch import TorchEstimator


@pytest.mark.long
def test_torchmetrics_objects_agree_with_ours_when_merged(chain: Any) -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    regression = pytest.importorskip("torchmetrics.regression")

    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            nn.Linear(12, 3), torch.optim.SGD, nn.CrossEntropyLoss(), batch_size=32,
            metrics=["accuracy", "auc", classification.MulticlassAccuracy(3, average="micro"),
                     classification.MulticlassAUROC(3)],
        )  # fmt: skip

    units = chain(gen)
    units.train(0, 0)
    values = units.validate(0)
    assert values["MulticlassAccuracy"] == pytest.approx(values["accuracy"], rel=1e-6)
    assert values["MulticlassAUROC"] == pytest.approx(values["auc"], rel=1e-5)

    def regress(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            nn.Linear(12, 1), torch.optim.SGD, nn.MSELoss(), batch_size=32, optimizer_params={"lr": 0.01},
            metrics=["mse", regression.MeanSquaredError(), regression.PearsonCorrCoef()],
        )  # fmt: skip

    units = chain(regress, labels=("target",), folder="regress")
    units.train(0, 0)
    values = units.validate(0)
    assert values["MeanSquaredError"] == pytest.approx(values["mse"], rel=1e-5)
    assert -1 <= values["PearsonCorrCoef"] <= 1
