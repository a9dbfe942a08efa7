"""Random operations on a bucket behind a faulty wire, and the same in a directory: both hold the same in the end."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from tests.s3_gateway import Gateway
from tests.sampling import SEED, by_level
from tests.slow_wire import Settings, slow_wire
from tests.stockroom.remotes.repositories import at, commit, content, samples, tip, whole

from hopyard.data import open_dataset, prepare
from hopyard.hopper.segments import Segments
from hopyard.stockroom.remotes import Repository, fetch, push
from hopyard.storage import LocalStore, ObjectStore, Store


class Twins:
    """A bucket and a directory that the same is done to, and what was done."""

    def __init__(self, far: Store, folder: Path, seed: int) -> None:
        self.stores: dict[str, Store] = {"far": far, "here": LocalStore(folder / "here")}
        self.folder = folder
        self.random = random.Random(seed)
        self.local = at(folder / "local")
        self.remotes = {
            name: Repository.at(store.at("stock"), folder / "local" / f"{name}.sqlite", name=name)
            for name, store in self.stores.items()
        }
        self.clones = {name: at(folder / f"clone-{name}") for name in self.stores}
        self.journals = {name: Segments(store.at("run")) for name, store in self.stores.items()}
        self.written: list[bytes] = []
        self.commits, self.pushed = 0, False

    def put(self) -> None:
        name, data = (
            f"objects/{self.random.randrange(20)}",
            self.random.randbytes(self.random.randrange(3000)),
        )
        for store in self.stores.values():
            store.put(name, data)

    def put_new(self) -> None:
        name, data = f"objects/{self.random.randrange(20)}", self.random.randbytes(10)
        won = {store.put_new(name, data) for store in self.stores.values()}
        assert len(won) == 1, "the same name is free or taken"

    def delete(self) -> None:
        name = f"objects/{self.random.randrange(20)}"
        for store in self.stores.values():
            store.delete(name)

    def look(self) -> None:
        name = f"objects/{self.random.randrange(20)}"
        far, here = self.stores.values()
        assert far.size(name) == here.size(name)
        if (size := here.size(name)) is not None:
            start = self.random.randrange(size + 1)
            assert far.get(name, start) == bytes(far.read(name, start).data) == here.get(name, start)
        assert list(far.list("objects")) == list(here.list("objects"))

    def commit(self) -> None:
        self.commits += 1
        first = self.random.randrange(50)
        commit(self.local, message=str(self.commits), image=samples(3, start=first, seed=self.commits))

    def push(self) -> None:
        if self.commits:
            for remote in self.remotes.values():
                push(self.local, remote, ["main"])
            self.pushed = True

    def fetch(self) -> None:
        for name, remote in self.remotes.items() if self.pushed else ():
            fetch(self.clones[name], remote)

    def append(self) -> None:
        body = b'{"n": %d}\n' % len(self.written)
        self.written.append(body)
        assert {journal.append(body) for journal in self.journals.values()} == {len(self.written)}

    def prepare(self) -> None:
        seed = self.random.randrange(5)
        data = {"x": np.random.default_rng(seed).standard_normal((40, 3)), "y": np.arange(40)}
        prints = {prepare(data, store, validation=0.25).train.fingerprint for store in self.stores.values()}
        assert len(prints) == 1
        far, here = (open_dataset(store)[:] for store in self.stores.values())
        assert all(np.array_equal(far[name], here[name]) for name in here)

    def check(self) -> None:
        self.look()
        if self.commits:
            self.push()
            self.fetch()
            newest = tip(self.local)
            for name, remote in self.remotes.items():
                assert newest in whole(remote.store)
                assert content(remote, newest) == content(self.local, newest)
                assert self.clones[name].references.tip(f"remotes/{name}/main").commit == newest
        for store in self.stores.values():
            assert [found for found in Segments(store.at("run")).read() if found] == self.written
        names = [store.names("train_data") for store in self.stores.values()]
        assert names[0] == names[1]


OPERATIONS = {
    Twins.put: 6, Twins.put_new: 6, Twins.delete: 3, Twins.look: 6, Twins.commit: 2, Twins.push: 1, Twins.fetch: 1,
    Twins.append: 4, Twins.prepare: 1,
}  # fmt: skip


def test_random_operations_over_the_wire_are_those_in_a_directory(
    gateway: Gateway, s3_url: str, tmp_path: Path
) -> None:
    settings = Settings(gateway.url, latency=by_level(2, 2, 50) / 1000, share=0.05, seed=SEED)
    with slow_wire(settings) as wire:
        twins = Twins(ObjectStore(s3_url, endpoint=wire.url), tmp_path, SEED)
        drawn = random.Random(SEED)
        for number in range(by_level(60, 100, 10_000)):
            drawn.choices(list(OPERATIONS), list(OPERATIONS.values()))[0](twins)
            if number % 1000 == 999:
                twins.check()
        twins.check()
        print(f"faults by seed {SEED}:", *wire.passed().faults, sep="\n  ")
