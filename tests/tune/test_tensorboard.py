"""TensorBoard's own readers find every point once, and all hyperparameters, also after kills."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorBoard's own imports
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams.backend_context import Context

from hopyard.storage import LocalStore
from hopyard.tune import ASHA, PBT, Callback, hp_choice


class StopAfter(Callback):
    """Ends the driver after so many epochs of all trials together."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


def expected(history: dict[str, list[float]]) -> dict[str, list[tuple[int, float]]]:
    return {
        name: [(epoch, float(np.float32(value))) for epoch, value in enumerate(values, 1)]
        for name, values in history.items()
    }


@pytest.mark.parametrize("cut", [0, 7, 10**6])
def test_after_kills_every_point_is_there_once_whatever_was_not_written_any_more(
    cut: int, search: Any, make_rows: Any, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    for epochs in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            search(store, callbacks=[StopAfter(epochs)]).fit(make_rows())
        for file in (tmp_path / "logs").glob("*/*/*"):
            file.write_bytes(file.read_bytes()[: max(0, file.stat().st_size - cut)])
    model = search(store).fit(make_rows())
    for trial, history in model.get_all_model_history().items():
        [file] = (tmp_path / "logs" / model.run_id / f"{trial:05d}").iterdir()
        assert points(file.parent) == expected(history)
        wall = [event.wall_time for event in EventAccumulator(str(file.parent)).Reload().Scalars("val_loss")]
        assert wall == sorted(wall)
        assert len(set(wall)) == 2


def test_the_hyperparameters_of_all_trials_of_all_runs_are_found(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    spaces = [
        {"width": hp_choice([4, 8]), "lr": 0.1},
        {"width": hp_choice([4, 8]), "lr": 0.2, "optimizer": {"name": hp_choice(["sgd", "adam"])}},
    ]
    runs = [
        search(store, search_space=space, num_models=2, num_epochs=1).fit(make_rows()) for space in spaces
    ]
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "logs")).Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(tmp_path / "logs"))))
    metadata = context.hparams_metadata(RequestContext(), "")
    experiment = context.experiment_from_metadata(RequestContext(), "", True, metadata, [])
    assert {info.name for info in experiment.hparam_infos} == {"width", "lr", "optimizer/name"}
    names = {info.name.tag for info in experiment.metric_infos}
    assert {"train_loss", "val_loss", "val_accuracy"} <= names
    assert set(metadata) == {f"{run.run_id}/{trial:05d}" for run in runs for trial in range(2)}


def test_a_trial_that_ends_within_an_epoch_has_a_last_point_for_its_part_of_it(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    asha = {"num_models": 4, "num_epochs": 2, "num_partitions": 4, "divisor": 2}
    model = search(LocalStore(tmp_path), kind=ASHA, **asha).fit(make_rows())
    parts = [trial for trial in model.run.state.trials.values() if len(trial.ended_at) > trial.epochs]
    assert parts, "some trial should have been stopped within an epoch"
    for trial in parts:
        folder = tmp_path / "logs" / model.run_id / f"{trial.number:05d}"
        assert points(folder) == expected(trial.history)
        table = model.trials().set_index("number").loc[trial.number]
        assert table["epochs"] == trial.progress.trained / 4
        assert table["state"] == "stopped"


def test_the_points_of_a_copy_go_on_from_its_source(search: Any, make_rows: Any, tmp_path: Path) -> None:
    pbt = {"num_models": 4, "num_epochs": 2, "truncate_fraction": 0.25}
    model = search(LocalStore(tmp_path), kind=PBT, **pbt).fit(make_rows())
    [copy] = [trial for trial in model.run.state.trials.values() if trial.source is not None]
    folder = tmp_path / "logs" / model.run_id / f"{copy.number:05d}"
    [(step, value)] = points(folder)["val_loss"]
    assert (step, value) == (2, float(np.float32(copy.history["val_loss"][0])))
    table = model.trials().set_index("number")
    assert table["source"].dropna().to_dict() == {copy.number: copy.source}
    assert table["epochs"][copy.number] == 1


def test_logs_that_find_no_room_are_said_in_a_line(
    search: Any, make_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    model = search(LocalStore(tmp_path), num_models=2, progress=True).fit(make_rows())
    said = capsys.readouterr()
    text = said.out + said.err
    assert "a callback failed; the run goes on. no space is left for" in text
    assert "Make space there." in text
    assert "Traceback" not in text
    assert len(model.trials()) == 2
