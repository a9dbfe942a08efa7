import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.data import open_dataset, prepare
from hopyard.data.opening import survey
from hopyard.errors import ColumnError, DataError
from hopyard.storage import LocalStore

field = pc.field
ROWS = 100
START = datetime.datetime(2020, 1, 1)


def table():
    return pa.table(
        {
            "x": range(ROWS),
            "kind": pa.array([f"k{i % 4}" for i in range(ROWS)]).dictionary_encode(),
            "maybe": [None if i % 3 else i for i in range(ROWS)],
            "when": pa.array([START + datetime.timedelta(days=i) for i in range(ROWS)]),
            "s": [{"b": i, "c": {"d": -i}} for i in range(ROWS)],
            "list": [[i] * (i % 3) for i in range(ROWS)],
        }
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, row_group_size=30)
    return path


def ids(path, filters, **options):
    dataset = open_dataset(path, filters=filters, columns=["x", "list"], **options)
    batch = dataset[:]
    assert [row.tolist() for row in batch["list"]] == [[i] * (i % 3) for i in batch["x"]]
    assert len(dataset) == len(batch["x"]) == sum(dataset.group_rows)
    return batch["x"].tolist()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (field("x") > 95, range(96, 100)),
        (field("x") >= 0, range(100)),
        ([("x", ">", 95)], range(96, 100)),
        ([("x", ">", 90), ("kind", "==", "k0")], [92, 96]),
        ([[("x", "<", 2)], [("x", ">", 98)]], [0, 1, 99]),
        ([("kind", "in", ["k1", "k2"]), ("x", "<", 7)], [1, 2, 5, 6]),
        (field("maybe") > 90, [93, 96, 99]),
        (~(field("maybe") > 9), [0, 3, 6, 9]),  # a null is neither more nor not more
        (field("maybe").is_null() & (field("x") < 6), [1, 2, 4, 5]),
        (field("when") > datetime.datetime(2020, 4, 8), [99]),
        (field("s.b") > 97, [98, 99]),
        (field("s", "b") > 97, [98, 99]),
        (field("s.c.d") > -2, [0, 1]),
        ((field("x") % 50 == 1) if hasattr(pc.Expression, "__mod__") else field("x").isin([1, 51]), [1, 51]),
    ],
    ids=str,
)
def test_rows_are_those_that_the_filter_keeps(file, filters, expected):
    assert ids(file, filters) == list(expected)


def test_filtered_rows_come_in_batches_partitions_and_steps(file):
    dataset = open_dataset(file, filters=(field("x") < 20) | (field("x") > 70), columns=["x"])
    kept = [*range(20), *range(71, 100)]
    assert dataset.num_row_groups == 3  # rows 30 to 59 have none
    assert [len(part) for part in dataset.partitions(3)] == [20, 19, 10]
    assert np.concatenate([part[:]["x"] for part in dataset.partitions(2)]).tolist() == kept
    for window in (None, 100):
        batches = list(dataset.loader(7, True, seed=1, window=window))
        assert sorted(np.concatenate([batch["x"] for batch in batches]).tolist()) == kept
    assert dataset[[-1, 0]]["x"].tolist() == [99, 0]


def test_only_the_filters_columns_of_possible_row_groups_are_read(file, monkeypatch):
    read = []
    whole = survey.read_group

    def noted(file, group, columns, rows=None):
        read.append((group, columns))
        return whole(file, group, columns, rows)

    monkeypatch.setattr(survey, "read_group", noted)
    open_dataset(file, filters=(field("x") > 70) & (field("s.b") > 75), columns=["x"])
    assert read == [(2, ["x", "s.b"]), (3, ["x", "s.b"])]


def test_a_filter_changes_the_fingerprint_by_the_rows_it_keeps(file):
    everything = open_dataset(file, columns=["x"])
    some = open_dataset(file, filters=field("x") > 50, columns=["x"])
    same = open_dataset(file, filters=[("x", ">=", 51)], columns=["x"])
    other = open_dataset(file, filters=field("x") > 51, columns=["x"])
    assert some.fingerprint == same.fingerprint
    assert len({each.fingerprint for each in (everything, some, other)}) == 3
    assert open_dataset(file, filters=field("x") >= 0, columns=["x"]).fingerprint == everything.fingerprint


def test_nulls_that_a_filter_leaves_out_need_no_policy(file):
    dataset = open_dataset(file, filters=field("maybe").is_valid())
    assert dataset[:]["maybe"].tolist() == list(range(0, 100, 3))


def test_prepared_data_is_filtered_too(tmp_path):
    made = prepare({"x": np.arange(90), "y": np.arange(90) / 2, "t": np.ones((90, 3))}, LocalStore(tmp_path))
    rows = made.train[:]["x"]
    dataset = open_dataset(tmp_path, filters=field("y") > 30)
    assert dataset[:]["x"].tolist() == rows[rows > 60].tolist()
    assert dataset.schema == made.train.schema
    batches = list(dataset.loader(8, True))
    assert sorted(np.concatenate([batch["x"] for batch in batches])) == sorted(rows[rows > 60])
    again = open_dataset(dataset, filters=field("x") < 70)
    assert again[:]["x"].tolist() == rows[(rows > 60) & (rows < 70)].tolist()


def test_a_partition_that_is_filtered_stays_one(file):
    parts = open_dataset(file, columns=["x"]).partitions(2)
    assert open_dataset(parts[1], filters=field("x") < 70)[:]["x"].tolist() == list(range(60, 70))


@pytest.mark.parametrize(
    ("filters", "error", "text"),
    [
        (
            field("x") > 1000,
            DataError,
            r"No row matches the filter \(x > 1000\): 100 rows in 1 files were looked",
        ),
        ([("knd", "==", "k1")], ColumnError, "Unknown column: 'knd'; did you mean 'kind'"),
        (field("x") == "a", DataError, r"a.parquet: the filter .* does not fit the columns .*x: int64"),
        (field("x"), DataError, "gives int64 values, but must be true or false"),
        (field(0) > 1, DataError, "names columns by number. Name them"),
        ("x > 1", DataError, "filters='x > 1' is no filter .*Give a pyarrow expression"),
        ([("x", "~", 1)], DataError, "is no filter"),
        ([], DataError, "is no filter"),
    ],
    ids=str,
)
def test_what_a_filter_does_wrong_is_said(file, filters, error, text):
    with pytest.raises(error, match=text):
        open_dataset(file, filters=filters)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=1, max_size=40),
    group=st.integers(1, 20),
    bounds=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
    statistics=st.booleans(),
)
def test_any_filter_keeps_what_pandas_keeps(tmp_path_factory, values, group, bounds, statistics):
    path = tmp_path_factory.mktemp("filter") / "a.parquet"
    rows = pa.table({"v": pa.array(values, pa.int32()), "id": range(len(values))})
    pq.write_table(rows, path, row_group_size=group, write_statistics=statistics)
    low, high = bounds
    expected = [i for i, v in enumerate(values) if v is not None and (low <= v < high or v == 5)]
    filters = ((field("v") >= low) & (field("v") < high)) | (field("v") == 5)
    if not expected:
        with pytest.raises(DataError, match="No row matches"):
            open_dataset(path, filters=filters)
    else:
        assert open_dataset(path, filters=filters, cache=False)[:]["id"].tolist() == expected
