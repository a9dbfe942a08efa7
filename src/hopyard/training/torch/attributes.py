"""Plain Python attributes that training changes (a step counter, a temperature, a list of values) in a trial's state.

Plain are booleans, whole and floating numbers, NumPy's scalars, strings, None, and lists, tuples and dicts of these.
Which parameters are frozen (``requires_grad``) belongs to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from hopyard.objects import Tensor

KEY = "attributes."
"""Where they are in the tree of a model. No name in a state dict ends with a dot."""

_FROZEN = "requires_grad"
_ATOMS = (bool, int, float, str, type(None))
_DEPTH = 16
# Set by every pass anyway, or the state dict's own.
_OF_MODULES = frozenset(vars(torch.nn.Module()))

Name: TypeAlias = tuple[str, str]
"""Where an object is, and the attribute's name."""
Owner: TypeAlias = tuple[str, Any, frozenset[str]]
"""Where an object is, the object, and names of its attributes that do not count."""


class _NotPlainError(Exception):
    pass


class Attributes:
    """Plain attributes of some objects, as far as training has changed them.

    The objects have the values that they were built with, apart from while they are used: they may be the estimator
    function's surroundings, which other trials use too.

    Args:
        owners: gives the objects; their places are such as ``model.encoder``.
        modules: training may freeze parameters of these.
    """

    def __init__(self, owners: Callable[[], Iterable[Owner]], *modules: torch.nn.Module) -> None:
        self._owners, self._modules = owners, modules
        self._initial = self._read()
        self._others = {
            (place, name): value
            for place, owner, skipped in owners()
            for name, value in vars(owner).items()
            if (place, name) not in self._initial and name not in skipped
        }
        self._changed: dict[Name, list[Any]] = {}
        self._is_applied = self._is_given_out = False

    def tree(self) -> dict[str, Any]:
        """Differences from the values that the objects were built with: ``{place: {name: [value]}}``, without a value
        where the attribute is gone; empty if there are none."""
        found: dict[str, Any] = {}
        for (place, name), value in self._changed.items():
            found.setdefault(place, {})[name] = _encoded(value)
        return found

    def load(self, tree: Mapping[str, Any]) -> None:
        """Have the attributes of ``tree`` from the next use on."""
        if self._is_applied:
            self.reset()
        self._changed = {
            (place, name): _decoded(value) for place, names in tree.items() for name, value in names.items()
        }

    def plain(self) -> set[Name]:
        """Attributes that are plain now."""
        return set(self._read())

    def apply(self) -> None:
        """Give the objects, which have the values that they were built with, those of the state."""
        if not self._is_applied and not self._is_given_out:
            self._write(self._changed)
            self._is_applied = True

    def reset(self) -> None:
        """Give the objects the values that they were built with."""
        if self._is_given_out:
            return
        now, objects = self._read(), self._objects()
        for path in now.keys() - self._initial.keys():
            place, name = path
            if path in self._others:
                vars(objects[place])[name] = self._others[path]
            elif place != _FROZEN:
                del vars(objects[place])[name]
        self._write(
            {
                path: [value]
                for path, value in self._initial.items()
                if path not in now or _differ(value, now[path])
            }
        )
        self._is_applied = False

    def give_out(self) -> None:
        """Give the objects the values of the state for good: they are the user's from now on."""
        self.apply()
        self._is_given_out = True

    @contextmanager
    def in_use(self, keep: bool) -> Iterator[None]:
        """Give the objects the values of the state meanwhile; ``keep``: what changes belongs to the state then."""
        self.apply()
        try:
            yield
            if keep:
                self._changed = self._differences()
        finally:
            self.reset()

    def _differences(self) -> dict[Name, list[Any]]:
        now, objects = self._read(), self._objects()
        found: dict[Name, list[Any]] = {
            path: [value]
            for path, value in now.items()
            if path not in self._initial or _differ(value, self._initial[path])
        }
        for place, name in self._initial.keys() - now.keys():
            if place in objects and name not in vars(objects[place]):
                found[place, name] = []
        return dict(sorted(found.items()))

    def _objects(self) -> dict[str, Any]:
        return {place: owner for place, owner, _ in self._owners()}

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return {
            f"{number}.{name}": parameter
            for number, module in enumerate(self._modules)
            for name, parameter in module.named_parameters()
        }

    def _read(self) -> dict[Name, Any]:
        """A copy of every plain attribute."""
        met: dict[int, Any] = {}
        found: dict[Name, Any] = {}
        for place, owner, skipped in self._owners():
            for name, value in vars(owner).items():
                if name not in skipped:
                    try:
                        found[place, name] = _copied(value, met)
                    except _NotPlainError:
                        continue
        for name, parameter in self._parameters().items():
            found[_FROZEN, name] = parameter.requires_grad
        return found

    def _write(self, wanted: Mapping[Name, list[Any]]) -> None:
        if not wanted:
            return
        objects, parameters = self._objects(), self._parameters()
        for (place, name), value in wanted.items():
            if place == _FROZEN:
                if name in parameters:
                    parameters[name].requires_grad_(value[0])
            elif place in objects:
                _set(vars(objects[place]), name, value)


def without_attributes(tree: Any) -> Any:
    """The state dict in the tree of a model."""
    return {name: value for name, value in tree.items() if name != KEY} if KEY in tree else tree


def owners(place: str, thing: Any, but: frozenset[str] = frozenset()) -> Iterator[Owner]:
    """The objects that count in ``thing``: a module and those in it, or a function of the user's.

    Args:
        but: names of attributes that do not count.
    """
    owner = getattr(thing, "__self__", thing)
    if isinstance(owner, torch.nn.Module):
        for name, part in owner.named_modules():
            hooks = {each for each in vars(part) if each.endswith("_hooks")}
            yield (f"{place}.{name}" if name else place), part, _OF_MODULES | hooks | but
    elif not isinstance(owner, (type, ModuleType)) and hasattr(owner, "__dict__"):
        yield place, owner, but


def _differ(value: Any, other: Any) -> bool:
    """Whether two values are not the same bits: 1, 1.0 and True are three."""
    return type(value) is not type(other) or (value is not other and repr(value) != repr(other))


def _set(attributes: dict[str, Any], name: str, value: list[Any]) -> None:
    if not value:
        attributes.pop(name, None)
        return
    new, old = _copied(value[0], {}), attributes.get(name)
    # In place: functions may hold the same list.
    if type(old) is list and type(new) is list:
        old[:] = new
    elif type(old) is dict and type(new) is dict:
        old.clear()
        old.update(new)
    else:
        attributes[name] = new


def _copied(value: Any, met: dict[int, Any], depth: int = _DEPTH) -> Any:
    """A copy that shares no list or dict with the value.

    Args:
        met: lists and dicts so far. One that is met twice is no tree: its copies would no longer be the same object.

    Raises:
        _NotPlainError: it is no plain value.
    """
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind in _ATOMS:
        return value
    if isinstance(value, (np.bool_, np.integer, np.floating)) and value.dtype.name in _OF_NUMPY:
        return value
    if not depth:
        raise _NotPlainError
    if kind is tuple:
        return tuple(_copied(item, met, depth - 1) for item in value)
    if kind is list or kind is dict:
        if id(value) in met:
            raise _NotPlainError
        met[id(value)] = value
        if kind is list:
            return [_copied(item, met, depth - 1) for item in value]
        if all(type(key) is int or (type(key) is str and _text(key) is key) for key in value):
            return {key: _copied(item, met, depth - 1) for key, item in value.items()}
    raise _NotPlainError


_OF_NUMPY = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
}


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _NotPlainError from None
    return value


def _encoded(value: Any) -> Any:
    """``value`` as part of a tree, with NumPy's scalars as tensors."""
    if isinstance(value, np.generic):
        return Tensor.from_numpy(np.array(value))
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_encoded, value))
    return value


def _decoded(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.numpy().copy()[()]
    if isinstance(tree, dict):
        return {key: _decoded(item) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(_decoded, tree))
    return tree
