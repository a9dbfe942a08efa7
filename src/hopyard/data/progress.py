"""Progress of long work: bars that move on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from hopyard.terminal import Terminal
from hopyard.wording import describe_seconds, visible

SELDOM = 30.0
"""Seconds between two lines in output of others than commands, such as the log of a job."""


class RowProgress:
    """Progress of long work, phase by phase: bars on a terminal, elsewhere a line every few seconds.

    Args:
        console: the console to write to; None: standard error, so that a command's output can be piped.
        clock: seconds.
        unit: name of the things that are counted.
        every: seconds between two lines, where there is no terminal.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "rows",
        every: float = 5.0,
    ) -> None:
        self._console = console or Terminal(stderr=True)
        self._clock = clock
        self._unit = unit
        self._every = every
        self._bars = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), _Count(unit), _Speed(unit),
            TimeRemainingColumn(), console=self._console, transient=True,
        )  # fmt: skip
        self._phase = ""
        self._bar = TaskID(0)
        self._began = self._said = self._first = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, phase: str, done: float, total: int | None) -> None:
        """Show that ``done`` rows of the phase are done, or as a float the share of it where rows are not counted;
        ``total`` None: the number of rows is unknown."""
        now, is_share = self._clock(), isinstance(done, float)
        whole = 1 if is_share else total
        if phase != self._phase:
            self._phase, self._began, self._said, self._first = phase, now, now, done
            if self._console.is_terminal:
                self._bar = self._bars.add_task(visible(phase), total=whole, is_share=is_share)
        if self._console.is_terminal:
            self._bars.update(self._bar, completed=done, total=whole)
        elif now - self._said >= self._every:
            self._said = now
            self._line(done, whole, now - self._began)

    def _line(self, done: float, total: int | None, seconds: float) -> None:
        speed = (done - self._first) / seconds
        of = "" if total is None else f" of {total:,}"
        what = f"{done:,}{of} {self._unit}, {speed:,.0f} {self._unit}/s"
        if isinstance(done, float):
            what = f"{done:.0%}"
        left = ""
        if total is not None and speed > 0:
            left = f", {describe_seconds((total - done) / speed)} left"
        text = f"{self._phase}: {what}{left}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Count(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        if task.fields["is_share"]:
            return Text(f"{task.completed:.0%}")
        of = "" if task.total is None else f" of {int(task.total):,}"
        return Text(f"{int(task.completed):,}{of} {self._unit}")


class _Speed(_Count):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None or task.fields["is_share"] else f"{speed:,.0f} {self._unit}/s")
