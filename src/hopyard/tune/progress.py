"""Display of a run while it goes on: a live table on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hopyard.data.progress import SELDOM, RowProgress
from hopyard.errors import Evidence
from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.terminal import Terminal
from hopyard.tune.describing import (
    IN_RUNGS,
    describe_epochs,
    describe_length,
    describe_number,
    describe_params,
    describe_place,
    describe_state,
    is_endless,
)
from hopyard.tune.live import LiveOutput
from hopyard.tune.outlook import planned_points, seconds_left
from hopyard.tune.pages import progress_html
from hopyard.wording import counted, visible

if TYPE_CHECKING:
    from hopyard.backend import Backend
    from hopyard.data.preparing.request import Watch

MOST_ROWS = 24
_COLOURS = {"running": "cyan", "waiting": "blue", "completed": "green", "stopped": "yellow", "failed": "red"}


@dataclass(frozen=True)
class _Row:
    trial: int
    params: str
    state: str
    epochs: float
    trained: int
    planned: int
    worker: int | None
    loss: float | None
    value: float | None
    best: float | None


class ProgressDisplay:
    """Shows a run. An observer of the hopper, and the place where its messages go; also to watch a run
    that another process drives."""

    def __init__(
        self, enabled: bool = True, console: Console | None = None, wording: Callable[[str], str] = str
    ) -> None:
        self._wording = wording
        self._console = console or Terminal()
        self._notebook: LiveOutput | None = None
        if (
            self._console.is_jupyter
        ):  # whose consoles make an output of every line, and need widgets for a live table
            self._console = Terminal(
                force_jupyter=False, force_terminal=False, color_system=None, height=MOST_ROWS + 4
            )
            self._notebook = LiveOutput(self._html, self._headline)
        self._enabled = enabled
        self._rows: dict[int, _Row] = {}
        self._states: Counter[str] = Counter()
        self._failures: dict[tuple[str, str], int] = {}
        self._untold: list[tuple[TrialState, Evidence]] = []
        """Failures before any unit was done, said in a line so far: if all fail alike, the error has the rest."""
        self._title, self._metric, self._trained, self._planned = "", "", 0, 0
        self._num_trials = 0
        self._clones: set[int] = set()
        """Numbers of trials that users asked for: they are not among those that the search is to make."""
        self._epochs, self._partitions = 0, 1
        self._active = 0.0
        """Seconds in which the run was driven and not paused."""
        self._maximize = self._endless = self._paused = False
        began = time.monotonic()
        self._seconds: Callable[[], float] = lambda: time.monotonic() - began
        self._live = self._notebook or Live(
            self, console=self._console, refresh_per_second=4, transient=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def say(self, message: str) -> None:
        """A message that the user should see, also without progress."""
        self._console.print(self._wording(message), markup=False, highlight=False, soft_wrap=True)

    def checking(self, backend: Backend) -> None:
        """The workers start, and try one batch."""
        if self._enabled:
            self.say(f"checking one batch on {counted(backend.num_workers, backend.name + ' worker')}")

    def reading_elsewhere(self, message: str) -> None:
        """Frozen tensors are read where they lie."""
        if self._enabled:
            self.say(message)

    @contextmanager
    def preparing(self) -> Iterator[Watch | None]:
        """Show how far the preparation of data inside is: by the function yielded, which is None without progress."""
        if not self._enabled:
            yield None
            return
        written: int | None = None
        with RowProgress(self._console, every=SELDOM) as show:

            def watch(phase: str, done: float, total: int | None) -> None:
                nonlocal written
                written = total if phase == "writing" else None
                show(phase, done, total)

            yield watch
        if written is not None:
            self.say(f"prepared {counted(written, 'row')}")

    def show(self, state: RunState, session: JournalRecord) -> None:
        """Begin in the middle: what others have done so far is in the table; times are those of the run."""
        self._seconds = lambda: state.clock
        self._begin(state, session)

    def show_table(self) -> None:
        """The table as it is now, where there is no live one."""
        if not self._live.is_started:
            self._console.print(self)

    def __call__(self, state: RunState, record: JournalRecord) -> None:
        if not self._enabled:
            return
        self._note(state, record)
        if self._notebook is not None:
            self._notebook.changed()

    def _note(self, state: RunState, record: JournalRecord) -> None:
        kind, self._paused = record["r"], state.paused
        self._active = state.clock - state.paused_seconds()
        if kind == "session":
            self._begin(state, record)
        elif kind == "finish":
            self._say_untold()
        elif kind == "unit":
            self._say_untold()
            for number in record["t"]:
                self._update(state, state.trials[number], record["w"])
                self._say_validation(state, state.trials[number])
        elif kind == "trial":
            trial = state.trials[record["n"]]
            self._update(state, trial, None)
            if trial.clone_of is not None:
                weights = "" if trial.source is None else ", with its weights"
                self._line(f"trial {trial.number} begins as a clone of trial {trial.clone_of}{weights}")
            elif trial.source is not None:
                self._line(f"trial {trial.number} begins as a copy of trial {trial.source}")
        elif kind == "end":
            self._trial_ended(state, state.trials[record["t"]])
        elif kind in ("back", "again"):
            for number in record["t"]:
                self._update(state, state.trials[number], None)
        elif kind == "extend":
            self._budget(state)
            for trial in [trial for trial in state.trials.values() if trial.running]:
                self._update(state, trial, None)
        elif kind == "lost":
            self.say(
                f"worker {record['w']} was lost in trial {record['t'][0]}; the unit is done again. {record['why']}"
            )

    def _trial_ended(self, state: RunState, trial: TrialState) -> None:
        self._update(state, trial, None)
        if trial.error is not None:
            self._say_failure(state, trial, trial.error)
        elif trial.status == "stopped":
            self._line(f"trial {trial.number} is stopped at {self._describe_place(state, trial)}")

    def _say_failure(self, state: RunState, trial: TrialState, error: Evidence) -> None:
        """Say a failure in full once, and in a line for each trial that fails alike."""
        first = self._failures.setdefault((error.kind, error.message), trial.number)
        what = f"trial {trial.number} {trial.params} failed"
        if first == trial.number and not state.units:
            self._untold.append((trial, error))
            self.say(f"{what}: {error.kind}: {error.message}")
        elif first == trial.number:
            self.say(f"{what}: {error.describe()}")
        else:
            self.say(f"{what} like trial {first}: {error.kind}: {error.message}")

    def _say_untold(self) -> None:
        """Say in full the failures that were said in a line before others came further."""
        for trial, error in self._untold:
            self.say(f"trial {trial.number} {trial.params} failed: {error.describe()}")
        self._untold.clear()

    def _say_validation(self, state: RunState, trial: TrialState) -> None:
        """A line for the end of an epoch, or for a validation within one."""
        if trial.progress.validated != trial.progress.trained:
            return
        measured = trial.rung[1] if trial.rung else {name: vals[-1] for name, vals in trial.history.items()}
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in measured.items())
        where = self._describe_place(state, trial)
        self._line(f"trial {trial.number} {describe_params(trial.params)}  {where}  {metrics}")

    def _line(self, message: str) -> None:
        """Say ``message``, which the live table shows too, where there is no live table."""
        if not self._live.is_started:
            self.say(message)

    def _begin(self, state: RunState, session: JournalRecord) -> None:
        header = state.header
        workers = (
            f" on {counted(session['workers'], session['backend'] + ' worker')}" if session["workers"] else ""
        )
        self._title = f"run {header['run_id']}{workers}"
        self._metric, self._maximize = state.metric.key, state.metric.mode == "max"
        self._paused, self._active = state.paused, state.clock - state.paused_seconds()
        self._budget(state)
        for trial in state.trials.values():
            self._update(state, trial, None)
        if self._console.is_terminal or self._notebook is not None:
            self._live.start()
        else:
            known = [counted(self._partitions, "partition"), describe_length(state)]
            self.say(f"{self._title}: {', '.join(filter(None, known))}")

    def _budget(self, state: RunState) -> None:
        settings = state.header.get("settings", {})
        self._epochs, self._partitions = state.num_epochs, state.layout.train
        self._num_trials = (planned_points(state) or 0) * state.replicates
        self._endless = settings.get("kind") in IN_RUNGS or is_endless(state)

    def _update(self, state: RunState, trial: TrialState, worker: int | None) -> None:
        known = self._rows.get(trial.number)
        trained = trial.progress.trained - trial.began
        row = _Row(
            trial=trial.number,
            params=known.params if known else _describe_trial(trial),
            state=describe_state(state, trial),
            epochs=state.epochs_after(trial.progress.validated),
            trained=trained,
            planned=self._epochs * self._partitions - trial.began if trial.running else trained,
            worker=worker if worker is not None or known is None else known.worker,
            loss=_last(trial, "train_loss"),
            value=_last(trial, self._metric),
            best=trial.best.value if trial.best else None,
        )
        # Kept up by differences: going through all trials at each record would take ever longer.
        self._trained += row.trained - (known.trained if known else 0)
        self._planned += row.planned - (known.planned if known else 0)
        self._states[row.state] += 1
        if known:
            self._states[known.state] -= 1
        self._rows[trial.number] = row
        if trial.clone_of is not None:
            self._clones.add(trial.number)

    def _describe_place(self, state: RunState, trial: TrialState) -> str:
        return describe_place(state, state.epochs_after(trial.progress.validated))

    # The table ------------------------------------------------------------------------------

    def _shown(self) -> tuple[list[_Row], int]:
        """The rows there is room for, and how many more there are."""
        everything = list(self._rows.values())  # this runs on the display's thread
        most = max(1, min(MOST_ROWS, self._console.height - 4))  # title, header, caption, the cursor's line
        by_number = len(everything) <= most
        rows = heapq.nsmallest(most, everything, key=_number if by_number else self._promise)
        return rows, len(everything) - len(rows)

    def _titles(self) -> list[str]:
        return ["trial", "epoch", "loss", self._metric.removeprefix("val_"), "worker", "hyperparameters"]

    def _html(self) -> str:
        rows, more = self._shown()
        return progress_html(self._headline(), self._titles(), map(_cells, rows), more)

    def __rich__(self) -> RenderableType:
        rows, more = self._shown()
        table = Table(box=None, pad_edge=False, header_style="bold")
        *numbers, params = self._titles()
        for name in numbers:
            width = max(len(name), len("completed") if name == "worker" else len("0.1234"))
            table.add_column(name, justify="right", no_wrap=True, min_width=width)
        table.add_column(params, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(visible(cell), style=_COLOURS[row.state]) for cell in _cells(row)))
        if more:
            table.caption = f"and {more:,} more trials"
        return Group(Text(self._headline(), style="bold"), table)

    def _promise(self, row: _Row) -> tuple[bool, float, int]:
        """Sort key: trials that go on before ended ones, and the best first."""
        best = float("inf") if row.best is None else (-row.best if self._maximize else row.best)
        return (row.state not in ("running", "waiting"), best, row.trial)

    def _headline(self) -> str:
        to_come = max(0, self._num_trials - len(self._rows) + len(self._clones))
        planned = self._planned + to_come * self._epochs * self._partitions
        of = "" if self._endless else f" of {planned:,}"
        time = f"{self._seconds():.0f} s"
        left = planned - self._trained
        if left > 0 and self._trained and self._active and not self._endless and not self._paused:
            time += f", about {seconds_left(self._trained, left, self._active):.0f} s left"
        states = ", ".join(f"{self._states[each]:,} {each}" for each in _COLOURS if self._states[each])
        paused = "paused, " if self._paused else ""
        return f"{self._title}: {paused}{self._trained:,}{of} training units, {time}; {states}"


def _number(row: _Row) -> int:
    return row.trial


def _cells(row: _Row) -> list[str]:
    worker = "" if row.worker is None else str(row.worker)
    return [
        str(row.trial),
        describe_epochs(row.epochs),
        describe_number(row.loss),
        describe_number(row.value),
        worker if row.state == "running" else row.state,
        row.params,
    ]


def _last(trial: TrialState, name: str) -> float | None:
    """A metric's value at the last validation that is known."""
    if trial.rung is not None and name in trial.rung[1]:
        return trial.rung[1][name]
    if name in trial.history:
        return trial.history[name][-1]
    return trial.best.metrics.get(name) if trial.best else None


def _describe_trial(trial: TrialState) -> str:
    if trial.clone_of is not None:
        of = f"  (clone of {trial.clone_of}{'' if trial.source is None else ', with its weights'})"
    else:
        of = "" if trial.source is None else f"  (copy of {trial.source})"
    return describe_params(trial.params) + of
