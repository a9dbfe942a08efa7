"""Where a trial starts: its seed, or a saved model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.torch import TorchEstimator
from hopyard.training.build import build_replica
from hopyard.training.check import check_trial
from hopyard.training.program import Program


def linear(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(nn.Linear(4, 3), torch.optim.SGD, nn.CrossEntropyLoss())


def test_trials_start_from_different_weights_and_repeat() -> None:
    program = Program(linear, ("x",), ("class",), None, None, 1, 1, 7, "cpu")
    first, again, other = (build_replica(program, {}, trial).module.weight for trial in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_model_made_outside_the_function_is_refused_by_the_check() -> None:
    whole, part = nn.Linear(4, 3), nn.Linear(4, 3)
    frozen = nn.Linear(4, 4).requires_grad_(False)
    models: list[Callable[[], nn.Module]] = [
        lambda: whole,
        lambda: nn.Sequential(nn.ReLU(), part),
        lambda: nn.Sequential(frozen, nn.Linear(4, 3)),
    ]
    batch = {"x": np.ones((8, 4)), "y": np.arange(8) % 3}
    found = []
    for make in models:

        def gen(params: dict[str, Any], make: Callable[[], nn.Module] = make) -> TorchEstimator:
            return TorchEstimator(make(), torch.optim.SGD, nn.CrossEntropyLoss())

        evidence = check_trial(
            Program(gen, ("x",), ("y",), None, None, 1, 1, 7, "cpu"), {}, 0, batch
        ).evidence
        found.append(None if evidence is None else evidence.message)
    assert "'weight' an earlier call returned too, so trials would train each other's weights" in str(
        found[0]
    )
    assert "'1.weight' an earlier call returned too" in str(found[1])
    assert found[2] is None


def test_init_from_starts_every_trial_from_a_saved_model(chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            nn.Linear(12, params["classes"]), torch.optim.SGD, nn.CrossEntropyLoss(), batch_size=32
        )

    units = chain(gen, classes=3)
    units.train(0, 0, last=True)
    old = units.program
    program = Program(
        gen, old.feature_columns, old.label_columns, old.train, None, 3, 1, 0, "cpu",
        init_from=(units.store.at("00000"), units.ref.part("model")),
    )  # fmt: skip
    expected = units.state()["model"]["weight"]
    assert np.array_equal(
        build_replica(program, {"classes": 3}, 9).state()["model"]["weight"].data, expected.data
    )
    with pytest.raises(
        EstimatorError, match=r"(?s)The state is that of another model .*size mismatch for weight"
    ) as error:
        build_replica(program, {"classes": 4}, 9)
    assert "Build the model that the state came from" in str(error.value)
