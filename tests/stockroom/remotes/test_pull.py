"""Pulls, and many writers at one remote."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sampling import by_level
from tests.stockroom.remotes.repositories import at, commit, content, samples, tip, whole

from hopyard.errors import NotFoundError
from hopyard.stockroom.remotes import Repository, fetch, pull, push
from hopyard.storage import LocalStore, MemoryStore, Store, open_store


@pytest.fixture
def clones(local: Repository, tmp_path: Path) -> tuple[Repository, Repository, Repository]:
    """A remote, and two repositories at the same commit of it."""
    remote = at(MemoryStore(), "origin")
    commit(local, image=samples(3))
    push(local, remote, ["main"])
    other = at(tmp_path / "other")
    pull(other, remote, "main", "Bob")
    return remote, local, other


def test_a_branch_goes_on_to_theirs(clones: tuple[Repository, Repository, Repository]) -> None:
    remote, local, other = clones
    assert tip(other) == tip(local)
    commit(local, label=samples(1))
    push(local, remote, ["main"])
    pulled = pull(other, remote, "main", "Bob")
    assert (pulled.how, pulled.commit) == ("forward", tip(local))
    assert tip(other) == tip(local)
    assert pull(other, remote, "main", "Bob").how == "nothing"
    commit(other, other=samples(1))
    assert pull(other, remote, "main", "Bob").how == "nothing"


def test_both_have_new_commits(clones: tuple[Repository, Repository, Repository]) -> None:
    remote, local, other = clones
    mine = commit(other, label=samples(1))
    theirs = commit(local, image=samples(1, 7))
    push(local, remote, ["main"])
    pulled = pull(other, remote, "main", "Bob")
    assert pulled.how == "merged"
    assert pulled.commit == tip(other)
    push(other, remote, ["main"])
    assert whole(remote.store) == {pulled.commit}
    pull(local, remote, "main", "Ada")
    assert content(remote, tip(local)) == content(local, theirs) | {
        "data/label": content(remote, mine)["data/label"]
    }


def test_conflicts_leave_the_branch(clones: tuple[Repository, Repository, Repository]) -> None:
    remote, local, other = clones
    mine = commit(other, values={"lr": 1})
    commit(local, values={"lr": 2})
    push(local, remote, ["main"])
    pulled = pull(other, remote, "main", "Bob")
    assert (pulled.how, pulled.commit) == ("conflicts", mine)
    assert [conflict.path for conflict in pulled.conflicts] == ["experiment/lr"]
    assert tip(other) == mine
    assert pull(other, remote, "main", "Bob", resolve="theirs").how == "merged"
    push(other, remote, ["main"])
    assert content(remote, tip(other))["experiment/lr"] == 2


def test_a_branch_of_another_name(clones: tuple[Repository, Repository, Repository]) -> None:
    remote, local, other = clones
    made = commit(local, "dev", "d", label=samples(1))
    push(local, remote, ["dev"])
    assert pull(other, remote, "mine", "Bob", theirs="dev").how == "forward"
    assert tip(other, "mine") == made
    with pytest.raises(
        NotFoundError, match=r"has no branch 'deb'; did you mean 'dev'\? The branch 'mine' is as it was"
    ):
        pull(other, remote, "mine", "Bob", theirs="deb")


_WORK = """
import pickle, sys
from pathlib import Path
from hopyard.errors import BehindError
from hopyard.stockroom.remotes import OnDemand, Repository, pull, push
from hopyard.storage import LocalStore
from tests.stockroom.remotes.repositories import at, commit, samples

store, folder, me, rounds = pickle.load(sys.stdin.buffer)
local = LocalStore(folder)
remote = Repository.at(store, local.path("index-origin.sqlite"), name="origin")
repository = Repository.at(local, local.path("index.sqlite"), OnDemand(at(local), [remote]))
pull(repository, remote, "main", me)
for turn in range(rounds):
    commit(repository, "main", me, values={f"{me}-{turn}": turn}, **{me: samples(1, turn)})
    while True:
        try:
            push(repository, remote, ["main"], by=me)
            break
        except BehindError:
            assert pull(repository, remote, "main", me).how != "conflicts"
"""


@pytest.mark.parametrize(("where", "writers"), [("files", by_level(4, 4, 8)), ("s3", by_level(2, 2, 4))])
def test_many_writers_lose_nothing(
    where: str, writers: int, local: Repository, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Processes clone, commit, push, and pull when another was faster."""
    rounds = 2
    store: Store = LocalStore(tmp_path / "remote")
    if where == "s3":
        store = open_store(request.getfixturevalue("s3_url"))
    commit(local, image=samples(3))
    push(local, at(store, "origin", index=False), ["main"])
    processes = []
    for number in range(writers):
        process = subprocess.Popen(
            [sys.executable, "-c", _WORK],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((store, tmp_path / f"w{number}", f"w{number}", rounds)))
        process.stdin.close()
        processes.append(process)
    assert [process.wait(250) for process in processes] == [0] * writers
    (last,) = whole(store)
    found = content(at(store, index=False), last)
    names = [f"w{number}" for number in range(writers)]
    assert {f"experiment/{me}-{turn}" for me in names for turn in range(rounds)} <= found.keys()
    assert all(found[f"data/{me}"].keys() == set(range(rounds)) for me in names)
    fetch(local, at(store, "origin", index=False))
    assert local.references.tip("remotes/origin/main").commit == last
