"""Purge: bytes are gone everywhere, what is left stays readable, the record stays."""

from __future__ import annotations

import pickle
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import moments
from tests.stockroom.maintenance.histories import begun, holds, reopened
from tests.stockroom.maintenance.purges import (
    DAY,
    SECRET,
    column,
    plain,
    purged,
    readable,
    secret,
    with_secret,
)
from tests.stockroom.maintenance.stores import KillingStore
from tests.stockroom.maintenance.test_garbage import killed
from tests.stockroom.remotes.repositories import at, commit, root_of, tip
from torch.utils.data import DataLoader

from hopyard import StockRoom, make_torch_dataset
from hopyard.errors import DataError, NotFoundError, PurgedError, UsageError
from hopyard.stockroom.data import JoinedSamples, SampleColumn
from hopyard.stockroom.data.conflicts import diff_columns
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.merge import merge_commits
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.stage import Stage
from hopyard.stockroom.maintenance import gc, purge, verify
from hopyard.stockroom.packfiles.tombstones import Tombstones
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.remotes import (
    FetchSelection,
    KnownRemote,
    OnDemand,
    Repository,
    bring,
    fetch,
    push,
    remember,
    select,
)
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import LocalStore, MemoryStore


def test_the_bytes_are_gone_and_all_else_is_readable(tmp_path: Path) -> None:
    repository, commits = with_secret(tmp_path)
    assert holds(tmp_path, SECRET)
    opened = column(repository, commits[0])
    report = purged(repository)
    assert (report.keys, report.fragments, report.staged, report.remotes) == ([3], 2, 0, [])
    assert "1 sample of 'image' is purged; replaced: 2 fragments" in str(report)
    assert not holds(tmp_path, SECRET)
    for each in (repository, reopened(repository)):
        for digest, extra in zip(commits, [{}, {}, {7: [8] * 40}], strict=True):
            expected = {key: value.tolist() for key, value in plain(1, 2, 4).items()}
            assert readable(column(each, digest)) == expected | extra | {3: None}
    assert readable(opened)[1] == [2] * 40
    assert not verify(reopened(repository)).problems
    assert tip(repository) == commits[2]


def test_an_index_that_lost_rows_hides_nothing(tmp_path: Path) -> None:
    repository = at(tmp_path)
    with_secret(tmp_path)
    size = 2 << 20  # so that most of the packfile is needed, and gc would leave it
    commit(repository, noise={0: np.random.default_rng(0).bytes(size)}, image={5: secret()})
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        db.execute("DELETE FROM objects WHERE kind = 'fragment' AND stop - start < 1000")
    db.close()
    purged(at(tmp_path), [3, 5])
    assert not holds(tmp_path, SECRET)
    assert not verify(reopened(repository)).problems


def test_reading_a_purged_sample_says_when_and_why(tmp_path: Path) -> None:
    repository, _ = with_secret(tmp_path)
    purged(repository)
    for each in (repository, reopened(repository)):
        image = column(each)
        text = r"the sample 3 was purged from all versions on 2030-01-02T03:04:05\+00:00 by Ada: asked to\. Its bytes"
        for read in (lambda image=image: image[3], lambda image=image: image[[1, 3]]):
            with pytest.raises(PurgedError, match=text):
                read()
        assert image.get(3) is None


@pytest.mark.parametrize("copied", [False, True])
def test_a_column_passes_over_purged_samples(tmp_path: Path, copied: bool) -> None:
    repository, _ = with_secret(tmp_path)
    expected = plain(1, 2, 4, 7)
    purged(repository)
    image = column(repository)
    image = pickle.loads(pickle.dumps(image)) if copied else image
    assert 3 not in image
    assert (len(image), list(image), image.codes().tolist()) == (4, [1, 2, 4, 7], [1, 2, 4, 7])
    assert {key: value.tolist() for key, value in image.items()} == {
        k: v.tolist() for k, v in expected.items()
    }
    assert [int(value[0]) for value in image.values()] == [2, 3, 5, 8]
    assert image[...][:, 0].tolist() == np.asarray(image)[:, 0].tolist() == [2, 3, 5, 8]
    assert image[2:][:, 0].tolist() == image.take([2, -1])[:, 0].tolist() == [5, 8]
    assert image.positions([7, 2]).tolist() == [3, 1]
    assert image.find(np.array([3, 4, 5])).tolist() == [-1, 2, -1]
    with pytest.raises(UsageError, match=r"position 4 of column 'image', which has 4 samples"):
        image.take([4])


def test_positions_mean_the_same_in_another_process_although_more_is_purged(tmp_path: Path) -> None:
    repository, _ = with_secret(tmp_path)
    purged(repository)
    data = pickle.dumps(column(repository))
    purged(repository, 1)
    image = pickle.loads(data)
    assert (len(image), image.take([1])[0, 0]) == (4, 3)
    with pytest.raises(PurgedError):
        image.take([0])
    assert len(column(repository)) == 3


def test_an_epoch_goes_on_without_purged_samples(tmp_path: Path) -> None:
    repository, _ = with_secret(tmp_path)
    commit(repository, number={key: np.array(key) for key in (1, 2, 3, 4, 7)})
    whole = JoinedSamples([column(repository), column(repository, name="number")]).fingerprint
    purged(repository)
    image, label = column(reopened(repository)), column(reopened(repository), name="number")
    samples = JoinedSamples([image, label])
    assert (len(samples), samples.keys()) == (4, [1, 2, 4, 7])
    assert samples.fingerprint != whole
    for batch in samples.loader(batch_size=3, shuffle=True):
        assert (batch["image"][:, 0] == batch["number"] + 1).all()
    assert [len(JoinedSamples([one])) for one in (image, label)] == [4, 5]
    items = list(DataLoader(make_torch_dataset([label, image]), num_workers=1))
    assert [int(number) for number, _ in items] == [1, 2, 4, 7]
    with pytest.raises(PurgedError, match="the sample 3 was purged"):
        JoinedSamples([image, label], keys=[1, 3])
    commit(repository, number={9: np.array(9)})
    with pytest.raises(DataError, match="not all samples are in all columns"):
        JoinedSamples([image, column(repository, name="number")])


def test_a_draft_passes_over_purged_samples_too(tmp_path: Path) -> None:
    repository, _ = with_secret(tmp_path)
    purged(repository, [3, 7])
    draft = Draft(repository.objects, root_of(repository, tip(repository)))
    image = draft.column("image")
    assert (len(image), list(image), 3 in image) == (3, [1, 2, 4], False)
    with pytest.raises(PurgedError):
        image[3]
    image.extend(np.zeros((1, 40), np.uint8))
    assert (len(image), list(image)) == (4, [1, 2, 4, 8])  # not under a key that was purged
    image[3] = np.ones(40, np.uint8)
    assert (len(image), image[3].tolist()) == (5, [1] * 40)
    del image[7]  # what was left of it
    assert (len(image), len(image.snapshot())) == (5, 5)
    record = image.flush()
    assert record is not None
    assert (len(image), record.count, list(image)) == (5, 5, [1, 2, 3, 4, 8])
    draft.flush()
    draft.release()


@pytest.mark.parametrize(
    ("samples", "key", "left"),
    [
        ({"a": "some text", "b": SECRET.decode(), "c": "more"}, "b", {"a": "some text", "c": "more"}),
        ({1: b"x", 2: SECRET, 3: b"yy"}, 2, {1: b"x", 3: b"yy"}),
        (
            {(1, "a"): b"x", (2, "a"): SECRET, (2, "b"): SECRET, (3, 0): b"z"},
            2,
            {(1, "a"): b"x", (3, 0): b"z"},
        ),
        ({(1, "a"): b"x", (2, "a"): SECRET}, (2, "a"), {(1, "a"): b"x"}),
        ({0: np.zeros((2, 3), "f4"), 5: secret()[None].view("f4"), 9: np.ones((1, 1), "f4")}, 5, None),
        ({5: SECRET}, 5, {}),
    ],
)
def test_samples_of_any_kind_are_purged(tmp_path: Path, samples: Any, key: Any, left: Any) -> None:
    repository = begun(tmp_path)
    commit(repository, x=samples)
    purged(repository, key, "x")
    assert not holds(tmp_path, SECRET)
    found = column(reopened(repository), name="x")
    kept = {one for one in samples if one != key and not (isinstance(one, tuple) and one[0] == key)}
    assert len(found) == len(kept) == len(list(found.items()))
    for one in samples:
        if one in kept:
            assert np.array_equal(found[one], samples[one]) if left is None else found[one] == left[one]
        else:
            with pytest.raises(PurgedError):
                found[one]
    draft = Draft(repository.objects, root_of(repository, tip(repository)))
    for one in set(samples) - kept:
        del draft.column("x")[one]
    assert set(draft.column("x").keys()) == kept
    draft.flush()
    draft.release()


def test_purging_again_changes_nothing_and_more_keys_add_up(tmp_path: Path) -> None:
    repository, commits = with_secret(tmp_path)
    purged(repository)
    names = [entry.name for entry in repository.store.list()]
    again = purged(repository)
    assert (again.keys, again.fragments) == ([3], 0)
    assert [entry.name for entry in repository.store.list()] == names
    purged(repository, [1, 3])
    for digest in commits:
        found = readable(column(reopened(repository), digest))
        assert (found[1], found[3]) == (None, None)
        assert found[2] == [3] * 40
    with pytest.raises(PurgedError, match="purged from all versions"):
        column(repository)[1]
    assert not verify(reopened(repository)).problems
    records = [one for several in Tombstones(repository.store).all().values() for one in several[0].purged]
    assert {(one.key, one.by, one.why) for one in records} == {(1, "Ada", "asked to"), (3, "Ada", "asked to")}


def test_what_is_staged_is_purged_too(tmp_path: Path) -> None:
    repository, commits = with_secret(tmp_path)
    stage = Stage(repository.store, "main", commits[-1])
    draft = Draft(
        repository.objects,
        root_of(repository, commits[-1]),
        lambda operation: stage.append(operation.encode()),
    )
    draft.column("image")[9] = secret()
    draft.column("image")[10] = np.zeros(40, np.uint8)
    draft.column("image").update({20: secret(), 21: np.ones(40, np.uint8)})
    report = purged(repository, [3, 9, 20])
    assert (report.keys, report.staged) == ([3, 9, 20], 2)
    assert not holds(tmp_path, SECRET)
    again = Draft(reopened(repository).objects, root_of(repository, commits[-1]))
    again.apply(map(WriteOperation.decode, stage.operations()))
    assert sorted(again.column("image").keys()) == [1, 2, 4, 7, 10, 21]
    # And a stage that has a column of its own.
    large = Draft(repository.objects, root_of(repository, commits[-1]))
    large.column("image")[30] = secret()
    record = large.column("image").flush()
    assert record is not None
    large.publish()
    large.release()
    Stage(repository.store, "two", commits[-1]).append(
        WriteOperation(things=(("data", "image", record.to_json()),)).encode()
    )
    assert holds(tmp_path, SECRET)
    purged(repository, 30)
    assert not holds(tmp_path, SECRET)


def test_what_is_rewritten_compared_or_merged_leaves_purged_samples_out(tmp_path: Path) -> None:
    repository, commits = with_secret(tmp_path)
    repository.references.set("heads/dev", commits[0], "Ada")
    purged(repository)
    theirs = commit(repository, "dev", image={2: np.zeros(40, np.uint8)})
    assert list(column(repository, theirs)) == [1, 2, 4]
    changes = list(
        diff_columns(repository.objects, column(repository, commits[0]).record, column(repository).record)
    )
    assert changes == [(7, "added")]
    with repository.objects.writing() as writer:
        merged = merge_commits(writer, tip(repository), theirs)
    assert not merged.conflicts
    record = Snapshot(repository.objects, merged.root, "merged").record("data", "image")
    assert isinstance(record, ColumnRecord)
    found = readable(SampleColumn(repository.objects, "image", record))
    assert {key: value for key, value in found.items() if value} == {
        1: [2] * 40, 2: [0] * 40, 4: [5] * 40, 7: [8] * 40,
    }  # fmt: skip
    made = commit(repository, image={3: np.full(40, 9, np.uint8)})
    assert column(repository, made)[3].tolist() == [9] * 40
    assert len(column(repository, made)) == 5


def test_a_remote_and_another_clone_learn_of_it(tmp_path: Path) -> None:
    repository, _ = with_secret(tmp_path / "one")
    remote = at(tmp_path / "remote", "origin", index=False)
    remember(repository.store, KnownRemote("origin", remote.store.url))
    push(repository, remote, ["main"], ["v1"])
    clone = begun(tmp_path / "clone")
    heads = fetch(clone, remote).heads
    bring(clone, [remote], select(clone.objects, heads.values(), FetchSelection(data=True, history=True)))
    lazy = begun(tmp_path / "lazy")
    fetch(lazy, remote)
    report = purged(repository)
    assert report.remotes == ["origin"]
    assert "push to origin, which may still have them" in str(report)
    assert holds(tmp_path / "remote", SECRET)
    push(repository, remote, ["main"])  # nothing new but the tombstones
    assert not holds(tmp_path / "remote", SECRET)
    assert not verify(at(remote.store)).problems
    there = at(remote.store, "origin", index=False)
    # A clone whose owner has not accepted it has what it had, and reads nothing in place of what is gone.
    reading = Repository.at(lazy.store, absent=OnDemand(lazy, [there]))
    with pytest.raises(
        NotFoundError, match=r"3\. That was not accepted here.*fetch\('origin', accept_purges=True\)"
    ):
        readable(column(reading, heads["main"]))
    told = fetch(clone, there).purges
    assert told.lines() == [
        "the remote says that 1 sample of 'image' was purged by Ada on 2030-01-02T03:04:05+00:00 (asked to): 3",
        "nothing was purged here; to do that: hopyard stock fetch --accept-purges",
    ]
    assert holds(tmp_path / "clone", SECRET)
    for each in (lazy, clone):
        accepted = fetch(each, there, accept_purges=True).purges
        assert (len(accepted.accepted), accepted.claimed, accepted.refused) == (2, [], {})
        assert not fetch(each, there).purges.lines()
    assert readable(column(reading, heads["main"]))[3] is None
    assert not holds(tmp_path / "clone", SECRET)
    assert readable(column(clone, heads["main"]))[3] is None
    assert readable(column(clone, heads["main"]))[4] == [5] * 40
    assert not verify(reopened(clone)).problems
    fresh = at(MemoryStore(), "new", index=False)
    push(clone_with_branch(clone, heads["main"]), fresh, ["main"])
    fresh = at(fresh.store, index=False)
    assert readable(column(fresh, heads["main"]))[3] is None
    assert not verify(fresh).problems


def clone_with_branch(clone: Repository, commit_digest: str) -> Repository:
    clone.references.set("heads/main", commit_digest, "Bob")
    return clone


def test_clones_that_purged_different_samples_are_united(tmp_path: Path) -> None:
    repository, commits = with_secret(tmp_path / "one")
    remote = at(tmp_path / "remote", "origin", index=False)
    push(repository, remote, ["main"], ["v1"])
    other = begun(tmp_path / "two")
    heads = fetch(other, remote).heads
    bring(other, [remote], select(other.objects, heads.values(), FetchSelection(data=True, history=True)))
    purged(repository, 3)
    purged(other, 4)
    clone_with_branch(other, heads["main"])
    for each in (repository, other, repository):
        fetch(each, at(remote.store, "origin", index=False), accept_purges=True)
        push(each, at(remote.store, "origin", index=False), ["main"])
    fetch(other, at(remote.store, "origin", index=False), accept_purges=True)
    for each in (repository, other, at(remote.store, index=False)):
        for digest in commits:
            found = readable(column(reopened(each), digest))
            assert (found[1], found[3], found[4]) == ([2] * 40, None, None)
        assert not verify(reopened(each)).problems
    assert not holds(tmp_path, SECRET)


def test_what_was_purged_does_not_come_back(tmp_path: Path) -> None:
    repository = begun(tmp_path)
    commit(repository, image=plain(1) | {3: secret()})
    purged(repository)
    commit(repository, "again", image=plain(1) | {3: secret()})  # the same fragment
    assert "purged" in {problem.kind for problem in verify(repository).problems}
    gc(repository)
    assert not holds(tmp_path, SECRET)
    assert not verify(repository).problems


def test_what_cannot_be_purged_changes_nothing(tmp_path: Path) -> None:
    repository, _ = with_secret(tmp_path)
    names = [entry.name for entry in repository.store.list("packfiles")]
    with pytest.raises(
        NotFoundError, match="no version of the column 'image' has a sample 99, so there is nothing"
    ):
        purged(repository, [3, 99])
    with pytest.raises(NotFoundError, match="no version has a column 'other'"):
        purged(repository, 3, "other")
    with pytest.raises(UsageError, match="purge was given no reason"):
        purge(repository, "image", 3, " ", "Ada")
    assert [entry.name for entry in repository.store.list("packfiles")] == names
    assert column(repository)[3].tobytes() == SECRET


_PURGE = """
import pickle, sys
from datetime import UTC, datetime
from hopyard.stockroom.maintenance import purge
from tests.stockroom.remotes.repositories import at
purge(at(pickle.load(sys.stdin.buffer)), "image", 3, "asked to", "Ada")
"""


def test_a_purge_that_is_killed_at_any_operation_is_done_again(tmp_path: Path) -> None:
    repository, commits = with_secret(tmp_path)
    stage = Stage(repository.store, "main", commits[-1])
    root = root_of(repository, commits[-1])
    Draft(repository.objects, root, lambda each: stage.append(each.encode())).column("image")[3] = secret()
    for number in moments("purge", quick=4, ci=2):
        if not killed(_PURGE, KillingStore(LocalStore(tmp_path), 1 + number)):
            break
        for digest in commits:
            found = readable(column(reopened(repository), digest))
            assert found[4] == [5] * 40
            assert found[3] in (None, list(SECRET))
        assert {problem.kind for problem in verify(reopened(repository)).problems} <= {"purged"}
    assert number >= 8
    purged(repository)
    assert not holds(tmp_path, SECRET)
    assert not verify(reopened(repository)).problems


@given(
    st.lists(st.dictionaries(st.integers(0, 12), st.integers(0, 250), min_size=1), min_size=1, max_size=4),
    st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True),
)
def test_over_any_history_only_what_was_purged_is_missing(
    tmp_path: Path, versions: list[dict[int, int]], keys: list[int]
) -> None:
    repository = begun(MemoryStore())
    commits = [
        commit(repository, x={key: np.full(9, value, np.uint8) for key, value in version.items()})
        for version in versions
    ]
    before = [readable(column(repository, digest, "x")) for digest in commits]
    there = [key for key in keys if any(key in found for found in before)]
    for key in there:
        purged(repository, key, "x")
    for digest, found in zip(commits, before, strict=True):
        expected = {key: None if key in there else value for key, value in found.items()}
        assert readable(column(reopened(repository), digest, "x")) == expected
    assert not verify(reopened(repository)).problems


def test_columns_that_share_a_sample_are_named_before_anything_is_purged(tmp_path: Path) -> None:
    repository = begun(tmp_path)
    same = plain(1, 2) | {3: secret()}
    commit(repository, a=same, b=same, old=same, other=same | {9: secret()})
    draft = Draft(repository.objects, root_of(repository, tip(repository)))
    assert draft.column("a")
    draft.set("data", "old", None)
    first = tip(repository)
    repository.references.set("tags/v1", first, "Ada")
    with pytest.raises(UsageError, match="'b'\\[3\\], 'old'\\[3\\]") as caught:
        purged(repository, 3, "a")
    assert "'a'[3] cannot be purged by itself" in str(caught.value)
    assert "shared=True" in str(caught.value)
    assert "--shared" in str(caught.value)
    assert holds(tmp_path, SECRET)
    assert not list(Tombstones(repository.store).all())

    report = purge(repository, "a", 3, "asked to", "Ada", clock=lambda: DAY, shared=True)
    assert report.shared == {"b": [3], "old": [3]}
    assert "gone from other columns too, which shared it: 'b'[3], 'old'[3]" in str(report)
    assert report.equal.found == [("other", 3), ("other", 9)]
    assert report.equal.count == 2
    assert "the same bytes still stand in 'other'[3], 'other'[9]: purge them as well" in str(report)
    for name in ("a", "b", "old"):
        assert readable(column(repository, name=name))[3] is None
        assert [one.key for one in repository.objects.purges(name)] == [3]
    assert not repository.objects.purges("other")
    assert not verify(reopened(repository)).problems
    purged(repository, [3, 9], "other")
    assert not holds(tmp_path, SECRET)


def test_columns_of_earlier_commits_and_of_the_stage_share_samples_too(tmp_path: Path) -> None:
    stock = StockRoom.init(tmp_path)
    rows = np.random.default_rng(0).random((6, 4))
    with stock.enable_write():
        stock.data["a"] = rows
        stock.data["old"] = rows
    with stock.enable_write():
        del stock.data["old"]
    writer = StockRoom(tmp_path, enable_write=True)
    writer.data["new"] = rows
    with pytest.raises(
        UsageError, match=r"'new'\[2\], 'old'\[2\] \(in earlier commits only\)\. Nothing was changed"
    ):
        writer.purge("a", key=2, why="asked")
    assert len(writer.data["a"]) == len(writer.data["new"]) == 6
    report = writer.purge("a", key=2, why="asked", shared=True)
    assert report.shared == {"new": [2], "old": [2]}
    writer.commit("staged")
    assert len(writer.data["new"]) == 5
    assert writer.verify().ok


def test_who_accepts_a_purge_has_its_record_for_each_column_that_shared_the_sample(tmp_path: Path) -> None:
    ada = StockRoom.init(tmp_path / "ada")
    rows = np.random.default_rng(0).random((6, 4))
    with ada.enable_write():
        ada.data["a"] = ada.data["b"] = rows
    ada.push(tmp_path / "remote")
    bob = StockRoom.clone(tmp_path / "remote", tmp_path / "bob")
    bob.fetch(data=True)
    ada.purge("a", key=2, why="asked", shared=True)
    ada.push(tmp_path / "remote")
    assert {one.column for one in bob.fetch().purges.claimed} == {"a", "b"}
    assert {one.column for one in bob.fetch(accept_purges=True).purges.accepted} == {"a", "b"}
    assert bob.fetch().purges.waiting == 0
    for name in ("a", "b"):
        with pytest.raises(PurgedError, match="asked"):
            bob.data[name][2]


def test_equal_samples_are_looked_for_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = StockRoom.init(tmp_path)
    rows = np.random.default_rng(0).random((40, 4))
    with stock.enable_write():
        stock.data["a"] = rows
        stock.data["label"] = np.zeros(40, np.int64)
        stock.data["moved"] = {100 + at: rows[at] for at in range(40)}
        stock.data["ragged"] = {at: rows[7][: 1 + at % 4] for at in range(8)}
        stock.data["name"] = ["Ada", "Bob", "Ada"] * 10
        stock.data["nick"] = {"x": "Ada"}
    assert stock.purge("a", key=3, why="asked").equal.found == [("moved", 103)]
    assert stock.purge("a", key=7, why="asked").equal.found == [("moved", 107), ("ragged", 3), ("ragged", 7)]
    assert stock.purge("label", key=3, why="asked").equal.count == 0  # all numbers 0 are equal
    report = stock.purge("name", key=0, why="asked")
    assert report.equal.count == 20
    assert "'nick'['x']" not in str(report)
    assert "and 15 more" in str(report)
    monkeypatch.setattr("hopyard.stockroom.maintenance.sharing.LOOKED", 1000)
    told = str(stock.purge("a", key=4, why="asked"))
    assert "of other samples was not looked at" in told
