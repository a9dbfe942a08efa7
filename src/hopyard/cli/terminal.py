"""Printing for the commands: tables that fit, lines that nobody breaks, texts of others as nothing but text."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from hopyard.terminal import Terminal
from hopyard.wording import visible

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


@contextmanager
def said_warnings() -> Iterator[None]:
    """Warnings for users as lines on standard error, when the command has ended."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for warning in caught:
                complain(str(warning.message))


class Commands(TyperGroup):
    """Commands whose usage errors show what was typed, which a shell's ``*`` may have, as ``say`` would."""

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Parse the arguments."""
        with _visible_errors():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _visible_errors(), said_warnings():
            return super().invoke(ctx)


@contextmanager
def _visible_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the parser, whose class Typer keeps to itself
            error.message = visible(str(error.message))  # type: ignore[attr-defined]
        raise
