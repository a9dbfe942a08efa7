"""Problems of a configuration: which field breaks which rule, and what to do about it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from hopyard.errors import ConfigError
from hopyard.search.points import Path
from hopyard.search.spaces import name_of
from hopyard.wording import shortened

Problem: TypeAlias = tuple[str, str]
"""The path of a field, such as ``hyperparameters.layers[2].lr``, and the rest of a sentence about it that has the rule
and the next step."""


def problems_error(source: str, problems: Sequence[Problem]) -> ConfigError:
    """The error that holds all problems of a configuration; ``source`` names it, such as the path of its file."""
    lines = [f"{shortened(path, 200)} {text}" if path else text for path, text in problems]
    if len(lines) == 1:
        return ConfigError(f"{source}: {lines[0]}", problems)
    listed = "\n".join(f"  {line}" for line in lines)
    return ConfigError(f"{source} has {len(lines)} problems:\n{listed}", problems)


def no_mapping(source: str, value: Any) -> ConfigError:
    """The error that a whole configuration is no mapping, but a list, say."""
    return ConfigError(
        f"{source} holds {kind_of(value)}, but a configuration is a mapping of fields to values. Write lines such as "
        "entrypoint: model_def:DigitsTrial."
    )


def kind_of(value: Any) -> str:
    """The kind of a plain value, in words that do not show the value."""
    kinds = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", int: "a whole number",
             float: "a number", type(None): "null"}  # fmt: skip
    return kinds.get(type(value), f"a {type(value).__name__}")


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


def problems_of_objects(value: Any, path: Path = ()) -> Iterator[Problem]:
    """A problem for each part of a value that is not plain, as YAML never gives one, but a call in Python may."""
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(key, str):
                yield from problems_of_objects(each, (*path, key))
            else:
                yield name_of(path), f"has the key {key!r}, but keys are texts. Put it in quotes."
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from problems_of_objects(each, (*path, index))
    elif not isinstance(value, str | int | float | None):
        rule = "but a configuration holds texts, numbers, True, False, None, lists and dicts. Convert it."
        yield name_of(path), f"is an object of type {type(value).__name__}, {rule}"
    elif isinstance(value, float) and not math.isfinite(value):
        yield name_of(path), f"is {value}, but numbers are finite. Write a text."
    elif isinstance(value, int) and abs(value) > sys.float_info.max:
        yield (
            name_of(path),
            "is a whole number of more digits than a float can hold. Write a smaller one, or a text.",
        )
