"""Public names for experiments that a YAML file describes; a later version brings them."""

from __future__ import annotations

from hopyard.errors import name_of_later


def __getattr__(name: str) -> type:
    return name_of_later(__name__, name)
