"""Checks of arguments: what is right comes back as Python's own type, all else is one sentence of one form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.checks import choice, flag, integer, number
from hopyard.errors import EstimatorError, UsageError


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_integers_of_python_and_numpy_pass_from_the_lowest_on(value: int, least: int) -> None:
    for given_value in (value, np.int64(value)):
        if value < least:
            with pytest.raises(UsageError, match=f"it must be an integer of at least {least}\\."):
                integer("n", given_value, least)
        else:
            found = integer("n", given_value, least)
            assert (found, type(found)) == (value, int)


@given(st.floats(), st.floats(-10, 10), st.floats(-10, 10))
def test_numbers_pass_that_are_finite_and_within_their_bounds(
    value: float, least: float, most: float
) -> None:
    if np.isfinite(value) and least <= value <= most:
        assert number("x", value, least=least, most=most) == value
    else:
        with pytest.raises(UsageError, match=r"but it must be a number of at least .* and of at most"):
            number("x", value, least=least, most=most)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: integer("n", True, 1), "n=True, but it must be an integer of at least 1."),
        (lambda: integer("n", 1.0), "n=1.0, but it must be an integer."),
        (lambda: integer("n", "1", 0, rule="a count"), "n='1', but it must be a count."),
        (lambda: number("x", 0, above=0, advice="Give 1."), "x=0, but it must be a number above 0. Give 1."),
        (lambda: number("x", True), "x=True, but it must be a number that is finite."),
        (lambda: number("x", float("nan")), "x=nan, but it must be a number that is finite."),
        (lambda: flag("f", 1), "f=1, but it must be True or False."),
        (lambda: choice("c", "bast", ("best", "all")),
         "c='bast', but it must be one of 'best', 'all'; did you mean 'best'?"),
        (lambda: choice("c", 3, ("best",)), "c=3, but it must be one of 'best'."),  # type: ignore[type-var]
    ],
)  # fmt: skip
def test_others_are_refused_with_what_was_given_and_the_rule(check: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check()
    assert str(refused.value) == message


def test_the_error_is_of_the_class_that_was_asked_for() -> None:
    with pytest.raises(EstimatorError, match="batch_size=0"):
        integer("batch_size", 0, 1, error=EstimatorError)
    assert flag("f", np.bool_(True)) is True
