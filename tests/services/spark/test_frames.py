"""DataFrames of Spark on executors of their own: what Spark has beside the rules that ``test_dask`` tests."""

import sys

import numpy as np
import pandas as pd
import pytest

from hopyard.backend import InlineBackend
from hopyard.data import as_source, prepare
from hopyard.data.frames.spark_frame import SparkFrame
from hopyard.data.frames.spark_plan import plan_digest
from hopyard.errors import DataError, StorageFullError
from hopyard.storage import LocalStore

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def ids(prepared):
    return prepared.train[:]["id"].tolist(), prepared.val[:]["id"].tolist()


@pytest.fixture
def frame(spark):
    """Vectors dense and sparse, nested arrays, texts, bools and a struct."""
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import Row

    def vector(i):
        return Vectors.dense([i, 0.0, 1.0]) if i % 3 else Vectors.sparse(3, [0, 2], [i, 1.0])

    rows = [
        Row(
            id=i,
            vector=vector(i),
            image=[[float(i), 1.0], [2.0, 3.0]],
            text=f"row {i}",
            flag=i % 2 == 0,
            **{"a.b": i},
            pair=Row(x=i, y=-i),
        )
        for i in range(120)
    ]
    return spark.createDataFrame(rows)


def test_every_row_is_there_once_and_files_do_not_depend_on_partitions(frame, tmp_path, files_of):
    stores = [LocalStore(tmp_path / str(number)) for number in range(2)]
    one = prepare(frame.repartition(1), stores[0], 0.25)
    prepare(frame.repartition(7), stores[1], 0.25)
    assert files_of(stores[0]) == files_of(stores[1])
    train, val = ids(one)
    assert sorted(train + val) == list(range(120))
    assert 29 <= len(val) <= 31
    assert one.train.schema.names == ["id", "vector", "image", "text", "flag", "a.b", "pair.x", "pair.y"]
    batch = one.train[:]
    i = batch["id"]
    assert batch["vector"].dtype == np.float64
    assert np.array_equal(batch["vector"], np.stack([i, i * 0, i * 0 + 1], axis=1))
    assert batch["image"].shape == (len(train), 2, 2)
    assert np.array_equal(batch["image"][:, 0, 0], i)
    assert batch["text"].tolist() == [f"row {each}" for each in i]
    assert np.array_equal(batch["flag"], i % 2 == 0)
    assert np.array_equal(batch["a.b"], i)
    assert np.array_equal(batch["pair.y"], -i)


def test_this_process_and_other_engines_write_the_same_files(spark, tmp_path, files_of):
    dask = pytest.importorskip("dask.dataframe")
    rows = spark.range(100).selectExpr("id", "cast(id * 0.5 as float) half")
    ours = prepare(rows, LocalStore(tmp_path / "spark"))
    same = pd.DataFrame({"id": range(100), "half": np.arange(100, dtype=np.float32) / 2})
    theirs = prepare(dask.from_pandas(same, npartitions=3), LocalStore(tmp_path / "dask"))
    here = prepare(same.sample(frac=1, random_state=0), LocalStore(tmp_path / "here"))
    assert ours.fingerprint == theirs.fingerprint == here.fingerprint
    assert ours.train.manifest.statistics == here.train.manifest.statistics
    written = [files_of(LocalStore(tmp_path / name)) for name in ("spark", "dask", "here")]
    assert written[0] == written[1] == written[2]


def test_nulls_and_shapes_by_policy(spark, tmp_path):
    rows = spark.range(60).selectExpr(
        "id", "if(id % 10 = 0, null, id) x", "if(id % 20 = 0, null, array(id, id + 1)) pair"
    )
    with pytest.raises(
        DataError, match="There are null values: column 'x' in 6 rows; column 'pair' in 3 rows"
    ):
        prepare(rows, LocalStore(tmp_path))
    train = prepare(rows, LocalStore(tmp_path), None, nulls="mask").train
    batch = train[:]
    assert train.schema["pair"].shape == (2,)
    assert np.array_equal(batch["x"], np.where(batch["id"] % 10 == 0, 0, batch["id"]))
    assert np.array_equal(batch["pair_mask"], batch["id"] % 20 == 0)


def test_all_unsupported_columns_are_named_before_any_job(spark, tmp_path):
    frame = spark.range(10).selectExpr(
        "id",
        "map('a', id) m",
        "array('x', 'y') words",
        "interval 3 months wait",
        "array(named_struct('a', 1)) parts",
    )
    with pytest.raises(DataError, match="These columns hold what a dataset cannot") as caught:
        prepare(frame, LocalStore(tmp_path))
    for name in ("m (map", "words (lists of strings", "wait (interval", "parts ("):
        assert name in str(caught.value)
    assert len(prepare(frame, LocalStore(tmp_path), None, "id").train) == 10


@pytest.mark.parametrize("names", [("id", "ID"), ("id", "id")])
def test_names_that_spark_cannot_tell_apart_are_refused(spark, tmp_path, names):
    with pytest.raises(
        DataError, match=f"columns '{names[0]}' and '{names[1]}', which Spark cannot tell apart"
    ):
        prepare(
            spark.range(3).toDF("x").selectExpr(*(f"x as {name}" for name in names)), LocalStore(tmp_path)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_leaves_nothing_that_is_believed(spark, tmp_path):
    from pyspark.sql.functions import udf

    repaired = tmp_path / "repaired"

    def fragile(i):
        if i == 77 and not repaired.exists():
            raise ValueError("row 77 cannot be read today")
        return i

    frame = spark.range(100).withColumn("x", udf(fragile, "bigint")("id"))
    store = LocalStore(tmp_path / "store")
    with pytest.raises(Exception, match="row 77 cannot be read today"):
        prepare(frame, store)
    assert not [entry for entry in store.list() if entry.name.endswith("manifest.json")]
    repaired.touch()
    train, val = ids(prepare(frame, store))
    assert sorted(train + val) == list(range(100))


def test_a_preparation_that_was_killed_finds_its_files(spark, tmp_path):
    frame = spark.range(100)
    store = LocalStore(tmp_path)
    prepared = prepare(frame, store)
    paths = {entry.name: store.path(entry.name).stat() for entry in store.list() if "parquet" in entry.name}
    for split in (store.train_data, store.val_data):
        split.delete(f"{prepared.fingerprint}/manifest.json")
    again = prepare(frame, store)
    assert not again.reused
    assert {name: store.path(name).stat().st_ino for name in paths} == {
        name: found.st_ino for name, found in paths.items()
    }


def test_a_plan_over_files_is_found_again_without_a_pass(spark, tmp_path, monkeypatch):
    folder = str(tmp_path / "files")
    spark.range(50).write.parquet(folder)
    frame = spark.read.parquet(folder).where("id > 9").selectExpr("id", "id * 2 as double")
    store = LocalStore(tmp_path / "store")
    first = prepare(frame, store)
    with monkeypatch.context() as patch:
        patch.setattr(SparkFrame, "exchange", lambda *_: pytest.fail("the rows were read again"))
        again = prepare(
            spark.read.parquet(folder).where("id > 9").selectExpr("id", "id * 2 as double"), store
        )
    assert again.reused
    assert again.fingerprint == first.fingerprint
    spark.range(50, 60).write.mode("append").parquet(folder)
    assert len(prepare(spark.read.parquet(folder).where("id > 9"), store, None).train) == 50


def test_only_plans_whose_rows_are_known_have_keys(spark, tmp_path):
    from pyspark.sql.functions import rand, udf

    def plan_key(frame):
        return plan_digest(frame, deterministic=True)

    folder = str(tmp_path / "files")
    spark.range(9).selectExpr("id a", "id b").write.parquet(folder)
    files = spark.read.parquet(folder)
    assert plan_key(files) == plan_key(spark.read.parquet(folder)) is not None
    keys = {
        plan_key(files),
        plan_key(files.where("a > 1")),
        plan_key(files.where("a > 2")),
        plan_key(files.select("a")),
    }
    assert len(keys) == 4
    one = spark.read.schema("a bigint, b bigint").parquet(folder).selectExpr("a as x")
    two = spark.read.schema("b bigint, a bigint").parquet(folder).selectExpr("b as x")
    assert plan_key(one) != plan_key(two)
    assert plan_key(spark.range(9)) == plan_key(spark.range(9)) != plan_key(spark.range(8))
    assert plan_key(spark.createDataFrame([(1,)], "id int")) is None
    assert plan_key(files.withColumn("c", rand())) is None
    assert plan_key(files.withColumn("c", udf(lambda a: a, "bigint")("a"))) is None
    assert plan_key(files.mapInArrow(lambda rows: rows, "a bigint, b bigint")) is None
    assert plan_key(files.groupBy("a").sum()) == plan_key(files.groupBy("a").sum()) is not None


def test_a_frame_is_a_source_and_backends_prepare_it(frame, tmp_path):
    source = as_source(frame).select(["vector", "pair.x"])
    head = source.head(3)
    assert {name: values.shape for name, values in head.items()} == {"vector": (3, 3), "pair.x": (3,)}
    watched = []
    prepare(frame, LocalStore(tmp_path), watch=lambda *at: watched.append(at))
    assert watched[0] == ("reading", 0.0, None)
    assert ("reading", 1.0, None) in watched
    assert watched[-1] == ("writing", 120, 120)
    prepared = InlineBackend().prepare_data(LocalStore(tmp_path), frame)
    assert prepared.reused


def words(spark, rows, length=10_000, several=False):
    """Sparse vectors with ten elements each; of every third row the same as a dense vector, every tenth is null."""
    from pyspark.ml.linalg import Vectors

    def vector(i):
        places = sorted((i * 37 + 911 * k) % length for k in range(10))
        values = np.arange(1.0, 11.0) * (i + 1)
        if several and i == 17:
            return Vectors.sparse(length + 1, places, values)
        if i % 3 == 0:
            return None if several is None and i % 10 == 0 else Vectors.sparse(length, places, values)
        dense = np.zeros(length)
        dense[places] = values
        return Vectors.dense(dense) if i % 3 == 1 and i < 30 else Vectors.sparse(length, places, values)

    return spark.createDataFrame([(i, vector(i), i % 2) for i in range(rows)], ["id", "words", "label"])


def test_sparse_vectors_take_small_files_and_train_to_the_same_weights(spark, tmp_path):
    torch = pytest.importorskip("torch")
    frame = words(spark, 600)
    dense = prepare(frame, tmp_path / "dense", 0.25)
    sparse = InlineBackend().prepare_data(
        LocalStore(tmp_path / "sparse"), frame.repartition(5), 0.25, compress_sparse=True
    )
    assert sparse.train.schema["words"].sparse
    assert sparse.train.schema["words"].shape == (10_000,)
    assert sparse.train.manifest.nbytes < dense.train.manifest.nbytes / 200
    for ours, theirs in ((sparse.train, dense.train), (sparse.val, dense.val)):
        mine, its = ours[:], theirs[:]
        assert all(np.array_equal(mine[name], its[name]) for name in ("id", "words", "label"))
    models = [trained(torch, tmp_path / name) for name in ("dense", "sparse")]
    assert models[0].get_history() == models[1].get_history()
    states = [model.torch().state_dict() for model in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert prepare(frame, tmp_path / "sparse", 0.25, compress_sparse=True).reused


def trained(torch, place):
    from hopyard.torch import TorchEstimator
    from hopyard.tune import GridSearch, hp_choice

    def build(params):
        return TorchEstimator(
            torch.nn.Linear(10_000, 2),
            torch.optim.SGD,
            torch.nn.CrossEntropyLoss(),
            optimizer_params=params,
        )

    return GridSearch(
        InlineBackend(), LocalStore(place), build, {"lr": hp_choice([1e-4, 1e-3])}, num_epochs=2, num_partitions=3,
        feature_columns=["words"], progress=False,
    ).fit_on_prepared_data()  # fmt: skip


def test_null_vectors_stay_rows_of_zeros(spark, tmp_path):
    frame = words(spark, 90, 50, several=None)
    dense, sparse = (
        prepare(frame, tmp_path / str(compress), None, nulls="mask", compress_sparse=compress).train[:]
        for compress in (False, True)
    )
    assert sparse["words_mask"].sum() == 3
    assert all(np.array_equal(dense[name], sparse[name]) for name in ("id", "words", "words_mask"))


def test_vectors_of_several_lengths_cannot_stay_sparse(spark, tmp_path):
    with pytest.raises(DataError) as error:
        prepare(words(spark, 60, 50, several=True), tmp_path, compress_sparse=True)
    assert str(error.value) == (
        "Column 'words' has vectors of 50 to 51 elements, but compress_sparse=True is for vectors of one length. Give "
        "all of them one length, or leave compress_sparse=True out."
    )
    assert not list(tmp_path.rglob("*.parquet"))


class FullStore(LocalStore):
    """A store that is full until there is a file ``space`` in it; without ``spills``, rows go through Spark."""

    spills = True

    def put_file(self, name, path):
        if not self.exists("space"):
            raise StorageFullError(f"No space for {name}.")
        super().put_file(name, path)

    def staging(self):
        # Workers write files from a folder of theirs; only the driver's choice of the way counts.
        return super().staging() if self.spills else None


@pytest.mark.parametrize("spills", [True, False])
def test_a_full_store_pauses_the_preparation(spark, tmp_path, spills):
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors cannot import this file
    store = FullStore(tmp_path)
    store.spills = spills
    announced, waits = [], []

    def make_space(seconds):
        waits.append(seconds)
        store.put("space", b"")
        return False

    frame = spark.range(0, 40, 1, 2)
    prepared = prepare(frame, store, None, wait=make_space, announce=announced.append)
    assert sorted(prepared.train[:]["id"].tolist()) == list(range(40))
    assert len(waits) == 1
    assert announced[0].startswith("paused: No space for ")
