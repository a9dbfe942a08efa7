from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import CorruptError, FormatError, UsageError
from hopyard.objects import digest
from hopyard.stockroom.history.commits import (
    Commit,
    ancestors,
    is_ancestor,
    log,
    merge_bases,
    read_commit,
    write_commit,
)

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Pool:
    """Objects in a dict, which count what is read."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads = 0

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        self.reads += 1
        return np.frombuffer(self.objects[name], np.uint8)

    def add_json(self, value: Any, kind: str) -> str:
        data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        name = digest(data, f"hopyard.{kind}")
        self.objects[name] = data
        return name


def made(pool: Pool, name: str, *parents: str, hours: float = 0) -> str:
    time = NOON + timedelta(hours=hours)
    return write_commit(pool, None, parents, name, "A <a@b>", time=time).digest


def names(pool: Pool, digests: Any) -> list[str]:
    return [read_commit(pool, name).message for name in digests]


def test_a_commit_comes_back() -> None:
    pool = Pool()
    first = write_commit(pool, None, [], "first ✓", "Ada <ada@example.org>")
    east = timezone(timedelta(hours=2))
    second = write_commit(
        pool,
        "f" * 64,
        [first.digest],
        "second",
        "Ada",
        {"commit": "c" * 40},
        datetime(2026, 5, 1, 12, tzinfo=east),
    )
    for written in (first, second):
        assert vars(read_commit(pool, written.digest)) == vars(written)
    assert (first.generation, first.parents, first.root, first.git) == (1, (), None, None)
    assert abs(datetime.fromisoformat(first.time) - datetime.now(UTC)) < timedelta(minutes=5)
    assert (second.generation, second.parents) == (2, (first.digest,))
    assert second.time == "2026-05-01T10:00:00.000000+00:00"
    assert {first, second, read_commit(pool, first.digest)} == {first, second}


def test_a_merge_is_one_above_the_higher_parent() -> None:
    pool = Pool()
    low = made(pool, "low")
    high = made(pool, "high", made(pool, "middle", low))
    assert read_commit(pool, made(pool, "merge", low, high)).generation == 4


def test_what_cannot_be_a_commit_is_refused() -> None:
    pool = Pool()
    first = made(pool, "first")
    with pytest.raises(UsageError, match=r"name a commit twice\. Name each once"):
        write_commit(pool, None, [first, first], "x", "A")
    with pytest.raises(UsageError, match=r"2026-05-01T12:00:00 has no offset from UTC\. Give one"):
        write_commit(pool, None, [first], "x", "A", time=datetime(2026, 5, 1, 12))
    assert list(pool.objects) == [first]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"keys":[1],"values":[2]}', b'{"format":{"kind":"commit","version":1}}']
)
def test_what_is_no_commit_is_damage(data: bytes) -> None:
    pool = Pool()
    pool.objects["d" * 64] = data
    with pytest.raises(CorruptError, match=r"the object d{64} is not a commit .* from a remote or a copy"):
        read_commit(pool, "d" * 64)


def test_a_commit_of_a_later_format_names_the_version_to_install() -> None:
    pool = Pool()
    value = json.loads(pool.objects[made(pool, "first")])
    later = pool.add_json({**value, "format": {**value["format"], "hopyard": "9.1", "version": 2}}, "commit")
    with pytest.raises(FormatError, match=r"the commit .* was written by Hopyard 9\.1 .* 'hopyard>=9\.1'"):
        read_commit(pool, later)


def test_a_generation_that_is_not_above_the_parents_is_damage() -> None:
    pool = Pool()
    first = made(pool, "first")
    value = json.loads(pool.objects[made(pool, "second", first)])
    wrong = pool.add_json({**value, "generation": 1}, "commit")
    with pytest.raises(CorruptError, match=f"{wrong} has generation 1, but its parent {first} has 1"):
        list(log(pool, wrong))


def test_the_log_shows_the_latest_first_where_the_history_leaves_it_open() -> None:
    pool = Pool()
    root = made(pool, "root")
    morning, evening = made(pool, "morning", root, hours=1), made(pool, "evening", root, hours=9)
    top = made(pool, "top", morning, evening, hours=-100)
    assert [commit.message for commit in log(pool, top)] == ["top", "evening", "morning", "root"]


def test_the_log_reads_as_it_goes() -> None:
    pool = Pool()
    tip = made(pool, "0")
    for number in range(1, 200):
        tip = made(pool, str(number), tip)
    pool.reads = 0
    assert [commit.message for commit in islice(log(pool, tip), 3)] == ["199", "198", "197"]
    assert pool.reads <= 4


def test_a_criss_cross_has_two_bases() -> None:
    pool = Pool()
    root = made(pool, "root")
    a, b = made(pool, "a", root), made(pool, "b", root)
    left, right = made(pool, "left", a, b), made(pool, "right", b, a)
    assert sorted(names(pool, merge_bases(pool, left, right))) == ["a", "b"]


def test_clocks_that_are_wrong_change_no_base() -> None:
    pool = Pool()
    old = made(pool, "old", hours=10**5)
    base = made(pool, "base", old, hours=-(10**5))
    left, right = made(pool, "left", base, hours=-7), made(pool, "right", made(pool, "x", base), old, hours=7)
    assert names(pool, merge_bases(pool, left, right)) == ["base"]


def test_far_tips_read_no_history_below_the_base() -> None:
    pool = Pool()
    base = made(pool, "0")
    for number in range(1, 300):
        base = made(pool, str(number), base)
    left, right = made(pool, "left", base), made(pool, "right", base)
    for ask in (
        lambda: merge_bases(pool, left, right),
        lambda: ancestors(pool, [left], without=[right]),
        lambda: is_ancestor(pool, left, right),
        lambda: is_ancestor(pool, base, right),
    ):
        pool.reads = 0
        ask()
        assert pool.reads <= 6


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Parents, by number, and the hour of each commit."""
    commits = []
    for number in range(draw(st.integers(1, 14))):
        parents = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
        commits.append((parents, draw(st.integers(-3, 3))))
    return commits


@given(histories(), st.data())
def test_walks_agree_with_sets_of_ancestors(
    history: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    pool = Pool()
    made_so_far: list[str] = []
    reach: list[set[int]] = []
    for number, (parents, hours) in enumerate(history):
        made_so_far.append(made(pool, str(number), *(made_so_far[parent] for parent in parents), hours=hours))
        reach.append({number}.union(*(reach[parent] for parent in parents)))
    pick = st.integers(0, len(history) - 1)
    a, b = data.draw(pick), data.draw(pick)
    left, right = made_so_far[a], made_so_far[b]

    logged: list[Commit] = list(log(pool, left))
    assert sorted(int(commit.message) for commit in logged) == sorted(reach[a])
    for at, commit in enumerate(logged):
        assert not {later.digest for later in logged[at:]} & {
            child.digest for child in logged if commit.digest in child.parents
        }
    both = reach[a] & reach[b]
    bases = {one for one in both if not any(one in reach[other] for other in both - {one})}
    assert {int(name) for name in names(pool, merge_bases(pool, left, right))} == bases
    assert merge_bases(pool, left, right) == merge_bases(pool, right, left)
    assert is_ancestor(pool, left, right) == (a in reach[b])
    assert ancestors(pool, [left]) == {made_so_far[i] for i in reach[a]}
    assert ancestors(pool, [left, right]) == {made_so_far[i] for i in reach[a] | reach[b]}
    assert ancestors(pool, [left], without=[right]) == {made_so_far[i] for i in reach[a] - reach[b]}
