"""Fetches: metadata only, whole packfiles or single objects, references last."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stockroom.remotes.repositories import at, commit, samples, tip

from hopyard import StockRoom
from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.stockroom.data.repacking import bury_samples
from hopyard.stockroom.packfiles.tombstones import Purged
from hopyard.stockroom.remotes import Fetched, Repository, delete, fetch, forget, needs, push
from hopyard.stockroom.remotes.known import KnownRemote, names, recall, remember
from hopyard.storage import LocalStore, MemoryStore, Store, open_store
from hopyard.storage.testing import CountingStore


def has_metadata(repository: Repository, digest: str) -> bool:
    metadata = {need.digest for need in needs(repository.objects, [digest]) if need.is_metadata}
    return not repository.objects.missing(metadata)


def test_metadata_come_and_nothing_else(local: Repository, remote: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(50, size=1000), values={"notes": "n" * 9000})
    last = commit(local, "main", "2", label=samples(3))
    local.references.set("tags/v1", last, "Ada")
    push(local, remote, ["main"], ["v1"])
    copy = at(tmp_path / "copy")
    fetched = fetch(copy, remote, by="Bob")
    assert fetched.heads == {"main": last}
    assert fetched.branches == {"main": (None, last)}
    assert fetched.tags == {"v1": last}
    assert 0 < fetched.nbytes < 40_000
    assert copy.references.names("remotes") == {"origin/main": last}
    assert copy.references.names("tags") == {"v1": last}
    assert copy.references.names("heads") == {}
    assert has_metadata(copy, last)
    data = [need.digest for need in needs(copy.objects, [last]) if not need.is_metadata]
    assert copy.objects.missing(data) == set(data)
    again = fetch(copy, remote)
    assert (again.branches, again.tags, again.nbytes) == ({}, {}, 0)


def test_what_is_new_comes_with_few_requests(local: Repository, tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    writer = at(store, "origin")
    for number in range(30):
        commit(local, image=samples(1, start=number))
        push(local, writer, ["main"])
    reader = Repository.at(store, tmp_path / "index-origin.sqlite", name="origin")
    copy = at(tmp_path / "copy")
    store.reset()
    fetch(copy, reader)
    assert store.calls["get"] <= 30 + 4  # a packfile of metadata for each push
    assert not [name for name in store.asked if "data-" in name]
    for number in range(3):
        commit(local, image=samples(1, start=100 + number))
        push(local, writer, ["main"])
    store.reset()
    fetch(copy, reader)
    assert store.calls.total() <= 20, store.asked
    assert has_metadata(copy, tip(local))


def test_ones_own_pushes_do_not_come_back(local: Repository, tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    mine = Repository.at(store, tmp_path / "local" / "index-origin.sqlite", name="origin")
    for number in range(3):
        commit(local, image=samples(1, start=number))
        commit(local, image=samples(1, start=10 + number))
        push(local, mine, ["main"])
    other = at(tmp_path / "other")
    fetch(other, at(store, "origin"))
    other.references.set("heads/main", tip(local), "Bob")
    last = commit(other, "main", "bob", label=samples(1))
    push(other, at(store, "origin"), ["main"])
    store.reset()
    fetch(local, mine)
    assert len([name for name in store.asked if "packfiles/meta" in name]) == 1, store.asked
    assert local.references.tip("remotes/origin/main").commit == last


def test_one_branch_of_a_large_packfile_comes_by_ranges(
    local: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopyard.stockroom.remotes.arriving._SMALL", 1)
    first = commit(local, "small", "s", label=samples(2))
    commit(local, "large", "l", values={f"v{n}": f"{n}" * 4000 for n in range(200)})
    store = CountingStore(MemoryStore())
    push(local, at(store, "origin"), ["small", "large"])
    copy = at(tmp_path / "copy")
    store.reset()
    fetched = fetch(copy, at(store, "origin"), ["small"])
    assert fetched.nbytes < 3000
    assert has_metadata(copy, first)
    assert copy.references.names("remotes") == {"origin/small": first}
    with pytest.raises(
        NotFoundError, match=r"has no branch 'smal'; did you mean 'small'\? Nothing was fetched"
    ):
        fetch(copy, at(store, "origin"), ["smal"])


def test_tags_that_differ_stay_and_are_told(local: Repository, remote: Repository, tmp_path: Path) -> None:
    theirs = commit(local, image=samples(1))
    local.references.set("tags/v1", theirs, "Ada")
    push(local, remote, ["main"], ["v1"])
    copy = at(tmp_path / "copy")
    mine = commit(copy, label=samples(1))
    copy.references.set("tags/v1", mine, "Bob")
    assert fetch(copy, remote).differing == {"v1": theirs}
    assert copy.references.names("tags") == {"v1": mine}


def test_branches_that_are_gone_are_told_and_forgotten_if_asked(
    local: Repository, remote: Repository, tmp_path: Path
) -> None:
    commit(local, image=samples(1))
    push(local, remote, {"main": "a/b"})
    push(local, remote, ["main"])
    copy = at(tmp_path / "copy")
    fetch(copy, remote)
    delete(remote, ["a/b"])
    assert fetch(copy, remote).gone == ["a/b"]
    assert copy.references.names("remotes").keys() == {"origin/a/b", "origin/main"}
    assert fetch(copy, remote, prune=True).gone == ["a/b"]
    assert copy.references.names("remotes").keys() == {"origin/main"}


def test_several_remotes(local: Repository, tmp_path: Path) -> None:
    one, two = at(MemoryStore(), "one"), at(MemoryStore(), "two")
    first = commit(local, image=samples(1))
    push(local, one, ["main"])
    second = commit(local, image=samples(1, 1))
    push(local, two, ["main"])
    copy = at(tmp_path / "copy")
    fetch(copy, one)
    fetch(copy, two)
    assert copy.references.names("remotes") == {"one/main": first, "two/main": second}
    remember(copy.store, KnownRemote("one", one.store.url))
    forget(copy, "one")
    assert copy.references.names("remotes") == {"two/main": second}
    assert names(copy.store) == []
    with pytest.raises(NotFoundError, match=r"no remote 'one' is known here. Known are: none"):
        recall(copy.store, "one")


def test_a_remote_with_many_tags_stays_known(local: Repository) -> None:
    known = KnownRemote(
        "origin", "s3://bucket", tags={f"v{number}": f"{number:064x}" for number in range(20_000)}
    )
    remember(local.store, known)
    assert recall(local.store, "origin") == known


@pytest.mark.parametrize("where", ["files", "memory"])
def test_a_place_that_is_no_stockroom(local: Repository, tmp_path: Path, where: str) -> None:
    store: Store = LocalStore(tmp_path / "nothing") if where == "files" else MemoryStore()
    with pytest.raises(NotFoundError, match=r"there is no stockroom at .*Check the address"):
        fetch(local, at(store, "origin", index=False))
    assert local.references.names("remotes") == {}


def test_a_bucket_that_does_not_exist(local: Repository, s3: object) -> None:
    with pytest.raises(StorageError, match="the bucket of s3://no-such-bucket/x does not exist"):
        fetch(local, at(open_store("s3://no-such-bucket/x"), "origin"))


def test_damage_does_not_spread(local: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(1), values={"long": "z" * 9000})
    store = MemoryStore()
    push(local, at(store, "origin"), ["main"])
    (packfile,) = [entry.name for entry in store.list("packfiles") if "meta" in entry.name]
    data = store.get(packfile)
    store.put(packfile, data.replace(b"zzz", b"zaz", 1))
    copy = at(tmp_path / "copy")
    with pytest.raises(CorruptError, match="has changed"):
        fetch(copy, at(store, "origin"))
    assert copy.references.names("remotes") == {}
    store.put(packfile, data)
    fetch(copy, at(store, "origin"))
    assert has_metadata(copy, tip(local))


def test_a_remote_that_lacks_something_is_named(local: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(1))
    store = MemoryStore()
    push(local, at(store, "origin"), ["main"])
    for entry in list(store.list("packfiles")):
        if "meta" in entry.name:
            store.delete(entry.name)
    copy = at(tmp_path / "copy")
    with pytest.raises(NotFoundError, match=r"lacks the object .* which a commit that it shows needs"):
        fetch(copy, at(store, "origin"))
    assert copy.references.names("remotes") == {}


def test_tombstones_come_first(local: Repository, remote: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(2))
    (need,) = (one for one in needs(local.objects, [tip(local)]) if not one.is_metadata)
    record = (Purged(0, "2026-01-01T00:00:00+00:00", "Ada", "asked"),)
    tombstone = bury_samples(local.objects, need.digest, "image", record)
    push(local, remote, ["main"])
    copy = at(tmp_path / "copy")
    assert fetch(copy, remote).purges.claimed == [tombstone]
    assert not copy.store.exists(tombstone.name)
    assert fetch(copy, remote, accept_purges=True).purges.accepted == [tombstone]
    assert copy.store.get(tombstone.name) == tombstone.encode()


def test_a_remote_of_which_only_the_address_is_known_is_fetched_and_pulled_from(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "own") as own:
        with own.enable_write("one"):
            own.data["x"] = [1]
        own.push(tmp_path / "remote")
        with StockRoom.clone(tmp_path / "remote", tmp_path / "clone") as clone:
            with own.enable_write("two"):
                own.data["x"] = [1, 2]
            before = own.labels()
            fetched = clone.fetch(tmp_path / "own")  # origin is the other folder
            assert isinstance(fetched, Fetched)
            assert fetched.branches == {"main": (None, own.head.commit)}
            assert clone.log(own.head.commit or "")[0].message == "two"
            assert own.labels() == before
            pulled = clone.pull(tmp_path / "own")
            assert (pulled.how, pulled.commit) == ("forward", own.head.commit)
            assert clone.fetch(tmp_path / "own", data=["x"]).nbytes > 0
            assert [int(each) for each in clone.data["x"].values()] == [1, 2]
            assert list(clone.remotes()) == ["origin"]
