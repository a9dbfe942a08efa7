"""Runs in Weights & Biases: one W&B run for each trial, grouped by search."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from hopyard.missing import missing_extra
from hopyard.tune.callbacks import Callback, TrialInfo, flat_params


class WandbCallback(Callback):
    """Logs parameters, metrics of every epoch and the state of each trial. The active W&B run stays as it is.

    A W&B run has the id ``<run id>-<trial>`` and the group ``<run id>``, so that a resumed run goes on in it.

    Args:
        project: of W&B.
        options: further arguments of ``wandb.init``, such as ``entity``, ``tags``, ``dir`` or ``mode="offline"``.
    """

    def __init__(self, project: str = "hopyard", **options: Any) -> None:
        if find_spec("wandb") is None:
            raise missing_extra("wandb", "wandb", "WandbCallback")
        self._options = {"project": project, **options}
        self._run_id = ""
        self._runs: dict[int, Any] = {}

    def on_run_start(self, run_id: str, settings: Mapping[str, Any]) -> None:
        self._run_id = run_id

    def on_trial_start(self, trial: TrialInfo) -> None:
        self._run(trial)

    def on_epoch_end(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float]) -> None:
        self._run(trial).log(dict(metrics), step=epoch, commit=True)

    def on_trial_end(self, trial: TrialInfo) -> None:
        run = self._run(trial)
        run.summary["state"] = trial.state
        if trial.error is not None:
            run.summary["error"] = trial.error
        run.finish(exit_code=int(trial.state == "failed"))
        del self._runs[trial.number]

    def on_run_end(self, run_id: str, best: TrialInfo | None) -> None:
        for run in self._runs.values():  # of trials that a time budget left unfinished
            run.finish()
        self._runs.clear()

    def _run(self, trial: TrialInfo) -> Any:
        if trial.number not in self._runs:
            import wandb

            self._runs[trial.number] = wandb.init(
                **self._options,
                id=f"{self._run_id}-{trial.number}",
                group=self._run_id,
                name=f"trial {trial.number}",
                config=flat_params(trial.params),
                resume="allow",
                reinit="create_new",
            )
        return self._runs[trial.number]
