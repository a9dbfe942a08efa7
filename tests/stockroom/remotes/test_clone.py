"""Clones: metadata only, continued when interrupted, beside git or not."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from tests.stockroom.remotes.repositories import at, commit, content, samples, tip

from hopyard.errors import NotFoundError, StorageError, UsageError
from hopyard.stockroom.git import HEAD_NAME, Head, id_of, read
from hopyard.stockroom.git import write as write_head
from hopyard.stockroom.history.commits import write_commit
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.remotes import OnDemand, Repository, clone, open_remote, push, recall
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.storage.format import format_header, root_format


def opened(path: Path, store: Store) -> Repository:
    objects = LocalStore(path / ".hopyard")
    remote = open_remote(objects, recall(objects, "origin"), store)
    plain = at(objects)
    return Repository.at(objects, objects.path("index.sqlite"), OnDemand(plain, [remote]))


def test_a_clone_reads_what_it_has_not(local: Repository, remote: Repository, tmp_path: Path) -> None:
    first = commit(local, image=samples(5), models={"net": {"w": np.ones(3)}})
    last = commit(local, "dev", "d", label=samples(5))
    local.references.set("tags/v1", first, "Ada")
    push(local, remote, ["main", "dev"], ["v1"])
    place, fetched = clone(remote.store, tmp_path / "copy", by="Bob")
    assert place.root == tmp_path / "copy"
    assert fetched.heads == {"dev": last, "main": first}
    assert read(place.head) == Head("main", first)
    copy = opened(tmp_path / "copy", remote.store)
    assert copy.references.names("heads") == {"main": first}
    assert copy.references.names("remotes") == {"origin/dev": last, "origin/main": first}
    assert copy.references.names("tags") == {"v1": first}
    assert [entry.name for entry in copy.store.list("packfiles") if "data" in entry.name] == []
    assert content(copy, first) == content(local, first)
    known = recall(copy.store, "origin")
    assert (known.url, known.default) == (remote.store.url, "main")
    with pytest.raises(UsageError, match=r"is a stockroom already; .*hopyard stock fetch"):
        clone(remote.store, tmp_path / "copy")


def test_the_default_branch_is_the_only_or_first_one(local: Repository, tmp_path: Path) -> None:
    store = MemoryStore()
    made = commit(local, "trunk", "t", image=samples(1))
    push(local, at(store, "origin"), ["trunk"])
    place, _ = clone(store, tmp_path / "one")
    assert read(place.head) == Head("trunk", made)
    push(local, at(store, "origin"), {"trunk": "alpha"})
    place, _ = clone(store, tmp_path / "two")
    assert read(place.head) == Head("alpha", made)


def test_an_empty_remote_can_be_cloned(local: Repository, tmp_path: Path) -> None:
    store = MemoryStore()
    commit(local, image=samples(1))
    push(local, at(store, "origin"), ["main"])
    empty = MemoryStore()
    empty.put("FORMAT", store.get("FORMAT"))
    place, _ = clone(empty, tmp_path / "copy")
    assert read(place.head) == Head("main", None)


def test_a_wrong_address_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no stockroom at .*/nothing"):
        clone(LocalStore(tmp_path / "nothing"), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    (tmp_path / "file").write_text("")
    store = MemoryStore()
    commit(at(store), image=samples(1))
    store.put("FORMAT", root_format(format_header("stockroom")))
    with pytest.raises(StorageError, match="file"):
        clone(store, tmp_path / "file")


def test_a_clone_that_failed_is_continued(local: Repository, tmp_path: Path) -> None:
    store = MemoryStore()
    for number in range(3):
        made = commit(local, image=samples(1, number))
        push(local, at(store, "origin"), ["main"])
    failures = 0
    while True:
        target = tmp_path / "copy"
        with pytest.MonkeyPatch.context() as patch:
            # The clone's own store fails at one write after the other.
            def faulty(path: Path, at: int = failures + 1) -> Store:
                return FaultyStore(LocalStore(path), Fault("full", at=at))

            patch.setattr("hopyard.stockroom.remotes.cloning.LocalStore", faulty)
            try:
                place, _ = clone(store, target)
                break
            except StorageError:
                assert not (target / HEAD_NAME).exists()
                failures += 1
    assert failures > 3
    assert read(place.head) == Head("main", made)
    assert content(opened(target, store), made) == content(local, made)


def test_a_clone_beside_git_keeps_its_head(local: Repository, tmp_path: Path) -> None:
    store = MemoryStore()
    first = commit(local, image=samples(1))
    last = commit(local, image=samples(1, 1))
    push(local, at(store, "origin"), ["main"])
    git = tmp_path / "git"
    subprocess.run(["git", "init", "-q", str(git)], check=True)
    write_head(git / HEAD_NAME, Head("main", first))
    place, _ = clone(store, git)
    assert read(git / HEAD_NAME) == Head("main", first)  # git checked out an older version
    assert place.objects == git / ".git" / "hopyard" / place.id
    assert id_of(place.head) == place.id
    assert at(LocalStore(place.objects)).references.tip("heads/main").commit == last


def test_a_head_whose_commit_was_never_pushed_is_named(local: Repository, tmp_path: Path) -> None:
    store = MemoryStore()
    commit(local, image=samples(1))
    push(local, at(store, "origin"), ["main"])
    later = commit(local, image=samples(1, 1))
    (tmp_path / "copy").mkdir()
    write_head(tmp_path / "copy" / HEAD_NAME, Head("main", later))
    with pytest.raises(
        NotFoundError, match=r"which memory://.* does not have whole. Push it there from where it was"
    ):
        clone(store, tmp_path / "copy")
    push(local, at(store, "origin"), ["main"])
    clone(store, tmp_path / "copy")
    assert tip(at(LocalStore(tmp_path / "copy" / ".hopyard"))) == later


def test_a_million_samples_are_described_in_little(tmp_path: Path) -> None:
    """A column of 1,000,000 samples; its bytes are small here, its metadata are what they are."""
    local, remote = at(tmp_path / "local"), at(tmp_path / "remote", "origin")
    draft = Draft(local.objects, None)
    draft.column("image").extend(np.zeros((1_000_000, 4), np.uint8))
    root = draft.flush()
    with local.objects.writing() as writer:
        made = write_commit(writer, root, [], "1M", "Ada").digest
    local.references.set("heads/main", made, "Ada")
    draft.release()
    push(local, remote, ["main"])
    began = time.monotonic()
    _, fetched = clone(remote.store, tmp_path / "copy")
    assert fetched.nbytes < 5_000_000
    assert time.monotonic() - began < 10
