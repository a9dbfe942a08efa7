"""Two stockrooms and their models: plain dicts that say what each has, and what operations make of it."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, initialize
from tests.long.stockroom.model import Content, ancestors, bases, content, copied, merged

from hopyard import StockRoom
from hopyard.errors import ConflictError, HopyardError
from hopyard.stockroom.history.references import References
from hopyard.storage import LocalStore


@dataclass
class State:
    """What one stockroom has; the commits that it names are in the machine."""

    branch: str | None = "main"
    commit: str | None = None
    staged: Content | None = None
    heads: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


def set_sample(state: Content, name: str, key: Any, number: int) -> None:
    state.setdefault(f"data/{name}", {})[key] = sample(name, number)


def sample(name: str, number: int) -> Any:
    return "x" * number if name == "text" else [number] * 3


def write_sample(stock: StockRoom, name: str, key: Any, number: int) -> None:
    value: Any = sample(name, number)
    value = value if name == "text" else np.array(value, np.int16)
    if name in stock.data:
        stock.data[name][key] = value
    else:
        stock.data[name] = {key: value}


def refusal(call: Callable[[], object]) -> HopyardError | None:
    """The error that it raises."""
    try:
        call()
    except HopyardError as error:
        return error
    return None


def conflicts_of(error: HopyardError) -> set[Any]:
    assert isinstance(error, ConflictError)
    return {(conflict.path, conflict.key) for conflict in error.conflicts}


class Peers(RuleBasedStateMachine):
    """``ada`` and ``bob``, and a remote between them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.commits: dict[str, Content] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        self.remote: dict[str, str] = {}
        self.states: dict[str, State] = {}
        self.rooms: dict[str, StockRoom] = {}

    @initialize()
    def begin(self) -> None:
        for name in ("ada", "bob"):
            self.rooms[name] = StockRoom.init(self.folder / name, enable_write=True)
            self.states[name] = State()

    def teardown(self) -> None:
        for room in self.rooms.values():
            assert not room.verify().problems
            room.close()
        shutil.rmtree(self.folder)

    # What they have

    def now(self, peer: str) -> Content:
        state = self.states[peer]
        return copied(self.committed(state.commit) if state.staged is None else state.staged)

    def committed(self, commit: str | None) -> Content:
        return {} if commit is None else self.commits[commit]

    def earlier(self, commit: str, which: int) -> str:
        """The commit or one that it follows, the same in each run, though digests are others."""
        found = ancestors(self.parents, commit)
        return [one for one in self.commits if one in found][which % len(found)]

    def stage(self, peer: str, state: Content) -> None:
        is_new = state != self.committed(self.states[peer].commit)
        self.states[peer].staged = state if is_new else None

    def add(self, peer: str, digest: str, new: Content, *parents: str | None) -> None:
        state = self.states[peer]
        self.commits[digest] = new
        self.parents[digest] = tuple(parent for parent in parents if parent is not None)
        self.arrive(peer, digest)
        state.staged = None

    def arrive(self, peer: str, commit: str) -> None:
        state = self.states[peer]
        state.commit = commit
        if state.branch is not None:
            state.heads[state.branch] = commit

    # What operations make of it

    def merge_content(self, ours: str, theirs: str, resolve: str | None) -> tuple[Content, set[Any]] | None:
        """None: there are several bases."""
        found = bases(self.parents, ours, theirs)
        if len(found) > 1:
            return None
        return merged(
            self.committed(found[0] if found else None), self.commits[ours], self.commits[theirs], resolve
        )

    def merging(self, peer: str, ours: str, theirs: str, resolve: Any, call: Any) -> None:
        if theirs in ancestors(self.parents, ours):
            call()
            assert self.rooms[peer].head.commit == ours
            return
        if ours in ancestors(self.parents, theirs):
            call()
            self.arrive(peer, theirs)
            return
        expected = self.merge_content(ours, theirs, resolve)
        error = refusal(call)
        if error is not None:
            assert resolve is None
            if expected is not None:
                assert conflicts_of(error) == expected[1]
            return
        digest = str(self.rooms[peer].head.commit)
        if expected is not None:
            assert not expected[1]
            new = expected[0]
        else:
            new = content(self.rooms[peer])
            self.between(new, self.commits[ours], self.commits[theirs])
        self.add(peer, digest, new, ours, theirs)

    @staticmethod
    def between(new: Content, ours: Content, theirs: Content) -> None:
        """After criss-cross merges: what both sides have alike stays, and all else is of one of them."""
        for path in {*new, *ours, *theirs}:
            now, here, there = new.get(path), ours.get(path), theirs.get(path)
            if isinstance(now, dict) and isinstance(here, dict) and isinstance(there, dict):
                for key in {*now, *here, *there}:
                    assert now.get(key) in (here.get(key), there.get(key))
            else:
                assert now in (here, there)

    def learn(self, peer: str, before: Content, after: Content, what: str, other: str | None) -> None:
        """The crashed one is one of the states that it may be in; take it over."""
        state, room = self.states[peer], self.rooms[peer]
        head, now = room.head, content(room)
        old = copy.deepcopy(state)
        assert head.branch in (old.branch, None)
        if head.commit == old.commit:
            allowed = [before]
            if what == "reset":
                allowed.append(self.committed(old.commit))
            elif what == "write":
                allowed.append(after)
            assert now in allowed
            self.stage(peer, now)
        elif head.commit in self.commits:
            assert what in ("merge", "switch", "reset", "pull")
            assert now == self.commits[head.commit]
            state.staged = None
            state.commit = head.commit
        else:
            assert what in ("commit", "block", "merge", "pull")
            commit = room.log(limit=1)[0]
            if what in ("commit", "block"):
                assert now == (after if what == "block" else before)
                assert commit.parents == (() if old.commit is None else (old.commit,))
            self.commits[commit.digest], self.parents[commit.digest] = now, commit.parents
            state.staged, state.commit = None, commit.digest
        state.branch = head.branch
        state.heads = room.branches()
        assert {name: tip for name, tip in state.heads.items() if name != old.branch} == {
            name: tip for name, tip in old.heads.items() if name != old.branch
        }
        remote = References(LocalStore(self.folder / "remote")).names("heads")
        assert remote in (self.remote, {**self.remote, str(old.branch): old.commit}) or what != "push"
        self.remote = remote
