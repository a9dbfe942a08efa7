"""What a run shows while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hopyard.backend import Backend
from hopyard.errors import Evidence
from hopyard.hopper.state import Record, RunState, TrialState
from hopyard.tune.callbacks import ends_epoch

MOST_ROWS = 24
_COLOURS = {"running": "cyan", "completed": "green", "stopped": "yellow", "failed": "red"}


@dataclass(frozen=True)
class _Row:
    trial: int
    params: str
    status: str
    epochs: int
    visits: int
    planned: int
    worker: int | None
    loss: float | None
    value: float | None
    best: float | None


class Progress:
    """Shows a run. An observer of the hopper, and the place where its messages go."""

    def __init__(self, enabled: bool = True, console: Console | None = None) -> None:
        self._console = console or Console()
        self._enabled = enabled
        self._rows: dict[int, _Row] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._title, self._metric, self._units, self._total = "", "", 0, 0
        self._maximize = False
        self._began = time.monotonic()
        self._live = Live(self, console=self._console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def say(self, message: str) -> None:
        """A message that the user should see, also without progress."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def checking(self, backend: Backend) -> None:
        """The workers start, and try one batch."""
        if self._enabled:
            self.say(f"checking one batch on {backend.num_workers} {backend.name} workers")

    def preparing(self, rows: int, total: int) -> None:
        """So many rows of the data are prepared."""
        if self._enabled:
            self.say(f"prepared {rows:,} of {total:,} rows")

    def __call__(self, state: RunState, record: Record) -> None:
        if not self._enabled:
            return
        kind = record["r"]
        if kind == "session":
            self._begin(state, record)
        elif kind == "unit":
            for number in record["t"]:
                self._update(state, state.trials[number], record["w"])
            if ends_epoch(state, record) and not self._live.is_started:
                self._say_epochs(state, record)
        elif kind in ("trial", "end"):
            trial = state.trials[record["n" if kind == "trial" else "t"]]
            self._update(state, trial, None)
            if trial.error is not None:
                self._say_failure(trial, trial.error)
        elif kind == "back":
            for number in record["t"]:
                self._update(state, state.trials[number], None)
        elif kind == "lost":
            self.say(
                f"worker {record['w']} was lost in trial {record['t'][0]}; the unit is done again. {record['why']}"
            )

    def _say_failure(self, trial: TrialState, error: Evidence) -> None:
        """In full once; of trials that fail alike, a line each."""
        first = self._failures.setdefault((error.kind, error.message), trial.number)
        what = f"trial {trial.number} {trial.params} failed"
        if first == trial.number:
            self.say(f"{what}: {error.describe()}")
        else:
            self.say(f"{what} like trial {first}: {error.kind}: {error.message}")

    def _begin(self, state: RunState, record: Record) -> None:
        header = state.header
        self._title = f"run {header['run_id']} on {record['workers']} {record['backend']} workers"
        self._metric, self._maximize = state.metric.key, state.metric.mode == "max"
        for trial in state.trials.values():
            self._update(state, trial, None)
        if self._console.is_terminal and not self._console.is_jupyter:
            self._live.start()
        else:
            self.say(f"{self._title}: {header['layout']['train']} partitions, {header['num_epochs']} epochs")

    def _update(self, state: RunState, trial: TrialState, worker: int | None) -> None:
        known = self._rows.get(trial.number)
        losses, values = trial.history.get("train_loss"), trial.history.get(self._metric)
        visits = trial.progress.visits
        row = _Row(
            trial=trial.number,
            params=known.params if known else describe_params(trial.params),
            status=trial.status,
            epochs=trial.epochs,
            visits=visits,
            planned=state.num_epochs * state.layout.units if trial.running else visits,
            worker=worker if worker is not None or known is None else known.worker,
            loss=losses[-1] if losses else None,
            value=values[-1] if values else None,
            best=trial.best.value if trial.best else None,
        )
        # Kept up by differences: going through all trials at each record would take ever longer.
        self._units += row.visits - (known.visits if known else 0)
        self._total += row.planned - (known.planned if known else 0)
        self._rows[trial.number] = row

    def _say_epochs(self, state: RunState, record: Record) -> None:
        for number in record["t"]:
            trial = state.trials[number]
            metrics = "  ".join(f"{name} {values[-1]:.4g}" for name, values in trial.history.items())
            self.say(
                f"trial {number} {describe_params(trial.params)}  epoch {trial.epochs}/{state.num_epochs}  {metrics}"
            )

    # The table ------------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        everything = list(self._rows.values())  # this runs on the display's thread
        most = max(1, min(MOST_ROWS, self._console.height - 4))  # title, header, caption, the cursor's line
        by_number = len(everything) <= most
        rows = heapq.nsmallest(most, everything, key=_number if by_number else self._promise)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("trial", "epoch", "loss", self._metric.removeprefix("val_"), "worker"):
            width = max(len(name), len("completed") if name == "worker" else len("0.1234"))
            table.add_column(name, justify="right", no_wrap=True, min_width=width)
        table.add_column("hyperparameters", no_wrap=True)
        for row in rows:
            worker = "" if row.worker is None else str(row.worker)
            colour = _COLOURS[row.status]
            cells = (
                str(row.trial),
                str(row.epochs),
                describe_number(row.loss),
                describe_number(row.value),
                worker if row.status == "running" else row.status,
                row.params,
            )
            table.add_row(*(Text(cell, style=colour) for cell in cells))
        if not by_number:
            table.caption = f"and {len(everything) - most:,} more trials"
        return Group(Text(self._headline(), style="bold"), table)

    def _promise(self, row: _Row) -> tuple[bool, float, int]:
        """Sorts trials that go on before those that ended, and the best first."""
        best = float("inf") if row.best is None else (-row.best if self._maximize else row.best)
        return (row.status != "running", best, row.trial)

    def _headline(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{self._title}: {self._units:,} of {self._total:,} units, {seconds:.0f} s"


def _number(row: _Row) -> int:
    return row.trial


def describe_params(params: Any) -> str:
    """``lr=0.01 width=64`` from a point of a search space; nested names are joined with dots."""
    return " ".join(_pairs(params, ""))


def _pairs(params: Any, prefix: str) -> list[str]:
    pairs: list[str] = []
    for name, value in params.items():
        if isinstance(value, dict):
            pairs += _pairs(value, f"{prefix}{name}.")
        else:
            pairs.append(
                f"{prefix}{name}={value:.4g}" if isinstance(value, float) else f"{prefix}{name}={value}"
            )
    return pairs


def describe_number(value: float | None) -> str:
    """A metric's value in four decimals, or in four digits if that would hide it; nothing for None."""
    if value is None:
        return ""
    return f"{value:.4f}" if value == 0 or 0.01 <= abs(value) < 1e5 else f"{value:.4g}"
