"""What a unit computes depends on no unit before it, and none of it reaches another trial."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hopyard.torch import TorchEstimator
from hopyard.training.unit import residents


def linear(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(nn.Linear(12, 3), torch.optim.SGD, nn.CrossEntropyLoss(), (), 32, {"lr": 0.1})


class Warming(torch.optim.SGD):
    """Keeps a number outside its state dict that changes its steps."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=0.1 / self.steps)


class Wrapping(torch.optim.Optimizer):
    """Leaves its steps to an optimizer whose state it does not keep."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    def step(self, closure: Any = None) -> Any:
        self.base.step()


class Unfreezing(nn.Module):
    """Trains one more layer from its third batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.seen = nn.Linear(12, 8), nn.Linear(8, 3), [0]
        self.first.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not self.first.weight.requires_grad:
            self.first.requires_grad_(bool(torch.rand(()) < 0.3))
        return self.second(self.first(x).relu())


def channels_last() -> nn.Module:
    layers = nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def transposed() -> nn.Module:
    model = nn.Linear(12, 3)
    model.weight = nn.Parameter(torch.randn(12, 3).t())
    return model


@pytest.mark.parametrize(
    ("module", "optimizer"),
    [
        (lambda: nn.Linear(12, 3), lambda model: Warming(model.parameters(), 0.1)),
        (lambda: nn.Linear(12, 3), lambda model: Wrapping(model.parameters())),
        (Unfreezing, torch.optim.Adam),
        (channels_last, torch.optim.Adam),
        (transposed, lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)),
    ],
    ids=["custom", "wrapped", "unfreezing", "channels_last", "transposed"],
)
def test_a_kept_replica_trains_as_a_loaded_one(module: Any, optimizer: Any, chain: Any, visits: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(module(), optimizer, nn.CrossEntropyLoss(), batch_size=32)

    digests = []
    for folder in ("kept", "cleared"):
        units = chain(gen, folder=folder)
        for epoch, partition, last in visits:
            if folder == "cleared":
                residents.clear()
            units.train(epoch, partition, last=last)
        digests.append([result.states[0].digest for result in units.results])
    assert digests[0] == digests[1]


class Growing:
    """A transform, a loss and a hook that count their calls."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.calls = 0

    def __call__(self, *given: Any) -> Any:
        self.calls += 1
        if isinstance(given[0], dict):
            return {**given[0], "features": given[0]["features"] + float(self.rng.random())}
        if isinstance(given[0], nn.Module):
            return given[2] * self.calls
        return nn.functional.cross_entropy(*given) / self.calls


@pytest.mark.parametrize("place", ["transform", "loss", "hook", "closure"])
def test_functions_that_count_train_as_new_ones_in_every_unit(place: str, chain: Any, visits: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        model, growing, calls = nn.Linear(12, 3), Growing(), [0]

        def counted(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            return nn.functional.cross_entropy(outputs, labels) / calls[0]

        if place == "hook":
            model.register_forward_hook(growing)
        loss = {"loss": growing, "closure": counted}.get(place, nn.CrossEntropyLoss())
        transform = growing if place == "transform" else None
        return TorchEstimator(
            model, torch.optim.SGD, loss, batch_size=32, optimizer_params={"lr": 0.1}, transform=transform
        )

    digests = []
    for folder in ("kept", "cleared"):
        units = chain(gen, folder=folder)
        for epoch, partition, last in visits:
            if folder == "cleared":
                residents.clear()
            units.train(epoch, partition, last=last)
        digests.append([result.states[0].digest for result in units.results])
    assert digests[0] == digests[1]


class Following(nn.CrossEntropyLoss):
    """A loss with a buffer that goes along with the outputs."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("center", torch.zeros(3))

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        mean = outputs.detach().mean(dim=0)
        self.center = self.center.mul_(0.9).add_(mean) if self.in_place else self.center * 0.9 + mean
        return super().forward(outputs - self.center, labels)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_loss_that_changes_its_buffers_is_refused(in_place: bool, chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(nn.Linear(12, 3), torch.optim.SGD, Following(in_place), (), 32, {"lr": 0.1})

    with pytest.raises(AssertionError, match=r"The loss changed its own .* make them part of the model"):
        chain(gen).train(0, 0)


class Holding(nn.Module):
    """A loss that holds the model, whose parameters training changes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        norm: torch.Tensor = self.model.weight.square().sum()
        return nn.functional.cross_entropy(outputs, labels) + 0.01 * norm


def test_a_loss_may_hold_the_model(chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        model = nn.Linear(12, 3)
        return TorchEstimator(model, torch.optim.SGD, Holding(model), (), 32, {"lr": 0.1})

    assert chain(gen).train(0, 0).errors == (None,)


class Replacing(nn.Module):
    """Puts another tensor into its buffer, also while it is validated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return self.layer(x - self.mean)


def test_a_buffer_replaced_while_validating_is_refused(chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(Replacing(), torch.optim.SGD, nn.CrossEntropyLoss(), (), 32, {"lr": 0.1})

    units = chain(gen)
    units.train(0, 0)
    with pytest.raises(AssertionError, match="changed its own parameters or buffers while it was validated"):
        units.validate(0)


def test_settings_of_pytorch_hold_for_the_trial_that_set_them(chain: Any, visits: Any) -> None:
    def half(params: dict[str, Any]) -> TorchEstimator:
        torch.set_default_dtype(torch.float16)
        torch.set_float32_matmul_precision("medium")
        model = nn.Linear(12, 3, dtype=torch.float32)
        return TorchEstimator(
            model, torch.optim.SGD, None, ["dtype"], 32, {"lr": 0.1}, step=lambda model, batch: {
                "loss": nn.functional.cross_entropy(model(batch["features"]), batch["label"]),
                "dtype": float(torch.zeros(()).dtype == torch.float16),
            },
        )  # fmt: skip

    alone = chain(linear, folder="alone").train(0, 0).states
    units = chain(half, folder="half")
    for epoch, partition, last in visits:
        total, rows = units.train(epoch, partition, last=last).metrics[0]["dtype"]
        assert total == rows
    assert units.validate(0)["dtype"] == 1.0
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_float32_matmul_precision() == "highest"
    assert chain(linear, folder="after").train(0, 0).states == alone


def test_an_estimator_function_may_change_nested_parameters(chain: Any) -> None:
    def gen(params: dict[str, Any]) -> TorchEstimator:
        options = params["optimizer"]
        return TorchEstimator(
            nn.Linear(12, 3),
            getattr(torch.optim, options.pop("name")),
            nn.CrossEntropyLoss(),
            (),
            32,
            options,
        )

    units = chain(gen, optimizer={"name": "SGD", "lr": 0.1})
    for partition in range(2):
        residents.clear()
        units.train(0, partition)
    assert units.params == {"optimizer": {"name": "SGD", "lr": 0.1}}


def test_values_of_a_step_are_those_of_their_batch(chain: Any) -> None:
    seen: list[float] = []

    def step(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(model.bias[0].item() * len(batch["label"]))
        loss = nn.functional.cross_entropy(model(batch["features"]), batch["label"])
        return {"loss": loss, "bias": model.bias[0]}

    program = chain(
        lambda params: TorchEstimator(
            nn.Linear(12, 3), torch.optim.SGD, None, ["bias"], 32, {"lr": 0.1}, step=step
        )
    )
    total = program.train(0, 0).metrics[0]["bias"][0]
    assert total == pytest.approx(sum(seen))
