"""A run under way as lines of JSON, as ``hopyard run watch --json`` prints them; docs/cli.md documents the keys."""

from __future__ import annotations

from typing import Any

from hopyard.cli.terminal import show_json_line
from hopyard.documents.runs import error_json
from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.tune.describing import is_endless


class RunLines:
    """A run under way as lines of JSON: an event each, of which ``event`` says the kind."""

    def show(self, state: RunState, session: JournalRecord) -> None:
        """The run as it is when watching begins, or when another driver takes it up."""
        self._print(
            "run", run=state.header["run_id"], metric=state.metric.key, mode=state.metric.mode,
            epochs=None if is_endless(state) else state.num_epochs, partitions=state.layout.train,
            workers=session["workers"], num_trials=len(state.trials),
        )  # fmt: skip

    def say(self, message: str) -> None:
        """A message."""
        self._print("message", text=message)

    def show_table(self) -> None:
        """Nothing: each event was printed."""

    def ended(self, state: RunState, status: str) -> None:
        """The end of watching: the run has ended, or nobody drives it."""
        best = None if state.best is None else state.trials[state.best].best
        self._print(
            "end", status=status, num_trials=len(state.trials), best_trial=state.best,
            best=best.value if best else None, driven_seconds=state.clock,
        )  # fmt: skip

    def __call__(self, state: RunState, record: JournalRecord) -> None:
        """The events of a record: validations, ends of trials, lost workers."""
        kind = record["r"]
        if kind == "unit":
            for trial in (state.trials[number] for number in record["t"]):
                if trial.progress.validated == trial.progress.trained:
                    self._validated(state, trial, record["w"])
        elif kind == "end":
            trial = state.trials[record["t"]]
            self._print("trial", trial=trial.number, status=trial.status, error=error_json(trial.error))
        elif kind == "lost":
            self._print("lost", worker=record["w"], trials=record["t"], why=record["why"])

    def _validated(self, state: RunState, trial: TrialState, worker: int) -> None:
        last = {name: values[-1] for name, values in trial.history.items()}
        self._print(
            "validation", trial=trial.number, epoch=float(state.epochs_after(trial.progress.validated)),
            metrics=trial.rung[1] if trial.rung else last, worker=worker, run_seconds=state.clock,
        )  # fmt: skip

    def _print(self, event: str, **values: Any) -> None:
        show_json_line({"event": event, **values})
