"""Row groups of objects come by few requests, in bounded memory, and are those of the object that was opened."""

from __future__ import annotations

import io
import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.descriptors import open_files

from hopyard.data import open_dataset
from hopyard.data.cache.node import NodeCache
from hopyard.data.files import fetching
from hopyard.data.files.fetching import Ahead, Fetch, Requests, fetched_groups, next_turn, taking_turn
from hopyard.data.files.stored import StoredFile
from hopyard.data.reading import decoder
from hopyard.errors import CorruptError, StorageError
from hopyard.storage import MemoryStore
from hopyard.storage.testing import CountingStore

GAP, REQUEST = 50, 4000


class Noting(MemoryStore):
    """Notes the ranges that are read of its objects."""

    def __init__(self):
        super().__init__()
        self.ranges = []

    def read(self, name, start=0, length=None):
        part = super().read(name, start, length)
        self.ranges.append((start, start + len(part.data)))
        return part


def parquet(table, rows):
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=rows, compression="none", use_dictionary=False)
    return buffer.getvalue()


def table(rows, columns=3):
    return pa.table({f"c{number}": np.arange(rows) * 10 + number for number in range(columns)})


def in_memory():
    """How many files in memory are open."""
    return len(open_files("/memfd:hopyard"))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(fetching, "_GAP", GAP)
    monkeypatch.setattr(fetching, "_REQUEST", REQUEST)
    monkeypatch.setattr(fetching, "_DICTIONARY", 0)


@given(
    rows=st.integers(1, 400),
    group=st.integers(1, 150),
    columns=st.sets(st.integers(0, 5), min_size=1),
    ahead=st.sampled_from([1, 10_000, 10**9]),
)
def test_neighbours_travel_in_one_request_and_nothing_travels_twice(rows, group, columns, ahead):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "_GAP", GAP)
        patch.setattr(fetching, "_REQUEST", REQUEST)
        patch.setattr(fetching, "_DICTIONARY", 0)
        patch.setattr(fetching, "AHEAD_BYTES", ahead)
        store, whole = Noting(), table(rows, 6)
        store.put("a", parquet(whole, group))
        file = StoredFile.open(store, "a")
        names = [f"c{number}" for number in sorted(columns)]
        count = file.footer.num_row_groups
        del store.ranges[:]
        for number, near in fetched_groups(file, range(count), names):
            found = near.parquet(number, names).read_row_group(number, names)
            assert found == whole.slice(number * group, group).select(names)
        wanted = sorted(
            file.chunk_bounds(number, leaf) for number in range(count) for leaf in file.leaves_of(names)
        )
        stretches = []
        for start, end in wanted:
            if stretches and start - stretches[-1][1] <= GAP:
                stretches[-1][1] = end
            else:
                stretches.append([start, end])
        asked = sorted(store.ranges)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(asked))
        assert sum(end - start for start, end in asked) == sum(end - start for start, end in stretches)
        if ahead == 10**9:
            assert len(asked) == sum(math.ceil((end - start) / REQUEST) for start, end in stretches)


def test_bytes_on_their_way_are_bounded_and_are_given_back(monkeypatch):
    monkeypatch.setattr(fetching, "AHEAD_BYTES", 5000)
    store = MemoryStore()
    store.put("a", parquet(table(1000), 50))  # row groups of 1,200 bytes and some
    file = StoredFile.open(store, "a")
    before, most = in_memory(), 0
    ahead = Ahead(range(20), lambda group, requests: [Fetch(requests, file, [group], ["c0", "c1", "c2"])])

    def work():
        nonlocal most
        taken_groups = []
        while True:
            with ahead.taken() as taken:
                if taken is None:
                    return taken_groups
                most = max(most, fetching._wire.used)
                group, (fetch,) = taken
                taken_groups.append(group)
                fetch.result()

    with ThreadPoolExecutor(3) as pool:
        groups = [group for made in [pool.submit(work) for _ in range(3)] for group in made.result()]
    assert sorted(groups) == list(range(20))
    assert most < 5000 + 2 * 1500
    assert fetching._wire.used == 0
    assert in_memory() == before


def test_fetches_that_nobody_takes_leave_nothing(monkeypatch):
    store = MemoryStore()
    store.put("a", parquet(table(1000), 50))
    file = StoredFile.open(store, "a")
    before = in_memory()
    groups = fetched_groups(file, range(20), ["c0"])
    next(groups)
    groups.close()
    assert fetching._wire.used == 0
    assert in_memory() == before


def test_what_is_near_is_begun_when_it_is_taken_and_of_small_items_not_all_are(monkeypatch):
    begun = []
    ahead = Ahead(range(9), lambda item, requests: begun.append(item) or [])
    for number in range(9):
        with ahead.taken() as taken:
            assert taken == (number, [])
            assert begun == list(range(number + 1))
    monkeypatch.setattr(fetching, "_ITEMS_AHEAD", 3)
    store = MemoryStore()
    store.put("a", parquet(table(1000), 50))
    file = StoredFile.open(store, "a")
    before = in_memory()
    groups = fetched_groups(file, range(20), ["c0"])
    for number, _ in enumerate(groups):
        if number % 5 == 0:
            assert in_memory() - before <= 1 + 3


@pytest.mark.parametrize("threads", [1, 3])
def test_row_groups_that_are_near_are_claimed_one_at_a_time_so_that_other_processes_find_work(
    tmp_path, monkeypatch, threads
):
    monkeypatch.setattr(decoder, "usable_cores", lambda: threads)
    pq.write_table(table(3000), tmp_path / "a.parquet", row_group_size=50)
    held, most, claim = [], 0, NodeCache.claim

    def noted(self, key, *, wait):
        nonlocal most
        made = claim(self, key, wait=wait)
        held[:] = [each for each in [*held, made] if each is not None and not each.file.closed]
        most = max(most, len(held))
        return made

    monkeypatch.setattr(NodeCache, "claim", noted)
    dataset = open_dataset(tmp_path / "a.parquet", cache=tmp_path / "cache")
    assert sum(len(batch["c0"]) for batch in dataset.loader(batch_size=64, shuffle=True)) == 3000
    assert 1 <= most <= threads


class Broken(Noting):
    """Fails from the second request of data on."""

    def read(self, name, start=0, length=None):
        part = super().read(name, start, length)
        if length is not None and len(self.ranges) > 2:
            raise StorageError("the wire was cut.")
        return part


def test_a_request_that_fails_ends_the_epoch_with_its_error_and_leaves_nothing(small):
    store = Broken()
    store.put("a.parquet", parquet(table(2000), 50))
    before = in_memory()
    dataset = open_dataset(store, cache=False)
    with pytest.raises(StorageError, match="the wire was cut"):
        dataset[:]
    del dataset  # held the row groups that had come
    assert fetching._wire.used == 0
    assert in_memory() == before


def test_an_object_that_is_replaced_meanwhile_is_named():
    store = MemoryStore()
    store.put("a", parquet(table(100), 50))
    file = StoredFile.open(store, "a")
    file.footer  # noqa: B018, to read it
    store.put("a", parquet(table(100), 50))
    with pytest.raises(
        CorruptError, match=r"a was changed while it was being read .* open the dataset again"
    ):
        Fetch(Requests(), file, [0], ["c0"]).result()


def test_a_second_epoch_asks_the_store_for_nothing(tmp_path):
    store = CountingStore(MemoryStore())
    for name in ("a.parquet", "b.parquet"):
        store.put(name, parquet(table(300), 50))
    dataset = open_dataset(store, cache=tmp_path / "cache" if store.shared else False)
    loader = dataset.loader(batch_size=32, shuffle=True, seed=1)
    first = [batch["c0"].tolist() for batch in loader]
    store.reset()
    assert len(list(loader)) == len(first)
    assert not store.asked


def test_an_epoch_has_one_request_for_each_footer_and_one_for_the_rows_of_a_file():
    store = CountingStore(MemoryStore())
    for name in ("a.parquet", "b.parquet"):
        store.put(name, parquet(table(300), 50))
    store.reset()
    list(open_dataset(store, cache=False).loader(batch_size=32, shuffle=True))
    assert store.calls["get"] == 4
    assert set(store.calls) == {"get", "list"}


@pytest.mark.long
def test_windows_of_far_data_are_drawn_from_neighbours_that_travel_together():
    store = Noting()
    store.put("a.parquet", parquet(table(12_800), 5))
    dataset = open_dataset(store, cache=False)
    del store.ranges[:]
    rows = 2560  # of a window, which has 128 places of 20 rows
    list(dataset.loader(batch_size=32, shuffle=True, window=rows * 24))
    assert len(store.ranges) < 700  # for 2,560 row groups


def test_threads_share_requests_that_span_their_row_groups():
    store = Noting()
    store.put("a", parquet(table(400), 50))
    file = StoredFile.open(store, "a")
    del store.ranges[:]
    requests, arrived = Requests(), threading.Barrier(8, timeout=60)
    fetches = [Fetch(requests, file, [group], ["c0", "c1", "c2"]) for group in range(8)]
    assert not store.ranges, "the last request waits for its successor"

    def rows(group):
        arrived.wait()
        return fetches[group].result().parquet().read_row_group(group)

    with ThreadPoolExecutor(8) as pool:
        found = pa.concat_tables(pool.map(rows, range(8)))
    assert found == table(400)
    assert len(store.ranges) == 1


class Slow(Noting):
    """Answers when it is told to."""

    def __init__(self):
        super().__init__()
        self.asked, self.may_answer = threading.Semaphore(0), threading.Semaphore(0)
        self.is_slow = False

    def read(self, name, start=0, length=None):
        part = super().read(name, start, length)
        if self.is_slow:
            self.asked.release()
            assert self.may_answer.acquire(timeout=60)
        return part


def far_groups(file, turn=None):
    """A fetch of each of eight row groups, which are apart."""
    with nullcontext() if turn is None else taking_turn(turn):
        requests = Requests()
    fetches = [Fetch(requests, file, [group], ["c0"]) for group in range(8)]
    requests.send()
    return fetches


def test_only_so_many_bytes_are_asked_for_at_once(monkeypatch):
    store = Slow()
    store.put("a", parquet(table(80_000), 10_000))  # row groups of 80 kB a column
    file = StoredFile.open(store, "a")
    monkeypatch.setattr(fetching, "_BYTES_AT_ONCE", 3 * Fetch(Requests(), file, [0], ["c0"]).nbytes)
    store.is_slow = True
    del store.ranges[:]
    fetches = far_groups(file)
    for begun in range(3, 9):
        while len(store.ranges) < begun:
            assert store.asked.acquire(timeout=60)
        assert fetching._wire._passing <= fetching._BYTES_AT_ONCE
        assert len(store.ranges) == begun
        store.may_answer.release()
    store.may_answer.release(8)
    for number, fetch in enumerate(fetches):
        assert fetch.result().parquet().read_row_group(number, ["c0"]).num_rows == 10_000
    assert fetching._wire._passing == 0


def test_earlier_turns_are_asked_for_first(monkeypatch):
    monkeypatch.setattr(fetching, "_BYTES_AT_ONCE", 1)
    store = Slow()
    store.put("a", parquet(table(80_000), 10_000))
    file = StoredFile.open(store, "a")
    file.footer  # noqa: B018, to read it
    store.is_slow = True
    early, late = next_turn(), next_turn()
    del store.ranges[:]
    behind = far_groups(file, late)
    assert store.asked.acquire(timeout=60)  # the first of these is on its way
    before = far_groups(file, early)
    store.may_answer.release(16)
    for fetch in (*behind, *before):
        fetch.result()
    firsts = [start for start, _ in store.ranges]
    assert firsts[1:9] == sorted(firsts[1:9])
    assert [firsts[0], *firsts[9:]] == firsts[1:9]
