"""Hyperband runs the published brackets, synchronously, and ends."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.at_once import most_at_once

from hopyard.errors import SpaceError, UsageError
from hopyard.search.base import Create, Proposer, Searcher, Stop, Train
from hopyard.search.halving import Halving
from hopyard.search.hyperband import Hyperband, Synchronous, hyperband_brackets
from hopyard.search.proposers import ListPoints
from hopyard.search.testing import SearcherTests, play, replay


def points(number: int) -> Proposer:
    return ListPoints([{"point": index} for index in range(number)])


class TestHyperband(SearcherTests):
    visits = 9

    def searcher(self) -> Searcher:
        return Hyperband(points(17), 9, 3)


class TestHyperbandOfFewTrials(SearcherTests):
    visits = 20

    def searcher(self) -> Searcher:
        return Hyperband(points(12), 20, 2, num_models=12, max_concurrent=3)


def test_the_brackets_are_those_of_the_paper() -> None:
    """Li et al. 2018, Algorithm 1, for R = 81 and eta = 3."""
    assert hyperband_brackets(81, 3) == [
        (81, [1, 3, 9, 27, 81]),
        (34, [3, 9, 27, 81]),
        (15, [9, 27, 81]),
        (8, [27, 81]),
        (5, [81]),
    ]


def test_trials_halve_as_in_the_paper() -> None:
    played = play(Hyperband(points(143), 81, 3), 81, lambda trial, visits: float(trial))
    reached = Counter(visits for name, *(_, visits, _) in played.calls[1:] if name == "validated")
    # Per bracket: 81 27 9 3 1 / 34 11 3 1 / 15 5 1 / 8 2 / 5
    assert reached == {1: 81, 3: 27 + 34, 9: 9 + 11 + 15, 27: 3 + 3 + 5 + 8, 81: 1 + 1 + 1 + 2 + 5}


def test_so_many_trials_as_asked_for_are_divided_as_published() -> None:
    assert [number for number, _ in hyperband_brackets(81, 3, num_models=143)] == [81, 34, 15, 8, 5]
    assert [number for number, _ in hyperband_brackets(81, 3, num_models=20)] == [12, 5, 2, 1]
    assert [number for number, _ in hyperband_brackets(81, 3, num_models=1)] == [1]


def test_a_rung_is_decided_when_all_have_reported_and_equals_go_by_number() -> None:
    searcher = Halving(points(4), [Synchronous(4, [1, 2, 4], 2)])
    searcher.start()
    for trial in (3, 0, 2):
        assert searcher.validated(trial, 1, 1.0) == []
    assert searcher.validated(1, 1, 0.5) == [Train(0, 2), Train(1, 2), Stop(2), Stop(3)]
    assert searcher.validated(1, 2, 0.9) == []
    assert searcher.validated(0, 2, 0.8) == [Train(0, 4), Stop(1)]
    assert searcher.validated(0, 4, 0.8) == [Stop(0)]


def test_trials_that_fail_count_but_never_go_on() -> None:
    searcher = Halving(points(4), [Synchronous(4, [1, 2], 2)])
    searcher.start()
    assert searcher.exited(0) == searcher.exited(1) == searcher.validated(2, 1, math.inf) == []
    assert searcher.validated(3, 1, math.inf) == [Train(2, 2), Train(3, 2)]


def test_a_later_bracket_begins_where_an_earlier_one_leaves_room() -> None:
    searcher = Halving(points(3), [Synchronous(2, [1, 2], 2), Synchronous(1, [2], 2)], max_concurrent=2)
    assert searcher.start()[-1] == Train(1, 1)
    assert searcher.validated(0, 1, 0.5) == [Create(2, {"point": 2}), Train(2, 2)]
    assert searcher.validated(1, 1, 0.6) == [Train(0, 2), Stop(1)]


@given(
    visits=st.integers(1, 60),
    divisor=st.sampled_from([2, 3, 2.5]),
    number=st.integers(1, 60),
    most=st.integers(1, 9),
    seed=st.none() | st.integers(0, 9),
    data=st.data(),
)
def test_budgets_are_kept_and_the_search_ends_and_replays(
    visits: int, divisor: float, number: int, most: int, seed: int | None, data: st.DataObject
) -> None:
    def searcher() -> Searcher:
        return Hyperband(points(number), visits, divisor, number, most)

    values = data.draw(st.lists(st.floats(-1, 1) | st.just(math.inf), min_size=1, max_size=9))
    played = play(
        searcher(),
        visits,
        lambda trial, visits: values[(trial * 7 + visits) % len(values)],
        order_seed=seed,
        failing=data.draw(st.dictionaries(st.integers(0, number), st.integers(0, visits))),
        leaving=data.draw(st.sets(st.integers(0, number))),
    )
    assert len(played.params) == number
    assert most_at_once(played) <= most
    assert replay(searcher(), played.calls) == played.answers


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"visits": 0}, r"visits=0, but it must be an integer of at least 1"),
        ({"divisor": 1}, r"divisor=1, but it must be a number of at least 2"),
        ({"num_models": 0}, r"num_models=0, but it must be"),
        ({"max_concurrent": 0}, r"max_concurrent_trials=0, but it must be"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Hyperband(**{"proposer": points(17), "visits": 9, **arguments})


def test_more_trials_than_points_are_refused() -> None:
    with pytest.raises(SpaceError, match="only 16 different points"):
        Hyperband(points(16), 9)
