"""Public names for experiments that a YAML file describes; a later version brings them."""

from __future__ import annotations

from hopyard.missing import name_of_later

__all__: list[str] = []


def __getattr__(name: str) -> type:
    return name_of_later(__name__, name)
