"""Models over one base that train together come to the bits that they come to alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.torch.test_pack import COLUMNS, ROWS, WIDTH, alone, digests, together, visits
from torch import nn
from torch.nn import functional

from hopyard.errors import DivergedError
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context
from hopyard.training.session import Session
from hopyard.training.torch import pack, taped
from hopyard.training.torch.replica import TorchReplica


@pytest.fixture(autouse=True)
def _packs_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(pack, "_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(pack, "_widths", {})
    monkeypatch.setattr(taped, "_met", {})
    monkeypatch.setattr(taped, "_OFTEN", 0)


class Adapter(nn.Module):
    def __init__(self, layer: nn.Module, rank: int, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(layer.in_features, rank, bias=False)  # type: ignore[arg-type]
        self.up = nn.Linear(rank, layer.out_features, bias=False)  # type: ignore[arg-type]
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layer(x) + self.up(self.down(self.dropout(x))) * self.scale)


class Block(nn.Module):
    """A transformer's layer over pieces of a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.norm(x)
        heads = [each(normal).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return torch.as_tensor(x + self.mlp(self.after(x)))


class Network(nn.Module):
    """Takes ``x`` (n, 7) as seven tokens."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(1, width)
        self.position = nn.Parameter(torch.randn(WIDTH, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.last = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.first(x[:, :, None]) + self.position)
        return torch.as_tensor(self.last(hidden.mean(1)))


def network() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Network()


BASE = network()


def adapted(rank: int = 4, scale: float = 1.0, dropout: float = 0.0, norms: bool = False) -> Any:
    def make(base: nn.Module) -> nn.Module:
        for block in base.blocks:  # type: ignore[union-attr,operator]
            block.q = Adapter(block.q, rank, scale, dropout)  # type: ignore[arg-type]
            block.v = Adapter(block.v, rank, scale, dropout)  # type: ignore[arg-type]
            block.norm.requires_grad_(norms)  # type: ignore[operator]
        return base

    return make


Make = Callable[[int], dict[str, Any]]


def replicas(make: Make, count: int, labels: Sequence[str] = ("class",)) -> list[TorchReplica]:
    made = []
    for number in range(count):
        torch.manual_seed(number)
        given: dict[str, Any] = {
            "model": adapted(),
            "base": BASE,
            "loss": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.Adam,
            "optimizer_params": {"lr": 0.01 * (1 + number)},
            "batch_size": 16,
        }
        replica = TorchEstimator(**(given | make(number))).replica(
            Context(("x",), tuple(labels), "cpu", (ROWS,), 3)
        )
        assert isinstance(replica, TorchReplica)
        made.append(replica)
    return made


def check_same(make: Make, count: int = 3, threads: int = 1, plans: bool = True) -> None:
    """Members trained and validated together equal the same ones trained and validated alone."""
    with Session(threads):
        ones, others = replicas(make, count), replicas(make, count)
        assert len({replica.signature for replica in others}) == 1, "they may train together"
        assert others[0].signature, others[0].trains_alone
        for visit in visits():
            found = together(others, visit)
            assert found is not None, others[0].trains_alone
            assert found == alone(ones, visit)
            assert [digests(replica) for replica in others] == [digests(replica) for replica in ones]
            measured = [measured.compute() for measured in TorchReplica.validate_together(others, visit)]  # type: ignore[union-attr]
            assert measured == [replica.validate(visit).compute() for replica in ones]
        assert [replica.hidden_state() for replica in others] == [replica.hidden_state() for replica in ones]
        batch = {"x": COLUMNS["x"]}
        for one, other in zip(ones, others, strict=True):
            np.testing.assert_array_equal(one.predict(batch), other.predict(batch))


def test_plain() -> None:
    check_same(lambda number: {"metrics": ["accuracy"]})
