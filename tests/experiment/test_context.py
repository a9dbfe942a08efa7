"""Context of a trial."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import prepare
from hopyard.errors import ConfigError, NotFoundError, UsageError
from hopyard.experiment.context import Distributed, TrialContext
from hopyard.experiment.downloads import Downloads


@pytest.fixture
def downloads(tmp_path: Path) -> Iterator[Downloads]:
    with Downloads(tmp_path / "downloads") as downloads:
        yield downloads


def context(downloads: Downloads, data: Any = None, hyperparameters: Any = None) -> TrialContext:
    return TrialContext(data or {}, hyperparameters or {}, downloads)


def test_hyperparameters_are_those_of_the_trial_and_copies(downloads: Downloads) -> None:
    given = {"lr": 0.1, "optimizer": {"name": "adam", "betas": [0.9, 0.99]}}
    trial = context(downloads, hyperparameters=given)
    assert trial.get_hparams() == given
    assert trial.get_hparam("lr") == 0.1
    assert trial.get_hparam("optimizer.name") == "adam"
    trial.get_hparam("optimizer")["betas"].append(1)
    trial.get_hparams()["optimizer"].clear()
    assert trial.get_hparams() == {"lr": 0.1, "optimizer": {"name": "adam", "betas": [0.9, 0.99]}}


ASKED = "asks for a hyperparameter that the configuration does not have"
NEXT = "Correct the name, or add it to the configuration."


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("learning_rate", ". hyperparameters has lr, optimizer."),
        ("optimizer.nam", "; did you mean 'name'? hyperparameters.optimizer has name."),
        ("lr.lr", ". hyperparameters.lr has no names."),
    ],
)
def test_a_hyperparameter_that_is_not_there_is_named_beside_those_that_are(
    downloads: Downloads, name: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        context(downloads, hyperparameters={"lr": 0.1, "optimizer": {"name": "adam"}}).get_hparam(name)
    assert str(caught.value) == f"get_hparam({name!r}) {ASKED}{said} {NEXT}"


def test_data_have_the_values_of_secrets_and_are_a_copy(
    downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush")
    trial = context(downloads, {"bucket": "b", "token": "${secret:MY_TOKEN}", "parts": [1]})
    found = trial.get_data_config()
    assert found == {"bucket": "b", "token": "hush", "parts": [1]}
    found["parts"].append(2)
    assert trial.get_data_config()["parts"] == [1]
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(ConfigError, match=r"data.token refers to the secret MY_TOKEN, which is neither in"):
        trial.get_data_config()


def test_alone_a_process_is_the_first_of_one(downloads: Downloads) -> None:
    alone = context(downloads).distributed
    assert (alone.get_rank(), alone.get_size(), alone.get_local_rank()) == (0, 1, 0)
    third = TrialContext({}, {}, downloads, Distributed(2, 4, 1)).distributed
    assert (third.get_rank(), third.get_size(), third.get_local_rank()) == (2, 4, 1)


def test_files_are_downloaded_and_streamed(downloads: Downloads, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(range(10)))
    trial = context(downloads)
    copied = trial.download(str(tmp_path / "data.bin"), tmp_path / "rank0")
    assert copied == tmp_path / "rank0" / "data.bin"
    assert copied.read_bytes() == bytes(range(10))
    records = trial.stream(tmp_path / "data.bin", list, record_bytes=2, batch_size=2)
    assert list(records) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_datasets_are_named_by_data(downloads: Downloads, tmp_path: Path) -> None:
    rows = np.arange(100)
    prepare({"id": rows}, tmp_path / "store")
    pq.write_table(pa.table({"id": rows[:7]}), tmp_path / "rows.parquet")
    trial = context(downloads, {"store": str(tmp_path / "store"), "few": str(tmp_path / "rows.parquet")})
    assert len(trial.dataset("train")) + len(trial.dataset("val")) == 100
    assert trial.dataset("few", columns=["id"])[:]["id"].tolist() == list(range(7))
    with pytest.raises(NotFoundError):
        context(downloads, {"train": str(tmp_path / "nowhere")}).dataset()
    with pytest.raises(UsageError) as caught:
        context(downloads, {"bucket": "b", "train": 3}).dataset()
    assert str(caught.value) == (
        "dataset('train') asks for a dataset, but data of the configuration names none: it has bucket, train. Write "
        "data: {train: URL}, with the URL or path of Parquet files or of a prepared dataset, or data: {store: URL}."
    )


@pytest.mark.parametrize(
    ("data", "name", "field"),
    [({"train": "rows.parquet"}, "train", "train"), ({"store": "prepared"}, "val", "store")],
)
def test_a_relative_path_of_a_dataset_is_said_to_begin_at_the_trials_directory(
    downloads: Downloads, data: Any, name: str, field: str
) -> None:
    with pytest.raises(NotFoundError) as caught:
        context(downloads, data).dataset(name)
    assert str(caught.value).startswith(
        f"data.{field} of the configuration is {data[field]!r}, a path relative to the trial's working directory, "
        "which is its own copy of the model definition. Write an absolute path or a URL. "
    )


def test_an_absolute_path_without_a_dataset_is_not_said_to_be_relative(
    downloads: Downloads, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError) as caught:
        context(downloads, {"store": str(tmp_path)}).dataset()
    assert "relative" not in str(caught.value)
