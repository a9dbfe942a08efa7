from __future__ import annotations

import json
import pickle
import random
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import CorruptError, UsageError
from hopyard.stockroom.maps import SortedMap, encode
from hopyard.stockroom.maps.keys import encode_many, hash_key
from hopyard.stockroom.maps.pages import MAXIMUM, MINIMUM, Page

from .pool import Pool, built

NUMBERS = st.integers(-50, 5000)
CHANGES = st.dictionaries(NUMBERS, st.none() | st.integers(0, 3), max_size=8)


def ints(*ranges: Iterable[int]) -> dict[bytes, Any]:
    return {encode(number): number for numbers in ranges for number in numbers}


def unlucky(number: int) -> list[int]:
    """Ints behind which no page ends of itself."""
    found: list[int] = []
    start = 0
    while len(found) < number:
        block = range(start, start + 4096)
        found += [i for i in block if hash_key(encode(i)) % 8]
        start += 4096
    return found[:number]


def test_a_map_gives_what_was_put() -> None:
    pool = Pool()
    content = {encode(key): [key, {"a": None}] for key in (3, -1, "x", "", 10, "é")}
    found = built(pool, content)
    assert list(found.items()) == sorted(content.items())
    assert list(found.keys()) == sorted(content)
    assert len(found) == 6
    assert found.get(encode("x")) == ["x", {"a": None}]
    assert found.get(encode("y")) is None


def test_the_empty_map() -> None:
    pool = Pool()
    empty = SortedMap(pool, None)
    assert (len(empty), list(empty.items()), list(empty.pages())) == (0, [], [])
    assert empty.get(encode(1)) is None
    assert empty.floor(encode(1)) is None
    assert empty.update(pool, {}).root is None
    assert empty.update(pool, {encode(1): None}).root is None
    assert built(pool, ints(range(5000))).update(pool, dict.fromkeys(ints(range(5000)))).root is None


@pytest.fixture(scope="module")
def large() -> tuple[Pool, SortedMap, list[bytes]]:
    """30,000 even numbers, on three levels."""
    pool = Pool()
    content = ints(range(0, 60_000, 2))
    return pool, built(pool, content), sorted(content)


@given(start=st.none() | st.integers(-3, 60_003), stop=st.none() | st.integers(-3, 60_003))
def test_ranges_are_those_of_a_sorted_list(large: Any, start: int | None, stop: int | None) -> None:
    _, found, keys = large
    low = None if start is None else encode(start)
    high = None if stop is None else encode(stop)
    wanted = keys[
        0 if low is None else bisect_left(keys, low) : len(keys) if high is None else bisect_left(keys, high)
    ]
    assert list(found.keys(low, high)) == wanted
    assert [key for key, _ in found.items(low, high)] == wanted


@given(st.integers(-3, 60_003))
def test_floor_and_get_are_those_of_a_sorted_list(large: Any, number: int) -> None:
    _, found, _ = large
    below = min(number // 2 * 2, 59_998)
    assert found.floor(encode(number)) == (None if number < 0 else (encode(below), below))
    assert found.get(encode(number)) == (number if 0 <= number < 60_000 and number % 2 == 0 else None)


@given(st.integers(-2, 30_001))
def test_entries_by_position(large: Any, position: int) -> None:
    _, found, keys = large
    if 0 <= position < 30_000:
        assert found.at(position) == (keys[position], 2 * position)
    else:
        with pytest.raises(IndexError, match=f"position {position} of a map with 30000 entries"):
            found.at(position)


def test_looking_up_reads_one_page_a_level(large: Any) -> None:
    pool, found, keys = large
    levels = Page.from_json(json.loads(pool.objects[found.root])).level + 1
    for look in (lambda m: m.get(keys[777]), lambda m: m.at(20_000), lambda m: m.floor(encode(12_345))):
        pool.forget_counts()
        look(SortedMap(pool, found.root))
        assert len(pool.read_digests) == levels
    pool.forget_counts()
    assert len(SortedMap(pool, found.root)) == 30_000
    assert len(pool.read_digests) == 1


def test_a_range_reads_only_its_pages(large: Any) -> None:
    pool, found, _ = large
    pool.forget_counts()
    assert len(list(SortedMap(pool, found.root).items(encode(30_000), encode(30_010)))) == 5
    assert len(pool.read_digests) <= 5


def test_all_pages_are_named_and_no_leaf_is_read_for_that(large: Any) -> None:
    pool, found, _ = large
    pool.forget_counts()
    named = list(SortedMap(pool, found.root).pages())
    assert sorted(named) == sorted(pool.objects)
    assert len(pool.read_digests) < len(named) / 50


def test_pages_have_the_sizes_that_the_rule_gives(large: Any) -> None:
    pool, _, _ = large
    leaves = [page for page in map(json.loads, pool.objects.values()) if "values" in page]
    sizes = sorted(len(page["keys"]) for page in leaves)
    assert 100 < sum(sizes) / len(sizes) < 150
    assert sizes[1] >= MINIMUM  # the last page may be smaller
    assert sizes[-1] < 400


def test_unlucky_keys_fill_pages_to_the_maximum_only() -> None:
    pool = Pool()
    content = {encode(number): 1 for number in unlucky(3000)}
    found = built(pool, content)
    sizes = [len(page["keys"]) for page in map(json.loads, pool.objects.values()) if "values" in page]
    assert sizes == [MAXIMUM, MAXIMUM, 3000 - 2 * MAXIMUM]
    one_by_one = SortedMap(pool, None)
    for key in random.Random(0).sample(sorted(content), 400):
        one_by_one = one_by_one.update(pool, {key: 1})
    assert one_by_one.update(pool, content).root == found.root


@given(
    st.lists(CHANGES, max_size=12), st.sets(NUMBERS, max_size=40), st.integers(0, 4000), st.integers(0, 1500)
)
def test_equal_content_has_equal_roots_whatever_its_history(
    history: list[dict[int, int | None]], first: set[int], start: int, length: int
) -> None:
    pool = Pool()
    model = {**ints(first), **ints(range(start, start + length))}
    found = built(pool, model)
    for changes in history:
        encoded = {encode(number): value for number, value in changes.items()}
        found = found.update(pool, encoded)
        for key, value in encoded.items():
            model.pop(key, None)
            if value is not None:
                model[key] = value
        assert list(found.items()) == sorted(model.items())
        assert found.root == built(Pool(), model).root
        assert len(found) == len(model)


@pytest.mark.parametrize("seed", range(2))
def test_large_changes_lead_to_equal_roots(seed: int) -> None:
    pool, chance = Pool(), random.Random(seed)
    numbers = chance.sample(range(10**6), 20_000)
    found, present = SortedMap(pool, None), set[int]()
    for size in (1, 100, 15_000, 20_000, 3, 17_000, 40, 2000, 0):
        wanted = set(numbers[:size])
        gone = dict.fromkeys(encode_many(sorted(present - wanted)))
        found, present = found.update(pool, {**gone, **ints(wanted - present)}), wanted
        assert found.root == built(Pool(), ints(wanted)).root


def test_strings_and_pairs_as_keys() -> None:
    pool = Pool()
    content = {encode(key): str(key) for i in range(2000) for key in (f"img_{i}", (i % 50, f"part {i}"), i)}
    halves = built(pool, dict(list(content.items())[::2])).update(pool, dict(list(content.items())[1::2]))
    assert halves.root == built(pool, content).root
    assert list(SortedMap(pool, halves.root).items()) == sorted(content.items())


@pytest.mark.parametrize("key", [encode(30_000), encode(30_001), encode(-1), encode(10**6), encode("z")])
def test_a_change_reads_and_writes_few_pages(large: Any, key: bytes) -> None:
    pool, found, _ = large
    fresh = SortedMap(pool, found.root)
    pool.forget_counts()
    fresh.update(pool, {key: "new"})
    assert len(pool.read_digests) <= 7
    assert len(pool.written) <= 6


def test_what_changes_nothing_writes_what_is_there(large: Any) -> None:
    pool, found, _ = large
    before = dict(pool.objects)
    assert found.update(pool, {encode(4): 4, encode(5): None}).root == found.root
    assert pool.objects == before


def test_bytes_that_are_no_key_are_refused_before_anything_is_written() -> None:
    pool = Pool()
    with pytest.raises(UsageError, match=r"are looked up by what keys\.encode gives"):
        SortedMap(pool, None).update(pool, {encode(1): 1, b"data/image": 2})
    assert not pool.objects


def test_values_are_the_callers_own() -> None:
    pool = Pool()
    found = built(pool, {encode(1): {"a": [1, 2]}})
    value = found.get(encode(1))
    assert value is not None
    value["a"].append(3)
    assert found.get(encode(1)) == {"a": [1, 2]}


def test_a_map_pickles_by_its_root(large: Any) -> None:
    _, found, _ = large
    found.get(encode(0))
    copy = pickle.loads(pickle.dumps(found))
    assert copy.root == found.root
    assert copy.get(encode(4)) == 4


def test_pages_of_20_000_fragments_are_below_two_megabytes() -> None:
    pool = Pool()
    digest = "5" * 64
    built(pool, {encode(i * 170): [digest, i * 170 + 169, 170, 522_240] for i in range(20_000)})
    assert sum(map(len, pool.objects.values())) < 2_000_000


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[]",
        b"3",
        b"\xff",
        b'{"keys":[],"values":[]}',
        b'{"keys":[1,2],"values":[1]}',
        b'{"keys":[2,1],"values":[1,1]}',
        b'{"keys":[true],"values":[1]}',
        b'{"keys":[1.5],"values":[1]}',
        b'{"keys":["a",1],"values":[1,1]}',
        b'{"keys":[1,2],"level":1,"pages":["x","y"]}',
    ],
)
def test_what_is_no_page_is_damage(data: bytes) -> None:
    pool = Pool()
    pool.objects["d" * 64] = data
    with pytest.raises(
        CorruptError, match=r"object d{64} is not a page of a sorted map .* from a remote or a copy"
    ):
        len(SortedMap(pool, "d" * 64))


def test_where_pages_end_is_part_of_the_format() -> None:
    numbers = built(Pool(), ints(range(20_000)))
    mixed = built(
        Pool(),
        {encode(key): [str(key)] for i in range(3000) for key in (f"img_{i}", (i, "å\0"), (str(i), i))},
    )
    assert numbers.root == "2ababa4c1b94bb41547d77e547092b04560b98694499242b9885cd867eeaf3a3"
    assert mixed.root == "dd1d6b258cf9a7ed980f3475157ab48b73b637e095a3fde17014ef26ec977898"
