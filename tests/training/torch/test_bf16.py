"""What another precision would give on a CPU is measured on replicas that are discarded, and only told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hopyard.backend import InlineBackend
from hopyard.hopper.packs import PackingPlan
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training import measuring
from hopyard.training.estimator import Context, OneBatch, Visit
from hopyard.training.session import Session
from hopyard.training.torch import bf16
from hopyard.training.torch.replica import TorchReplica
from hopyard.tune import GridSearch, hp_choice


def rows(count: int = 64) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"features": random.standard_normal((count, 8), np.float32), "label": np.arange(count) % 2}


def estimator(params: dict[str, Any]) -> TorchEstimator:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2))
    step = params.get("step")
    loss = None if step else nn.CrossEntropyLoss()
    return TorchEstimator(
        model,
        torch.optim.SGD,
        loss,
        [],
        32,
        {"lr": 0.1},
        step=step,
        precision=params.get("precision", "fp32"),
    )


def _step(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": nn.functional.cross_entropy(model(batch["features"]), batch["label"])}


def gain(**params: Any) -> float | None:
    with Session(1):
        replica = estimator(params).replica(Context(("features",), ("label",), "cpu", (64,), 1))
        assert isinstance(replica, TorchReplica)
        return replica.gain_of_bf16(Visit(OneBatch(rows()), 0, 0, 0, True))


@pytest.fixture(autouse=True)
def _units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16, "has_bf16_units", lambda: True)


@pytest.mark.parametrize("step", [None, _step])
def test_gradients_are_compared_under_autocast(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = []
    linear = nn.functional.linear

    def watched(x: torch.Tensor, *given: Any) -> torch.Tensor:
        out = linear(x, *given)
        dtypes.append(out.dtype)
        return out

    monkeypatch.setattr(nn.functional, "linear", watched)
    found = gain(step=step)
    assert found is not None
    assert found > 0
    assert {*dtypes} == {torch.float32, torch.bfloat16}


def test_nothing_is_measured_where_it_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gain(precision="bf16") is None
    times = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "clock", lambda: float(next(times)))  # every batch takes a second
        assert gain() is None
    monkeypatch.setattr(bf16, "has_bf16_units", lambda: False)
    assert gain() is None


def test_units_are_those_that_pytorch_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert not bf16.has_bf16_units()
    for unit in ("avx512_bf16", "amx_bf16"):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda unit=unit: {unit: True})
        assert bf16.has_bf16_units()


def test_a_check_tells_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchReplica, "gain_of_bf16", lambda replica, visit: 2.0)
    search = GridSearch(
        InlineBackend(),
        LocalStore(tmp_path),
        estimator,
        {"lr": hp_choice([0.1, 0.2])},
        num_epochs=1,
        progress=False,
    )
    found = search.check(rows())
    assert found.bf16_gain == 2.0
    assert str(found).endswith(
        "with precision='bf16', which has other results, gradients of a batch would take 0.50 times as long"
    )
    assert str(PackingPlan(bf16_gain=1.05)) == ""

    def fails(replica: Any, visit: Any) -> float:
        raise TypeError("this model takes no bfloat16")

    monkeypatch.setattr(TorchReplica, "gain_of_bf16", fails)
    assert search.check(rows()).bf16_gain is None
