"""Recognizes models that compute the same function of their variables: one compiled model serves all of them.

Tracing and compiling take seconds, and trials of a search often differ in their weights and learning rates only.
Two models are alike if the configurations of their layers, optimizers, losses and metrics are, and so is what classes
of the user's own keep in their attributes. Where that cannot be told, a model is compiled for itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cache
from types import FunctionType
from typing import Any

import keras

from hopyard.objects.identity import identity

_DEPTH = 32


def architecture(model: keras.Model, *others: Any) -> str | None:
    """Digest that is equal for models that are alike; ``others``: their arguments of ``compile`` but for optimizers.

    Learning rates that are variables do not count. None: it cannot be told.
    """
    with contextlib.suppress(Exception):  # configurations are the user's own code as well
        optimizer = _described(model.optimizer, 0)
        if isinstance(model.optimizer.learning_rate, keras.Variable):
            _without_rate(optimizer)
        parts = [
            keras.backend.backend(),
            keras.config.floatx(),
            keras.config.epsilon(),
            keras.config.image_data_format(),
            _described(model, 0),
            [[variable.path, variable.shape, str(variable.dtype)] for variable in model.variables],
            [layer.trainable for layer in model._flatten_layers()],
            optimizer,
            [_described(each, 0) for each in others],
        ]
        return identity(parts, "model").digest
    return None


def own_attributes(model: keras.Model) -> dict[str, str] | None:
    """Digests, by name, of attributes besides weights of a model's parts that are of the user's own classes.
    None: there are attributes that cannot be described."""
    with contextlib.suppress(Exception):
        return {
            f"{part or kind.__name__}.{name}": identity(value, "model").digest or ""
            for kind, part, attributes in _own(model, 0)
            for name, value in attributes.items()
        }
    return None


def _without_rate(optimizer: Any) -> None:
    config = optimizer["config"]
    config.pop("learning_rate", None)
    if isinstance(config.get("inner_optimizer"), dict):  # of one that scales losses
        config["inner_optimizer"].get("config", {}).pop("learning_rate", None)


def _described(value: Any, depth: int) -> Any:
    """``value`` with configurations in place of Keras' objects.

    Raises:
        TypeError: something in it has none.
    """
    if depth > _DEPTH:
        raise TypeError("nested too deeply")
    if isinstance(value, Mapping):
        return {key: _described(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_described(each, depth + 1) for each in value]
    if isinstance(value, keras.Variable):
        return {"variable": value.path}
    if hasattr(value, "get_config") and not isinstance(value, type):
        config = _described(value.get_config(), depth + 1)
        return {"class": type(value), "config": config, "own": _own(value, depth)}
    if value is None or isinstance(value, bool | int | float | str | bytes | type | FunctionType):
        return value
    if type(value).__module__ in ("numpy", "builtins"):
        return value
    raise TypeError(f"{type(value).__name__} says nothing of what it does")


def _own(value: Any, depth: int) -> Any:
    """Attributes that an object of the user's own class, and layers in it, keep besides their configurations."""
    found = []
    parts = value._flatten_layers() if isinstance(value, keras.Layer) else [value]
    for part in parts:
        if not type(part).__module__.startswith("keras."):
            names = sorted(vars(part).keys() - _of_keras(isinstance(part, keras.Model)))
            own = {name: _attribute(getattr(part, name), depth) for name in names}
            found.append([type(part), getattr(part, "name", None), own])
    return found


def _attribute(value: Any, depth: int) -> Any:
    if isinstance(value, keras.Layer):
        return {"layer": value.name}
    if isinstance(value, list | tuple):
        return [_attribute(each, depth + 1) for each in value]
    if isinstance(value, Mapping):
        return {key: _attribute(each, depth + 1) for key, each in value.items()}
    return _described(value, depth + 1)


@cache
def _of_keras(is_model: bool) -> frozenset[str]:
    """Attributes that every layer has."""
    built = {"built", "call", "_build_shapes_dict", "_called", "_losses_override"}
    return frozenset(vars(keras.Model() if is_model else keras.Layer())) | built
