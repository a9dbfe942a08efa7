"""DataFrames of Spark with a validation set, written into a folder that executors see and into a bucket."""

import sys

import numpy as np
import pandas as pd
import pytest

from hopyard.data import prepare
from hopyard.storage import LocalStore, ObjectStore

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def credentials():
    return {"access_key_id": "AKIATEST", "secret_access_key": "hush-hush", "expires_at": None}


@pytest.fixture(params=["folder", "bucket"])
def store(request, tmp_path):
    """One beside whose data rows are spilled, and one without a folder, for which Spark keeps and shuffles them."""
    if request.param == "folder":
        made = LocalStore(tmp_path / "store")
    else:
        spark_pickle = pytest.importorskip("pyspark").cloudpickle
        spark_pickle.register_pickle_by_value(sys.modules[__name__])  # executors cannot import this file
        server, url = request.getfixturevalue("s3"), request.getfixturevalue("s3_url")
        # The executors were started before the server, so that their environment says nothing of it.
        made = ObjectStore(url, endpoint=server.url, region="us-east-1", credential_provider=credentials)
    assert (made.train_data.staging() is None) == (request.param == "bucket")
    return made


@pytest.fixture
def frame(spark):
    return spark.range(0, 90, 1, 3).selectExpr(
        "id",
        "cast(id * 0.5 as float) half",
        "array(id, -id) pair",
        "concat('row ', id) text",
        "id % 5 = 0 held",
    )


@pytest.fixture
def plain():
    i = np.arange(90)
    return pd.DataFrame(
        {
            "id": i,
            "half": (i / 2).astype("float32"),
            "pair": [[each, -each] for each in i],
            "text": [f"row {each}" for each in i],
            "held": i % 5 == 0,
        }
    )


def assert_same_rows(ours, theirs):
    """Though in another order: frames of clusters are shuffled by the hashes of their rows."""
    assert ours.schema == theirs.schema
    assert len(ours) == len(theirs)
    mine, its = ours[:], theirs[:]
    assert mine["id"].tolist() != sorted(mine["id"].tolist())
    here, there = np.argsort(mine["id"]), np.argsort(its["id"])
    for name in ours.schema.names:
        assert np.array_equal(mine[name][here], its[name][there]), name


def test_a_column_splits_as_it_does_elsewhere(frame, plain, store, tmp_path):
    ours = prepare(frame, store, "held")
    theirs = prepare(plain, LocalStore(tmp_path / "plain"), "held")
    assert ours.train.schema.names == ["id", "half", "pair", "text"]
    assert len(ours.val) == 18
    assert_same_rows(ours.train, theirs.train)
    assert_same_rows(ours.val, theirs.val)


def test_a_frame_of_its_own_is_the_validation_set_as_elsewhere(frame, plain, store, tmp_path):
    # In another order of columns, and with one more.
    val = frame.where("id >= 60").selectExpr("text", "1 as more", "pair", "id", "half", "held")
    ours = prepare(frame.where("id < 60"), store, val=val)
    theirs = prepare(plain[:60], LocalStore(tmp_path / "plain"), val=plain[60:])
    assert (len(ours.train), len(ours.val)) == (60, 30)
    assert_same_rows(ours.train, theirs.train)
    assert_same_rows(ours.val, theirs.val)
    assert prepare(frame.where("id < 60").repartition(5), store, validation=val.repartition(2)).reused
