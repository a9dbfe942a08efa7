"""Laws of streams: any rows in any files, read from any place and cache, come as the documented order says."""

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import open_dataset
from hopyard.data.cache.node import NodeCache
from hopyard.data.dataset import Dataset
from hopyard.data.order import epoch_windows
from hopyard.storage import LocalStore

LAYOUTS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=3)
SOURCES = st.sampled_from(
    ["prepared", "prepared, far away", "foreign", "foreign, far away", "foreign, plain"]
)
CACHES = st.sampled_from(["cold", "warm", "none", "small", "cleared"])
WINDOWS = st.sampled_from([None, 1, 2000, 10_000, 1 << 30])
COLUMNS = st.sampled_from(
    [
        None,
        ["id"],
        ["text", "id"],
        ["list", "vector", "y"],
        {"pair": ["twice", "id"], "floats": ["y", "x"], "text": "text"},
        {"x": "x", "same": ["x", "y"], "all": ["id", "twice"], "blob": "blob"},
        {"renamed": "list", "one": ["id"]},
    ]
)


@pytest.fixture
def make(write, write_prepared, rows, tmp_path):
    """``make(source, layout, cache, kept)``: the dataset, and the ids of each of its row groups."""
    caches = []

    def cache_of(how):
        if how == "none":
            return False
        caches.append(NodeCache(tmp_path / f"cache-{len(caches)}", 3000 if how == "small" else None))
        return caches[-1]

    def make(source, layout, how, kept):
        cache, filters = cache_of(how), None
        groups, first = [], 0
        for count in (count for file in layout for count in file):
            groups.append(np.arange(first, first + count))
            first += count
        if kept is not None and any(row in kept for row in range(first)):
            filters = pc.field("id").isin(sorted(kept))
            groups = [ids for group in groups if len(ids := group[np.isin(group, list(kept))])]
        if source.startswith("prepared"):
            directory, manifest = write_prepared(layout)
            store = (rows.store if "far" in source else LocalStore)(directory)
            dataset = open_dataset(Dataset(store, manifest), filters=filters, cache=cache)
        else:
            plain = {"compression": "none", "use_dictionary": False, "required": True}
            options = plain if "plain" in source else {}
            directory = write(layout, **options)
            place = rows.store(directory) if "far" in source else directory
            dataset = open_dataset(place, filters=filters, cache=cache)
        assert len(dataset) == sum(map(len, groups))
        assert dataset.group_rows == tuple(map(len, groups))
        if how == "warm":
            list(dataset.loader(7, window=1))
        return dataset, groups

    return make


def stream_of(groups, seed, epoch, reach, shuffle):
    """The ids of an epoch's stream by the documented rule alone."""
    windows = epoch_windows([len(group) for group in groups], seed, epoch, reach, shuffle)
    return np.concatenate([np.concatenate([groups[g] for g in w.groups])[w.order()] for w in windows])


def steps_of(stream, size, ranks, rank, remainder):
    """The ids of each batch of a rank: equal slices of the stream's steps."""
    each = len(stream) // ranks if remainder == "drop" else -(-len(stream) // ranks)
    steps = []
    for start in range(0, each, size):
        stop = min(start + size, each)
        first = start * ranks + rank * (stop - start)
        steps.append(np.arange(first, first + stop - start))
    return steps


def check_batches(batches, stream, places, columns, check):
    """The batches are those places of the stream, in all columns, under whatever names and side by side."""
    assert len(batches) == len(places)
    for batch, where in zip(batches, places, strict=True):
        ids = stream[where % len(stream)]
        if not isinstance(columns, dict):
            assert columns is None or list(batch) == list(columns)
            check(batch, ids)
            continue
        assert list(batch) == list(columns)
        for name, its in columns.items():
            if isinstance(its, str):
                check({its: batch[name]}, ids)
            else:
                assert batch[name].shape == (len(ids), len(its))
                for number, column in enumerate(its):
                    check({column: batch[name][:, number]}, ids)


@given(
    SOURCES, CACHES, LAYOUTS, st.none() | st.sets(st.integers(0, 150), min_size=1), COLUMNS, WINDOWS,
    st.integers(1, 40), st.integers(1, 4), st.sampled_from(["drop", "repeat"]), st.integers(0, 2**40),
    st.integers(0, 3), st.booleans(), st.data(),
)  # fmt: skip
def test_any_dataset_gives_the_documented_stream_whatever_is_cached_and_wherever_it_goes_on(
    make, rows, source, how, layout, kept, columns, window, size, ranks, remainder, seed, epoch, shuffle, data
):
    dataset, groups = make(source, layout, how, kept)
    if len(dataset) < ranks:
        ranks = len(dataset)
    for rank in range(ranks):
        loader = dataset.loader(
            size, shuffle, seed, rank, ranks, columns, remainder, window=window, epoch=epoch
        )
        stream = stream_of(groups, seed, epoch, loader.state_dict()["window"], shuffle)
        assert sorted(stream) == sorted(np.concatenate(groups))
        places = steps_of(stream, size, ranks, rank, remainder)
        assert len(loader) == len(places)
        stop = data.draw(st.integers(0, len(places)), f"batches of rank {rank} before the state is taken")
        batches, state = [], loader.state_dict()
        for number, batch in enumerate(loader, 1):
            batches.append(batch)
            if number == stop:
                state = loader.state_dict()
                if how == "cleared":
                    dataset.cache.clear()
        check_batches(batches, stream, places, columns, rows.check)
    left = len(stream) - state["rows"]
    other = data.draw(st.integers(1, min(4, left) or 1), "ranks after it")
    other_size = data.draw(st.integers(1, 40), "batch size after it")
    for rank in range(other):
        loader = dataset.loader(other_size, rank=rank, world_size=other, columns=columns, remainder=remainder)
        loader.load_state_dict(state)
        tail = steps_of(stream[state["rows"] :], other_size, other, rank, remainder)
        check_batches(list(loader), stream, [place + state["rows"] for place in tail], columns, rows.check)


@given(SOURCES, LAYOUTS, st.none() | st.sets(st.integers(0, 150), min_size=1), st.data())
def test_any_rows_are_taken_by_number(make, rows, source, layout, kept, data):
    dataset, groups = make(source, layout, data.draw(CACHES), kept)
    ids = np.concatenate(groups)
    for _ in range(3):
        chosen = data.draw(st.lists(st.integers(-len(ids), len(ids) - 1), max_size=30))
        rows.check(dataset[np.array(chosen, np.int64)], ids[chosen])
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(ids)), st.integers(0, len(ids)))))
    rows.check(dataset[start:stop], ids[start:stop])


@given(LAYOUTS, st.integers(0, 2**32), st.sampled_from([None, 1, 2000]))
def test_a_transform_is_cached_by_row_and_its_stream_is_that_of_its_rows(
    write, rows, tmp_path, layout, seed, window
):
    directory = write(layout)
    dataset = open_dataset(
        directory, cached_transform=lambda columns: {"id": columns["id"], "sum": columns["x"] + columns["y"]}
    )
    plain = open_dataset(directory)
    loader = dataset.loader(8, True, seed, window=window)
    given = plain.loader(8, True, seed, columns=["id", "x", "y"])
    given.load_state_dict({**given.state_dict(), "window": loader.state_dict()["window"]})
    for made, its in zip(loader, given, strict=True):
        assert np.array_equal(made["id"], its["id"])
        assert np.array_equal(made["sum"], its["x"] + its["y"])
