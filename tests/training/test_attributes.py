"""Plain Python attributes that training changes belong to a trial's state."""

from __future__ import annotations

import logging
import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hopyard.objects import derive_seed
from hopyard.torch import TorchEstimator
from hopyard.training.build import build_replica
from hopyard.training.hiding import _said
from hopyard.training.torch.attributes import Attributes, owners
from hopyard.training.unit import residents

SEED, TRIAL, BATCH = 5, 0, 32
ORDERS = [[2, 0, 1], [0, 1, 2]]


class Noise(nn.Module):
    """Noise that falls with every step, of which it keeps a record."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.history, self.counts = np.float64(1.0), [], {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.scale = self.scale * np.float64(0.9)
            self.history.append(float(self.scale))
            self.counts["calls"] = self.counts.get("calls", 0) + 1
        return x + float(self.scale) * sum(self.history[-3:]) * torch.randn_like(x)


class Annealed(nn.Module):
    """Counts its steps, by which dropout grows, a temperature falls and a layer is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.noise, self.body, self.dropout = Noise(), nn.Linear(12, 8), nn.Dropout(0.0)
        self.head, self.step, self.note = nn.Linear(8, 3), 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.step += 1
            self.dropout.p = min(0.5, self.step / 50)
            self.note = f"step {self.step}"
            if self.step == 20:
                self.body.requires_grad_(False)
        return self.head(self.dropout(self.body(self.noise(x)).relu())) / math.exp(-self.step / 40)


class Weighing(nn.Module):
    """A loss that weighs more with every step, as an object with an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.weight *= 1.01
        return nn.functional.cross_entropy(outputs, labels) * self.weight


class Scaling:
    """A transform that all trials of a process share, and which counts."""

    calls = 0

    def __call__(self, batch: Any, *rest: Any) -> Any:
        self.calls += 1
        return {**batch, "features": batch["features"] * (1 + self.calls / 100)}


def seed_all(*parts: int | str) -> None:
    value = derive_seed(*parts)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def serial(data: Any, transform: Any) -> nn.Module:
    """The same training in one loop, over one model that is never taken apart."""
    seed_all(SEED, TRIAL, "init")
    model, loss = Annealed(), Weighing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    partitions = data.train.partitions(3)
    for epoch, order in enumerate(ORDERS):
        for number in order:
            seed_all(SEED, TRIAL, epoch, number, "train")
            model.train()
            loader = partitions[number].loader(
                BATCH,
                shuffle=True,
                seed=derive_seed(SEED, "order", number),
                output="torch",
                tail="join",
                epoch=epoch,
            )
            for batch in loader:
                given = transform(batch)
                optimizer.zero_grad()
                loss(model(given["features"]), given["label"]).backward()
                optimizer.step()
    return model


@pytest.mark.parametrize("place", ["resident", "fresh", "in turns"])
def test_a_model_that_anneals_by_attributes_hops_as_it_trains_serially(
    place: str, chain: Any, data: Any, visits: Any
) -> None:
    shared = Scaling()

    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            Annealed(), torch.optim.SGD, Weighing(), batch_size=BATCH, transform=shared,
            optimizer_params={"lr": 0.1, "momentum": 0.9},
        )  # fmt: skip

    expected = serial(data, Scaling())
    units = chain(gen, trial=TRIAL)
    other = chain(gen, trial=TRIAL, folder="other") if place == "in turns" else None
    for epoch, partition, last in visits:
        if place == "fresh":
            residents.clear()
        units.train(epoch, partition, last=last)
        if other is not None:
            other.train(epoch, partition, last=last)
        if last:
            units.validate(epoch)
    replica = build_replica(units.program, units.params, units.trial)
    replica.load({"model": units.state()["model"]})
    module = replica.give_out()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(
        module.state_dict().values(), expected.state_dict().values(), strict=True
    ))  # fmt: skip
    for ours, theirs in ((module, expected), (module.noise, expected.noise)):
        for name in ("step", "note", "scale", "history", "counts"):
            value = getattr(theirs, name, None)
            assert repr(getattr(ours, name, None)) == repr(value)
    assert module.dropout.p == expected.dropout.p > 0
    assert not module.body.weight.requires_grad
    if other is not None:
        assert other.ref.digest == units.ref.digest


def test_what_cannot_travel_is_named_once(chain: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mean, self.seen = nn.Linear(12, 3), torch.zeros(12), []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
            self.seen.append(x.mean())
            return self.layer(x - self.mean)

    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(Mean(), torch.optim.SGD, nn.CrossEntropyLoss(), (), BATCH, {"lr": 0.1})

    _said.clear()
    units = chain(gen)
    with caplog.at_level(logging.WARNING, "hopyard"):
        units.train(0, 0)
        units.train(0, 1)
    [said] = [each for each in caplog.messages if "no state of a trial holds" in each]
    assert "Training changes model.mean, model.seen, which no state" in said
    assert "register a buffer" in said


def test_what_validation_changes_is_not_kept(chain: Any) -> None:
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x) / self.calls

    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(Counting(12, 3), torch.optim.SGD, nn.CrossEntropyLoss(), (), BATCH, {"lr": 0.1})

    digests = []
    for folder in ("validated", "not"):
        units = chain(gen, folder=folder)
        units.train(0, 0)
        if folder == "validated":
            units.validate(0)
        units.train(0, 1)
        digests.append(units.ref.digest)
    assert digests[0] == digests[1]


def test_attributes_come_back_as_they_were() -> None:
    thing = SimpleNamespace(
        count=1, kept=[1, (2, {"a": None})], gone="x", tensor=torch.zeros(1), flag=True, empty=None
    )
    kept = thing.kept
    attributes = Attributes(lambda: owners("thing", thing))
    with attributes.in_use(keep=True):
        thing.count, thing.flag, thing.tensor, thing.new = 1.0, 1, "now plain", math.nan
        thing.kept.append(np.float32(0.1))
        del thing.gone
        thing.empty = torch.zeros(1)
    assert thing.kept is kept
    assert (thing.count, thing.kept, thing.gone) == (1, [1, (2, {"a": None})], "x")
    assert isinstance(thing.tensor, torch.Tensor)
    assert thing.empty is None
    assert not hasattr(thing, "new")
    tree = attributes.tree()
    assert tree["thing"].keys() == {"count", "flag", "gone", "kept", "new", "tensor"}
    other = SimpleNamespace(count=1, kept=[1, (2, {"a": None})], gone="x", tensor=torch.zeros(1), flag=True)
    loaded = Attributes(lambda: owners("thing", other))
    loaded.load(tree)
    loaded.give_out()
    assert repr((other.count, other.flag, other.tensor, other.new)) == "(1.0, 1, 'now plain', nan)"
    assert repr(other.kept) == repr([1, (2, {"a": None}), np.float32(0.1)])
    assert not hasattr(other, "gone")
