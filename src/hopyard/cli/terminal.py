"""Printing for the commands: tables that fit, lines that nobody breaks, texts of others as nothing but text."""

from __future__ import annotations

import os

from hopyard.terminal import Terminal

WIDTH_OF_PIPES = 160
"""Columns of a table that goes into a file or another program."""


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
