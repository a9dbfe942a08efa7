"""A stockroom after power cuts: what a call has done is there when it returned; before, it is there whole or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.model import Content, content
from tests.power import Cut, Cuts, Disk, Record, files_of, recording, scratch_disk

from hopyard import StockRoom
from hopyard.errors import NotFoundError

CANARY = 29_555


def image(number: int) -> Any:
    return np.array([number, -number], np.int16)


class Story:
    """What was done to a stockroom, and what it, and its remote, held after each step."""

    def __init__(self, root: Path, record: Record) -> None:
        self.room, self.remote = root / "room", root / "remote"
        self._record = record
        self.held: list[Content | None] = [None]
        self.pushed: list[Content | None] = [None]
        self.begin: Callable[[], StockRoom] = lambda: StockRoom.init(self.room)
        """What is to be done where there is no stockroom yet."""
        self.purged = 0
        """The step from which on nothing that was purged is on the disk; 0: none is."""

    def say(self, stock: StockRoom) -> None:
        """One call has returned: all that was done so far is to last."""
        self.held.append(content(stock))
        self.pushed.append(self.pushed[-1])
        self._record.done(len(self.held) - 1)

    def say_pushed(self, stock: StockRoom) -> None:
        """What was said last is at the remote, too."""
        self.say(stock)
        self.pushed[-1] = self.held[-1]


def commits(story: Story) -> None:
    with StockRoom.init(story.room, enable_write=True) as stock:
        story.say(stock)
        with stock.enable_write():
            stock.data["x"] = {0: image(1), 1: image(2)}
            stock.model["net"] = {"w": image(1)}
        story.say(stock)
        with stock.enable_write():
            stock.data["x"][0] = image(3)
            stock.experiment["lr"] = 0.1
        story.say(stock)
        stock.experiment["lr"] = 0.2
        story.say(stock)
        stock.data["x"][5] = image(5)
        story.say(stock)
        stock.commit("staged")
        story.say(stock)
        with stock.enable_write():
            del stock.model["net"]
        story.say(stock)


def branches(story: Story) -> None:
    with StockRoom.init(story.room, enable_write=True) as stock:
        story.say(stock)
        for number in range(2):
            with stock.enable_write():
                stock.experiment["lr"] = number
            story.say(stock)
        stock.experiment["lr"] = 2
        story.say(stock)
        stock.commit("staged")
        story.say(stock)
        stock.branch("older", stock.log()[1].digest)
        stock.switch("older")
        story.say(stock)
        stock.experiment["more"] = 1
        story.say(stock)
        stock.experiment["more"] = 2
        story.say(stock)
        stock.reset()
        story.say(stock)
        with stock.enable_write():
            stock.data["x"] = [1, 2]
        story.say(stock)
        stock.switch("main")
        story.say(stock)
        stock.tag("v1")
        stock.merge("older")
        story.say(stock)
        stock.experiment["lr"] = 3
        story.say(stock)
        stock.reset()
        story.say(stock)
        stock.reset("v1")
        story.say(stock)


def garbage(story: Story) -> None:
    with StockRoom.init(story.room, enable_write=True) as stock:
        story.say(stock)
        for number in range(3):
            with stock.enable_write():
                stock.data["x"] = {key: image(key + number) for key in range(3)}
                stock.model["net"] = {"w": image(number), "b": image(7)}
            story.say(stock)
        stock.reset(stock.log()[1].digest)
        story.say(stock)
        stock.experiment["lr"] = 1
        story.say(stock)
        stock.gc()
        story.say(stock)
        with stock.enable_write():
            stock.model["net"] = {"w": image(2), "b": image(8)}
        story.say(stock)
        stock.gc()
        story.say(stock)


def purges(story: Story) -> None:
    with StockRoom.init(story.room, enable_write=True) as stock:
        story.say(stock)
        for number in range(2):
            with stock.enable_write():
                samples = {number: np.full(4, CANARY + number, np.uint16)}
                stock.data["x"].update(samples) if number else stock.data.update({"x": samples})
            story.say(stock)
        stock.purge("x", 0)
        story.say(stock)
        story.purged = len(story.held) - 1
        with stock.enable_write():
            stock.data["x"][2] = np.full(4, 2, np.uint16)
        story.say(stock)


def pushes(story: Story) -> None:
    with StockRoom.init(story.room, enable_write=True) as stock:
        story.say(stock)
        with stock.enable_write():
            stock.data["x"] = {0: image(1), 1: image(2)}
        story.say(stock)
        stock.push(story.remote)
        story.say_pushed(stock)
        with stock.enable_write():
            stock.data["x"][0] = image(3)
            stock.model["net"] = {"w": image(1)}
        story.say(stock)
        stock.push()
        story.say_pushed(stock)
        stock.gc(remote="origin")
        story.say_pushed(stock)


def pulls(story: Story) -> None:
    """The remote is on another disk."""
    elsewhere = story.room.parent.parent
    with StockRoom.init(elsewhere / "author", enable_write=True) as author:
        with author.enable_write():
            author.data["x"] = {0: image(1), 1: image(2)}
        author.push(elsewhere / "origin")
        story.begin = lambda: StockRoom.clone(elsewhere / "origin", story.room)
        with story.begin() as stock:
            story.say(stock)
            with author.enable_write():
                author.data["x"][0] = image(3)
                author.model["net"] = {"w": image(1)}
            author.push()
            stock.fetch()
            story.say(stock)
            stock.pull()
            story.say(stock)


def large(story: Story) -> None:
    """More than is written at once goes by way of a file in the staging folder."""
    with StockRoom.init(story.room, enable_write=True) as stock:
        story.say(stock)
        for number in range(2):
            with stock.enable_write():
                stock.model["net"] = {"w": np.full(600_000, number, np.int16)}
            story.say(stock)


STORIES: list[tuple[Callable[[Story], None], int, int, int]] = [
    (commits, 400, 20, 60),
    (branches, 300, 20, 60),
    (garbage, 300, 15, 60),
    (purges, 200, 10, 40),
    (pushes, 300, 15, 40),
    (pulls, 100, 10, 30),
    (large, 20, 2, 5),
]
"""With the states of a moment that are tried, and how many of all are tried at the lower levels."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "most", "quick", "ci"), STORIES, ids=lambda each: getattr(each, "__name__", "")
)
def test_what_was_done_outlasts_a_power_cut(
    steps: Callable[[Story], None], most: int, quick: int, ci: int
) -> None:
    with scratch_disk() as root:
        with recording(root) as record:
            story = Story(root, record)
            steps(story)
        cuts = Cuts(steps.__name__, record, most, quick, ci)
        cuts.check(root, lambda done, cut: look_at(story, done[-1] if done else 0, cut))


@pytest.mark.parametrize("steps", [garbage, purges])
def test_what_was_deleted_does_not_come_back(steps: Callable[[Story], None]) -> None:
    with scratch_disk() as root, recording(root) as record:
        steps(Story(root, record))
    disk, moments = Disk(), 0
    for change in record.changes:
        disk.apply(change)
        if change[0] == "done" and change[1] > 1:
            assert disk.uncertain("room/.hopyard/packfiles") == []
            moments += 1
    assert moments > 2


def look_at(story: Story, last: int, cut: Cut) -> None:
    expected = story.held[last : last + 2]
    try:
        with StockRoom(story.room, enable_write=True) as stock:
            held = content(stock)
        assert held in expected
    except NotFoundError:
        assert None in expected
        story.begin().close()
    if story.purged and last >= story.purged:
        gone = np.full(4, CANARY, np.uint16).tobytes()
        assert [path for path in files_of(story.room) if gone in path.read_bytes()] == []
    if story.pushed[last + 1 : last + 2] != [None] and story.pushed[-1] is not None:
        look_at_remote(story, story.pushed[last : last + 2])
    if cut.number % 10 == 0:
        go_on(story, expected if last + 1 == story.purged else None)


def look_at_remote(story: Story, expected: list[Content | None]) -> None:
    copy = story.room.with_name("copy")
    try:
        with StockRoom.clone(story.remote, copy) as stock:
            assert (content(stock) or None) in expected
    except NotFoundError:
        assert None in expected
    shutil.rmtree(copy, ignore_errors=True)


def go_on(story: Story, purging: list[Content | None] | None) -> None:
    """Whatever was left, the next commit and garbage collection end well.

    Args:
        purging: before and after a purge that was under way, which garbage collection brings to its end.
    """
    with StockRoom(story.room, enable_write=True) as stock:
        now = content(stock)
        checked = stock.verify()
        assert checked.ok or purging, checked
        with stock.enable_write():
            stock.experiment["more"] = 5
        stock.gc()
        if story.pushed[-1] is not None:
            stock.push(story.remote)
    ends = [{**end, "experiment/more": 5} for end in purging or [now] if end is not None]
    with StockRoom(story.room) as stock:
        now = content(stock)
        assert now in ends
        checked = stock.verify()
        assert checked.ok, checked
    assert list(story.room.glob("head.stock.*")) == []
    if story.pushed[-1] is not None:
        look_at_remote(story, [now])
