"""Purges while others read, write, copy and accept purges, in this process and in others."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import sample
from tests.stockroom.maintenance.histories import holds
from tests.stockroom.remotes.repositories import at

from hopyard import StockRoom
from hopyard.errors import BusyError, PurgedError, UsageError
from hopyard.stockroom.maintenance import purge
from hopyard.stockroom.remotes import (
    fetch,
)


def purged_elsewhere(path: Path, key: int) -> None:
    """Purge a sample in a process of its own."""
    code = f"from hopyard import StockRoom; StockRoom({str(path)!r}).purge('c', {key}, 'asked')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("is_writer", "has_read", "has_staged"),
    sample("purged elsewhere", itertools.product([True, False], repeat=3), quick=2, ci=4),
)
def test_what_another_process_purged_does_not_come_back_with_its_neighbour(
    tmp_path: Path, is_writer: bool, has_read: bool, has_staged: bool
) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
    with StockRoom(tmp_path, enable_write=is_writer) as stock:
        if has_read:
            assert stock.data["c"][3] == "SECRET3"
        if has_staged:
            with contextlib.nullcontext() if is_writer else stock.enable_write():
                stock.data["c"][4] = "staged before"
        for key in (2, 1):  # the second one finds a process that has moved on from the first
            purged_elsewhere(tmp_path, key)
            with stock.enable_write():
                stock.data["c"][3] = f"new three {key}"
            assert key not in stock.data["c"]
            assert holds(tmp_path, f"SECRET{key}".encode()) == []
    with StockRoom(tmp_path) as stock:
        four = "staged before" if has_staged else "SECRET4"
        assert dict(stock.data["c"].items()) == {0: "SECRET0", 3: "new three 1", 4: four}
        assert stock.verify().ok


def test_a_reader_that_stays_open_sees_nothing_of_what_was_purged_when_it_looks_again(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
    with StockRoom(tmp_path) as stock:
        assert stock.data["c"][2] == "SECRET2"
        purged_elsewhere(tmp_path, 2)
        with pytest.raises(PurgedError, match="asked"):
            stock.data["c"][2]
        assert stock.data["c"][3] == "SECRET3"


@pytest.mark.parametrize("is_block", [True, False])
def test_a_column_that_is_open_for_writing_counts_what_its_keys_are_after_each_purge_of_others(
    tmp_path: Path, is_block: bool
) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.data["c"] = {key: f"SECRET{key}" for key in range(8)}
    with StockRoom(tmp_path, enable_write=not is_block) as stock, StockRoom(tmp_path) as other:
        with stock.enable_write() if is_block else contextlib.nullcontext():
            samples = stock.data["c"]
            assert (len(samples), list(samples)) == (8, [*range(8)])
            other.purge("c", 2, "asked")
            assert (len(samples), list(samples)) == (7, [0, 1, 3, 4, 5, 6, 7])
            other.purge("c", 3, "asked")  # of the same fragment
            samples.update({4: "four", 9: "nine"})
            assert (len(samples), list(samples)) == (7, [0, 1, 4, 5, 6, 7, 9])
            other.purge("c", [0, 5], "asked")
            del samples[1]
            assert (len(samples), list(samples)) == (4, [4, 6, 7, 9])
            samples[0] = "zero"
            assert (len(samples), list(samples)) == (5, [0, 4, 6, 7, 9])
        if not is_block:
            other.purge("c", 4, "asked")  # of what is staged, too
            assert (len(stock.data["c"]), list(stock.data["c"])) == (4, [0, 6, 7, 9])
            stock.commit("the rest")
        assert stock.verify().ok


def test_what_another_process_purged_does_not_come_back_by_a_merge_or_a_copy(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
    with StockRoom(tmp_path) as stock:
        stock.branch("dev")
        with stock.enable_write():
            stock.data["c"][4] = "four"
        stock.switch("dev")
        with stock.enable_write():
            stock.data["c"][0] = "zero"
            assert stock.data["c"][2] == "SECRET2"
        purged_elsewhere(tmp_path, 2)
        stock.merge("main")
        with stock.enable_write():
            stock.data["copy"] = dict(stock.data["c"].items())
        assert stock.data["copy"][[0, 4]] == ["zero", "four"]
        assert holds(tmp_path, b"SECRET2") == []
        assert stock.verify().ok


def purged_and_pushed(folder: Path) -> None:
    """``own`` has purged the sample 2 and pushed that to ``remote``; ``clone`` has all as it was, and knows nothing."""
    with StockRoom.init(folder / "own") as own:
        with own.enable_write("samples"):
            own.data["c"] = {key: f"SECRET{key}" for key in range(5)}
        own.push(folder / "remote")
        with StockRoom.clone(folder / "remote", folder / "clone") as clone:
            clone.fetch(data=True)
        own.purge("c", 2, "asked")
        own.push()
    assert holds(folder / "remote", b"SECRET2") == []
    assert holds(folder / "clone", b"SECRET2")


_ACCEPT = """
import sys
from pathlib import Path
from hopyard import StockRoom
from hopyard.stockroom.remotes import fetch
from tests.stockroom.remotes.repositories import at
def tell(text):
    print(text, flush=True)
folder = Path(sys.argv[1])
with StockRoom(folder / "clone") as clone:
    tell(str(fetch(clone.local, at(folder / "remote", "origin", index=False), accept_purges=True, tell=tell).purges))
"""


def accepting(folder: Path) -> subprocess.Popen[str]:
    """A process that accepts the purge in ``clone``; it says when it waits, and what was purged."""
    return subprocess.Popen(
        [sys.executable, "-c", _ACCEPT, str(folder)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip


MANY = {3: "new three"} | {key: f"new {key}" for key in range(10, 3000)}


@pytest.mark.parametrize("is_writer", [True, False])
@pytest.mark.parametrize("has_block", [True, False])
def test_a_purge_that_another_process_accepts_waits_for_who_has_read_its_neighbour(
    tmp_path: Path, is_writer: bool, has_block: bool
) -> None:
    purged_and_pushed(tmp_path)
    with StockRoom(tmp_path / "clone", enable_write=is_writer) as stock:
        lines = []

        def given() -> Any:
            """Samples, in whose midst another process comes."""
            for key in range(10, 40_000):
                if key == 39_999:
                    process.append(accepting(tmp_path))
                    assert process[0].stdout is not None
                    lines.append(process[0].stdout.readline())
                yield f"new {key}"

        process: list[subprocess.Popen[str]] = []
        with stock.enable_write() if has_block or not is_writer else contextlib.nullcontext():
            stock.data["c"].update(MANY)
            if has_block:
                process.append(accepting(tmp_path))
                assert process[0].stdout is not None
                lines.append(process[0].stdout.readline())
            else:
                stock.data["c"].extend(given())
        if is_writer and not has_block:
            stock.commit("staged")
    told, _ = process[0].communicate(timeout=60)
    assert (lines[0].split(" to ")[0], process[0].returncode) == ("waiting for those who write", 0)
    assert "purged here too: 1 sample of 'c' was purged" in told
    with StockRoom(tmp_path / "clone") as stock:
        stock.gc()  # of what the block wrote and replaced itself
        assert holds(tmp_path / "clone", b"SECRET2") == []
        assert (2 in stock.data["c"], stock.data["c"][3], stock.data["c"][1]) == (
            False,
            "new three",
            "SECRET1",
        )
        assert stock.verify().ok
        stock.push()
        assert holds(tmp_path / "remote", b"SECRET2") == []


@pytest.mark.parametrize("how", ["committed", "staged", "on another branch"])
@pytest.mark.parametrize("call", ["fetch", "pull"])
def test_what_was_copied_with_its_neighbour_before_is_purged_when_that_is_accepted(
    tmp_path: Path, how: str, call: str
) -> None:
    purged_and_pushed(tmp_path)
    with StockRoom(tmp_path / "clone", enable_write=True) as stock:
        if how == "on another branch":
            stock.branch("mine")
            stock.switch("mine")
        stock.data["c"].update(MANY)
        if how != "staged" or call == "pull":
            stock.commit("a neighbour")
        if how == "on another branch":
            stock.switch("main")
        purges = stock.fetch(accept_purges=True).purges if call == "fetch" else None
        if purges is None:
            purges = stock.pull(accept_purges=True).fetched.purges
        assert [line for line in purges.lines() if "purged here too: 1 sample of 'c'" in line]
        if how == "staged" and call == "fetch":
            stock.commit("a neighbour")
        if how == "on another branch":
            stock.switch("mine")
        assert (2 in stock.data["c"], stock.data["c"][3], len(stock.data["c"])) == (False, "new three", 2994)
        assert holds(tmp_path / "clone", b"SECRET2") == []
        with pytest.raises(PurgedError, match="asked"):
            stock.data["c"][2]
        assert stock.verify().ok


def test_another_sample_under_the_key_of_a_purged_one_stays_when_that_is_accepted(tmp_path: Path) -> None:
    purged_and_pushed(tmp_path)
    with StockRoom(tmp_path / "clone") as stock:
        with stock.enable_write("another"):
            stock.data["c"][2] = "not secret"
        assert stock.fetch(accept_purges=True).purges.accepted
        assert stock.data["c"][2] == "not secret"
        with pytest.raises(PurgedError):
            stock.at("HEAD~1").data["c"][2]
        assert stock.verify().ok


def test_a_purge_says_what_to_wait_for_while_a_block_over_staged_writes_is_open(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write("samples"):
        stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
    with StockRoom(tmp_path, enable_write=True) as writer, StockRoom(tmp_path) as stock:
        writer.data["c"][1] = "staged"
        with writer.enable_write("block"):
            writer.data["c"][3] = "new"
            with pytest.raises(BusyError) as caught:
                purge(stock.local, "c", 2, "asked", "Ada", stock.place, wait=0)
            assert str(caught.value) == (
                f"{stock.local.store.url} is being written to, in this process or another one, so nothing can be "
                "deleted from it now: what is written might need it. Try again when the blocks (`with "
                "stock.enable_write():`), imports and pushes that write there have ended. 0 seconds were waited."
            )
            assert writer.data["c"][2] == "SECRET2"
        purge(stock.local, "c", 2, "asked", "Ada", stock.place, wait=0)
    assert holds(tmp_path, b"SECRET2") == []


def test_a_purge_is_not_accepted_while_another_handle_has_read_its_neighbour(tmp_path: Path) -> None:
    purged_and_pushed(tmp_path)
    remote = at(tmp_path / "remote", "origin", index=False)
    with StockRoom(tmp_path / "clone") as stock, StockRoom(tmp_path / "clone") as other:
        with stock.enable_write():
            stock.data["c"].update(MANY)
            text = r"written to.*0 seconds were waited\. What the remote has is here, but nothing was purged: fetch"
            with pytest.raises(BusyError, match=text):
                fetch(other.local, remote, accept_purges=True, wait=0)
            for call in (stock.fetch, stock.pull):
                with pytest.raises(UsageError, match=r"was called within `with stock.enable_write\(\):`"):
                    call(accept_purges=True)
            assert stock.data["c"][2] == "SECRET2"
        assert fetch(other.local, remote, accept_purges=True, wait=0).purges.accepted
        assert holds(tmp_path / "clone", b"SECRET2") == []
        for each in (stock, other):
            assert (2 in each.data["c"], each.data["c"][1]) == (False, "SECRET1")


def test_a_purge_is_not_pushed_to_where_somebody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purged_and_pushed(tmp_path)
    monkeypatch.setattr("hopyard.stockroom.remotes.purges.WAIT", 0)
    with StockRoom(tmp_path / "own") as own, StockRoom(tmp_path / "clone") as stock:
        stock.branch("mine")
        stock.switch("mine")
        with stock.enable_write():
            stock.data["c"].update(MANY)
            with pytest.raises(BusyError, match=r"written to.*so nothing was sent: push again then\."):
                own.push(tmp_path / "clone")
            assert stock.data["c"][2] == "SECRET2"
        own.push(tmp_path / "clone")
    with StockRoom(tmp_path / "clone") as stock:
        assert stock.data["c"][3] == "new three"
        with pytest.raises(PurgedError, match="asked"):
            stock.at("main").data["c"][2]
        assert stock.verify().ok
