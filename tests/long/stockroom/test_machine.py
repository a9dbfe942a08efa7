"""Two stockrooms and a remote between them, under random operations and crashes, against plain dicts."""

from __future__ import annotations

import gc
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from tests.long.stockroom.crashes import dying
from tests.long.stockroom.model import ancestors, content, copied, merged
from tests.long.stockroom.peers import Peers, conflicts_of, refusal, set_sample, write_sample
from tests.sampling import by_level

from hopyard import StockRoom
from hopyard.errors import BehindError, ConflictError, HopyardError

KEYS = st.sampled_from([0, 1, 2, 10, 700, "a", "größe/ü"])
NAMES = st.sampled_from(["image", "text"])
BRANCHES = ["main", "dev", "x/y"]
NUMBERS = st.integers(0, 4)
PEERS = st.sampled_from(["ada", "bob"])
WHICH = st.integers(0, 20)
RESOLVE = st.sampled_from([None, "ours", "theirs"])


class Machine(Peers):
    """Each step is done to a stockroom and to its model; then all that can be read must be equal."""

    # What is written

    @rule(peer=PEERS, name=NAMES, key=KEYS, number=NUMBERS)
    def write(self, peer: str, name: str, key: Any, number: int) -> None:
        state = self.now(peer)
        set_sample(state, name, key, number)
        write_sample(self.rooms[peer], name, key, number)
        self.stage(peer, state)

    @rule(peer=PEERS, name=NAMES, start=st.integers(0, 3000), count=st.integers(1025, 3000), number=NUMBERS)
    def write_many(self, peer: str, name: str, start: int, count: int, number: int) -> None:
        """More than a write that is staged by itself."""
        state = self.now(peer)
        for key in range(start, start + count):
            set_sample(state, name, key, number)
        rows = {key: state[f"data/{name}"][key] for key in range(start, start + count)}
        if name != "text":
            rows = {key: np.array(row, np.int16) for key, row in rows.items()}
        stock = self.rooms[peer]
        if name in stock.data:
            stock.data[name].update(rows)
        else:
            stock.data[name] = rows
        self.stage(peer, state)

    @rule(peer=PEERS, name=NAMES, key=KEYS)
    def delete(self, peer: str, name: str, key: Any) -> None:
        state = self.now(peer)
        if key in state.get(f"data/{name}", {}):
            del state[f"data/{name}"][key]
            del self.rooms[peer].data[name][key]
            self.stage(peer, state)

    @rule(peer=PEERS, name=NAMES)
    def delete_column(self, peer: str, name: str) -> None:
        state = self.now(peer)
        if state.pop(f"data/{name}", None) is not None:
            del self.rooms[peer].data[name]
            self.stage(peer, state)

    @rule(peer=PEERS, number=NUMBERS, name=st.sampled_from(["lr", "note, with comma"]))
    def set_value(self, peer: str, number: int, name: str) -> None:
        state = self.now(peer)
        state[f"experiment/{name}"] = number
        self.rooms[peer].experiment[name] = number
        self.stage(peer, state)

    @rule(peer=PEERS, number=NUMBERS)
    def save_model(self, peer: str, number: int) -> None:
        state = self.now(peer)
        state["model/net"] = {"layer, one": [number, 1], "empty": []}
        self.rooms[peer].model["net"] = {
            "layer, one": np.array([number, 1], np.float32),
            "empty": np.zeros(0, np.float16),
        }
        self.stage(peer, state)

    @rule(peer=PEERS)
    def discard(self, peer: str) -> None:
        self.rooms[peer].reset()
        self.states[peer].staged = None

    @rule(peer=PEERS, name=NAMES, key=KEYS, number=NUMBERS)
    def fail_in_a_block(self, peer: str, name: str, key: Any, number: int) -> None:
        try:
            with self.rooms[peer].enable_write():
                write_sample(self.rooms[peer], name, key, number)
                self.rooms[peer].experiment["lr"] = -1
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass

    # Commits

    @rule(peer=PEERS)
    def commit(self, peer: str) -> None:
        state = self.states[peer]
        if state.staged is None:
            assert "nothing has changed" in str(refusal(lambda: self.rooms[peer].commit("nothing")))
            return
        self.add(peer, self.rooms[peer].commit("work"), state.staged, state.commit)

    @rule(peer=PEERS, name=NAMES, key=KEYS, number=NUMBERS)
    def commit_a_block(self, peer: str, name: str, key: Any, number: int) -> None:
        state, room = self.now(peer), self.rooms[peer]
        set_sample(state, name, key, number)
        with room.enable_write():
            write_sample(room, name, key, number)
        before = self.states[peer].commit
        if state != self.committed(before):
            assert room.head.commit not in (None, before)
            self.add(peer, str(room.head.commit), state, before)
        else:
            self.states[peer].staged = None

    @rule(peer=PEERS, name=st.sampled_from(BRANCHES))
    def branch(self, peer: str, name: str) -> None:
        state = self.states[peer]
        if state.commit is None or name in state.heads:
            return
        self.rooms[peer].branch(name)
        state.heads[name] = state.commit
        if state.branch is None:
            state.branch = name

    @rule(peer=PEERS, number=NUMBERS)
    def tag(self, peer: str, number: int) -> None:
        state = self.states[peer]
        if state.commit is not None and f"v{number}" not in state.tags:
            self.rooms[peer].tag(f"v{number}")
            state.tags[f"v{number}"] = state.commit

    @rule(peer=PEERS, which=WHICH)
    def switch(self, peer: str, which: int) -> None:
        state = self.states[peer]
        places = sorted(state.heads) + sorted(state.tags)
        if not places:
            return
        name = places[which % len(places)]
        target = state.heads.get(name) or state.tags[name]
        if state.staged is not None and target != state.commit:
            assert "staged" in str(refusal(lambda: self.rooms[peer].switch(name)))
            return
        self.rooms[peer].switch(name)
        state.branch = name if name in state.heads else None
        state.commit = target

    @rule(peer=PEERS)
    def collect(self, peer: str) -> None:
        """Deletes nothing that anything leads to."""
        self.rooms[peer].gc()

    # Merges

    @rule(peer=PEERS, which=WHICH, resolve=RESOLVE)
    def merge(self, peer: str, which: int, resolve: Any) -> None:
        state, room = self.states[peer], self.rooms[peer]
        if not state.heads:
            return
        name = sorted(state.heads)[which % len(state.heads)]
        theirs = state.heads[name]
        if state.staged is not None:
            assert "staged" in str(refusal(lambda: room.merge(name)))
            return
        ours = state.commit
        assert ours is not None
        self.merging(peer, ours, theirs, resolve, lambda: room.merge(name, resolve).commit)

    @rule(peer=PEERS, which=WHICH)
    def revert(self, peer: str, which: int) -> None:
        state, room = self.states[peer], self.rooms[peer]
        if state.commit is None or state.staged is not None:
            return
        undone = self.earlier(state.commit, which)
        parents = self.parents[undone]
        before = self.committed(parents[0] if parents else None)
        new, conflicts = merged(self.commits[undone], self.commits[state.commit], before, None)
        error = refusal(lambda: room.revert(undone, parent=1 if len(parents) > 1 else None))
        if isinstance(error, ConflictError):
            assert conflicts_of(error) == conflicts
        elif error is not None:
            assert "nothing" in str(error)
            assert new == self.commits[state.commit]
        else:
            assert not conflicts
            self.add(peer, str(room.head.commit), new, state.commit)

    @rule(peer=PEERS, which=WHICH)
    def reset(self, peer: str, which: int) -> None:
        state = self.states[peer]
        if state.commit is None:
            return
        target = self.earlier(state.commit, which)
        self.rooms[peer].reset(target)
        state.staged = None
        self.arrive(peer, target)

    # Remotes

    @rule(peer=PEERS)
    def push(self, peer: str) -> None:
        state = self.states[peer]
        if state.branch is None or state.branch not in state.heads:
            return
        there, here = self.remote.get(state.branch), state.heads[state.branch]
        try:
            self.rooms[peer].push(self.folder / "remote")
        except BehindError:
            assert there is not None
            assert there not in ancestors(self.parents, here)
            return
        assert there is None or there in ancestors(self.parents, here)
        self.remote[state.branch] = here

    @precondition(lambda self: self.remote)
    @rule(peer=PEERS, resolve=RESOLVE)
    def pull(self, peer: str, resolve: Any) -> None:
        state, room = self.states[peer], self.rooms[peer]
        if state.branch is None or state.branch not in self.remote:
            return
        theirs = self.remote[state.branch]
        if state.staged is not None:
            assert "staged" in str(refusal(lambda: room.pull(self.folder / "remote")))
            return
        if state.commit is None:
            room.pull(self.folder / "remote")
            self.arrive(peer, theirs)
            return
        self.merging(
            peer, state.commit, theirs, resolve, lambda: room.pull(self.folder / "remote", resolve=resolve)
        )

    @precondition(lambda self: self.remote)
    @rule()
    def clone(self) -> None:
        with StockRoom.clone(self.folder / "remote", self.folder / "copy") as stock:
            assert stock.head.commit in self.remote.values()
            for name, commit in self.remote.items():
                assert content(stock.at(f"origin/{name}")) == self.commits[commit]
        shutil.rmtree(self.folder / "copy")

    # Failures

    @rule(peer=PEERS)
    def reopen(self, peer: str) -> None:
        self.rooms[peer].close()
        self.rooms[peer] = StockRoom(self.folder / peer, enable_write=True)

    @rule(peer=PEERS)
    def lose_the_index(self, peer: str) -> None:
        self.rooms[peer].close()
        for path in (self.folder / peer / ".hopyard").glob("index*"):
            path.unlink()
        self.rooms[peer] = StockRoom(self.folder / peer, enable_write=True)

    @rule(
        peer=PEERS,
        at=st.integers(0, 12),
        what=st.sampled_from(["write", "commit", "block", "merge", "pull", "push", "switch", "reset"]),
        number=NUMBERS,
        which=WHICH,
    )
    def crash(self, peer: str, at: int, what: str, number: int, which: int) -> None:
        """Afterwards all is as before or as after."""
        self.rooms[peer].close()
        state, before = self.states[peer], self.now(peer)
        after = copied(before)
        if what in ("write", "block"):
            set_sample(after, "image", number, number)
        named = {*state.heads.values(), *state.tags.values()}
        others = [commit for commit in self.commits if commit in named] or [None]
        other = others[which % len(others)]
        with dying(at):
            room = StockRoom(self.folder / peer, enable_write=True)
            try:
                if what == "write":
                    write_sample(room, "image", number, number)
                elif what == "block":
                    with room.enable_write():
                        write_sample(room, "image", number, number)
                elif what == "commit":
                    room.commit("crash")
                elif what == "push":
                    room.push(self.folder / "remote")
                elif what == "pull":
                    room.pull(self.folder / "remote", resolve="ours")
                elif other is not None:
                    {"merge": room.merge, "switch": room.switch, "reset": room.reset}[what](other)
            except HopyardError:
                pass  # refused: there is nothing to commit, something is staged, the remote is ahead
            room.close()
        del room
        gc.collect()
        self.rooms[peer] = StockRoom(self.folder / peer, enable_write=True)
        self.learn(peer, before, after, what, other)

    # What must hold

    @invariant()
    def equal(self) -> None:
        for peer, state in self.states.items():
            room = self.rooms[peer]
            assert content(room) == self.now(peer)
            assert (room.head.branch, room.head.commit) == (state.branch, state.commit)
            assert room.branches() == state.heads
            assert room.tags() == state.tags
            assert bool(room.status().staged) == (state.staged is not None)
            assert {one.digest for one in room.log()} == ancestors(self.parents, state.commit)

    @rule(peer=PEERS, which=WHICH)
    def look_back(self, peer: str, which: int) -> None:
        state = self.states[peer]
        if state.commit is not None:
            commit = self.earlier(state.commit, which)
            assert content(self.rooms[peer].at(commit)) == self.commits[commit]


TestMachine = pytest.mark.timeout(by_level(300, 900, 0))(Machine.TestCase)
TestMachine.settings = settings(
    stateful_step_count=by_level(8, 8, 25), suppress_health_check=list(HealthCheck)
)
