"""Random histories with merges, pushed and fetched between several repositories: what is shown is whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.stockroom.remotes.repositories import at, commit, content, samples, whole

from hopyard.errors import BehindError, NotFoundError
from hopyard.stockroom.history.commits import log
from hopyard.stockroom.remotes import ALL, OnDemand, Repository, bring, fetch, needs, pull, push, select
from hopyard.storage import LocalStore, MemoryStore

WHAT = ["commit", "commit", "commit", "merge", "merge", "branch", "push", "push", "fetch", "pull", "bring"]
BRANCHES = ["main", "dev", "q"]


def steps(seed: int) -> Iterator[tuple[Any, ...]]:
    """What to do; with which of two repositories; branch; other branch; which of two remotes; a sample's key."""
    random = Random(seed)
    for _ in range(25):
        choices = (WHAT, range(2), BRANCHES, BRANCHES, range(2), range(4))
        yield tuple(random.choice(choice) for choice in choices)


class World:
    """Two repositories, one of them lazy, and two remotes."""

    def __init__(self, folder: Path) -> None:
        self.stores = [MemoryStore(), LocalStore(folder / "remote")]
        self.remotes = [
            [
                Repository.at(store, folder / f"{me}-{n}.sqlite", name=f"r{n}")
                for n, store in enumerate(self.stores)
            ]
            for me in range(2)
        ]
        plain = [at(folder / str(me)) for me in range(2)]
        self.locals = [
            Repository.at(one.store, one.store.path("index.sqlite"), OnDemand(one, self.remotes[me]))
            for me, one in enumerate(plain)
        ]
        self.count = 0

    def do(self, step: tuple[Any, ...]) -> None:
        what, me, branch, other, to, key = step
        local, remote = self.locals[me], self.remotes[me][to]
        heads = local.references.names("heads")
        self.count += 1
        if what == "commit":
            commit(local, branch, str(self.count), **{f"c{me}": samples(2, key, seed=self.count)})
        elif what == "branch" and branch in heads and other not in heads:
            local.references.set(f"heads/{other}", heads[branch], "x")
        elif what == "merge" and branch in heads and other in heads:
            if heads[other] not in {one.digest for one in log(local.objects, heads[branch])}:
                commit(local, branch, "m", merged=heads[other], merged_column=samples(1, seed=self.count))
        elif what == "push" and branch in heads:
            others = [one for one in self.remotes[me] if one is not remote]
            try:
                push(local, remote, [branch], others=others)
            except BehindError:
                pull(local, remote, branch, "x", resolve="ours")
                push(local, remote, [branch], others=others)
        elif what in ("fetch", "pull", "bring") and remote.store.exists("FORMAT"):
            fetched = fetch(local, remote)
            if what == "pull" and branch in fetched.heads:
                pull(local, remote, branch, "x", resolve="theirs")
            if what == "bring":
                bring(local, [remote], select(local.objects, fetched.heads.values(), ALL))

    def check(self) -> None:
        for store in self.stores:
            whole(store)
        for local in self.locals:
            tips = {tip for kind in ("heads", "remotes") for tip in local.references.names(kind).values()}
            metadata = {need.digest for need in needs(local.objects, tips) if need.is_metadata}
            assert not local.objects.missing(metadata)


@given(st.integers(0, 1 << 32))
def test_whatever_is_shown_is_whole(seed: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        world = World(folder)
        for step in steps(seed):
            world.do(step)
        world.check()
    finally:
        shutil.rmtree(folder)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans()), min_size=1, max_size=10),
    st.data(),
)
def test_what_lacks_is_what_is_needed_less_what_is_there(
    shape: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    """``needs(a, without=b)`` and what ``b`` needs are together all that both need, in every shape of history."""
    repository = at(MemoryStore())
    made: list[str] = []
    for number, (one, two, is_merge) in enumerate(shape):
        if made:
            repository.references.set(f"heads/b{number}", made[one % len(made)], "x")
        merged = made[two % len(made)] if made and is_merge else None
        merged = None if made and merged == made[one % len(made)] else merged
        columns = {f"c{number % 3}": samples(2, number, seed=number % 4)}
        made.append(commit(repository, f"b{number}", str(number), merged=merged, **columns))
    a = data.draw(st.sets(st.sampled_from(made), min_size=1))
    b = data.draw(st.sets(st.sampled_from(made)))
    new = [need.digest for need in needs(repository.objects, a, b)]
    assert len(new) == len(set(new))
    there = {need.digest for need in needs(repository.objects, b)}
    assert {need.digest for need in needs(repository.objects, a | b)} == there | set(new)
    for digest in a:
        try:
            content(repository, digest)
        except NotFoundError as error:
            raise AssertionError(str(error)) from error
