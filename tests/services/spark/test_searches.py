"""A search on Spark's executors gives what it gives inline, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests import ancestors
from tests.ancestors import executor, keeper

from hopyard.backend import SparkBackend, remote
from hopyard.data import NodeCache, image, open_dataset
from hopyard.hopper.journal import read_records
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.worker_start import import_path

cloudpickle.register_pickle_by_value(ancestors)


def deadly_estimator(folder: Path, victim: Callable[[], int]) -> Any:
    """Of models as in conftest.py, one of which once kills what its worker comes from in the middle of a unit."""

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        def transform(batch: Any, rng: Any) -> Any:
            if (folder / "runs").exists():  # not yet while one batch is checked
                try:
                    (folder / "killed").touch(exist_ok=False)
                except FileExistsError:
                    return batch
                os.kill(victim(), signal.SIGKILL)
                signal.pause()
            return batch

        model = torch.nn.Sequential(torch.nn.Linear(4, params["width"]), torch.nn.Linear(params["width"], 2))
        optimizer, loss, lr = torch.optim.Adam, torch.nn.CrossEntropyLoss(), {"lr": params["lr"]}
        return TorchEstimator(
            model, optimizer, loss, ["accuracy"], optimizer_params=lr, batch_size=8, transform=transform
        )

    return estimator


@pytest.fixture(scope="module")
def points() -> dict[str, np.ndarray[Any, Any]]:
    features = np.random.default_rng(0).standard_normal((96, 4)).astype(np.float32)
    return {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}


@pytest.fixture
def undisturbed(search: Any, contents_of: Any, points: Any, tmp_path: Path) -> Any:
    (tmp_path / "inline").mkdir()
    (tmp_path / "inline" / "killed").touch()
    gentle = deadly_estimator(tmp_path / "inline", keeper)
    return contents_of(search(LocalStore(tmp_path / "inline"), estimator_gen_fn=gentle).fit(points).run)


@pytest.mark.parametrize(
    ("victim", "why"),
    [(keeper, "Python worker exited unexpectedly"), (executor, "ExecutorLostFailure")],
    ids=["python", "executor"],
)
def test_a_search_is_bitwise_equal_also_when_an_executor_dies_in_a_unit(
    victim: Any,
    why: str,
    spark: Any,
    search: Any,
    contents_of: Any,
    points: Any,
    undisturbed: Any,
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    deadly = deadly_estimator(tmp_path / "store", victim)
    model = search(store, SparkBackend(num_workers=2), estimator_gen_fn=deadly).fit(points)
    assert (tmp_path / "store" / "killed").exists()
    assert contents_of(model.run) == undisturbed
    assert model.run.broken_rules() == []
    (lost,) = [record for record in read_records(store.runs.at(model.run_id)) if record["r"] == "lost"]
    assert "was lost while it ran the task 'trial " in lost["why"]
    assert why in lost["why"]
    labels = [description for description in descriptions(spark) if description.startswith("trial 2, ")]
    assert {label.rpartition(" on worker ")[0] for label in labels} >= {
        f"trial 2, epoch {epoch}, partition {partition} ({phase})"
        for epoch in (1, 2)
        for partition in (0, 1)
        for phase in ("train", "validate")
    }


def descriptions(spark: Any) -> list[str]:
    """What Spark's UI calls the jobs there were."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(index).description() for index in range(jobs.size())]
    return [text.get() for text in found if text.isDefined()]


def test_modules_beside_the_users_script_are_there_in_units(
    spark: Any, search: Any, points: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_networks.py").write_text(
        "import torch\n\ndef network(width):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # Workers as on another machine, where the driver's folders are not.
    monkeypatch.setattr(remote, "import_path", lambda: [p for p in import_path() if p != str(tmp_path)])
    import own_networks  # type: ignore[import-not-found]

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        loss, lr = torch.nn.CrossEntropyLoss(), {"lr": params["lr"]}
        return TorchEstimator(
            own_networks.network(params["width"]), torch.optim.Adam, loss, optimizer_params=lr
        )

    changes = {"estimator_gen_fn": estimator, "evaluation_metric": "loss", "num_models": 1, "num_epochs": 1}
    backend = SparkBackend(num_workers=2)
    model = search(LocalStore(tmp_path / "store"), backend, **changes).fit(points)
    assert model.run.status == "completed"


def test_executors_decode_the_images_that_the_driver_would(
    spark: Any, search: Any, contents_of: Any, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 8, 8), np.uint8)
    for row, each in enumerate(pixels):
        Image.fromarray(each).save(tmp_path / f"{row}.jpg")
    named = {"features": [f"{row}.jpg" for row in range(48)], "label": np.arange(48) % 2}
    pq.write_table(pa.table(named), tmp_path / "a.parquet", row_group_size=12)
    decode = {"features": image((2, 2), root=tmp_path)}
    images = open_dataset(tmp_path / "a.parquet", decode=decode, cache=NodeCache(tmp_path / "cache"))

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        class Flat(torch.nn.Linear):
            def forward(self, photo: torch.Tensor) -> torch.Tensor:
                return super().forward(photo.flatten(1).float() / 255)

        lr = {"lr": params["lr"]}
        loss = torch.nn.CrossEntropyLoss()
        return TorchEstimator(Flat(4, 2), torch.optim.SGD, loss, optimizer_params=lr, batch_size=8)

    changes = {"estimator_gen_fn": estimator, "evaluation_metric": "loss", "num_models": 2, "num_epochs": 1}
    there = search(LocalStore(tmp_path / "there"), SparkBackend(num_workers=2), **changes).fit(images, images)
    here = search(LocalStore(tmp_path / "here"), **changes).fit(images, images)
    assert contents_of(there.run) == contents_of(here.run)
