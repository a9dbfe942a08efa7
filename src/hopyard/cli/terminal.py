"""Printing for the commands: tables that fit, lines that nobody breaks, JSON; texts of others as nothing but text."""

from __future__ import annotations

import json
import os
import re
from typing import Annotated

import typer

from hopyard.documents.values import to_json
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


def _write(text: str) -> None:
    escaped = _NOT_ASCII.sub(
        lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text
    )
    typer.echo(escaped.encode())
