"""What the commands print with: tables that fit, lines that nobody breaks."""

from __future__ import annotations

import os

from rich.console import Console

WIDTH_OF_PIPES = 160
"""Columns of a table that goes into a file or another program."""


def console() -> Console:
    """A console as wide as the terminal; elsewhere as wide as ``COLUMNS`` says, or wide enough for a table."""
    found = Console()
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Console(width=WIDTH_OF_PIPES)
    return found


def say(text: str, style: str | None = None) -> None:
    """Print ``text`` as it is: no markup, no colours of its own, no line breaks of its own."""
    Console().print(text, style=style, markup=False, highlight=False, soft_wrap=True)
