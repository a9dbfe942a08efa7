"""A disk that is full at any point of a call: the call has happened, or it has not, and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stockroom.scenarios.test_damage import content

from hopyard import StockRoom
from hopyard.errors import StorageFullError

PAGE = 4096  # bytes that a tmpfs gives out at least

Call = Callable[[StockRoom], object]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
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


AT_EACH_PAGE = {"block", "commit", "commit before what another staged", "reset"}
"""Calls that are looked at for each number of free pages; others for each third."""


def made(folder: Path) -> Path:
    """A stockroom beside its remote, both of which went on; some of its objects are needless."""
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
        stock.model["kept"] = kept  # found in the pack that has what is needless
    stock.close()
    return folder


def fill(file: Path, free: int) -> None:
    """Leave so many pages."""
    left = os.statvfs(file.parent)
    with file.open("wb") as filled:
        os.posix_fallocate(filled.fileno(), 0, (left.f_bavail - free) * left.f_bsize)


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


@pytest.mark.parametrize("name", CALLS)
def test_a_call_on_a_full_disk_has_happened_or_not(disk: Path, tmp_path: Path, name: str) -> None:
    (prepare, call), source, stock = CALLS[name], made(tmp_path / "made"), disk / "stock"
    free, is_done, is_begun, ends = 0, False, False, []
    step = 1 if name in AT_EACH_PAGE or os.environ.get("HOPYARD_EXHAUSTIVE") else 3
    while not is_done:
        copied(source, disk)
        with StockRoom(stock, enable_write=True) as writer:
            prepare(writer)
            before = state(stock)
            fill(disk / "fill", free)
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
            (disk / "fill").unlink()
            assert is_done or seen == before or is_begun
            assert not is_begun or name == "purge"
            if not is_done:
                call(writer)  # again, by the same handle
        ends.append(state(stock))
        assert StockRoom.verify_in(stock).ok
        assert StockRoom.verify_in(stock, remote=disk / "remote").ok
        assert not list(stock.glob("head.stock.tmp-*"))
        assert not (stock / ".hopyard/stage/main.moving").exists()
        free += step
    assert len(ends) > 1, "it was never full"
    assert all(end == ends[-1] for end in ends)
