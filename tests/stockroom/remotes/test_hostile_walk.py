"""A remote that changes anything at random: what is read under a commit is what was committed, or an error."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import by_level
from tests.stockroom.maintenance.histories import begun, reopened
from tests.stockroom.maintenance.purges import readable
from tests.stockroom.remotes.lies import RECORD, Content, column, head_of, lazy, lie
from tests.stockroom.remotes.repositories import at, commit, tip

from hopyard.errors import CorruptError, HopyardError
from hopyard.stockroom.data.repacking import bury_samples
from hopyard.stockroom.history.commits import log
from hopyard.stockroom.maintenance import purge, verify
from hopyard.stockroom.packfiles.tombstones import FOLDER
from hopyard.stockroom.remotes import OnDemand, Repository, fetch, needs, pull, push
from hopyard.storage import LocalStore

STEPS = ["commit", "commit", "push", "push", "fetch", "pull", "clone", "purge", "accept", "backup"]
ATTACKS = [
    "delete", "truncate", "flip", "swap", "replay", "restore", "foreign", "back", "garbage", "lie", "lie", "redact",
    "link", "huge", "stray",
]  # fmt: skip


class World:
    """Ada, who has all data; Bob, who brings what he reads; a hostile remote, and an honest one."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, Random(seed)
        self.ada, self.remote, self.honest = begun(folder / "ada"), folder / "remote", folder / "honest"
        self.expected: dict[str, Content] = {}
        self.gone: dict[str, set[Any]] = {"ada": set(), "bob": set()}
        self.saved: list[dict[str, bytes]] = []
        self.count = 0
        self.commit()
        push(self.ada, self.there(), ["main"])
        self.bob_plain = begun(folder / "bob")
        fetch(self.bob_plain, self.there())

    def there(self) -> Repository:
        return at(self.remote, "origin", index=False)

    @property
    def bob(self) -> Repository:
        return Repository.at(self.bob_plain.store, absent=OnDemand(self.bob_plain, [self.there()]))

    # What people do

    def commit(self) -> None:
        self.count += 1
        changes = {
            self.random.randrange(6): np.full(8, self.random.randrange(200), np.uint8) for _ in range(3)
        }
        heads = self.ada.references.names("heads")
        before = dict(self.expected[heads["main"]]) if heads else {}
        note = {self.count: f"note {self.count}"}
        made = commit(self.ada, image=changes, note=note, values={"n": self.count})
        # What was purged is not in what is written anew; a claim may have been about another fragment.
        left = readable(column(self.ada, heads["main"])) if heads else {}
        gone = {("image", key) for key, value in left.items() if value is None}
        before = {key: value for key, value in before.items() if key not in gone}
        before |= {("image", key): value.tolist() for key, value in changes.items()}
        before["note", self.count] = note[self.count]
        self.expected[made] = before

    def do_as_a_user(self, what: str) -> None:
        """Whatever fails says so as Hopyard does."""
        try:
            self.do(what)
        except OSError as error:
            raise AssertionError(what) from error

    def do(self, what: str) -> None:
        if what == "commit":
            self.commit()
        elif what == "push":
            push(self.ada, self.there(), ["main"])
        elif what == "fetch":
            fetch(self.bob_plain, self.there())
        elif what == "pull":
            pull(self.bob, self.there(), "main", "Bob")
        elif what == "clone":
            clone = lazy(self.folder / f"clone{self.random.random()}", self.there())
            heads = fetch(clone, self.there()).heads
            self.check(clone, heads.values(), set(), is_whole=False)
        elif what == "purge":
            key = self.random.randrange(6)
            purge(self.ada, "image", key, "asked", "Ada")
            self.gone["ada"].add(("image", key))
        elif what == "accept":
            accepted = fetch(self.ada, self.there(), accept_purges=True).purges.accepted
            self.gone["ada"] |= {(one.column, key) for one in accepted for key in one.keys}
        elif what == "backup":
            push(self.ada, at(self.honest, "honest", index=False), ["main"])
            backup = at(self.honest, index=False)
            assert not verify(backup).problems
            self.check(backup, backup.references.names("heads").values(), self.gone["ada"], is_whole=True)

    # What the remote does

    def attack(self, what: str) -> None:
        files = sorted(file for file in self.remote.rglob("*") if file.is_file() and not file.is_symlink())
        names = [str(file.relative_to(self.remote)) for file in files]
        if not files:
            return
        at_random = self.random.randrange(len(files))
        file, other = files[at_random], self.random.choice(files)
        data = head_of(file)
        if what == "delete":
            file.unlink()
        elif what == "truncate":
            file.write_bytes(data[: self.random.randrange(len(data) + 1)])
        elif what == "flip" and data:
            where = self.random.randrange(len(data))
            file.write_bytes(data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :])
        elif what == "swap":
            file.write_bytes(head_of(other))
        elif what == "replay" and self.saved:
            name, content = self.random.choice(sorted(self.random.choice(self.saved).items()))
            self.write(name, content)
        elif what == "restore" and self.saved:
            shutil.rmtree(self.remote)
            for name, content in self.random.choice(self.saved).items():
                self.write(name, content)
        elif what in ("foreign", "back"):
            self.move(what)
        elif what == "garbage":
            self.write(f"{FOLDER}/{'a' * 64}/{'b' * 64}", self.random.choice([b"", b"{}", b"[" * 9000, data]))
        elif what in ("lie", "redact"):
            self.claim(what)
        elif what == "link":
            file.unlink()
            file.symlink_to(self.random.choice([Path("/etc/passwd"), other, self.folder / "ada"]))
        elif what == "huge":
            os.truncate(file, 1 << 30)
        elif what == "stray":
            self.write(f"{names[at_random].rpartition('/')[0] or 'packfiles'}/stray", data)
        self.saved.append({name: head_of(self.remote / name) for name in names if self.is_small(name)})

    def is_small(self, name: str) -> bool:
        file = self.remote / name
        return file.is_file() and not file.is_symlink() and file.stat().st_size < 1 << 20

    def write(self, name: str, data: bytes) -> None:
        file = self.remote / name
        shutil.rmtree(file, ignore_errors=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_bytes(data)

    def move(self, what: str) -> None:
        """Let the branch be an older commit, or one of a history of the remote's own."""
        references = at(LocalStore(self.remote), index=False).references
        made = self.random.choice(sorted(self.expected))
        if what == "foreign":
            mallory = begun(self.folder / f"mallory{self.random.random()}")
            made = commit(mallory, image={1: np.zeros(8, np.uint8)})
            self.expected[made] = {("image", 1): [0] * 8}
            for entry in mallory.store.list("packfiles"):
                self.write(entry.name, mallory.store.get(entry.name))
        references.set("heads/main", made, "Mallory")

    def claim(self, what: str) -> None:
        """Forge a tombstone of some fragment; and delete that, or not."""
        every = list(needs(self.ada.objects, [tip(self.ada)]))
        need = self.random.choice([one for one in every if one.kind == "fragment" or what == "lie"])
        if what == "lie":
            lie(self.remote, need.digest)
        elif self.ada.objects.alone().packed([need.digest]):
            other = begun(self.folder / f"mallory{self.random.random()}")
            with other.objects.writing() as writer:
                name = writer.add("fragment", self.ada.objects.read(need.digest).tobytes())
            keys = tuple(one._replace(key=key) for one in RECORD for key in (self.random.randrange(6),))
            try:
                tombstone = bury_samples(other.objects, name, need.thing.partition("/")[2], keys)
            except CorruptError:  # there is no such sample
                return
            self.write(tombstone.name, tombstone.encode())

    # What must be so

    def check(self, repository: Repository, commits: Any, gone: set[Any], is_whole: bool) -> None:
        past: dict[str, None] = {}
        for digest in commits:
            try:
                past |= dict.fromkeys(one.digest for one in log(repository.objects, digest))
            except HopyardError:
                assert not is_whole
        for each in past:
            if each in self.expected:  # Bob's merges are his own
                self.check_commit(repository, each, gone, is_whole)

    def check_commit(self, repository: Repository, digest: str, gone: set[Any], is_whole: bool) -> None:
        expected = self.expected[digest]
        for name in ("image", "note"):
            keys = {key for column, key in expected if column == name}
            if not keys:
                continue
            try:
                found = readable(column(repository, digest, name))
            except HopyardError:
                assert not is_whole
                continue
            for key, value in found.items():
                value = str(value) if name == "note" and value is not None else value
                if value is None:
                    assert (name, key) in gone
                else:
                    assert value == expected[name, key]
            assert keys - found.keys() <= {key for column, key in gone if column == name}

    def check_all(self) -> None:
        for one, name in ((self.ada, "ada"), (self.bob, "bob")):
            commits = [c for kind in ("heads", "remotes") for c in one.references.names(kind).values()]
            self.check(one, commits, self.gone[name], is_whole=False)
        own = reopened(self.ada)
        self.check(own, own.references.names("heads").values(), self.gone["ada"], is_whole=True)


def run(seed: int, count: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        world = World(folder, seed)
        for _ in range(count):
            with suppress(
                HopyardError, OSError
            ):  # OSError: of the attacker, who has broken the folder before
                if world.random.random() < 0.5:
                    world.attack(world.random.choice(ATTACKS))
                else:
                    world.do_as_a_user(world.random.choice(STEPS))
            world.check_all()
        own = verify(reopened(world.ada)).problems
        assert not [one for one in own if one.kind not in ("missing", "index")], own
    finally:
        shutil.rmtree(folder)


@pytest.mark.long
@given(st.integers(0, 1 << 32))
def test_what_is_read_under_a_commit_is_what_was_committed(seed: int) -> None:
    run(seed, by_level(8, 8, 12))
