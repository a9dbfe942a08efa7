"""The other rooms on HDFS: data, node cache, searches, workers, resuming, stockrooms, and nodes that die meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.hdfs_cluster import HdfsCluster
from tests.stockroom.remotes.repositories import at, commit, content, samples
from tests.storage.test_object_rooms import Stop, batches, rows, same, search
from tests.tune import test_tensorboard

from hopyard import open_run
from hopyard.backend import LocalBackend
from hopyard.data import open_dataset, prepare
from hopyard.errors import CorruptError
from hopyard.stockroom.remotes import clone, push
from hopyard.storage import HDFSStore, LocalStore, open_store
from hopyard.training.unit import residents


def test_what_is_prepared_on_hdfs_is_loaded_as_from_a_directory(folder: str, tmp_path: Path) -> None:
    for store in (folder, tmp_path):
        prepare(rows(), store=store, validation=0.25)
    assert same(batches(open_dataset(folder)), batches(open_dataset(tmp_path)))
    assert len(open_dataset(folder, "val")) == 16


def test_parquet_that_others_wrote_is_found_by_urls_patterns_and_folders(folder: str, tmp_path: Path) -> None:
    store = open_store(folder).foreign()
    for day in range(3):
        path = tmp_path / "part.parquet"
        pq.write_table(pa.table({"x": np.arange(10 * day, 10 * day + 10)}), path, row_group_size=5)
        HDFSStore(folder).put_file(f"data/day={day}/part.parquet", path)
    HDFSStore(folder).put("data/_SUCCESS", b"")
    one = f"{folder}/data/day=1/part.parquet"
    whole = open_dataset(f"{folder}/data", filters=[("day", ">", 0)])
    found = {
        one: [*range(10, 20)],
        f"{folder}/data/day=[12]/*.parquet": [*range(10, 30)],
    }
    for url, expected in found.items():
        assert open_dataset(url)[:]["x"].tolist() == expected
    assert open_dataset([f"{folder}/data/day=2", one])[:]["x"].tolist() == [*range(20, 30), *range(10, 20)]
    assert whole[:]["x"].tolist() == [*range(10, 30)]
    assert whole[:]["day"].tolist() == [1] * 10 + [2] * 10
    assert store.get("data/_SUCCESS") == b""


def test_a_file_replaced_by_one_of_the_same_size_is_noticed(folder: str, tmp_path: Path) -> None:
    store = HDFSStore(folder)
    for start in (0, 1000):
        table = pa.table({"x": np.arange(start, start + 50)})
        pq.write_table(table, tmp_path / "f", compression="none", use_dictionary=False)
        store.put_file("part.parquet", tmp_path / "f")
        if start == 0:
            dataset = open_dataset(folder, cache=False)
            assert len(dataset) == 50
    with pytest.raises(CorruptError, match="was changed while it was being read"):
        batches(dataset)


def test_an_interrupted_search_goes_on_to_the_same_bits(folder: str, tmp_path: Path) -> None:
    store = HDFSStore(folder)
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[Stop()]).fit(rows())
    (run_id,) = {entry.name.partition("/")[0] for entry in store.runs.list()}
    assert open_run(folder, run_id).status != "completed"
    residents.clear()  # as in a new process: states come from HDFS
    resumed, undisturbed = search(store).fit(rows()), search(LocalStore(tmp_path)).fit(rows())
    assert resumed.run.run_id == run_id
    assert resumed.get_all_model_history() == undisturbed.get_all_model_history()
    for left, right in zip(resumed.torch().parameters(), undisturbed.torch().parameters(), strict=True):
        assert left.equal(right)


def test_worker_processes_train_from_hdfs_by_the_constructor_of_cerebro(
    hdfs: HdfsCluster, folder: str
) -> None:
    path = folder.removeprefix(hdfs.url)
    inline = search(HDFSStore(f"{path}/inline")).fit(rows())
    store = HDFSStore(f"{path}/a", train_path=f"{path}/train", val_path=f"{path}/val", runs_path=f"{path}/r")
    local = search(store, backend=LocalBackend(num_workers=2)).fit(rows())
    assert local.get_all_model_history() == inline.get_all_model_history()
    assert HDFSStore(f"{path}/train").exists("manifest.json")
    assert open_run(HDFSStore(f"{path}/a", runs_path=f"{path}/r"), local.run.run_id).best.info == local.info


def test_a_stockroom_is_pushed_to_hdfs_and_cloned_from_there(folder: str, tmp_path: Path) -> None:
    local, remote = at(tmp_path / "local"), at(HDFSStore(folder), "origin", index=False)
    first = commit(local, image=samples(5), models={"net": {"w": np.ones(3)}})
    last = commit(local, "dev", "d", label=samples(5))
    push(local, remote, ["main", "dev"])
    _, fetched = clone(HDFSStore(folder), tmp_path / "copy", by="Bob")
    assert fetched.heads == {"dev": last, "main": first}
    assert content(remote, first) == content(local, first)


def test_tensorboard_reads_the_logs_that_are_on_hdfs(folder: str, tmp_path: Path) -> None:
    store = HDFSStore(folder)
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[Stop()]).fit(rows())
    model = search(store).fit(rows())
    for trial, history in model.get_all_model_history().items():
        [entry] = store.logs.list(f"{model.run_id}/{trial:05d}")
        copy = tmp_path / entry.name
        copy.parent.mkdir(parents=True)
        copy.write_bytes(store.logs.get(entry.name))
        assert test_tensorboard.points(copy.parent) == test_tensorboard.expected(history)
