"""One StockRoom object in several threads, asyncio tasks and forked processes: nothing is lost without an error."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard import StockRoom
from hopyard.errors import HopyardError, StorageError, UsageError
from hopyard.stockroom.history.locks import collecting

THREADS = 8


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockRoom]:
    with StockRoom.init(tmp_path / "stock") as stock:
        with stock.enable_write():
            stock.experiment["v"] = 0
            stock.data["x"] = {0: "first"}
        yield stock


@pytest.fixture
def staged(stock: StockRoom) -> Iterator[StockRoom]:
    with StockRoom(stock.place.root, enable_write=True) as writer:
        yield writer


def in_thread(function: Callable[[], Any], name: str = "other") -> Any:
    """What the function returns, or raises, in a thread of its own."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call, name=name)
    thread.start()
    thread.join(60)
    assert found, "it waits"
    return found[0]


def together(function: Callable[[int], None], count: int = THREADS) -> None:
    """Call the function with 0 to ``count`` - 1, in threads that begin at once."""
    barrier = threading.Barrier(count)

    def call(number: int) -> None:
        barrier.wait(60)
        function(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(call, range(count)))
    finally:
        sys.setswitchinterval(interval)


def shown(stock: StockRoom) -> dict[str, Any]:
    """All that is in a stockroom, as plain values."""
    found: dict[str, Any] = {f"experiment/{name}": value for name, value in stock.experiment.items()}
    for name, column in stock.data.items():
        found |= {f"data/{name}/{key}": np.asarray(value).tolist() for key, value in column.items()}
    return found | {f"model/{name}": value["w"].tolist() for name, value in stock.model.items()}


# Threads


def test_staged_writes_of_threads_are_all_there(stock: StockRoom, staged: StockRoom) -> None:
    staged.data.create("n", dtype="int64")
    staged.data.create("more", dtype="int64")

    def write(me: int) -> None:
        for step in range(4):
            staged.experiment[f"e{me}"] = step
            staged.data["n"][me * 100 + step] = me
            staged.data["more"].append(me)
            staged.data["more"].extend([me] * 3)
            staged.data[f"own{me}"] = np.full((step + 1, 2), me)
            staged.model[f"m{me}"] = {"w": np.full(3, me)}
            if step:
                del staged.data["n"][me * 100 + step - 1]

    together(write)
    expected: dict[str, Any] = {"experiment/v": 0, "data/x/0": "first"}
    for me in range(THREADS):
        expected[f"experiment/e{me}"] = 3
        expected[f"data/n/{me * 100 + 3}"] = me
        expected |= {f"data/own{me}/{row}": [me, me] for row in range(4)}
        expected[f"model/m{me}"] = [me] * 3
    for each in (staged, StockRoom(stock.place.root, enable_write=True)):
        found = shown(each)
        more = [found.pop(name) for name in list(found) if name.startswith("data/more/")]
        assert sorted(more) == sorted(list(range(THREADS)) * 16)
        assert found == expected
    staged.commit("all")
    assert shown(StockRoom(stock.place.root))["model/m3"] == [3, 3, 3]


def test_blocks_of_threads_are_whole_or_refused_at_once(stock: StockRoom) -> None:
    written: dict[str, Any] = {}
    refused: list[str] = []

    def write(me: int) -> None:
        for step in range(20):
            try:
                with stock.enable_write():
                    stock.experiment[f"a{me}"] = step
                    if step % 5 == 4:
                        raise KeyError
                    stock.data["x"][me] = str(step)
            except UsageError as error:
                refused.append(str(error))
            except KeyError:
                pass
            else:
                written[f"experiment/a{me}"] = step
                written[f"data/x/{me}"] = str(step)

    together(write)
    base = {"experiment/v": 0, "data/x/0": "first"}
    assert shown(stock) == base | written == shown(StockRoom(stock.place.root))
    assert all("has a block open (`with stock.enable_write():`)" in text for text in refused)


CALLS: dict[str, Callable[[StockRoom], Any]] = {
    "enable_write": lambda stock: stock.enable_write().__enter__(),
    "value": lambda stock: stock.experiment.__setitem__("v", 2),
    "delete": lambda stock: stock.experiment.__delitem__("v"),
    "model": lambda stock: stock.model.__setitem__("m", {"w": np.ones(2)}),
    "column": lambda stock: stock.data.__setitem__("y", [1]),
    "create": lambda stock: stock.data.create("y", dtype="int8"),
    "run": lambda stock: stock.run().__enter__().flush(),
    "commit": lambda stock: stock.commit("other"),
    "close": lambda stock: stock.close(),
    "switch": lambda stock: stock.switch("main"),
    "branch": lambda stock: stock.branch("new"),
    "merge": lambda stock: stock.merge("main"),
    "revert": lambda stock: stock.revert("HEAD"),
    "reset": lambda stock: stock.reset(),
    "gc": lambda stock: stock.gc(),
    "purge": lambda stock: stock.purge("x", 0),
    "pull": lambda stock: stock.pull("./nowhere"),
    "import": lambda stock: stock.import_from("images", str(stock.place.root)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["reading", "writing"])
def test_whoever_else_writes_while_a_block_is_open_is_refused(
    stock: StockRoom, staged: StockRoom, call: str, kind: str
) -> None:
    used = stock if kind == "reading" else staged
    with used.enable_write():
        used.experiment["v"] = 1
        error = in_thread(lambda: CALLS[call](used))
        assert isinstance(error, UsageError), error
        assert "the thread 'MainThread' has a block open (`with stock.enable_write():`) with this" in str(
            error
        )
        assert "and this is the thread 'other'" in str(error)
        assert f"StockRoom({str(used.place.root)!r})" in str(error)
    assert used.experiment["v"] == StockRoom(used.place.root).experiment["v"] == 1
    assert len(used.log()) == 2


def test_columns_and_shelves_taken_in_a_block_are_its_owners(stock: StockRoom) -> None:
    with stock.enable_write():
        column, shelf = stock.data["x"], stock.experiment
        for write in (
            lambda: column.__setitem__(1, "other"), lambda: column.append("other"), lambda: column.clear(),
            lambda: column.__delitem__(0), lambda: column.pop(0), lambda: column.replace(["a"]),
            lambda: column.extend(iter(["a"])), lambda: column.setdefault(5, "a"),
            lambda: shelf.__setitem__("v", 9), lambda: shelf.pop("v"),
        ):  # fmt: skip
            error = in_thread(write)
            assert isinstance(error, UsageError)
            assert "has a block open" in str(error)
        column[1] = "second"
        assert in_thread(lambda: dict(column)) == {0: "first", 1: "second"}  # each write whole, as it is made
    assert shown(stock) == {"experiment/v": 0, "data/x/0": "first", "data/x/1": "second"}


def test_others_read_what_was_there_before_the_block(stock: StockRoom, staged: StockRoom) -> None:
    staged.experiment["staged"] = 1
    staged.data["s"] = [1, 2]
    for used, extra in ((stock, {}), (staged, {"experiment/staged": 1, "data/s/0": 1, "data/s/1": 2})):
        before = {"experiment/v": 0, "data/x/0": "first"} | extra
        with pytest.raises(ZeroDivisionError), used.enable_write():  # noqa: PT012
            used.experiment["v"] = 1
            used.data["x"].append("second")
            used.data["y"] = [1, 2]
            used.model["m"] = {"w": np.ones(2)}
            assert in_thread(lambda used=used: shown(used)) == before
            assert in_thread(used.diff) is not None
            assert in_thread(used.status).staged == [("data/s", "added"), ("experiment/staged", "added")]
            raise ZeroDivisionError
        assert shown(used) == in_thread(lambda used=used: shown(used)) == before
    with staged.enable_write():
        staged.experiment["v"] = 2
        pool_reads = in_thread(lambda: staged.experiment["v"])
    assert (pool_reads, in_thread(lambda: staged.experiment["v"])) == (0, 2)


def test_readers_never_see_half_of_a_block(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.experiment["a"] = stock.experiment["b"] = 0
    torn: list[Any] = []
    is_over = threading.Event()

    def use(me: int) -> None:
        if me:
            while not is_over.is_set():
                shelf = stock.experiment
                a, b = shelf["a"], shelf["b"]
                if a != b:
                    torn.append((a, b))
            return
        try:
            for step in range(1, 12):
                with stock.enable_write():
                    stock.experiment["a"] = step
                    stock.experiment["b"] = step
        finally:
            is_over.set()

    together(use, 4)
    assert torn == []


def test_a_write_from_an_iterator_does_not_stop_readers_and_refuses_writers(staged: StockRoom) -> None:
    answers: list[Any] = []

    def samples() -> Iterator[str]:
        answers.append(in_thread(lambda: staged.data["x"][0]))
        answers.append(in_thread(lambda: staged.experiment.__setitem__("v", 3)))
        yield from ("a", "b")

    staged.data["x"].extend(samples())
    assert answers[0] == "first"
    assert "writes what an iterator gives to data/x with this StockRoom object" in str(answers[1])
    assert list(staged.data["x"].values()) == ["first", "a", "b"]
    staged.experiment["v"] = 4
    assert in_thread(lambda: staged.experiment.__setitem__("v", 5)) is None

    def writes_itself() -> Iterator[str]:
        staged.data["x"].append("mine")
        yield "lost?"

    with pytest.raises(
        UsageError, match="was written to by the iterator whose samples it was given, so nothing of"
    ):
        staged.data["x"].extend(writes_itself())
    assert list(staged.data["x"].values()) == ["first", "a", "b", "mine"]


def test_a_run_may_be_logged_to_by_threads_in_a_block(stock: StockRoom) -> None:
    with stock.enable_write(), stock.run() as run:
        run._next = 0.0  # long ago: each point would be stored at once
        together(lambda me: run.log(step=me, loss=float(me)), 4)
        assert "storing the run" in str(in_thread(run.flush))
    steps, _ = stock.experiment.runs()[0].metrics["loss"]
    assert sorted(steps) == [0, 1, 2, 3]


# Leaving


def test_nested_blocks_and_generators_of_one_owner_work(stock: StockRoom) -> None:
    def writes(name: str) -> Iterator[None]:
        with stock.enable_write():
            stock.experiment[name] = 1
            yield
            stock.experiment[name] = 2

    first, second = writes("a"), writes("b")
    next(first), next(second)
    assert list(first) == []  # the first is over, and waits for the second, which was opened in it
    assert len(stock.log()) == 1
    assert list(second) == []
    assert len(stock.log()) == 2
    assert (stock.experiment["a"], stock.experiment["b"]) == (2, 2)


def test_a_block_whose_outer_one_was_undone_says_so(stock: StockRoom) -> None:
    outer, inner = stock.enable_write(), stock.enable_write()
    outer.__enter__()
    stock.experiment["v"] = 1
    inner.__enter__()
    stock.experiment["v"] = 2
    outer.__exit__(KeyError, KeyError(), None)
    with pytest.raises(UsageError, match="around this one was undone by an exception, and this one with it"):
        inner.__exit__(None, None, None)
    assert shown(stock)["experiment/v"] == 0
    with stock.enable_write():
        stock.experiment["v"] = 3
    assert stock.experiment["v"] == 3


def test_a_generator_that_another_thread_collects_undoes_its_block(stock: StockRoom) -> None:
    def writes() -> Iterator[None]:
        with stock.enable_write():
            stock.experiment["v"] = 1
            yield

    for resumed in (False, True):
        generator = writes()
        next(generator)
        if resumed:
            error = in_thread(lambda generator=generator: list(generator))
            assert "was left by another thread or asyncio task than the one that opened it" in str(error)
        else:
            assert in_thread(generator.close) is None
        del generator
        assert stock.experiment["v"] == 0
        with stock.enable_write():
            assert stock.experiment["v"] == 0
            stock.experiment["w"] = 5
        assert shown(stock) == {"experiment/v": 0, "experiment/w": 5, "data/x/0": "first"}


def test_finalisers_in_other_threads_are_fine(stock: StockRoom) -> None:
    in_thread(lambda: stock.at("HEAD"))
    revision = [stock.at("HEAD")]
    with stock.enable_write():
        stock.experiment["v"] = 1
        in_thread(lambda: (revision.clear(), gc.collect()))
    assert stock.experiment["v"] == 1


# Tasks


def test_a_block_of_a_task_is_not_touched_by_another_task(stock: StockRoom) -> None:
    async def main() -> list[Any]:
        opened, tried = asyncio.Event(), asyncio.Event()

        async def writes() -> None:
            with stock.enable_write():
                stock.experiment["v"] = 1
                opened.set()
                await tried.wait()
                stock.experiment["w"] = 2

        async def fails() -> None:
            await opened.wait()
            try:
                with stock.enable_write():
                    stock.experiment["v"] = 7
                    raise AssertionError
            finally:
                tried.set()

        return await asyncio.gather(
            asyncio.create_task(writes(), name="writes"), asyncio.create_task(fails(), name="fails"),
            return_exceptions=True,
        )  # fmt: skip

    nothing, error = asyncio.run(main())
    assert nothing is None
    assert "stock.enable_write(): the task 'writes' of the thread 'MainThread' has a block open" in str(error)
    assert "this is the task 'fails' of the thread 'MainThread'" in str(error)
    assert shown(stock) == {"experiment/v": 1, "experiment/w": 2, "data/x/0": "first"}


def test_tasks_hammer_one_object(stock: StockRoom) -> None:
    written: dict[str, Any] = {}

    async def write(me: int) -> None:
        for step in range(10):
            try:
                with stock.enable_write():
                    stock.experiment[f"e{me}"] = step
                    await asyncio.sleep(0)
                    if step % 4 == 3:
                        raise KeyError
                    stock.experiment[f"f{me}"] = step
            except (UsageError, KeyError):
                await asyncio.sleep(0)
            else:
                written[f"experiment/e{me}"] = written[f"experiment/f{me}"] = step

    async def main() -> None:
        await asyncio.gather(*map(write, range(6)))

    asyncio.run(main())
    assert written
    assert shown(stock) == {"experiment/v": 0, "data/x/0": "first"} | written


def test_an_async_generator_that_the_loop_closes_undoes_its_block(stock: StockRoom) -> None:
    async def main() -> None:
        async def writes() -> Any:
            with stock.enable_write():
                stock.experiment["v"] = 1
                yield

        async for _ in writes():
            break

    asyncio.run(main())
    with stock.enable_write():
        assert stock.experiment["v"] == 0


# Forks


def forked(function: Callable[[], None]) -> None:
    """Run a function in a forked child, whose failure fails here."""
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def refused(write: Callable[[], Any]) -> None:
    with pytest.raises(
        UsageError, match=r"was opened for writing in the process \d+, from which this one \(\d+\) was"
    ):
        write()


def is_locked(stock: StockRoom) -> bool:
    """Whether the collector is kept out, as another process sees it."""
    try:
        with collecting(stock.local.store):
            return False
    except StorageError:
        return True


@pytest.mark.parametrize("ends", ["returns", "exits", "raises"])
def test_a_child_forked_in_a_block_changes_nothing(stock: StockRoom, ends: str) -> None:
    objects = sorted(path for path in stock.place.objects.rglob("*") if "readers" not in path.parts)
    with stock.enable_write() as opened:
        stock.experiment["v"] = 1
        stock.data["x"] = [np.ones(3, np.float32)]
        stock.model["net"] = {"w": np.ones(3, np.float32)}
        column = stock.data["x"]
        assert is_locked(stock)
        child = os.fork()
        if not child:
            try:
                for write in (
                    lambda: opened.experiment.__setitem__("v", 2), lambda: column.append(np.zeros(3)),
                    lambda: stock.commit("child"), lambda: stock.enable_write().__enter__(),
                    lambda: stock.reset(), lambda: stock.model.__setitem__("m", {"w": 1}),
                ):  # fmt: skip
                    refused(write)
                assert stock.experiment["v"] == 0  # as others see it
                if ends == "returns":
                    block = stock._session.blocks[-1]
                    refused(lambda: stock._session.leave_block(block, None))
                else:
                    try:
                        with stock, pytest.raises(SystemExit if ends == "exits" else KeyError):
                            raise SystemExit if ends == "exits" else KeyError
                    finally:
                        stock._session.leave_block(stock._session.blocks[-1], KeyError())
                stock.close()
                del opened, column
                stock._session.draft = None
                gc.collect()
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert is_locked(stock)  # still: what was added is not published yet
        assert (
            sorted(path for path in stock.place.objects.rglob("*") if "readers" not in path.parts) == objects
        )
        stock.experiment["w"] = 3
    assert (stock.experiment["v"], stock.experiment["w"], len(stock.data["x"])) == (1, 3, 1)
    assert len(StockRoom(stock.place.root).log()) == 2


def test_a_child_that_unwinds_out_of_the_block_changes_nothing(tmp_path: Path) -> None:
    """As a script's: ``sys.exit`` in the child leaves both ``with`` blocks."""
    code = f"""
import os, sys
from hopyard import StockRoom
with StockRoom.init({str(tmp_path)!r}) as stock:
    with stock.enable_write():
        stock.experiment["v"] = 1
        child = os.fork()
        if not child:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        stock.experiment["w"] = 2
    assert len(stock.log()) == 1
    assert dict(stock.experiment) == {{"v": 1, "w": 2}}
"""
    command = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_forked_child_of_a_staged_writer_writes_nothing(staged: StockRoom) -> None:
    staged.experiment["v"] = 1
    column = staged.data["x"]

    def child() -> None:
        refused(lambda: staged.experiment.__setitem__("v", 2))
        refused(lambda: column.append("child"))
        refused(lambda: staged.commit("child"))
        refused(staged.reset)
        assert staged.experiment["v"] == 1
        own = StockRoom(staged.place.root, enable_write=True)
        own.experiment["own"] = 1
        own.close()
        staged.close()

    forked(child)
    staged.experiment["w"] = 2
    assert dict(StockRoom(staged.place.root, enable_write=True).experiment) == {"own": 1, "v": 1, "w": 2}
    staged.commit("mine")
    assert dict(staged.experiment)["w"] == 2


def test_a_forked_child_of_a_reader_may_write(stock: StockRoom) -> None:
    def child() -> None:
        with stock.enable_write():
            stock.experiment["v"] = 1

    forked(child)
    assert StockRoom(stock.place.root).experiment["v"] == 1


def test_forks_while_threads_write_lose_nothing(staged: StockRoom) -> None:
    def use(me: int) -> None:
        for step in range(3):
            if me == 0:
                child = os.fork()
                if not child:
                    try:
                        staged.experiment["v"] = -1
                    except HopyardError:
                        os._exit(0)
                    os._exit(1)
                assert os.waitpid(child, 0)[1] == 0
            else:
                staged.experiment[f"e{me}"] = step
                staged.data["x"][me] = str(step)

    together(use, 4)
    expected = {"experiment/v": 0, "data/x/0": "first"}
    for me in (1, 2, 3):
        expected |= {f"experiment/e{me}": 2, f"data/x/{me}": "2"}
    assert shown(staged) == expected == shown(StockRoom(staged.place.root, enable_write=True))
