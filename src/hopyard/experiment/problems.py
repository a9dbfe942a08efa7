"""Problems of a configuration: which field breaks which rule, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from hopyard.errors import ConfigError
from hopyard.search.points import Path

Problem: TypeAlias = tuple[str, str]
"""The path of a field, such as ``hyperparameters.layers[2].lr``, and the rest of a sentence about it that has the rule
and the next step."""


def problems_error(source: str, problems: Sequence[Problem]) -> ConfigError:
    """The error that holds all problems of a configuration; ``source`` names it, such as the path of its file."""
    lines = [f"{path} {text}" if path else text for path, text in problems]
    if len(lines) == 1:
        return ConfigError(f"{source}: {lines[0]}", problems)
    listed = "\n".join(f"  {line}" for line in lines)
    return ConfigError(f"{source} has {len(lines)} problems:\n{listed}", problems)


def kind_of(value: Any) -> str:
    """The kind of a plain value, in words that do not show the value."""
    kinds = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", int: "a whole number",
             float: "a number", type(None): "null"}  # fmt: skip
    return kinds.get(type(value), f"an object of type {type(value).__name__}")


def texts(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """All texts in a plain value but its keys, and their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from texts(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from texts(each, (*path, index))
