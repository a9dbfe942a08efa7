"""TensorBoard event files: scalars and hyperparameters of each trial.

The files hold nothing that the journal does not: a driver that takes a run up writes the files of all
its trials anew, then appends to them, so that a kill neither repeats nor loses a point. No file describes
the whole experiment: TensorBoard then gathers hyperparameters and metrics from all trials of all runs, where
a description would hide what the one trial that it is found with lacks.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams.metadata import (
    SESSION_END_INFO_TAG,
    SESSION_START_INFO_TAG,
    create_summary_metadata,
)
from tensorboard.summary.writer.record_writer import RecordWriter

from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.storage import Store
from hopyard.storage.oserrors import write_errors
from hopyard.tune.callbacks import ends_epoch, flat_params
from hopyard.tune.rows import epoch_numbers

_STATUS = {
    "completed": api_pb2.STATUS_SUCCESS,
    "stopped": api_pb2.STATUS_SUCCESS,
    "failed": api_pb2.STATUS_FAILURE,
}


class TensorBoard:
    """An observer that writes ``<logs>/<run_id>/<trial>/events.out.tfevents...``."""

    def __init__(self, logs: Path | Store, started: float) -> None:
        """Write to ``logs``.

        Args:
            logs: a directory, or a store whose files cannot be appended to: they are written whole, each time.
            started: wall-clock seconds at which the run's clock was 0.
        """
        self._logs, self._started = logs, started
        self._torn: set[int] = set()
        """Trials whose file may end in the middle of a record, because the disk was full."""

    def __call__(self, state: RunState, record: JournalRecord) -> None:
        kind = record["r"]
        if kind == "session":
            for trial in state.trials.values():
                self._write(state, trial)
        elif kind == "trial":
            self._write(state, state.trials[record["n"]])
        elif kind == "unit" and ends_epoch(state, record):
            for number in record["t"]:
                trial = state.trials[number]
                self._append(state, trial, self._scalars(state, trial, trial.epochs - 1))
        elif kind == "end":
            trial = state.trials[record["t"]]
            part = len(trial.ended_at) - trial.epochs  # 1 if the trial ended within an epoch
            last = self._scalars(state, trial, trial.epochs) if part else []
            self._append(state, trial, [*last, self._end(trial, state.clock)])

    def _write(self, state: RunState, trial: TrialState) -> None:
        """Write the trial's file, with all that is known of it."""
        self._torn.add(trial.number)
        clock = trial.ended_at[0] if trial.ended_at else state.clock
        events = [self._event(clock, file_version="brain.Event:2"), self._start(state, trial, clock)]
        for index in range(len(trial.ended_at)):
            events += self._scalars(state, trial, index)
        if not trial.running:
            events.append(self._end(trial, trial.ended_at[-1] if trial.ended_at else state.clock))
        name, data = self._name(state, trial), _encode(events)
        if isinstance(self._logs, Store):
            self._logs.put(name, data)
            return
        path = self._logs / name
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._torn.discard(trial.number)

    def _append(self, state: RunState, trial: TrialState, events: list[Event]) -> None:
        if isinstance(self._logs, Store) or trial.number in self._torn:
            self._write(state, trial)
            return
        try:
            with (self._logs / self._name(state, trial)).open("ab") as file:
                file.write(_encode(events))
        except OSError:
            self._torn.add(trial.number)
            raise

    def _name(self, state: RunState, trial: TrialState) -> str:
        run_id: str = state.header["run_id"]
        return f"{run_id}/{trial.number:05d}/events.out.tfevents.{int(self._started)}.{run_id}"

    def _event(self, clock: float, step: int = 0, **content: Any) -> Event:
        return Event(wall_time=self._started + clock, step=step, **content)

    def _scalars(self, state: RunState, trial: TrialState, index: int) -> list[Event]:
        """One entry of the history. Its step is the number of the epoch, also if the trial ended within it; those of a
        copy go on from its source's."""
        step = math.ceil(epoch_numbers(state, trial)[index])
        values = [
            Summary.Value(tag=name, simple_value=values[index]) for name, values in trial.history.items()
        ]
        return [self._event(trial.ended_at[index], step, summary=Summary(value=[value])) for value in values]

    def _start(self, state: RunState, trial: TrialState, clock: float) -> Event:
        info = plugin_data_pb2.SessionStartInfo(
            group_name=f"{state.header['run_id']}/{trial.number:05d}", start_time_secs=self._started + clock
        )
        for name, value in flat_params(trial.params).items():
            _set(info.hparams[name], value)
        data = plugin_data_pb2.HParamsPluginData(session_start_info=info)
        return self._event(clock, summary=_hparams(SESSION_START_INFO_TAG, data))

    def _end(self, trial: TrialState, clock: float) -> Event:
        info = plugin_data_pb2.SessionEndInfo(
            status=_STATUS[trial.status], end_time_secs=self._started + clock
        )
        data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
        return self._event(clock, summary=_hparams(SESSION_END_INFO_TAG, data))


def _hparams(tag: str, data: Any) -> Summary:
    return Summary(value=[Summary.Value(tag=tag, metadata=create_summary_metadata(data))])


def _set(field: Any, value: Any) -> None:
    if isinstance(value, bool):
        field.bool_value = value
    elif isinstance(value, int | float):
        field.number_value = value
    else:
        field.string_value = str(value)


def _encode(events: list[Event]) -> bytes:
    """The events as records of TFRecord files."""
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
