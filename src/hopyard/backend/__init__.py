"""Where units run: N workers, each runs a function and returns a future."""

from typing import NoReturn

from hopyard.backend.base import Backend
from hopyard.backend.inline import InlineBackend
from hopyard.backend.local import LocalBackend
from hopyard.backend.ray import RayBackend
from hopyard.backend.spark import SparkBackend
from hopyard.errors import no_name

__all__ = ["Backend", "InlineBackend", "LocalBackend", "RayBackend", "SparkBackend"]


def __getattr__(name: str) -> NoReturn:
    raise no_name(__name__, name, __all__)
