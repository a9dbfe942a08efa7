"""Backends, which run units: N workers, each runs a function and returns a future."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.missing import imported_later

if TYPE_CHECKING:
    from hopyard.backend.base import Backend
    from hopyard.backend.inline import InlineBackend
    from hopyard.backend.local import LocalBackend
    from hopyard.backend.ray import RayBackend
    from hopyard.backend.spark import SparkBackend

__all__ = ["Backend", "InlineBackend", "LocalBackend", "RayBackend", "SparkBackend"]

_MODULES = {
    "Backend": ".base",
    "InlineBackend": ".inline",
    "LocalBackend": ".local",
    "RayBackend": ".ray",
    "SparkBackend": ".spark",
}

if not TYPE_CHECKING:  # for type checkers, a name that is not imported above is a mistake
    # Names are imported when first asked for: workers need none of them.
    __getattr__, __dir__ = imported_later(__name__, _MODULES, __all__)
