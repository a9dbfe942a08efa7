"""The code of Determined's page "Accessing Data" in trials, as it stands on the page. What the tests add are imports,
and the helpers that the page leaves undefined. Its Sequence is in ``tests/services/keras/test_keras_trial.py``."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.sampling import sample
from typer.testing import CliRunner

from hopyard.backend import Backend, LocalBackend
from hopyard.cli import app
from hopyard.experiment import complete, create, list_experiments, open_experiment
from hopyard.experiment.mounts import Mount, check
from hopyard.experiment.yaml_text import read_yaml
from hopyard.objects import load_state
from hopyard.storage import LocalStore, open_store
from hopyard.tune import Run

DOWNLOAD_IMPORTS = """
import boto3
import os
"""
DOWNLOAD = """
def download_data_from_s3(self):
    s3_bucket = self.context.get_data_config()["bucket"]
    download_directory = f"/tmp/data-rank{self.context.distributed.get_rank()}"
    data_file = "data.csv"

    s3 = boto3.client("s3")
    os.makedirs(download_directory, exist_ok=True)
    filepath = os.path.join(download_directory, data_file)
    if not os.path.exists(filepath):
        s3.download_file(s3_bucket, data_file, filepath)
    return download_directory
"""
MOUNTS = """
  - host_path: /mnt/data
    container_path: /mnt/data
    read_only: true
"""
SHARED = """
def build_training_data_loader(self):
    return make_data_loader(data_path="/mnt/data/training", ...)

def build_validation_data_loader(self):
    return make_data_loader(data_path="/mnt/data/validation", ...)
"""
EMBEDDED = """
df = pandas.read_csv("data.csv")
"""

# What the page leaves to its reader.

TRIAL = """
import pandas
import torch
from torch.utils.data import DataLoader, TensorDataset

from hopyard.experiment import TorchTrial


def make_data_loader(data_path):
    return loader_of(pandas.read_csv(f"{data_path}/data.csv"))


def loader_of(df):
    values = torch.tensor(df.to_numpy(), dtype=torch.float32)
    return DataLoader(TensorDataset(values[:, :4], values[:, 4]), batch_size=10, shuffle=True)


class Trial(TorchTrial):
    def build_model(self):
        return torch.nn.Linear(4, 1, bias=False)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train_batch(self, batch, model):
        return {"loss": torch.nn.functional.mse_loss(model(batch[0])[:, 0], batch[1])}

    def evaluate_batch(self, batch, model):
        return self.train_batch(batch, model)
"""
WEIGHTS = [1.0, -2.0, 3.0, 0.5]
"""By which all rows were made; only training on all of them finds these."""


def rows() -> pd.DataFrame:
    """60 rows: four numbers, and their sum by ``WEIGHTS``."""
    x = np.random.default_rng(0).standard_normal((60, 4))
    return pd.DataFrame(np.column_stack([x, x @ WEIGHTS]), columns=list("abcdy"))


def method(code: str) -> str:
    """A function of the page as a method of the trial."""
    return textwrap.indent(code, "    ")


LOADERS = """
    def build_training_data_loader(self):
        return loader_of({df})

    def build_validation_data_loader(self):
        return self.build_training_data_loader()
"""


def train(tmp_path: Path, code: str, backend: Backend | None = None, **fields: Any) -> Run:
    """Run an experiment with this code and these fields, in the directory ``definition``."""
    folder = tmp_path / "definition"
    folder.mkdir(exist_ok=True)
    (folder / "model_def.py").write_text(code)
    config = complete(
        {
            "entrypoint": "model_def:Trial",
            "searcher": {"name": "single", "metric": "loss", "max_length": {"epochs": 20}},
            **fields,
        }
    )
    run = create(config, folder, LocalStore(tmp_path / "store"), backend or LocalBackend(1))
    assert run is not None
    [trial] = run.state.trials.values()
    assert trial.status == "completed"
    return run


def weights_of(run: Run) -> list[float]:
    """The weights of the best epoch."""
    [values] = load_state(*run.best.weights(), verify=True).values()
    return list(values.numpy().ravel())


@pytest.mark.parametrize("ranks", sample("ranks that download", [1, 2], quick=1, ci=1))
def test_the_download_into_a_directory_with_the_rank(
    ranks: int,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    in_tmp = [Path(f"/tmp/data-rank{rank}") for rank in range(ranks)]
    if any(place.exists() for place in in_tmp):
        pytest.skip(f"{in_tmp[0]} is somebody else's")
    bucket = url.split("/")[2]
    data = rows().to_csv(index=False).encode()
    open_store(f"s3://{bucket}").put("data.csv", data)
    init = """
    def __init__(self, context):
        self.context = context
        self.download_directory = self.download_data_from_s3()
    """
    loaders = LOADERS.format(df='pandas.read_csv(f"{self.download_directory}/data.csv")')
    run = train(
        tmp_path,
        DOWNLOAD_IMPORTS + TRIAL + init + method(DOWNLOAD) + loaders,
        data={"bucket": bucket},
        resources={"slots_per_trial": ranks},
    )
    assert weights_of(run) == pytest.approx(WEIGHTS, abs=1e-3)
    said = r"model_def\.py, line \d+ of the model definition names files in /tmp, which all trials on"
    if re.search(said, capfd.readouterr().err) is None:
        assert not any(place.exists() for place in in_tmp)
        [in_tmp] = [sorted(folder.iterdir()) for folder in (tmp_path / "cache-trials" / "tmp").iterdir()]
    downloaded = [place / "data.csv" for place in in_tmp if place.name.startswith("data-rank")]
    assert [file.read_bytes() for file in downloaded] == [data] * ranks
    for file in downloaded:
        shutil.rmtree(file.parent)


def test_the_bind_mount_below_its_field(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("training", "validation"):
        (data / name).mkdir(parents=True)
        rows().to_csv(data / name / "data.csv", index=False)
    here = MOUNTS.replace("/mnt/data", str(data))  # which not every machine has
    mounts = read_yaml(f"bind_mounts:{here}", "the page")["bind_mounts"]
    assert mounts == [{"host_path": str(data), "container_path": str(data), "read_only": True}]
    shared = SHARED.replace("/mnt/data", str(data)).replace(", ...", "")
    run = train(tmp_path, TRIAL + method(shared), bind_mounts=mounts)
    assert weights_of(run) == pytest.approx(WEIGHTS, abs=1e-3)
    writing = f"    open({str(data / 'new')!r}, 'w')\n        return make_data_loader"
    writes = TRIAL + method(shared).replace("    return make_data_loader", writing, 1)
    if not check([Mount(str(data), str(data), read_only=True)]):
        with pytest.raises(Exception, match="Read-only file system"):
            train(tmp_path, writes, bind_mounts=mounts)
        assert not (data / "new").exists()


CONST = """
entrypoint: model_def:Trial
searcher:
  name: single
  metric: loss
  max_length: {epochs: 20}
"""


def test_the_file_in_the_model_definition_by_the_command_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows().to_csv("data.csv", index=False)
    Path("model_def.py").write_text("import pandas\n" + EMBEDDED + TRIAL + LOADERS.format(df="df"))
    Path("const.yaml").write_text(CONST)
    command = "create experiment const.yaml ."  # of det, there; and the store is in the directory
    done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    [summary] = list_experiments("experiments")
    assert summary.status == "completed"
    assert weights_of(open_experiment("experiments", summary.experiment)) == pytest.approx(WEIGHTS, abs=1e-3)
