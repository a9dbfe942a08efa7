import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hopyard.data import as_source, open_dataset, prepare
from hopyard.data.files.hive import hive_columns, hive_values, is_hidden
from hopyard.errors import DataError
from hopyard.storage import LocalStore, MemoryStore

ROWS = 60


def frame():
    ids = np.arange(ROWS)
    return pd.DataFrame(
        {"id": ids, "x": ids / 2, "year": 2020 + ids % 3, "city": np.array(["Bern", "São=1/2"])[ids % 2]}
    )


@pytest.fixture
def table(tmp_path):
    """As pyarrow and Spark write a table that is partitioned by year and city."""
    root = tmp_path / "table"
    frame().to_parquet(root, partition_cols=["year", "city"])
    (root / "_SUCCESS").touch()
    for name in ("_metadata", "_common_metadata"):
        pq.write_table(pa.table({"other": [1]}), root / name)
    (root / "_temporary").mkdir()
    pq.write_table(pa.table({"other": [1]}), root / "_temporary" / "part.parquet")
    return root


def check(batch):
    assert np.array_equal(batch["x"], batch["id"] / 2)
    assert batch["year"].dtype == np.int64
    assert np.array_equal(batch["year"], 2020 + batch["id"] % 3)
    assert batch["city"].tolist() == ["São=1/2" if i % 2 else "Bern" for i in batch["id"]]


def test_keys_of_directories_are_columns(table):
    dataset = open_dataset(table)
    assert dataset.schema.names == ["id", "x", "year", "city"]
    batch = dataset[:]
    check(batch)
    assert sorted(batch["id"]) == list(range(ROWS))
    for part in dataset.partitions(4):
        check(part[:])
    for batch in dataset.loader(7, True):
        check(batch)


def test_a_pattern_has_the_partitions_behind_it_and_a_list_of_directories_those_below_each(table):
    dataset = open_dataset(f"{table}/year=*/*/*.parquet")
    check(dataset[:])
    inside = open_dataset([table / "year=2020", table / "year=2021"])
    assert inside.schema.names == ["id", "x", "city"]
    assert len(inside) == 40


def test_filters_on_partitions_open_only_their_rows(table):
    dataset = open_dataset(table, filters=[("year", "==", 2021), ("city", "=", "Bern"), ("id", ">", 20)])
    batch = dataset[:]
    check(batch)
    assert sorted(batch["id"]) == [i for i in range(21, ROWS) if i % 3 == 1 and i % 2 == 0]
    assert dataset.num_row_groups == 1
    with pytest.raises(DataError, match=r"No row matches .*60 rows in 6 files"):
        open_dataset(table, filters=pc.field("year") > 2022)


def test_only_a_partitions_column_can_be_wanted(table):
    assert sorted(open_dataset(table, columns=["year"])[:]["year"]) == sorted(2020 + np.arange(ROWS) % 3)


def test_the_fingerprint_is_also_of_the_partitions(tmp_path):
    for root, value in (("one", 1), ("two", 2)):
        directory = tmp_path / root / f"v={value}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2]}), directory / "a.parquet")
    one, two = open_dataset(tmp_path / "one"), open_dataset(tmp_path / "two")
    assert one.fingerprint != two.fingerprint
    assert (one[:]["v"].tolist(), two[:]["v"].tolist()) == ([1, 1], [2, 2])


@pytest.mark.parametrize("nulls", ["fill", "mask"])
def test_the_default_partition_is_null(tmp_path, nulls):
    for value in ("__HIVE_DEFAULT_PARTITION__", "7"):
        directory = tmp_path / f"v={value}"
        directory.mkdir()
        pq.write_table(pa.table({"id": [len(value)]}), directory / "a.parquet")
    with pytest.raises(DataError, match=r"v=__HIVE_DEFAULT.*: column 'v' has 1 nulls.*nulls='fill'"):
        open_dataset(tmp_path)
    batch = open_dataset(tmp_path, nulls=nulls)[:]
    assert dict(zip(batch["id"].tolist(), batch["v"].tolist(), strict=True)) == {26: 0, 1: 7}
    if nulls == "mask":
        assert batch["v_mask"].tolist() == [id == 26 for id in batch["id"]]
    made = prepare(tmp_path, MemoryStore(), validation=0.5, nulls=nulls)
    assert sorted([*made.train[:]["v"], *made.val[:]["v"]]) == [0, 7]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("1", ["1", "1"]),
        ("1", [1, 1]),
        ("01", [1, 1]),
        ("1", [1.0, 1.0]),
        ("2020-01-01", [datetime.date(2020, 1, 1)] * 2),
        ("a", pa.array(["a", "a"]).dictionary_encode()),
    ],
    ids=str,
)
@pytest.mark.parametrize("statistics", [True, False])
def test_a_column_that_files_and_directories_name_alike_is_the_files_where_they_agree(
    tmp_path, key, values, statistics
):
    (tmp_path / f"v={key}").mkdir()
    table = pa.table({"v": values, "x": [1, 2]})
    pq.write_table(table, tmp_path / f"v={key}" / "a.parquet", write_statistics=statistics)
    opened = open_dataset(tmp_path)[:]["v"]
    assert as_source(tmp_path).head(2)["v"].tolist() == opened.tolist()
    assert opened.tolist() == open_dataset(tmp_path / f"v={key}" / "a.parquet")[:]["v"].tolist()


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        ("1", ["01", "1"], "holds 01 in row 0"),
        ("1", [1, 2], "holds 2 in row 1"),
        ("1", [2, 2], "holds 2 in row 0"),
        ("1", [1, None], "holds None in row 1"),
        ("1", [1.0, np.nan], "holds nan in row 1"),
        ("a", [1, 1], "holds 1 in row 0"),
        ("a", ["a", "b"], "holds b in row 1"),
        ("__HIVE_DEFAULT_PARTITION__", [None, 3], "holds 3 in row 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("statistics", [True, False])
def test_a_column_that_files_and_directories_name_alike_must_be_equal(
    tmp_path, key, values, said, statistics
):
    (tmp_path / f"v={key}").mkdir()
    path = tmp_path / f"v={key}" / "a.parquet"
    pq.write_table(pa.table({"v": values, "x": range(len(values))}), path, write_statistics=statistics)
    text = rf"a.parquet, row group 0: column 'v' {said}, but the file lies in v={key}/.* as a list of paths"
    for read in (open_dataset, as_source, lambda path: open_dataset(path, columns=["x"])):
        with pytest.raises(DataError, match=text):
            read(tmp_path)
    assert open_dataset([path], columns=["x"])[:]["x"].tolist() == list(range(len(values)))


def test_keys_that_are_null_agree_with_columns_of_nulls(tmp_path):
    for key, value in (("1", 1), ("__HIVE_DEFAULT_PARTITION__", None)):
        (tmp_path / f"v={key}").mkdir()
        pq.write_table(
            pa.table({"v": pa.array([value] * 2, pa.int64())}), tmp_path / f"v={key}" / "a.parquet"
        )
    assert sorted(open_dataset(tmp_path, nulls="fill")[:]["v"]) == [0, 0, 1, 1]


def test_a_partitioned_table_is_prepared(table, tmp_path):
    made = prepare(table, LocalStore(tmp_path / "store"), validation=0.25)
    check(made.train[:])
    check(made.val[:])
    assert as_source(table).columns == ["id", "x", "year", "city"]
    assert as_source(table).select(["city", "id"]).head(3).keys() == {"id", "city"}


def test_stores_are_partitioned_too(table):
    store = MemoryStore()
    for file in table.rglob("year=*/city=Bern/*.parquet"):
        store.put(file.relative_to(table).as_posix(), file.read_bytes())
    dataset = open_dataset(store)
    check(dataset[:])
    assert len(dataset) == ROWS // 2


def test_files_of_other_keys_are_named(tmp_path):
    for name in ("a=1", "b=1"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / name / "x.parquet")
    with pytest.raises(
        DataError, match=r"b=1/x.parquet lies in a partition of b, but a=1/x.parquet in one of a"
    ):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("x.parquet", {}),
        ("a=1/x.parquet", {"a": "1"}),
        ("a=1/b=x%20y%2Fz/x.parquet", {"a": "1", "b": "x y/z"}),
        ("a%3D=1=2/x.parquet", {"a=": "1=2"}),
        ("a=__HIVE_DEFAULT_PARTITION__/x.parquet", {"a": None}),
        ("=1/a=/x=1.parquet", {"a": ""}),
    ],
)
def test_directories_are_read_as_hive_writes_them(name, values):
    assert hive_values(name) == values


def test_values_are_integers_only_if_all_are():
    assert hive_columns(["a=1/x", "a=-2/x", "a=__HIVE_DEFAULT_PARTITION__/x"]) == {"a": (1, -2, None)}
    assert hive_columns(["a=1/x", "a=1.5/x"]) == {"a": ("1", "1.5")}
    assert hive_columns(["a=12345678901234567890/x"]) == {"a": ("12345678901234567890",)}


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("x", False),
        ("_x", True),
        (".x", True),
        ("a/_x", True),
        ("_t/x", True),
        (".t/x", True),
        ("_c=1/x", False),
    ],
)
def test_what_writers_keep_beside_the_data_is_hidden(name, hidden):
    assert is_hidden(name) == hidden
