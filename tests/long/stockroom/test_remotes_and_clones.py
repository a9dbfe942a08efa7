"""Push, pull, clone and fetch through what users call."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.long.stockroom.crashes import dying
from tests.long.stockroom.model import content

from hopyard import StockRoom
from hopyard.errors import BehindError, ConflictError, NotFoundError, StorageError, UsageError


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


def write(stock: StockRoom, key: int, number: int = 0) -> None:
    with stock.enable_write():
        if "x" not in stock.data:
            stock.data["x"] = {key: np.full(3, number)}
        else:
            stock.data["x"][key] = np.full(3, number)


def clone(remote: Path, name: str, **settings: str) -> StockRoom:
    return StockRoom.clone(remote, remote.parent / name, **settings)  # type: ignore[arg-type]


def test_every_commit_arrives_whatever_the_shape_of_history(stock: StockRoom, remote: Path) -> None:
    """main merges q, feature merges main: Hangar left out one commit of such a history."""
    write(stock, 0)
    stock.branch("q")
    stock.branch("feature")
    for name in ("q", "main", "feature"):
        stock.switch(name)
        write(stock, len(name))
    stock.switch("main")
    stock.merge("q")
    stock.push(remote)
    stock.switch("feature")
    stock.merge("main")
    stock.push(remote)
    with clone(remote, "copy") as copy:
        copy.switch("feature")
        assert copy.log() == stock.log()
        assert len(copy.log()) == 6
        for commit in stock.log():
            assert content(copy.at(commit.digest)) == content(stock.at(commit.digest))


def test_a_first_pull_that_is_killed_anywhere_leaves_what_can_be_read(
    stock: StockRoom, remote: Path, tmp_path: Path
) -> None:
    write(stock, 0)
    stock.push(remote)
    at, died = 0, True
    while died:
        folder = tmp_path / f"copy {at}"
        StockRoom.init(folder).close()
        with dying(at) as counter, StockRoom(folder) as copy:
            copy.pull(remote)
        died, at = counter.is_dead, at + 1
        gc.collect()
        with StockRoom(folder) as copy:
            assert content(copy) in ({}, content(stock))
    assert at > 4


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_status_counts_what_each_side_has_more(
    stock: StockRoom, tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    address = str(tmp_path / "remote") if where == "folder" else request.getfixturevalue("s3_url")

    def counts(room: StockRoom) -> tuple[int, int]:
        (counted,) = room.status().remotes.values()
        with StockRoom(room.place.root) as opened:
            assert opened.status().remotes == {"origin/main": counted}
        return counted

    write(stock, 0)
    stock.push(address)
    with StockRoom.clone(address, tmp_path / "copy") as copy:
        assert counts(stock) == counts(copy) == (0, 0)
        write(copy, 1)
        write(copy, 2)
        assert counts(copy) == (2, 0)
        copy.push()
        assert counts(copy) == (0, 0)
        assert counts(stock) == (0, 0)  # nothing has been asked for since
        assert stock.pull().how == "forward"
        assert counts(stock) == (0, 0)
        write(stock, 3)
        write(copy, 4)
        copy.push()
        stock.fetch()
        assert counts(stock) == (1, 1)
        stock.merge("origin/main")
        assert counts(stock) == (2, 0)
        stock.push()
        assert counts(stock) == (0, 0)
        copy.fetch(address)
        assert counts(copy) == (0, 2)
        assert copy.merge("origin/main").how == "fast-forward"
        assert counts(copy) == (0, 0)


def test_a_push_without_news_does_nothing(stock: StockRoom, remote: Path) -> None:
    write(stock, 0)
    assert stock.push(remote).objects > 0
    files = {path: path.stat().st_mtime_ns for path in remote.rglob("*") if path.is_file()}
    done = stock.push()
    assert (done.objects, done.branches) == (0, {})
    stock.fetch()
    assert {path: path.stat().st_mtime_ns for path in remote.rglob("*") if path.is_file()} == files


def test_a_push_that_is_behind_or_apart_fails_and_changes_nothing(stock: StockRoom, remote: Path) -> None:
    write(stock, 0)
    stock.push(remote)
    with clone(remote, "copy") as copy:
        write(copy, 1)
        copy.push()
        write(stock, 2)
        with pytest.raises(BehindError, match="pull"):
            stock.push()
        stock.pull()
        stock.push()
        assert sorted(content(stock)["data/x"]) == [0, 1, 2]
        write(copy, 2, 5)
        with pytest.raises(ConflictError, match="both added"):
            copy.pull()
        assert sorted(content(copy)["data/x"]) == [0, 1, 2]
        assert content(copy)["data/x"][2] == [5, 5, 5]
        copy.pull(resolve="theirs")
        assert content(copy)["data/x"][2] == [0, 0, 0]


def test_merging_reads_what_only_the_remote_has_also_at_the_first_pull(
    stock: StockRoom, remote: Path, tmp_path: Path
) -> None:
    with StockRoom.init(tmp_path / "other") as other:
        write(other, 1)
        write(other, 0, 5)
        other.push(remote)
    write(stock, 0, 5)
    write(stock, 2)
    stock.pull(remote)
    assert sorted(content(stock)["data/x"]) == [0, 1, 2]


def test_what_is_not_here_comes_or_is_an_error_that_says_how(stock: StockRoom, remote: Path) -> None:
    with stock.enable_write():
        stock.data["x"] = np.random.default_rng(0).random((3000, 100))
        stock.data["y"] = np.arange(10)
        stock.model["net"] = {"w": np.ones(3)}
    stock.push(remote)
    with clone(remote, "never", fetch="never") as copy:
        assert (len(copy.data["x"]), copy.data["x"].shape) == (3000, (100,))
        for read in (lambda: copy.data["x"][0], lambda: copy.model["net"]["w"].sum()):
            with pytest.raises(NotFoundError, match="fetch"):
                read()
        copy.fetch(data=["x"], keys=range(10))
        assert np.array_equal(copy.data["x"][9], stock.data["x"][9])
        with pytest.raises(NotFoundError, match="fetch"):
            copy.data["x"][2999]
        copy.fetch(models=True, revision="main")
        assert copy.model["net"]["w"].sum() == 3
        with pytest.raises(NotFoundError, match="y"):
            copy.fetch(data=["yy"])
    with clone(remote, "auto") as copy:
        assert content(copy)["data/y"] == content(stock)["data/y"]
        assert np.array_equal(copy.data["x"][...], stock.data["x"][...])


def test_a_partial_clone_pushes_to_a_second_remote(stock: StockRoom, remote: Path) -> None:
    with stock.enable_write():
        stock.data["x"] = np.arange(3000).reshape(1000, 3)
    stock.push(remote)
    with clone(remote, "copy", fetch="never") as copy:
        with copy.enable_write():
            copy.data["y"] = np.arange(5)
        copy.push(remote.parent / "second")
    with clone(remote.parent / "second", "third") as third:
        assert len(content(third)["data/x"]) == 1000
        assert content(third)["data/y"][4] == 4


def test_merging_needs_no_data(stock: StockRoom, remote: Path) -> None:
    with stock.enable_write():
        stock.data["a"] = np.arange(10)
        stock.data["b"] = np.arange(10)
    stock.push(remote)
    with clone(remote, "copy", fetch="never") as copy:
        copy.branch("dev")
        with copy.enable_write():
            copy.data["c"] = np.arange(3)
        copy.switch("dev")
        with copy.enable_write():
            copy.experiment["lr"] = 1
        copy.merge("main")
        assert sorted(copy.data) == ["a", "b", "c"]


@pytest.mark.parametrize("beside_git", [False, True])
def test_the_folder_of_a_stockroom_is_an_address(tmp_path: Path, beside_git: bool) -> None:
    """Another's folder, for instance on a disk that is shared: a push moves its branch, but not what it stands on."""
    theirs = tmp_path / "theirs"
    if beside_git:
        subprocess.run(["git", "init", "-q", theirs], check=True)
    with StockRoom.init(theirs) as stock:
        write(stock, 0)
        with clone(theirs, "mine") as mine:
            write(mine, 1)
            mine.push()
            assert mine.remotes() == {"origin": str(stock.local.store.url)}
        assert list(stock.data["x"].keys()) == [0]
    with StockRoom(theirs) as stock:
        assert list(stock.data["x"].keys()) == [0]
        stock.switch("main")
        assert list(stock.data["x"].keys()) == [0, 1]
        assert stock.verify().problems == []


def test_addresses_that_lead_nowhere(stock: StockRoom, remote: Path) -> None:
    write(stock, 0)
    with pytest.raises(NotFoundError, match="no remote"):
        stock.push()
    with pytest.raises(NotFoundError, match="no remote"):
        stock.push("orign")
    with pytest.raises((StorageError, UsageError)):
        StockRoom.clone(remote, remote.parent / "copy")
    assert not (remote.parent / "copy").exists()
    stock.push(remote)
    with pytest.raises(UsageError, match="already"):
        StockRoom.clone(remote, stock.place.root)


def test_a_remote_that_is_gone_is_named_and_not_made_anew(stock: StockRoom, remote: Path) -> None:
    for seed, name in enumerate("xy"):  # in a packfile each
        with stock.enable_write():
            stock.data[name] = np.random.default_rng(seed).random((3000, 100))
            stock.model[name] = {"w": np.full(3, len(stock.data))}
        stock.push(remote)
    with clone(remote, "copy") as copy:
        remote.rename(remote.parent / "away")
        with pytest.raises(NotFoundError, match=rf"no stockroom at the remote {remote} any more. See that"):
            copy.model["x"]
        (remote.parent / "away").rename(remote)
        assert np.array_equal(
            copy.data["x"][0], stock.data["x"][0]
        )  # what the remote holds is remembered now
        remote.rename(remote.parent / "away")
        for read in (lambda: copy.data["y"][2999], lambda: copy.model["y"]):
            with pytest.raises(
                NotFoundError, match=rf"no stockroom at the remote {remote} any more. See that"
            ):
                read()
        for each in (stock, copy):
            each.tag("v1")
            with pytest.raises(
                NotFoundError, match=r"any more, but there was: .*Nothing was sent.*forget origin"
            ):
                each.push(tags=["v1"])
        assert not remote.exists()
        (remote.parent / "away").rename(remote)
        assert np.array_equal(copy.data["y"][...], stock.data["y"][...])
    remote.rename(remote.parent / "away")
    stock.forget_remote("origin")
    assert stock.push(remote).objects > 5
    with clone(remote, "again") as again:
        assert content(again).keys() == content(stock).keys()


_PUSH = """
import sys
import numpy as np
from hopyard import StockRoom
from hopyard.errors import BehindError
folder, remote, me = sys.argv[1:]
with StockRoom.clone(remote, folder) as stock:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(5):
        with stock.enable_write():
            stock.data["x"][10 * int(me) + number] = np.zeros(3, int)
        while True:
            try:
                stock.push()
                break
            except BehindError:
                stock.pull()
"""


def test_processes_that_push_at_once_lose_nothing(stock: StockRoom, remote: Path) -> None:
    write(stock, 0)
    stock.push(remote)
    command = [sys.executable, "-W", "error", "-c", _PUSH]
    writers = [
        subprocess.Popen(
            [*command, str(remote.parent / f"clone-{me}"), str(remote), str(me)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for me in (1, 2, 3)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    for writer in writers:
        writer.communicate("\n", timeout=100)
        assert writer.returncode == 0
    stock.pull()
    assert sorted(stock.data["x"]) == [0, *(10 * me + number for me in (1, 2, 3) for number in range(5))]


def test_a_damaged_remote_spreads_nothing(stock: StockRoom, remote: Path) -> None:
    with stock.enable_write():
        stock.data["x"] = np.arange(1000)
    stock.push(remote)
    damage((remote / "packfiles").glob("data-*").__next__())
    with clone(remote, "copy") as copy:
        with pytest.raises(StorageError):
            copy.data["x"][...]
        assert not list((copy.place.objects / "packfiles").glob("data-*"))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
