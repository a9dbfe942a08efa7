"""What Petastorm's users relied on when reading, and what went wrong there, as scenarios of this data layer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hopyard.data import mix, open_dataset, prepare
from hopyard.data.cache.node import NodeCache
from hopyard.errors import ColumnError, CorruptError, DataError, UsageError
from hopyard.storage import LocalStore

field = pc.field
UNEVEN = [[50, 3], [1], [20, 20, 20, 6]]
SMALL = 500  # bytes of a window: a few row groups of UNEVEN


# Which rows come, and in which order


def test_a_file_a_list_a_directory_a_url_and_a_store_hold_the_same_rows(write, rows):
    directory = write(UNEVEN)
    files = sorted(directory.iterdir())
    for place in (directory, str(directory), files, f"file://{directory}", LocalStore(directory)):
        batch = open_dataset(place)[:]
        rows.check(batch, range(120))
    rows.check(open_dataset(files[2])[:], range(54, 120))


def test_any_columns_can_be_asked_for_and_unknown_ones_are_named(write, rows):
    directory = write(UNEVEN)
    rows.check(open_dataset(directory, columns=["list", "y"])[:], range(120))
    with pytest.raises(ColumnError, match=r"'twize'.*twice"):
        open_dataset(directory, columns=["id", "twize"])
    with pytest.raises(ColumnError, match="'i'"):
        open_dataset(directory).loader(8, columns=["i"])  # a part of a name is no name


def test_a_thousand_columns_are_read_side_by_side(tmp_path):
    names = [f"c{number}" for number in range(1000)]
    table = pa.table({name: np.arange(100) * 1000 + number for number, name in enumerate(names)})
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=30)
    dataset = open_dataset(tmp_path / "wide.parquet")
    assert dataset.schema.names == names
    for batch in dataset.loader(40, True, seed=1, columns={"all": names}):
        assert batch["all"].shape == (len(batch["all"]), 1000)
        assert np.array_equal(batch["all"] % 1000, np.tile(np.arange(1000), (len(batch["all"]), 1)))
        assert np.all(batch["all"] // 1000 == batch["all"][:, :1] // 1000)
    batch = next(iter(dataset.loader(40)))
    assert list(batch) == names
    assert batch["c999"].tolist() == list(range(999, 40_000, 1000))


def test_partitions_of_directories_are_columns_at_one_and_two_levels(tmp_path, rows):
    for number, (day, country) in enumerate([(1, "at"), (1, "de"), (22, "at")]):
        place = tmp_path / f"day={day}" / f"country={country}"
        place.mkdir(parents=True)
        pq.write_table(
            rows.table(range(number * 40, number * 40 + 40)), place / "a.parquet", row_group_size=15
        )
    dataset = open_dataset(tmp_path)
    days = {0: (1, "at"), 1: (1, "de"), 2: (22, "at")}
    for batch in dataset.loader(16, True, seed=2, window=SMALL):
        its = [days[row // 40] for row in batch["id"]]
        assert batch.pop("day").tolist() == [day for day, _ in its]
        assert batch.pop("country").tolist() == [country for _, country in its]
        rows.check(batch)
    only = open_dataset(tmp_path, filters=[("day", "==", 1), ("country", "!=", "at")], columns=["id"])
    assert only[:]["id"].tolist() == list(range(40, 80))
    both = open_dataset(tmp_path, filters=(field("country") == "at") & (field("x") < 2), columns=["id"])
    assert both[:]["id"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("window", [SMALL, None])
def test_without_shuffle_ids_ascend_and_with_it_they_come_in_another_order_every_epoch(write, rows, window):
    dataset = open_dataset(write(UNEVEN))
    plain = dataset.loader(7, window=window)
    assert rows.ids(plain) == rows.ids(plain) == list(range(120))
    loader = dataset.loader(7, True, seed=0, window=window)
    epochs = [rows.ids(loader) for _ in range(4)]
    assert all(sorted(epoch) == list(range(120)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, list(range(120))]}) == 5


@pytest.mark.parametrize("window", [SMALL, None])
def test_a_seed_gives_one_order_over_runs_and_another_seed_another(write, rows, window):
    directory = write(UNEVEN)
    orders = [
        rows.ids(open_dataset(directory).loader(7, True, seed=seed, window=window))
        for seed in (0, 0, 1, 2**63)
    ]
    assert orders[0] == orders[1]
    assert len(set(map(tuple, orders))) == 3


def test_disorder_grows_with_the_window(write):
    dataset = open_dataset(write([[20] * 50], columns=["id"]))
    displacements = []
    for window in (160, 1600, 4000, 8000):  # 1, 10, 25 and all 50 row groups
        order = np.concatenate([batch["id"] for batch in dataset.loader(32, True, seed=5, window=window)])
        # Row groups are drawn anew in any window; how far neighbours are torn apart is what a window decides.
        place = np.argsort(order)
        inside = np.abs(np.diff(place))[np.arange(999) % 20 != 19]
        displacements.append(inside.mean())
    assert displacements == sorted(displacements)
    assert displacements[0] < 10
    assert displacements[-1] > 250


@pytest.mark.parametrize(("window", "shares"), [(SMALL, 0.1), (None, 0.05)])
def test_few_rows_follow_their_neighbours(write, rows, window, shares):
    order = rows.ids(open_dataset(write([[60] * 10])).loader(32, True, seed=9, window=window and 60 * 200))
    assert sum(other == one + 1 for one, other in pairwise(order)) < shares * len(order)


@pytest.mark.parametrize("size", [1, 3, 11, 119, 120, 1000])
def test_every_batch_but_the_last_has_the_size_asked_for(write, size):
    dataset = open_dataset(write(UNEVEN, columns=["id"]))
    loader = dataset.loader(size, True, window=SMALL)
    for _ in range(2):
        sizes = [len(batch["id"]) for batch in loader]
        assert len(sizes) == len(loader) == -(-120 // size)
        assert set(sizes[:-1]) <= {size}
        assert sum(sizes) == 120
    full = dataset.loader(min(size, 120), drop_last=True)
    assert {len(batch["id"]) for batch in full} == {min(size, 120)}
    assert len(full) == 120 // min(size, 120)


# Ranks


def test_ranks_are_disjoint_complete_and_the_same_every_time(write, rows):
    directory = write(UNEVEN)
    for window in (SMALL, None):
        shares = [
            [
                rows.ids(open_dataset(directory).loader(8, True, 4, rank, 3, window=window))
                for rank in range(3)
            ]
            for _ in range(2)
        ]
        assert shares[0] == shares[1]
        assert sorted(row for share in shares[0] for row in share) == list(range(120))


@pytest.mark.parametrize("remainder", ["drop", "repeat", "error"])
@pytest.mark.parametrize("size", [1, 10, 100])
def test_all_ranks_take_equally_many_steps_of_equally_many_rows_of_uneven_row_groups(
    write, rows, remainder, size
):
    dataset = open_dataset(write([[1000], [1], [7]], columns=["id", "text"]))
    given = {"batch_size": size, "shuffle": True, "world_size": 3, "remainder": remainder}
    if remainder == "error":
        left = open_dataset(dataset, filters=field("id") < 1007)
        with pytest.raises(
            UsageError, match=r"1007 rows do not divide into 3 ranks \(2 left\).*remainder='drop'"
        ):
            left.loader(**given)
    for data, count in ((dataset, 1008), (open_dataset(dataset, filters=field("id") != 1000), 1007)):
        if remainder == "error" and count == 1007:
            continue
        loaders = [data.loader(rank=rank, **given) for rank in range(3)]
        batches = [list(loader) for loader in loaders]
        sizes = [[len(batch["id"]) for batch in its] for its in batches]
        assert sizes[0] == sizes[1] == sizes[2]
        assert [len(loader) for loader in loaders] == [len(sizes[0])] * 3
        seen = [row for its in batches for row in rows.ids(its)]
        each = count // 3 if remainder == "drop" else -(-count // 3)
        assert len(seen) == 3 * each
        assert len(set(seen)) == min(3 * each, count)
        assert (1000 in seen) <= (count == 1008)


def test_more_ranks_than_row_groups_are_no_matter_but_more_than_rows_are(write, rows):
    dataset = open_dataset(write([[3], [2]]))
    shares = [rows.ids(dataset.loader(4, rank=rank, world_size=5)) for rank in range(5)]
    assert sorted(map(tuple, shares)) == [(0,), (1,), (2,), (3,), (4,)]
    with pytest.raises(UsageError, match="5 rows are not enough for one on each of 6 ranks"):
        dataset.loader(4, world_size=6)
    with pytest.raises(UsageError, match="ranks are 0 to 2"):
        dataset.loader(4, rank=3, world_size=3)
    for arguments in ({"world_size": 0}, {"rank": -1}, {"world_size": 2.5}, {"batch_size": 0}):
        with pytest.raises(UsageError, match="it must be an integer"):
            dataset.loader(**{"batch_size": 4, **arguments})


# Epochs


def test_an_epoch_can_be_left_at_any_row_and_the_next_one_is_whole(write, rows):
    loader = open_dataset(write(UNEVEN)).loader(10, True, seed=6, window=SMALL)
    first = next(iter(loader))["id"].tolist()
    second, third = rows.ids(loader), rows.ids(loader)
    again = open_dataset(write(UNEVEN)).loader(10, True, seed=6, window=SMALL)
    assert [rows.ids(again)[:10], rows.ids(again), rows.ids(again)] == [first, second, third]
    assert sorted(second) == sorted(third) == list(range(120))


# Predicates


def test_a_filter_with_shuffle_keeps_the_columns_of_a_row_together(write, rows):
    directory = write(UNEVEN)
    for filters in (
        field("twice") % 4 == 0 if hasattr(field("x"), "__mod__") else field("y") < -9,
        [("x", ">", 9)],
    ):
        dataset = open_dataset(directory, filters=filters)
        assert 0 < len(dataset) < 120
        for window in (SMALL, None):
            loader = dataset.loader(9, True, seed=1, window=window)
            for _ in range(2):
                batches = list(loader)
                assert len(batches) == len(loader)
                for batch in batches:
                    rows.check(batch)
                assert sorted(rows.ids(batches)) == dataset[:]["id"].tolist()


def test_a_filter_leaves_dtypes_as_they_are_and_needs_no_transform(tmp_path):
    pq.write_table(
        pa.table({"keep": [True, False] * 50, "count": np.arange(100, dtype=np.int16), "tiny": [1] * 100}),
        tmp_path / "a.parquet",
    )
    batch = open_dataset(tmp_path / "a.parquet", filters=field("keep"))[:]
    assert {name: values.dtype.name for name, values in batch.items()} == {
        "keep": "bool", "count": "int16", "tiny": "int64",
    }  # fmt: skip
    assert batch["count"].tolist() == list(range(0, 100, 2))


def test_a_filter_and_the_cache_go_together(write, rows, tmp_path):
    directory, cache = write(UNEVEN), NodeCache(tmp_path / "cache")
    seen = []
    for bound in (30, 90, 30):
        dataset = open_dataset(directory, filters=field("id") >= bound, cache=cache)
        for _ in range(2):
            batches = list(dataset.loader(16, True, window=SMALL))
            for batch in batches:
                rows.check(batch)
            assert sorted(rows.ids(batches)) == list(range(bound, 120))
        seen.append(len(cache.entries()))
    assert seen[0] < seen[1] == seen[2]


def test_a_share_of_rows_drawn_at_random_is_that_share(write, rows, tmp_path):
    prepared = prepare(
        open_dataset(write([[1000], [1000]], columns=["id"])), LocalStore(tmp_path / "store"), validation=0.3
    )
    train, val = prepared.train[:]["id"], prepared.val[:]["id"]
    assert len(val) == 600
    assert sorted([*train, *val]) == list(range(2000))
    assert abs(val.mean() - 1000) < 100


# Threads and errors


def test_threads_that_share_a_dataset_cover_each_row_once(write, rows):
    dataset = open_dataset(write([[50] * 8]))
    start = threading.Barrier(4)

    def read(rank):
        start.wait()
        batches = list(dataset.loader(10, True, 3, rank, 4, window=5000))
        for batch in batches:
            rows.check(batch)
        return rows.ids(batches)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(row for share in pool.map(read, range(4)) for row in share) == list(range(400))


class OwnError(Exception):
    pass


@pytest.mark.parametrize("cache", ["cache", False])
def test_an_error_in_a_users_function_reaches_the_loop(write, rows, tmp_path, cache):
    def refuse(columns):
        if 110 in columns["id"]:
            raise OwnError("row 110 is not wanted")
        return columns

    directory = write([[10] * 12])
    dataset = open_dataset(directory, cached_transform=refuse, cache=cache and tmp_path / "cache")
    loader = dataset.loader(10, window=1)
    seen = []
    with pytest.raises(
        DataError, match=r"row group 11: cached_transform failed: OwnError: row 110 is not wanted"
    ) as raised:
        seen.extend(batch["id"][0] for batch in loader)
    assert isinstance(raised.value.__cause__, OwnError)
    assert seen == list(range(0, 110, 10))
    assert rows.ids(open_dataset(directory).loader(10)) == list(range(120))


# Loaders' cousins


def test_windows_cross_row_groups_and_files_and_break_at_gaps(write, rows, tmp_path):
    directory = write(UNEVEN, columns=["id", "x", "twice"])
    dataset = open_dataset(directory)
    assert len(dataset.windows(1)) == 120
    assert len(dataset.windows(4)) == 117
    assert len(dataset.windows(4, step=4)) == 30
    for loader in (dataset.windows(4).loader(8, True, seed=1, window=SMALL), dataset.windows(4).loader(8)):
        starts = []
        for batch in loader:
            assert np.array_equal(batch["id"], batch["id"][:, :1] + np.arange(4))
            starts += batch["id"][:, 0].tolist()
        assert sorted(starts) == list(range(117))
    gaps = open_dataset(directory, filters=(field("id") < 30) | (field("id") > 60))
    cut = gaps.windows(3, time="id", max_gap=1)[:]["id"]
    assert sorted(cut[:, 0].tolist()) == [*range(28), *range(61, 118)]


def test_mixtures_have_their_weights_and_only_of_the_same_columns(write):
    one, other = open_dataset(write([[400]])), open_dataset(write([[400]], first=1000))
    order = np.concatenate([batch["id"] for batch in mix([one, other], [3, 1]).loader(20, True, seed=2)])
    assert abs((order[:400] < 1000).mean() - 0.75) < 0.02
    with pytest.raises(ColumnError, match="twice"):
        mix([one, open_dataset(write([[10]], columns=["id"]))])


def test_nested_and_ragged_arrays_are_read_as_they_are(tmp_path):
    ids = np.arange(50)
    nested = [[[i + a + b for b in range(3)] for a in range(2)] for i in ids.tolist()]
    table = pa.table(
        {
            "id": ids,
            "matrix": pa.array(nested, pa.list_(pa.list_(pa.int32()))),
            "ragged": pa.array([[i] * (i % 5) for i in ids.tolist()], pa.list_(pa.float64())),
            "deep": pa.array([{"a": {"b": i}} for i in ids.tolist()]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=15)
    dataset = open_dataset(tmp_path / "a.parquet")
    for batch in dataset.loader(8, True, seed=1, window=600):
        assert batch["matrix"].tolist() == [nested[i] for i in batch["id"]]
        assert [row.tolist() for row in batch["ragged"]] == [[float(i)] * (i % 5) for i in batch["id"]]
        assert np.array_equal(batch["deep.a.b"], batch["id"])
    padded = open_dataset(tmp_path / "a.parquet", ragged="pad")[:]
    assert padded["ragged"].shape == (50, 4)
    assert padded["ragged_length"].tolist() == [i % 5 for i in ids]


# Defects that were found in Petastorm


@pytest.mark.parametrize("window", [SMALL, None])
def test_every_epoch_draws_row_groups_and_rows_anew_and_zero_is_a_seed(write, rows, window):
    directory = write([[20] * 6])
    loader, again, other = (
        open_dataset(directory).loader(20, True, seed=seed, window=window and 6000) for seed in (0, 0, 1)
    )
    epochs = [[batch["id"] for batch in loader] for _ in range(3)]
    for epoch in epochs:
        assert all(np.array_equal(one, two["id"]) for one, two in zip(epoch, again, strict=True))
    assert rows.ids(other) != np.concatenate(epochs[0]).tolist()
    groups = [[tuple(np.unique(batch // 20)) for batch in epoch] for epoch in epochs]
    if window:
        assert len(set(map(tuple, groups))) == 3, "which row groups come when differs by epoch"
    inside = [[row % 20 for batch in epoch for row in batch if row < 20] for epoch in epochs]
    assert len(set(map(tuple, inside))) == 3, "the order within a row group differs by epoch"
    within = [[row % 20 for row in np.concatenate(epochs[0]) if row // 20 == group] for group in range(6)]
    assert len(set(map(tuple, within))) == 6, "row groups of one epoch are permuted differently"


def test_what_a_rank_reads_depends_on_the_seed(write, rows):
    dataset = open_dataset(write(UNEVEN))
    shares = {tuple(sorted(rows.ids(dataset.loader(8, True, seed, 0, 3)))) for seed in range(5)}
    assert len(shares) == 5


def test_each_byte_of_a_file_is_fetched_once(write, rows, tmp_path):
    directory = write([[4000] * 4, [4000] * 4])
    store = rows.store(directory)
    size = sum(file.stat().st_size for file in directory.iterdir())
    cache = NodeCache(tmp_path / "cache")
    dataset = open_dataset(store, cache=cache)
    loader = dataset.loader(500, True, window=2_000_000)
    rows.ids(loader)
    cold = store.fetched
    footers = 2 * (1 << 17)  # fetched to look at the schema and to read, 64 KiB each
    assert size < cold < size + footers
    for _ in range(3):
        rows.ids(loader)
    assert store.fetched == cold, "later epochs do not touch the store's objects"


def test_what_is_cached_depends_on_columns_transform_and_the_files_state(write, rows, tmp_path):
    directory, cache = write([[30]], columns=["id", "x"]), NodeCache(tmp_path / "cache")
    file = directory / "000.parquet"

    def doubled(columns):
        return {"id": columns["id"], "x": columns["x"] * 2}

    def read(**options):
        dataset = open_dataset(file, cache=cache, **options)
        return np.concatenate([batch["x"] for batch in dataset.loader(8)]).tolist()

    plain = [row / 2 for row in range(30)]
    assert read() == read(columns=["x"]) == plain
    assert read(cached_transform=doubled) == [row * 2 for row in plain]
    pq.write_table(rows.table(range(1, 31), ["id", "x"]), file)
    assert read() == [row + 0.5 for row in plain]
    assert read(cached_transform=doubled) == [row * 2 + 1 for row in plain]


def test_a_replaced_object_of_a_store_is_not_taken_from_the_cache(write, rows, tmp_path):
    options = {"compression": "none", "use_dictionary": False}
    old, new = (write([[30]], first=first, columns=["id"], **options) for first in (0, 100))
    cache = NodeCache(tmp_path / "cache")
    (old_file,), (new_file,) = old.iterdir(), new.iterdir()
    assert old_file.stat().st_size == new_file.stat().st_size
    assert rows.ids(open_dataset(rows.store(old), cache=cache).loader(8)) == list(range(30))
    new_file.replace(old_file)
    assert rows.ids(open_dataset(rows.store(old), cache=cache).loader(8)) == list(range(100, 130))


def test_a_users_directory_is_never_taken_for_a_cache_and_a_cache_outlives_its_reader(write, rows, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    dataset = open_dataset(write([[30]]), cache=tmp_path / "mine")
    with pytest.raises(UsageError, match="directory with other files in it"):
        list(dataset.loader(8))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    cache = NodeCache(tmp_path / "cache")
    dataset = open_dataset(write([[30]]), cache=cache)
    rows.ids(dataset.loader(8))
    kept = len(cache.entries())
    del dataset
    assert len(cache.entries()) == kept > 0


def test_columns_are_never_dropped_and_files_never_mixed_silently(write, tmp_path):
    directory = write([[10]], columns=["id", "x"])
    pq.write_table(pa.table({"id": np.arange(5), "x": ["a"] * 5}), directory / "001.parquet")
    with pytest.raises(DataError, match=r"001.parquet"):
        open_dataset(directory)
    (directory / "001.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptError, match=r"001.parquet \(4 bytes\) is not a complete Parquet file"):
        open_dataset(directory)
