"""Printing for the commands: tables that fit, lines that nobody breaks, JSON; texts of others as nothing but text."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any

import typer

from hopyard.terminal import Terminal

WIDTH_OF_PIPES = 160
"""Columns of a table that goes into a file or another program."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print it as JSON, for programs.")]
"""The option of commands that show something; its parameter is ``as_json: JsonOption = False``."""

JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print it as JSON, for programs: an object a line.")
]
"""The option of commands that print as they go."""

_NOT_ASCII = re.compile(r"[^\n -~]")


def console() -> Terminal:
    """A console as wide as the terminal; elsewhere as wide as ``COLUMNS`` says, or wide enough for a table."""
    found = Terminal()
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Terminal(width=WIDTH_OF_PIPES)
    return found


def say(text: str, style: str | None = None) -> None:
    """Print ``text`` as it is: no markup, no colours of its own, no line breaks of its own."""
    Terminal().print(text, style=style, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """Print an error or a warning to standard error, like ``say``."""
    Terminal(stderr=True).print(text, highlight=False, soft_wrap=True)


def show_json(value: object) -> None:
    """Print ``value``, as ``to_json`` gives it, as one JSON document of RFC 8259 over several lines, in UTF-8.

    Characters that a terminal does not show as themselves are escaped, as are halves of surrogate pairs, of which
    names of files may have some.
    """
    _write(json.dumps(to_json(value), indent=2, ensure_ascii=False, allow_nan=False))


def show_json_line(value: object) -> None:
    """Print ``value`` as ``show_json`` does, but on one line, at once: for commands that print as they go."""
    _write(json.dumps(to_json(value), ensure_ascii=False, allow_nan=False))


def to_json(value: object) -> Any:
    """``value`` as JSON has it.

    Dataclasses are objects of their public fields, enumerations their values, paths texts, sets sorted arrays; times
    are ISO 8601 in UTC with whole seconds (``2026-01-31T10:00:00Z``; one without a zone is of this machine's), spans
    of time are seconds; scalars and arrays of numpy are numbers and arrays. JSON lacks NaN and infinities: they are
    null.

    Raises:
        TypeError: a value is of another type.
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, Set):
        return [to_json(each) for each in sorted(value)]
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        named = [each.name for each in fields(value) if not each.name.startswith("_")]
        return {name: to_json(getattr(value, name)) for name in named}
    return _scalar_to_json(value)


def _scalar_to_json(value: object) -> Any:
    match value:
        case Enum():
            return to_json(value.value)
        case PurePath():
            return str(value)
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    raise TypeError(
        f"{type(value).__name__} has no form in JSON that to_json knows. Give it a value of those that it names."
    )


def _write(text: str) -> None:
    escaped = _NOT_ASCII.sub(
        lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text
    )
    typer.echo(escaped.encode())
