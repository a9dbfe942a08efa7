"""What the commands print with: tables that fit, lines that nobody breaks, bars that move."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

WIDTH_OF_PIPES = 160
"""Columns of a table that goes into a file or another program."""

_LINE_EVERY = 5.0  # seconds, where there is no terminal


def console() -> Console:
    """A console as wide as the terminal; elsewhere as wide as ``COLUMNS`` says, or wide enough for a table."""
    found = Console()
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Console(width=WIDTH_OF_PIPES)
    return found


def say(text: str, style: str | None = None) -> None:
    """Print ``text`` as it is: no markup, no colours of its own, no line breaks of its own."""
    Console().print(text, style=style, markup=False, highlight=False, soft_wrap=True)


class RowProgress:
    """How far long work is, phase by phase: bars on a terminal, elsewhere a line every five seconds.

    Args:
        console: where to; None: standard error, so that what a command prints can be piped.
        clock: seconds.
        unit: what is counted.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "rows",
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._unit = unit
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), _Count(unit), _Speed(unit), TimeRemainingColumn(),
            console=self._console, transient=True,
        )  # fmt: skip
        self._phase = ""
        self._bar = TaskID(0)
        self._began = self._said = 0.0
        self._first = 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """So many rows of the phase are done; ``total`` None: nobody knows how many there are."""
        now = self._clock()
        if phase != self._phase:
            self._phase, self._began, self._said, self._first = phase, now, now, done
            if self._console.is_terminal:
                self._bar = self._bars.add_task(phase, total=total)
        if self._console.is_terminal:
            self._bars.update(self._bar, completed=done, total=total)
        elif now - self._said >= _LINE_EVERY:
            self._said = now
            self._line(done, total, now - self._began)

    def _line(self, done: int, total: int | None, seconds: float) -> None:
        speed = (done - self._first) / seconds
        of = "" if total is None else f" of {total:,}"
        left = ""
        if total is not None and speed:
            left = f", {describe_seconds((total - done) / speed)} left"
        text = f"{self._phase}: {done:,}{of} {self._unit}, {speed:,.0f} {self._unit}/s{left}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Count(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        of = "" if task.total is None else f" of {int(task.total):,}"
        return Text(f"{int(task.completed):,}{of} {self._unit}")


class _Speed(_Count):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self._unit}/s")


def describe_seconds(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
