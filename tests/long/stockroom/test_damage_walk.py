"""Whatever is done to whatever file: every read is right or an error of ours, ``verify`` names it, and repairing from
an intact copy brings all of it back.

Some cases are sampled; ``make test-exhaustive`` goes through all, with more places of each file.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.model import plain
from tests.sampling import by_level, sample

from hopyard import StockRoom
from hopyard.data import Dataset, prepare
from hopyard.errors import CorruptError, HopyardError
from hopyard.storage import LocalStore

PLACES = by_level(2, 2, 12)
"""Of each file, how many bytes are flipped, one at a time."""

REBUILT = ("index.sqlite", "copies/", "readers/", "gc.lock", "stage/main.lock", "stage/main.moving.lock")
HARMLESS = ("FORMAT", "head.stock")
"""A byte of who wrote it, of a comment or of a branch's name changes nothing that is read."""

Read = Callable[[StockRoom], Any]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a stockroom may hold; copied before it is damaged."""
    root = tmp_path_factory.mktemp("walk") / "intact"
    random_numbers = np.random.default_rng(3)
    with StockRoom.init(root) as stock:
        with stock.enable_write("columns and a model"):
            stock.data["x"] = random_numbers.random((300, 8))
            stock.data["label"] = {f"key {n}": f"label {n}" for n in range(20)}
            stock.model["net"] = {"w": random_numbers.random((40, 5)), "n": 3}
            stock.experiment["lr"] = 0.1
        stock.tag("v1")
        with stock.enable_write("a dataset, a run"):
            rows = {"id": np.arange(50), "value": random_numbers.random(50)}
            stock.data["rows"] = prepare(rows, LocalStore(root.parent / "prepared"), validation=None).train
            stock.experiment["long"] = ["x" * 50] * 200
            with stock.run(params={"a": 1}) as run:
                run.log(step=1, loss=0.5)
                artifact = root.parent / "artifact"
                artifact.write_bytes(b"artifact" * 50)
                run.log_artifact(artifact)
        stock.purge("x", key=5, why="asked to")
        stock.branch("dev")
        with stock.enable_write("last"):
            stock.data["x"][0] = np.zeros(8)
    with StockRoom(root, enable_write=True) as stock:
        stock.experiment["before"] = 6
        stock.experiment["staged"] = 7
    return root


def value_of(shelf: str, thing: Any) -> Any:
    if isinstance(thing, Dataset):
        return {name: plain(values) for name, values in thing[:].items()}
    if shelf == "data":
        return {key: plain(thing[key]) for key in thing}
    if shelf == "model":
        return {key: plain(each) for key, each in thing.items()}
    return thing


def reads_of(stock: StockRoom) -> dict[str, Read]:
    """Everything that can be read, by what it is; of all commits by their digests."""
    reads: dict[str, Read] = {
        "log": lambda room: [commit.digest for commit in room.log()],
        "names": lambda room: (room.branches(), room.tags()),
        "staged": lambda room: room.status().staged,
    }

    def add(digest: str, shelf: str, name: str) -> None:
        def read(room: StockRoom) -> Any:
            at = room.at(digest)
            if shelf == "run":
                run = at.experiment.run(name)
                metrics = {metric: plain(values) for metric, (_, values) in run.metrics.items()}
                return run.params, metrics, {each: run.read(each) for each in run.artifacts}
            return value_of(shelf, getattr(at, shelf)[name])

        reads[f"{shelf}/{name} at {digest[:8]}"] = read

    for commit in stock.log():
        at = stock.at(commit.digest)
        for shelf in ("data", "model", "experiment"):
            for name in getattr(at, shelf):
                add(commit.digest, shelf, name)
        for run in at.experiment.runs():
            add(commit.digest, "run", run.id)
    return reads


def found(root: Path, reads: dict[str, Read]) -> dict[str, Any]:
    """What each gives; an error of ours stands for itself."""
    results: dict[str, Any] = {}
    try:
        stock = StockRoom(root)
    except HopyardError as error:
        return dict.fromkeys(reads, error)
    with stock:
        for name, read in reads.items():
            try:
                results[name] = read(stock)
            except HopyardError as error:
                results[name] = error
    return results


def files_of(root: Path) -> list[str]:
    objects = root / ".hopyard"
    names = [path.relative_to(objects).as_posix() for path in sorted(objects.rglob("*")) if path.is_file()]
    return [name for name in names if name != ".gitignore"] + ["head.stock"]


def cases(intact: Path, draw: random.Random) -> Iterator[tuple[str, str, int]]:
    for name in files_of(intact):
        size = path_of(intact, name).stat().st_size
        yield name, "delete", 0
        if not name.startswith("files/"):  # of which every byte is hashed
            yield name, "enlarge", 0
        if size:
            yield name, "empty", 0
            yield name, "cut", draw.randrange(size)
            for _ in range(PLACES):
                yield name, "flip", draw.randrange(size)


def path_of(root: Path, name: str) -> Path:
    return root / name if name == "head.stock" else root / ".hopyard" / name


def harm(path: Path, how: str, at: int, draw: random.Random) -> None:
    data = path.read_bytes()
    path.chmod(0o644)
    if how == "enlarge":  # without a byte on the disk, and more than memory holds
        os.truncate(path, 1 << 38)
        return
    path.unlink()
    if how == "flip":
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
    elif how != "delete":
        path.write_bytes(data[: at if how == "cut" else 0])


def has_collected(root: Path) -> bool:
    try:
        with StockRoom(root) as stock:
            stock.gc()
    except HopyardError:
        return False
    return True


def write(stock: StockRoom) -> None:
    with stock.enable_write("later"):
        stock.data["x"][1] = np.ones(8)


def check(
    case: tuple[str, str, int],
    intact: Path,
    root: Path,
    reads: dict[str, Read],
    expected: dict[str, Any],
    draw: random.Random,
) -> None:
    name, how, at = case
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(intact, root)
    harm(path_of(root, name), how, at, draw)

    def same(before: dict[str, Any], now: dict[str, Any]) -> bool:
        return all(now[each] == before[each] for each in before)

    now = found(root, reads)
    for each, value in now.items():
        assert isinstance(value, HopyardError) or value == expected[each], each
    if (name, how) == ("head.stock", "delete"):
        # Then it is in no stockroom, as a folder is that never was one; making one finds what is there.
        StockRoom.init(root).close()
        assert same(expected, found(root, reads))
        return
    if goes_on := draw.random() < 0.5:
        changed = {"log", "names", "staged"}
        expected = {each: value for each, value in expected.items() if each not in changed}
        reads = {each: read for each, read in reads.items() if each not in changed}
        before = {each: value for each, value in expected.items() if now[each] == value}
        if has_collected(root):  # then nothing is gone; who refuses has made the index anew, and knows less
            assert same(before, found(root, reads))
        with suppress(HopyardError), StockRoom(root) as stock:
            write(stock)
        for each, value in found(root, reads).items():
            assert isinstance(value, HopyardError) or value == expected[each], each
    report = StockRoom.verify_in(root)
    if name.startswith(REBUILT) or (goes_on and report.ok):
        assert report.ok
    elif name.startswith(HARMLESS) and not report.problems:
        assert same(expected, now)
    else:
        assert report.problems
        report = StockRoom.verify_in(root, repair_from=intact)
        if name.startswith("stage/"):  # which nobody else has: what was staged before it stays
            with StockRoom(root) as stock:
                is_first = name.endswith("000000000001")
                assert stock.status().staged == ([] if is_first else [("experiment/before", "added")])
            reads = {each: read for each, read in reads.items() if each != "staged"}
            expected = {each: expected[each] for each in reads}
        elif name.startswith("tombstones/") and how == "delete":  # which is for the owner to accept
            with StockRoom(root) as stock:
                stock.fetch(intact, accept_purges=True)
        else:
            assert report.ok, str(report)
    assert same(expected, found(root, reads))
    assert not StockRoom.verify_in(root).problems


def test_whatever_is_damaged_is_told_and_repaired(intact: Path, tmp_path: Path) -> None:
    draw = random.Random(11)
    chosen = sample("damage", cases(intact, draw), quick=6, ci=18)
    with StockRoom(intact) as stock:
        reads = reads_of(stock)
    expected = found(intact, reads)
    for case in chosen:
        try:
            check(case, intact, tmp_path / "damaged", reads, expected, draw)
        except BaseException as error:
            error.add_note(f"the case was {case}")
            raise


def cloned(intact: Path, folder: Path) -> tuple[Path, dict[str, Read]]:
    """A clone that has read, and so has here, all data; and the reads. Its remote is a folder beside it."""
    shutil.copytree(intact, folder / "source")
    with StockRoom(folder / "source") as stock:
        stock.push(folder / "remote")
    shutil.rmtree(folder / "source")
    with StockRoom.clone(folder / "remote", folder / "clone", accept_purges=True) as clone:
        reads = {name: read for name, read in reads_of(clone).items() if name not in ("names", "staged")}
        for read in reads.values():
            read(clone)
    return folder / "clone", reads


def reading(root: Path, reads: dict[str, Read]) -> dict[str, Any]:
    with StockRoom(root, fetch="never") as stock:
        return {name: read(stock) for name, read in reads.items()}


@pytest.mark.parametrize("is_read", [True, False], ids=["read before", "found by verify"])
@pytest.mark.parametrize("how", ["delete", "cut", "flip"])
def test_data_that_a_clone_had_come_back_by_a_repair(
    intact: Path, tmp_path: Path, how: str, is_read: bool
) -> None:
    draw = random.Random(12)
    clone, reads = cloned(intact, tmp_path)
    expected = reading(clone, reads)
    elsewhere = StockRoom.verify_in(clone).elsewhere
    packfiles = sorted(path.name for path in (clone / ".hopyard/packfiles").iterdir())
    for name in sample(f"{how} {is_read}", packfiles, quick=1, ci=1):
        work = tmp_path / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(clone, work)
        packfile = work / ".hopyard/packfiles" / name
        harm(packfile, how, draw.randrange(packfile.stat().st_size), draw)
        if is_read:
            found(work, reads)
        report = StockRoom.verify_in(work)
        assert not report.ok or (is_read and reading(work, reads) == expected)  # what was absent was fetched
        repaired = StockRoom.verify_in(work, repair_from=tmp_path / "remote")
        assert repaired.ok, str(repaired)
        assert repaired.elsewhere == elsewhere
        assert reading(work, reads) == expected
        with StockRoom(work, enable_write=True, fetch="never") as stock:
            stock.data["x"][1] = np.ones(8)
            stock.commit("goes on")


def test_data_that_were_never_here_are_no_damage_and_stay_away(intact: Path, tmp_path: Path) -> None:
    clone, _ = cloned(intact, tmp_path)
    partial = tmp_path / "partial"
    StockRoom.clone(tmp_path / "remote", partial, accept_purges=True).close()
    lost = [path for path in (clone / ".hopyard/packfiles").iterdir() if path.name.startswith("data-")]
    for path in lost:
        path.unlink()
    (clone / ".hopyard/index.sqlite").unlink()  # which alone knew that they were here
    for root in (partial, clone):
        report = StockRoom.verify_in(root, repair_from=tmp_path / "remote")
        assert not report.problems
        assert report.elsewhere > 0
        assert "only at a remote" in str(report)


@pytest.mark.parametrize("harmed", ["FORMAT", "refs/heads/main/000000000001", "a gap", "a short gap"])
def test_a_hostile_remote_is_refused_at_once(intact: Path, tmp_path: Path, harmed: str) -> None:
    (clone, _), remote = cloned(intact, tmp_path), tmp_path / "remote"
    entry = remote / "refs/heads/main/000000000001"
    if harmed.endswith("gap"):
        shutil.copy(entry, entry.with_name("999999999999" if harmed == "a gap" else "000000000003"))
    else:
        os.truncate(remote / harmed, 1 << 38)
    with pytest.raises(CorruptError):
        StockRoom.clone(remote, tmp_path / "another")
    with StockRoom(clone, enable_write=True) as stock:
        before = stock.head
        for call in (stock.fetch, stock.pull):
            with pytest.raises(CorruptError, match=r"numbers have no gaps|the largest"):
                call()
        assert stock.head == before
    report = StockRoom.verify_in(clone, remote=remote)
    assert not report.ok
    assert StockRoom.verify_in(clone).ok
