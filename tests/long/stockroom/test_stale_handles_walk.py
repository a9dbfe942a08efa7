"""Several stockrooms open upon one working tree do whatever they can, in turns, and agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.long.stockroom.model import Content, content, copied, merged
from tests.sampling import by_level

from hopyard import StockRoom
from hopyard.errors import ConflictError, UsageError


class Walk:
    """Three handles that do whatever they can, and dicts that say what is there then."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        StockRoom.init(folder).close()
        self.folder = folder
        self.handles = [StockRoom(folder, enable_write=True) for _ in range(3)]
        self.columns: list[Any] = [None] * 3
        self.now: Content = {}
        self.commits: dict[str, tuple[Content, str | None]] = {}
        self.tags: dict[str, str] = {}
        self.branch: str | None = "main"
        self.here: str | None = None
        self.handles[0].data["c"] = {0: np.array(0)}
        self.now = {"data/c": {0: 0}}
        self.arrive(self.handles[0].commit("first"), self.now)

    @property
    def base(self) -> Content:
        assert self.here is not None
        return self.commits[self.here][0]

    @property
    def is_clean(self) -> bool:
        return self.now == self.base

    def arrive(self, commit: str, what: Content) -> None:
        self.commits[commit] = copied(what), self.here
        self.here = commit

    def write(self, stock: StockRoom, state: Content) -> None:
        key, number = self.random.randrange(4), self.random.randrange(5)
        name = f"experiment/{'xyz'[key % 3]}"
        what = self.random.choice(["set", "set", "delete", "sample", "sample", "drop", "clear"])
        if what == "set":
            stock.experiment[name[-1]] = state[name] = number
        elif what == "delete" and name in state:
            del stock.experiment[name[-1]], state[name]
        elif what == "sample":
            stock.data["c"][key] = np.array(number)
            state["data/c"][key] = number
        elif what == "drop" and key in state["data/c"]:
            del stock.data["c"][key], state["data/c"][key]
        elif what == "clear" and not self.random.randrange(3):
            stock.data["c"].clear()
            state["data/c"].clear()

    def commit(self, stock: StockRoom) -> None:
        content(stock)  # what it has not seen, it does not commit
        if self.is_clean:
            with pytest.raises(UsageError, match="nothing has changed"):
                stock.commit("nothing")
        else:
            self.arrive(stock.commit("c"), self.now)

    def block(self, stock: StockRoom) -> None:
        others = [each for each in self.handles if each is not stock]
        begun, mine, before, branch = copied(self.now), copied(self.now), self.here, self.branch
        is_staged = is_gone = False  # below the block: a write; and what was
        try:
            with stock.enable_write():
                is_staged = bool(stock._session.stage.entries())
                for _ in range(self.random.randrange(6)):
                    what, here = self.random.randrange(24), self.here
                    if what < 12:
                        self.write(stock, mine)
                    elif what < 21:
                        self.write(self.random.choice(others), self.now)
                    elif what < 23:
                        self.random.choice([self.commit, self.commit, self.reset])(self.random.choice(others))
                        is_gone = True
                    else:
                        self.switch(self.random.choice(others))
                        is_gone = is_gone or self.here != here
                assert content(stock) == mine
                tip = self.tip(branch)
            is_ok = True
        except ConflictError:
            is_ok = False
        goes_along = self.here == before or (
            self.branch == branch and (branch is not None or self.is_before(before, self.here))
        )
        if goes_along:
            parent, after = self.here, self.now
        else:  # another has gone elsewhere
            parent = before if branch is None else tip
            after = self.commits[str(parent)][0]
        base = self.commits[str(parent)][0]
        if is_staged and is_gone:  # it counts from what stands there, and commits all of that
            result, conflicts = merged(begun, mine, after, None)
            later = result
        else:  # what others stage behind it stays staged
            result, conflicts = (mine, set()) if is_staged else merged(begun, mine, base, None)
            later, more = merged(begun if is_staged else base, result, after, None)
            conflicts |= more
        assert is_ok == (not conflicts)
        if not is_ok:
            return
        commit = self.tip(self.branch if goes_along else branch)
        if result != base:
            assert commit is not None
            assert commit not in self.commits
        if commit is not None and commit not in self.commits:
            made = stock.at(commit)
            assert content(made) == result
            assert list(made.commit.parents) == [parent]
            self.commits[commit] = copied(result), parent
            if goes_along:
                self.here = commit
        if goes_along:
            self.now = later

    def tip(self, branch: str | None) -> str | None:
        stock = self.handles[0]
        return stock.local.references.tip(stock._session.tree.reference(branch)).commit

    def is_before(self, before: str | None, commit: str | None) -> bool:
        while commit not in (None, before):
            commit = self.commits[str(commit)][1]
        return commit == before

    def reset(self, stock: StockRoom) -> None:
        assert self.here is not None
        before = self.commits[self.here][1]
        if before is None or self.random.randrange(2):
            stock.reset()
        else:
            stock.reset("HEAD~1")
            self.here = before
        self.now = copied(self.base)

    def switch(self, stock: StockRoom) -> None:
        name = self.random.choice([*stock.branches(), *self.tags])
        commit = stock.branches().get(name) or self.tags[name]
        if not self.is_clean and commit != self.here:
            with pytest.raises(UsageError, match="would leave behind"):
                stock.switch(name)
            return
        stock.switch(name)
        self.branch = None if name in self.tags else name
        if commit != self.here:
            self.here = commit
            self.now = copied(self.base)

    def name(self, stock: StockRoom) -> None:
        assert self.here is not None
        number = len(stock.branches()) + len(self.tags)
        if self.random.randrange(2):
            assert stock.tag(f"t{number}") == self.here
            self.tags[f"t{number}"] = self.here
        else:
            assert stock.branch(f"b{number}") == self.here
            self.branch = self.branch or f"b{number}"

    def delete(self, stock: StockRoom) -> None:
        if self.branch is not None:
            with pytest.raises(UsageError, match="this is on the branch"):
                stock.delete_branch(self.branch, force=True)

    def take(self, stock: StockRoom) -> None:
        """A column that stays, and is written to whatever happened meanwhile."""
        at = self.handles.index(stock)
        column, number = self.columns[at], self.random.randrange(5)
        if column is None:
            self.columns[at] = stock.data["c"]
        else:
            try:
                column[7] = np.array(number)
            except UsageError:  # another has put a column in its place
                self.columns[at] = None
            else:
                self.now["data/c"][7] = number

    def step(self) -> None:
        stock = self.random.choice(self.handles)
        what = self.random.choice("wwwwbbbbccrssnndgtto")
        if what == "w":
            self.write(stock, self.now)
        elif what == "c":
            content(stock)
            self.commit(stock)
        elif what == "g":
            stock.gc()
        elif what == "o":  # and so all look, which else only some do
            for each in self.handles:
                self.check(each)
        else:
            {
                "b": self.block,
                "r": self.reset,
                "s": self.switch,
                "n": self.name,
                "d": self.delete,
                "t": self.take,
            }[what](stock)
        self.check(self.random.choice(self.handles))
        with StockRoom(self.folder, enable_write=True) as fresh:
            self.check(fresh)

    def check(self, stock: StockRoom) -> None:
        ask = self.random.randrange(4)
        if ask == 0:
            assert (stock.head.branch, stock.head.commit) == (self.branch, self.here)
        elif ask == 1:
            assert content(stock.at("HEAD")) == self.base
        elif ask == 2:
            assert stock.log(limit=1)[0].digest == self.here
        else:
            assert content(stock) == self.now


@pytest.mark.filterwarnings("ignore:.*was committed to")
@pytest.mark.parametrize("seed", range(by_level(2, 6, 400)))
def test_handles_agree_whatever_they_do(tmp_path: Path, seed: int) -> None:
    walk = Walk(tmp_path / "stock", seed)
    for _ in range(40):
        walk.step()
    for each in walk.handles:
        assert content(each) == walk.now
        assert (each.head.branch, each.head.commit) == (walk.branch, walk.here)
        each.close()
    with StockRoom(walk.folder) as reader:
        assert content(reader) == walk.base
        assert reader.verify().ok
