"""Pushes: what arrives, what is refused, how many requests it takes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.stockroom.remotes.repositories import at, commit, content, samples, tip, whole

from hopyard.errors import BehindError, FormatError, NotFoundError, NotWritableError, StorageError, UsageError
from hopyard.stockroom.data.repacking import bury_samples
from hopyard.stockroom.packfiles.tombstones import Purged
from hopyard.stockroom.remotes import (
    ALL,
    Repository,
    TransferProgress,
    bring,
    delete,
    fetch,
    needs,
    pull,
    push,
    select,
)
from hopyard.storage import LocalStore, MemoryStore, ObjectStore, Store
from hopyard.storage.format import claim_format
from hopyard.storage.testing import CountingStore


def test_what_was_pushed_is_whole_there(local: Repository, remote: Repository, tmp_path: Path) -> None:
    commit(local, image=samples(5), models={"net": {"w": np.ones(3)}}, values={"lr": 0.1, "long": "x" * 9000})
    first = tip(local)
    second = commit(local, "main", "2", image=samples(2, start=3, seed=1), label={0: "cat", "dog": "dog"})
    local.references.set("tags/v1", first, "Ada")
    seen: list[TransferProgress] = []
    pushed = push(local, remote, ["main"], ["v1"], by="Ada", report=seen.append)
    assert pushed.branches == {"main": (None, second)}
    assert pushed.tags == {"v1": first}
    assert pushed.objects > 10
    *told, sent = str(pushed).splitlines()
    assert told == [f"main: new -> {second[:12]}", f"tag v1: {first[:12]}"]
    assert sent.startswith(f"{pushed.objects} objects, ")
    assert whole(remote.store) == {first, second}
    assert content(remote, second) == content(local, second)
    assert local.references.tip("remotes/origin/main").commit == second
    assert seen[-1].nbytes == seen[-1].total == pushed.nbytes
    assert seen[-1].speed > 0


def test_an_unchanged_push_sends_nothing_and_asks_little(local: Repository) -> None:
    store = CountingStore(MemoryStore())
    commit(local, image=samples(100, size=5000))
    push(local, at(store, "origin"), ["main"])
    assert store.calls["put"] == 2  # one packfile of data, one of metadata
    store.reset()
    again = push(local, at(store, "origin"), ["main"])
    assert again.objects == 0
    assert repr(again) == "nothing is new; the remote has all of it"
    assert store.calls.total() <= 5
    assert store.calls["put"] + store.calls["put_new"] == 0


def test_a_small_push_after_many_takes_few_requests(local: Repository) -> None:
    store = CountingStore(MemoryStore())
    remote = at(store, "origin")
    for number in range(12):
        commit(local, image=samples(1, start=number))
        push(local, remote, ["main"])
    commit(local, image=samples(1, start=99), values={f"v{n}": n for n in range(40)})
    store.reset()
    push(local, remote, ["main"])
    assert store.calls.total() <= 14, store.asked


def test_many_commits_come_in_one_packfile(local: Repository) -> None:
    for number in range(20):
        commit(local, image=samples(1, start=number))
    store = CountingStore(MemoryStore())
    push(local, at(store, "origin"), ["main"])
    assert store.calls["put"] == 2
    assert whole(store) == {tip(local)}


def test_a_push_after_a_merge_sends_all_of_history(local: Repository, remote: Repository) -> None:
    """The shape in which Hangar lost a commit: main merges one, feature merges main."""
    base = commit(local, image=samples(1))
    for name in ("q", "feature"):
        local.references.set(f"heads/{name}", base, "Ada")
    side = commit(local, "q", "q", other=samples(1))
    commit(local, "main", "m", image=samples(1, 1))
    main = commit(local, "main", "merge q", merged=side, other=samples(1))
    commit(local, "feature", "f", third=samples(1))
    last = commit(local, "feature", "merge main", merged=main, image=samples(1, 1), other=samples(1))
    push(local, remote, ["feature"])
    assert whole(remote.store) == {last}


def test_a_push_that_would_lose_commits_is_refused(
    local: Repository, remote: Repository, tmp_path: Path
) -> None:
    first = commit(local, image=samples(1))
    push(local, remote, ["main"])
    other = at(tmp_path / "other")
    fetch(other, at(remote.store, "origin"))
    other.references.set("heads/main", first, "Bob")
    theirs = commit(other, "main", "bob", label=samples(1))
    push(other, at(remote.store, "origin"), ["main"])
    mine = commit(local, "main", "ada", image=samples(1, 1))
    with pytest.raises(
        BehindError, match=r"has commits that are not in yours\. Pull first.*hopyard stock pull"
    ):
        push(local, remote, ["main"])
    assert whole(remote.store) == {theirs}
    push(local, remote, {"main": "ada"})
    assert remote.references.names("heads") == {"ada": mine, "main": theirs}
    assert pull(local, remote, "main", "Ada").how == "merged"
    push(local, remote, ["main"])
    assert content(remote, tip(local)) == content(remote, theirs) | content(local, mine)


def test_of_two_pushes_at_once_one_wins(local: Repository, remote: Repository, tmp_path: Path) -> None:
    base = commit(local, image=samples(1))
    push(local, remote, ["main"])
    pushers = []
    for name in "abcd":
        own = at(tmp_path / name)
        there = Repository.at(remote.store, tmp_path / name / "index-origin.sqlite", name="origin")
        fetch(own, there)
        own.references.set("heads/main", base, name)
        commit(own, "main", name, **{name: samples(3)})
        pushers.append((own, there))

    def one(pusher: tuple[Repository, Repository]) -> str:
        try:
            push(*pusher, ["main"], by="x")
            return "won"
        except BehindError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        said = sorted(pool.map(one, pushers), key=len)
    assert said[0] == "won"
    assert all("Pull first" in text for text in said[1:])
    won = whole(remote.store)
    assert len(won) == 1
    for own, there in pushers:
        while True:
            pull(own, there, "main", "x")
            try:
                push(own, there, ["main"])
                break
            except BehindError:
                continue
    assert content(remote, tip(remote)).keys() == {"data/image", *(f"data/{name}" for name in "abcd")}


def test_tags_do_not_move(local: Repository, remote: Repository) -> None:
    first = commit(local, image=samples(1))
    local.references.set("tags/v1", first, "Ada")
    push(local, remote, tags=["v1"])
    local.references.set("tags/v1", commit(local, image=samples(1, 1)), "Ada")
    with pytest.raises(
        UsageError, match="Tags do not move: push it under another name, or remove it there first"
    ):
        push(local, remote, ["main"], ["v1"])
    assert whole(remote.store) == {first}
    delete(remote, tags=["v1"])
    assert whole(remote.store) == set()
    push(local, remote, ["main"], ["v1"])
    assert whole(remote.store) == {tip(local)}


def test_branches_can_be_removed(local: Repository, remote: Repository) -> None:
    commit(local, image=samples(1))
    push(local, remote, {"main": "dev"})
    with pytest.raises(NotFoundError, match=r"has no branch 'devel'; did you mean 'dev'\?"):
        delete(remote, ["devel"])
    delete(remote, ["dev"])
    assert remote.references.names("heads") == {}
    push(local, remote, {"main": "dev"})
    assert whole(remote.store) == {tip(local)}


def test_what_is_not_here_is_refused(local: Repository, remote: Repository) -> None:
    commit(local, image=samples(1))
    with pytest.raises(NotFoundError, match=r"no branch 'mian' here; did you mean 'main'\? Nothing was sent"):
        push(local, remote, ["mian"])
    with pytest.raises(NotFoundError, match="no tag 'v1' here"):
        push(local, remote, ["main"], ["v1"])
    assert list(remote.store.list()) == []


def test_a_place_with_other_things_is_refused(local: Repository, store: Store) -> None:
    commit(local, image=samples(1))
    store.put("photos/1.jpg", b"x")
    with pytest.raises(UsageError, match=r"is no stockroom, but not empty either: it holds 'photos/1.jpg'"):
        push(local, at(store), ["main"])
    claim_format(store, "run")
    with pytest.raises(FormatError, match="holds a run, not a stockroom"):
        push(local, at(store), ["main"])
    assert [entry.name for entry in store.list()] == ["FORMAT", "photos/1.jpg"]


def test_a_newer_remote_is_refused(local: Repository, store: Store) -> None:
    commit(local, image=samples(1))
    claim_format(store, "stockroom", version=7)
    with pytest.raises(FormatError, match="pip install 'hopyard>="):
        push(local, at(store), ["main"])
    with pytest.raises(FormatError, match="pip install 'hopyard>="):
        fetch(local, at(store, "origin"))


def test_a_remote_without_permission_is_refused(
    local: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(local, image=samples(1))

    def refuse(*_: object) -> None:
        raise NotWritableError("may not write")

    store = LocalStore(tmp_path / "remote")
    monkeypatch.setattr(store, "put_new", refuse)
    with pytest.raises(NotWritableError, match="may not write"):
        push(local, at(store, index=False), ["main"])


def test_a_remote_that_is_not_there_is_told(local: Repository) -> None:
    commit(local, image=samples(1))
    there = {"endpoint": "http://127.0.0.1:9", "region": "us-east-1", "skip_signature": True}
    store = ObjectStore("s3://bucket/x", retry_config={"max_retries": 0}, **there)
    for call in (
        lambda: push(local, at(store, "origin"), ["main"]),
        lambda: fetch(local, at(store, "origin")),
    ):
        with pytest.raises(StorageError, match="s3://bucket/x"):
            call()
    assert local.references.names("remotes") == {}


def test_a_push_from_a_partial_clone_takes_from_elsewhere(
    local: Repository, remote: Repository, tmp_path: Path
) -> None:
    commit(local, image=samples(4), models={"net": {"w": np.ones(3)}})
    push(local, remote, ["main"])
    partial, backup = at(tmp_path / "partial"), at(MemoryStore(), "backup")
    fetch(partial, remote)
    partial.references.set("heads/main", tip(local), "Ada")
    last = commit(partial, "main", "more", label=samples(2))
    push(partial, remote, ["main"])  # the remote has what is not here
    with pytest.raises(NotFoundError) as error:
        push(partial, backup, ["main"])
    assert "2 objects to be pushed are neither here nor at memory://" in str(error.value)
    assert "data/image (1 object), model/net (1 object). Nothing was sent" in str(error.value)
    assert "stock.fetch(data=['image'], models=['net'], history=True)" in str(error.value)
    assert whole(backup.store) == set()
    push(partial, backup, ["main"], others=[remote])
    assert whole(backup.store) == {last}


def buried(repository: Repository, thing: str) -> tuple[str, str]:
    """Bury a sample of a fragment; the fragment's digest, and that of what stands in for it."""
    every = needs(repository.objects, [tip(repository)])
    gone = next(need.digest for need in every if need.thing == thing and not need.is_metadata)
    record = (Purged(0, "2026-01-01T00:00:00+00:00", "Ada", "asked"),)
    return gone, bury_samples(repository.objects, gone, thing.partition("/")[2], record).instead


def test_of_what_was_purged_only_what_stands_in_for_it_is_sent(
    local: Repository, remote: Repository, tmp_path: Path
) -> None:
    commit(local, image=samples(3), label=samples(1))
    gone, other = buried(local, "data/image")
    push(local, remote, ["main"])
    assert remote.objects.packed([gone, other]).keys() == {other}
    copy = at(tmp_path / "copy")
    fetch(copy, remote, accept_purges=True)
    bring(copy, [remote], select(copy.objects, [tip(local)], ALL))
    assert copy.objects.packed([gone, other]).keys() == {other}


def test_what_was_purged_at_the_remote_is_not_sent_again(local: Repository, remote: Repository) -> None:
    commit(local, image=samples(3), label=samples(1))
    push(local, remote, ["main"])
    gone, _ = buried(remote, "data/image")
    remote.store.delete(remote.objects.locate(gone).packfile)
    commit(local, other=samples(1, 9))
    push(local, remote, {"main": "new"})
    assert gone not in remote.objects.packed([gone])
