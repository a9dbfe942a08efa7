"""What differs between columns, and merging them, against dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import DataError
from hopyard.stockroom.data import ColumnDraft, SampleColumn, cutting, diff_columns, merge_columns
from hopyard.stockroom.maps import Key, encode
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.stockroom.records import ColumnRecord
from hopyard.storage import MemoryStore

keys = st.one_of(st.integers(0, 30), st.sampled_from("abc"))
contents = st.dictionaries(keys, st.integers(0, 2), max_size=25)
Content = dict[Key, int]


def written(objects: Objects, writer: PackfileWriter, content: Content) -> ColumnRecord:
    draft = ColumnDraft(objects, writer, "x")
    draft.create(kind="bytes")
    draft.update({key: b"value" * value for key, value in content.items()})
    with pytest.MonkeyPatch.context() as patch:  # early versions ended fragments elsewhere
        patch.setattr(cutting, "AIM_BITS", 5 + len(content) % 3)
        record = draft.flush()
    assert record is not None
    return record


def content_of(writer: Any, record: ColumnRecord) -> Content:
    return {key: len(value) // 5 for key, value in SampleColumn(writer, "x", record).items()}


def kind_of(old: int | None, here: int | None, there: int | None) -> str:
    if old is None:
        return "both added"
    if here is None:
        return "removed here, changed there"
    return "changed here, removed there" if there is None else "both changed"


@pytest.fixture(autouse=True)
def small_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "LIMIT", 120)
    monkeypatch.setattr(cutting, "AIM_BITS", 6)


@given(a=contents, b=contents)
def test_a_difference_is_that_of_the_samples(a: Content, b: Content) -> None:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        found = list(diff_columns(writer, written(objects, writer, a), written(objects, writer, b)))
    wanted = [
        (key, "added" if key not in a else "removed" if key not in b else "changed")
        for key in sorted(a.keys() | b.keys(), key=encode)
        if a.get(key) != b.get(key)
    ]
    assert found == wanted


@given(base=contents, ours=contents, theirs=contents, side=st.sampled_from([None, "ours", "theirs", "call"]))
def test_a_merge_is_that_of_the_samples(base: Content, ours: Content, theirs: Content, side: Any) -> None:
    seen = []

    def resolve(key: Key, kind: str, *values: bytes | None) -> bytes | None:
        old, here, there = (None if value is None else len(value) // 5 for value in values)
        assert (old, here, there) == (base.get(key), ours.get(key), theirs.get(key))
        seen.append((key, kind))
        return b"value" * 9 if here else None

    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        a, b, c = (written(objects, writer, content) for content in (base, ours, theirs))
        merged, conflicts = merge_columns(writer, writer, a, b, c, resolve if side == "call" else side)
        found = content_of(writer, merged)
        assert merged.count == len(found)
    wanted: dict[Key, int | None] = {}
    clashes = []
    for key in sorted(base.keys() | ours.keys() | theirs.keys(), key=encode):
        old, here, there = base.get(key), ours.get(key), theirs.get(key)
        if here == there or there == old:
            wanted[key] = here
        elif here == old:
            wanted[key] = there
        else:
            clashes.append((key, kind_of(old, here, there)))
            wanted[key] = there if side == "theirs" else here
            if side == "call":
                wanted[key] = 9 if here else None
    assert found == {key: value for key, value in wanted.items() if value is not None}
    assert conflicts == ([] if side else clashes)
    assert seen == (clashes if side == "call" else [])


def test_columns_without_a_base_conflict_where_they_differ() -> None:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        ours, theirs = written(objects, writer, {1: 1, 2: 2}), written(objects, writer, {1: 1, 2: 3, 4: 4})
        merged, conflicts = merge_columns(writer, writer, None, ours, theirs)
        assert content_of(writer, merged) == {1: 1, 2: 2, 4: 4}
        assert conflicts == [(2, "both added")]
        assert list(diff_columns(writer, None, ours)) == [(1, "added"), (2, "added")]
        assert list(diff_columns(writer, ours, None)) == [(1, "removed"), (2, "removed")]


def test_columns_of_other_dtypes_differ_in_all_and_cannot_be_merged() -> None:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        drafts = [ColumnDraft(objects, writer, name) for name in "ab"]
        for draft, dtype in zip(drafts, (np.int32, np.float32), strict=True):
            draft.extend(np.zeros((2, 1), dtype))
        a, b = (draft.flush() for draft in drafts)
        assert a is not None
        assert b is not None
        assert list(diff_columns(writer, a, b)) == [(0, "changed"), (1, "changed")]
        with pytest.raises(DataError, match=r"cannot be merged sample by sample. Convert one of them"):
            merge_columns(writer, writer, None, a, b)


def test_what_resolves_a_conflict_must_fit() -> None:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        base, ours, theirs = (written(objects, writer, {1: value}) for value in (1, 2, 3))
        with pytest.raises(DataError, match=r"int64 of shape .*but the column holds bytes"):
            merge_columns(writer, writer, base, ours, theirs, lambda *_: np.zeros(3, np.int64))
