"""Prepared datasets and decoded data after power cuts: what is read is right, made again, or an error."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.power import Cuts, recording, scratch_disk

from hopyard.data import open_dataset
from hopyard.data.cache.durability import durability
from hopyard.data.manifest import MANIFEST_NAME
from hopyard.data.preparing.prepare import prepare
from hopyard.errors import DataError, NotFoundError
from hopyard.storage import LocalStore


@pytest.fixture
def root(monkeypatch):
    """A disk, and on it the node cache, whose entries nobody brings to the disk while states are looked at."""
    with scratch_disk() as root:
        monkeypatch.setenv("HOPYARD_CACHE", str(root / "cache"))
        yield root


def rows_of(dataset):
    """All rows, column by column, read batch by batch through the node cache."""
    batches = list(dataset.loader(batch_size=50))
    return {name: np.concatenate([batch[name] for batch in batches]).tolist() for name in batches[0]}


def test_a_preparation_that_returned_outlasts_a_power_cut_and_another_is_done_again(
    root, data, files_of, monkeypatch
):
    with recording(root) as record:
        prepare(data(), LocalStore(root / "store"), validation=0.2)
        record.done()
        durability.join()
    cuts = Cuts("prepare", record, 100, 8, 40)
    store = LocalStore(root / "store")
    expected, rows = files_of(store), rows_of(open_dataset(store))
    monkeypatch.setattr(durability, "add", lambda path, new=False: None)

    def look(done, cut):
        store = LocalStore(root / "store")
        try:
            assert rows_of(open_dataset(store)) == rows
        except (NotFoundError, DataError):
            assert not done
            names = store.names("train_data") if (root / "store").exists() else ()
            assert not [name for name in names if name.endswith(MANIFEST_NAME)]
        if cut.number % 3 == 0:
            again = prepare(data(), store, validation=0.2)
            assert again.reused or not done
            assert files_of(store) == expected
            assert rows_of(open_dataset(store)) == rows

    cuts.check(root, look)


def test_decoded_data_that_a_power_cut_has_left_are_right_or_made_again(root, monkeypatch):
    lake = root.with_name("lake")
    lake.mkdir()
    columns = {"x": [[float(n), 2.0] for n in range(200)], "text": [f"row {n}" for n in range(200)]}
    table = pa.table({"x": pa.array(columns["x"], pa.list_(pa.float32())), "text": columns["text"]})
    pq.write_table(table, lake / "0.parquet", row_group_size=100)
    with recording(root) as record:
        assert rows_of(open_dataset(lake))["text"] == columns["text"]
        record.done()
        durability.join()
    assert any(change[0] == "sync" for change in record.changes)
    monkeypatch.setattr(durability, "add", lambda path, new=False: None)

    def look(done, cut):
        found = rows_of(open_dataset(lake))
        assert found["text"] == columns["text"]
        assert np.array(found["x"]).tolist() == columns["x"]

    Cuts("node cache", record, 300, 15, 60).check(root, look)
