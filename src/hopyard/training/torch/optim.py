"""Optimizers, schedulers and loss scaling from an estimator's arguments."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.training.torch.state import plain_tree
from hopyard.wording import counted

MOST_STEPS = 100_000
"""Steps of a schedule that ``options`` goes through; beyond, the schedulers' own states tell."""


def build_optimizer(
    optimizer: Any, optimizer_params: dict[str, Any], model: nn.Module, allow_fused: bool
) -> torch.optim.Optimizer:
    """``optimizer`` over the model's parameters; a class of torch.optim in its fused form where it has one.

    The fused form does the same update in one kernel. It is used if the user chose neither
    ``fused`` nor ``foreach``, on CPU and CUDA, for dense floating parameters.

    Raises:
        EstimatorError: it cannot be made, is none, or has no parameter of the model.
    """
    if not isinstance(optimizer, type):
        return _checked(optimizer(model), _called(optimizer), model)
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


def _called(optimizer: Any) -> str:
    """A function that makes an optimizer, for messages: ``optimizer=fn``, or a method by its name and class."""
    if inspect.ismethod(optimizer) and not isinstance(optimizer.__self__, type):
        return f"{type(optimizer.__self__).__name__}.{optimizer.__name__}(model)"
    return "optimizer=fn"


def _checked(made: Any, called: str, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that a function made.

    Args:
        called: the function, for the message.

    Raises:
        EstimatorError: it is none, or has no parameter of the model.
    """
    if not isinstance(made, torch.optim.Optimizer):
        raise EstimatorError(
            f"{called} returned {type(made).__name__} for the model, but must return a torch.optim.Optimizer; "
            "end it with e.g. `return torch.optim.SGD(model.parameters(), lr=0.1)`."
        )
    own = set(map(id, model.parameters()))
    given = [parameter for group in made.param_groups for parameter in group["params"]]
    if own and not any(id(parameter) in own for parameter in given):
        raise EstimatorError(
            f"{called} returned an optimizer of {counted(len(given), 'parameter')} of something else than the model, "
            "so that no step would change the model. Make it of parameters of the model that the function is called "
            "with: torch.optim.SGD(model.parameters(), lr=0.1)."
        )
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


class OptimizerSteps:
    """Steps of an optimizer.

    After the first step, the fused forms of Adam, AdamW and SGD are called as ``torch.optim`` calls them, with lists of
    tensors that are kept: the same kernels on the same tensors, without looking through all parameters anew. ``close``
    must follow the last step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups: list[_FusedGroup] | None = None
        self._is_fused = _may_be_called_directly(optimizer)

    def step(self) -> None:
        groups = self._groups
        if (
            groups is not None
            and len(groups) == len(self._optimizer.param_groups)
            and all(group.is_as_before() for group in groups)
        ):
            with torch.no_grad():
                for group in groups:
                    group.step()
            return
        self.close()
        self._optimizer.step()
        if self._is_fused:
            self._groups = _fused_groups(self._optimizer)

    def close(self) -> None:
        """Bring the optimizer's own counters of steps to where they are."""
        for group in self._groups or ():
            group.close()
        self._groups = None


def _may_be_called_directly(optimizer: torch.optim.Optimizer) -> bool:
    names = {
        torch.optim.Adam: "_fused_adam_",
        torch.optim.AdamW: "_fused_adamw_",
        torch.optim.SGD: "_fused_sgd_",
    }
    if type(optimizer) not in names or not hasattr(torch, names[type(optimizer)]):
        return False
    step = vars(optimizer).get("step")  # which schedulers wrap
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        return False
    hooks = [value for name, value in vars(optimizer).items() if name.endswith("_hooks")]
    is_plain = all(
        group.get("fused") and not any(map(group.get, ("amsgrad", "capturable", "differentiable")))
        for group in optimizer.param_groups
    )
    return is_plain and not any(hooks) and not hasattr(optimizer, "grad_scale")


def _fused_groups(optimizer: torch.optim.Optimizer) -> list[_FusedGroup] | None:
    """The optimizer's groups after a step; None where it must go on as it is."""
    groups = []
    for options in optimizer.param_groups:
        parameters = [parameter for parameter in options["params"] if parameter.grad is not None]
        states = [optimizer.state.get(parameter, {}) for parameter in parameters]
        counters = [state["step"] for state in states if "step" in state]
        if len({parameter.dtype for parameter in parameters} | {p.device for p in parameters}) > 2:
            return None
        if any(not isinstance(each, torch.Tensor) for each in counters) or len(set(map(float, counters))) > 1:
            return None
        if any(isinstance(options[name], torch.Tensor) for name in ("lr", "weight_decay")):
            return None
        groups.append(_FusedGroup(type(optimizer), options, parameters, states, counters))
    return groups


class _FusedGroup:
    """A group of parameters of an optimizer in its fused form, all of one dtype, after as many steps."""

    def __init__(
        self,
        kind: type,
        options: dict[str, Any],
        parameters: list[torch.Tensor],
        states: list[dict[str, Any]],
        counters: list[torch.Tensor],
    ) -> None:
        self._kind, self._options, self._parameters, self._counters = kind, options, parameters, counters
        if kind is torch.optim.SGD:
            self._momenta = [state.get("momentum_buffer") for state in states]
        else:
            self._first = [state["exp_avg"] for state in states]
            self._second = [state["exp_avg_sq"] for state in states]
            self._steps = counters[:1] * len(counters)

    def is_as_before(self) -> bool:
        """Whether the parameters with gradients are the same as in the step that was looked at."""
        having = [each for each in self._options["params"] if each.grad is not None]
        self._gradients = [each.grad for each in having]
        return len(having) == len(self._parameters) and all(map(operator.is_, having, self._parameters))

    def step(self) -> None:
        options = self._options
        if not self._parameters:
            return
        if self._kind is torch.optim.SGD:
            torch._fused_sgd_(
                self._parameters,
                self._gradients,
                self._momenta if options["momentum"] else [],  # type: ignore[arg-type]
                weight_decay=options["weight_decay"],
                momentum=options["momentum"],
                lr=options["lr"],
                dampening=options["dampening"],
                nesterov=options["nesterov"],
                maximize=options["maximize"],
                is_first_step=False,
            )
            return
        call = torch._fused_adam_ if self._kind is torch.optim.Adam else torch._fused_adamw_
        if self._kind is torch.optim.Adam and options.get("decoupled_weight_decay"):
            call = torch._fused_adamw_
        beta1, beta2 = options["betas"]
        self._counters[0].add_(1)
        call(
            self._parameters,
            self._gradients,
            self._first,
            self._second,
            [],
            self._steps,
            amsgrad=False,
            lr=options["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            maximize=options["maximize"],
        )

    def close(self) -> None:
        for counter in self._counters[1:]:
            counter.copy_(self._counters[0])


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
