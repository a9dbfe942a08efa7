from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.stockroom.maps import SortedMap, encode, merge

from .pool import Pool, built

VALUES = st.sampled_from([0, 1, True, 1.0, "1", [1], [True], {"a": 1}])
EDITS = st.dictionaries(st.integers(-20, 3000), st.none() | VALUES, max_size=10)


def applied(model: dict[bytes, Any], edits: dict[int, Any]) -> dict[bytes, Any]:
    changed = {**model, **{encode(number): value for number, value in edits.items()}}
    return {key: value for key, value in changed.items() if value is not None}


def differing(a: dict[bytes, Any], b: dict[bytes, Any]) -> list[tuple[bytes, Any, Any]]:
    keys = sorted(a.keys() | b.keys())
    return [(key, a.get(key), b.get(key)) for key in keys if repr(a.get(key)) != repr(b.get(key))]


def content(count: int) -> dict[bytes, Any]:
    return {encode(number): 1 for number in range(count)}


@given(st.integers(0, 1500), st.integers(0, 1500), EDITS, EDITS)
def test_a_difference_is_that_of_two_dicts(
    n: int, m: int, ours: dict[int, Any], theirs: dict[int, Any]
) -> None:
    pool = Pool()
    a, b = applied(content(n), ours), applied(content(m), theirs)
    found = list(built(pool, a).diff(built(pool, b)))
    assert repr(found) == repr(differing(a, b))


@pytest.mark.long
@pytest.mark.parametrize(
    ("numbers", "edits"),
    [
        (30_000, {15_000: 0}),
        (30_000, {15_000: None}),
        (30_000, dict.fromkeys(range(-3000, 0), 0)),
        (30_000, dict.fromkeys(range(30000, 50000), 0)),
        (30_000, dict.fromkeys(range(10_000, 29_000))),
        (30_000, dict.fromkeys(range(300, 30_000))),
        (2000, {2000: 0}),
        (100, dict.fromkeys(range(200, 30000), 0)),
    ],
)
def test_pages_of_both_are_not_read(numbers: int, edits: dict[int, Any]) -> None:
    pool = Pool()
    before = content(numbers)
    after = applied(before, edits)
    a, b = built(pool, before), built(pool, after)
    common = set(a.pages()) & set(b.pages())
    for one, other, x, y in ((a, b, before, after), (b, a, after, before)):
        pool.forget_counts()
        found = list(SortedMap(pool, one.root).diff(SortedMap(pool, other.root)))
        assert found == differing(x, y)
        # Only a root must be read to know how high it is.
        assert set(pool.read_digests) & common <= {a.root, b.root}
        assert len(pool.read_digests) == len(set(pool.read_digests))


def test_equal_maps_are_not_read_at_all() -> None:
    pool = Pool()
    root = built(pool, content(1000)).root
    pool.forget_counts()
    assert list(SortedMap(pool, root).diff(SortedMap(pool, root))) == []
    assert merge(SortedMap(pool, None), SortedMap(pool, root), SortedMap(pool, root), no_conflict) == {}
    assert pool.read_digests == []


def no_conflict(key: bytes, base: Any, ours: Any, theirs: Any) -> Any:
    raise AssertionError(f"{key!r} conflicts: {base}, {ours}, {theirs}")


@given(st.integers(0, 1000), EDITS, EDITS)
def test_a_merge_takes_what_either_side_changed(n: int, ours: dict[int, Any], theirs: dict[int, Any]) -> None:
    pool = Pool()
    base = content(n)
    ours_model, theirs_model = applied(base, ours), applied(base, theirs)
    wanted: dict[bytes, Any] = {}
    conflicts: list[Any] = []
    for key in sorted(base.keys() | ours_model.keys() | theirs_model.keys()):
        b, o, t = base.get(key), ours_model.get(key), theirs_model.get(key)
        changed_by_us, changed_by_them = repr(o) != repr(b), repr(t) != repr(b)
        if changed_by_us and changed_by_them and repr(o) != repr(t):
            conflicts.append((key, b, o, t))
            wanted[key] = [o, t]
        else:
            wanted[key] = t if changed_by_them else o
    asked: list[Any] = []

    def both(*conflict: Any) -> Any:
        asked.append(conflict)
        return list(conflict[2:])

    mine = built(pool, ours_model)
    changes = merge(built(pool, base), mine, built(pool, theirs_model), both)
    assert repr(asked) == repr(conflicts)
    merged = {key: value for key, value in wanted.items() if value is not None}
    assert mine.update(pool, changes).root == built(pool, merged).root
    assert list(changes) == sorted(changes)


def test_a_conflict_may_be_settled_by_removal_or_left_as_ours() -> None:
    pool = Pool()
    base, ours, theirs = (built(pool, {encode(1): value, encode(2): value}) for value in (0, 1, 2))
    choice = {encode(1): None, encode(2): 1}
    assert merge(base, ours, theirs, lambda key, *_: choice[key]) == {encode(1): None}


def test_a_merge_reads_what_theirs_changed_only() -> None:
    pool = Pool()
    base = content(50_000)
    chance = random.Random(1)
    many = dict.fromkeys(chance.sample(range(25000), 20000), 7)
    ours, theirs = built(pool, applied(base, many)), built(pool, applied(base, {40_000: 8}))
    start = built(pool, base)
    pool.forget_counts()
    maps = (SortedMap(pool, each.root) for each in (start, ours, theirs))
    assert merge(*maps, no_conflict) == {encode(40_000): 8}
    assert len(pool.read_digests) <= 12
