"""A disk that is full at any point of a call: the call has happened, or it has not, and says so.

Each call is walked by its writes, of which the first ones alone find room; some are walked on a small file system, too,
by the pages that are free. That also shows SQLite on a full disk, but may pass over a write: pages are freed meanwhile.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.test_damage import content
from tests.sampling import LEVEL, moments

from hopyard import StockRoom
from hopyard.errors import StorageFullError

Call = Callable[[StockRoom], object]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        # Not missed where CI has no root: each call has been walked by its writes.
        pytest.skip(f"only root may mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def block(stock: StockRoom) -> None:
    with stock.enable_write("block"):
        stock.experiment["lr"] = 0.5
        stock.data["x"][1] = np.arange(3) + 7


def staged(stock: StockRoom) -> None:
    stock.experiment["lr"] = 0.5


def staged_by_two(stock: StockRoom) -> None:
    """The second write is not in a commit that the first handle makes, and comes behind it."""
    staged(stock)
    with StockRoom(stock.place.root, enable_write=True) as other:
        other.experiment["other"] = 1


def nothing(stock: StockRoom) -> None:
    pass


CALLS: dict[str, tuple[Call, Call]] = {
    "block": (nothing, block),
    "block with what is staged": (staged_by_two, block),
    "staged": (nothing, lambda s: s.data["x"].update({1: np.arange(3) + 7})),
    "commit": (staged, lambda s: s.commit("staged")),
    "commit before what another staged": (staged_by_two, lambda s: s.commit("carried")),
    "merge": (nothing, lambda s: s.merge("dev")),
    "fast-forward": (lambda s: s.switch("old"), lambda s: s.merge("main")),
    "pull": (nothing, lambda s: s.pull()),
    "reset": (nothing, lambda s: s.reset("old")),
    "reset of what is staged": (staged, lambda s: s.reset()),
    "switch": (nothing, lambda s: s.switch("dev")),
    "branch": (nothing, lambda s: s.branch("new")),
    "tag": (nothing, lambda s: s.tag("v2")),
    "revert": (nothing, lambda s: s.revert("HEAD")),
    "purge": (nothing, lambda s: s.purge("x", key=2)),
    "gc": (nothing, lambda s: s.gc()),
    "push": (nothing, lambda s: s.push(branches=["dev"])),
}


BY_PAGES = ["block", "commit", "commit before what another staged", "reset", "gc", "push"]
"""Calls that are looked at on a small file system, too."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stockroom beside its remote, both of which went on; some of its objects are needless."""
    folder = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)
    needless, kept = ({"w": rng.random(5000)} for _ in range(2))
    stock = StockRoom.init(folder / "stock")
    with stock.enable_write("first"):
        stock.data["x"] = {number: np.arange(3) + number for number in range(4)}
        stock.experiment["lr"] = 0.1
    stock.branch("old")
    stock.push(folder / "remote")
    with StockRoom.clone(folder / "remote", folder / "other") as other:
        with other.enable_write("theirs"):
            other.experiment["theirs"] = 1
        other.push()
    shutil.rmtree(folder / "other")
    stock.branch("dev")
    stock.switch("dev")
    with stock.enable_write("dev"):
        stock.data["dev"] = rng.integers(0, 1000, 5000)
    stock.branch("gone")
    stock.switch("gone")
    with stock.enable_write("gone"):
        stock.model["needless"], stock.model["kept"] = needless, kept
    stock.switch("main")
    stock.delete_branch("gone", force=True)
    with stock.enable_write("second"):
        stock.experiment["lr"] = 0.2
        stock.model["kept"] = kept  # found in the packfile that has what is needless
    stock.close()
    return folder


@contextmanager
def filled(folder: Path, free: int) -> Iterator[None]:
    """A file system that has so many free pages."""
    left = os.statvfs(folder)
    with (folder / "fill").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (left.f_bavail - free) * left.f_bsize)
    try:
        yield
    finally:
        (folder / "fill").unlink()


@contextmanager
def full_after(writes: int) -> Iterator[None]:
    """This process writes so many times; from then on it finds the disk full. Deletes and new names need no space."""

    def refused(call: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, data: Any) -> int:
            nonlocal writes
            writes -= 1
            if writes < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(descriptor, data)

        return write

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "writev"):
            patch.setattr(os, name, refused(getattr(os, name)))
        yield


def state(path: Path) -> dict[str, Any]:
    """What a reader sees."""
    with StockRoom(path) as stock:
        named = {name: messages(stock, name) for name in [*stock.branches(), *stock.tags()]}
        return {
            "values": content(stock), "branch": stock.head.branch, "head": messages(stock), "named": named,
            "staged": stock.status().staged,
        }  # fmt: skip


def messages(stock: StockRoom, *names: str) -> list[str]:
    # A commit that is made again has another time.
    return [commit.message for commit in stock.log(*names)]


def copied(source: Path, disk: Path) -> None:
    for each in ("stock", "remote"):
        shutil.rmtree(disk / each, ignore_errors=True)
        shutil.copytree(source / each, disk / each)
    known = disk / "stock/.hopyard/remotes/origin"
    known.write_bytes(known.read_bytes().replace(bytes(source), bytes(disk)))


@pytest.mark.parametrize("name", CALLS if LEVEL == "exhaustive" else BY_PAGES)
def test_a_call_on_a_full_disk_has_happened_or_not(disk: Path, source: Path, name: str) -> None:
    walk(name, source, disk, lambda free: filled(disk, free))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_writes_find_no_room_has_happened_or_not(
    source: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power cut is looked at
    walk(name, source, tmp_path, full_after)


def walk(name: str, source: Path, disk: Path, full: Callable[[int], AbstractContextManager[None]]) -> None:
    """Make the call with more and more room, until it has enough; and each time again, by the same handle."""
    (prepare, call), stock = CALLS[name], disk / "stock"
    is_done, is_begun, ends = False, False, []
    for room in itertools.chain([0], (1 + at for at in moments(f"full disk {name}", quick=4, ci=3))):
        copied(source, disk)
        with StockRoom(stock, enable_write=True) as writer:
            prepare(writer)
            before = state(stock)
            with full(room):
                try:
                    call(writer)
                    is_done = True
                except StorageFullError as error:
                    is_begun = "The purge has begun" in str(error)
                # Others read what is there, also while the disk is full.
                seen = state(stock)
                # A look of the writer would bring what the other has staged into the commit.
                if name != "commit before what another staged":
                    assert content(writer) == seen["values"] or seen["staged"]
            assert is_done or seen == before or is_begun
            assert not is_begun or name == "purge"
            if not is_done:
                call(writer)  # again, by the same handle
        ends.append(state(stock))
        assert StockRoom.verify_in(stock).ok
        assert StockRoom.verify_in(stock, remote=disk / "remote").ok
        assert not list(stock.glob("head.stock.tmp-*"))
        assert not (stock / ".hopyard/stage/main.moving").exists()
        if is_done:
            break
    assert len(ends) > 1, "it was never full"
    if name == "commit before what another staged":
        # Made again it is a call of a handle that looks anew, and may have what the other staged, too.
        ends = [with_staged(end) for end in ends]
    assert all(end == ends[-1] for end in ends)


def with_staged(end: dict[str, Any]) -> dict[str, Any]:
    """What a writer sees, of whom another has staged one value."""
    assert (end["staged"], end["values"].get("experiment/other")) in [
        ([("experiment/other", "added")], None),
        ([], 1),
    ]
    return {**end, "staged": [], "values": {**end["values"], "experiment/other": 1}}


def test_what_found_no_room_is_not_stored_by_the_next_write(disk: Path) -> None:
    with StockRoom.init(disk / "stock", enable_write=True) as stock:
        stock.data["small"] = np.arange(10)
        with pytest.raises(StorageFullError, match="no space is left for"):
            stock.data["large"] = np.random.default_rng(0).random((1000, 500))
        stock.data["other"] = np.arange(10)
        stock.commit("without it")
        assert sorted(stock.data) == ["other", "small"]
    subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
    with StockRoom(disk / "stock", enable_write=True) as stock:
        stock.data["more"] = np.arange(10)
        stock.commit("more")
        assert stock.gc().objects == 0
