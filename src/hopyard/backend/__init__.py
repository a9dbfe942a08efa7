"""Backends, which run units: N workers, each runs a function and returns a future."""

from hopyard.backend.base import Backend
from hopyard.backend.inline import InlineBackend
from hopyard.backend.local import LocalBackend
from hopyard.backend.ray import RayBackend
from hopyard.backend.spark import SparkBackend
from hopyard.missing import name_of_elsewhere

__all__ = ["Backend", "InlineBackend", "LocalBackend", "RayBackend", "SparkBackend"]


def __getattr__(name: str) -> type:
    return name_of_elsewhere(__name__, name, __all__)
