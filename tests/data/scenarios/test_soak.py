"""Hundreds of epochs, and loops left in every way: memory stays flat, and nothing is left running or open."""

import contextlib
import gc
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.sampling import by_level

from hopyard.data import open_dataset
from hopyard.data.cache.durability import durability

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="looks at the process in /proc"
)

WARM_UP, EPOCHS = 40, by_level(60, 100, 400)
MOST_GROWTH = 1 << 20


def anonymous_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError


def opened():
    """Open files, sockets and pipes of the process, counted by name (each socket and pipe has one of its own)."""
    names = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            names[str(descriptor.readlink())] += 1
    return names


def held():
    """What the process holds: open files, mappings by kind, threads."""
    durability.join()  # which ends some seconds after the last epoch that made an entry
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": opened(),
        "mapped files": sum(
            ".parquet" in line or ".flat" in line or "memfd:hopyard" in line for line in maps
        ),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }


@pytest.fixture
def read(write, mapped, rows, tmp_path, quiet_cache):
    """``read(how)``: a loader of a small dataset that is read in that way."""

    def make(how, **options):
        layout = [[20, 20], [20]]
        if how == "mapped":
            return mapped(layout).loader(32, True, seed=1)
        if how == "in windows, cached":
            dataset = open_dataset(write(layout), cache=tmp_path / "cache")
            return dataset.loader(32, True, seed=1, window=3000, **options)
        if how == "in windows, far away":
            dataset = open_dataset(rows.store(write(layout)), cache=False)
            return dataset.loader(32, True, seed=1, window=3000, **options)
        dataset = open_dataset(write(layout), cache=False)
        return dataset.loader(32, True, seed=1, window=3000 if "windows" in how else None, **options)

    return make


WAYS = ["mapped", "in windows, cached", "in windows, in memory", "at once, in memory"]


@pytest.mark.long
@pytest.mark.parametrize("how", WAYS)
def test_memory_descriptors_mappings_and_threads_are_flat_over_hundreds_of_epochs(read, rows, how):
    loader = read(how)
    columns = 0
    for epoch in range(WARM_UP + EPOCHS):
        if epoch == WARM_UP:
            before, bytes_before = held(), anonymous_bytes()
        for batch in loader:
            columns += len(batch)
    rows.check(batch)
    batch = None
    assert columns == (WARM_UP + EPOCHS) * 2 * len(rows.names)
    after = held()
    added = after.pop("descriptors") - before.pop("descriptors")  # fewer: earlier tests' may close meanwhile
    assert not added
    assert after == before
    assert anonymous_bytes() - bytes_before < MOST_GROWTH


def leave_by_break(loader):
    for _ in loader:
        break


def leave_by_exception(loader):
    with contextlib.suppress(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError


def leave_before_the_first_batch(loader):
    iter(loader)


def leave_in_the_last_window(loader):
    iterator = iter(loader)
    for _ in range(len(loader) - 1):
        next(iterator)


def leave_two_at_once(loader):
    one, other = iter(loader), iter(loader)
    next(one), next(other), next(one)


@pytest.mark.parametrize("how", [*WAYS, "in windows, far away"])
def test_a_loop_that_is_left_in_any_way_leaves_nothing_running_or_open(read, how, quiet_cache):
    ways = [
        leave_by_break, leave_by_exception, leave_before_the_first_batch, leave_in_the_last_window,
        leave_two_at_once,
    ]  # fmt: skip
    loader = read(how)
    for way in ways:
        way(loader)
    threads = held()["threads"]
    assert not [
        name for name in threads if name.startswith(("hopyard-window", "hopyard-ahead", "hopyard-decode"))
    ]
    before = held()
    for _ in range(5):
        for way in ways:
            way(loader)
    after = held()
    added = after["descriptors"] - before["descriptors"]
    assert added.total() <= 4, "what is held decoded may differ by a window"
    assert after["threads"] == threads


def test_a_dataset_that_is_let_go_lets_go_of_what_it_held(read, quiet_cache):
    read("at once, in memory")  # what is made once in a process is there
    before = held()
    for how in ("in windows, in memory", "at once, in memory", "in windows, far away"):
        for _ in range(3):
            for _ in read(how):
                pass
    after = held()
    added = after.pop("descriptors") - before.pop("descriptors")
    assert not added
    assert after == before


def test_windows_that_never_come_again_are_not_held_without_end(write, rows):
    dataset = open_dataset(write([[5] * 40], columns=["id", "x"]), cache=False)
    loader = dataset.loader(20, True, seed=1, window=20 * 12)  # ten windows of row groups drawn anew
    before = opened()
    for _ in range(12):
        assert sorted(rows.ids(loader)) == list(range(200))
    added = opened() - before
    assert added.total() < 40
