"""Finished, interrupted and running runs, read from their journals."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hopyard.errors import NotFoundError, RunInterruptedError, TrialError
from hopyard.hopper.history import Traffic, broken_rules, committed_units, read_state, traffic_of
from hopyard.hopper.journal import holder, read_records
from hopyard.hopper.state import ENDED, JournalRecord, RunState, TrialState, trial_folder
from hopyard.storage import Store, open_store
from hopyard.tune.asking import ask
from hopyard.tune.listing import check_header, find_run, status_of
from hopyard.tune.model import Model
from hopyard.tune.predicting.saved import ModelInfo, Weights
from hopyard.wording import counted

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """One run of a search, as its journal tells it at the moment of opening, or of the last command.

    Commands (``pause``, ``resume``, ``stop``, ``extend``) are for a run that another process may drive. They wait
    for its answer, and return in words what came of them; see ``hopyard.tune.asking.ask`` for what they raise.

    Attributes:
        run_id: its name in the store.
        settings: what the search was called with, as far as it decides the result.
        holder: who drove it (``host``, ``pid``, ``since``), or None.
    """

    def __init__(
        self, store: Store, run_id: str, records: list[JournalRecord], held: dict[str, Any] | None = None
    ) -> None:
        self._store = store
        self.run_id = run_id
        self._take(records, held)

    def _take(self, records: list[JournalRecord], held: dict[str, Any] | None) -> None:
        check_header(records, f"run {self.run_id} in {self._store.url}")
        self._known = len(records)
        self.holder: dict[str, Any] | None = held
        self.state: RunState = read_state(records)
        self.settings: dict[str, Any] = self.state.header["settings"]

    def __repr__(self) -> str:
        best = self.state.trials[self.state.best].best if self.state.best is not None else None
        value = f", best {self.state.metric.key} {best.value:.6g}" if best else ""
        return f"<Run {self.run_id}: {self.status}, {counted(len(self.state.trials), 'trial')}{value}>"

    def _repr_html_(self) -> str:
        """HTML for a notebook: the best trials, learning curves and the schedule."""
        from hopyard.tune.pages import run_html

        return run_html(self)

    @property
    def status(self) -> str:
        """``"running"``; ``"paused"`` by a user; ``"waits for its store"``, which is full or does not answer;
        ``"interrupted"``: its driver is gone; ``"completed"``; ``"failed"``: every trial has, be it after an extension;
        or what ended it before that: ``"stopped"`` by a user, ``"time budget"``. All but the completed and failed ones
        can go on."""
        return status_of(self.state.finished, self.state.paused, self.holder)

    def pause(self) -> str:
        """Let units under way end, and begin no more until ``resume``."""
        return self._ask({"do": "pause"})

    def resume(self) -> str:
        """Let a paused driver go on. (A run without a driver goes on when its script is started again.)"""
        return self._ask({"do": "resume"})

    def stop(self, trial: int | None = None) -> str:
        """End the run after the units under way, or only one trial. A run that was stopped can go on later."""
        return self._ask({"do": "stop"} if trial is None else {"do": "stop", "trial": trial})

    def extend(self, num_models: int | None = None, num_epochs: int | None = None) -> str:
        """Give the run a larger budget: so many trials, and epochs of a trial, in all."""
        return self._ask({"do": "extend", "num_models": num_models, "num_epochs": num_epochs})

    def _ask(self, command: dict[str, Any]) -> str:
        said = ask(self._store, self.run_id, command)
        held = holder(self._store)
        self._take(list(read_records(self._store)), held)
        return said

    @property
    def program(self) -> tuple[Store, str]:
        """Place of the run's program: a store, and the name in it."""
        return self._store, self.state.header["program"]

    @property
    def best(self) -> Model:
        """The model with the best epoch.

        Raises:
            TrialError: no trial has a result.
            RunInterruptedError: none has one so far.
        """
        if self.state.best is not None:
            return self.model(self.state.best)
        errors = [trial.error for trial in self.failures() if trial.error is not None]
        if self.status not in ENDED:
            more = ", without time_budget or with a larger one," if self.status == "time budget" else ""
            raise RunInterruptedError(
                f"run {self.run_id} has no model so far: none of its {len(self.state.trials)} trials has ended an "
                f"epoch. Run the same script again{more} to go on; if it says fresh=True, which begins another run, "
                f"`hopyard run resume STORE {self.run_id}`."
            )
        first = (
            errors[0].describe()
            if errors
            else (
                f"{self.state.metric.key} was no number in any epoch. Rank by another metric (evaluation_metric=), or "
                "train and validate on rows for which it is defined."
            )
        )
        raise TrialError(
            f"run {self.run_id} has no model: {len(errors)} of {counted(len(self.state.trials), 'trial')} failed. "
            + (f"See run.trials() for all of them; the first says:\n{first}" if errors else first),
            errors[0] if errors else None,
        )

    @property
    def models(self) -> list[Model]:
        """Models of all trials that have a result, best first. Models without kept weights say so when asked."""
        return [self._model(trial) for trial in self.state.ranked() if trial.best is not None]

    def model(self, trial: int) -> Model:
        """The model of one trial."""
        if trial not in self.state.trials or self.state.trials[trial].best is None:
            known = [model.trial for model in self.models]
            raise NotFoundError(
                f"run {self.run_id} has no model of trial {trial}; the trials with a result are {known}."
            )
        return self._model(self.state.trials[trial])

    def trials(self) -> pd.DataFrame:
        """One row per trial, best first: see ``hopyard.tune.tables.trials_table``."""
        from hopyard.tune.tables import trials_table

        return trials_table(self.state)

    def schedule(self) -> pd.DataFrame:
        """One row per trial and committed unit: see ``hopyard.tune.tables.schedule_table``."""
        from hopyard.tune.tables import schedule_table

        return schedule_table(self.units())

    def units(self) -> list[JournalRecord]:
        """The committed units, as the journal records them."""
        return committed_units(self._records())

    def traffic(self) -> Traffic:
        """Number of hops of trials between workers, and bytes of states and of data that workers read and wrote."""
        return traffic_of(self.units())

    def broken_rules(self) -> list[str]:
        """The rules of model hopping that this run's units break: none, if all is well."""
        return broken_rules(self._records())

    def failures(self) -> Iterator[TrialState]:
        return (trial for trial in self.state.trials.values() if trial.error is not None)

    def export(
        self, target: Any, *, history: bool = False, overwrite: bool = False, name: str | None = None
    ) -> None:
        """Write the run's results for other programs: see ``hopyard.tune.export.export_run``."""
        from hopyard.tune.export import export_run

        export_run(self, target, history=history, overwrite=overwrite, name=name)

    def histories(self) -> dict[int, dict[str, list[float]]]:
        """The history of every trial by its number."""
        return {number: dict(trial.history) for number, trial in self.state.trials.items()}

    def _records(self) -> Iterator[JournalRecord]:
        """The records that the run had when it was opened: read again, because they are many."""
        return itertools.islice(read_records(self._store), self._known)

    def _model(self, trial: TrialState) -> Model:
        assert trial.best is not None
        info = ModelInfo(
            run_id=self.run_id,
            trial=trial.number,
            params=trial.params,
            epoch=trial.best.epoch,
            value=trial.best.value,
            metric=self.state.metric.key,
            history=trial.history,
            feature_columns=tuple(self.settings["feature_columns"]),
            label_columns=tuple(self.settings["label_columns"]),
        )
        weights = Weights(
            self._store, self.state.header["program"], trial_folder(trial.number), trial.best.state
        )
        return Model(info, weights, self)


def open_run(store: Store | str | os.PathLike[str], run_id: str) -> Run:
    """The run ``run_id`` of ``store``, its path or URL; finished or not.

    Raises:
        NotFoundError: there is none; the message lists the runs there are.
        FormatError: a newer version of Hopyard wrote it.
    """
    folder = find_run(open_store(store), run_id)
    held = holder(folder)  # before reading: what a driver writes is there before it lets go
    return Run(folder, run_id, list(read_records(folder)), held)
