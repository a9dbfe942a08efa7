"""Staged writes in any order, opened again after any of them, against plain dicts; and what is then committed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.long.stockroom.crashes import dying
from tests.long.stockroom.model import Content, content, copied, plain
from tests.sampling import by_level

from hopyard import StockRoom
from hopyard.errors import UsageError

A, B, C = (np.array([number, 7], np.int16) for number in (1, 2, 3))
BIG = np.arange(1500 * 512, dtype=np.int16).reshape(
    1500, 512
)  # 1.5 MB: more than a write that is staged as it is


def image(number: int) -> Any:
    return np.array([number, -number], np.int16)


def many(number: int) -> Any:
    return np.arange(2 * 1500, dtype=np.int16).reshape(1500, 2) + np.int16(number)


# Each is done to a stockroom with data/x {0: A, 1: B}, model/net A and experiment/lr 1, which are committed.
SEQUENCES: dict[str, Callable[[StockRoom], None]] = {
    "new key, then clear": lambda s: (s.data["x"].update({"n": C}), s.data["x"].clear()),
    "new key, then the column as it was": lambda s: (s.data["x"].update({"n": C}), put(s, {0: A, 1: B})),
    "changed, then the column put back": lambda s: (s.data["x"].update({0: C}), put(s, {0: A, 1: B})),
    "deleted, then the column put back": lambda s: (s.data["x"].pop(0), put(s, {0: A, 1: B})),
    "new, deleted, then extend": lambda s: (
        s.data["x"].update({9: C}), s.data["x"].pop(9), s.data["x"].extend(many(0)),
    ),
    "extend, then deleted, then extend": lambda s: (
        s.data["x"].extend(many(0)), s.data["x"].pop(7), s.data["x"].extend(many(1)),
    ),
    "a model deleted and saved again": lambda s: (s.model.pop("net"), save(s, A)),
    "a model changed and saved as it was": lambda s: (save(s, B), save(s, A)),
    "a model saved and deleted": lambda s: (s.model.update({"new": {"w": B}}), s.model.pop("new")),
    "a large value, then a small one": lambda s: (
        s.experiment.update({"lr": "y" * 20_000}), s.experiment.update({"lr": 1}),
    ),
    "a small value, then a large one": lambda s: (
        s.experiment.update({"lr": 2}), s.experiment.update({"lr": "y" * 20_000}),
    ),
    "a value deleted and set again": lambda s: (s.experiment.pop("lr"), s.experiment.update({"lr": 1})),
    "a new value, deleted before a large write": lambda s: (
        s.experiment.update({"v": 1}), s.experiment.pop("v"), save(s, C),
    ),
    "a new column, deleted before a large write": lambda s: (
        s.data.update({"new": [1, 2]}), s.data.pop("new"), s.data["x"].extend(many(0)),
    ),
    "deleted column, then written anew": lambda s: (s.data.pop("x"), s.data.update({"x": ["a", "b"]})),
    "cleared, then another dtype": lambda s: (s.data["x"].clear(), put(s, {0: 1.5})),
    "another dtype and back": lambda s: (put(s, {0: 1.5}), put(s, {0: A, 1: B})),
    "emptied one by one, then extend": lambda s: (
        s.data["x"].pop(0), s.data["x"].pop(1), s.data["x"].extend(many(0)),
    ),
    "created with any length, then samples": lambda s: (
        s.data.create("r", dtype="int16", shape=[None]), s.data["r"].update({0: A[:1]}), s.data["r"].update({1: A}),
    ),
    "samples of other lengths": lambda s: (s.data.update({"r": {0: A[:1], 1: A}}), s.data["r"].update({2: B[:0]})),
    "nested, whole samples and parts": lambda s: (
        s.data.update({"n": {"a": {"p": A, "q": B}}}), s.data["n"].update({"a": {"p": C}}),
        s.data["n"].update({("b", 1): C}), s.data["n"].pop("a"),
    ),
    "nested, a whole sample instead of more parts": lambda s: (
        s.data.create("n", dtype="int16", shape=[2], nested=True),
        s.data["n"].update({("a", 1): A, ("a", 2): B}), s.data["n"].update({"a": {1: C}}),
    ),
}  # fmt: skip


def put(stock: StockRoom, samples: Any) -> None:
    stock.data["x"] = samples


def save(stock: StockRoom, weights: Any) -> None:
    stock.model["net"] = {"w": weights}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_what_is_staged_is_the_same_when_it_is_opened_again(stock: StockRoom, sequence: str) -> None:
    root = stock.place.root
    with stock.enable_write():
        stock.data["x"] = {0: A, 1: B}
        save(stock, A)
        stock.experiment["lr"] = 1
    with StockRoom(root, enable_write=True) as writer:
        SEQUENCES[sequence](writer)
        expected, changes = content(writer), writer.status().staged
    with StockRoom(root) as reader:
        assert reader.status().staged == changes
    with StockRoom(root, enable_write=True) as again:
        assert content(again) == expected
        assert again.status().staged == changes
        if changes:
            again.commit("staged")
    with StockRoom(root) as reader:
        assert content(reader) == expected
        assert reader.verify().ok


KEYS = st.sampled_from([0, 1, 2, 3, 1600, "a", "b"])
NAMES = st.sampled_from(["x", "y"])
THINGS = st.sampled_from(["net", "other"])
NUMBERS = st.integers(0, 3)
WHO = st.integers(0, 1)


class Staging(RuleBasedStateMachine):
    """Two stockrooms of one working tree, which are open for writing and write in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hopyard-staged-"))
        StockRoom.init(self.folder).close()
        self.rooms = [StockRoom(self.folder, enable_write=True) for _ in range(2)]
        self.now: Content = {}
        self.committed: Content = {}
        self.last = 0  # who wrote last, and so sees all

    def teardown(self) -> None:
        for room in self.rooms:
            room.close()
        shutil.rmtree(self.folder)

    @initialize(is_filled=st.booleans())
    def begin(self, is_filled: bool) -> None:
        with self.rooms[0].enable_write() as room:
            room.experiment["look"] = 0
            self.now = {"experiment/look": 0}
            if is_filled:
                room.data["x"] = {0: image(1), 1: image(2)}
                room.model["net"] = {"w": image(1)}
                self.now |= {"data/x": {0: [1, -1], 1: [2, -2]}, "model/net": {"w": [1, -1]}}
        self.committed = copied(self.now)

    def room(self, who: int) -> StockRoom:
        """The one that writes now, and has what the other one staged or committed."""
        self.last = who
        self.rooms[who].experiment["look"] = 0
        return self.rooms[who]

    def column(self, who: int, name: str) -> tuple[Any, dict[Any, Any]] | None:
        """A column, if there is one of this name, and what it should hold."""
        room = self.room(who)
        if f"data/{name}" not in self.now:
            return None
        return room.data[name], self.now[f"data/{name}"]

    # Samples

    @rule(who=WHO, name=NAMES, key=KEYS, number=NUMBERS)
    def write(self, who: int, name: str, key: Any, number: int) -> None:
        found = self.column(who, name)
        if found is None:
            self.rooms[who].data[name] = {key: image(number)}
            self.now[f"data/{name}"] = {key: [number, -number]}
        else:
            found[0][key] = image(number)
            found[1][key] = [number, -number]

    @rule(who=WHO, name=NAMES, number=NUMBERS)
    def write_many(self, who: int, name: str, number: int) -> None:
        found = self.column(who, name)
        if found is not None:
            rows = {key: many(number)[key] for key in range(1500)}
            found[0].update(rows)
            found[1].update({key: row.tolist() for key, row in rows.items()})

    @rule(who=WHO, name=NAMES, number=NUMBERS, is_large=st.booleans())
    def extend(self, who: int, name: str, number: int, is_large: bool) -> None:
        found = self.column(who, name)
        if found is not None:
            column, samples = found
            rows = many(number) if is_large else many(number)[:2]
            first = max((key for key in samples if isinstance(key, int)), default=-1) + 1
            column.extend(rows)
            samples.update({first + at: row.tolist() for at, row in enumerate(rows)})

    @rule(who=WHO, name=NAMES, number=NUMBERS)
    def append(self, who: int, name: str, number: int) -> None:
        found = self.column(who, name)
        if found is not None:
            first = max((key for key in found[1] if isinstance(key, int)), default=-1) + 1
            assert found[0].append(image(number)) == first
            found[1][first] = [number, -number]

    @rule(who=WHO, name=NAMES, key=KEYS)
    def delete(self, who: int, name: str, key: Any) -> None:
        found = self.column(who, name)
        if found is not None and key in found[1]:
            del found[0][key]
            del found[1][key]

    @rule(who=WHO, name=NAMES)
    def clear(self, who: int, name: str) -> None:
        found = self.column(who, name)
        if found is not None:
            found[0].clear()
            found[1].clear()

    @rule(who=WHO, name=NAMES, keys=st.sets(KEYS, min_size=1), number=NUMBERS)
    def replace(self, who: int, name: str, keys: set[Any], number: int) -> None:
        self.room(who).data[name] = {key: image(number) for key in keys}
        self.now[f"data/{name}"] = {key: [number, -number] for key in keys}

    @rule(who=WHO, name=NAMES)
    def put_back(self, who: int, name: str) -> None:
        """The whole column as it was committed, taken from the commit or sample by sample."""
        samples = self.committed.get(f"data/{name}")
        if samples:
            self.room(who).data[name] = {key: np.array(row, np.int16) for key, row in samples.items()}
            self.now[f"data/{name}"] = dict(samples)

    @rule(who=WHO, name=NAMES)
    def copy(self, who: int, name: str) -> None:
        room, other = self.room(who), "y" if name == "x" else "x"
        if self.now.get(f"data/{name}"):
            samples = {key: plain(row) for key, row in room.data[name].items()}
            room.data[other] = room.data[name]
            self.now[f"data/{other}"] = samples

    @rule(who=WHO, name=NAMES)
    def delete_column(self, who: int, name: str) -> None:
        room = self.room(who)
        if f"data/{name}" in self.now:
            del room.data[name]
            del self.now[f"data/{name}"]

    @rule(
        who=WHO, key=st.sampled_from(["a", "b"]), parts=st.sets(st.integers(0, 3), min_size=1), number=NUMBERS
    )
    def nest(self, who: int, key: str, parts: set[int], number: int) -> None:
        room, rows = self.room(who), {part: image(number) for part in parts}
        if "data/n" not in self.now:
            room.data["n"] = {key: rows}
            self.now["data/n"] = {}
        else:
            room.data["n"][key] = rows
        samples = {pair: row for pair, row in self.now["data/n"].items() if pair[0] != key}
        self.now["data/n"] = samples | {(key, part): [number, -number] for part in parts}

    # Models and values

    @rule(who=WHO, name=THINGS, number=NUMBERS)
    def save(self, who: int, name: str, number: int) -> None:
        self.room(who).model[name] = {"w": image(number)}
        self.now[f"model/{name}"] = {"w": [number, -number]}

    @rule(who=WHO, name=THINGS, number=NUMBERS, size=st.sampled_from([1, 20_000, 2 << 20]))
    def set_value(self, who: int, name: str, number: int, size: int) -> None:
        value = number if size == 1 else str(number) * size
        self.room(who).experiment[name] = value
        self.now[f"experiment/{name}"] = value

    @rule(who=WHO, shelf=st.sampled_from(["model", "experiment"]), name=THINGS)
    def delete_thing(self, who: int, shelf: str, name: str) -> None:
        things = getattr(self.room(who), shelf)
        if f"{shelf}/{name}" in self.now:
            del things[name]
            del self.now[f"{shelf}/{name}"]

    # Blocks, commits, failures

    @rule(who=WHO, name=NAMES, key=KEYS, number=NUMBERS)
    def fail_in_a_block(self, who: int, name: str, key: Any, number: int) -> None:
        room = self.room(who)
        try:
            with room.enable_write():
                room.data[name] = {key: image(number)}
                room.data["n2"] = many(number)
                room.experiment["net"] = -1
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass

    @rule(who=WHO, number=NUMBERS)
    def fail_in_a_write(self, who: int, number: int) -> None:
        room = self.room(who)
        if "data/x" in self.now:
            with pytest.raises(ZeroDivisionError):
                room.data["x"].extend(many(number) if at < 3 else 1 / 0 for at in range(4))

    @rule(who=WHO)
    def commit(self, who: int) -> None:
        if self.now == self.committed:
            return
        self.room(who).commit("staged")
        self.committed = copied(self.now)

    @rule(who=WHO, number=NUMBERS)
    def commit_what_the_other_goes_on_from(self, who: int, number: int) -> None:
        """What is staged and not in the commit stays staged, upon it."""
        room = self.room(who)
        before = copied(self.now)
        self.rooms[1 - who].experiment["late"] = number
        self.now["experiment/late"] = number
        if before != self.committed:
            room.commit("staged")
            self.committed = before
        self.last = 1 - who
        self.room(1 - who)

    @rule(who=WHO, name=NAMES, number=NUMBERS)
    def block_while_the_other_stages(self, who: int, name: str, number: int) -> None:
        """What the other stages meanwhile stays staged, upon the commit."""
        room, other = self.room(who), self.rooms[1 - who]
        with room.enable_write():
            room.experiment["block"] = number
            other.experiment["during"] = number
            if f"data/{name}" in self.now:
                other.data[name]["during"] = image(number)
        self.now["experiment/block"] = number
        self.committed = copied(self.now)
        self.now["experiment/during"] = number
        if f"data/{name}" in self.now:
            self.now[f"data/{name}"]["during"] = [number, -number]
        assert content(other) == self.now

    @rule(who=WHO)
    def switch_and_merge(self, who: int) -> None:
        """To and fro; where something is staged, neither happens."""
        room = self.room(who)
        if len(room.log()) < 2:
            return
        if self.now != self.committed:
            for move in (room.switch, room.merge):
                with pytest.raises(UsageError, match="would leave behind what is staged"):
                    move("HEAD~1")
            return
        room.switch("HEAD~1")
        before = content(room)
        other = self.rooms[1 - who]
        assert content(other) == before
        other.experiment["elsewhere"] = 1
        with pytest.raises(UsageError, match="would leave behind what is staged"):
            room.switch("main")
        other.reset()
        room.switch("main")

    @rule(who=WHO)
    def cancel_out(self, who: int) -> None:
        """``commit`` and ``merge`` agree that nothing is staged."""
        room = self.room(who)
        room.experiment["only"] = 1
        del room.experiment["only"]
        if self.now == self.committed and room.head.commit is not None:
            with pytest.raises(UsageError, match="nothing has changed"):
                room.commit("nothing")
            assert room.merge(room.head.commit).how == "up to date"

    @rule(who=WHO)
    def reset(self, who: int) -> None:
        self.room(who).reset()
        self.now = copied(self.committed)

    @rule(who=WHO)
    def collect(self, who: int) -> None:
        for room in self.rooms:
            room.close()
        self.rooms = [StockRoom(self.folder, enable_write=True) for _ in range(2)]
        self.room(who).gc()

    @rule(at=st.integers(0, 9), what=st.sampled_from(["small", "large", "model", "reset", "commit"]))
    def die(self, at: int, what: str) -> None:
        """Afterwards all is as before or as after."""
        for room in self.rooms:
            room.close()
        before, after, committed = copied(self.now), copied(self.now), copied(self.committed)
        with dying(at):
            room = StockRoom(self.folder, enable_write=True)
            if what == "small":
                after["experiment/net"] = 9
                room.experiment["net"] = 9
            elif what == "large":
                after["data/y"] = {key: row.tolist() for key, row in enumerate(many(9))}
                room.data["y"] = many(9)
            elif what == "model":
                after["model/net"] = {"w": [9, -9]}
                room.model["net"] = {"w": image(9)}
            elif what == "reset":
                after = copied(self.committed)
                room.reset()
            elif self.now != self.committed:
                room.commit("staged")
            room.close()
        self.rooms = [StockRoom(self.folder, enable_write=True) for _ in range(2)]
        found = content(self.rooms[0])
        assert found in (before, after)
        self.now = found
        if what == "commit":
            self.committed = content(self.rooms[0].at("HEAD")) if self.rooms[0].head.commit else {}
            assert self.committed in (committed, after)

    # What must hold

    @invariant()
    def equal(self) -> None:
        """After each step: what was written, here and opened again."""
        assert content(self.rooms[self.last]) == self.now
        with StockRoom(self.folder, enable_write=True) as again:
            assert content(again) == self.now
            changed = {path for path, _ in again.status().staged}
            assert changed == {
                path
                for path in {*self.now, *self.committed}
                if self.now.get(path) != self.committed.get(path)
            }


TestStaging = pytest.mark.timeout(by_level(300, 900, 0))(Staging.TestCase)
TestStaging.settings = settings(
    stateful_step_count=by_level(8, 8, 25), suppress_health_check=list(HealthCheck)
)
