"""Whether a module changed something that its state dict does not hold.

A model that stays on its worker between visits must go on as one that was built anew and loaded.
Python counters, plain tensors and non-persistent buffers would make the difference, so their
fingerprint is compared; a module that changes them is built anew for every visit.
"""

from __future__ import annotations

import random
from types import CellType
from typing import Any

import numpy as np
import torch

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
# Set by every pass anyway, or the state dict's own.
_SKIPPED = {"training", "_parameters", "_modules", "_buffers", "_non_persistent_buffers_set"}
_DEPTH = 4
_LARGE = 1 << 20
# Of optimizers: what their state dict holds, and notes of PyTorch's own that change no step.
_OF_OPTIMIZERS = {
    *("state", "param_groups", "defaults", "step", "_opt_called", "_zero_grad_profile_name"),
    *("_step_count", "_need_device_dtype_check_for_fused", "_warned_capturable_if_run_uncaptured"),
}


def fingerprint(*modules: Any) -> list[Any]:
    """What of these modules (others than modules are ignored) lies outside their state dicts."""
    found: list[Any] = []
    for root in modules:
        if isinstance(root, torch.nn.Module):
            mark = _Marker({id(tensor) for tensor in root.state_dict(keep_vars=True).values()})
            found += [(name, mark.module(module)) for name, module in root.named_modules()]
            found.append([parameter.requires_grad for parameter in root.parameters()])
    return found


def of_optimizer(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The same for an optimizer of the user's own; those of torch.optim keep all in their state dicts."""
    if type(optimizer).__module__.startswith("torch.optim."):
        return []
    tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    mark = _Marker({id(tensor) for tensor in tensors})
    inner = [
        value
        for value in optimizer.__dict__.values()
        if isinstance(value, torch.optim.Optimizer) and value.state is not optimizer.state
    ]
    return [mark.value(dict(value.state)) for value in inner] + [
        (name, mark.value(value))
        for name, value in optimizer.__dict__.items()
        if name not in _OF_OPTIMIZERS and not name.endswith("_hooks")
    ]


def of_functions(module: torch.nn.Module, *functions: Any) -> list[Any]:
    """What the user's functions, and the hooks of ``module``, keep in closures and attributes of their own."""
    mark = _Marker({id(tensor) for tensor in module.state_dict(keep_vars=True).values()})
    dicts = [
        value for part in module.modules() for name, value in part.__dict__.items() if name.endswith("_hooks")
    ]
    hooks = [hook for found in dicts if isinstance(found, dict) for hook in found.values()]
    return [mark.function(function) for function in (*functions, *hooks)]


def snapshot(module: torch.nn.Module, but: torch.nn.Module | None = None) -> list[tuple[Any, int]]:
    """The tensors of the state dict but those of ``but``, each with a number that grows with every change in place."""
    others = set() if but is None else {id(value) for value in but.state_dict(keep_vars=True).values()}
    values = module.state_dict(keep_vars=True).values()
    return [(value, version(value)) for value in values if id(value) not in others]


def changed(before: list[tuple[Any, int]], after: list[tuple[Any, int]]) -> bool:
    """Whether a tensor was changed in place between two snapshots, or replaced by one of other values."""
    return len(before) != len(after) or any(
        then != now if old is new else isinstance(old, torch.Tensor) and not _same_values(old, new)
        for (old, then), (new, now) in zip(before, after, strict=True)
    )


def _same_values(old: torch.Tensor, new: Any) -> bool:
    return isinstance(new, torch.Tensor) and old.dtype == new.dtype and torch.equal(old, new)


def version(value: Any) -> int:
    """How often a tensor was changed in place; 0 for what does not count it."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


class _Marker:
    """Makes something of each value that stays equal as long as the value does not change."""

    def __init__(self, known: set[int]) -> None:
        self._known = known  # tensors of the state dict, which modules may also hold in plain lists

    def module(self, module: torch.nn.Module) -> list[Any]:
        marks = [
            (name, self.value(value))
            for name, value in module.__dict__.items()
            if name not in _SKIPPED and not name.endswith("_hooks")
        ]
        hidden = sorted(module._non_persistent_buffers_set)
        return marks + [(name, self.value(module._buffers[name])) for name in hidden]

    def function(self, function: Any) -> list[Any]:
        kept = [
            cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != CellType()
        ]
        owner = getattr(function, "__self__", function)
        if not isinstance(owner, torch.nn.Module):
            kept += getattr(owner, "__dict__", {}).values()
        return [self.captured(value) for value in kept]

    def captured(self, value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            return [self.value(tensor) for tensor in value.state_dict(keep_vars=True).values()]
        if isinstance(value, np.ndarray) and value.nbytes > _LARGE:
            return _Same(value)  # a captured data set, rather than something to count in
        return self.value(value)

    def value(self, value: Any, depth: int = _DEPTH) -> Any:
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, _SIMPLE):
            return value
        if isinstance(value, torch.Tensor):
            return _Same(value), 0 if id(value) in self._known else version(value)
        if isinstance(value, np.ndarray):
            return _Same(value), value.tobytes() if value.dtype != object else b""
        if isinstance(value, torch.Generator):
            return _Same(value), value.get_state().numpy().tobytes()
        if isinstance(value, np.random.Generator):
            return _Same(value), repr(value.bit_generator.state)
        if isinstance(value, random.Random):
            return _Same(value), value.getstate()
        if depth and isinstance(value, (list, tuple)):
            return [self.value(item, depth - 1) for item in value]
        if depth and isinstance(value, dict):
            return [(_Same(key), self.value(item, depth - 1)) for key, item in value.items()]
        return _Same(value)


class _Same:
    """Equal if it holds the same object, whatever that object's own ``==`` says.

    Holding it keeps its id from being given to another.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and (
            self.value is other.value or (isinstance(self.value, _SIMPLE) and bool(self.value == other.value))
        )

    __hash__ = None  # type: ignore[assignment]
