"""Somebody deletes packfiles between the writes of an open stockroom, which looks which packfiles there are only
then."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.long.stockroom.model import Content, content, copied
from tests.sampling import by_level, moments

from hopyard import StockRoom
from hopyard.errors import BusyError, ConflictError, NotFoundError, UsageError
from hopyard.stockroom.git import find
from hopyard.stockroom.history import stage
from hopyard.stockroom.maintenance import gc, purge
from hopyard.stockroom.session.opening import open_place
from hopyard.storage import LocalStore

_watched: dict[str, int] = {}  # folders, and how often they were listed


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("os.scandir", "os.listdir") and str(arguments[0]) in _watched:
        _watched[str(arguments[0])] += 1


sys.addaudithook(_hear)  # for good: none can be taken away


@contextmanager
def listings(stock: StockRoom) -> Iterator[Callable[[], int]]:
    """Tells how often the folder of packfiles was listed since it was last asked."""
    folder = str(packfiles(stock))

    def count() -> int:
        found, _watched[folder] = _watched[folder], 0
        return found

    _watched[folder] = 0
    try:
        yield count
    finally:
        del _watched[folder]


def packfiles(stock: StockRoom) -> Path:
    found = stock.local.store.path("packfiles")
    assert found is not None
    return found


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StockRoom]:
    with StockRoom.init(tmp_path / "stock", enable_write=True) as made:
        made.data["c"] = {number: np.full(8, number) for number in range(3)}
        made.commit("first")
        yield made


def write(stock: StockRoom, number: int) -> None:
    """Of each sort one: staged, committed, and in a block."""
    stock.model[f"m{number}"] = {"w": np.full(8, number)}
    stock.data["c"][number % 4] = np.full(8, -number)
    stock.commit(f"{number}")
    with stock.enable_write():
        stock.experiment["x"] = number


# Listings


def test_packfiles_are_listed_once_and_not_for_each_write(writer: StockRoom) -> None:
    write(writer, 1)
    with listings(writer) as listed:
        for number in range(2, 12):
            write(writer, number)
        assert listed() == 0
    with StockRoom(writer.place.root, enable_write=True) as other, listings(other) as listed:
        for number in range(12, 22):
            write(other, number)
        assert listed() == 2  # one look for what killed processes left


def test_packfiles_are_listed_again_after_each_collection(writer: StockRoom) -> None:
    write(writer, 1)
    with StockRoom(writer.place.root) as other, listings(writer) as listed:
        for number in range(2, 5):
            other.gc()
            listed()
            write(writer, number)
            assert listed() == 1
            write(writer, number + 10)
            assert listed() == 0
    assert writer.verify().ok


def test_without_a_mark_packfiles_are_listed_for_each_draft(
    writer: StockRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writer, 1)
    monkeypatch.setattr("fcntl.flock", refuse)  # as on file systems without locks
    with listings(writer) as listed:
        write(writer, 2)
        assert listed() >= 3


def refuse(*_: object) -> None:
    raise OSError(errno.ENOLCK, "no locks available")


# What is deleted by hand


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_block", [False, True])
def test_what_a_packfile_had_that_was_deleted_or_cut_off_by_hand_is_stored_again(
    writer: StockRoom, is_cut: bool, is_block: bool
) -> None:
    value = np.arange(50_000, dtype=np.float64)  # of a size that is looked up when it is added
    before = set(packfiles(writer).iterdir())
    writer.model["m"] = {"w": value, "b": value[:8]}
    writer.commit("m")
    writer.model["again"] = {"w": value, "b": value[:8]}  # this process has seen that the packfile has it
    writer.commit("again")
    for packfile in set(packfiles(writer).iterdir()) - before:
        if packfile.name.startswith("data-") and is_cut:
            os.truncate(packfile, packfile.stat().st_size - 8)
        elif packfile.name.startswith("data-"):
            packfile.unlink()
    if is_block:
        with writer.enable_write():
            writer.model["third"] = {"w": value, "b": value[:8]}
    else:
        writer.model["third"] = {"w": value, "b": value[:8]}
        writer.commit("third")
    with StockRoom(writer.place.root) as fresh:
        assert np.array_equal(fresh.model["third"]["w"], value)
        assert np.array_equal(fresh.model["third"]["b"], value[:8])


# Between any two steps


def sample(key: int, number: int) -> np.ndarray[Any, Any]:
    """Bytes that no other sample has."""
    return np.random.default_rng([key, number]).integers(0, 256, 24, np.uint8)


class Between:
    """A stockroom that writes; between any two of its looks at files another one may collect or purge."""

    def __init__(self, folder: Path, moments: list[tuple[int, str, int]], is_indexed_apart: bool) -> None:
        StockRoom.init(folder).close()
        self.place = find(folder)
        if is_indexed_apart:  # in memory, by each of them
            (folder / ".hopyard" / "index.sqlite").unlink(missing_ok=True)
            (folder / ".hopyard" / "index.sqlite").mkdir()
        self.other, _, _ = open_place(self.place, "never")
        self.moments, self.count, self.is_inside = list(moments), 0, False
        self.now: Content = {}
        self.commits: dict[str, Content] = {}
        self.gone: set[bytes] = set()
        self.given: dict[int, set[bytes]] = {}  # by key what was stored under it
        self.struck: set[int] = set()  # keys that were purged during a write
        step = self.step

        class Store(LocalStore):
            def _file(self, name: str, is_replaced: bool = False) -> str:
                step()
                return super()._file(name, is_replaced)

        self.Store = Store
        self.open(enable_write=True)

    def open(self, enable_write: bool) -> None:
        with patch("hopyard.stockroom.session.opening.LocalStore", self.Store):
            self.stock = StockRoom(self.place.root, enable_write=enable_write)

    def step(self) -> None:
        if self.is_inside or not self.moments or vars(stage._held).get("stages"):
            return
        self.count += 1
        gap, do, key = self.moments[0]
        if self.count < gap:
            return
        self.is_inside = True
        try:
            if do == "gc":
                gc(self.other, self.place, wait=0)
            else:
                purge(self.other, "c", key, "test", "Ada", self.place, wait=0)
                self.forget(key)
        except BusyError:
            return  # as soon as the writer lets go
        except NotFoundError:
            pass
        finally:
            self.is_inside = False
        del self.moments[0]
        self.count = 0

    def forget(self, key: int) -> None:
        for state in (self.now, *self.commits.values()):
            state.get("data/c", {}).pop(key, None)
        self.gone |= self.given.pop(key, set())
        self.struck.add(key)

    def write(self, what: str, number: int) -> None:
        stock = self.stock
        self.struck.clear()
        if what == "commit":
            with suppress(UsageError):  # nothing has changed, also where all that was staged was purged
                commit = stock.commit(f"{number}")
                self.commits[commit] = copied(self.now)
        elif what == "block":
            try:
                with stock.enable_write():
                    stock.experiment["x"] = number
                    stock.data["c"][number % 3] = sample(number % 3, number)
                    stock.model["m"] = {"w": np.full(number % 5, number % 2)}
            except ConflictError:  # what was staged under the same key has been purged meanwhile
                assert self.struck
                return
            self.wrote(number)
            self.now |= {"experiment/x": number, "model/m": {"w": [number % 2] * (number % 5)}}
            assert stock.head.commit is not None
            self.commits[stock.head.commit] = copied(self.now)
        elif what == "model":
            stock.model["m"] = {"w": np.full(number % 5, number % 2)}
            self.now["model/m"] = {"w": [number % 2] * (number % 5)}
        else:
            stock.data["c"][number % 3] = sample(number % 3, number)
            self.wrote(number)

    def wrote(self, number: int) -> None:
        data = sample(number % 3, number)
        if number % 3 in self.struck:  # before it was stored, or behind that
            with StockRoom(self.place.root, enable_write=True) as fresh:
                if number % 3 not in fresh.data["c"]:
                    self.gone.add(data.tobytes())
                    return
        self.now.setdefault("data/c", {})[number % 3] = data.tolist()
        self.given.setdefault(number % 3, set()).add(data.tobytes())

    def check(self) -> None:
        with StockRoom(self.place.root, enable_write=True) as fresh:
            assert content(fresh) == self.now
            for commit, state in self.commits.items():
                assert content(fresh.at(commit)) == state
            assert fresh.verify().ok
        stored = b"".join(path.read_bytes() for path in packfiles(self.stock).glob("*"))
        assert not [data for data in self.gone if data in stored]
        assert all(data in stored for data in self.shown())

    def shown(self) -> Iterator[bytes]:
        for state in self.commits.values():
            for value in state.get("data/c", {}).values():
                yield bytes(value)


_MOMENTS = st.tuples(st.integers(1, 30), st.sampled_from(["gc", "purge"]), st.integers(0, 2))


@given(
    st.lists(
        st.tuples(st.sampled_from(["sample", "sample", "model", "commit", "block"]), st.integers(0, 30)),
        min_size=6, max_size=by_level(10, 10, 16),
    ),
    st.lists(_MOMENTS, max_size=8),
    st.booleans(),
)  # fmt: skip
def test_nothing_that_is_committed_is_lost_and_nothing_purged_comes_back(
    tmp_path: Path,
    steps: list[tuple[str, int]],
    moments: list[tuple[int, str, int]],
    is_indexed_apart: bool,
) -> None:
    between = Between(tmp_path / str(len(list(tmp_path.iterdir()))), moments, is_indexed_apart)
    with between.stock:
        between.stock.data.create("c", dtype="uint8", shape=(24,))
        between.now["data/c"] = {}
        for at, (what, number) in enumerate(steps):
            between.write(what, 31 * at + number)
        between.moments.clear()
        between.check()


@pytest.mark.parametrize("is_indexed_apart", [False, True])
def test_a_purged_sample_does_not_come_back_with_its_neighbour(
    tmp_path: Path, is_indexed_apart: bool
) -> None:
    between = Between(tmp_path / "stock", [], is_indexed_apart)
    with between.stock as stock:
        stock.data.create("c", dtype="uint8", shape=(24,))
        for number in (3, 4, 5):
            between.write("sample", number)
        between.write("commit", 0)
        assert bytes(stock.data["c"][1]) in between.given[1]  # from a packfile that is deleted next
        purge(between.other, "c", 1, "test", "Ada", between.place)
        between.forget(1)
        for number in (6, 8):
            between.write("sample", number)
            between.write("commit", number)
        between.check()


def staged(between: Between) -> None:
    for number in (0, 1, 2):
        between.write("sample", number)


def cancelled(between: Between) -> None:
    """What is staged is what is committed: nothing is left to be committed."""
    staged(between)
    between.write("commit", 3)
    for number in (4, 1):
        between.write("sample", number)


def on_two_branches(between: Between) -> None:
    staged(between)
    between.write("commit", 3)
    between.stock.branch("dev")
    between.write("sample", 3)
    between.write("commit", 4)
    between.stock.switch("dev")
    between.now["data/c"][0] = sample(0, 0).tolist()
    between.write("sample", 4)
    between.write("commit", 5)


@pytest.mark.parametrize(
    ("begin", "write"),
    [
        *(
            (begin, what)
            for begin in (staged, cancelled)
            for what in ("commit", "block", "sample", "model", "block of a reader")
        ),
        (on_two_branches, "merge"),
        (on_two_branches, "revert"),
    ],
)
def test_a_purge_at_any_moment_of_a_write_leaves_no_byte_of_the_sample(
    tmp_path: Path, begin: Callable[[Between], None], write: str
) -> None:
    stride = 7 if begin is on_two_branches else 1  # merges look at many files
    later = (1 + at for at in moments(f"purge {begin.__name__} {write}", quick=4, ci=3))
    for at in itertools.chain([0], later):
        moment = 1 + stride * at
        between = Between(tmp_path / str(moment), [], False)
        with between.stock as stock:
            stock.data.create("c", dtype="uint8", shape=(24,))
            between.now["data/c"] = {}
            begin(between)
            if write == "block of a reader":
                between.open(enable_write=False)
            between.moments = [(moment, "purge", 1)]
            if write == "merge":
                between.now["data/c"][0] = sample(0, 3).tolist()
                stock.merge("main")
            elif write == "revert":
                between.now["data/c"][1] = sample(1, 1).tolist()
                with suppress(UsageError):  # nothing of it is left to be undone
                    stock.revert("HEAD")
            else:
                between.write(write.partition(" ")[0], 3)
            is_purged = not between.moments
            between.moments.clear()
            between.check()
        if not is_purged:
            break
    assert moment > 1


# Killed

_CALLS = ("pwrite", "ftruncate", "fsync", "unlink", "rename", "replace", "link")


def is_killed(at: int, collector: Callable[[], object]) -> bool:
    """Whether a process that collects has more calls of the system that change files than ``at``: it is killed before
    that one."""
    process = os.fork()
    if process == 0:
        left = [at]

        def killing(call: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*given: Any, **named: Any) -> Any:
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return call(*given, **named)

            return counted

        with suppress(BaseException):
            for name in _CALLS:
                setattr(os, name, killing(getattr(os, name)))
            collector()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize("is_indexed_apart", [False, True])
@pytest.mark.parametrize("do", ["gc", "purge"])
def test_a_collector_that_is_killed_at_any_call_leaves_a_writer_that_goes_on(
    tmp_path: Path, do: str, is_indexed_apart: bool
) -> None:
    between = Between(tmp_path / "stock", [], is_indexed_apart)
    with between.stock as stock:
        stock.data.create("c", dtype="uint8", shape=(24,))
        for number in range(6):
            between.write("block", number)

        def collect() -> None:
            repository, _, _ = open_place(between.place, "never")
            if do == "gc":
                gc(repository, between.place, wait=0)
            else:
                purge(repository, "c", 2, "test", "Ada", between.place, wait=0)

        number = 6
        for at in moments(f"collector {do} {is_indexed_apart}", quick=8, ci=8):
            if not is_killed(at, collect):
                break
            for what in ("model", "sample", "commit"):
                number += 2 if number % 3 == 1 else 1  # not the key that is purged
                between.write(what, number)
            with StockRoom(between.place.root, enable_write=True) as fresh:
                for each in fresh, stock, *map(fresh.at, list(between.commits)[-2:]):
                    for key in (0, 1):
                        assert bytes(each.data["c"][key]) in between.given[key]
        assert at > 20
        if do == "purge":
            between.forget(2)
        between.check()
