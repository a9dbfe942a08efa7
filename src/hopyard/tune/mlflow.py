"""Runs in MLflow: one MLflow run for a search, and one below it for each trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hopyard.errors import UsageError
from hopyard.missing import missing_extra
from hopyard.tune.callbacks import Callback, TrialInfo, flat_params
from hopyard.tune.rows import RecordedRun, epoch_numbers

_RUN, _TRIAL = "hopyard.run", "hopyard.trial"
_STATUS = {"completed": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}
_MOST_OF_A_PARAM = 500  # what every MLflow store takes


class MLflowCallback(Callback):
    """Logs parameters, metrics of every epoch and the state of each trial. MLflow's active run stays as it is.

    A resumed run goes on in the same MLflow runs, which are found by the tags ``hopyard.run`` and
    ``hopyard.trial``.

    Args:
        tracking_uri: of the tracking server or store; None: what MLflow is set to.
        experiment: name of the MLflow experiment, made if there is none.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "hopyard") -> None:
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise missing_extra("mlflow-skinny", "mlflow", "MLflowCallback") from error
        self._client = MlflowClient(tracking_uri=tracking_uri)
        self._experiment_name = experiment
        self._experiment, self._run_id, self._parent = "", "", ""
        self._trials: dict[int, str] = {}

    def on_run_start(self, run_id: str, settings: Mapping[str, Any]) -> None:
        found = self._client.get_experiment_by_name(self._experiment_name)
        self._experiment = (
            found.experiment_id if found else self._client.create_experiment(self._experiment_name)
        )
        self._run_id, self._trials = run_id, {}
        params = {name: settings[name] for name in ("kind", "num_epochs", "seed", "evaluation_metric")}
        self._parent = self._open({_RUN: run_id, _TRIAL: "none"}, run_id, params)

    def on_trial_start(self, trial: TrialInfo) -> None:
        self._trial(trial)

    def on_epoch_end(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float]) -> None:
        run = self._trial(trial)
        for name, value in metrics.items():
            self._client.log_metric(run, name, value, step=epoch)

    def on_trial_end(self, trial: TrialInfo) -> None:
        run = self._trial(trial)
        if trial.error is not None:
            self._client.set_tag(run, "hopyard.error", trial.error)
        self._client.set_terminated(run, _STATUS[trial.state])

    def on_run_end(self, run_id: str, best: TrialInfo | None) -> None:
        if best is not None:
            self._client.set_tag(self._parent, "hopyard.best_trial", best.number)
        self._client.set_terminated(self._parent)

    def _trial(self, trial: TrialInfo) -> str:
        """The id of the trial's MLflow run."""
        if trial.number not in self._trials:
            tags = {_RUN: self._run_id, _TRIAL: str(trial.number), "mlflow.parentRunId": self._parent}
            self._trials[trial.number] = self._open(tags, f"trial {trial.number}", flat_params(trial.params))
        return self._trials[trial.number]

    def _open(self, tags: Mapping[str, str], name: str, params: Mapping[str, Any]) -> str:
        """The id of the run with these tags: an earlier one, set running again, or a new one."""
        wanted = " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in (_RUN, _TRIAL))
        earlier = self._client.search_runs([self._experiment], wanted, max_results=1)
        if earlier:
            found: str = earlier[0].info.run_id
            self._client.update_run(found, status="RUNNING")
            return found
        made: str = self._client.create_run(self._experiment, tags=dict(tags), run_name=name).info.run_id
        for key, value in params.items():
            self._client.log_param(made, key, str(value)[:_MOST_OF_A_PARAM])
        return made

    def export(self, run: RecordedRun, overwrite: bool) -> None:
        """Log the results of ``run``. Raises UsageError if it is there already. After an error all is as before."""
        earlier = self._earlier(run.run_id)
        if earlier and not overwrite:
            raise UsageError(
                f"the MLflow experiment {self._experiment_name!r} holds run {run.run_id} already. Give name=... "
                "for another experiment, or overwrite=True to replace it (on the command line: --overwrite)."
            )
        for mlflow_run in earlier:
            self._client.delete_run(mlflow_run)
        try:
            self._log(run)
        except BaseException:
            for mlflow_run in self._earlier(run.run_id):
                self._client.delete_run(mlflow_run)
            for mlflow_run in earlier:
                self._client.restore_run(mlflow_run)
            raise

    def _log(self, run: RecordedRun) -> None:
        state = run.state
        self.on_run_start(run.run_id, run.settings)
        for trial in state.trials.values():
            info = TrialInfo.of(trial)
            self.on_trial_start(info)
            for index, epoch in enumerate(epoch_numbers(state, trial)):
                metrics = {name: values[index] for name, values in trial.history.items()}
                self.on_epoch_end(info, math.ceil(epoch), metrics)
            if not trial.running:
                self.on_trial_end(info)
        if state.finished is not None:
            best = None if state.best is None else TrialInfo.of(state.trials[state.best])
            self.on_run_end(run.run_id, best)

    def _earlier(self, run_id: str) -> list[str]:
        """The ids of the MLflow runs of a run and its trials."""
        experiment = self._client.get_experiment_by_name(self._experiment_name)
        found: list[str] = []
        token: str | None = "" if experiment else None
        while token is not None:
            page = self._client.search_runs(
                [experiment.experiment_id], f"tags.`{_RUN}` = '{run_id}'", page_token=token or None
            )
            found += [each.info.run_id for each in page]
            token = page.token or None
        return found
