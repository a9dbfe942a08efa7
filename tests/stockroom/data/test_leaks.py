"""Samples that stand in two columns, or in two datasets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import sample

from hopyard.data import Dataset, prepare
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.stockroom.data import leaks as module
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.stockroom.data.leaks import ComparedSamples, equal_rows, leaks, leaks_among
from hopyard.stockroom.packfiles import Objects
from hopyard.storage import MemoryStore

Make = Callable[..., SampleColumn]


@pytest.fixture
def column(objects: Objects) -> Make:
    def written(values: Any, name: str = "image") -> SampleColumn:
        with objects.writing() as writer:
            draft = ColumnDraft(objects, writer, name)
            draft.replace(values)
            record = draft.flush()
        assert record is not None
        return SampleColumn(objects, name, record)

    return written


def test_every_sample_that_is_in_both_is_named_with_its_first_equal(column: Make) -> None:
    random = np.random.default_rng(0)
    train = random.integers(0, 255, (500, 3, 4), np.uint8)
    val = {f"v{n:03}": image for n, image in enumerate(random.integers(0, 255, (300, 3, 4), np.uint8))}
    val["v007"] = val["v100"] = train[42]
    val["v200"] = train[499]
    found = leaks(column(train), column(val, "val"))
    assert found.pairs == ((42, "v007"), (499, "v200"))
    assert found.compared == (500, 300)
    assert str(found) == "2 of 500 samples are among the 300 others too"
    assert leaks(column(val, "val"), column(train)).pairs == (("v007", 42), ("v100", 42), ("v200", 499))
    assert len(leaks(column(train[:10]), column(train[10:]))) == 0


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        (["a", "b", ""], ["", "b"], ((1, 1), (2, 0))),
        ([b"a", b"b"], [b"b"], ((1, 0),)),
        (np.zeros((2, 3)), [np.zeros(4), np.zeros(3)], ((0, 1), (1, 1))),
        ([np.zeros(4), np.zeros(3)], np.zeros((2, 3)), ((1, 0),)),
        ([np.arange(3), np.arange(2)], [np.arange(2), np.arange(5)], ((1, 0),)),
        (np.arange(5), np.array([9, 4, 4]), ((4, 1),)),
        (np.array([0.0, np.nan]), np.array([-0.0, np.nan]), ((1, 1),)),
        (torch.tensor([[0, 1.5], [2, 3]]).bfloat16(), torch.tensor([[2, 3.0]]).bfloat16(), ((1, 0),)),
        ({(1, "a"): 5, (2, "b"): 6}, {(7, 7): 6}, (((2, "b"), (7, 7)),)),
        (np.zeros((2, 0)), np.zeros((1, 0)), ((0, 0), (1, 0))),
        ([np.zeros((2, 3)), np.zeros((3, 2))], [np.zeros((3, 2)), np.zeros((1, 6))], ((1, 0),)),
    ],
)  # fmt: skip
def test_bytes_decide(column: Make, first: Any, second: Any, pairs: Any) -> None:
    assert leaks(column(first), column(second)).pairs == pairs


@given(st.lists(st.integers(0, 6)), st.lists(st.integers(0, 6)), st.integers(1, 3), st.integers(1, 4))
def test_samples_of_one_hash_are_told_apart(
    first: list[int], second: list[int], hashes: int, at_once: int
) -> None:
    class Collides(int):
        __eq__ = int.__eq__

        def __hash__(self) -> int:
            return int(self) % hashes

    def side(values: list[int]) -> ComparedSamples:
        return ComparedSamples(
            len(values), at_once, lambda rows: [Collides(values[row]) for row in rows], lambda rows: []
        )

    expected = [(row, second.index(value)) for row, value in enumerate(first) if value in second]
    assert [tuple(pair) for pair in equal_rows(side(first), side(second)).T.tolist()] == expected


def test_memory_is_bounded_by_reading_some_at_a_time(column: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES_AT_ONCE", 100)
    images = np.arange(2000, dtype=np.int32).reshape(200, 10)
    found = leaks(column(images), column(images[::-1]))
    assert found.pairs == tuple((n, 199 - n) for n in range(200))


def datasets(*frames: dict[str, Any]) -> list[Dataset]:
    return [prepare(frame, MemoryStore(), validation=None, seed=1).train for frame in frames]


def test_rows_of_datasets_are_compared_in_the_columns_asked_for(column: Make) -> None:
    image = np.arange(40, dtype=np.float32).reshape(20, 2)
    words = [f"word {n}" for n in range(20)]
    train, val = datasets(
        {"image": image, "label": np.arange(20), "word": words},
        {"image": image[15:], "label": np.arange(15, 20) * [1, 1, 1, 0, 0], "word": words[15:]},
    )
    found = leaks(train, val)
    assert sorted(train[row]["label"] for row, _ in found.pairs) == [15, 16, 17]
    assert all(train[mine]["word"] == val[its]["word"] for mine, its in found.pairs)
    assert len(leaks(train, val, columns=["image"])) == 5
    samples = JoinedSamples([column(image), column(words, "word")])
    assert leaks(samples, val, ["image", "word"]).pairs[0][0] == 15
    with pytest.raises(ColumnError, match="'imag'; did you mean 'image'"):
        leaks(train, val, columns=["imag"])


def test_what_cannot_be_equal_is_an_error(column: Make) -> None:
    a = column(np.zeros((2, 3), np.float32))
    for other in (np.zeros((2, 4), np.float32), np.zeros((2, 3, 1)), ["a"], np.zeros((2, 3), np.complex64)):
        with pytest.raises(
            DataError, match="have no sample that could be equal: they differ in kind or shape, or are"
        ):
            leaks(a, column(other, "other"))
    with pytest.raises(UsageError, match=r"leaks\(\) was given columns= with two columns"):
        leaks(a, a, columns=["image"])
    (dataset, other) = datasets({"x": np.arange(3)}, {"y": np.arange(3)})
    with pytest.raises(UsageError, match=r"leaks\(\) was given a SampleColumn and a Dataset"):
        leaks(a, dataset)
    with pytest.raises(ColumnError, match="have no column in common: x; y"):
        leaks(dataset, other)
    with pytest.raises(DataError, match=r"x: int64 and x: int64\[1\] have no sample that could be equal"):
        leaks(dataset, *datasets({"x": np.arange(3).reshape(3, 1)}))


def test_a_column_that_is_being_written_can_be_looked_at(objects: Objects) -> None:
    with objects.writing() as writer:
        draft = ColumnDraft(objects, writer, "label")
        draft.extend([1, 2, 3])
        other = ColumnDraft(objects, writer, "other")
        other.create(dtype="int64")
        assert leaks(draft, draft).pairs == ((0, 0), (1, 1), (2, 2))
        assert len(leaks(draft, other)) == len(leaks(other, draft)) == 0


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
EDGES = [
    0,
    1,
    -1,
    127,
    128,
    255,
    256,
    2**24,
    2**24 + 1,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    0.5,
    math.nan,
    math.inf,
]


@pytest.mark.parametrize(
    ("one", "two"),
    sample("dtypes of leaks", itertools.product(DTYPES, DTYPES), quick=30, ci=len(DTYPES) ** 2),
)
def test_numbers_of_different_dtypes_are_compared_by_value(column: Make, one: str, two: str) -> None:
    first, second = (_held(dtype) for dtype in (one, two))
    found = leaks(column(first), column(second))
    wanted = {}
    for at, mine in enumerate(first.tolist()):
        equal = [n for n, its in enumerate(second.tolist()) if mine == its or (mine != mine and its != its)]
        if equal:
            wanted[at] = equal
    assert {at: n in wanted[at] for at, n in found.pairs} == dict.fromkeys(wanted, True)


def _held(dtype: str) -> np.ndarray:
    """The edges that a dtype has, exactly."""
    kind = np.dtype(dtype).kind
    if kind in "bui":
        low, high = (0, 1) if kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return np.array([each for each in EDGES if isinstance(each, int) and low <= each <= high], dtype)
    with np.errstate(over="ignore"):
        return np.array(
            [each for each in EDGES if each != each or float(np.dtype(dtype).type(each)) == each], dtype
        )


def test_shapes_that_vary_and_dtypes_of_pytorch_are_compared_by_value(column: Make) -> None:
    ragged = [np.arange(3, dtype=np.uint8), np.arange(2, dtype=np.uint8)]
    assert leaks(column(ragged), column([np.arange(2.0), np.arange(4.0)], "b")).pairs == ((1, 0),)
    halves = torch.tensor([[0, 1.5], [2, 3]]).bfloat16()
    assert leaks(column(halves), column(np.array([[2.0, 3.0]], np.float32), "b")).pairs == ((1, 0),)
    assert leaks(column(np.array([[2, 3]])), column(halves, "b")).pairs == ((0, 1),)
    train, val = datasets(
        {"x": np.arange(5), "y": np.arange(5)}, {"x": np.arange(3, 9, dtype=np.float32), "y": np.arange(3, 9)}
    )
    assert sorted(train[row]["x"] for row, _ in leaks(train, val).pairs) == [3, 4]


def test_several_are_compared_each_with_each(column: Make) -> None:
    given = {
        name: column(np.arange(first, first + 4), name) for name, first in (("a", 0), ("b", 3), ("c", 9))
    }
    found = leaks_among(given)
    assert {names: each.pairs for names, each in found.items()} == {
        ("a", "b"): ((3, 0),), ("a", "c"): (), ("b", "c"): (),
    }  # fmt: skip
    with pytest.raises(
        UsageError, match=r"leaks_among\(\) was given 1 column or dataset, but compares at least two"
    ):
        leaks_among({"a": given["a"]})
