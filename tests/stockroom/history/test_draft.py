"""Drafts: changes on top of a revision, readable at once, durable by operations."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.errors import CorruptError, StorageError, UsageError
from hopyard.objects import Tensor
from hopyard.stockroom.data.drafts import Edit
from hopyard.stockroom.data.rows import KeyedSamples, keys_of, plain
from hopyard.stockroom.data.samples import StoredSample, record_for, rows_of, stored_sample
from hopyard.stockroom.experiments import values
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.locks import collecting
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.maps import Key, SortedMap, decode, encode
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import DatasetRecord, ModelRecord, RunRecord, ValueRecord
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.faults import Fault, FaultyStore

from .repository import change, contents


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "repository")


@pytest.fixture
def objects(store: LocalStore) -> Objects:
    return Objects(store)


def rooted(objects: Objects, changed: Any, columns: Any) -> str:
    draft = Draft(objects, None)
    change(draft, changed, columns)
    root = draft.flush()
    draft.release()
    assert root is not None
    return root


def test_a_page_is_read_once_for_many_columns(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft(objects, None)
    for number in range(500):
        draft.column(f"c {number}").extend([number])
    root = draft.flush()
    read: list[str] = []
    of_packfiles = draft.writer.read

    def counted(digest: str) -> Any:
        read.append(digest)
        return of_packfiles(digest)

    monkeypatch.setattr(draft.writer, "read", counted)
    draft.rebase(root)
    assert len(read) == len(set(read)) < 50
    assert draft.column("c 7")[0] == 7
    draft.release()


def test_changes_are_read_at_once_and_in_the_snapshot_of_the_root(objects: Objects) -> None:
    draft = Draft(objects, None)
    change(draft, {"lr": 0.1, "b": [1, {"x": (2,)}], "gone": 1}, {"image": {0: "a", "k": "b"}, "x": {1: 1.5}})
    change(draft, {"gone": None}, {"image": {0: None}})
    expected = {"lr": 0.1, "b": [1, {"x": (2,)}], "image": {"k": "b"}, "x": {1: 1.5}}
    assert contents(draft) == expected
    assert (draft.names("data"), draft.names("experiment")) == (["image", "x"], ["b", "lr"])
    root = draft.flush()
    assert contents(draft) == expected
    snapshot = Snapshot(objects, root, "c" * 64)
    assert contents(snapshot) == expected
    assert contents(pickle.loads(pickle.dumps(snapshot))) == expected
    assert snapshot.record("experiment", "none") is None
    assert (snapshot.revision, draft.revision) == ("c" * 64, "the working tree")
    assert contents(Snapshot(objects, None, "nothing")) == {}


def test_names_may_be_anything_and_shelves_are_apart(objects: Objects) -> None:
    names = ["a/b", "", "zoë", "a", "a b", "data"]
    draft = Draft(objects, None)
    for name in names:
        draft.set("experiment", name, ValueRecord(name))
        draft.set("model", name, ModelRecord("a" * 64, 1))
    draft.set("run", "r", RunRecord("b" * 64, "finished", "2026"))
    snapshot = Snapshot(objects, draft.flush(), "x")
    assert snapshot.names("experiment") == snapshot.names("model") == sorted(names)
    assert (snapshot.names("run"), snapshot.names("data")) == (["r"], [])


def test_what_differs_from_the_base_is_listed_by_path(objects: Objects) -> None:
    root = rooted(objects, {"a": 1, "b": 2, "c": 3}, {"x": {1: "a"}, "y": {1: "b"}})
    draft = Draft(objects, root)
    assert (draft.changes(), draft.changed) == ([], False)
    change(draft, {"a": None, "b": 2, "c": 3.0, "d": 4}, {"x": {2: "new"}, "y": None, "z": {0: 1}})
    expected = [
        ("data/x", "changed"), ("data/y", "removed"), ("data/z", "added"),
        ("experiment/a", "removed"), ("experiment/c", "changed"), ("experiment/d", "added"),
    ]  # fmt: skip
    assert draft.changes() == expected
    draft.flush()
    assert (draft.changes(), draft.changed) == (expected, True)
    change(draft, {"a": 1, "c": 3, "d": None}, {"x": {2: None}, "y": {1: "b"}, "z": None})
    draft.flush()
    assert (draft.changes(), draft.changed, draft.flush()) == ([], False, root)


def test_a_column_that_was_removed_cannot_be_written_to_any_more(objects: Objects) -> None:
    draft = Draft(objects, None)
    column = draft.column("x")
    column[0] = "a"
    draft.set("data", "x", None)
    with pytest.raises(
        UsageError, match=r"the column 'x' was removed or replaced.*Take it anew: stock.data\['x'\]"
    ):
        column[1] = "b"
    draft.column("x")[2] = "c"
    assert contents(draft) == {"x": {2: "c"}}


def test_a_dataset_is_no_column(objects: Objects) -> None:
    draft = Draft(objects, None)
    draft.set("data", "train", DatasetRecord("a" * 64, None, 1, 1))
    with pytest.raises(UsageError, match=r"'train' is a prepared dataset.*give the column another name"):
        draft.column("train")


def test_the_collector_is_kept_out_from_the_first_object_until_the_release(
    objects: Objects, store: LocalStore
) -> None:
    draft = Draft(objects, None)
    draft.set("experiment", "a", ValueRecord(1))
    with collecting(store):
        pass
    draft.flush()
    with pytest.raises(StorageError, match=r"is being written to"), collecting(store):
        pass
    draft.release()
    with collecting(store):
        pass
    draft.writer.add_json([1])
    with pytest.raises(StorageError, match=r"is being written to"), collecting(store):
        pass
    draft.release()


BIG = np.arange(160 << 10, dtype=np.float64).reshape(160, 1024)


def write_all_kinds(draft: Draft) -> None:
    change(
        draft,
        {"a": 1, "b": "x"},
        {"image": {0: np.array([1, 2], np.float32), 1: np.array([3, 4], np.float32)}},
    )
    draft.set("experiment", "large", values.write(draft.writer, "y" * 10_000))
    draft.column("image").update({"no": np.array([5, 6], np.float32)})
    change(
        draft, {"b": None}, {"text": {"k": "ü"}, "raw": {3: b"\0\1"}, "nested": {("a", 1): 1, ("a", 2): 2}}
    )
    draft.column("big").extend(BIG)
    change(draft, {"c": 2.5}, {"image": {1: None}, "nested": {("a", 1): None}, "big": {0: BIG[1]}})
    draft.set("data", "text", None)
    draft.column("nested").update({"a": {"in place of": 4, "all before": 5}})


def test_writes_that_were_told_of_make_the_same_draft_in_another_life(
    objects: Objects, store: LocalStore
) -> None:
    root = rooted(objects, {"old": 1}, {"kept": {1: "a"}})
    told: list[bytes] = []
    draft = Draft(objects, root, lambda operation: told.append(operation.encode()))
    write_all_kinds(draft)
    with collecting(store):  # whatever is published is told of
        pass
    again = Draft(Objects(store), root)
    again.apply(map(WriteOperation.decode, told))
    assert contents(again) == contents(draft)
    assert again.changes() == draft.changes()
    assert again.flush() == draft.flush()
    silent = Draft(Objects(store), root)
    write_all_kinds(silent)
    assert silent.flush() == draft.flush()
    edits = [edit for edit in (WriteOperation.decode(data).edit for data in told) if edit is not None]
    assert 0 < len(edits) < len(told)
    forms = {(bool(edit.gone), edit.new is not None) for edit in edits}
    assert forms == {(False, True), (True, False), (True, True)}
    assert max(map(len, told)) < 2 << 20


class Life:
    """A draft that tells a log, and has what others told of before it writes itself."""

    def __init__(self, objects: Objects, root: str, log: list[WriteOperation]) -> None:
        self.draft = Draft(objects, root, self.tell, self.in_order)
        self.log, self.known = log, 0

    @contextmanager
    def in_order(self) -> Iterator[None]:
        self.draft.apply(self.log[self.known :])
        self.known = len(self.log)
        yield

    def tell(self, operation: WriteOperation) -> None:
        self.log.append(operation)
        self.known += 1


def test_two_lives_that_write_in_turns_have_what_both_wrote_in_its_order(
    objects: Objects, store: LocalStore
) -> None:
    root = rooted(objects, {}, {"x": {0: BIG[0]}})
    log: list[WriteOperation] = []
    one, other = Life(objects, root, log), Life(Objects(store), root, log)
    column = one.draft.column("x")
    column[1] = BIG[1]
    other.draft.column("x").extend(BIG)
    column["k"] = BIG[3]
    other.draft.set("experiment", "large", values.write(other.draft.writer, "y" * 10_000))
    assert column.append(BIG[7]) == len(BIG) + 2
    del other.draft.column("x")[len(BIG) + 2]
    assert column.append(BIG[7]) == len(BIG) + 2
    other.draft.column("x").update({"k": BIG[3], len(BIG) + 7: BIG[5]})
    assert column.append(BIG[6]) == len(BIG) + 8
    again = Draft(Objects(store), root)
    again.apply(log)
    assert contents(again) == contents(one.draft)
    assert len(again.column("x")) == len(BIG) + 6
    assert [again.column("x")[key][0] for key in (0, 1, 2, "k")] == [0.0, BIG[1, 0], BIG[0, 0], BIG[3, 0]]
    assert again.names("experiment") == ["large"]


def test_a_write_that_cannot_be_kept_is_undone(tmp_path: Path) -> None:
    full = FaultyStore(LocalStore(tmp_path), Fault("full", at=1, times=1000, until=tmp_path / "space"))
    draft = Draft(Objects(full), None, lambda operation: full.put("stage", operation.encode()))
    for write in (
        lambda: draft.set("experiment", "a", ValueRecord(1)),
        lambda: draft.set("experiment", "l", values.write(draft.writer, "y" * 10_000)),
        lambda: draft.column("x").update({1: "a"}),
        lambda: draft.column("y").extend(BIG),
    ):
        with pytest.raises(StorageError, match=r"no space is left"):
            write()
    assert contents(draft) == {}
    assert not draft.changed
    (tmp_path / "space").touch()
    change(draft, {"a": 1}, {"x": {1: "a"}})
    assert contents(draft) == {"a": 1, "x": {1: "a"}}


THINGS = [
    WriteOperation(things=(("experiment", "ä/b", {"value": [1, None]}),)),
    WriteOperation(things=(("model", "m", None), ("data", "x", {"column": {}}))),
]
SAMPLES: list[dict[Key, StoredSample]] = [
    {1: Tensor.from_numpy(np.zeros((2, 0, 3), np.complex128)), "k": Tensor("C128", (2, 0, 3), np.zeros(0, "u1"))},
    {(1, "a"): Tensor("BF16", (2,), np.arange(4, dtype="u1")), ("b", 2): Tensor("BF16", (0,), np.zeros(0, "u1"))},
    {-1: "ü\0", 0: "", 7: "x" * 3000},
    {"a": b"\0\xff"},
    {n: Tensor.from_numpy(np.array(bool(n % 2))) for n in range(5)},
]  # fmt: skip


def edit_of(samples: dict[Key, StoredSample], *gone: Key) -> Edit:
    values = list(samples.values())
    record = record_for(values, isinstance(next(iter(samples)), tuple))
    return Edit(
        record,
        list(map(encode, gone)),
        KeyedSamples(keys_of(list(map(encode, samples))), rows_of(values, record)),
    )


@pytest.mark.parametrize("operation", THINGS)
def test_records_come_back_from_the_bytes_of_an_operation(operation: WriteOperation) -> None:
    assert WriteOperation.decode(operation.encode()) == operation


@pytest.mark.parametrize("samples", SAMPLES, ids=range(len(SAMPLES)))
def test_samples_come_back_from_the_bytes_of_an_operation_which_end_as_the_fragment_of_a_commit(
    samples: dict[Key, StoredSample], objects: Objects
) -> None:
    is_nested = isinstance(next(iter(samples)), tuple)
    gone: tuple[Key, ...] = (("a", 2), (3, "c")) if is_nested else (1, "a")
    data = WriteOperation("x", edit_of(samples, *gone)).encode()
    found = WriteOperation.decode(data)
    assert found.edit is not None
    assert found.edit.new is not None
    assert (found.column, found.things, list(map(decode, found.edit.gone))) == ("x", (), list(gone))
    record, rows = found.edit.record, found.edit.new.rows
    keys = plain(found.edit.new.keys)
    assert (
        dict(zip(keys, (stored_sample(rows, at, record) for at in range(len(keys))), strict=True)) == samples
    )
    assert found.encode() == data
    draft = Draft(objects, None)
    draft.apply([found])
    draft.flush()
    column = draft.column("x").snapshot()
    ((_, (digest, *_)),) = SortedMap(draft.writer, column.record.pages).items()
    assert data.endswith(draft.writer.read(digest).tobytes())
    draft.release()


@pytest.mark.parametrize("data", [
    b"", b"12345678901", THINGS[0].encode()[:40], WriteOperation("x", edit_of(SAMPLES[2])).encode()[:-1],
    WriteOperation("x", edit_of(SAMPLES[2])).encode() + b"x",
    WriteOperation("x", edit_of(SAMPLES[2])).encode().replace(b'"kind":"string","nbytes"', b'"kind":"bytes","nbytes"'),
    WriteOperation("x", edit_of(SAMPLES[2], 1)).encode().replace(b'"gone":[1]', b'"gone":{}'),
    WriteOperation("x", edit_of(SAMPLES[2])).encode().replace(b'{"column":{', b'{"museum":{'),
])  # fmt: skip
def test_bytes_that_are_no_operation_say_so(data: bytes) -> None:
    with pytest.raises(
        CorruptError, match=r"a staged write cannot be read \((?!CorruptError).*hopyard stock status"
    ):
        WriteOperation.decode(data)


def test_an_edit_of_a_column_that_holds_something_else_is_refused(objects: Objects) -> None:
    draft = Draft(objects, rooted(objects, {}, {"x": {1: 1.5}}))
    with pytest.raises(
        CorruptError, match=r"'x' is of strings, but the column holds float64.*hopyard stock reset"
    ):
        draft.apply([WriteOperation("x", edit_of(SAMPLES[2]))])
    assert contents(draft) == {"x": {1: 1.5}}


def test_a_draft_works_on_stores_without_files() -> None:
    objects = Objects(MemoryStore())
    root = rooted(objects, {"a": 1}, {"x": {0: np.array([1], np.int16)}})
    assert contents(Snapshot(objects, root, "x")) == {"a": 1, "x": {0: [1]}}
