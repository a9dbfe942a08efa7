"""A node cache that is full, too small or removed while rows are read: gone on from; never wrong rows."""

import contextlib
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset
from hopyard.data.cache.node import NodeCache

LAYOUT = [[20, 20, 20], [20, 20, 20]]


WINDOW = 2000  # bytes: a row group or two


def fill(folder, left):
    """Fill the file system, but for so many bytes."""
    with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(folder / "ballast", (folder / "ballast").stat().st_size - left)


@pytest.mark.parametrize("left", [0, 8192, 40_000])
def test_a_full_disk_is_said_once_and_what_it_does_not_take_is_held_in_memory(
    write, rows, mounted, tmp_path, warnings_of, monkeypatch, left
):
    with mounted(tmp_path / "disk", "1m"):
        cache = NodeCache(tmp_path / "disk" / "cache")
        # As if another process filled the disk after it was looked at.
        monkeypatch.setattr(cache, "admits", lambda *nbytes: True)
        monkeypatch.setattr(cache, "_lacking", lambda nbytes: 0)
        fill(tmp_path / "disk", left)
        dataset = open_dataset(write([[200] * 3, [200] * 3]), cache=cache)
        loader = dataset.loader(64, True, window=20_000)
        for _ in range(2):
            batches = list(loader)
            for batch in batches:
                rows.check(batch)
            assert sorted(rows.ids(batches)) == list(range(1200))
        assert len(warnings_of()) == 1
        assert "No space left on device" in warnings_of()[0]
        assert "held in memory" in warnings_of()[0]
        rows.check(dataset[::-7], np.arange(1200)[::-7])


def test_a_disk_that_is_known_to_be_full_is_not_written_to(write, rows, mounted, tmp_path, warnings_of):
    with mounted(tmp_path / "disk", "1m"):
        fill(tmp_path / "disk", 8192)
        loader = open_dataset(write(LAYOUT), cache=tmp_path / "disk" / "cache").loader(
            16, True, window=WINDOW
        )
        assert sorted(rows.ids(loader)) == list(range(120))
        assert not (tmp_path / "disk" / "cache").exists()
        assert warnings_of() == []


def test_a_cache_that_cannot_be_written_is_said_once(write, rows, tmp_path, warnings_of):
    (tmp_path / "file").write_text("in the way")
    loader = open_dataset(write(LAYOUT), cache=tmp_path / "file" / "cache").loader(16, True, window=WINDOW)
    for _ in range(2):
        assert sorted(rows.ids(loader)) == list(range(120))
    assert len(warnings_of()) == 1
    assert "the node cache" in warnings_of()[0]


def test_a_cache_that_goes_under_a_running_loader_is_made_again(write, rows, tmp_path, warnings_of):
    cache, moved, decoded = tmp_path / "cache", [], []

    def moving(columns):
        first = int(columns["id"][0])
        decoded.append(first)
        if first in (20, 80) and len(moved) < 6 and cache.exists():  # this row group is being made in it
            moved.append(cache.rename(tmp_path / f"cache-{len(moved)}"))
        return columns

    # Of windows of one row group, only one is made at a time.
    loader = open_dataset(write(LAYOUT), cache=cache, cached_transform=moving).loader(10, True, window=1)

    def read():
        decoded.clear()
        batches = list(loader)
        for batch in batches:
            rows.check(batch)
        assert sorted(rows.ids(batches)) == list(range(120))

    for epoch in 1, 2, 3:
        read()
        assert len(moved) == 2 * epoch
        assert set(decoded) >= {20, 80}, "what had no place in the cache is tried again"
    read()
    assert len(list(cache.glob("*.flat"))) == 6
    read()
    assert decoded == []
    assert warnings_of() == []


@pytest.mark.parametrize("window", [None, 60_000])
def test_a_cache_too_small_for_what_looked_small_in_the_files_gives_right_rows(tmp_path, window):
    # One long text is stored once, but decoded in every row, so the cache is too small by far.
    ids = np.arange(600)
    table = pa.table({"id": ids, "text": [f"{row % 2}" * 300 for row in ids]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    dataset = open_dataset(tmp_path / "a.parquet", cache=NodeCache(tmp_path / "cache", 80_000))
    loader = dataset.loader(64, True, seed=1, window=window)
    for _ in range(3):
        batches = list(loader)
        for batch in batches:
            assert batch["text"].tolist() == [f"{row % 2}" * 300 for row in batch["id"]]
        assert sorted(row for batch in batches for row in batch["id"]) == ids.tolist()
    assert dataset[::-1]["id"].tolist() == ids[::-1].tolist()
