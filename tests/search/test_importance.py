"""How much each hyperparameter explains: by which kind of coordinate values are compared."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.errors import UsageError
from hopyard.search.importance import importances

ODD: list[list[Any]] = [
    [10**30, 1], [10**400, 1], [-(10**20), 10**20], [2**53, 1], [float("nan"), 1.0], [float("inf"), 1.0],
    [1e308, -1e308], [5e-324, 1.0], [True, False], [None, 1], ["\ud800", "a"], [[1], {"a": 2}],
]  # fmt: skip


@pytest.mark.parametrize("values", ODD, ids=lambda values: repr(values)[:24])
def test_a_hyperparameter_that_decides_is_told_whatever_its_values_are(values: list[Any]) -> None:
    params = [{"decides": values[number % 2], "does not": number // 2 % 2} for number in range(16)]
    told = importances(params, [float(number % 2) for number in range(16)])
    assert told["decides"] == pytest.approx(1.0)
    assert told["does not"] == pytest.approx(0.0)


def test_values_that_are_all_equal_are_explained_by_nothing_more_than_by_all() -> None:
    told = importances([{"a": number % 2, "b": number // 2} for number in range(12)], [1.0] * 12)
    assert sum(told.values()) == pytest.approx(1.0)


def test_too_few_results_and_no_difference_are_said() -> None:
    with pytest.raises(UsageError, match=r"7 trials have a result; .* is told from 8 on\. Wait for more\."):
        importances([{"a": number} for number in range(9)], [1.0] * 7 + [float("nan"), float("inf")])
    with pytest.raises(UsageError, match="no hyperparameter differs between the trials that have a result"):
        importances([{"a": 1}] * 9, [float(number) for number in range(9)])
