"""Optimizers, schedulers and loss scaling from an estimator's arguments."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.training.torch.state import plain_tree

MOST_STEPS = 100_000
"""Steps of a schedule that ``options`` goes through; beyond, the schedulers' own states tell."""


def build_optimizer(
    optimizer: Any, optimizer_params: dict[str, Any], model: nn.Module, allow_fused: bool
) -> torch.optim.Optimizer:
    """``optimizer`` over the model's parameters; a class of torch.optim in its fused form where it has one.

    The fused form does the same update in one kernel. It is used if the user chose neither
    ``fused`` nor ``foreach``, on CPU and CUDA, for dense floating parameters.

    Raises:
        EstimatorError: it cannot be made, or is none.
    """
    if not isinstance(optimizer, type):
        made = optimizer(model)
        if not isinstance(made, torch.optim.Optimizer):
            raise EstimatorError(
                f"optimizer=fn returned {type(made).__name__} for the model, but must return a torch.optim.Optimizer; "
                "end it with e.g. `return torch.optim.SGD(model.parameters(), lr=0.1)`."
            )
        return made
    arguments = dict(optimizer_params)
    if allow_fused and can_be_fused(optimizer, arguments, model):
        arguments["fused"] = True
    try:
        made = optimizer(model.parameters(), **arguments)
    except (TypeError, ValueError) as error:
        raise EstimatorError(
            f"{optimizer.__name__}(model.parameters(), {_listed(optimizer_params)}) failed: {error}. "
            "Give its arguments in optimizer_params, or a function fn(model) as optimizer."
        ) from error
    assert isinstance(made, torch.optim.Optimizer)
    return made


def can_be_fused(optimizer: type, arguments: dict[str, Any], model: nn.Module) -> bool:
    """Whether the class has a fused form that takes all parameters of the model."""
    if (
        not optimizer.__module__.startswith("torch.optim.")
        or "fused" not in inspect.signature(optimizer).parameters
    ):
        return False
    if arguments.keys() & {"fused", "foreach", "differentiable"}:
        return False
    if any(getattr(module, "sparse", False) for module in model.modules()):
        return False
    return all(
        parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda")
        for parameter in model.parameters()
    )


def build_scheduler(
    scheduler: Any, optimizer: torch.optim.Optimizer, steps_per_epoch: int, num_epochs: int
) -> torch.optim.lr_scheduler.LRScheduler | None:
    """``scheduler(optimizer, steps_per_epoch, num_epochs)``.

    Raises:
        EstimatorError: it returns something else than a scheduler that steps by itself.
    """
    if scheduler is None:
        return None
    made = scheduler(optimizer, steps_per_epoch, num_epochs)
    if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise EstimatorError(
            "scheduler=fn returned ReduceLROnPlateau, which needs a validation value while training goes on; "
            "use a schedule of steps, such as OneCycleLR or CosineAnnealingLR, or a search that stops early."
        )
    if not isinstance(made, torch.optim.lr_scheduler.LRScheduler):
        raise EstimatorError(
            f"scheduler=fn returned {type(made).__name__}, but must return a torch.optim.lr_scheduler; e.g. "
            "`lambda optimizer, steps_per_epoch, num_epochs: OneCycleLR(optimizer, 0.1, steps_per_epoch * num_epochs)`."
        )
    return made


def options(
    optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[tuple[Any, int]]
) -> Iterator[dict[str, Any]]:
    """The optimizers' options at the begin, and after each step of the schedulers; then the schedulers' own states.

    Args:
        schedulers: each with its number of steps.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler.step\(\)` before", UserWarning)
        yield _options(optimizers)
        for scheduler, steps in schedulers:
            for _ in range(min(steps, MOST_STEPS)):
                scheduler.step()
                yield _options(optimizers)
    yield {
        f"the scheduler's {name}": value
        for scheduler, _ in schedulers
        for name, value in plain_tree(scheduler.state_dict()).items()
    }


def _options(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {
        name if number == 0 else f"{name} of group {number}": value.tolist()
        if isinstance(value, torch.Tensor)
        else value
        for number, group in enumerate(groups)
        for name, value in group.items()
        if name != "params"
    }


def _listed(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
