"""Prepared datasets by reference: what is stored opens as what it was, and shares files with its other versions."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard import StockRoom
from hopyard.data import Dataset, open_dataset, prepare
from hopyard.data.manifest import Manifest
from hopyard.errors import CorruptError, DataError, NotFoundError, NotWritableError
from hopyard.stockroom.data.dataset_changes import diff_datasets, merge_datasets
from hopyard.stockroom.data.datasets import (
    open_stored,
    read_manifest,
    store_dataset,
)
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import DatasetRecord, parse
from hopyard.storage import LocalStore, MemoryStore, Store


def prepared(store: Store, rows: int = 60, seed: int = 0, columns: int = 3) -> Dataset:
    """``rows`` rows; ids count from 0 and are shuffled by ``seed``."""
    data: dict[str, Any] = {
        "id": np.arange(rows),
        "image": np.arange(rows * 6, dtype=np.float32).reshape(rows, 2, 3),
        "name": [f"row {n}" for n in range(rows)],
    }
    names = list(data)[:columns]
    return prepare({name: data[name] for name in names}, store, validation=None, seed=seed).train


@pytest.fixture(params=["files", "memory"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "repository") if request.param == "files" else MemoryStore()


@pytest.fixture
def local(tmp_path: Path) -> Objects:
    return Objects(LocalStore(tmp_path / "repository"))


def stored(objects: Objects, dataset: Dataset) -> DatasetRecord:
    with objects.writing() as writer:
        return store_dataset(writer, dataset)


def files_of(objects: Objects, record: DatasetRecord) -> list[str]:
    return [entry.digest for entry in read_manifest(objects, record, "it").files]


def batches(dataset: Dataset, **options: Any) -> list[Any]:
    return [[values.tolist() for values in batch.values()] for batch in dataset.loader(16, **options)]


@pytest.mark.parametrize("source", ["files", "memory"])
def test_it_opens_as_what_it_was(tmp_path: Path, repository: Store, source: str) -> None:
    dataset = prepared(LocalStore(tmp_path / "data") if source == "files" else MemoryStore())
    objects = Objects(repository)
    record = stored(objects, dataset)
    assert (record.rows, record.nbytes) == (60, dataset.manifest.nbytes)
    assert parse(record.to_json(), "it") == record
    opened = open_stored(objects, record, "dataset 'train' of main")
    assert opened.manifest == dataset.manifest
    assert opened.fingerprint == dataset.fingerprint
    assert opened.loader(8).state_dict() == dataset.loader(8).state_dict()
    for shuffle in (False, True):
        assert batches(opened, shuffle=shuffle, seed=3) == batches(dataset, shuffle=shuffle, seed=3)
    opened.verify()
    opened.check_not_written()
    halves = opened.partitions(1)
    assert halves[0][:]["id"].tolist() == dataset[:]["id"].tolist()


def test_where_there_are_files_they_are_linked_and_mapped(tmp_path: Path, local: Objects) -> None:
    dataset = prepared(LocalStore(tmp_path / "data"))
    opened = open_stored(local, stored(local, dataset), "it")
    (entry,) = dataset.manifest.files
    assert dataset.store is not None
    assert opened.store is not None
    mine, its = dataset.store.path(entry.name), opened.store.path(entry.name)
    assert mine is not None
    assert its is not None
    assert mine.samefile(its)
    assert [listed.name for listed in opened.store.list()] == [entry.name]
    assert not all(
        batch["image"].flags.writeable for batch in opened.loader(2, columns=["image"], views=True)
    )


def test_it_outlives_the_directory_that_it_was_prepared_in(tmp_path: Path, local: Objects) -> None:
    store = LocalStore(tmp_path / "data")
    dataset = prepared(store)
    rows = dataset[:]["id"].tolist()
    record = stored(local, dataset)
    for entry in list(store.list()):
        store.delete(entry.name)
    assert open_stored(local, record, "it")[:]["id"].tolist() == rows


def test_it_travels_to_another_process(tmp_path: Path, local: Objects) -> None:
    dataset = prepared(LocalStore(tmp_path / "data"))
    opened = open_stored(local, stored(local, dataset), "it")
    program = "import pickle, sys; d = pickle.loads(sys.stdin.buffer.read()); print(d.fingerprint, d[:]['id'].sum())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(opened),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.decode().split() == [dataset.fingerprint, str(60 * 59 // 2)]


def test_in_memory_it_does_not_travel(tmp_path: Path) -> None:
    objects = Objects(MemoryStore())
    opened = open_stored(objects, stored(objects, prepared(LocalStore(tmp_path / "data"))), "it")
    assert opened.store is not None
    assert not opened.store.shared


def test_nobody_writes_to_it(tmp_path: Path, local: Objects) -> None:
    opened = open_stored(local, stored(local, prepared(LocalStore(tmp_path / "data"))), "dataset 'a' of main")
    store = opened.store
    assert store is not None
    assert store.url == "dataset 'a' of main"
    for write in (
        lambda: store.put("x", b""),
        lambda: store.put_new("x", b""),
        lambda: store.put_file("x", tmp_path / "x"),
        lambda: store.delete("x"),
    ):
        with pytest.raises(NotWritableError, match="dataset 'a' of main cannot be written to"):
            write()
    with pytest.raises(NotFoundError, match="dataset 'a' of main has no file x"):
        store.get("x")
    assert store.size("x") is None
    assert store.version("x") is None
    assert list(store.list("x")) == []


def test_what_cannot_be_stored_by_reference_says_what_to_do(tmp_path: Path, local: Objects) -> None:
    dataset = prepared(LocalStore(tmp_path / "data"))
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), foreign)
    for other, text in (
        (open_dataset(foreign), "that Hopyard did not prepare .* Prepare them first"),
        (open_dataset(dataset, filters=[("id", "<", 5)]), "a filter.* Prepare this one first"),
        (open_dataset(dataset, columns=["id"]), "a selection of columns"),
        (open_dataset(dataset, cached_transform=_double), "a transform"),
        (dataset.partitions(1)[0], "one of its partitions"),
    ):
        with pytest.raises(DataError, match=text):
            stored(local, other)


def _double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] * 2}


def test_a_file_that_was_written_to_is_refused(tmp_path: Path, local: Objects) -> None:
    dataset = prepared(LocalStore(tmp_path / "data"))
    assert dataset.store is not None
    path = dataset.store.path(dataset.manifest.files[0].name)
    assert path is not None
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"is not what was prepared.* prepare the data again"):
        stored(local, dataset)


def several(tmp_path: Path, *seeds: int) -> Dataset:
    """A dataset of one file for each seed: as ``prepare`` makes of much data, here of little."""
    store = LocalStore(tmp_path / "several")
    parts = [prepared(LocalStore(tmp_path / f"part-{seed}"), seed=seed) for seed in seeds]
    for part in parts:
        assert part.store is not None
        for entry in part.manifest.files:
            store.put(f"{entry.digest}.parquet", part.store.get(entry.name))
    files = tuple(
        dataclasses.replace(entry, name=f"{entry.digest}.parquet")
        for part in parts
        for entry in part.manifest.files
    )
    first = parts[0].manifest
    manifest = Manifest(
        first.split, "-".join(map(str, seeds)), first.schema, files, first.statistics, {}, "now"
    )
    return Dataset(store, manifest)


def test_a_newer_version_stores_only_the_files_that_changed(tmp_path: Path, local: Objects) -> None:
    old = stored(local, several(tmp_path, 1, 2, 3))
    before = set(LocalStore(tmp_path / "repository").list("files"))
    new = stored(local, several(tmp_path, 1, 2, 4))
    after = set(LocalStore(tmp_path / "repository").list("files"))
    assert len(before) == 3
    assert len(after - before) == 1
    difference = diff_datasets(local, old, new)
    (removed,), (added,) = difference.removed, difference.added
    assert removed.digest == files_of(local, old)[2]
    assert added.digest == files_of(local, new)[2]
    assert difference.changed == ()
    assert str(difference) == "-1 file (30 row groups, 60 rows), +1 file (30 row groups, 60 rows)"


def test_differences_beside_files_are_named(tmp_path: Path, local: Objects) -> None:
    old = stored(local, several(tmp_path, 1, 2))
    assert str(diff_datasets(local, old, old)) == "no difference"
    turned = stored(local, several(tmp_path, 2, 1))
    assert diff_datasets(local, old, turned).changed == ("order of files",)
    other = stored(local, prepared(LocalStore(tmp_path / "other"), columns=2))
    difference = diff_datasets(local, old, other)
    assert difference.changed == ("schema", "settings")
    assert len(difference.removed) == 2
    assert "schema differs" in str(difference)


def merged(objects: Objects, *records: DatasetRecord) -> DatasetRecord | None:
    with objects.writing() as writer:
        return merge_datasets(writer, *records)


def test_files_that_both_sides_added_are_merged_and_both_ways_are_equal(
    tmp_path: Path, local: Objects
) -> None:
    base, ours, theirs = (stored(local, several(tmp_path, *seeds)) for seeds in ((1, 2), (1, 2, 3), (2, 4)))
    both = merged(local, base, ours, theirs)
    assert both is not None
    assert both == merged(local, base, theirs, ours)
    one, two, three = files_of(local, ours)
    four = files_of(local, theirs)[1]
    assert files_of(local, both) == [two, *sorted([three, four])]
    opened = open_stored(local, both, "it")
    assert len(opened) == 180
    assert opened.fingerprint not in ("1-2", "1-2-3", "2-4")
    assert sorted(opened[:]["id"].tolist()) == sorted([*range(60)] * 3)
    assert one not in files_of(local, both)


def test_merging_what_one_side_left_alone_takes_the_other(tmp_path: Path, local: Objects) -> None:
    base, other = (stored(local, several(tmp_path, *seeds)) for seeds in ((1, 2), (3,)))
    assert merged(local, base, base, other) == other
    assert merged(local, base, other, base) == other
    assert merged(local, base, other, other) == other


def test_what_both_sides_replaced_is_a_conflict(tmp_path: Path, local: Objects) -> None:
    base, ours, theirs = (stored(local, several(tmp_path, *seeds)) for seeds in ((1,), (2,), (3,)))
    assert merged(local, base, ours, theirs) is None
    with local.writing() as writer:
        assert merge_datasets(writer, None, ours, theirs) is None
    narrow = stored(local, prepared(LocalStore(tmp_path / "narrow"), columns=2))
    assert merged(local, base, stored(local, several(tmp_path, 1, 2)), narrow) is None


def test_damage_of_a_held_file_is_named_verified_and_healed_by_storing_again(tmp_path: Path) -> None:
    rows = {"id": np.arange(50), "text": [f"row {i}" for i in range(50)]}
    source = LocalStore(tmp_path / "store")
    made = prepare(rows, source, validation=None).train
    stock = StockRoom.init(tmp_path / "repo")
    with stock.enable_write():
        stock.data["rows"] = made
    stock.close()
    (entry,) = made.manifest.files
    [held] = (tmp_path / "repo").rglob(f"**/files/{entry.digest}")
    held.chmod(0o644)
    content = bytearray(held.read_bytes())
    content[len(content) // 4] ^= 2
    with held.open("r+b") as file:  # the same file as the prepared one's, which is linked
        file.write(content)
    with StockRoom(tmp_path / "repo") as stock:
        dataset = stock.data["rows"]
        with pytest.raises(
            CorruptError, match=r"row group \d+, column '(id|text)': .*stock verify --repair-from"
        ):
            dataset[:]
        assert not stock.verify().ok
    healed = prepare(rows, source, validation=None)
    assert not healed.reused
    with StockRoom(tmp_path / "repo", enable_write=True) as stock:
        stock.data["rows"] = healed.train
        assert stock.verify().ok
    with StockRoom(tmp_path / "repo") as stock:
        assert sorted(stock.data["rows"][:]["id"]) == list(range(50))
