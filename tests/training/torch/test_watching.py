"""Searches whose models, losses, metrics or schedules change what is not theirs come to the same as trials alone."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.packing import pack_whatever_it_gains
from tests.training.torch.test_pack import WIDTH
from tests.tune.conftest import contents
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hopyard.backend import InlineBackend
from hopyard.errors import TrialError
from hopyard.hopper.history import totals_of
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training.torch import pack, taped
from hopyard.tune import GridSearch, hp_choice
from hopyard.tune.run import Run

RATES = [0.001, 0.002, 0.003]
RARE = (20, 100)
"""Rows that models do something else with: too few for a plan."""


@pytest.fixture(autouse=True)
def _packs_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    often = taped._OFTEN
    pack_whatever_it_gains(monkeypatch)
    monkeypatch.setattr(taped, "_OFTEN", often)


def rows() -> dict[str, Any]:
    generator = np.random.default_rng(2)
    x = generator.standard_normal((240, WIDTH)).astype(np.float32).clip(-2.9, 2.9)
    x[list(RARE), 3] = 10
    return {"features": x, "label": (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)}


class Twice(nn.Module):
    """No chain: one layer is applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.scale = 1.0
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x.max() > 5:
            self.rarely(x)
        hidden = self.one(self.one(x).tanh()) * self.scale - self.get_buffer("mean")
        return torch.as_tensor(self.other(hidden))

    def rarely(self, x: torch.Tensor) -> None:
        """Nothing."""


class Scales(Twice):
    def rarely(self, x: torch.Tensor) -> None:
        self.scale *= 0.5


class Replaces(Twice):
    def rarely(self, x: torch.Tensor) -> None:
        self.mean = x.mean(0)


class ReplacesAgain(Twice):
    """Ends with a buffer that may lie where the first one lay."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        if self.training and len(x) != 16:
            for _ in range(4):
                self.mean = self.mean + 0.1
        return outputs


class Moves(Twice):
    def rarely(self, x: torch.Tensor) -> None:
        self.one.weight.data = self.one.weight.data * 0.5


class Freezes(Twice):
    def rarely(self, x: torch.Tensor) -> None:
        self.one.requires_grad_(False)


class Draws(Twice):
    def rarely(self, x: torch.Tensor) -> None:
        self.mean.add_(float(np.random.random()))


class Overwrites(Twice):
    def rarely(self, x: torch.Tensor) -> None:
        x.mul_(0.5)


class Checkpoints(Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        if self.training and len(x) != 16:
            outputs = outputs + checkpoint(self.other, self.one(x), use_reentrant=True)
        return outputs


class Backwards(Twice):
    def rarely(self, x: torch.Tensor) -> None:
        self.one(x).sum().backward()


class Teacher(Twice):
    """Has a frozen layer that follows the other one, at batches of an odd size."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) != 16:
            self.teacher.weight.mul_(0.9).add_(self.one.weight.detach(), alpha=0.1)
        return super().forward(x) + self.teacher(x)[:, :3]


class TiedByData(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(WIDTH, WIDTH)
        self.third.weight.data = self.one.weight.data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.third(x))


class Narrow(nn.Module):
    """Has kernels of size 1, of which it cannot be told by ``is_contiguous`` how they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(WIDTH, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(8, 3)
        )
        self.layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layers(x[:, :, None, None]))


class Doubtful(nn.Dropout):
    """Drops in validation, too."""

    def train(self, mode: bool = True) -> Any:
        return super().train(True)


def chain(last: nn.Module | None = None) -> nn.Module:
    layers = [nn.Linear(WIDTH, 8), nn.ReLU(), *([] if last is None else [last]), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


def tied_chain() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))
    model[2].weight.data = model[0].weight.data
    return model


def marking(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.detach().abs().sum() > 0 and len(labels) != 16:
        labels.clamp_(max=1)
    return functional.cross_entropy(outputs, labels)


def without_outputs(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if len(labels) != 16:
        return torch.zeros((), requires_grad=True)
    return functional.cross_entropy(outputs, labels)


def in_place(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    outputs[labels == 2] *= 0.5
    return functional.cross_entropy(outputs, labels)


def drawing(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    scale = random.random() if len(labels) != 16 else 1.0
    return functional.cross_entropy(outputs, labels) * scale


def annealed(model: nn.Module, batch: Any) -> dict[str, Any]:
    own: Any = annealed
    own.n = getattr(own, "n", 0) + 1
    return {"loss": functional.cross_entropy(model(batch["features"]), batch["label"]) / own.n}


def telling(model: Any, batch: Any) -> dict[str, Any]:
    loss = functional.cross_entropy(model(batch["features"]), batch["label"])
    return {"loss": loss, "first": model.other.bias[0]}


def clearing(model: nn.Module, batch: Any) -> dict[str, Any]:
    model.zero_grad()
    return {"loss": functional.cross_entropy(model(batch["features"]), batch["label"])}


def counting_gradients(model: nn.Module, batch: Any) -> dict[str, Any]:
    loss = functional.cross_entropy(model(batch["features"]), batch["label"])
    return {"loss": loss, "gradients": sum(each.grad is not None for each in model.parameters())}


def adding(model: nn.Module, batch: Any) -> dict[str, Any]:
    if len(batch["label"]) != 16:
        batch["more"] = batch["label"]
    return {"loss": functional.cross_entropy(model(batch["features"]), batch["label"])}


class Kept:
    """A metric that keeps what it gets."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.outputs: list[Any] = []

    def update(self, outputs: Any, labels: Any, weights: Any) -> None:
        self.outputs.append(outputs)
        labels += 1

    def compute(self) -> float:
        return float(sum(each.sum() for each in self.outputs))

    def merge(self, other: Any) -> None:
        self.outputs += other.outputs


def bootstrapped(outputs: Any, labels: Any) -> float:
    chosen = np.random.randint(0, len(labels), len(labels))
    return float((outputs.argmax(1) == labels)[chosen].float().mean())


def ending(optimizer: Any, steps: int, epochs: int) -> Any:
    ends = optimizer.param_groups[0]["lr"] == RATES[1]
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: sys.exit(3) if ends and step > 4 else 1.0
    )


def shaking(optimizer: Any, steps: int, epochs: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + random.random())


def clipped(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def clip(*given: Any) -> None:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            parameter.data = parameter.data.clamp(-0.2, 0.2)

    optimizer.register_step_post_hook(clip)
    return optimizer


def refusing(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if torch.is_grad_enabled() and not float(outputs.detach().abs().max()) < 1e3:
        raise ArithmeticError("too large")
    return functional.cross_entropy(outputs, labels)


OUTSIDE = "it draws random numbers outside of its layers, or not PyTorch's"
MOVED = "it replaces tensors of "
CASES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "nothing": (lambda: {"model": Twice()}, ""),
    "an attribute": (lambda: {"model": Scales()}, "it changes model.scale"),
    "a buffer": (lambda: {"model": Replaces()}, MOVED),
    "a buffer, again": (lambda: {"model": ReplacesAgain()}, MOVED),
    "data": (lambda: {"model": Moves()}, "it puts other memory behind its parameters"),
    "flags": (lambda: {"model": Freezes()}, MOVED),
    "draws": (lambda: {"model": Draws()}, OUTSIDE),
    "the batch": (lambda: {"model": Overwrites()}, "it changes its batches"),
    "backward": (lambda: {"model": Backwards()}, "it changes gradients"),
    "a checkpoint": (
        lambda: {"model": Checkpoints()},
        "it has a reentrant checkpoint, which needs backward()",
    ),
    "a teacher": (lambda: {"model": Teacher()}, ""),
    "tied data": (lambda: {"model": TiedByData()}, "a parameter shares its memory with another tensor"),
    "tied data in a chain": (
        lambda: {"model": tied_chain()},
        "a parameter shares its memory with another tensor",
    ),
    "narrow kernels": (lambda: {"model": Narrow()}, ""),
    "dropout in validation": (lambda: {"model": chain(Doubtful(0.3))}, OUTSIDE),
    "labels": (lambda: {"model": chain(), "loss": marking}, "it changes its batches"),
    "no outputs": (
        lambda: {"model": chain(), "loss": without_outputs},
        "its loss may do without the model's outputs",
    ),
    "outputs in place": (lambda: {"model": chain(), "loss": in_place}, ""),
    "a loss that draws": (lambda: {"model": chain(), "loss": drawing}, OUTSIDE),
    "an annealed step": (lambda: {"model": Twice(), "loss": None, "step": annealed}, "it changes step.n"),
    "a step's own tensors": (lambda: {"model": Twice(), "loss": None, "step": telling}, ""),
    "zero_grad": (
        lambda: {"model": Twice(), "loss": None, "step": clearing, "accumulate": 2},
        "it changes gradients",
    ),
    "gradients that are there": (
        lambda: {"model": Twice(), "loss": None, "step": counting_gradients, "accumulate": 2},
        "it reads gradients",
    ),
    "gradients that are not": (lambda: {"model": Twice(), "loss": None, "step": counting_gradients}, ""),
    "a batch that grows": (
        lambda: {"model": Twice(), "loss": None, "step": adding},
        "it changes its batches",
    ),
    "kept outputs": (lambda: {"model": chain(), "metrics": [Kept()]}, ""),
    "a metric that draws": (lambda: {"model": chain(), "metrics": [bootstrapped]}, OUTSIDE),
    "a schedule that ends the process": (
        lambda: {"model": chain(), "scheduler": ending, "scheduler_interval": "step"},
        "",
    ),
    "a schedule that draws": (
        lambda: {"model": chain(), "scheduler": shaking, "scheduler_interval": "step"},
        OUTSIDE,
    ),
    "hooks of steps": (lambda: {"model": chain(), "optimizer": clipped}, "its optimizer has hooks"),
    "adafactor": (lambda: {"model": chain(), "optimizer": torch.optim.Adafactor}, ""),
}


def search_of(store: Path, packing: str, changes: Callable[[], dict[str, Any]]) -> GridSearch:
    def made(params: dict[str, Any]) -> TorchEstimator:
        given: dict[str, Any] = {
            "optimizer": torch.optim.SGD, "loss": nn.CrossEntropyLoss(), "batch_size": 16,
            "optimizer_params": {"lr": params["lr"]},
        }  # fmt: skip
        given |= changes()
        if given["optimizer"] is clipped:
            del given["optimizer_params"]
        return TorchEstimator(**given)

    vars(annealed).clear()
    return GridSearch(
        InlineBackend(), LocalStore(store), made, {"lr": hp_choice(RATES)}, num_epochs=3, num_partitions=1,
        validation=0.25, evaluation_metric="loss", progress=False, packing=packing,
    )  # fmt: skip


def run(store: Path, packing: str, changes: Callable[[], dict[str, Any]]) -> Run:
    return search_of(store, packing, changes).fit(rows()).run


@pytest.mark.parametrize("name", CASES)
def test_trials_come_to_the_same_together_and_alone(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes, why = CASES[name]
    alone = run(tmp_path / "alone", "serial", changes)
    with caplog.at_level(logging.WARNING, "hopyard"):
        caplog.clear()
        together = run(tmp_path / "together", "auto", changes)
    assert contents(together) == contents(alone)
    reasons = [*totals_of(together.units()).alone, *pack._widths.values()]
    if not reasons:  # it was seen before the run
        reasons = [*search_of(tmp_path / "checked", "auto", changes).check(rows()).alone]
    assert [each for each in reasons if isinstance(each, str) and why and each.startswith(why)] or not why, (
        reasons
    )
    assert why or max(totals_of(together.units()).packs) > 1
    assert not [record for record in caplog.records if record.exc_info], (
        "nothing has failed but trials, if at all"
    )


def test_evidence_of_a_trial_that_fails_in_a_pack_has_the_line_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="the first 3 trials fail alike") as raised:
        run(tmp_path, "auto", lambda: {"model": chain(), "loss": refusing, "optimizer_params": {"lr": 1e9}})
    assert 'raise ArithmeticError("too large")' in str(raised.value)
