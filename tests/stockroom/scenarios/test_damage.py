"""What is broken is told, by name, and breaks nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.stockroom.scenarios.crashes import dying
from tests.stockroom.scenarios.model import content

from hopyard import StockRoom
from hopyard.errors import CorruptError, FormatError, HopyardError, StorageFullError
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore


@pytest.fixture
def folder(stock: StockRoom) -> Path:
    """Where the objects are."""
    with stock.enable_write():
        stock.data["x"] = np.arange(3000)
        stock.experiment["lr"] = 1
    with stock.enable_write():
        stock.data["x"][0] = np.array(7)
    stock.tag("v1")
    return stock.place.objects


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    replace(path, bytes(data))


def truncate(path: Path) -> None:
    replace(path, path.read_bytes()[:-100])


def clear_the_end(path: Path) -> None:
    """SQLite sees nothing wrong in a page without some rows."""
    data = path.read_bytes()
    replace(path, data[:-1000] + bytes(1000))


def swap(path: Path) -> None:
    replace(path, b"PK\x03\x04 this is an archive of something else" * 10)


def replace(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def told(root: Path) -> str:
    """What is said of the damage, by opening or by verifying."""
    try:
        with StockRoom(root) as damaged:
            return "".join(map(str, damaged.verify().problems))
    except HopyardError as error:
        return str(error)


def read_all(root: Path) -> None:
    with StockRoom(root) as stock:
        for commit in stock.log():
            content(stock.at(commit.digest))


@pytest.mark.parametrize("harm", [flip, truncate, swap, Path.unlink])
@pytest.mark.parametrize("what", ["packs/data-*", "packs/meta-*", "refs/heads/main/*", "refs/tags/v1/*"])
def test_each_damage_is_found_by_reading_or_by_verifying(
    stock: StockRoom, folder: Path, harm: Callable[[Path], None], what: str
) -> None:
    for index in folder.glob("index*"):
        index.unlink()
    for path in sorted(folder.glob(what)):
        before = path.read_bytes()
        harm(path)
        error = told(stock.place.root)
        if (
            "packs" in what or harm is not Path.unlink
        ):  # without its last entry a reference is an older one, or none
            assert error
        if "packs" in what and harm is not flip:
            with pytest.raises(HopyardError):
                read_all(stock.place.root)
        for left in folder.glob("damaged/*"):
            left.unlink()
        if path.exists():
            path.chmod(0o644)
        path.write_bytes(before)
    read_all(stock.place.root)


@pytest.mark.parametrize("harm", [flip, truncate, clear_the_end, swap, Path.unlink])
def test_the_index_is_only_a_memory(stock: StockRoom, folder: Path, harm: Callable[[Path], None]) -> None:
    stock.close()
    for extra in folder.glob("index.sqlite-*"):
        extra.unlink()
    harm(folder / "index.sqlite")
    read_all(stock.place.root)
    with StockRoom(stock.place.root) as again, again.enable_write():
        again.data["x"][1] = np.array(1)


def test_a_missing_or_foreign_format(stock: StockRoom, folder: Path) -> None:
    (folder / "FORMAT").write_text('{"something": "else"}')
    with pytest.raises((FormatError, CorruptError), match="format header"):
        StockRoom(stock.place.root)
    (folder / "FORMAT").unlink()
    with pytest.raises(CorruptError, match=r"its file FORMAT is gone.*hopyard stock verify --repair"):
        StockRoom(stock.place.root)
    assert StockRoom.verify_in(stock.place.root, repair=True).ok
    read_all(stock.place.root)


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"branch main\ncommit abc\n", b"branch a\nbranch b\n", b"x y z"]
)
def test_a_broken_head_is_told_and_left_alone(stock: StockRoom, folder: Path, text: bytes) -> None:
    stock.place.head.write_bytes(text)
    with pytest.raises(CorruptError, match=r"head\.stock"):
        StockRoom(stock.place.root)
    assert stock.place.head.read_bytes() == text


def test_a_full_disk_at_any_write_leaves_all_as_it_was(
    stock: StockRoom, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, commit = content(stock), stock.head.commit
    for at in range(1, 20):

        def full(path: Path, at: int = at) -> FaultyStore:
            return FaultyStore(LocalStore(path), Fault("full", at=at, times=1000))

        with monkeypatch.context() as patch:
            patch.setattr("hopyard.stockroom.writing.LocalStore", full)
            try:
                with StockRoom(stock.place.root) as writer, writer.enable_write():
                    writer.data["x"][1] = np.array(9)
                    writer.data["y"] = np.arange(5000)
            except StorageFullError:
                pass
        with StockRoom(stock.place.root) as after:
            if after.head.commit != commit:
                assert content(after)["data/x"][1] == 9
                assert at > 2
                return
            assert content(after) == before
            assert after.status().staged == []
    raise AssertionError("it never succeeded")


def test_dying_at_any_change_of_a_file_a_block_is_done_or_not(stock: StockRoom, folder: Path) -> None:
    before, after = content(stock), None
    for at in range(30):
        with dying(at) as counter, StockRoom(stock.place.root) as writer, writer.enable_write():
            writer.data["x"][2] = np.array(-1)
            writer.model["m"] = {"w": np.ones(3)}
        with StockRoom(stock.place.root) as found:
            assert found.verify().ok
            now = content(found)
            after = {**before, "data/x": before["data/x"] | {2: -1}, "model/m": {"w": [1.0] * 3}}
            assert now in (before, after)
        if not counter.is_dead:
            assert now == after
            return
    raise AssertionError("it never ended")


def test_dying_while_a_nested_sample_is_replaced_leaves_the_old_one_or_the_new_one(stock: StockRoom) -> None:
    old, new = {"a": np.arange(2), "b": np.arange(3)}, {"a": np.arange(4), "c": np.arange(5)}
    with stock.enable_write():
        stock.data["boxes"] = {1: old, 2: old}
    for at in range(30):
        with dying(at) as counter, StockRoom(stock.place.root, enable_write=True) as writer:
            writer.data["boxes"][1] = new
        with StockRoom(stock.place.root, enable_write=True) as found:
            boxes = found.data["boxes"]
            now = {part: len(value) for part, value in boxes[1].items()}
            assert now in ({"a": 2, "b": 3}, {"a": 4, "c": 5})
            assert len(boxes[2]) == 2
            found.reset()
        if not counter.is_dead:
            assert now == {"a": 4, "c": 5}
            return
    raise AssertionError("it never ended")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_read(stock: StockRoom, folder: Path) -> None:
    folder.chmod(0o555)
    try:
        read_all(stock.place.root)
    finally:
        folder.chmod(0o755)


def test_collecting_keeps_what_anything_needs(stock: StockRoom, folder: Path) -> None:
    with stock.enable_write():
        stock.data["large"] = np.random.default_rng(0).random(100_000)
    reader = stock.at("HEAD")
    stock.reset("v1")
    stock.gc()
    assert reader.data["large"].shape == ()
    assert len(reader.data["large"][...]) == 100_000
    del reader
    stock.gc()
    assert sum(path.stat().st_size for path in folder.glob("packs/*")) < 100_000
    assert stock.verify().ok
    read_all(stock.place.root)
