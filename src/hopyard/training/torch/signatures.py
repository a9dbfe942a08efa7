"""Which replicas may train together: those of one signature, which says all that has to be equal."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from hopyard.training import measuring
from hopyard.training.torch.base import Base
from hopyard.training.torch.captured import why_not_on
from hopyard.training.torch.forward import Forward
from hopyard.training.torch.session import Flags
from hopyard.training.torch.taped import Tapes, is_pure, keeps_something, structure_of


class Parts(NamedTuple):
    """Parts of a replica that a pack works on.

    Attributes:
        chain: layers of the head, or why there are none.
        marks: gives marks of all that the model and functions of the user keep beside parameters and buffers.
        tapes: what was recorded of it, where it is no chain.
        streams: CUDA streams on which captured steps are replayed; 0: steps are not captured.
    """

    estimator: Any
    head: nn.Module
    chain: Sequence[nn.Module] | str
    forward: Forward
    optimizer: torch.optim.Optimizer
    scheduler: Any
    device: torch.device
    flags: Flags
    trunk_weights: str | None
    base: Base | None
    marks: Callable[[], Any]
    tapes: Tapes
    streams: int


def signature_of(parts: Parts) -> tuple[str, str]:
    """A text that is equal for replicas that may train together, or empty; and why this one trains alone."""
    given, loss, binding = parts.estimator, parts.forward.loss, parts.forward.binding
    precisions = ("fp32", "bf16") if parts.streams else ("fp32",)
    refusals = [
        (given.transform is not None or given.val_transform is not None, "a transform is given"),
        (given.precision not in precisions, f"precision is {given.precision!r}"),
        (not parts.streams and parts.device.type != "cpu", f"it is on {parts.device}"),
        (not _is_torchs(parts.optimizer), "its optimizer is none of torch.optim"),
        (not _is_torchs(parts.scheduler), "its scheduler is none of torch.optim.lr_scheduler"),
        (loss is not None and not _is_pure(loss.module), "its loss may keep something from batch to batch"),
        (any(map(_has_hooks, parts.head.parameters())), "a parameter has hooks for its gradient"),
        (_has_step_hooks(parts.optimizer), "its optimizer has hooks"),
        (
            not parts.streams and _shares_memory(parts.head),
            "a parameter shares its memory with another tensor",
        ),
        (
            any(getattr(part, "sparse", False) is True for part in parts.head.modules()),
            "it has sparse gradients",
        ),
        *(_refusals_of_taped(parts) if parts.streams or is_taped(parts) else ()),
    ]
    if parts.streams and (why := why_not_on(parts.device)):
        return "", why
    for refused, why in refusals:
        if refused:
            return "", why
    if parts.streams or is_taped(parts):
        structure: Any = structure_of(parts.head, parts.base)
    else:
        structure = [
            (
                repr(layer),
                [
                    (*parameter.shape, parameter.dtype, parameter.requires_grad)
                    for parameter in layer.parameters()
                ],
            )
            for layer in parts.chain
            if isinstance(layer, nn.Module)
        ]
    columns = [binding.signature, binding.besides, parts.trunk_weights]
    computed = [_loss_of(parts), _function_of(given.step), _function_of(given.validate_step)]
    way = [parts.streams, given.precision, parts.flags]
    return repr([structure, computed, columns, given.batch_size, given.accumulate, way]), ""


def is_taped(parts: Parts) -> bool:
    """Whether models train together by tapes of what they compute; else by their layers, which are a chain."""
    given = parts.estimator
    named = isinstance(given.inputs, Mapping)
    takes_one = (
        list(given.inputs or ()) == ["input"] if named else len(parts.forward.binding.model_columns) == 1
    )
    return parts.base is not None or isinstance(parts.chain, str) or given.step is not None or not takes_one


def _refusals_of_taped(parts: Parts) -> list[tuple[bool, str]]:
    """Whether models with tapes cannot train together, and why."""
    steps = [each for each in (parts.estimator.step, parts.estimator.validate_step) if each is not None]
    nbytes = sum(parameter.nbytes for parameter in parts.head.parameters())
    return [
        (not all(map(is_pure, steps)), "its step may keep something from batch to batch"),
        (not trained_of(parts), "it trains nothing"),
        (
            parts.base is None and not parts.streams and nbytes > measuring.MOST_PARAMETERS,
            measuring.too_large(nbytes),
        ),
    ]


def trained_of(parts: Parts) -> list[nn.Parameter]:
    """The parameters that a replica's optimizer trains."""
    return [
        parameter
        for group in parts.optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]


def _loss_of(parts: Parts) -> Any:
    """What is equal for replicas of one loss."""
    loss = parts.forward.loss
    if loss is None:
        return None
    weights = loss.module.state_dict() if isinstance(loss.module, nn.Module) else {}
    values = {name: weight.tolist() for name, weight in weights.items()}
    return [_described(loss.module), values, parts.estimator.class_weight]


def _function_of(function: Any) -> Any:
    """What is equal for one function, with the same options."""
    if isinstance(function, partial):
        return _function_of(function.func), function.args, sorted(function.keywords.items())
    return None if function is None else (function.__module__, function.__qualname__)


def _described(thing: Any) -> Any:
    """Kind and options of a layer or loss; texts of PyTorch's leave some out. Of functions the name: each member calls
    its own."""
    if isinstance(thing, types.FunctionType):
        return thing.__module__, thing.__qualname__
    options = {
        name: value
        for name, value in vars(thing).items()
        if isinstance(value, (bool, int, float, str, tuple)) and name != "training"
    }
    return repr(thing), sorted(options.items())


def _has_hooks(parameter: nn.Parameter) -> bool:
    own: Any = parameter
    return bool(own._backward_hooks or own._post_accumulate_grad_hooks)


def _has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    own: Any = optimizer
    return bool(own._optimizer_step_pre_hooks or own._optimizer_step_post_hooks)


def _is_torchs(thing: Any) -> bool:
    return thing is None or f"{type(thing).__module__}.".startswith("torch.optim.")


def _is_pure(loss: Any) -> bool:
    """Whether a loss can keep nothing from one call to the next."""
    if isinstance(loss, nn.Module):
        return type(loss).__module__ == "torch.nn.modules.loss"
    return isinstance(loss, types.FunctionType) and not keeps_something(loss)


def _shares_memory(head: nn.Module) -> bool:
    """Whether a parameter lies in memory that another tensor of a module uses too, so that it cannot be moved."""
    tensors: dict[int, torch.Tensor] = {}
    for part in head.modules():
        for value in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(value, torch.Tensor):
                tensors[id(value)] = value
    places = Counter(map(_memory, tensors.values()))
    return any(
        each.requires_grad and places[_memory(each)] > 1
        for each in tensors.values()
        if isinstance(each, nn.Parameter) and each.numel()
    )


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
