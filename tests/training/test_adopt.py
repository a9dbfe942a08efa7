"""A trial that goes on from another one's state takes its weights and moments, and keeps rates of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch

from hopyard.errors import EstimatorError
from hopyard.torch import TorchEstimator
from hopyard.training.estimator import Context
from hopyard.training.torch import state
from hopyard.training.torch.state import adopt_optimizer, adopt_scheduler, optimizer_tree, plain_tree

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Schedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def trained(kind: Any, steps: int = 5, schedule: Schedule | None = None, **options: Any) -> Any:
    """An optimizer of a small model, and its scheduler, after some steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = kind(model.parameters(), **options)
    scheduler = schedule(optimizer) if schedule else None
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 3), float(step))).square().sum().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return optimizer, scheduler


def test_moments_are_taken_over_and_rates_are_not() -> None:
    donor, _ = trained(torch.optim.Adam, lr=0.1, betas=(0.8, 0.9))
    own, _ = trained(torch.optim.Adam, steps=0, lr=0.02, weight_decay=0.3)
    adopt_optimizer(own, optimizer_tree(donor))
    [group] = own.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.02, (0.9, 0.999), 0.3)
    for mine, theirs in zip(group["params"], donor.param_groups[0]["params"], strict=True):
        assert torch.equal(own.state[mine]["exp_avg"], donor.state[theirs]["exp_avg"])
        assert own.state[mine]["step"] == 5


def test_an_optimizer_of_another_kind_begins_without_moments() -> None:
    donor, _ = trained(torch.optim.SGD, lr=0.1, momentum=0.9)
    own, _ = trained(torch.optim.Adam, steps=0, lr=0.02)
    adopt_optimizer(own, optimizer_tree(donor))
    assert not own.state
    assert own.param_groups[0]["lr"] == 0.02


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20),
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, optimizer.param_groups[0]["lr"], 20),
    ],
)
def test_a_schedule_goes_on_at_its_place_with_rates_of_its_own(schedule: Schedule) -> None:
    donor, donors_schedule = trained(torch.optim.Adam, steps=7, schedule=schedule, lr=0.4)
    whole, _ = trained(torch.optim.Adam, steps=7, schedule=schedule, lr=0.1)
    own, own_schedule = trained(torch.optim.Adam, steps=0, schedule=schedule, lr=0.1)
    adopt_optimizer(own, optimizer_tree(donor))
    adopt_scheduler(own_schedule, plain_tree(donors_schedule.state_dict()))
    assert own.param_groups[0]["lr"] == pytest.approx(whole.param_groups[0]["lr"])
    assert own_schedule.last_epoch == 7


def test_another_architecture_is_refused_with_what_to_do() -> None:
    estimator = TorchEstimator(torch.nn.Linear(3, 2), torch.optim.SGD, torch.nn.MSELoss())
    replica = estimator.replica(Context(("x",), ("y",), "cpu", (10,), 1))
    tree = {"model": state.to_tree(dict(torch.nn.Linear(3, 4).state_dict()), "model"), "optimizer": {}}
    with pytest.raises(EstimatorError, match=r"PBT.*can change learning rates .* but not sizes of layers"):
        replica.adopt(tree)
