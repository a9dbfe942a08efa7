"""How far long work is: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from hopyard.data.progress import RowProgress


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shown_by(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_without_a_terminal_progress_is_a_line_now_and_then() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=20)
    with RowProgress(console, clock) as progress:
        for second in range(13):
            clock.now = 100.0 + second
            progress("reading", 1000 * (second + 1), 60_000)
        progress("writing", 10, None)
        clock.now += 5
        progress("writing", 30, None)
    assert shown_by(console) == [
        "reading: 6,000 of 60,000 rows, 1,000 rows/s, 54 s left",
        "reading: 11,000 of 60,000 rows, 1,000 rows/s, 49 s left",
        "writing: 30 rows, 4 rows/s",
    ]


def test_on_a_terminal_progress_is_a_bar_for_each_phase() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with RowProgress(console, unit="columns") as progress:
        progress("reading", 5, None)
        progress("writing", 40, 50)
    text = "\n".join(shown_by(console))
    assert "reading" in text
    assert "5 columns" in text
    assert "40 of 50 columns" in text


def test_a_share_is_shown_where_nobody_counts() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=20)
    with RowProgress(console, clock, every=10) as progress:
        for second in range(11):
            clock.now = 100.0 + second
            progress("reading", second / 40, None)
    assert shown_by(console) == ["reading: 25%, 30 s left"]
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with RowProgress(console) as progress:
        progress("reading", 0.37, None)
    text = "\n".join(shown_by(console))
    assert "37%" in text
    assert "rows" not in text
