"""Random commands against a dict: what was published is there, whatever happened to the index and the packfiles."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hopyard.objects import digest
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.storage import LocalStore, MemoryStore, Store

KINDS = st.sampled_from(["page", "json", "commit", "fragment"])
CONTENTS = st.one_of(st.binary(max_size=3), st.integers(0, 5).map(lambda n: bytes([n]) * 40_000))


class Model(RuleBasedStateMachine):
    """``published`` and ``pending`` are what the repository and the writer should hold."""

    @initialize(in_files=st.booleans())
    def begin(self, in_files: bool) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.index = self.directory / "index.sqlite"
        self.store: Store = LocalStore(self.directory) if in_files else MemoryStore()
        self.published: dict[str, bytes] = {}
        self.reopen()

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule()
    def reopen(self) -> None:
        self.objects = Objects(self.store, self.index)
        self.drop()

    @rule()
    def drop(self) -> None:
        self.writer: PackfileWriter = self.objects.writing()
        self.pending: dict[str, bytes] = {}

    @rule(kind=KINDS, contents=st.lists(CONTENTS, max_size=5), width=st.sampled_from([0, 1, 12, 3072]))
    def add(self, kind: str, contents: list[bytes], width: int) -> None:
        for content in contents:
            name = self.writer.add(kind, content, width)
            assert name == digest(content, f"hopyard.{kind}")
            self.pending[name] = content

    @rule()
    def publish(self) -> None:
        self.writer.publish()
        self.published |= self.pending
        self.pending = {}

    @rule(kind=KINDS, content=CONTENTS)
    def another_process_publishes(self, kind: str, content: bytes) -> None:
        with Objects(self.store, self.index).writing() as writer:
            self.published[writer.add(kind, content)] = content

    @rule()
    def delete_index(self) -> None:
        self.index.unlink(missing_ok=True)

    @rule(place=st.floats(0, 1), junk=st.binary(min_size=1, max_size=200))
    def corrupt_index(self, place: float, junk: bytes) -> None:
        if self.index.exists():
            content = bytearray(self.index.read_bytes())
            start = int(place * len(content))
            content[start : start + len(junk)] = junk
            self.index.write_bytes(content)
        self.reopen()

    @rule()
    def repack(self) -> None:
        """As gc does, alone with the repository."""
        self.reopen()
        contents = {
            name: (self.objects.locate(name).kind, content) for name, content in self.published.items()
        }
        old = {entry.name for entry in self.store.list("packfiles")}
        fresh = MemoryStore()
        with Objects(fresh).writing() as writer:
            for kind, content in contents.values():
                writer.add(kind, content)
        for entry in fresh.list():
            self.store.put(entry.name, fresh.get(entry.name))
        for name in old - {entry.name for entry in fresh.list()}:
            self.store.delete(name)
        self.drop()

    @invariant()
    def all_is_there(self) -> None:
        found = self.writer.read_many([*self.published, *self.pending])
        assert {name: data.tobytes() for name, data in found.items()} == self.published | self.pending

    @invariant()
    def nothing_else_is_there(self) -> None:
        strange = digest(b"strange", "hopyard.page")
        assert self.objects.missing([*self.published, strange]) == {strange}


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=12)
