"""The other rooms over a store without paths: data, loaders, the node cache, searches, workers, resuming."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hopyard import open_run
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.data import open_dataset, prepare
from hopyard.errors import CorruptError
from hopyard.storage import LocalStore, ObjectStore, open_store
from hopyard.torch import TorchEstimator
from hopyard.training.unit import residents
from hopyard.tune import Callback, RandomSearch, hp_log

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file


def rows(n: int = 64) -> dict[str, Any]:
    random = np.random.default_rng(0)
    features = random.standard_normal((n, 4)).astype(np.float32)
    return {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=torch.nn.Linear(4, 2),
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=8,
    )


def search(store: Any, **changes: Any) -> RandomSearch:
    arguments: dict[str, Any] = {
        "backend": InlineBackend(),
        "store": store,
        "estimator_gen_fn": estimator,
        "search_space": {"lr": hp_log(1e-3, 1e-1)},
        "num_models": 2,
        "num_epochs": 2,
        "num_partitions": 2,
        "evaluation_metric": "accuracy",
        "progress": False,
    }
    return RandomSearch(**(arguments | changes))


def batches(dataset: Any) -> list[Any]:
    loader = dataset.loader(batch_size=16, seed=3)
    return [{name: np.array(values) for name, values in batch.items()} for batch in loader]


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(left, right, strict=True)
    )


def test_what_is_prepared_into_a_bucket_is_loaded_as_from_a_directory(s3_url: str, tmp_path: Path) -> None:
    for store in (s3_url, tmp_path):
        prepare(rows(), store=store, validation=0.25)
    assert same(batches(open_dataset(s3_url)), batches(open_dataset(tmp_path)))
    assert len(open_dataset(s3_url, "val")) == 16


def test_parquet_in_a_bucket_goes_through_the_node_cache(s3: Any, s3_url: str, tmp_path: Path) -> None:
    data = {"x": np.arange(400.0), "word": [f"w{i % 7}" for i in range(400)]}
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table(data), path, row_group_size=100)
    expected = batches(open_dataset(path))
    open_store(s3_url).put_file("part.parquet", path)
    first = batches(open_dataset(s3_url, cache=tmp_path / "cache"))
    assert same(first, expected)
    before = len(s3.requests())
    assert same(batches(open_dataset(s3_url, cache=tmp_path / "cache")), expected)
    assert not [
        request for request in s3.requests()[before:] if request.startswith("GET") and "x.parquet" in request
    ]


def test_a_file_replaced_by_one_of_the_same_size_is_noticed(s3_url: str, tmp_path: Path) -> None:
    store = open_store(s3_url)
    for start in (0, 1000):
        pq.write_table(
            pa.table({"x": np.arange(start, start + 50)}),
            tmp_path / "f",
            compression="none",
            use_dictionary=False,
        )
        store.put_file("part.parquet", tmp_path / "f")
        if start == 0:
            dataset = open_dataset(s3_url, cache=False)
            assert len(dataset) == 50
    with pytest.raises(CorruptError, match="was changed while it was being read"):
        batches(dataset)


class Stop(Callback):
    """Ends the driver after the first epoch of any trial, as Ctrl-C does."""

    def on_epoch_end(self, *args: Any) -> None:
        raise KeyboardInterrupt


def test_a_search_in_a_bucket_gives_what_it_gives_in_a_directory(s3_url: str, tmp_path: Path) -> None:
    models = [search(store).fit(rows()) for store in (ObjectStore(s3_url), LocalStore(tmp_path))]
    assert models[0].get_all_model_history() == models[1].get_all_model_history()
    run = open_run(s3_url, models[0].run.run_id)
    assert run.best.info == models[0].info


def test_an_interrupted_search_in_a_bucket_goes_on_to_the_same_bits(s3_url: str, tmp_path: Path) -> None:
    store = ObjectStore(s3_url)
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[Stop()]).fit(rows())
    (run_id,) = {entry.name.partition("/")[0] for entry in store.runs.list()}
    assert open_run(store, run_id).status != "completed"
    residents.clear()  # as in a new process: states come from the bucket
    resumed, undisturbed = search(store).fit(rows()), search(LocalStore(tmp_path)).fit(rows())
    assert resumed.run.run_id == run_id
    assert resumed.get_all_model_history() == undisturbed.get_all_model_history()
    assert all(
        torch.equal(left, right)
        for left, right in zip(resumed.torch().parameters(), undisturbed.torch().parameters(), strict=True)
    )


def test_worker_processes_train_from_a_bucket(s3_url: str) -> None:
    store = ObjectStore(s3_url)
    inline = search(store).fit(rows())
    local = search(store, backend=LocalBackend(num_workers=2)).fit(rows())
    assert local.get_all_model_history() == inline.get_all_model_history()
