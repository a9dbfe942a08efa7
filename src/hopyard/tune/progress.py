"""What a run shows while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hopyard.backend import Backend
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
            self._units += 1
            for number in record["t"]:
                self._update(state, state.trials[number], record["w"])
            if ends_epoch(state, record) and not self._live.is_started:
                self._say_epochs(state, record)
        elif kind in ("trial", "end"):
            trial = state.trials[record["n" if kind == "trial" else "t"]]
            self._update(state, trial, None)
            self._total = _total_units(state)
            if trial.error is not None:
                self.say(f"trial {trial.number} {trial.params} failed: {trial.error.describe()}")
        elif kind == "lost":
            self.say(
                f"worker {record['w']} was lost in trial {record['t'][0]}; the unit is done again. {record['why']}"
            )

    def _begin(self, state: RunState, record: Record) -> None:
        header = state.header
        self._title = f"run {header['run_id']} on {record['workers']} {record['backend']} workers"
        self._metric, self._maximize = state.metric.key, state.metric.mode == "max"
        self._units = state.units
        for trial in state.trials.values():
            self._update(state, trial, None)
        self._total = _total_units(state)
        if self._console.is_terminal and not self._console.is_jupyter:
            self._live.start()
        else:
            self.say(f"{self._title}: {header['layout']['train']} partitions, {header['num_epochs']} epochs")

    def _update(self, state: RunState, trial: TrialState, worker: int | None) -> None:
        history = trial.history
        losses, values = history.get("train_loss"), history.get(self._metric)
        row = _Row(
            trial.number,
            describe_params(trial.params),
            trial.status,
            trial.epochs,
            trial.progress.visits,
            worker
            if worker is not None or trial.number not in self._rows
            else self._rows[trial.number].worker,
            losses[-1] if losses else None,
            values[-1] if values else None,
            trial.best.value if trial.best else None,
        )
        self._rows[trial.number] = row if trial.running else replace(row, worker=None)

    def _say_epochs(self, state: RunState, record: Record) -> None:
        for number in record["t"]:
            trial = state.trials[number]
            metrics = "  ".join(f"{name} {values[-1]:.4g}" for name, values in trial.history.items())
            self.say(
                f"trial {number} {describe_params(trial.params)}  epoch {trial.epochs}/{state.num_epochs}  {metrics}"
            )

    # The table ------------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        rows = sorted(self._rows.values(), key=self._order)
        table = Table(
            title=self._headline(), title_justify="left", box=None, pad_edge=False, header_style="bold"
        )
        for name in ("trial", "epoch", "loss", self._metric.removeprefix("val_"), "worker"):
            width = max(len(name), len("completed") if name == "worker" else len("0.1234"))
            table.add_column(name, justify="right", no_wrap=True, min_width=width)
        table.add_column("hyperparameters", no_wrap=True)
        most = self._most_rows()
        for row in rows[:most]:
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
        if len(rows) > most:
            table.caption = f"and {len(rows) - most} more trials"
        return table

    def _most_rows(self) -> int:
        """As many as fit on the screen beside title, header, caption and the cursor's line."""
        return max(1, min(MOST_ROWS, self._console.height - 4))

    def _order(self, row: _Row) -> Any:
        if len(self._rows) <= self._most_rows():
            return row.trial
        best = float("inf") if row.best is None else (-row.best if self._maximize else row.best)
        return (row.status != "running", best, row.trial)

    def _headline(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{self._title}: {self._units:,} of {self._total:,} units, {seconds:.0f} s"


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


def _total_units(state: RunState) -> int:
    """Units that all trials known so far will have made if none of them stops early."""
    per_trial = state.num_epochs * state.layout.units
    return sum(per_trial if trial.running else trial.progress.visits for trial in state.trials.values())
