from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import as_source, open_dataset, prepare
from hopyard.data.order import WINDOW_BYTES
from hopyard.errors import CorruptError, DataError, NotFoundError, UsageError
from hopyard.storage import LocalStore, MemoryStore

ROWS = 100


def table(rows=ROWS, start=0):
    numbers = np.arange(start, start + rows)
    return pa.table(
        {
            "id": numbers,
            "features": pa.array([[i, i + 0.5, i + 1.0] for i in numbers.tolist()], pa.list_(pa.float32())),
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 2)), 2),
            "name": [f"n{i}" for i in numbers.tolist()],
            "kind": pa.array([f"k{i % 3}" for i in numbers.tolist()]).dictionary_encode(),
            "flag": numbers % 2 == 0,
            "list": pa.array([list(range(i % 3)) for i in numbers.tolist()], pa.list_(pa.int16())),
            "when": pa.array(numbers, pa.timestamp("s")),
        }
    )


def write(path, rows=ROWS, start=0, **options):
    pq.write_table(table(rows, start), path, **{"row_group_size": 30, **options})
    return path


def check(batch):
    ids = batch["id"]
    assert np.array_equal(batch["features"], np.stack([ids, ids + 0.5, ids + 1], axis=1).astype(np.float32))
    assert batch["features"].dtype == np.float32
    assert np.array_equal(batch["fixed"], np.stack([ids, ids], axis=1))
    assert batch["name"].tolist() == [f"n{i}" for i in ids]
    assert batch["kind"].tolist() == [f"k{i % 3}" for i in ids]
    assert np.array_equal(batch["flag"], ids % 2 == 0)
    assert [row.tolist() for row in batch["list"]] == [list(range(i % 3)) for i in ids]
    assert np.array_equal(batch["when"], ids * 10**9)


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"data_page_size": 64}, {"version": "1.0"}])
def test_foreign_parquet_is_read_without_preparation(tmp_path, options):
    dataset = open_dataset(write(tmp_path / "a.parquet", **options))
    assert len(dataset) == ROWS
    assert dataset.num_row_groups == 4
    assert dataset.schema["features"].shape == (3,)
    assert dataset.schema["list"].kind == "ragged"
    check(dataset[:])
    check(dataset[[99, 3, 3, 50]])
    for window in (WINDOW_BYTES, 1500, None):
        loader = dataset.loader(16, True, seed=4, window=window)
        assert (loader.state_dict()["window"] is None) == (window != 1500)
        batches = list(loader)
        for batch in batches:
            check(batch)
        assert sorted(np.concatenate([batch["id"] for batch in batches])) == list(range(ROWS))


def test_plain_foreign_columns_are_mapped_and_nothing_is_decoded(tmp_path):
    required = pa.schema([pa.field("id", pa.int64(), False), pa.field("y", pa.float64(), False)])
    path = tmp_path / "plain.parquet"
    plain = pa.table({"id": np.arange(ROWS), "y": np.arange(ROWS) / 2}, schema=required)
    pq.write_table(plain, path, row_group_size=33, compression="none", use_dictionary=False)
    dataset = open_dataset(path)
    loader = dataset.loader(16, True, window=1)
    assert dataset.reader().is_mapped(dataset.schema["y"])
    assert all(np.array_equal(batch["y"], batch["id"] / 2) for batch in loader)


def test_the_stream_of_foreign_files_is_that_of_prepared_ones(tmp_path, make_dataset):
    foreign = open_dataset(write(tmp_path / "a.parquet"))
    prepared = make_dataset([[60], [40]])
    for one, other in zip(foreign.loader(16, True, 7), prepared.loader(16, True, 7), strict=True):
        assert one["id"].tolist() == other["id"].tolist()


def test_lists_of_files_directories_patterns_and_urls_are_opened(tmp_path):
    one, two = write(tmp_path / "1.parquet"), write(tmp_path / "2.parquet", 50, start=ROWS)
    (tmp_path / "_SUCCESS").touch()
    for named in ([one, str(two)], tmp_path, f"{tmp_path}/*.parquet", tmp_path.as_uri(), [one.as_uri(), two]):
        dataset = open_dataset(named)
        assert dataset[:]["id"].tolist() == list(range(150))
    parts = dataset.partitions(3)
    assert sum(map(len, parts)) == 150


def test_the_fingerprint_of_foreign_files_is_of_their_content_not_their_place(tmp_path):
    one = open_dataset(write(tmp_path / "1.parquet"))
    copy = tmp_path / "copy.parquet"
    copy.write_bytes((tmp_path / "1.parquet").read_bytes())
    assert open_dataset(copy).fingerprint == one.fingerprint
    assert open_dataset(write(tmp_path / "2.parquet", 99)).fingerprint != one.fingerprint


def test_files_with_other_columns_are_named(tmp_path):
    one = write(tmp_path / "1.parquet")
    other = tmp_path / "2.parquet"
    pq.write_table(table().drop_columns(["name"]), other)
    with pytest.raises(
        DataError, match=f"{other}: column 'name' is missing, but in {one} it is name: string"
    ):
        open_dataset([one, other])
    changed = table().set_column(0, "id", pa.array(np.arange(ROWS, dtype=np.int32)))
    pq.write_table(changed, other)
    with pytest.raises(DataError, match=f"{other}: column 'id' is id: int32, but in {one} it is id: int64"):
        open_dataset([one, other])


def test_wanted_columns_that_a_file_lacks_are_named_and_others_may_be_anything(tmp_path):
    one, two = tmp_path / "1.parquet", tmp_path / "2.parquet"
    pq.write_table(pa.table({"a": [1], "b": [1]}), one)
    pq.write_table(pa.table({"c": [[["x"]]], "a": [2], "d": [2]}), two)
    assert open_dataset(tmp_path, columns=["a"])[:]["a"].tolist() == [1, 2]
    with pytest.raises(DataError, match=f"{two}: column 'b' is missing, but in {one} it is b: int64"):
        open_dataset(tmp_path, columns=["a", "b"])
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), two)
    with pytest.raises(
        DataError, match=f"{two}: Column names must be unique, but these occur more than once: a"
    ):
        open_dataset(tmp_path)


def test_nulls_need_a_policy(tmp_path):
    path = tmp_path / "nulls.parquet"
    nulls = pa.table({"id": [1, None, 3], "x": [[1.0], None, [2.0]]})
    pq.write_table(nulls, path)
    with pytest.raises(DataError, match=f"{path}, row group 0: column 'id' has 1 nulls.*nulls='fill'"):
        open_dataset(path)
    pq.write_table(nulls, path, write_statistics=False)
    with pytest.raises(DataError, match=f"{path}, row group 0: column '(id|x)' has 1 nulls"):
        open_dataset(path)[:]


def test_lists_that_change_their_length_later_are_named(tmp_path):
    path = tmp_path / "lists.parquet"
    rows = [[1, 2]] * 10 + [[1], [1, 2, 3]] * 5
    pq.write_table(pa.table({"x": rows}), path, row_group_size=10)
    with pytest.raises(DataError, match=r"lists.parquet, row group 1: column 'x' .*ragged='keep'"):
        open_dataset(path)[:]


def test_what_cannot_be_opened_is_said(tmp_path):
    with pytest.raises(NotFoundError, match="Check the path"):
        open_dataset(tmp_path / "nothing.parquet")
    with pytest.raises(NotFoundError, match=r"holds no train dataset.*Prepare one with prepare"):
        open_dataset(tmp_path)
    with pytest.raises(
        UsageError, match="split='trian', but it must be 'train' or 'val'; did you mean 'train'"
    ):
        open_dataset(tmp_path, "trian")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"a.csv is not a Parquet file.*prepare"):
        open_dataset(tmp_path / "a.csv")
    with pytest.raises(DataError, match="empty list of files"):
        open_dataset([])
    path = write(tmp_path / "cut.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptError, match=r"cut.parquet .* is not a complete Parquet file"):
        open_dataset(path)


def test_unsupported_types_are_named_together(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"ok": [1], "s": [["a"]], "m": pa.array([[("k", 1)]], pa.map_("string", "int8"))}), path
    )
    with pytest.raises(DataError, match=r"a.parquet: .*s \(lists of strings.*m \(map"):
        open_dataset(path)


@pytest.mark.parametrize("make_store", [lambda path: LocalStore(path / "store"), lambda path: MemoryStore()])
def test_the_newest_prepared_dataset_of_a_store_is_opened(tmp_path, make_store):
    store = make_store(tmp_path)
    prepare({"id": np.arange(40)}, store, validation=0.25)
    newest = prepare({"id": np.arange(60), "x": np.ones((60, 2))}, store, validation=0.5)
    train, val = open_dataset(store), open_dataset(store, "val")
    assert train.fingerprint == newest.train.fingerprint
    assert sorted([*train[:]["id"], *val[:]["id"]]) == list(range(60))
    assert len(val) == 30


def test_what_a_store_keeps_of_another_split_is_no_source(tmp_path):
    made = prepare({"id": np.arange(40)}, LocalStore(tmp_path), validation=0.25)
    (tmp_path / "train_data").rename(tmp_path / "runs")
    with pytest.raises(NotFoundError, match="holds no train dataset"):
        open_dataset(tmp_path)
    assert len(open_dataset(tmp_path, "val")) == len(made.val)


REQUIRED = pa.schema([pa.field("id", pa.int64(), False), pa.field("y", pa.float32(), False)])


@pytest.mark.parametrize(
    ("options", "mapped"),
    [
        ({}, True),
        ({"data_page_version": "2.0"}, True),
        ({"write_page_checksum": True}, True),
        ({"write_statistics": False}, True),
        ({"data_page_size": 64, "write_batch_size": 8}, False),
        ({"use_dictionary": True}, False),
        ({"compression": "snappy"}, False),
        ({"column_encoding": {"id": "DELTA_BINARY_PACKED", "y": "BYTE_STREAM_SPLIT"}}, False),
    ],
)
def test_only_chunks_that_are_one_plain_page_are_mapped(tmp_path, options, mapped):
    path = tmp_path / "a.parquet"
    rows = pa.table({"id": np.arange(ROWS), "y": np.arange(ROWS, dtype=np.float32) / 2}, schema=REQUIRED)
    pq.write_table(
        rows, path, **{"row_group_size": 33, "compression": "none", "use_dictionary": False, **options}
    )
    dataset = open_dataset(path)
    assert [dataset.reader().is_mapped(column) for column in dataset.schema] == [mapped] * 2
    batch = dataset[[99, 0, 50, 33]]
    assert batch["id"].tolist() == [99, 0, 50, 33]
    assert batch["y"].tolist() == [49.5, 0, 25, 16.5]


def test_a_store_is_opened_by_its_path_its_url_and_the_directory_of_one_dataset(tmp_path):
    made = prepare({"id": np.arange(40)}, LocalStore(tmp_path), validation=0.25)
    [directory] = (tmp_path / "train_data").iterdir()
    for named in (tmp_path, str(tmp_path), tmp_path.as_uri(), directory, tmp_path / "train_data"):
        assert open_dataset(named).fingerprint == made.train.fingerprint
        assert sorted(open_dataset(named)[:]["id"]) == sorted(made.train[:]["id"])


def test_the_files_of_a_prepared_dataset_are_flat_arrays_without_its_manifest(tmp_path):
    made = prepare(
        {"id": np.arange(40), "x": np.ones((40, 2, 2), np.float32)}, LocalStore(tmp_path), validation=0.25
    )
    [directory] = (tmp_path / "train_data").iterdir()
    dataset = open_dataset(sorted(directory.glob("*.parquet")))
    assert dataset.schema == made.train.schema
    assert np.array_equal(dataset[:]["id"], made.train[:]["id"])


_NS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        # Eight bytes, as a float64 has.
        (pa.array([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(18, 2)), [1.5, -2.25]),
        *((pa.array([1, 2], pa.timestamp(unit)), [ns, 2 * ns]) for unit, ns in _NS.items()),
        (pa.array([1, 2], pa.duration("s")), [10**9, 2 * 10**9]),
        (pa.array([1, 2], pa.int32()).cast(pa.date32()), [86_400 * 10**9, 2 * 86_400 * 10**9]),
        (pa.array([1, 2], pa.time32("ms")), [10**6, 2 * 10**6]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_plain_columns_whose_bytes_are_not_their_values_are_decoded(tmp_path, column, expected):
    schema = pa.schema([pa.field("x", column.type, nullable=False)])
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table([column], schema=schema), file, compression="none", use_dictionary=False)
    assert open_dataset(file)[:]["x"].tolist() == expected
    assert as_source(file).head(2)["x"].tolist() == expected


def test_row_groups_without_rows_hold_nothing_and_harm_nothing(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("y", pa.float32(), False)])
    with pq.ParquetWriter(tmp_path / "x.parquet", schema, compression="none", use_dictionary=False) as writer:
        for start, rows in ((0, 0), (0, 5), (5, 0), (5, 4), (9, 0)):
            ids = np.arange(start, start + rows)
            writer.write_table(pa.table([ids, ids.astype(np.float32)], schema=schema))
    dataset = open_dataset(tmp_path / "x.parquet")
    assert dataset.group_rows == (0, 5, 0, 4, 0)
    assert dataset[:]["y"].tolist() == list(range(9))
    parts = [part for part in dataset.partitions(5) if len(part)]
    batches = [batch for part in parts for batch in part.loader(2, shuffle=True)]
    assert sorted(np.concatenate([batch["id"] for batch in batches])) == list(range(9))
    assert all((batch["id"] == batch["y"]).all() for batch in batches)


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
def test_ragged_rows_may_happen_to_have_one_length_in_a_file(tmp_path, order):
    ragged, even = pa.list_(pa.int8()), pa.list_(pa.int8(), 2)
    rows = [pa.array([[1], [2, 3]], ragged), pa.array([[4, 5]], ragged), pa.array([[6, 7]], even)]
    for place, number in enumerate(order):
        pq.write_table(pa.table({"l": rows[number]}), tmp_path / f"{place}.parquet")
    dataset = open_dataset(tmp_path)
    assert [row.tolist() for row in dataset[:]["l"]] == [
        row for number in order for row in rows[number].to_pylist()
    ]
    [batch] = dataset.loader(4, columns=["l"])
    assert batch["l"] == dataset[:]["l"]


def test_a_folder_of_images_is_told_where_it_can_go(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "0.JPG").write_bytes(b"")
    with pytest.raises(NotFoundError, match="There are images, which go into Parquet or a stockroom first"):
        as_source(str(tmp_path / "photos"))
