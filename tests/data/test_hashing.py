"""Hashes of rows: of the names and bytes of their columns alone, whatever batch and form they come in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.columns.columns import ColumnData, as_ragged
from hopyard.data.order import mix
from hopyard.data.ragged import Ragged
from hopyard.data.sources.hashing import row_sums
from hopyard.data.sparse import sparse_rows


def texts(name, rows):
    return ColumnData(
        name, "bytes", Ragged.from_rows([np.frombuffer(row, np.uint8) for row in rows], np.uint8)
    )


def hashes(*columns):
    return np.stack([mix(each) for each in row_sums({data.name: data for data in columns})], axis=1).tolist()


@given(
    rows=st.lists(
        st.tuples(
            st.binary(max_size=25),
            st.binary(min_size=5, max_size=5),
            st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_row_has_the_same_hash_in_every_batch_and_order_of_columns(rows):
    def columns(some):
        numbers = np.array([number or 0 for *_, number in some], np.int64)
        return [
            texts("text", [text for text, *_ in some]),
            ColumnData("fixed", "tensor", np.array([np.frombuffer(row, np.uint8) for _, row, _ in some])),
            ColumnData("number", "tensor", numbers, np.array([number is None for *_, number in some])),
        ]

    expected = hashes(*columns(rows))
    assert expected == [hashes(*columns([row]))[0] for row in rows]
    assert expected == hashes(*reversed(columns(rows)))


@given(
    dtype=st.sampled_from(["float32", "float64"]),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 7)),
    seed=st.integers(0, 9),
)
def test_lists_have_the_hash_of_arrays_and_sparse_rows_that_of_dense_ones(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal(shape).astype(dtype)
    dense[rng.random(shape) < 0.6] = 0
    expected = hashes(ColumnData("x", "tensor", dense))
    assert hashes(as_ragged(ColumnData("x", "tensor", dense))) == expected
    uneven = Ragged.from_rows([*dense, np.zeros(9, dtype)])
    assert hashes(ColumnData("x", "ragged", uneven))[:-1] == expected
    assert hashes(ColumnData("x", "tensor", sparse_rows(dense), None, shape[1])) == expected


def test_what_differs_in_one_bit_or_place_or_length_or_null_has_another_hash():
    rows = [
        (b"", b""),
        (b"\0", b""),
        (b"", b"\0"),
        (b"\0\0", b""),
        (b"ab", b"c"),
        (b"a", b"bc"),
        (b"ba", b"c"),
    ]
    rows += [(bytes([1 << bit]), b"") for bit in range(8)]
    found = [hashes(texts("a", [row[0]]), texts("b", [row[1]]))[0] for row in rows]
    found += hashes(texts("a", [b""]), ColumnData("b", "bytes", texts("b", [b""]).values, np.array([True])))
    assert len({first for first, _ in found}) == len({second for _, second in found}) == len(found)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("width", [2, 4, 768])
def test_a_row_and_its_negative_and_reverse_differ(dtype, width):
    """Of numbers that differ in their highest bits alone, the differences must not cancel out."""
    row = np.arange(1, width + 1).astype(dtype)
    flipped = [
        row,
        -row,
        row[::-1],
        *(np.where(np.arange(width) == at, -row, row) for at in range(min(width, 8))),
    ]
    if dtype == "int64":
        flipped += [row ^ np.int64(-(2**63))]
    found = hashes(ColumnData("x", "tensor", np.stack(flipped)))
    assert len({first for first, _ in found}) == len({second for _, second in found}) == len(flipped)


@pytest.mark.parametrize("width", [1, 8, 3072])
def test_hashes_are_spread_evenly(width):
    rows = np.zeros((4096, width + 2), np.uint8)
    rows[:, :2] = np.arange(4096, dtype=np.uint16)[:, None].view(np.uint8)
    for each in np.array(hashes(ColumnData("x", "tensor", rows)), np.uint64).T:
        counts = np.bincount((each >> np.uint64(60)).astype(np.int64), minlength=16)
        assert counts.min() > 190
        assert counts.max() < 330


def test_hashes_are_pinned():
    """Datasets are ordered by them: a release that changed them would prepare all again."""
    fixed = ColumnData("x", "tensor", np.arange(6, dtype=np.uint8).reshape(2, 3))
    found = hashes(fixed, texts("t", [b"1", b"23"]), ColumnData("n", "tensor", np.array([1.5, -2])))
    assert [f"{value:016x}" for row in found for value in row] == [
        "35a8481d5344a2d9",
        "dfa83d5931451a4c",
        "1eb8ddfcedffaff1",
        "80cc3867408595f0",
    ]
