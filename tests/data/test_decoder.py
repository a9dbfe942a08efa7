import gc
import tempfile
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import diagonal

from hopyard.data import NodeCache, open_dataset
from hopyard.data.cache.durability import durability
from hopyard.data.cache.listing import list_cache
from hopyard.data.reading.pieces import pieces_of
from hopyard.errors import CorruptError, DataError

WANTED = {"text": "text"}


def write(path, rows=400, group=20):
    texts = [f"{row:06}" for row in range(rows)]
    pq.write_table(pa.table({"row": np.arange(rows), "text": texts}), path, row_group_size=group)
    return str(path)


@pytest.mark.parametrize("cached", [True, False])
def test_decoding_that_nobody_wants_any_more_ends_at_the_next_piece(tmp_path, cached):
    stopped, pieces = threading.Event(), []

    def transform(columns):
        pieces.append(len(columns["row"]))
        if pieces[1:]:  # the first one tells the columns
            stopped.set()
        return columns

    cache = NodeCache(tmp_path / "cache") if cached else False
    path = write(tmp_path / "a.parquet", 2000, 100)
    reader = open_dataset(path, cached_transform=transform, cache=cache).reader()
    assert reader.view(WANTED, None, stopped) is None
    assert sum(pieces[1:]) < 2000
    assert not list(tmp_path.glob("cache/*.part"))
    stopped.clear()
    pieces.clear()
    assert reader.view(WANTED, None, threading.Event()) is not None


def test_a_row_group_without_rows_is_a_partition_without_rows(tmp_path):
    schema = pa.schema({"row": pa.int64(), "text": pa.string()})
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for rows in (3, 0):
            table = pa.table({"row": np.arange(rows), "text": ["x"] * rows}, schema)
            writer.write_batch(table.to_batches()[0] if rows else pa.RecordBatch.from_pylist([], schema))
    dataset = open_dataset(tmp_path / "a.parquet", cache=NodeCache(tmp_path / "cache"))
    full, empty = dataset.partitions(2)
    assert len(full) == 3
    for rows in (empty[:], empty[[]]):
        assert {name: (len(its), its.dtype) for name, its in rows.items()} == {
            "row": (0, np.int64),
            "text": (0, object),
        }
    assert list(empty.loader(2)) == []


def test_windows_that_are_over_keep_no_files_that_the_cache_gave_up(tmp_path):
    path = write(tmp_path / "a.parquet")
    size = sum(open_dataset(path).reader()._decoded_sizes(open_dataset(path).schema))
    dataset = open_dataset(path, cache=NodeCache(tmp_path / "cache", limit=size))
    loader = dataset.loader(50, shuffle=True, window=size // 4)
    assert sum(len(batch["row"]) for batch in loader) == 400
    assert list(tmp_path.glob("cache/*.flat"))
    gc.collect()
    durability.join()
    assert str(tmp_path / "cache") not in Path("/proc/self/maps").read_text()


def test_what_a_short_file_system_has_already_needs_no_room(mounted, tmp_path):
    path = write(tmp_path / "a.parquet", 20_000, 1_000)
    with mounted(tmp_path / "mount", "1m"):
        cache = NodeCache(tmp_path / "mount" / "cache")
        for _ in range(2):
            dataset = open_dataset(path, cache=cache)
            assert sum(len(batch["row"]) for batch in dataset.loader(500)) == 20_000
            durability.join()
            assert len(cache.entries()) == 20
            inodes = {entry.path.stat().st_ino for entry in cache.entries()}
        dataset = open_dataset(path, cache=cache)
        assert sum(len(batch["row"]) for batch in dataset.loader(500)) == 20_000
        assert {entry.path.stat().st_ino for entry in cache.entries()} == inodes, "nothing was made again"
        del dataset
        gc.collect()


def test_a_transform_of_other_columns_is_another_transform(tmp_path):
    def lengths(columns):
        kind = 1 if isinstance(columns["list"], np.ndarray) else 2
        return {"kind": np.full(len(columns["list"]), kind)}

    cache = NodeCache(tmp_path / "cache")
    pq.write_table(pa.table({"list": [[1, 2], [3, 4]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"list": [[1, 2, 3]]}), tmp_path / "b.parquet")
    alone = open_dataset(tmp_path / "a.parquet", cached_transform=lengths, cache=cache)
    assert alone[:]["kind"].tolist() == [1, 1]
    both = open_dataset(
        [tmp_path / "a.parquet", tmp_path / "b.parquet"], cached_transform=lengths, cache=cache
    )
    assert both[:]["kind"].tolist() == [2, 2, 2]


def test_a_file_that_was_replaced_before_the_first_read_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"row": pa.array([1, 2, 3])}), path)
    dataset = open_dataset(path, filters=[("row", ">", 1)], cache=False)
    size = path.stat().st_size
    pq.write_table(pa.table({"row": pa.array([3, 1, 5])}), path)
    assert path.stat().st_size == size
    with pytest.raises(CorruptError, match=r"a\.parquet was changed since .* open the dataset again"):
        dataset[:]


@pytest.mark.long
def test_thousands_of_tiny_row_groups_are_decoded_into_one_file_and_few_large_ones_into_several(tmp_path):
    path = write(tmp_path / "a.parquet", 2400, 2)
    dataset = open_dataset(path, cache=NodeCache(tmp_path / "cache"))
    loader = dataset.loader(100, shuffle=True)
    for _ in range(2):
        batches = list(loader)
        rows = np.concatenate([batch["row"] for batch in batches])
        assert sorted(rows) == list(range(2400))
        assert [f"{row:06}" for row in rows] == [text for batch in batches for text in batch["text"]]
    assert dataset[[7, 2399]]["text"].tolist() == ["000007", "002399"]
    assert len(list(tmp_path.glob("cache/*.flat"))) == 1
    (listed,) = list_cache(NodeCache(tmp_path / "cache")).files
    assert (listed.file, listed.entries, listed.row_groups) == (path, 1, 1200)
    large = open_dataset(write(tmp_path / "b.parquet", 400_000, 120_000), cache=NodeCache(tmp_path / "cache"))
    assert np.array_equal(large[::1000]["row"], np.arange(0, 400_000, 1000))
    assert len(list(tmp_path.glob("cache/*.flat"))) == 1 + 4


def test_rows_of_small_files_come_from_files_that_others_share(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(90):
        rows = range(number * 10, number * 10 + number % 4 * 3)  # some files have none
        table = {
            "row": pa.array(rows, pa.int64()),
            "text": pa.array([f"{row:03}" for row in rows], pa.string()),
        }
        pq.write_table(pa.table(table), tmp_path / "data" / f"{number:02}.parquet")
    wanted = [row for number in range(90) for row in range(number * 10, number * 10 + number % 4 * 3)]
    dataset = open_dataset(tmp_path / "data", cache=NodeCache(tmp_path / "cache"))
    for some in (dataset, *dataset.partitions(3)):
        for window in (None, 1000, 1 << 30):
            batches = list(some.loader(7, shuffle=True, seed=3, window=window))
            rows = [row for batch in batches for row in batch["row"].tolist()]
            assert rows != sorted(rows)
            assert len(set(rows)) == len(some)
            assert set(rows) <= set(wanted)
            assert [int(text) for batch in batches for text in batch["text"]] == rows
    assert dataset[[0, 50, len(wanted) - 1]]["row"].tolist() == [wanted[0], wanted[50], wanted[-1]]
    whole = [each for each in list_cache(NodeCache(tmp_path / "cache")).files if each.row_groups == 67]
    assert [(each.file, each.entries) for each in whole] == [(str(tmp_path / "data"), 1)]
    (tmp_path / "data" / "07.parquet").write_bytes((tmp_path / "data" / "11.parquet").read_bytes())
    changed = open_dataset(tmp_path / "data", cache=NodeCache(tmp_path / "cache"))
    assert sorted(changed[:]["row"].tolist()) == sorted([*set(wanted) - set(range(70, 80)), *range(110, 119)])


def test_a_damaged_row_group_does_not_hurt_others_with_which_it_would_share_a_file(tmp_path):
    path = Path(write(tmp_path / "a.parquet", 2400, 20))
    place = pq.read_metadata(path).row_group(50).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[place : place + 60] = bytes(60)
    path.write_bytes(content)
    dataset = open_dataset(path, cache=NodeCache(tmp_path / "cache"))
    assert dataset[990:1000]["row"].tolist() == list(range(990, 1000))
    with pytest.raises(CorruptError, match=r"a\.parquet, row group 50, "):
        dataset[1000:1001]
    whole = open_dataset(path, cache=NodeCache(tmp_path / "cache"), corrupt="skip")
    assert [(one.row_group, one.rows) for one in whole.skipped] == [(50, 20)]
    rows = np.concatenate([batch["row"] for batch in whole.loader(64, shuffle=True)])
    assert sorted(rows) == [*range(1000), *range(1020, 2400)]


def memory_files():
    links = Path("/proc/self/fd").iterdir()
    return sum("memfd:hopyard" in str(link.readlink()) for link in links if link.is_symlink())


def test_a_dataset_that_nobody_has_holds_neither_memory_nor_descriptors(tmp_path):
    path = write(tmp_path / "a.parquet")
    gc.collect()
    durability.join()  # opens and closes descriptors
    gc.disable()
    try:
        others = memory_files()  # of runs of earlier tests: a process keeps the data of the last few
        dataset = open_dataset(path, cache=False)
        assert sum(len(batch["text"]) for batch in dataset.loader(50, shuffle=True, window=2000)) == 400
        assert memory_files() > others
        del dataset
        for thread in threading.enumerate():  # one that has read ahead lets go of it when it ends
            if thread.name.startswith("hopyard-window"):
                thread.join()
        assert memory_files() == others
    finally:
        gc.enable()


@pytest.mark.long
def test_hundreds_of_columns_that_differ_in_length_are_found_a_few_rows_at_a_time(tmp_path):
    names = [f"c{number}" for number in range(600)]
    lists = {name: [[number] * (row % 7) for row in range(300)] for number, name in enumerate(names)}
    pq.write_table(pa.table(lists), tmp_path / "a.parquet", row_group_size=100)
    dataset = open_dataset(tmp_path / "a.parquet", ragged="keep", cache=NodeCache(tmp_path / "cache"))
    view = dataset.reader().view({name: name for name in names})
    assert view is not None
    assert 1 <= view.rows_at_once < 200, "else the places of 32,768 rows are half a gigabyte"
    batches = list(dataset.loader(128))
    for name in names:
        assert [row.tolist() for batch in batches for row in batch[name]] == lists[name]


DTYPES = ["float16", "float32", "float64", "int8", "uint16", "int64", "bool"]


@pytest.mark.parametrize(
    ("nulls", "filtered", "cores"),
    diagonal("columns of one dtype", [None, "few", "in every batch"], [False, True], [1, 12]),
)
def test_columns_of_one_dtype_come_as_they_are_whether_they_lie_side_by_side_or_not(
    tmp_path, monkeypatch, filtered, nulls, cores
):
    monkeypatch.setattr("hopyard.data.reading.decoder.usable_cores", lambda: cores)
    monkeypatch.setattr("hopyard.data.reading.pieces._COLUMNS_OF_A_THREAD", 8)
    rows, random = 2500, np.random.default_rng(0)
    columns = {
        f"{dtype}-{number}": random.integers(0, 2, rows).astype(dtype)
        if dtype == "bool"
        else (random.standard_normal(rows) * 50).astype(dtype)
        for number in range(30)
        for dtype in DTYPES
    }
    empty = {
        "few": [2400],  # one batch of one row group
        "in every batch": range(0, rows, 50),
        None: [],
    }[nulls]
    missing = np.isin(np.arange(rows), list(empty))
    arrays = {name: pa.array(values, mask=missing) for name, values in columns.items()}
    arrays["row"] = pa.array(np.arange(rows))
    pq.write_table(pa.table(arrays), tmp_path / "a.parquet", row_group_size=1000)
    dataset = open_dataset(
        tmp_path / "a.parquet",
        cache=NodeCache(tmp_path / "cache"),
        nulls="fill" if nulls else "error",
        filters=[("row", ">=", 700)] if filtered else None,
    )
    seen = 700 if filtered else 0
    for batch in dataset.loader(256, window=20 << 20):
        wanted = slice(seen, seen := seen + len(batch["row"]))
        for name, values in columns.items():
            expected = np.where(missing, np.zeros((), values.dtype), values)[wanted]
            np.testing.assert_array_equal(batch[name], expected, err_msg=name, strict=True)
    assert seen == rows
    if nulls:
        with pytest.raises(DataError, match=r"column 'float16-0' has \d+ nulls"):
            list(open_dataset(tmp_path / "a.parquet", cache=NodeCache(tmp_path / "other")).loader(256))


@pytest.mark.parametrize("groups", [1, 3])
def test_a_frame_of_few_row_groups_is_decoded_by_all_cores(tmp_path, monkeypatch, groups):
    columns = {f"f{number}": np.random.default_rng(number).random(600) for number in range(300)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=600 // groups)
    monkeypatch.setattr("hopyard.data.reading.decoder.usable_cores", lambda: 4)
    dealt: list[int] = []

    def on_all_cores(work, items):
        dealt.append(len(items))
        return [work(item) for item in items]

    monkeypatch.setattr("hopyard.data.reading.pieces.on_all_cores", on_all_cores)
    dataset = open_dataset(tmp_path / "a.parquet", cache=NodeCache(tmp_path / "cache"))
    (batch,) = dataset.loader(600)
    for name, values in batch.items():
        np.testing.assert_array_equal(values, columns[name], err_msg=name, strict=True)
    assert max(dealt) == (4 if groups == 1 else 1), "three row groups are made by a core each"


def test_damage_in_a_wide_frame_is_named_whichever_core_finds_it(tmp_path, monkeypatch):
    monkeypatch.setattr("hopyard.data.reading.decoder.usable_cores", lambda: 4)
    columns = {f"f{number}": np.random.default_rng(number).random(600) for number in range(300)}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, use_dictionary=False, write_page_checksum=True)
    chunk = pq.read_metadata(path).row_group(0).column(222)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptError, match="row group 0, column 'f222'"):
        list(open_dataset(path, cache=NodeCache(tmp_path / "cache")).loader(100))


def numbered(kind, first, rows):
    """Rows that tell their numbers: some with nulls, some in types that are the same column."""
    numbers = np.arange(first, first + rows)
    texts = pa.array([f"row {number}" for number in numbers])
    return pa.table(
        {
            "number": numbers,
            "half": pa.array(numbers / 2, pa.float32(), mask=(numbers % 3 == 0) & (kind == "nulls")),
            "third": pa.array(numbers / 3, pa.float32()),
            "text": texts.cast(pa.large_string()) if kind == "large" else texts,
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 2)), 2),
        }
    )


KINDS = st.sampled_from(["plain", "plain", "plain", "nulls", "large", "row groups"])
COLUMNS = st.sampled_from(
    [["number"], ["half", "third"], ["number", "half", "third"], ["number", "text"], ["pair", "third"]]
)


@given(
    st.lists(st.tuples(st.integers(1, 9), KINDS), min_size=1, max_size=12),
    COLUMNS,
    st.integers(4, 60),
    st.data(),
)
def test_small_row_groups_that_are_decoded_together_keep_their_rows(files, columns, at_once, data):
    least = data.draw(st.integers(0, sum(rows for rows, _ in files) - 1))
    pieces = []

    def counted(groups, recipe, packs, _, threads=1):
        for piece in pieces_of(groups, recipe, packs, at_once, threads):
            pieces.append(piece)
            yield piece

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        tables, first = [], 0
        for number, (rows, kind) in enumerate(files):
            tables.append(numbered(kind, first, rows))
            group = max(rows // 3, 1) if kind == "row groups" else rows
            pq.write_table(tables[-1], Path(folder) / f"{number:02}.parquet", row_group_size=group)
            first += rows
        patch.setattr("hopyard.data.reading.decoder.pieces_of", counted)
        dataset = open_dataset(
            folder, columns=columns, nulls="fill", filters=[("number", ">=", least)], cache=False
        )
        batches = list(dataset.loader(5))
    for name in columns:
        expected = [value for table in tables for value in table[name].to_pylist()][least:]
        found = [value for batch in batches for value in batch[name].tolist()]
        assert found == [np.float32(value or 0) if name in ("half", "third") else value for value in expected]
    if columns == ["number"]:
        assert len(pieces) <= 2 * (first - least) // (at_once // 4) + 1
