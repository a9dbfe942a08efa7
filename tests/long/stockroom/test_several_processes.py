"""Real processes: races, serial orders, kills."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.model import content
from tests.sampling import by_level

from hopyard import StockRoom
from hopyard.errors import UsageError
from hopyard.stockroom.session import session as writing

ROOT = Path(__file__).parents[3]

_WRITER = """
import sys
import numpy as np
from hopyard import StockRoom
folder, me, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(rounds):
    with StockRoom(folder) as stock, stock.enable_write(f"{me} {number}"):
        for key in range(me, 40, 3):
            stock.data["x"][key] = np.array([me, number])
        stock.data["own"][me, number] = np.array(number)
        if number % 2:
            del stock.data["own"][me, number - 1]
"""

_FOREVER = """
import itertools, sys
import numpy as np
from hopyard import StockRoom
stock = StockRoom(sys.argv[1], enable_write=True)
stock.reset()
start = stock.experiment["count"] if "count" in stock.experiment else 0
for number in itertools.count(start):
    if "x" in stock.data:
        stock.data["x"][number] = np.full(1000, number)
    else:
        stock.data["x"] = {number: np.full(1000, number)}
    stock.experiment["count"] = number + 1
    stock.commit(f"{number}")
    print(number, flush=True)
"""

_STAGER = """
import sys
from hopyard import StockRoom
from hopyard.errors import UsageError
folder, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
stock = StockRoom(folder, enable_write=True)
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    stock.experiment[f"{me}-{number}"] = number
    if number % 3 == 2:
        try:
            stock.commit(f"{me}-{number}")
        except UsageError as error:  # the other has committed it
            assert "nothing has changed" in str(error), error
stock.experiment[f"{me}-last"] = count
stock.close()
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_sixteen_processes_race_for_one_branch(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.long.stockroom.racing",
        str(tmp_path / "stock"),
        str(by_level(2, 2, 4)),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def test_writers_at_once_equal_a_serial_order(stock: StockRoom) -> None:
    """The order is that of the log: each commit is the one before with what its writer did."""
    with stock.enable_write():
        stock.data.create("x", dtype="int64", shape=(2,))
        stock.data.create("own", dtype="int64", nested=True)
    writers = [start(_WRITER, stock.place.root, me, 8) for me in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.communicate("\n", timeout=100)
        assert writer.returncode == 0
    with StockRoom(stock.place.root) as after:
        commits = after.log()[::-1]
        expected: dict[str, dict[Any, Any]] = {"data/x": {}, "data/own": {}}
        assert len(commits) == 1 + 3 * 8
        for commit in commits[1:]:
            me, number = map(int, commit.message.split())
            expected["data/x"].update({key: [me, number] for key in range(me, 40, 3)})
            expected["data/own"][me, number] = number
            if number % 2:
                del expected["data/own"][me, number - 1]
            assert content(after.at(commit.digest)) == expected
        assert content(after) == content(after.at("main"))


def test_a_commit_right_before_the_first_staged_write_does_not_hide_it(
    stock: StockRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = StockRoom(stock.place.root, enable_write=True)
    other = StockRoom(stock.place.root, enable_write=True)
    move_on = mine._session.move_on

    def overtaken() -> None:
        move_on()
        monkeypatch.setattr(mine._session, "move_on", move_on)
        other.experiment["other"] = 1
        other.commit("other")

    monkeypatch.setattr(mine._session, "move_on", overtaken)
    mine.experiment["mine"] = 2
    mine.close()
    other.close()
    with StockRoom(stock.place.root, enable_write=True) as after:
        assert dict(after.experiment) == {"other": 1, "mine": 2}
        assert "where this is not" not in str(after.status())


def test_a_commit_that_is_overtaken_does_not_hide_what_others_stage_upon_the_faster_one(
    stock: StockRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = StockRoom(stock.place.root, enable_write=True)
    other = StockRoom(stock.place.root, enable_write=True)
    other.experiment["other"] = 1
    mine.experiment["mine"] = 2
    commit_draft = writing.commit_draft

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(writing, "commit_draft", commit_draft)
        other.commit("other")
        other.experiment["later"] = 3
        return commit_draft(*arguments)

    monkeypatch.setattr(writing, "commit_draft", overtaken)
    mine.commit("mine")
    mine.close()
    other.close()
    with StockRoom(stock.place.root, enable_write=True) as after:
        assert dict(after.experiment) == {"other": 1, "mine": 2, "later": 3}
        assert "where this is not" not in str(after.status())


_LATE = """
import sys
from hopyard import StockRoom
stock = StockRoom(sys.argv[1], enable_write=True)
print("open", flush=True)
sys.stdin.readline()
print("writes", flush=True)
stock.experiment["late"] = 1
stock.close()
"""


def block(stock: StockRoom) -> None:
    with stock.enable_write():
        stock.experiment["block"] = 1


MOVES: dict[str, Callable[[StockRoom], object]] = {
    "switch": lambda stock: stock.switch("ahead"),
    "fast-forward": lambda stock: stock.merge("ahead"),
    "merge": lambda stock: stock.merge("beside"),
    "revert": lambda stock: stock.revert("HEAD"),
    "pull": lambda stock: stock.pull(),
    "reset": lambda stock: stock.reset("HEAD~1"),
    "block": block,
}
CARRIES = {"block", "revert"}
DISCARDS = {"reset"}


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[tuple[StockRoom, subprocess.Popen[str]]]:
    """A stockroom with branches ahead and beside, a remote that went on, and a process that is about to write."""
    root = tmp_path / "repo"
    with StockRoom.init(root) as stock:
        with stock.enable_write():
            stock.experiment["lr"] = 0.1
        stock.branch("beside")
        with stock.enable_write():
            stock.experiment["lr"] = 0.2
        stock.branch("ahead")
        stock.push(tmp_path / "remote")
        for name in ("ahead", "beside"):
            stock.switch(name)
            with stock.enable_write():
                stock.experiment[name] = 1
        stock.switch("main")
        with StockRoom.clone(tmp_path / "remote", tmp_path / "clone") as clone:
            with clone.enable_write():
                clone.experiment["theirs"] = 1
            clone.push()
        process = start(_LATE, root)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield stock, process


@pytest.mark.parametrize("move", MOVES)
def test_what_another_process_stages_between_the_look_and_the_move_is_not_left_behind(
    parted: tuple[StockRoom, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    stock, process = parted
    before = stock.head
    still = stock._session.tree.still

    def overtaken(commit: str | None) -> Any:
        monkeypatch.setattr(stock._session.tree, "still", still)
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
        return still(commit)

    monkeypatch.setattr(stock._session.tree, "still", overtaken)
    if move in CARRIES | DISCARDS:
        MOVES[move](stock)
    else:
        with pytest.raises(UsageError, match="would leave behind what is staged upon"):
            MOVES[move](stock)
        assert stock.head == before
    with StockRoom(stock.place.root, enable_write=True) as after:
        assert ("late" in after.experiment) == (move not in DISCARDS)
        assert after.status().elsewhere == {}
        assert after.verify().ok


@pytest.mark.parametrize("move", MOVES)
def test_what_another_process_stages_during_a_move_is_staged_upon_the_new_commit(
    parted: tuple[StockRoom, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    stock, process = parted
    before = stock.head
    set_head = stock._session.tree.set_head

    def under_way(*arguments: Any) -> None:
        monkeypatch.setattr(stock._session.tree, "set_head", set_head)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert (
            process.stdout.readline() == "writes\n"
        )  # from here on it waits for the move, or comes behind it
        set_head(*arguments)

    monkeypatch.setattr(stock._session.tree, "set_head", under_way)
    MOVES[move](stock)
    process.communicate(timeout=60)
    assert process.returncode == 0
    with StockRoom(stock.place.root, enable_write=True) as after:
        assert after.head.commit != before.commit
        assert after.experiment["late"] == 1
        assert after.status().staged == [("experiment/late", "added")]
        assert after.status().elsewhere == {}


def test_what_two_processes_stage_and_commit_at_once_is_all_there(stock: StockRoom) -> None:
    stagers = [start(_STAGER, stock.place.root, me, 10) for me in "ab"]
    for stager in stagers:
        assert stager.stdout is not None
        assert stager.stdout.readline() == "ready\n"
    for stager in stagers:
        assert stager.stdin is not None
        stager.stdin.write("\n")
        stager.stdin.flush()
    for stager in stagers:
        stager.communicate(timeout=100)
        assert stager.returncode == 0
    with StockRoom(stock.place.root, enable_write=True) as after:
        assert set(after.experiment) == {f"{me}-{end}" for me in "ab" for end in [*range(10), "last"]}


def test_killed_in_a_loop_of_commits(tmp_path: Path) -> None:
    """No manual step: the next one goes on, and what was reported is there."""
    StockRoom.init(tmp_path / "stock").close()
    for lines in (1, 2, 3, 5):
        process = start(_FOREVER, tmp_path / "stock")
        assert process.stdout is not None
        last = [int(process.stdout.readline()) for _ in range(lines)][-1]
        process.kill()
        # not communicate(): it leaves out what readline() has read ahead
        last = max([last, *map(int, process.stdout.read().split())])
        process.communicate(timeout=60)
        with StockRoom(tmp_path / "stock") as stock:
            count = stock.experiment["count"]
            assert count in (last + 1, last + 2)
            assert stock.head.commit == stock.branches()["main"]
            assert len(stock.log()) == count
            column = stock.data["x"]
            assert [int(column[key][0]) for key in column] == list(range(count))
    with StockRoom(tmp_path / "stock", enable_write=True) as stock:
        stock.reset()
        stock.data["x"][10**6] = np.zeros(1000, int)
        stock.commit("after all")


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_reader_in_another_process_sees_its_commit(stock: StockRoom, how: str) -> None:
    import multiprocessing

    with stock.enable_write():
        stock.data["x"] = np.arange(5)
    old = stock.at("HEAD")
    with stock.enable_write():
        stock.data["x"][0] = np.array(7)
    with multiprocessing.get_context(how).Pool(1) as pool:
        assert pool.map(first, [old, stock.at("main")]) == [0, 7]


def first(revision: Any) -> int:
    return int(revision.data["x"][0])
