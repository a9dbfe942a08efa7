"""Packs beside plain PyTorch, and beside packs of other members, widths and orders.

=====================================================  ==========================================================
after 100 steps, as PyTorch's own optimizers come to    here; hyperparameters that differ between members, too
one step in single precision                            here
members in another order, other widths, NaN, leavers    here
dropout, batch norm, losses, schedules, accumulation    ``test_pack.py``: the bits of a member that trains alone
products by kernels that add up in another order        ``test_pack.py``: found, and computed one by one
models that are no chains of layers                     ``test_taped_models.py``: together, or they say why not
whole searches, killed ones, ASHA, their leaderboards   ``tests/tune/test_packs.py``
=====================================================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.training.torch.test_pack import (
    BETWEEN,
    COLUMNS,
    OPTIMIZERS,
    OPTIONS,
    WIDTH,
    Make,
    _packs_whatever_they_gain,
    alone,
    digests,
    replicas,
    together,
    visits,
)
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.training.session import Session
from hopyard.training.torch.replica import TorchReplica

__all__ = ["_packs_whatever_they_gain"]
STEPS = 100  # 20 visits of 5 batches


class Doubled(nn.Sequential):
    """A model in double precision, which features reach in single precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.double())


def of_layers(between: str, dtype: torch.dtype, **changes: Any) -> Make:
    """Members of two hidden layers, each with a learning rate of its own."""

    def make(number: int) -> dict[str, Any]:
        layers = [nn.Linear(WIDTH, 16), *BETWEEN[between](16), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)]
        rates = {**changes.get("optimizer_params", {}), "lr": 0.01 / (1 + number)}
        model = nn.Sequential(*layers) if dtype == torch.float32 else Doubled(*layers).double()
        return {**changes, "model": model, "optimizer_params": rates}

    return make


def by_torch_alone(make: Make, number: int, rows: Any, epochs: int, steps: int | None = None) -> nn.Module:
    """A loop as people write it, with PyTorch's optimizer as it is by default, over the batches of the visits."""
    [reader] = replicas(lambda _: make(number), 1)
    torch.manual_seed(number)
    given = make(number)
    model: nn.Module = given["model"]
    optimizer = given.get("optimizer", torch.optim.SGD)(model.parameters(), **given["optimizer_params"])
    done = 0
    for visit in visits(epochs, rows):
        model.train()
        torch.manual_seed(100 + number)
        for batch, _ in reader.training_batches(visit):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch["x"]), batch["class"]).backward()
            optimizer.step()
            done += 1
            if done == steps:
                return model
    assert done == STEPS
    return model


def farthest(one: nn.Module, other: nn.Module, but: Sequence[str] = ()) -> float:
    """The largest difference of two models' tensors, relative to the largest number in the tensor."""
    mine, theirs = one.state_dict(), other.state_dict()
    return max(
        float((mine[name] - theirs[name]).abs().max() / theirs[name].abs().max())
        for name in mine
        if name not in but
    )


@pytest.mark.parametrize("between", ["relu", "batch norm", "layer norm", "dropout, relu"])
@pytest.mark.parametrize("name", ["adam", "momentum", "rmsprop"])
def test_after_100_steps_in_double_precision_members_are_where_pytorch_alone_is(
    name: str, between: str
) -> None:
    make = of_layers(between, torch.float64, **OPTIMIZERS[name])
    with Session(1):
        members = replicas(make, 3)
        for visit in visits(20, COLUMNS):
            assert together(members, visit) is not None, members[0].trains_alone
        # Their true gradient is zero before a normalisation, so that optimizers scale what rounding left of it.
        idle = ["0.bias", "1.running_mean"] if between == "batch norm" else []
        for number, member in enumerate(members):
            model = by_torch_alone(make, number, COLUMNS, 20)
            assert farthest(member.module, model, idle) < 1e-12


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_after_100_steps_every_optimizer_is_where_pytorchs_own_is(name: str) -> None:
    make = of_layers("tanh", torch.float64, **OPTIMIZERS[name])
    with Session(1):
        members = replicas(make, 2)
        for visit in visits(20, COLUMNS):
            assert together(members, visit) is not None, members[0].trains_alone
        for number, member in enumerate(members):
            assert farthest(member.module, by_torch_alone(make, number, COLUMNS, 20)) < 1e-12


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_after_one_step_in_single_precision_members_are_where_pytorch_alone_is(name: str) -> None:
    make = of_layers("relu", torch.float32, **OPTIMIZERS[name], batch_size=200)
    with Session(1):
        members = replicas(make, 3)
        assert together(members, visits()[0]) is not None
        for number, member in enumerate(members):
            assert farthest(member.module, by_torch_alone(make, number, COLUMNS, 1, 1)) < 1e-6


def trained(make: Make, order: Sequence[int], epochs: int = 2) -> dict[int, Any]:
    """Members by their numbers, in slots of this order: losses and digests after some visits."""
    made = replicas(make, max(order) + 1)
    members = [made[number] for number in order]
    losses = []
    for visit in visits(epochs):
        found = TorchReplica.train_together(members, visit, [100 + number for number in order])
        assert found is not None, members[0].trains_alone
        losses.append(found)
    return {
        number: ([each[slot] for each in losses], digests(member))
        for slot, (number, member) in enumerate(zip(order, members, strict=True))
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_the_order_of_members_permutes_their_results(threads: int) -> None:
    make = of_layers("gelu, dropout", torch.float32, optimizer=torch.optim.Adam)
    with Session(threads):
        first = trained(make, range(6))
        for order in ([5, 4, 3, 2, 1, 0], [2, 5, 0, 4, 1, 3]):
            assert trained(make, order) == first


def test_how_many_train_together_changes_no_loss_and_no_gradient() -> None:
    make = of_layers("batch norm", torch.float32, optimizer_params={"momentum": 0.9})
    with Session(1):
        widest = trained(make, range(16))
        for width in (2, 3, 10):
            narrow = trained(make, range(width))
            assert narrow == {number: widest[number] for number in range(width)}
        [single] = replicas(make, 1)
        losses = [alone([single], visit)[0] for visit in visits()]
        assert (losses, digests(single)) == widest[0]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("healthy", [0, 2, 4])
@pytest.mark.parametrize("between", ["relu", "batch norm", "dropout, relu"])
def test_members_that_are_nan_leave_one_as_it_is_at_any_slot(
    between: str, healthy: int, threads: int
) -> None:
    make = of_layers(between, torch.float32, optimizer=torch.optim.Adam)
    with Session(threads):
        among_healthy, among_nan = replicas(make, 5), replicas(make, 5)
        for number, member in enumerate(among_nan):
            for parameter in member.module.parameters() if number != healthy else ():
                parameter.data.fill_(float("nan"))
        for visit in visits():
            expected, found = together(among_healthy, visit), together(among_nan, visit)
            assert expected is not None
            assert found is not None
            assert found[healthy] == expected[healthy]
            assert digests(among_nan[healthy]) == digests(among_healthy[healthy])


def test_members_enter_and_leave_between_visits() -> None:
    """In packs of others at every visit, alone in between; with others by the batches of the same visits."""
    make = of_layers("dropout, relu", torch.float32, optimizer=torch.optim.Adam)
    companions = [[0, 1, 2], [0], [3, 0], [2, 1, 3, 0], [0, 1]]
    with Session(1):
        steady, changing = replicas(make, 1)[0], replicas(make, 4)
        for visit, some in zip(visits(5), companions, strict=True):
            members, seeds = [changing[number] for number in some], [100 + number for number in some]
            if len(some) > 1:
                assert TorchReplica.train_together(members, visit, seeds) is not None
            else:
                alone(members, visit)
            alone([steady], visit)
            assert digests(changing[0]) == digests(steady)


def test_clipping_decay_schedules_and_steps_are_the_members_own() -> None:
    """All in one pack: each comes to what it comes to alone."""

    def make(number: int) -> dict[str, Any]:
        kinds: list[dict[str, Any]] = [
            {"optimizer": torch.optim.Adam, "gradient_clip": 0.01},
            {"optimizer": torch.optim.AdamW, "optimizer_params": {"weight_decay": 0.3}},
            {"optimizer": torch.optim.SGD, "optimizer_params": {"momentum": 0.9}, **OPTIONS["schedule"]},
            {"optimizer": torch.optim.RMSprop, **OPTIONS["by epoch"]},
            {"optimizer": torch.optim.Adam, "optimizer_params": {"betas": (0.5, 0.9)}},
        ]
        given = of_layers("batch norm", torch.float32, **kinds[number])(number)
        weights = [value for name, value in given["model"].named_parameters() if name.endswith("weight")]
        assert weights
        return given

    with Session(1):
        members, ones = replicas(make, 5), replicas(make, 5)
        for number, visit in enumerate(visits(3)):
            if number == 1:  # this one has made no step in the second visit, and goes on behind the others
                late, members = members[4], members[:4]
                late_one, ones = ones[4], ones[:4]
            if number == 2:
                members, ones = [*members, late], [*ones, late_one]
            assert together(members, visit) == alone(ones, visit)
        assert list(map(digests, members)) == list(map(digests, ones))
    for member in members:
        assert int(member.module[1].num_batches_tracked) == (10 if member is late else 15)


def test_an_option_that_the_optimizer_does_not_know_is_refused() -> None:
    make = of_layers("relu", torch.float32, optimizer=torch.optim.Adam, optimizer_params={"muon_scale": 1})
    with pytest.raises(EstimatorError, match="muon_scale"):
        replicas(make, 1)


# Models that are not stacked --------------------------------------------------------------------


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


class Doubles(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Double.apply(super().forward(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x[..., None])[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.first(x[..., None])).mean(1))


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(4 * WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x.abs().long().clamp(max=4)).flatten(1))


class Conditional(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found if found.sum() > 0 else -found


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.ZeroPad2d((0, 2, 0, 0)),
        nn.Unflatten(1, (1, 3, 3)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


class Backwards(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)
