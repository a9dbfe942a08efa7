"""Sparse columns: small files, the batches of dense ones, and errors for what cannot be one."""

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset, prepare
from hopyard.data.cache.node import NodeCache
from hopyard.data.columns.columns import ColumnData
from hopyard.data.columns.policies import plan_policies
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.preparing.prepared import publish
from hopyard.data.preparing.write import SplitWriter
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.data.sparse import dense_rows, from_arrow, pairs_of, sparse_rows, to_arrow
from hopyard.errors import CorruptError, DataError, FormatError, UsageError
from hopyard.storage import LocalStore

ROWS, LENGTH = 500, 60


def matrix(dtype="float64", length=LENGTH):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((ROWS, length)).astype(dtype)
    dense[rng.random(dense.shape) < 0.9] = 0
    dense[3] = 0
    dense[4, :3] = [-0.0, np.nan, np.inf]
    return dense


def written(store, dense, missing=None, nulls="error"):
    """A prepared dataset with the sparse column ``x`` and the rows' numbers."""
    columns = {
        "x": ColumnData("x", "tensor", sparse_rows(dense), missing, dense.shape[1]),
        "id": ColumnData("id", "tensor", np.arange(len(dense))),
    }
    policies = plan_policies([columns], nulls)
    file, statistics = SplitWriter(policies, store).write(columns, np.arange(len(dense)), 24)
    manifest = Manifest("train", "ab" * 32, policies.schema, (file,), statistics.result())
    return Dataset(store, publish(store, manifest))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_are_those_of_dense_data_to_the_last_bit(tmp_path, dtype):
    dense = matrix(dtype)
    dataset = written(LocalStore(tmp_path), dense)
    assert dataset.schema["x"] == Column("x", "tensor", dtype, (LENGTH,), sparse=True)
    assert str(dataset.schema["x"]) == f"x: {dtype}[60], sparse"
    bits = dense.view(f"u{dense.itemsize}")
    for batch in dataset.loader(64, shuffle=True, seed=1):
        assert batch["x"].dtype == dtype
        assert np.array_equal(batch["x"].view(bits.dtype), bits[batch["id"]])
    assert np.array_equal(dataset[[7, 3, 490]]["x"].view(bits.dtype), bits[[7, 3, 490]])
    assert dataset[4]["x"].shape == (LENGTH,)
    parts = dataset.partitions(4)
    assert np.array_equal(np.concatenate([part[:]["x"] for part in parts]).view(bits.dtype), bits)


def test_every_way_of_reading_gives_dense_rows(tmp_path):
    torch = pytest.importorskip("torch")
    dense = matrix()[5:]
    dataset = written(LocalStore(tmp_path / "data"), dense)
    batch = next(iter(dataset.loader(10, output="torch")))
    assert torch.equal(batch["x"], torch.from_numpy(dense[:10]))
    files = open_dataset(
        sorted(map(str, (tmp_path / "data").glob("*.parquet")))
    )  # as files, without their manifest
    assert np.array_equal(files[:]["x"], dense)
    assert np.array_equal(open_dataset(str(tmp_path / "data"), ragged="pad")[:]["x"], dense)
    windows = next(iter(files.windows(4).loader(3)))
    assert np.array_equal(windows["x"][0], dense[:4])
    again = prepare(dataset, tmp_path / "again", validation=None)
    assert not again.train.schema["x"].sparse
    assert np.array_equal(again.train[:]["x"], dense[again.train[:]["id"]])
    paths = prepare(str(tmp_path / "data"), tmp_path / "paths", validation=None)
    assert np.array_equal(paths.train[:]["x"], dense[paths.train[:]["id"]])


def test_rows_come_from_the_node_cache_and_from_memory(tmp_path):
    dense = matrix(length=7)  # pairs of 12 bytes that begin anywhere
    stored = written(LocalStore(tmp_path / "data"), dense)
    for cache in (NodeCache(tmp_path / "cache"), NodeCache(tmp_path / "cache"), False):
        dataset = Dataset(stored.store, stored.manifest, cache=cache)
        for batch in dataset.loader(50, shuffle=True):
            assert np.array_equal(batch["x"], dense[batch["id"]], equal_nan=True)
    assert any((tmp_path / "cache").rglob("*"))


def test_files_are_lists_of_indices_and_values(tmp_path):
    dense = np.zeros((200, 10_000))
    dense[np.arange(200)[:, None], np.arange(10) * 7] = 1.5
    dataset = written(LocalStore(tmp_path), dense)
    assert dataset.manifest.nbytes < 200 * 200
    table = pq.read_table(tmp_path / dataset.manifest.files[0].name)
    assert table["x"][0].as_py() == [{"index": 7 * i, "value": 1.5} for i in range(10)]
    assert np.array_equal(dataset[:]["x"], dense)
    statistics = dataset.manifest.statistics["x"]
    assert (statistics.min, statistics.max, statistics.not_finite) == (0.0, 1.5, 0)
    assert statistics.mean == pytest.approx(0.0015)
    assert statistics.std == pytest.approx(dense.std())


def test_null_rows_are_zeros(tmp_path):
    missing = np.arange(ROWS) % 5 == 0
    dense = matrix()
    dense[missing] = 0
    dataset = written(LocalStore(tmp_path), dense, missing, nulls="mask")
    assert np.array_equal(dataset[:]["x"], dense, equal_nan=True)
    assert np.array_equal(dataset[:]["x_mask"], missing)


def test_a_version_that_does_not_know_sparse_columns_says_what_to_install(tmp_path, monkeypatch):
    dataset = written(LocalStore(tmp_path), matrix())
    data = (tmp_path / "manifest.json").read_bytes()
    fields = json.loads(data)
    assert fields["format"]["flags"] == ["sparse"]
    assert fields["schema"][0] == {"name": "x", "kind": "sparse", "dtype": "float64", "shape": [LENGTH]}
    assert Manifest.from_bytes(data) == dataset.manifest
    monkeypatch.setattr("hopyard.data.manifest.SPARSE_FLAG", "other")
    with pytest.raises(FormatError, match=re.escape("and uses 'sparse'")) as error:
        Manifest.from_bytes(data)
    assert "pip install 'hopyard>=" in str(error.value)


def test_a_schema_with_a_sparse_column_survives_json():
    schema = Schema([Column("x", "tensor", "float32", (9,), sparse=True)])
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert schema["x"].width == 36
    assert schema["x"].stored_width is None


def test_rows_survive_arrow():
    rows = sparse_rows(matrix()[5:])
    array = to_arrow(rows, "float64")
    assert from_arrow(array, "float64", LENGTH) == rows
    assert from_arrow(array[10:20], "float64", LENGTH) == rows[10:20]
    assert np.array_equal(dense_rows(rows, LENGTH), matrix()[5:])


def test_indices_out_of_range_are_refused(tmp_path):
    rows = Ragged(pairs_of(np.array([2, 9], np.int32), np.ones(2)), np.array([0, 1, 2]))
    assert from_arrow(to_arrow(rows, "float64"), "float64", 9) is None
    dataset = written(LocalStore(tmp_path), matrix())
    schema = Schema([Column("x", "tensor", "float64", (5,), sparse=True)])
    narrow = Dataset(dataset.store, Manifest("train", "", schema, dataset.manifest.files), cache=False)
    with pytest.raises(
        (DataError, CorruptError), match="or indices out of range, but its file says"
    ) as error:
        narrow[:]
    assert "The file was changed: restore it, or prepare the data again." in str(error.value)


def test_only_frames_of_spark_can_be_kept_sparse(tmp_path):
    with pytest.raises(UsageError) as error:
        prepare({"x": np.eye(4)}, tmp_path, compress_sparse=True)
    assert str(error.value) == (
        "compress_sparse=True was given with data of type dict, but it is for the vectors of Spark ML in a Spark "
        "DataFrame. Leave it out; other data is stored as dense arrays."
    )
    assert not list(tmp_path.iterdir())


def test_files_of_dense_and_sparse_rows_do_not_mix(tmp_path):
    store = LocalStore(tmp_path / "sparse")
    one = written(store, matrix()[:5]).manifest.files[0].name
    other = prepare({"x": matrix(), "id": np.arange(ROWS)}, tmp_path / "dense", validation=None).train
    paths = [str(tmp_path / "sparse" / one), str(other.store.path(other.manifest.files[0].name))]
    with pytest.raises(DataError) as error:
        open_dataset(paths)
    assert (
        f"{paths[1]}: column 'x' is x: float64[60], but in {paths[0]} it is x: float64[60], sparse."
        in str(error.value)
    )
