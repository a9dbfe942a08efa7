import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import by_level

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
    assert open_dataset(parts[1], filters=field("x") < 70)[:]["x"].tolist() == list(range(30, 60))


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


def random_floats(rng, count, kind):
    """Few values, so that row groups are often of one, beside null, NaN, both infinities and both zeros."""
    special = [None, np.nan, np.inf, -np.inf, 0.0, -0.0]
    values = [
        special[rng.integers(6)] if rng.random() < 0.3 else float(rng.integers(-2, 3)) for _ in range(count)
    ]
    return pa.array(values, kind)


def kept(values, operator, operand):
    """The rows that one comparison keeps, by numpy's rules for floats; one with a null is not true."""
    present = np.array([value is not None for value in values])
    floats = np.array([0.0 if value is None else value for value in values])
    compare = {
        "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater,
        ">=": np.greater_equal,
    }  # fmt: skip
    if operator in compare:
        return present & compare[operator](floats, operand), present
    among = np.isin(floats, operand)
    return (among if operator == "in" else ~among) & present, present


@pytest.mark.long
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_filters_on_floats_agree_with_numpy_whatever_statistics_say(tmp_path, kind):
    rng = np.random.default_rng(8)
    for number in range(by_level(2, 3, 24)):
        x, y = random_floats(rng, 30, kind), random_floats(rng, 30, kind)
        path = tmp_path / f"{number}.parquet"
        table = pa.table({"i": range(30), "x": x, "y": y})
        # Some row groups of one value beside NaN, which statistics show as the value alone.
        table = table.take(np.argsort([str(v) for v in x.to_pylist()])) if number % 2 else table
        pq.write_table(table, path, row_group_size=int(rng.integers(2, 9)))
        i, x, y = (table[name].to_pylist() for name in ("i", "x", "y"))
        for operator in ("==", "!=", "<", "<=", ">", ">=", "in", "not in"):
            operand = [float(rng.integers(-1, 2)), 2.0] if "in" in operator else float(rng.integers(-2, 3))
            mine, present = kept(x, operator, operand)
            other, _ = kept(y, operator, operand)
            here, there = ([("x", operator, operand)], [("y", operator, operand)])
            check_kept(path, here, mine, i)
            check_kept(path, [*here, *there], mine & other, i)
            check_kept(path, [here, there], mine | other, i)
            if "in" not in operator:
                check_kept(path, ~pq.filters_to_expression(here), ~mine & present, i)
        floats = np.array([np.nan if v is None else v for v in x])
        valid = np.array([v is not None for v in x])
        both = valid & np.array([v is not None for v in y])
        others = np.array([np.nan if v is None else v for v in y])
        check_kept(path, field("x") < field("y"), both & (floats < others), i)
        check_kept(path, field("x") != field("y"), both & (floats != others), i)
        check_kept(path, ~(field("x") <= field("y")), both & ~(floats <= others), i)
        check_kept(path, field("x").is_nan(), valid & np.isnan(floats), i)
        check_kept(path, ~field("x").is_nan(), valid & ~np.isnan(floats), i)
        check_kept(path, field("x").is_null(), ~valid, i)
        check_kept(path, field("x").is_null(nan_is_null=True), np.isnan(floats), i)
        check_kept(path, field("x").is_valid(), valid, i)
        check_kept(path, pc.is_finite(field("x")), valid & np.isfinite(floats), i)


def check_kept(path, filters, expected, numbers):
    wanted = [number for number, keep in zip(numbers, expected, strict=True) if keep]
    if wanted:
        assert open_dataset(path, filters=filters, columns=["i"])[:]["i"].tolist() == wanted, filters
    else:
        with pytest.raises(DataError, match="No row matches"):
            open_dataset(path, filters=filters, columns=["i"])


def test_statistics_spare_reading_what_no_nan_can_bring_back(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    x = np.arange(40.0)
    pq.write_table(pa.table({"x": x, "y": x, "z": x, "u": x, "v": x}), path, row_group_size=10)
    read = []
    whole = survey.read_group
    monkeypatch.setattr(
        survey, "read_group", lambda file, group, *rest: read.append(group) or whole(file, group, *rest)
    )
    every = [(name, ">=", 30) for name in "xyzuv"]
    open_dataset(path, filters=[*every, ("x", "<", 35)])
    assert read == [3]
    read.clear()
    open_dataset(path, filters=~(field("x") < 30))  # NaN is not below 30
    assert read == [0, 1, 2, 3]


@pytest.fixture
def prices(tmp_path):
    """Decimals of which Arrow's cast makes other floats than ``float`` does."""
    path = tmp_path / "prices.parquet"
    values = [decimal.Decimal(cents).scaleb(-2) for cents in range(1, 2001)]
    wide = [decimal.Decimal(cents).scaleb(-20) for cents in range(1, 2001)]
    columns = {
        "id": range(2000), "price": pa.array(values, pa.decimal128(10, 2)),
        "wide": pa.array(wide, pa.decimal256(50, 20)), "x": np.arange(2000) / 2,
    }  # fmt: skip
    struct = pa.StructArray.from_arrays([columns["price"]], ["d"])
    pq.write_table(pa.table({**columns, "s": struct}), path, row_group_size=300)
    return path


def test_decimals_equal_the_floats_that_are_nearest_to_them(prices):
    every = open_dataset(prices, columns=["price", "wide", "s.d"])[:]
    assert every["price"].tolist() == every["s.d"].tolist() == [cents / 100 for cents in range(1, 2001)]
    assert every["wide"].tolist() == [float(f"{cents}e-20") for cents in range(1, 2001)]
    for cents in (1, 7, 35, 57, 110, 1001, 1999):
        for name in ("price", "s.d"):
            found = open_dataset(prices, filters=[(name, "=", cents / 100)], columns=["id", "price"])[:]
            assert found["id"].tolist() == [cents - 1]
            assert found["price"].tolist() == [cents / 100]
        exact = open_dataset(prices, filters=field("price") == decimal.Decimal(cents).scaleb(-2))
        assert exact[:]["id"].tolist() == [cents - 1]
    several = open_dataset(prices, filters=[("price", "in", [0.07, 0.35]), ("x", "<", 10.0)])
    assert several[:]["id"].tolist() == [6]
    mixed = (field("price") == decimal.Decimal("0.35")) & (field("x") < 100.0)
    assert open_dataset(prices, filters=mixed)[:]["id"].tolist() == [34]


def test_decimals_are_compared_with_one_kind(prices):
    both = (field("price") == decimal.Decimal("0.35")) | (field("price") < 0.1)
    with pytest.raises(
        DataError, match=r"decimals of 'price' with floats and with decimals. Compare them with one"
    ):
        open_dataset(prices, filters=both)
    with pytest.raises(DataError, match=r"Name them by the name .* pyarrow.compute.field\('s.d'\)"):
        open_dataset(prices, filters=field("s", "d") == 0.35)
