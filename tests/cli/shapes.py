"""Shapes of JSON documents: which keys they have, and of which type the values are."""

from __future__ import annotations

import json
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
