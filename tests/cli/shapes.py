"""JSON documents of commands: which keys they have, of which type the values are, whether the page documents them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any


def shape(value: Any) -> Any:
    """The document with types in place of values; of an array the shape of its first element, ``[]`` if none."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return {str: "text", bool: "bool", int: "int", float: "float", type(None): None}[type(value)]


def document(text: str) -> Any:
    """The one JSON document of ``text``, which has nothing else, and no numbers that RFC 8259 lacks."""
    return json.loads(text, parse_constant=_refuse)


def lines(text: str) -> list[Any]:
    """The documents of ``text``, one a line."""
    assert text.endswith("\n")
    return [document(line) for line in text.splitlines()]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def undocumented(command: str, found: Any) -> set[str]:
    """The keys of what ``hopyard COMMAND --json`` printed that the section of docs/cli.md about it does not name.

    Of maps whose keys are names that users gave, only the map itself must be named.
    """
    return set(_keys(found)) - _documented(f"hopyard {command}")


_NAMED_BY_USERS = {
    "params",
    "metrics",
    "settings",
    "config",
    "search_space",
    "tags",
    "partitions",
    "value",
    "values",
    "git",
    "data",
}


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _keys(each)
    elif isinstance(value, dict):
        yield from value
        for name, each in value.items():
            if name not in _NAMED_BY_USERS or isinstance(each, list):
                yield from _keys(each)


def _documented(command: str) -> set[str]:
    """The words of the section's tables, and of the sections of commands that they name."""
    [section] = [text for text in _sections() if f"`{command}`" in text.partition("\n")[0]]
    tables = [line for line in section.splitlines() if line.startswith("|") or "`--json` prints" in line]
    words = set(re.findall(r"`([^`\n]+)`", "\n".join(tables)))
    others = {word for word in words if word.startswith("hopyard ") and word != command}
    return words.union(*(_documented(other) for other in others))


@cache
def _sections() -> list[str]:
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    return page.read_text(encoding="utf-8").split("\n## ")[1:]
