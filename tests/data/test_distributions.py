"""Distributions of numbers and strings, and when two of them differ."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.reports.distributions import (
    Histogram,
    Numbers,
    ValueShares,
    count_strings,
    distance_of_numbers,
    distribution,
    missing_differs,
    numbers_differ,
    strings_differ,
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.5] * 9, ValueShares),
        ([1, 2, 3] * 9, ValueShares),
        ([0, 10**9], Histogram),
        ([-(2**63), 0, 2**63 - 1], Histogram),
        (np.arange(1000), Histogram),
        (np.random.default_rng(0).normal(0, 1, 1000), Histogram),
        ([1e300, -1e300, *range(100)], Histogram),
        ([0.1, np.nextafter(0.1, 1), *[0.1] * 9], ValueShares),
        ([np.nan, np.inf], type(None)),
        ([], type(None)),
    ],
)
def test_few_values_have_shares_and_others_a_histogram(values, expected):
    assert isinstance(distribution([Numbers.of(np.array(values))]), expected)


NUMBERS = st.one_of(
    st.lists(st.floats(width=32)).map(lambda values: np.array(values, np.float32)),
    st.lists(st.floats() | st.floats(1e307) | st.floats(max_value=-1e307), min_size=12).map(np.array),
    st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda values: np.array(values, np.int64)),
    st.lists(st.integers(-128, 127)).map(lambda values: np.array(values, np.int8)),
    st.lists(st.booleans()).map(lambda values: np.array(values, bool)),
)


@given(NUMBERS, st.integers(0, 99))
def test_shares_of_every_split_sum_to_one(values, first):
    splits = [Numbers.of(values[:first]), Numbers.of(values[first:])]
    found = distribution(splits)
    if found is None:
        assert not any(len(split.values) for split in splits)
        return
    for place, split in enumerate(splits):
        outside = found.outside[place] if isinstance(found, Histogram) else 0
        assert found.shares[place].sum() + outside == pytest.approx(1 if len(split.values) else 0)
    if isinstance(found, Histogram):
        assert (np.diff(found.edges) > 0).all()
        assert np.isfinite(found.edges).all()
        assert len(found.shares[0]) <= 60
    else:
        assert len(found.labels) == len(found.shares[0])


def test_integers_lie_in_the_middle_of_their_bins():
    found = distribution([Numbers.of(np.arange(100))])
    assert found.edges[0] == -0.5
    assert len(set(np.diff(found.edges))) == 1
    assert float(np.diff(found.edges)[0]).is_integer()


def test_long_tails_do_not_squeeze_the_rest():
    values = np.append(np.random.default_rng(0).normal(0, 1, 10_000), [1e6, -1e6])
    found = distribution([Numbers.of(values)])
    assert -4 < found.edges[0] < found.edges[-1] < 4
    assert found.outside[0] == pytest.approx(0.01, abs=0.003)


def test_frequent_strings_are_those_that_repeat():
    _, frequent = count_strings([["b", "a", "b", "c"], ["a", "d"]])
    assert frequent.values == ("a", "b")
    assert [share.tolist() for share in frequent.shares] == [[0.25, 0.5], [0.5, 0.0]]
    assert (frequent.others, frequent.unique) == (2, False)
    _, unique = count_strings([[str(i) for i in range(9)]])
    assert (unique.values, unique.others, unique.unique) == (("0", "1", "2"), 6, True)
    assert count_strings([[]])[1] is None


def test_distances_are_those_of_the_books():
    one, other = np.array([1, 2, 3, 4]), np.array([3, 4, 5, 6])
    assert distance_of_numbers(one, other) == 0.5
    assert distance_of_numbers(one, one) == 0
    assert distance_of_numbers(one, np.array([])) == 0
    assert strings_differ({"a": 3, "b": 1}, {"a": 1, "b": 3})[0] == pytest.approx(0.5)
    assert strings_differ({}, {"a": 1}) == (0.0, False)


def test_chance_is_not_taken_for_a_difference():
    rng = np.random.default_rng(1)
    for _ in range(50):
        one, other = rng.normal(0, 1, 60), rng.normal(0, 1, 60)
        assert not numbers_differ(distance_of_numbers(one, other), 60, 60)
        counts = [dict(enumerate(np.bincount(rng.integers(0, 40, 100), minlength=40).tolist())) for _ in "ab"]
        assert not strings_differ(*counts)[1]
    assert missing_differs(50, 100, 5, 100)
    assert not missing_differs(2, 10, 0, 10)
