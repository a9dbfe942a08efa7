import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import inspect, open_dataset
from hopyard.data.dataset import deal
from hopyard.errors import CorruptError, NotFoundError, UsageError
from hopyard.storage import MemoryStore

EVERYTHING = ("id", "image", "small", "half", "flag", "flags", "unsigned", "text", "blob", "list")


def test_rows_are_read_by_number_slice_array_and_mask(make_dataset, expect_rows):
    dataset = make_dataset([[10, 10], [10, 5]], EVERYTHING)
    assert len(dataset) == 35
    assert dataset.num_row_groups == 4
    for rows in ([0], [34, 0, 12, 12, 9, 10], range(35), [], [-1, -35]):
        batch = dataset[np.array(list(rows), np.int64)]
        expect_rows(batch, [row % 35 for row in rows])
    expect_rows(dataset[8:23], range(8, 23))
    expect_rows(dataset[::-3], range(34, -1, -3))
    expect_rows(dataset[5:5], [])
    expect_rows(dataset[np.arange(35) % 2 == 0], range(0, 35, 2))
    row = dataset[-3]
    assert row["id"] == 32
    assert row["image"].shape == (3, 5)
    assert row["text"] == "row 32 é"
    assert row["list"].tolist() == []


def test_rows_out_of_range_are_refused(make_dataset):
    dataset = make_dataset([[10]])
    for key in (10, -11, [3, 10]):
        with pytest.raises(IndexError, match="of a dataset of 10 rows"):
            dataset[key]
    with pytest.raises(UsageError, match="shape \\(2, 2\\)"):
        dataset[np.zeros((2, 2), int)]
    assert sum(1 for _ in dataset) == 10


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.booleans(), st.data())
def test_partitions_are_disjoint_complete_and_balanced(group_rows, consecutive, data):
    p = data.draw(st.integers(1, len(group_rows)))
    dealt = deal(group_rows, p, consecutive)
    assert len(dealt) == p
    assert sorted(group for groups in dealt for group in groups) == list(range(len(group_rows)))
    assert all(groups for groups in dealt)
    rows = [sum(group_rows[group] for group in groups) for groups in dealt]
    assert max(rows) - min(rows) <= max(group_rows)


@given(st.integers(1, 50), st.integers(1, 30), st.integers(1, 50), st.data())
def test_equal_row_groups_are_dealt_in_runs(rows, groups, last, data):
    p = data.draw(st.integers(1, groups))
    dealt = deal([rows] * (groups - 1) + [min(last, rows)], p, True)
    assert [group for part in dealt for group in part] == list(range(groups))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_partitions_of_files_as_they_are_have_row_groups_from_all_over_them(tmp_path):
    path = tmp_path / "sorted.parquet"
    pq.write_table(pa.table({"label": np.repeat(np.arange(4), 60)}), path, row_group_size=20)
    parts = open_dataset(path).partitions(3)
    assert [sorted(set(part[:]["label"].tolist())) for part in parts] == [[0, 1, 2, 3]] * 3


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_partitions_hold_their_rows_and_only_their_files(make_dataset, expect_rows, layout, data):
    dataset = make_dataset(layout, ("id", "image", "text"))
    parts = dataset.partitions(data.draw(st.integers(1, dataset.num_row_groups)))
    seen = []
    for part in parts:
        rows = part[:]["id"]
        assert len(rows) == len(part) == sum(part.group_rows)
        expect_rows(part[:], rows)
        assert sorted(row for batch in part.loader(5, True) for row in batch["id"]) == sorted(rows)
        assert len(part.manifest.files) <= part.num_row_groups
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(dataset)))
    assert len({part.fingerprint for part in parts} | {dataset.fingerprint}) == len(parts) + 1
    assert [part.fingerprint for part in dataset.partitions(len(parts))] == [
        part.fingerprint for part in parts
    ]


def test_partitions_of_partitions_are_partitions(make_dataset):
    dataset = make_dataset([[4, 4, 4], [4, 4, 4]])
    first, second = dataset.partitions(2)[1].partitions(2)
    assert first[:]["id"].tolist() + second[:]["id"].tolist() == list(range(12, 24))


def test_more_partitions_than_row_groups_are_refused_with_the_number_that_works(make_dataset):
    dataset = make_dataset([[5, 5], [5]])
    with pytest.raises(
        UsageError, match=r"4 partitions were asked for.*15 rows has 3 row groups.*Ask for 1 to 3"
    ):
        dataset.partitions(4)
    with pytest.raises(UsageError, match="0 partitions"):
        dataset.partitions(0)


def test_a_pickled_dataset_reads_the_same_and_is_small(make_dataset, expect_rows):
    dataset = make_dataset([[20, 20], [20, 20]], EVERYTHING)
    dataset[:]
    travelled = pickle.loads(pickle.dumps(dataset.partitions(4)[1]))
    assert len(pickle.dumps(dataset.partitions(4)[1])) < 3000
    expect_rows(travelled[:], range(20, 40))


def test_a_store_without_paths_gives_the_same_stream(make_dataset, expect_rows):
    local = make_dataset([[20, 20], [10]], EVERYTHING)
    memory = make_dataset([[20, 20], [10]], EVERYTHING, store=MemoryStore())
    expect_rows(memory[:], range(50))
    for one, other in zip(local.loader(8, True), memory.loader(8, True), strict=True):
        assert one["id"].tolist() == other["id"].tolist()


def test_a_truncated_file_is_named(make_dataset):
    dataset = make_dataset([[20], [20]])
    path = dataset.store.path(dataset.manifest.files[1].name)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=f"{path.name} has .* bytes, but had .*truncated or changed"):
        dataset[:]


def test_a_file_cut_in_the_middle_with_its_size_kept_is_named(make_dataset):
    dataset = make_dataset([[20]])
    path = dataset.store.path(dataset.manifest.files[0].name)
    content = path.read_bytes()
    path.write_bytes(content[:-30] + bytes(30))
    with pytest.raises(CorruptError, match=f"{path.name} is not the file that .* lists"):
        dataset[:]


def test_a_changed_page_header_is_named_by_column(make_dataset):
    dataset = make_dataset([[20, 20]], ("id", "image"))
    path = dataset.store.path(dataset.manifest.files[0].name)
    content = bytearray(path.read_bytes())
    content[4:20] = bytes(16)  # the first page's header stands right behind the letters PAR1
    path.write_bytes(content)
    with pytest.raises(
        CorruptError, match=f"{path.name}, row group 0, column 'id': the bytes are not what was"
    ):
        dataset[:]


def test_a_file_in_the_place_of_another_is_noticed(make_dataset):
    dataset, other = make_dataset([[20, 20]]), make_dataset([[10, 30]])
    path = dataset.store.path(dataset.manifest.files[0].name)
    content = other.store.path(other.manifest.files[0].name).read_bytes()
    path.write_bytes(content + bytes(path.stat().st_size - len(content)))
    with pytest.raises(
        CorruptError, match=rf"{path.name} is not the file .* the seal|{path.name}: the checksums"
    ):
        dataset[:]


def test_a_missing_file_is_named(make_dataset):
    dataset = make_dataset([[20]])
    path = dataset.store.path(dataset.manifest.files[0].name)
    path.unlink()
    with pytest.raises(NotFoundError, match=f"{path.name}, a file of the dataset, cannot be read"):
        dataset[:]


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_verify_finds_a_flipped_bit(make_dataset, store):
    dataset = make_dataset([[20], [20]], ("id", "image"), store=store)
    dataset.verify()
    name = dataset.manifest.files[1].name
    content = bytearray(dataset.store.get(name))
    content[len(content) // 2] ^= 1
    dataset.store.put(name, content)
    with pytest.raises(
        CorruptError, match=r"row group 0, column '(id|image)': the bytes are not what was wri"
    ):
        dataset.verify()


def test_a_file_that_is_replaced_is_mapped_anew_and_never_read_unchecked(make_dataset, expect_rows):
    dataset = make_dataset([[20]])
    expect_rows(dataset[:], range(20))
    name = dataset.manifest.files[0].name
    whole = bytearray(dataset.store.get(name))
    start = whole.index(np.arange(20).tobytes())
    damaged = bytearray(whole)
    damaged[start : start + 160] = (np.arange(20) + 100).tobytes()
    dataset.store.put(name, damaged)
    copy = pickle.loads(pickle.dumps(dataset))
    with pytest.raises(
        CorruptError, match=rf"{name}, row group 0, column 'id': the bytes are not what was wri"
    ):
        copy[:]
    dataset.store.put(name, whole)
    expect_rows(pickle.loads(pickle.dumps(dataset))[:], range(20))


def test_bools_and_unsigned_numbers_are_no_rows_by_accident(make_dataset):
    dataset = make_dataset([[10]])
    assert dataset[np.array([9, 0], np.uint64)]["id"].tolist() == [9, 0]
    with pytest.raises(IndexError, match="of a dataset of 10 rows"):
        dataset[np.array([2**64 - 1], np.uint64)]
    with pytest.raises(UsageError, match=r"an array of shape \(\) and dtype bool"):
        dataset[True]


def test_sortedness_is_the_share_of_pairs_of_row_groups_that_do_not_overlap(tmp_path):
    rng = np.random.default_rng(5)
    columns = {
        "sorted": np.arange(600.0),
        "classes": np.repeat(np.arange(3), 200),
        "text": np.repeat([f"{number:03}" for number in range(12)], 50),
        "mixed": rng.integers(0, 9, 600),
        "rare": (np.arange(600) == 77).astype(int),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=50)
    reader = open_dataset(path).reader()
    found = {name: reader.sortedness(name) for name in columns}
    for name, values in columns.items():
        groups = [(min(part), max(part)) for part in np.split(values, 12)]
        pairs = [(one, other) for place, one in enumerate(groups) for other in groups[:place]]
        apart = [one[0] > other[1] or other[0] > one[1] for one, other in pairs]
        assert found[name] == sum(apart) / len(pairs)
    assert found["sorted"] == found["text"] == 1
    assert found["mixed"] == found["rare"] == 0
    assert "sorted" in str(inspect(path))
    assert inspect(path).splits[0].sortedness == found


def test_without_statistics_or_with_one_row_group_sortedness_is_not_known(tmp_path):
    for name, options in {"plain": {"write_statistics": False, "row_group_size": 5}, "one": {}}.items():
        pq.write_table(pa.table({"x": range(10)}), tmp_path / f"{name}.parquet", **options)
        assert open_dataset(tmp_path / f"{name}.parquet").reader().sortedness("x") is None


@pytest.mark.parametrize("window", [700, 3000, None])
def test_order_does_not_depend_on_which_columns_are_mapped(tmp_path, window):
    plain = pa.table({"x": np.arange(120.0)}, pa.schema([pa.field("x", pa.float64(), False)]))
    pq.write_table(plain, tmp_path / "mapped.parquet", 10, compression="none", use_dictionary=False)
    pq.write_table(plain, tmp_path / "decoded.parquet", 10, compression="zstd", use_dictionary=False)
    mapped, decoded = (open_dataset(tmp_path / f"{name}.parquet") for name in ("mapped", "decoded"))
    assert mapped.reader().is_mapped(mapped.schema["x"])
    assert not decoded.reader().is_mapped(decoded.schema["x"])
    one, other = (
        [batch["x"].tolist() for batch in each.loader(16, True, 3, window=window)]
        for each in (mapped, decoded)
    )
    assert one == other
