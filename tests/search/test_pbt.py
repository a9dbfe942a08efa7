"""Population-based training: rounds and replacements are Determined's; children stay within the space."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.at_once import most_at_once

from hopyard.errors import SpaceError, UsageError
from hopyard.search.base import Create, Searcher, Stop, Train
from hopyard.search.pbt import Pbt, explore, option_of
from hopyard.search.points import check_point, draw
from hopyard.search.proposers import ListPoints, RandomPoints
from hopyard.search.spaces import (
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
)
from hopyard.search.testing import SearcherTests, play, replay

SPACE: dict[str, Any] = {
    "uniform": hp_uniform(-1, 1),
    "log": hp_log(1e-4, 0.1),
    "loguniform": hp_loguniform(-4, -1),
    "int": hp_int(0, 100),
    "quniform": hp_quniform(0, 1, 0.1),
    "qloguniform": hp_qloguniform(0, 3, 1),
    "choice": hp_choice(["a", "b", "c", "d"]),
    "nested": [{"width": hp_int(1, 5)}, "constant", None],
    "branch": hp_choice([{"name": "sgd", "momentum": hp_uniform(0, 1)}, {"name": "adam"}, 7]),
}


def pbt(size: int = 6, rounds: int = 4, length: int = 3, **how: Any) -> Searcher:
    return Pbt(RandomPoints(SPACE, seed=1), SPACE, size, rounds, length, **{"truncate_fraction": 0.34, **how})


class TestPbt(SearcherTests):
    visits = 12

    def searcher(self) -> Searcher:
        return self.seeded(0)

    def seeded(self, seed: int) -> Searcher:
        return pbt(seed=seed)


class TestPbtOfFewAtOnce(SearcherTests):
    visits = 12

    def searcher(self) -> Searcher:
        return self.seeded(3)

    def seeded(self, seed: int) -> Searcher:
        return pbt(truncate_fraction=0.5, max_concurrent=2, seed=seed)


# Rounds


def test_the_worst_are_stopped_and_replaced_by_children_of_the_best() -> None:
    space = {"x": hp_uniform(0, 1)}
    searcher = Pbt(ListPoints([{"x": 0.1 * k} for k in range(1, 5)]), space, 4, 2, 5, truncate_fraction=0.5)
    assert [operation for operation in searcher.start() if isinstance(operation, Train)] == [
        Train(trial, 5) for trial in range(4)
    ]
    for trial, value in [(3, 0.1), (2, 0.3), (0, 0.2)]:
        assert searcher.validated(trial, 5, value) == []
    answer = searcher.validated(1, 5, 0.4)
    assert answer[:2] == [Stop(2), Stop(1)]
    assert [(each.trial, each.source) for each in answer if isinstance(each, Create)] == [(4, 3), (5, 0)]
    # Children are made before their donors train on, and have their donors' visits.
    assert answer[4:] == [Train(0, 10), Train(3, 10), Train(4, 10), Train(5, 10)]
    for trial in (0, 3, 4):
        assert searcher.validated(trial, 10, 0.0) == []
    assert searcher.validated(5, 10, 0.0) == [Stop(0), Stop(3), Stop(4), Stop(5)]


@pytest.mark.parametrize(
    ("name", "size", "rounds", "length", "fraction", "metric", "expected"),
    [
        # Determined's own tests; its trials are numbered from 1. Own visits by trial, in any order.
        ("simple", 2, 2, 200, 0.5, lambda trial: -trial, [200, 200, 400]),
        ("no truncation", 3, 4, 400, 0.0, lambda trial: -trial, [1600, 1600, 1600]),
        ("even odd", 2, 3, 1700, 0.5, lambda t: t if t % 2 == 0 else -t, [1700, 1700, 3400, 3400]),
        ("new is better", 4, 8, 500, 0.5, lambda trial: -trial, [500] * 4 + [1000] * 14),
        ("old is better", 4, 8, 500, 0.5, lambda trial: trial, [500] * 16 + [4000] * 2),
    ],
)  # fmt: skip
def test_determineds_rounds(
    name: str, size: int, rounds: int, length: int, fraction: float, metric: Any, expected: list[int]
) -> None:
    searcher = pbt(size, rounds, length, truncate_fraction=fraction)
    played = play(searcher, rounds * length, lambda trial, visits: metric(trial + 1))
    inherited = {
        operation.trial: visits
        for (_, *call), answer in zip(played.calls[1:], played.answers[1:], strict=True)
        for visits in call[1:2]
        for operation in answer
        if isinstance(operation, Create)
    }
    assert sorted(visits - inherited.get(trial, 0) for trial, visits in played.visits.items()) == expected


def test_a_failed_trial_is_replaced_as_the_worst() -> None:
    """Determined's test of early exits: values by trial, the first fails in its second round."""
    values = [0.5, 0.6, 0.1, 0.2, 0.3]
    searcher = pbt(2, 4, 2, truncate_fraction=0.5)
    played = play(searcher, 8, lambda trial, visits: values[trial], failing={0: 2})
    assert played.sources == {0: None, 1: None, 2: 0, 3: 2, 4: 2}
    assert played.visits == {0: 2, 1: 2, 2: 8, 3: 6, 4: 8}


def test_a_population_without_truncation_goes_on_smaller() -> None:
    played = play(pbt(4, 3, 2, truncate_fraction=0.0), 6, failing={1, 2})
    assert played.visits == {0: 6, 1: 0, 2: 0, 3: 6}


def test_where_donors_are_too_few_they_have_several_children() -> None:
    played = play(pbt(6, 2, 2, truncate_fraction=0.5), 4, failing={0, 1, 2, 3, 4})
    assert [played.sources[trial] for trial in (6, 7, 8)] == [5, 5, 5]


def test_a_fraction_is_taken_as_it_is_written() -> None:
    """0.29 * 100 is 28.999999999999996 in floats."""
    played = play(
        Pbt(ListPoints([{"x": k} for k in range(100)]), {"x": hp_int(0, 99)}, 100, 2, 1, truncate_fraction=0.29), 2
    )  # fmt: skip
    assert len(played.params) == 129


def test_a_proposer_with_fewer_points_makes_a_smaller_population() -> None:
    class Few(ListPoints):
        def check(self, num_models: int) -> None:
            pass

    space = {"x": hp_int(0, 9)}
    played = play(Pbt(Few([{"x": 1}, {"x": 2}]), space, 10, 3, 1, truncate_fraction=0.5), 3)
    assert list(played.sources.values())[:2] == [None, None]
    assert len(played.params) == 4


@given(
    size=st.integers(1, 9),
    rounds=st.integers(1, 5),
    length=st.integers(1, 3),
    fraction=st.sampled_from([0, 0.1, 0.25, 1 / 3, 0.5]),
    most=st.none() | st.integers(1, 4),
    order_seed=st.none() | st.integers(0, 9),
    data=st.data(),
)
def test_budgets_are_kept_and_the_search_ends_and_replays(
    size: int, rounds: int, length: int, fraction: float, most: int | None, order_seed: Any, data: Any
) -> None:
    def searcher() -> Searcher:
        return pbt(size, rounds, length, truncate_fraction=fraction, max_concurrent=most)

    failing = data.draw(st.dictionaries(st.integers(0, 40), st.integers(0, rounds * length), max_size=9))
    leaving = data.draw(st.sets(st.integers(0, 40), max_size=9))
    played = play(searcher(), rounds * length, order_seed=order_seed, failing=failing, leaving=leaving)
    assert most_at_once(played) <= (most or size)
    assert replay(searcher(), played.calls) == played.answers
    for params in played.params.values():
        check_point(SPACE, params)
    if not failing and not leaving:
        assert len(played.params) == size + int(fraction * size) * (rounds - 1)


# Exploring


def explored(params: dict[str, Any], trial: int, resample: float = 0.0, factor: float = 0.2) -> Any:
    return explore(SPACE, params, 0, trial, resample_probability=resample, perturb_factor=factor)


def test_without_resampling_and_perturbing_a_child_has_its_donors_point() -> None:
    for trial in range(50):
        point = draw(SPACE, 1, trial)
        assert explored(point, trial, 0, 0) == point


def test_numbers_move_by_their_factor_and_choices_to_a_neighbour() -> None:
    params = {**draw(SPACE, 0, 0), "uniform": 0.5, "log": 0.01, "int": 50, "quniform": 0.5, "choice": "b"}
    children = [explored(params, trial) for trial in range(100)]
    for name, low, high in [("uniform", 0.4, 0.6), ("log", 0.008, 0.012), ("quniform", 0.4, 0.6)]:
        assert {round(child[name], 9) for child in children} == {low, high}
    assert {child["int"] for child in children} == {40, 60}
    assert all(type(child["int"]) is int for child in children)
    assert {child["choice"] for child in children} == {"a", "c"}
    ups = Counter((child["int"] > 50, child["log"] > 0.01) for child in children)
    assert len(ups) == 4, "dimensions move independently"


def test_numbers_of_a_grid_move_by_a_step_at_least_and_stay_on_it() -> None:
    params = {**draw(SPACE, 0, 0), "int": 1, "quniform": 0.1, "qloguniform": 3, "uniform": 0.0}
    children = [explored(params, trial) for trial in range(100)]
    assert {child["int"] for child in children} == {0, 2}
    assert {child["quniform"] for child in children} == {0.0, 0.2}
    assert {child["qloguniform"] for child in children} == {2, 4}
    assert {round(child["uniform"], 9) for child in children} == {-0.4, 0.4}
    assert {explored({**params, "int": 0}, trial)["int"] for trial in range(20)} == {0, 1}
    assert {explored({**params, "int": 100}, trial)["int"] for trial in range(20)} == {80, 100}


def test_a_space_is_drawn_anew_when_its_branch_changes_and_moves_where_it_stays() -> None:
    stays, leaves = {"name": "sgd", "momentum": 0.5}, {"name": "adam"}
    params = draw(SPACE, 0, 0)
    branches = [explored({**params, "branch": stays}, trial)["branch"] for trial in range(60)]
    assert {round(b["momentum"], 9) for b in branches if b["name"] == "sgd"} == {0.4, 0.6}
    assert {"name": "adam"} in branches
    branches = [explored({**params, "branch": leaves}, trial)["branch"] for trial in range(60)]
    assert 7 in branches
    assert len({b["momentum"] for b in branches if b != 7}) > 20


def test_resampling_draws_from_the_whole_space() -> None:
    params = draw(SPACE, 0, 0)
    children = [explored(params, trial, resample=1) for trial in range(200)]
    assert {child["choice"] for child in children} == {"a", "b", "c", "d"}
    assert {option_of(SPACE["branch"], child["branch"]) for child in children} == {0, 1, 2}
    assert len({child["int"] for child in children}) > 50
    assert max(child["uniform"] for child in children) > 0.9 > -0.9 > min(c["uniform"] for c in children)


@given(st.integers(), st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_children_are_points_of_the_space_and_repeat(
    seed: int, trial: int, resample: float, factor: float
) -> None:
    params = draw(SPACE, seed, trial)
    for generation in range(5):
        how = {"resample_probability": resample, "perturb_factor": factor}
        child = explore(SPACE, params, seed, trial + generation, **how)
        check_point(SPACE, child)
        assert explore(SPACE, params, seed, trial + generation, **how) == child
        params = child


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"population_size": 0}, r"population_size=0, but it must be an integer of at least 1"),
        ({"num_rounds": 0}, r"num_rounds=0, but it must be"),
        ({"length_per_round": 0}, r"length_per_round=0, but it must be"),
        ({"truncate_fraction": 0.6}, r"truncate_fraction=0\.6, but it must be a number from 0 to 0\.5\. Write trunc"),
        ({"truncate_fraction": -0.1}, r"truncate_fraction=-0\.1, but it must be"),
        ({"truncate_fraction": math.nan}, r"truncate_fraction=nan, but it must be"),
        ({"resample_probability": 1.1}, r"resample_probability=1\.1, but it must be a number from 0 to 1"),
        ({"perturb_factor": "much"}, r"perturb_factor='much', but it must be a number from 0 to 1"),
        ({"max_concurrent": 0}, r"max_concurrent_trials=0, but it must be"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], text: str) -> None:
    good = {"population_size": 4, "num_rounds": 2, "length_per_round": 1}
    with pytest.raises(UsageError, match=text):
        Pbt(RandomPoints(SPACE, seed=0), SPACE, **{**good, **arguments})


def test_a_larger_population_than_points_is_refused() -> None:
    with pytest.raises(SpaceError, match="only 2 different points"):
        Pbt(ListPoints([{"x": 1}, {"x": 2}]), {"x": hp_int(1, 2)}, 3, 1, 1)
