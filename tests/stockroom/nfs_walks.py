"""A stockroom that two machines write, on whichever the subclass gives: the model's directory, or the kernel's."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from tests.nfs_facts import Clients

from hopyard.stockroom import StockRoom

_AT_ONCE = 6

# Another process, which is given what lets its machine be at work. It says after each block that it has ended.
_BLOCKS = """
import pickle, sys
from hopyard.stockroom import StockRoom
at_work = pickle.load(sys.stdin.buffer)
first, count = map(int, sys.argv[1:])
with at_work() as root:
    print("ready", flush=True)
    sys.stdin.buffer.read(1)
    for number in range(first, first + count):
        stock = StockRoom(root / "room")
        with stock.enable_write():
            stock.data["samples"].update({number: number})
        stock.close()
        print(number, flush=True)
"""


def _opened(root: Path) -> StockRoom:
    return StockRoom(root / "room")


class StockroomOnNfs:
    """Inherit, and define the fixture ``clients``."""

    @pytest.fixture
    def clients(self) -> Clients:
        raise NotImplementedError

    @pytest.fixture(params=[False, True], ids=["alone", "beside git"])
    def room(self, clients: Clients, request: pytest.FixtureRequest) -> Clients:
        """The stockroom ``room``, which the first machine has made and the second has looked at."""
        with clients.b() as root:
            assert not (root / "room" / "head.stock").exists()
        with clients.a() as root:
            if request.param:
                subprocess.run(["git", "init", "-q", "-b", "main", str(root / "room")], check=True)
            with StockRoom.init(root / "room") as stock, stock.enable_write():
                stock.data["samples"] = {-1: -1}
        return clients

    def test_what_machines_commit_in_turns_is_all_there(self, room: Clients) -> None:
        for number in range(20):
            with (room.b if number % 2 else room.a)() as root, _opened(root) as stock:
                with stock.enable_write():
                    stock.data["samples"].update({number: number})
                assert stock.status().branch == "main"
        self._check(room, 20)

    def test_also_by_stockrooms_that_stay_open(self, room: Clients) -> None:
        for number, (at_work, stock) in zip(range(20), self._in_turns(room), strict=False):
            with at_work(), stock.enable_write():
                stock.data["samples"].update({number: number})
        self._check(room, 20)

    def test_what_machines_stage_in_turns_is_committed_by_either(self, room: Clients) -> None:
        with room.a() as root:
            a = StockRoom(root / "room", enable_write=True)
        with room.b() as root:
            b = StockRoom(root / "room", enable_write=True)
        for number in range(20):
            at_work, stock = ((room.a, a), (room.b, b))[number % 2]
            with at_work():
                stock.data["samples"].update({number: number})
                if number % 7 == 6:
                    stock.commit("what is staged")
        with room.b():
            b.commit("the rest")
            b.close()
        with room.a():
            a.close()
        self._check(room, 20)

    def test_a_branch_and_a_switch_of_the_other_machine_are_seen_when_something_is_written(
        self, room: Clients
    ) -> None:
        with room.b() as root:
            b = _opened(root)
            assert b.status().branch == "main"
        with room.a() as root, _opened(root) as a:
            a.branch("other")
            a.switch("other")
        with room.b() as root, b.enable_write():
            b.data["samples"].update({0: 0})
        with room.b():
            assert b.status().branch == "other"
            b.switch("main")
            assert list(b.data["samples"].keys()) == [-1]
            b.switch("other")
            b.close()
        self._check(room, 1)

    def test_what_the_other_machine_has_collected_is_stored_again(self, room: Clients) -> None:
        big = "x" * 100_000
        with room.a() as root:
            a = StockRoom(root / "room", enable_write=True)
            a.data["texts"] = {0: big}
            a.reset()
        with room.b() as root, _opened(root) as b:
            b.gc()
        with room.a():
            a.data["texts"] = {0: big}
            a.commit("again")
            a.close()
        with room.b() as root, _opened(root) as b:
            assert b.data["texts"][0] == big
            assert b.verify().problems == []

    def test_what_the_other_machine_reads_is_not_collected(self, room: Clients) -> None:
        with room.b() as root, _opened(root) as b:
            b.gc()  # nobody reads yet
            with b.enable_write():
                b.data["texts"] = {0: "x" * 100_000}
        with room.a() as root:
            a = _opened(root)
        with room.b() as root, StockRoom(root / "room", enable_write=True) as b:
            b.reset("HEAD~1")
            b.gc()
        with room.a():
            assert a.data["texts"][0] == "x" * 100_000
            a.close()

    def test_what_machines_commit_at_once_is_all_there(self, room: Clients) -> None:
        processes = []
        for number, at_work in enumerate((room.a, room.b)):
            process = subprocess.Popen(
                [sys.executable, "-c", _BLOCKS, str(number * _AT_ONCE), str(_AT_ONCE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(pickle.dumps(at_work))
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n"
            processes.append(process)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        for process in processes:
            process.communicate(timeout=200)
            assert process.returncode == 0
        self._check(room, 2 * _AT_ONCE)

    @staticmethod
    def _in_turns(room: Clients) -> Iterator[tuple[Callable[[], AbstractContextManager[Path]], StockRoom]]:
        with ExitStack() as stack:
            opened = []
            for at_work in (room.a, room.b):
                with at_work() as root:
                    opened.append((at_work, stack.enter_context(_opened(root))))
            while True:
                yield from opened

    @staticmethod
    def _check(room: Clients, count: int) -> None:
        """See that both machines have so many values, by commits one after the other."""
        for at_work in (room.a, room.b):
            with at_work() as root, _opened(root) as stock:
                assert sorted(stock.data["samples"].keys()) == list(range(-1, count))
                assert all(stock.data["samples"][number] == number for number in range(count))
                assert all(len(commit.parents) < 2 for commit in stock.log())
                assert stock.status().branch is not None
                assert stock.verify().problems == []
