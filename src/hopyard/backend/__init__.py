"""Backends, which run units: N workers, each runs a function and returns a future."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hopyard.missing import name_of_elsewhere

if TYPE_CHECKING:
    from hopyard.backend.base import Backend
    from hopyard.backend.inline import InlineBackend
    from hopyard.backend.local import LocalBackend
    from hopyard.backend.ray import RayBackend
    from hopyard.backend.spark import SparkBackend

__all__ = ["Backend", "InlineBackend", "LocalBackend", "RayBackend", "SparkBackend"]

_MODULES = {
    "Backend": "base",
    "InlineBackend": "inline",
    "LocalBackend": "local",
    "RayBackend": "ray",
    "SparkBackend": "spark",
}

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake

    def __getattr__(name: str) -> type:
        """Names are imported when first asked for: workers need none of them."""
        if name not in _MODULES:
            return name_of_elsewhere(__name__, name, __all__)
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
