"""TensorBoard event files: scalars and hyperparameters of each trial.

The files hold nothing that the journal does not: a driver that takes a run up writes the file of an
unfinished trial anew, then appends to it, so that a kill neither repeats nor loses a point.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams.metadata import (
    EXPERIMENT_TAG,
    SESSION_END_INFO_TAG,
    SESSION_START_INFO_TAG,
    create_summary_metadata,
)
from tensorboard.summary.writer.record_writer import RecordWriter

from hopyard.hopper.state import Record, RunState, TrialState
from hopyard.tune.callbacks import ends_epoch, flat_params

_STATUS = {
    "completed": api_pb2.STATUS_SUCCESS,
    "stopped": api_pb2.STATUS_SUCCESS,
    "failed": api_pb2.STATUS_FAILURE,
}


class TensorBoard:
    """An observer that writes ``<logs>/<run_id>/<trial>/events.out.tfevents...``."""

    def __init__(self, logs: Path, started: float) -> None:
        """``started``: wall-clock seconds at which the run's clock was 0."""
        self._logs, self._started = logs, started
        self._torn: set[int] = set()
        """Trials whose file may end in the middle of a record, because the disk was full."""

    def __call__(self, state: RunState, record: Record) -> None:
        kind = record["r"]
        if kind == "session":
            for trial in state.trials.values():
                if trial.running:
                    self._begin(state, trial)
        elif kind == "trial":
            self._begin(state, state.trials[record["n"]])
        elif kind == "unit" and ends_epoch(state, record):
            for number in record["t"]:
                trial = state.trials[number]
                self._append(state, trial, self._scalars(state, trial, trial.epochs))
        elif kind == "end":
            trial = state.trials[record["t"]]
            info = plugin_data_pb2.SessionEndInfo(
                status=_STATUS[trial.status], end_time_secs=self._time(state)
            )
            data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
            self._append(state, trial, [self._event(state, _hparams_value(SESSION_END_INFO_TAG, data), 0)])

    def _begin(self, state: RunState, trial: TrialState) -> None:
        path = self._path(state, trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        events = [
            Event(wall_time=self._time(state), file_version="brain.Event:2"),
            *self._settings(state, trial),
        ]
        for epoch in range(1, trial.epochs + 1):
            events += self._scalars(state, trial, epoch)
        path.write_bytes(_encode(events))
        self._torn.discard(trial.number)

    def _append(self, state: RunState, trial: TrialState, events: list[Event]) -> None:
        if trial.number in self._torn:
            self._begin(state, trial)
            return
        try:
            with self._path(state, trial).open("ab") as file:
                file.write(_encode(events))
        except OSError:
            self._torn.add(trial.number)
            raise

    def _path(self, state: RunState, trial: TrialState) -> Path:
        run_id: str = state.header["run_id"]
        return (
            self._logs / run_id / f"{trial.number:05d}" / f"events.out.tfevents.{int(self._started)}.{run_id}"
        )

    def _time(self, state: RunState) -> float:
        return self._started + state.clock

    def _event(self, state: RunState, value: Summary.Value, step: int) -> Event:
        return Event(wall_time=self._time(state), step=step, summary=Summary(value=[value]))

    def _scalars(self, state: RunState, trial: TrialState, epoch: int) -> list[Event]:
        return [
            self._event(state, Summary.Value(tag=name, simple_value=values[epoch - 1]), epoch)
            for name, values in trial.history.items()
        ]

    def _settings(self, state: RunState, trial: TrialState) -> list[Event]:
        metric = api_pb2.MetricInfo(name=api_pb2.MetricName(tag=state.metric.key))
        params = flat_params(trial.params)
        infos = [api_pb2.HParamInfo(name=name) for name in params]
        experiment = api_pb2.Experiment(
            name=state.header["run_id"], hparam_infos=infos, metric_infos=[metric]
        )
        start = plugin_data_pb2.SessionStartInfo(
            group_name=f"{trial.number:05d}", start_time_secs=self._time(state)
        )
        for name, value in params.items():
            _set(start.hparams[name], value)
        return [
            self._event(
                state,
                _hparams_value(EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment)),
                0,
            ),
            self._event(
                state,
                _hparams_value(
                    SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start)
                ),
                0,
            ),
        ]


def _hparams_value(tag: str, data: Any) -> Summary.Value:
    return Summary.Value(tag=tag, metadata=create_summary_metadata(data))


def _set(field: Any, value: Any) -> None:
    if isinstance(value, bool):
        field.bool_value = value
    elif isinstance(value, int | float):
        field.number_value = value
    else:
        field.string_value = str(value)


def _encode(events: list[Event]) -> bytes:
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
