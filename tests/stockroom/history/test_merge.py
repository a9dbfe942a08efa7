"""Three-way merges: nothing is lost, nothing is decided silently."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from hopyard.data import Dataset, prepare
from hopyard.errors import UsageError
from hopyard.stockroom.data.datasets import read_manifest, store_dataset
from hopyard.stockroom.experiments import values
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.history.conflicts import Conflict, listed
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.merge import MergeResult, merge_commits, merge_roots
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.stage import Stage
from hopyard.stockroom.records import DatasetRecord, ModelRecord, RunRecord
from hopyard.storage import LocalStore, MemoryStore

from .repository import Repository, change, contents


@pytest.fixture
def repository() -> Repository:
    return Repository(MemoryStore())


def shown(conflicts: list[Conflict]) -> list[tuple[Any, ...]]:
    return [(conflict.path, conflict.key, conflict.kind) for conflict in conflicts]


def test_what_one_side_changed_is_taken_and_what_both_changed_alike_is_so(repository: Repository) -> None:
    base = repository.commit(
        values={"a": 1, "b": 1, "c": 1, "d": 1}, columns={"x": {1: "1", 2: "2", 3: "3"}, "y": {1: 1}}
    )
    ours = repository.commit(
        base, values={"a": 2, "d": None, "new": 5}, columns={"x": {1: "one", 4: "4"}, "y": None}
    )
    theirs = repository.commit(
        base, values={"b": 2, "d": None, "new": 5}, columns={"x": {2: None, 4: "4"}, "z": {0: 0.5}}
    )
    expected = {"a": 2, "b": 2, "c": 1, "new": 5, "x": {1: "one", 3: "3", 4: "4"}, "z": {0: 0.5}}
    assert repository.merge(ours, theirs) == (expected, [])
    assert repository.merge(theirs, ours) == (expected, [])
    assert repository.merge(ours, base) == (repository.contents(ours), [])
    assert repository.merge(base, theirs) == (repository.contents(theirs), [])


def test_where_one_side_follows_the_other_nothing_is_merged(repository: Repository) -> None:
    base = repository.commit(values={"a": 1})
    later = repository.commit(base, values={"a": 2})
    side = repository.commit(base, values={"b": 2})
    writer = repository.objects.writing()
    root, last = (read_commit(repository.objects, commit).root for commit in (base, later))
    assert merge_commits(writer, later, base) == MergeResult(last, [], "up to date")
    assert merge_commits(writer, base, base) == MergeResult(root, [], "up to date")
    assert merge_commits(writer, base, later) == MergeResult(last, [], "fast-forward")
    assert merge_commits(writer, later, side).how == "merged"
    assert merge_commits(writer, later, repository.commit(values={"c": 3})).how == "merged"


def test_a_sample_added_to_a_column_that_was_removed_there_is_a_conflict(repository: Repository) -> None:
    base = repository.commit(columns={"x": {1: "1"}})
    removed = repository.commit(base, columns={"x": None})
    added = repository.commit(base, columns={"x": {2: "2"}})
    merged, conflicts = repository.merge(removed, added)
    assert shown(conflicts) == [("data/x", None, "column removed here, samples changed there")]
    assert merged == {}
    assert shown(repository.merge(added, removed)[1]) == [
        ("data/x", None, "samples changed here, column removed there")
    ]
    assert repository.merge(removed, added, "ours") == ({}, [])
    assert repository.merge(removed, added, "theirs") == ({"x": {1: "1", 2: "2"}}, [])


VALUES: list[tuple[Any, Any, Any, str]] = [
    (None, 1, 2, "both added"), (0, 1, 2, "both changed"), (0, None, 2, "removed here, changed there"),
    (0, 1, None, "changed here, removed there"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "ours", "theirs", "kind"), VALUES)
def test_every_kind_of_conflict_of_values_and_samples(
    repository: Repository, base: Any, ours: Any, theirs: Any, kind: str
) -> None:
    def made(*parents: str, to: Any) -> str:
        there = bool(parents) and base is not None
        return repository.commit(
            *parents,
            values={} if to is None and not there else {"v": to},
            columns={"x": {"other": 9} if to is None and not there else {"other": 9, "k": to}},
        )

    first = made(to=base)
    sides = made(first, to=ours), made(first, to=theirs)
    merged, conflicts = repository.merge(*sides)
    assert merged == repository.contents(sides[0])
    by_place = {(conflict.path, conflict.key): conflict for conflict in conflicts}
    assert list(by_place) == [("data/x", "k"), ("experiment/v", None)]
    for conflict in conflicts:
        assert conflict.kind == kind
        assert [conflict.base, conflict.ours, conflict.theirs] == [base, ours, theirs]
    assert str(conflicts[1]).startswith(f"experiment/v: {kind} (base {'-' if base is None else base}, ours ")
    assert str(conflicts[0]).startswith(f"data/x['k']: {kind} (base ")
    assert repository.merge(*sides, "ours") == (repository.contents(sides[0]), [])
    assert repository.merge(*sides, "theirs") == (repository.contents(sides[1]), [])
    answers = {"data/x": "theirs", "experiment/v": "ours"}
    mixed, _ = repository.merge(*sides, lambda conflict: answers[conflict.path])
    assert mixed.get("v") == ours
    assert mixed["x"].get("k") == theirs
    third, _ = repository.merge(*sides, lambda conflict: 7)
    assert (third["v"], third["x"]["k"]) == (7, 7)


def test_columns_that_hold_something_else_conflict_as_a_whole(repository: Repository) -> None:
    base = repository.commit()
    ours = repository.commit(base, columns={"x": {1: np.array([1], np.float32)}})
    theirs = repository.commit(base, columns={"x": {2: np.array([1, 2], np.float32)}})
    merged, conflicts = repository.merge(ours, theirs)
    assert shown(conflicts) == [("data/x", None, "dtype or shape differ")]
    assert "ColumnRecord" not in str(conflicts[0])
    assert merged == {"x": {1: [1.0]}}
    with pytest.raises(UsageError, match=r"was resolved with 5, but it is resolved with 'ours' or 'theirs'"):
        repository.merge(ours, theirs, lambda conflict: 5)


def test_models_are_merged_whole_and_runs_stand_beside_each_other(repository: Repository) -> None:
    def made(model: str, run: str) -> str | None:
        draft = Draft(repository.objects, None)
        draft.set("model", "net", ModelRecord(model * 64, 1))
        draft.set("run", run, RunRecord(run * 64, "finished", "2026"))
        return draft.flush()

    with repository.objects.writing() as writer:
        result = merge_roots(writer, made("a", "1"), made("b", "2"), made("c", "3"))
        assert shown(result.conflicts) == [("model/net", None, "both changed")]
        base, ours, theirs = (f"1 bytes, {letter * 12}" for letter in "abc")
        assert (
            str(result.conflicts[0]) == f"model/net: both changed (base {base}, ours {ours}, theirs {theirs})"
        )
        same = merge_roots(writer, None, made("b", "2"), made("b", "3"))
    assert same.conflicts == []
    assert Draft(repository.objects, same.root).names("run") == ["2", "3"]


def test_datasets_are_merged_by_their_files(repository: Repository, tmp_path: Path) -> None:
    def made(*seeds: int) -> str | None:
        """The root map with a dataset of one file for each seed."""
        store, files = LocalStore(tmp_path / "files"), []
        for seed in seeds:
            folder = LocalStore(tmp_path / f"{seed}")
            part = prepare({"id": np.arange(20)}, folder, validation=None, seed=seed).train
            assert part.store is not None
            (entry,) = part.manifest.files
            store.put(f"{entry.digest}.parquet", part.store.get(entry.name))
            files.append(replace(entry, name=f"{entry.digest}.parquet"))
        manifest = replace(part.manifest, files=tuple(files), fingerprint=str(seeds))
        draft = Draft(repository.objects, None)
        draft.set("data", "train", store_dataset(draft.writer, Dataset(store, manifest)))
        return draft.flush()

    def files_of(root: str | None) -> set[str]:
        record = Draft(repository.objects, root).record("data", "train")
        assert isinstance(record, DatasetRecord)
        return {entry.digest for entry in read_manifest(repository.objects, record, "it").files}

    with repository.objects.writing() as writer:
        added = merge_roots(writer, made(1, 2), made(1, 2, 3), made(1, 4))
        replaced = merge_roots(writer, made(1), made(2), made(3))
    assert added.conflicts == []
    assert files_of(added.root) == files_of(made(1, 3, 4))
    assert shown(replaced.conflicts) == [("data/train", None, "both changed")]
    assert replaced.root == made(2)


def test_who_decides_is_checked(repository: Repository) -> None:
    base = repository.commit()
    with pytest.raises(
        UsageError, match="are to be resolved by 'mine', but that is 'ours', 'theirs', or a function"
    ):
        repository.merge(base, base, "mine")


def test_many_conflicts_are_listed_in_few_lines() -> None:
    text = listed([Conflict("data/x", key, "both added", None, "a" * 100, "b") for key in range(25)])
    assert len(text.splitlines()) == 11
    assert text.splitlines()[0] == f"    data/x[0]: both added (base -, ours '{'a' * 56}..., theirs 'b')"
    assert text.endswith("and 15 more")


# Criss-cross: the two sides have merged each other's beginnings, so they have two bases.


def crossed(repository: Repository, *, first: Any, one: Any, two: Any, ours: Any, theirs: Any) -> Any:
    """The merge of two commits that both follow ``one`` and ``two``; each argument is what value and sample are."""

    def made(*parents: str, to: Any) -> str:
        draft = repository.draft(parents[0] if parents else None)
        change(draft, {"v": to}, {"x": {"other": 9}})
        if to is not None or "k" in draft.column("x"):
            change(draft, {}, {"x": {"k": to}})
        return repository.write(draft, *parents)

    base = made(to=first)
    left, right = made(base, to=one), made(base, to=two)
    return repository.merge(made(left, right, to=ours), made(right, left, to=theirs))


@pytest.mark.parametrize(
    ("first", "one", "two", "ours", "theirs", "expected"),
    [
        (0, 1, 2, 1, 2, "conflict"), (0, 1, 2, 2, 1, "conflict"), (0, 1, 2, 3, 3, 3), (0, 1, 2, 1, 1, 1),
        (0, 1, 2, 1, 4, "conflict"), (0, 1, 2, None, 1, "conflict"), (0, 1, None, 1, None, "conflict"),
        (0, 1, None, None, 1, "conflict"), (0, 1, None, None, None, None), (None, 1, 2, 1, None, "conflict"),
        (0, 0, 1, 1, 1, 1), (0, 0, 1, 0, 1, 0), (0, 0, 1, 1, 5, 5), (0, 1, 1, 1, 2, 2), (0, 0, 1, 3, 4, "conflict"),
    ],
)  # fmt: skip
def test_after_a_criss_cross_nothing_is_decided_by_one_of_the_bases(
    repository: Repository, first: Any, one: Any, two: Any, ours: Any, theirs: Any, expected: Any
) -> None:
    merged, conflicts = crossed(repository, first=first, one=one, two=two, ours=ours, theirs=theirs)
    if expected == "conflict":
        assert [(conflict.path, conflict.key) for conflict in conflicts] == [
            ("data/x", "k"),
            ("experiment/v", None),
        ]
        expected = ours
    else:
        assert conflicts == []
    assert (merged.get("v"), merged["x"].get("k")) == (expected, expected)
    assert merged["x"]["other"] == 9


def test_whole_columns_about_which_the_bases_disagree_conflict(repository: Repository) -> None:
    base = repository.commit(columns={"x": {1: "a"}})
    left = repository.commit(base, columns={"x": None})
    right = repository.commit(base, columns={"x": {2: "b"}})
    ours = repository.commit(left, right, columns={"x": {1: "a"}})
    theirs = repository.commit(right, left, columns={"x": {3: "c"}})
    assert shown(repository.merge(ours, theirs)[1]) == [("data/x", None, "both added")]
    assert repository.merge(ours, theirs, "theirs")[0] == {"x": {1: "a", 2: "b", 3: "c"}}


KEYS = st.sampled_from("abcd")
SIDES = st.dictionaries(KEYS, st.integers(0, 2))


@given(SIDES, SIDES, SIDES)
def test_merges_agree_with_those_of_dicts(base: Any, ours: Any, theirs: Any) -> None:
    """Values and samples, against the definition of a three-way merge."""
    repository = Repository(MemoryStore())

    def made(content: dict[str, int], *parents: str) -> str:
        gone = dict.fromkeys(base if parents else {}) | content
        return repository.commit(*parents, values=gone, columns={"x": {"other": 9} | gone})

    first = made(base)
    merged, conflicts = repository.merge(made(ours, first), made(theirs, first))
    expected, differing = three_way(base, ours, theirs)
    assert {key: value for key, value in merged.items() if key != "x"} == expected
    assert merged["x"] == {"other": 9} | expected
    assert {conflict.key for conflict in conflicts if conflict.path == "data/x"} == differing
    assert {conflict.path.partition("/")[2] for conflict in conflicts if conflict.key is None} == differing


def three_way(base: Any, ours: Any, theirs: Any) -> tuple[dict[str, Any], set[str]]:
    """The merge of dicts, ours where they conflict; and where they do."""
    merged, conflicts = {}, set()
    for key in {*base, *ours, *theirs}:
        before, here, there = base.get(key), ours.get(key), theirs.get(key)
        if before not in (here, there) and here != there:
            conflicts.add(key)
        chosen = there if here == before else here
        if chosen is not None:
            merged[key] = chosen
    return merged, conflicts


class History(RuleBasedStateMachine):
    """Branches, commits, stages and merges of values, against plain dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.repository = Repository(MemoryStore())
        self.model: dict[str, dict[str, int]] = {"main": {}}

    def tip(self, branch: str) -> str | None:
        return self.repository.references.tip(f"heads/{branch}").commit

    def parents(self, *branches: str) -> list[str]:
        return list(dict.fromkeys(tip for tip in map(self.tip, branches) if tip is not None))

    def check(self, branch: str) -> None:
        assert self.repository.contents(self.tip(branch)) == self.model[branch]

    @rule(
        branch=st.sampled_from(["main", "dev", "x"]),
        changes=st.dictionaries(KEYS, st.none() | st.integers(0, 3)),
    )
    def commit(self, branch: str, changes: dict[str, Any]) -> None:
        if branch not in self.model:
            return
        draft = self.repository.draft(self.tip(branch))
        stage = Stage(self.repository.store, "main", self.tip(branch))
        draft._told = lambda operation: stage.append(operation.encode())
        change(draft, changes, {})
        again = self.repository.draft(self.tip(branch))
        again.apply(map(WriteOperation.decode, stage.operations()))
        expected = {k: v for k, v in (self.model[branch] | changes).items() if v is not None}
        assert contents(again) == contents(draft) == expected
        made = self.repository.publish(again, *self.parents(branch), branch=branch)
        stage.clear()
        assert (made is None) == (expected == self.model[branch])
        self.model[branch] = expected
        self.check(branch)

    @rule(branch=st.sampled_from(["dev", "x"]), start=st.sampled_from(["main", "dev", "x"]))
    def branch(self, branch: str, start: str) -> None:
        if start in self.model and branch not in self.model and self.tip(start) is not None:
            self.repository.references.set(f"heads/{branch}", self.tip(start), "Ada")
            self.model[branch] = self.model[start]
            self.check(branch)

    @rule(branch=st.sampled_from(["dev", "x"]))
    def delete(self, branch: str) -> None:
        if branch in self.model:
            self.repository.references.set(f"heads/{branch}", None, "Ada")
            del self.model[branch]
        assert set(self.repository.references.names("heads")) == {
            name for name in self.model if self.tip(name)
        }

    @rule(ours=st.sampled_from(["main", "dev", "x"]), theirs=st.sampled_from(["main", "dev", "x"]))
    def merge(self, ours: str, theirs: str) -> None:
        if ours not in self.model or theirs not in self.model or len(self.parents(ours, theirs)) < 2:
            return
        parents = self.parents(ours, theirs)
        merged, conflicts = self.repository.merge(parents[0], parents[1])
        here, there = self.model[ours], self.model[theirs]
        disputed = {conflict.path.partition("/")[2] for conflict in conflicts}
        for key in {*here, *there}:
            if here.get(key) == there.get(key):
                assert merged.get(key) == here.get(key)
            assert merged.get(key) in (here.get(key), there.get(key))
        assert all(here.get(key) != there.get(key) for key in disputed)
        draft = self.repository.draft(parents[0])
        change(draft, dict.fromkeys(here) | merged, {})
        assert self.repository.publish(draft, *parents, branch=ours) is not None
        self.model[ours] = merged
        self.check(ours)


TestHistory = History.TestCase
TestHistory.settings = settings(stateful_step_count=15)


# Columns whose settings change, and things that are removed and made anew.

Thing = tuple[str, dict[Any, Any]] | None
"""A column of plain Python: what it holds, and its samples; None: there is none."""

HOLDS: dict[str, dict[str, Any]] = {
    "int64": {"dtype": "int64"}, "float32": {"dtype": "float32"}, "string": {"kind": "string"},
    "parts": {"dtype": "int64", "nested": True}, "pairs": {"dtype": "int64", "shape": (2,)},
    "ragged": {"dtype": "int64", "shape": (None,)},
}  # fmt: skip


def as_held(holds: str, value: Any) -> Any:
    """A number as what a column holds."""
    if holds == "string":
        return str(value)
    if holds in ("pairs", "ragged"):
        return [int(value)] * 2
    return value + 0.5 if holds == "float32" and value == 2 else int(value)


def filled(holds: str) -> st.SearchStrategy[Thing]:
    keys = st.tuples(st.integers(0, 1), st.sampled_from("ab")) if holds == "parts" else st.integers(0, 3)
    values = st.integers(0, 2).map(lambda value: as_held(holds, value))
    return st.tuples(st.just(holds), st.dictionaries(keys, values))


def things() -> st.SearchStrategy[Thing]:
    return st.none() | st.sampled_from(list(HOLDS)).flatmap(filled)


def convertible() -> st.SearchStrategy[Thing]:
    return st.sampled_from(["int64", "float32", "pairs", "ragged"]).flatmap(filled)


def converted(thing: Thing, to: str | None) -> Thing:
    """The column with the same numbers as something else that it may hold; None: as it is."""
    if thing is None or to is None or thing[0] in ("string", "parts"):
        return thing
    flat = {key: value[0] if isinstance(value, list) else value for key, value in thing[1].items()}
    return to, {key: as_held(to, int(value)) for key, value in flat.items()}


def edited(thing: Thing) -> st.SearchStrategy[Thing]:
    if thing is None or thing[0] == "parts":
        return st.just(thing)
    values = st.none() | st.integers(0, 2).map(lambda value: as_held(thing[0], value))
    edits = st.dictionaries(st.integers(0, 3), values, max_size=2)
    return edits.map(lambda new: (thing[0], {k: v for k, v in (thing[1] | new).items() if v is not None}))


def changed(thing: Thing, to: str | None) -> st.SearchStrategy[Thing]:
    """What may become of a column: converted to ``to``, and edited; or anything."""
    return edited(converted(thing, to)) | edited(converted(thing, to)) | edited(thing) | things()


_NEITHER: Any = object()  # in a base: several bases do not agree


def merged_things(base: Any, ours: Thing, theirs: Thing, is_base: bool = False) -> tuple[Any, set[Any]]:
    """The definition of a merge of columns; and where they conflict: keys, or None for the whole."""
    if ours == theirs:
        return ours, set()
    agreed = base is not _NEITHER and (base is None or _NEITHER not in base[1].values())
    if agreed and base in (ours, theirs):
        return (theirs if base == ours else ours), set()
    if base is _NEITHER or ours is None or theirs is None or ours[0] != theirs[0]:
        return (_NEITHER if is_base else ours), {None}
    merged, conflicts = {}, set()
    for key in {*ours[1], *theirs[1], *(base[1] if base else ())}:
        before, here, there = (None if thing is None else thing[1].get(key) for thing in (base, ours, theirs))
        if before is not None and before is not _NEITHER and base[0] != ours[0]:
            is_scalar = {base[0], ours[0]} == {"int64", "float32"}
            if is_scalar or {base[0], ours[0]} == {"pairs", "ragged"}:
                before = int(before) if ours[0] == "int64" else before
            else:
                before = object()  # not to be compared
        chosen = there if here == before else here
        if here != there and before not in (here, there):
            conflicts.add(key)
            chosen = _NEITHER if is_base else here
        if chosen is not None:
            merged[key] = chosen
    return (ours[0], merged), conflicts


def put(draft: Draft, name: str, before: Thing, after: Thing) -> None:
    """Make a column what it shall be: sample by sample, or anew where it holds something else."""
    if after is None or before is None or before[0] != after[0]:
        if before is not None:
            draft.set("data", name, None)
        if after is None:
            return
        draft.column(name).create(**HOLDS[after[0]])
        before = after[0], {}
    column = draft.column(name)
    dtype = HOLDS[after[0]].get("dtype")
    for key in before[1].keys() - after[1].keys():
        del column[key]
    for key, value in after[1].items():
        if before[1].get(key) != value:
            column[key] = value if dtype is None else np.array(value, dtype)


def entry(draft: Draft, kind: str, before: Any, after: Any) -> None:
    """The same for a value or a model."""
    if before == after:
        return
    if kind == "experiment":
        draft.set("experiment", "v", None if after is None else values.write(draft.writer, after))
    else:
        draft.set("model", "m", None if after is None else ModelRecord(f"{after}" * 64, 1))


SMALL = st.none() | st.integers(0, 2)


def merged_entries(base: Any, ours: Any, theirs: Any, is_base: bool = False) -> tuple[Any, bool]:
    if ours == theirs:
        return ours, False
    if base in (ours, theirs):
        return (theirs if base == ours else ours), False
    return (_NEITHER if is_base else ours), True


@st.composite
def histories(draw: Any) -> Any:
    """A column, a value and a model: of a first commit, of two upon it, and of two that follow both of these."""
    first = draw(convertible() | things())
    to = st.none() | st.sampled_from(["int64", "float32", "pairs", "ragged"])
    once, again = draw(to), draw(to)
    left, right = draw(changed(first, once)), draw(changed(first, once))
    tip = st.sampled_from([first, left, right])
    ours, theirs = (draw(tip.flatmap(lambda thing: changed(thing, again))) for _ in range(2))
    entries = [draw(st.tuples(SMALL, SMALL)) for _ in range(5)]
    return list(zip((first, left, right, ours, theirs), entries, strict=True))


@given(histories(), st.booleans())
def test_merges_of_whatever_a_column_becomes_agree_with_those_of_dicts(
    history: Any, is_crossed: bool
) -> None:
    """Settings changed by both alike, by one, differently; columns removed and made anew; one base, and two."""
    repository = Repository(MemoryStore())
    nothing: Any = None, (None, None)

    def made(state: Any, before: Any, *parents: str) -> str:
        draft = repository.draft(parents[0] if parents else None)
        put(draft, "x", before[0], state[0])
        entry(draft, "experiment", before[1][0], state[1][0])
        entry(draft, "model", before[1][1], state[1][1])
        return repository.write(draft, *parents)

    first, left, right, ours, theirs = history
    root = made(first, nothing)
    one, two = made(left, first, root), made(right, first, root)
    if is_crossed:
        tips = made(ours, left, one, two), made(theirs, right, two, one)
        base, _ = merged_things(first[0], left[0], right[0], is_base=True)
        low = [merged_entries(first[1][n], left[1][n], right[1][n], is_base=True)[0] for n in (0, 1)]
        here, there = ours, theirs
    else:
        tips, base, low, here, there = (one, two), first[0], list(first[1]), left, right
    with repository.objects.writing() as writer:
        result = merge_commits(writer, *tips)
    expected, conflicts = merged_things(base, here[0], there[0])
    found = Draft(repository.objects, result.root)
    record: Any = found.record("data", "x")
    if expected is None:
        assert record is None
    else:
        holds = HOLDS[expected[0]]
        assert (record.kind, record.nested) == (holds.get("kind", "tensor"), holds.get("nested", False))
        assert record.shape == holds.get("shape", ())
        assert contents_of(found) == expected[1]
    assert {conflict.key for conflict in result.conflicts if conflict.path == "data/x"} == conflicts
    for n, path in enumerate(("experiment/v", "model/m")):
        value, is_conflict = merged_entries(low[n], here[1][n], there[1][n])
        shelf, _, name = path.partition("/")
        was: Any = found.record(shelf, name)  # type: ignore[arg-type]
        assert (None if was is None else was.value if n == 0 else int(was.tree[0])) == value
        assert is_conflict == (path in {conflict.path for conflict in result.conflicts})


def contents_of(view: Draft) -> dict[Any, Any]:
    return {
        (sample, part) if isinstance(value, dict) else sample: one.tolist() if hasattr(one, "tolist") else one
        for sample, value in view.column("x").items()
        for part, one in (value.items() if isinstance(value, dict) else [(None, value)])
    }


def test_a_sample_deleted_while_both_convert_the_column_stays_deleted(repository: Repository) -> None:
    base = repository.commit(columns={"x": {key: np.array(key, np.uint8) for key in range(4)}})

    def converted(scale: float, gone: int | None = None) -> str:
        draft = repository.draft(base)
        draft.set("data", "x", None)
        kept = {key: np.array(key * scale, np.float32) for key in range(4) if key != gone}
        change(draft, {}, {"x": kept})
        return repository.write(draft, base)

    deleted, kept = converted(1, gone=2), converted(1)
    expected = {"x": {0: 0.0, 1: 1.0, 3: 3.0}}
    assert repository.merge(deleted, kept) == (expected, [])
    assert repository.merge(kept, deleted) == (expected, [])
    # Whether a sample that was not only cast was changed, too, nobody can tell.
    merged, conflicts = repository.merge(converted(0.5, gone=2), converted(0.5))
    assert shown(conflicts) == [("data/x", 2, "removed here, changed there")]
    assert merged == {"x": {0: 0.0, 1: 0.5, 3: 1.5}}
