"""Hidden state: changes by training that neither a state dict nor a trial's attributes hold.

A model that stays on its worker between visits must go on as one that was built anew and loaded.
Plain tensors, objects and non-persistent buffers would make the difference, so their
fingerprint is compared; a module that changes them is built anew for every visit.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Container, Iterable, Mapping
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch

from hopyard.training.torch.attributes import Name, Owner

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_DEPTH = 4
_LARGE = 1 << 20
# Of optimizers: what their state dict holds, and notes of PyTorch's own that change no step.
OF_OPTIMIZERS = {
    *("state", "param_groups", "defaults", "step", "_opt_called", "_zero_grad_profile_name"),
    *("_step_count", "_need_device_dtype_check_for_fused", "_warned_capturable_if_run_uncaptured"),
}


def fingerprint(
    owners: Iterable[Owner], modules: Iterable[Any] = (), but: Container[Name] = ()
) -> dict[Name, Any]:
    """A mark of every attribute of these objects, and of every buffer that is not persistent.

    Args:
        modules: their state dicts hold the tensors in them (others than modules are ignored).
        but: attributes that do not count.
    """
    mark = _Marker({id(tensor) for module in modules for tensor in _tensors(module)})
    found: dict[Name, Any] = {}
    for place, owner, skipped in owners:
        is_module = isinstance(owner, torch.nn.Module)
        for name, value in vars(owner).items():
            if name not in skipped and (place, name) not in but:
                found[place, name] = mark.value(value) if is_module else mark.captured(value)
        if is_module:
            for name in sorted(owner._non_persistent_buffers_set):
                found[place, name] = mark.value(owner._buffers[name])
    return found


def of_optimizer(optimizer: torch.optim.Optimizer, place: str) -> dict[Name, Any]:
    """Marks of an optimizer of the user's own; optimizers of torch.optim keep all in their state dicts."""
    if type(optimizer).__module__.startswith("torch.optim."):
        return {}
    tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    mark = _Marker({id(tensor) for tensor in tensors})
    inner = {
        (place, f"{name}.state"): mark.value(dict(value.state))
        for name, value in optimizer.__dict__.items()
        if isinstance(value, torch.optim.Optimizer) and value.state is not optimizer.state
    }
    return inner | {
        (place, name): mark.value(value)
        for name, value in optimizer.__dict__.items()
        if name not in OF_OPTIMIZERS and not name.endswith("_hooks")
    }


def of_functions(module: torch.nn.Module, functions: Mapping[str, Any]) -> dict[Name, Any]:
    """Marks of values in closures of the user's functions, and in closures and attributes of hooks of ``module``."""
    mark = _Marker({id(tensor) for tensor in _tensors(module)})
    found = {
        (place, name): mark.captured(value)
        for place, function in functions.items()
        for name, value in _closure(function)
    }
    dicts = [
        (name, value)
        for name, part in module.named_modules()
        for kind, value in part.__dict__.items()
        if kind.endswith("_hooks") and isinstance(value, dict)
    ]
    for number, (name, hook) in enumerate((name, hook) for name, hooks in dicts for hook in hooks.values()):
        place = f"hook {number} of {name or 'the model'}"
        owner = getattr(hook, "__self__", hook)
        kept = [] if isinstance(owner, torch.nn.Module) else list(getattr(owner, "__dict__", {}).items())
        found.update({(place, each): mark.captured(value) for each, value in [*_closure(hook), *kept]})
    return found


def of_globals(functions: Mapping[str, Any]) -> dict[Name, Any]:
    """Marks of global variables that the user's functions name, and may count or keep something in."""
    mark = _Marker(set())
    found: dict[Name, Any] = {}
    for place, function in functions.items():
        while isinstance(function, functools.partial):
            function = function.func
        names = function.__code__.co_names if isinstance(function, FunctionType) else ()
        for name in names:
            value = function.__globals__.get(name, ...)  # names of attributes are among them
            if isinstance(value, (*_SIMPLE, list, dict, np.ndarray, torch.Tensor, np.random.Generator)):
                found[place, name] = mark.value(value)
    return found


def differences(before: Mapping[Name, Any], now: Mapping[Name, Any], but: Container[Name]) -> list[str]:
    """Names of the values that have changed between two fingerprints."""
    paths = [path for path in now if path not in before or before[path] != now[path]]
    paths += [path for path in before.keys() - now.keys() if path not in but]
    return sorted({".".join(path) for path in paths})


def _tensors(module: Any) -> list[Any]:
    return list(module.state_dict(keep_vars=True).values()) if isinstance(module, torch.nn.Module) else []


def _closure(function: Any) -> list[tuple[str, Any]]:
    """Names and values of the variables of its surroundings that a function uses."""
    function = getattr(function, "__func__", function)
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    return [(name, cell.cell_contents) for name, cell in zip(names, cells, strict=True) if cell != CellType()]


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
    """Number of times that a tensor was changed in place; 0 for a value that does not count them."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


class _Marker:
    """Makes something of each value that stays equal as long as the value does not change."""

    def __init__(self, known: set[int]) -> None:
        self._known = known  # tensors of the state dict, which modules may also hold in plain lists

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
    """Holder of an object, equal to holders of the same object, without asking the object's own ``==``.

    Holding the object keeps its id from being given to another.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and (
            self.value is other.value or (isinstance(self.value, _SIMPLE) and bool(self.value == other.value))
        )

    __hash__ = None  # type: ignore[assignment]
