"""Rungs, brackets, shares and concurrency are Determined's tables, exactly; its mistakes are not ours."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import UsageError
from hopyard.search.brackets import (
    MODES,
    Share,
    brackets,
    checked_divisor,
    concurrency,
    log_floor,
    rungs,
    rungs_in_visits,
    trials_of,
)


@pytest.mark.parametrize(
    ("num_rungs", "divisor", "length", "expected"),
    [
        (3, 3, 9, [1, 3, 9]),
        (4, 2, 10, [1, 2, 5, 10]),
        (1, 3, 9, [9]),
        (3, 3, 900, [100, 300, 900]),
        (5, 4, 10, [1, 1, 1, 2, 10]),
        (3, Fraction(5, 2), 100, [16, 40, 100]),
    ],
)
def test_rungs_as_determined_computes_them(
    num_rungs: int, divisor: int, length: int, expected: list[int]
) -> None:
    assert rungs(num_rungs, divisor, length) == expected


@pytest.mark.parametrize(
    ("num_rungs", "divisor", "visits", "expected"),
    [
        (3, 3, 9, [1, 3, 9]),
        (4, 2, 10, [2, 3, 5, 10]),
        (5, 4, 10, [1, 3, 10]),
        (9, 4, 1, [1]),
        (2, 4, 40, [10, 40]),
        (3, Fraction(5, 2), 100, [16, 40, 100]),
    ],
)
def test_rungs_of_a_run_are_whole_visits_rounded_up_and_different(
    num_rungs: int, divisor: int, visits: int, expected: list[int]
) -> None:
    assert rungs_in_visits(num_rungs, divisor, visits) == expected


@pytest.mark.parametrize(
    ("max_concurrent", "divisor", "trials", "expected"),
    [
        (0, 3, [9, 3, 1], [3, 3, 3]),
        (11, 3, [9, 3, 1], [4, 4, 3]),
        (0, 4, [40, 10], [10, 10]),
        (2, 3, [9, 3, 1], [1, 1, 1]),  # the whole search is held to 2 besides: see test_asha
    ],
)
def test_concurrency_is_divided_as_determined_does(
    max_concurrent: int, divisor: int, trials: list[int], expected: list[int]
) -> None:
    assert concurrency(max_concurrent, divisor, trials) == expected


def test_the_brackets_of_determineds_own_test() -> None:
    assert brackets(10, 100, 4, max_concurrent=2) == [Share(2, 7, 1), Share(1, 3, 1)]


@pytest.mark.parametrize(
    ("mode", "numbers"), [("aggressive", [5]), ("standard", [5, 4, 3]), ("conservative", [5, 4, 3, 2, 1])]
)
def test_a_mode_says_which_brackets_there_are(mode: str, numbers: list[int]) -> None:
    assert [share.num_rungs for share in brackets(1000, 1000, 4, mode=mode)] == numbers


@pytest.mark.parametrize(("value", "base", "power"), [(1000, 10, 3), (243, 3, 5)])
def test_logarithms_lose_no_rung_as_floats_do(value: int, base: int, power: int) -> None:
    assert math.floor(math.log(value) / math.log(base)) == power - 1  # what Determined computes
    assert log_floor(value, base) == power
    shares = brackets(value, value, base, mode="aggressive", max_rungs=99)
    assert [share.num_rungs for share in shares] == [power + 1]


def test_brackets_given_by_hand_never_make_more_trials_than_asked_for() -> None:
    """Determined gives each at least one trial: 2, 1, 1, 1, 1, in all 6 in place of 3."""
    assert trials_of([5, 4, 3, 2, 1], 3, 4) == [2, 1]
    shares = brackets(3, 1000, 4, bracket_rungs=[1, 2, 3, 4, 5])
    assert [(share.num_rungs, share.num_models) for share in shares] == [(5, 2), (4, 1)]


DIVISORS = st.sampled_from([checked_divisor(each) for each in (2, 3, 4, 10, 2.5, Fraction(7, 3))])


@given(st.integers(1, 10**9), DIVISORS)
def test_the_logarithm_is_exact(value: int, divisor: Any) -> None:
    power = log_floor(value, divisor)
    assert divisor**power <= value < divisor ** (power + 1)


@given(
    num_models=st.integers(1, 500),
    length=st.integers(1, 5000),
    divisor=DIVISORS,
    mode=st.sampled_from(MODES),
    max_rungs=st.integers(1, 8),
    by_hand=st.lists(st.integers(1, 6), max_size=6),
    max_concurrent=st.integers(0, 40),
)
def test_brackets_share_out_exactly_what_there_is(
    num_models: int,
    length: int,
    divisor: Any,
    mode: str,
    max_rungs: int,
    by_hand: list[int],
    max_concurrent: int,
) -> None:
    shares = brackets(
        num_models,
        length,
        divisor,
        mode=mode,
        max_rungs=max_rungs,
        bracket_rungs=by_hand,
        max_concurrent=max_concurrent,
    )
    assert sum(share.num_models for share in shares) == num_models
    assert all(share.num_models >= 1 and share.max_concurrent >= 1 for share in shares)
    numbers = [share.num_rungs for share in shares]
    assert numbers == sorted(numbers, reverse=True)
    if max_concurrent:
        assert sum(share.max_concurrent for share in shares) == max(max_concurrent, len(shares))
    if not by_hand:
        assert max(numbers) <= max_rungs
        assert all(
            rungs(number, divisor, length)[0] * divisor ** (number - 1) <= length for number in numbers
        )


@given(st.integers(1, 12), DIVISORS, st.integers(1, 10**6))
def test_rungs_in_visits_ascend_to_the_full_length(num_rungs: int, divisor: Any, visits: int) -> None:
    found = rungs_in_visits(num_rungs, divisor, visits)
    assert found == sorted(set(found))
    assert found[0] >= 1
    assert found[-1] == visits
    assert len(found) <= num_rungs


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: checked_divisor(1), r"divisor=1, but it must be a number of at least 2: .* Write divisor=3"),
        (lambda: checked_divisor(1.99), r"divisor=1\.99, but it must be a number of at least 2"),
        (lambda: checked_divisor(math.nan), r"divisor=nan, but it must be"),
        (lambda: checked_divisor(math.inf), r"divisor=inf, but it must be"),
        (lambda: checked_divisor("4"), r"divisor='4', but it must be"),  # type: ignore[arg-type]
        (lambda: checked_divisor(True), r"divisor=True, but it must be"),
        (lambda: checked_divisor(None), r"divisor=None, but it must be"),  # type: ignore[arg-type]
        (lambda: checked_divisor(np.int64(3)), r"divisor=np\.int64\(3\), but it must be"),  # type: ignore[arg-type]  # no JSON
        (lambda: rungs(0, 4, 9), r"num_rungs=0, but it must be an integer of at least 1"),
        (lambda: rungs(1, 4, 0), r"max_length=0, but it must be an integer of at least 1"),
        (lambda: rungs_in_visits(1, 4, 0), r"visits=0, but it must be"),
        (lambda: brackets(0, 9), r"max_trials=0, but it must be an integer of at least 1"),
        (lambda: brackets(9, 9, max_rungs=0), r"max_rungs=0, but it must be"),
        (lambda: brackets(9, 9, bracket_rungs=[2, 0]), r"every number of bracket_rungs=0, but it must be"),
        (lambda: brackets(9, 9, max_concurrent=-1), r"max_concurrent_trials=-1, but it must be an integer, or 0"),
        (
            lambda: brackets(9, 9, mode="agressive"),
            r"mode='agressive', but it must be one of .*; did you mean 'aggressive'\? Write mode='standard'",
        ),
    ],
)  # fmt: skip
def test_impossible_budgets_are_refused(call: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        call()
