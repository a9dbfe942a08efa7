"""Passes divided into visits: where they end, and how large visits are."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hopyard.hopper.passes import Passes, divided


@given(
    batches=st.integers(1, 60),
    round_batches=st.integers(1, 200),
    rounds=st.integers(1, 6),
    most=st.integers(1, 80),
)
def test_visits_end_at_every_pass_and_round_and_have_as_many_batches_as_are_asked_for_at_most(
    batches: int, round_batches: int, rounds: int, most: int
) -> None:
    found = divided(batches, round_batches, rounds, most)
    ends = [found.before(visits) for visits in range(rounds * found.round_visits + 1)]
    sizes = [after - before for before, after in itertools.pairwise(ends)]
    assert all(1 <= size <= most for size in sizes)
    assert ends[0] == 0
    assert ends[-1] == found.total == rounds * round_batches
    assert [ends[number * found.round_visits] for number in range(rounds + 1)] == [
        number * round_batches for number in range(rounds + 1)
    ]
    passes = found.total // batches
    assert ends[:: found.visits][: passes + 1] == [number * batches for number in range(passes + 1)]


def test_a_whole_number_of_passes_has_no_more_visits_than_it_needs() -> None:
    assert divided(469, 4 * 469, 1, 100) == Passes(5, 469, 20, 4 * 469)


def test_a_division_that_other_passes_do_not_fit_says_so() -> None:
    assert Passes(3, 8, 4, 9).fits()
    assert not Passes(3, 8, 4, 7).fits()  # the round would end before the pass
    assert not Passes(3, 2, 4, 3).fits()  # a visit would have no batch


def test_visits_beyond_all_rounds_go_on_like_those_of_a_pass() -> None:
    found = Passes(3, 8, 4, 9)
    assert [found.before(visits) for visits in range(4, 8)] == [9, 11, 14, 17]
