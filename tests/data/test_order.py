"""The streams that every recorded result depends on. If a test here fails, the order changed."""

from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.order import batch_bounds, epoch_windows, num_batches, permutation, rows_per_rank
from hopyard.errors import UsageError

PINNED = {
    (10, 0): [6, 8, 0, 9, 3, 1, 4, 2, 7, 5],
    (10, 1): [9, 6, 0, 1, 3, 5, 8, 2, 7, 4],
    (3, -1): [0, 2, 1],
}
PINNED_STREAM = [0, 4, 5, 10, 1, 2, 3, 9, 7, 8, 11, 6]
PINNED_WINDOWS = [10, 11, 9, 8, 4, 7, 5, 6, 3, 1, 2, 0]


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


@given(n=st.integers(0, 300), seed=st.integers(-(2**70), 2**70))
def test_permutation_is_the_documented_algorithm(n, seed):
    order = permutation(n, seed)
    assert order.dtype == np.int64
    assert order.tolist() == permutation_in_plain_python(n, seed)
    assert sorted(order.tolist()) == list(range(n))


def test_long_permutation_crosses_its_blocks_without_a_seam():
    n = 200_000
    order = permutation(n, 7)
    assert np.array_equal(np.sort(order), np.arange(n))
    assert order[:50].tolist() == permutation_in_plain_python(n, 7)[:50]
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.01


GROUP_ROWS = st.lists(st.integers(0, 40), min_size=1, max_size=8)


def stream(group_rows, *arguments):
    """Numbers of all rows in the order of an epoch."""
    first = np.cumsum([0, *group_rows])
    rows = [np.arange(first[group], first[group + 1]) for group in range(len(group_rows))]
    windows = epoch_windows(group_rows, *arguments)
    return [int(i) for w in windows for i in np.concatenate([rows[group] for group in w.groups])[w.order()]]


@given(GROUP_ROWS, st.integers(0, 2**62), st.integers(0, 5), st.none() | st.integers(1, 200), st.booleans())
def test_every_row_comes_once_an_epoch(group_rows, seed, epoch, window, shuffle):
    rows = stream(group_rows, seed, epoch, window, shuffle)
    assert sorted(rows) == list(range(sum(group_rows)))
    assert rows == stream(group_rows, seed, epoch, window, shuffle)
    if not shuffle:
        assert rows == sorted(rows)


@given(GROUP_ROWS, st.integers(1, 200))
def test_a_window_holds_no_more_rows_than_stated_unless_one_row_group_does(group_rows, window):
    windows = epoch_windows(group_rows, 0, 0, window)
    assert all(w.rows <= window or len([g for g in w.groups if group_rows[g]]) == 1 for w in windows)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(1, 6))
def test_small_row_groups_next_to_each_other_are_drawn_together(group_rows, rows):
    windows = epoch_windows(group_rows, 3, 1, 128 * rows)
    visits = [group for window in windows for group in window.groups]
    place = []  # of each row group: how many of those before it were the last of a place
    size = number = 0
    for its in group_rows:
        place.append(number)
        size += its
        if size >= rows:
            number, size = number + 1, 0
    if len(windows) > 1:
        came = [place[group] for group in visits]
        assert [key for key, _ in groupby(came)] == list(dict.fromkeys(came)), "a place came in parts"
    assert all(later == group + 1 for group, later in pairwise(visits) if place[group] == place[later])


def test_a_window_that_all_rows_fit_is_the_permutation_of_all_rows():
    assert stream([30, 20, 10], 3, 1, 60) == stream([30, 20, 10], 3, 1, None)
    assert stream([60], 3, 1, None) == stream([30, 20, 10], 3, 1, None)


def test_seeds_and_epochs_differ():
    streams = {
        tuple(stream([25, 25], seed, epoch, window))
        for seed in (0, 1)
        for epoch in (0, 1)
        for window in (None, 25)
    }
    assert len(streams) == 8


def test_the_stream_of_an_epoch_is_fixed_forever():
    assert stream([4, 4, 4], 0, 0, None) == PINNED_STREAM
    assert stream([4, 4, 4], 0, 0, 8) == PINNED_WINDOWS


@given(st.integers(0, 500), st.integers(1, 60), st.sampled_from(["short", "join"]))
def test_batches_follow_one_another_and_only_the_last_differs_in_size(rows, size, tail):
    bounds = list(batch_bounds(rows, size, tail))
    assert len(bounds) == num_batches(rows, size, tail)
    assert [start for start, _ in bounds] == [0, *[stop for _, stop in bounds[:-1]]][: len(bounds)]
    assert sum(stop - start for start, stop in bounds) == rows
    assert all(stop - start == size for start, stop in bounds[:-1])


def test_a_tail_below_half_a_batch_joins_the_batch_before_it():
    assert list(batch_bounds(19, 10, "join")) == [(0, 10), (10, 19)]
    assert list(batch_bounds(15, 10, "join")) == [(0, 10), (10, 15)]
    assert list(batch_bounds(14, 10, "join")) == [(0, 14)]
    assert list(batch_bounds(4, 10, "join")) == [(0, 4)]


def test_what_ranks_cannot_share_follows_the_policy():
    assert rows_per_rank(11, 4, "drop") == 2
    assert rows_per_rank(11, 4, "repeat") == 3
    assert rows_per_rank(12, 4, "error") == 3
    with pytest.raises(UsageError, match=r"11 rows do not divide into 4 ranks \(3 left\).*remainder='drop'"):
        rows_per_rank(11, 4, "error")
