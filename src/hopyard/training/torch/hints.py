"""Hints at what to do about errors of libraries that change a model: adapters that match nothing in it."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn

from hopyard.wording import some_names


def hint(error: Exception) -> str:
    """The modules that an adapter could target, if ``error`` is PEFT's about one that targets none; else empty."""
    if type(error).__name__ != "NoMatchingPeftModuleError":
        return ""
    for frame in _frames(error):
        model = frame.f_locals.get("model")
        if isinstance(model, nn.Module):
            names = list(dict.fromkeys(_targets(model)))
            return f"target_modules of {type(model).__name__} can be: {some_names(names)}."
    return ""


def _frames(error: Exception) -> Iterator[FrameType]:
    """The frames that the error passed, innermost first."""
    found: list[FrameType] = []
    traceback: Any = error.__traceback__
    while traceback is not None:
        found.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return reversed(found)


def _targets(model: nn.Module) -> Iterator[str]:
    """The last parts of the names of modules with a matrix."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if name and getattr(weight, "ndim", 0) > 1:
            last = name.rpartition(".")[2]
            yield name if last.isdigit() else last
