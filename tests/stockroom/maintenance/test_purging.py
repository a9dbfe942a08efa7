"""Purge: bytes are gone everywhere, what is left stays readable, the record stays."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import moments
from tests.stockroom.maintenance.histories import begun, holds, reopened
from tests.stockroom.maintenance.stores import KillingStore
from tests.stockroom.maintenance.test_garbage import killed
from tests.stockroom.remotes.repositories import at, commit, root_of, tip
from torch.utils.data import DataLoader

from hopyard import StockRoom, make_torch_dataset
from hopyard.errors import BusyError, DataError, NotFoundError, PurgedError, UsageError
from hopyard.stockroom.data import JoinedSamples, SampleColumn
from hopyard.stockroom.data.conflicts import diff_columns
from hopyard.stockroom.data.rows import plain as plain_keys
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

SECRET = bytes(range(60, 100))
DAY = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def secret() -> Any:
    return np.frombuffer(SECRET, np.uint8)


def plain(*keys: int) -> dict[Any, Any]:
    return {key: np.full(40, key + 1, np.uint8) for key in keys}


def column(repository: Repository, digest: str | None = None, name: str = "image") -> SampleColumn:
    digest = digest or tip(repository)
    record = Snapshot(repository.objects, root_of(repository, digest), digest).record("data", name)
    assert isinstance(record, ColumnRecord)
    return SampleColumn(repository.objects, name, record)


def readable(given: SampleColumn) -> dict[Any, Any]:
    """The samples under all keys, also those that purged ones had: None."""
    found = {}
    for key in (key for fragment in given.fragments() for key in plain_keys(fragment.keys)):
        try:
            found[key] = np.asarray(given[key]).tolist()
        except PurgedError:
            found[key] = None
    return found


def with_secret(store: Path) -> tuple[Repository, list[str]]:
    """Three commits that have the secret under 3, in two versions of its fragment, and one without it."""
    repository = begun(store)
    commits = [
        commit(repository, image=plain(1, 2, 4) | {3: secret()}),
        commit(repository, label={"a": "x"}),
        commit(repository, image=plain(7)),
    ]
    repository.references.set("tags/v1", commits[0], "Ada")
    draft = Draft(repository.objects, root_of(repository, tip(repository)))
    del draft.column("image")[3]
    return repository, commits


def purged(repository: Repository, keys: Any = 3, name: str = "image") -> Any:
    return purge(repository, name, keys, "asked to", "Ada", clock=lambda: DAY)


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


def purged_elsewhere(path: Path, key: int) -> None:
    """Purge a sample in a process of its own."""
    code = f"from hopyard import StockRoom; StockRoom({str(path)!r}).purge('c', {key}, 'asked')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("is_writer", [True, False])
@pytest.mark.parametrize("has_read", [True, False])
@pytest.mark.parametrize("has_staged", [True, False])
def test_what_another_process_purged_does_not_come_back_with_its_neighbour(
    tmp_path: Path, is_writer: bool, has_read: bool, has_staged: bool
) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
    with StockRoom(tmp_path, enable_write=is_writer) as stock:
        if has_read:
            assert stock.data["c"][3] == "SECRET3"
        if has_staged:
            with contextlib.nullcontext() if is_writer else stock.enable_write():
                stock.data["c"][4] = "staged before"
        for key in (2, 1):  # the second one finds a process that has moved on from the first
            purged_elsewhere(tmp_path, key)
            with stock.enable_write():
                stock.data["c"][3] = f"new three {key}"
            assert key not in stock.data["c"]
            assert holds(tmp_path, f"SECRET{key}".encode()) == []
    with StockRoom(tmp_path) as stock:
        four = "staged before" if has_staged else "SECRET4"
        assert dict(stock.data["c"].items()) == {0: "SECRET0", 3: "new three 1", 4: four}
        assert stock.verify().ok


def test_a_reader_that_stays_open_sees_nothing_of_what_was_purged_when_it_looks_again(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
    with StockRoom(tmp_path) as stock:
        assert stock.data["c"][2] == "SECRET2"
        purged_elsewhere(tmp_path, 2)
        with pytest.raises(PurgedError, match="asked"):
            stock.data["c"][2]
        assert stock.data["c"][3] == "SECRET3"


@pytest.mark.parametrize("is_block", [True, False])
def test_a_column_that_is_open_for_writing_counts_what_its_keys_are_after_each_purge_of_others(
    tmp_path: Path, is_block: bool
) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.data["c"] = {key: f"SECRET{key}" for key in range(8)}
    with StockRoom(tmp_path, enable_write=not is_block) as stock, StockRoom(tmp_path) as other:
        with stock.enable_write() if is_block else contextlib.nullcontext():
            samples = stock.data["c"]
            assert (len(samples), list(samples)) == (8, [*range(8)])
            other.purge("c", 2, "asked")
            assert (len(samples), list(samples)) == (7, [0, 1, 3, 4, 5, 6, 7])
            other.purge("c", 3, "asked")  # of the same fragment
            samples.update({4: "four", 9: "nine"})
            assert (len(samples), list(samples)) == (7, [0, 1, 4, 5, 6, 7, 9])
            other.purge("c", [0, 5], "asked")
            del samples[1]
            assert (len(samples), list(samples)) == (4, [4, 6, 7, 9])
            samples[0] = "zero"
            assert (len(samples), list(samples)) == (5, [0, 4, 6, 7, 9])
        if not is_block:
            other.purge("c", 4, "asked")  # of what is staged, too
            assert (len(stock.data["c"]), list(stock.data["c"])) == (4, [0, 6, 7, 9])
            stock.commit("the rest")
        assert stock.verify().ok


def test_what_another_process_purged_does_not_come_back_by_a_merge_or_a_copy(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write():
        stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
    with StockRoom(tmp_path) as stock:
        stock.branch("dev")
        with stock.enable_write():
            stock.data["c"][4] = "four"
        stock.switch("dev")
        with stock.enable_write():
            stock.data["c"][0] = "zero"
            assert stock.data["c"][2] == "SECRET2"
        purged_elsewhere(tmp_path, 2)
        stock.merge("main")
        with stock.enable_write():
            stock.data["copy"] = dict(stock.data["c"].items())
        assert stock.data["copy"][[0, 4]] == ["zero", "four"]
        assert holds(tmp_path, b"SECRET2") == []
        assert stock.verify().ok


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


def purged_and_pushed(folder: Path) -> None:
    """``own`` has purged the sample 2 and pushed that to ``remote``; ``clone`` has all as it was, and knows nothing."""
    with StockRoom.init(folder / "own") as own:
        with own.enable_write("samples"):
            own.data["c"] = {key: f"SECRET{key}" for key in range(5)}
        own.push(folder / "remote")
        with StockRoom.clone(folder / "remote", folder / "clone") as clone:
            clone.fetch(data=True)
        own.purge("c", 2, "asked")
        own.push()
    assert holds(folder / "remote", b"SECRET2") == []
    assert holds(folder / "clone", b"SECRET2")


_ACCEPT = """
import sys
from pathlib import Path
from hopyard import StockRoom
from hopyard.stockroom.remotes import fetch
from tests.stockroom.remotes.repositories import at
def tell(text):
    print(text, flush=True)
folder = Path(sys.argv[1])
with StockRoom(folder / "clone") as clone:
    tell(str(fetch(clone.local, at(folder / "remote", "origin", index=False), accept_purges=True, tell=tell).purges))
"""


def accepting(folder: Path) -> subprocess.Popen[str]:
    """A process that accepts the purge in ``clone``; it says when it waits, and what was purged."""
    return subprocess.Popen(
        [sys.executable, "-c", _ACCEPT, str(folder)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip


MANY = {3: "new three"} | {key: f"new {key}" for key in range(10, 3000)}


@pytest.mark.parametrize("is_writer", [True, False])
@pytest.mark.parametrize("has_block", [True, False])
def test_a_purge_that_another_process_accepts_waits_for_who_has_read_its_neighbour(
    tmp_path: Path, is_writer: bool, has_block: bool
) -> None:
    purged_and_pushed(tmp_path)
    with StockRoom(tmp_path / "clone", enable_write=is_writer) as stock:
        lines = []

        def given() -> Any:
            """Samples, in whose midst another process comes."""
            for key in range(10, 40_000):
                if key == 39_999:
                    process.append(accepting(tmp_path))
                    assert process[0].stdout is not None
                    lines.append(process[0].stdout.readline())
                yield f"new {key}"

        process: list[subprocess.Popen[str]] = []
        with stock.enable_write() if has_block or not is_writer else contextlib.nullcontext():
            stock.data["c"].update(MANY)
            if has_block:
                process.append(accepting(tmp_path))
                assert process[0].stdout is not None
                lines.append(process[0].stdout.readline())
            else:
                stock.data["c"].extend(given())
        if is_writer and not has_block:
            stock.commit("staged")
    told, _ = process[0].communicate(timeout=60)
    assert (lines[0].split(" to ")[0], process[0].returncode) == ("waiting for those who write", 0)
    assert "purged here too: 1 sample of 'c' was purged" in told
    with StockRoom(tmp_path / "clone") as stock:
        stock.gc()  # of what the block wrote and replaced itself
        assert holds(tmp_path / "clone", b"SECRET2") == []
        assert (2 in stock.data["c"], stock.data["c"][3], stock.data["c"][1]) == (
            False,
            "new three",
            "SECRET1",
        )
        assert stock.verify().ok
        stock.push()
        assert holds(tmp_path / "remote", b"SECRET2") == []


@pytest.mark.parametrize("how", ["committed", "staged", "on another branch"])
@pytest.mark.parametrize("call", ["fetch", "pull"])
def test_what_was_copied_with_its_neighbour_before_is_purged_when_that_is_accepted(
    tmp_path: Path, how: str, call: str
) -> None:
    purged_and_pushed(tmp_path)
    with StockRoom(tmp_path / "clone", enable_write=True) as stock:
        if how == "on another branch":
            stock.branch("mine")
            stock.switch("mine")
        stock.data["c"].update(MANY)
        if how != "staged" or call == "pull":
            stock.commit("a neighbour")
        if how == "on another branch":
            stock.switch("main")
        purges = stock.fetch(accept_purges=True).purges if call == "fetch" else None
        if purges is None:
            purges = stock.pull(accept_purges=True).fetched.purges
        assert [line for line in purges.lines() if "purged here too: 1 sample of 'c'" in line]
        if how == "staged" and call == "fetch":
            stock.commit("a neighbour")
        if how == "on another branch":
            stock.switch("mine")
        assert (2 in stock.data["c"], stock.data["c"][3], len(stock.data["c"])) == (False, "new three", 2994)
        assert holds(tmp_path / "clone", b"SECRET2") == []
        with pytest.raises(PurgedError, match="asked"):
            stock.data["c"][2]
        assert stock.verify().ok


def test_another_sample_under_the_key_of_a_purged_one_stays_when_that_is_accepted(tmp_path: Path) -> None:
    purged_and_pushed(tmp_path)
    with StockRoom(tmp_path / "clone") as stock:
        with stock.enable_write("another"):
            stock.data["c"][2] = "not secret"
        assert stock.fetch(accept_purges=True).purges.accepted
        assert stock.data["c"][2] == "not secret"
        with pytest.raises(PurgedError):
            stock.at("HEAD~1").data["c"][2]
        assert stock.verify().ok


def test_a_purge_says_what_to_wait_for_while_a_block_over_staged_writes_is_open(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path) as stock, stock.enable_write("samples"):
        stock.data["c"] = {key: f"SECRET{key}" for key in range(5)}
    with StockRoom(tmp_path, enable_write=True) as writer, StockRoom(tmp_path) as stock:
        writer.data["c"][1] = "staged"
        with writer.enable_write("block"):
            writer.data["c"][3] = "new"
            with pytest.raises(BusyError) as caught:
                purge(stock.local, "c", 2, "asked", "Ada", stock.place, wait=0)
            assert str(caught.value) == (
                f"{stock.local.store.url} is being written to, in this process or another one, so nothing can be "
                "deleted from it now: what is written might need it. Try again when the blocks (`with "
                "stock.enable_write():`), imports and pushes that write there have ended. 0 seconds were waited."
            )
            assert writer.data["c"][2] == "SECRET2"
        purge(stock.local, "c", 2, "asked", "Ada", stock.place, wait=0)
    assert holds(tmp_path, b"SECRET2") == []


def test_a_purge_is_not_accepted_while_another_handle_has_read_its_neighbour(tmp_path: Path) -> None:
    purged_and_pushed(tmp_path)
    remote = at(tmp_path / "remote", "origin", index=False)
    with StockRoom(tmp_path / "clone") as stock, StockRoom(tmp_path / "clone") as other:
        with stock.enable_write():
            stock.data["c"].update(MANY)
            text = r"written to.*0 seconds were waited\. What the remote has is here, but nothing was purged: fetch"
            with pytest.raises(BusyError, match=text):
                fetch(other.local, remote, accept_purges=True, wait=0)
            for call in (stock.fetch, stock.pull):
                with pytest.raises(UsageError, match=r"was called within `with stock.enable_write\(\):`"):
                    call(accept_purges=True)
            assert stock.data["c"][2] == "SECRET2"
        assert fetch(other.local, remote, accept_purges=True, wait=0).purges.accepted
        assert holds(tmp_path / "clone", b"SECRET2") == []
        for each in (stock, other):
            assert (2 in each.data["c"], each.data["c"][1]) == (False, "SECRET1")


def test_a_purge_is_not_pushed_to_where_somebody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purged_and_pushed(tmp_path)
    monkeypatch.setattr("hopyard.stockroom.remotes.purges.WAIT", 0)
    with StockRoom(tmp_path / "own") as own, StockRoom(tmp_path / "clone") as stock:
        stock.branch("mine")
        stock.switch("mine")
        with stock.enable_write():
            stock.data["c"].update(MANY)
            with pytest.raises(BusyError, match=r"written to.*so nothing was sent: push again then\."):
                own.push(tmp_path / "clone")
            assert stock.data["c"][2] == "SECRET2"
        own.push(tmp_path / "clone")
    with StockRoom(tmp_path / "clone") as stock:
        assert stock.data["c"][3] == "new three"
        with pytest.raises(PurgedError, match="asked"):
            stock.at("main").data["c"][2]
        assert stock.verify().ok
