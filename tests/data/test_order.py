"""The streams that every recorded result depends on. If a test here fails, the order changed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.data.order import permutation

PINNED = {
    (10, 0): [6, 8, 0, 9, 3, 1, 4, 2, 7, 5],
    (10, 1): [9, 6, 0, 1, 3, 5, 8, 2, 7, 4],
    (3, -1): [0, 2, 1],
}


@pytest.mark.parametrize(("n", "seed"), PINNED)
def test_three_streams_are_fixed_forever(n, seed):
    assert permutation(n, seed).tolist() == PINNED[n, seed]


def permutation_in_plain_python(n, seed):
    word = 2**64 - 1

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & word
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & word
        return z ^ (z >> 31)

    key = mix((seed & word) ^ 0x9E3779B97F4A7C15)
    return sorted(range(n), key=lambda i: (mix((i * 0x9E3779B97F4A7C15 + key) & word) >> 32, i))


@settings(deadline=None, max_examples=50)
@given(n=st.integers(0, 300), seed=st.integers(-(2**70), 2**70))
def test_permutation_is_the_documented_algorithm(n, seed):
    order = permutation(n, seed)
    assert order.dtype == np.int64
    assert order.tolist() == permutation_in_plain_python(n, seed)
    assert sorted(order.tolist()) == list(range(n))


def test_both_ways_to_sort_agree(monkeypatch):
    in_two_passes = permutation(100_000, 5)
    monkeypatch.setattr("hopyard.data.order._TWO_PASSES", 0)
    assert np.array_equal(permutation(100_000, 5), in_two_passes)


def test_long_permutation_crosses_its_blocks_without_a_seam():
    n = 200_000
    order = permutation(n, 7)
    assert np.array_equal(np.sort(order), np.arange(n))
    assert order[:50].tolist() == permutation_in_plain_python(n, 7)[:50]
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.01
