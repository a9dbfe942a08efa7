"""One output of a notebook's cell that is replaced while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

EVERY = 0.5
"""Seconds between two updates."""


class LiveOutput:
    """HTML below a cell, as it is now. Later output of the cell is printed below it; no widgets are needed.

    Args:
        html, text: what to show, where HTML is shown and elsewhere.
    """

    def __init__(self, html: Callable[[], str], text: Callable[[], str]) -> None:
        self._html, self._text = html, text
        self._handle: Any = None
        self._shown = 0.0

    @property
    def is_started(self) -> bool:
        return self._handle is not None

    def start(self) -> None:
        """Show the output; once is enough."""
        if self._handle is None:
            from IPython.display import display

            self._handle = display(self._bundle(), raw=True, display_id=True)

    def changed(self) -> None:
        """Show what is new, if it is long enough since the last time."""
        if self._handle is not None and time.monotonic() - self._shown >= EVERY:
            self._handle.update(self._bundle(), raw=True)

    def stop(self) -> None:
        """Show what is new, and leave it there."""
        self._handle.update(self._bundle(), raw=True)
        self._handle = None

    def _bundle(self) -> dict[str, str]:
        self._shown = time.monotonic()
        return {"text/html": str(self._html()), "text/plain": self._text()}
