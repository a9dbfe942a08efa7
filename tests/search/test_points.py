"""Draws are uniform, independent of each other and in bounds; grids hold every point once."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import by_level

from hopyard.errors import SpaceError
from hopyard.search.points import check_point, draw, grid, key_of, num_points, points
from hopyard.search.spaces import (
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
)

DRAWS = by_level(2500, 4000, 10_000)
CORRELATED = 5 / math.sqrt(DRAWS)  # five standard deviations of what independent values give

SPACE: dict[str, Any] = {
    "choice": hp_choice([0, 1, 2]),
    "same choice": hp_choice([0, 1, 2]),
    "uniform": hp_uniform(0, 1),
    "same uniform": hp_uniform(0, 1),
    "log": hp_log(1e-4, 0.1),
    "loguniform": hp_loguniform(-4, -1),
    "quniform": hp_quniform(0, 100, 5),
    "int": hp_int(1, 10),
    "qloguniform": hp_qloguniform(0, 3, 1),
    "nested": {"uniform": hp_uniform(0, 1), "list": [hp_uniform(0, 1), hp_choice([0, 1, 2])]},
    "branch": hp_choice([{"kind": 0, "rate": hp_uniform(0, 1)}, {"kind": 1, "rate": hp_uniform(0, 1)}]),
}


def flat(point: Any, name: str = "") -> dict[str, float]:
    if isinstance(point, dict | list):
        items = point.items() if isinstance(point, dict) else enumerate(point)
        return {key: value for step, each in items for key, value in flat(each, f"{name}/{step}").items()}
    return {name: float(point)}


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Each dimension's values over the trials of one seed."""
    rows = [flat(draw(SPACE, 7, trial)) for trial in range(DRAWS)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_no_pair_of_dimensions_is_correlated(table: dict[str, Any]) -> None:
    assert len(table) == 14
    for first, second in itertools.combinations(table, 2):
        assert abs(np.corrcoef(table[first], table[second])[0, 1]) < CORRELATED, (first, second)


def test_no_dimension_is_correlated_with_its_next_trial_or_another_seed(table: dict[str, Any]) -> None:
    other = [flat(draw(SPACE, 8, trial)) for trial in range(DRAWS)]
    for name, values in table.items():
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < CORRELATED
        assert abs(np.corrcoef(values, [row[name] for row in other])[0, 1]) < CORRELATED


@pytest.mark.parametrize(
    ("name", "cumulative"),
    [
        ("/uniform", lambda x: x),
        ("/nested/list/0", lambda x: x),
        ("/branch/rate", lambda x: x),
        ("/log", lambda x: (np.log10(x) + 4) / 3),
        ("/loguniform", lambda x: (np.log10(x) + 4) / 3),
    ],
)
def test_continuous_draws_follow_their_distribution(
    table: dict[str, Any], name: str, cumulative: Any
) -> None:
    """Kolmogorov-Smirnov at the level 0.001."""
    expected = cumulative(np.sort(table[name]))
    ranks = np.arange(DRAWS + 1) / DRAWS
    distance = max(np.max(ranks[1:] - expected), np.max(expected - ranks[:-1]))
    assert distance < 1.95 / math.sqrt(DRAWS)


@pytest.mark.parametrize(
    ("name", "values", "limit"),
    [  # limits: chi-square at the level 0.001 for one degree of freedom less than there are values
        ("/choice", [0, 1, 2], 13.8),
        ("/int", list(range(1, 11)), 27.9),
        ("/quniform", list(range(0, 101, 5)), 45.3),
        ("/branch/kind", [0, 1], 10.8),
    ],
)
def test_discrete_draws_are_equally_likely(
    table: dict[str, Any], name: str, values: list[int], limit: float
) -> None:
    found, counts = np.unique(table[name], return_counts=True)
    assert found.tolist() == values
    expected = DRAWS / len(values)
    assert np.sum((counts - expected) ** 2 / expected) < limit


def test_quantised_log_draws_fill_each_decade_alike(table: dict[str, Any]) -> None:
    exponents = np.log10(table["/qloguniform"])
    counts, _ = np.histogram(exponents, bins=[0, np.log10(9.5), np.log10(99.5), 3.1])
    assert np.all(np.abs(counts / DRAWS - 1 / 3) < 0.04)


def test_a_draw_depends_on_seed_and_trial_only() -> None:
    assert draw(SPACE, 3, 5) == draw(SPACE, 3, 5)
    assert draw(SPACE, 3, 5) != draw(SPACE, 3, 6)
    assert draw(SPACE, 3, 5) != draw(SPACE, 4, 5)


def test_draws_are_fixed_across_versions() -> None:
    space = {"lr": hp_uniform(0, 1), "width": hp_choice([32, 64, 128]), "depth": hp_int(1, 9)}
    assert [draw(space, 0, trial) for trial in range(2)] == [
        {"lr": 0.29956851004859564, "width": 64, "depth": 3},
        {"lr": 0.38374992658908047, "width": 128, "depth": 4},
    ]


def test_adding_a_dimension_does_not_change_the_others() -> None:
    wider = {"new": hp_uniform(0, 1), **SPACE}
    for trial in range(20):
        point = draw(wider, 1, trial)
        del point["new"]
        assert point == draw(SPACE, 1, trial)


def test_points_share_nothing_with_the_space() -> None:
    space = {"layers": [32, {"a": 1}], "choice": hp_choice([[1, 2]])}
    point = draw(space, 0, 0)
    point["layers"][1]["a"] = 2
    point["choice"].append(3)
    assert draw(space, 0, 0) == {"layers": [32, {"a": 1}], "choice": [1, 2]}


def test_a_grid_is_the_product_of_its_choices() -> None:
    space = {"a": hp_choice([1, 2]), "b": (hp_choice(["x", "y"]), 0), "c": hp_quniform(0, 1, 0.5), "d": None}
    expected = [
        {"a": a, "b": [b, 0], "c": c, "d": None} for a in (1, 2) for b in ("x", "y") for c in (0.0, 0.5, 1.0)
    ]
    assert grid(space) == expected


def test_only_the_chosen_branch_of_a_condition_expands() -> None:
    space = {
        "optimizer": hp_choice([{"name": "sgd", "momentum": hp_choice([0.0, 0.9])}, {"name": "adam"}]),
        "width": hp_int(1, 2),
    }
    assert num_points(space) == 6
    assert [(point["optimizer"].get("momentum"), point["width"]) for point in grid(space)] == [
        (0.0, 1), (0.0, 2), (0.9, 1), (0.9, 2), (None, 1), (None, 2),
    ]  # fmt: skip


def test_a_point_that_two_options_share_is_tried_once() -> None:
    assert [point["n"] for point in grid({"n": hp_choice([hp_int(1, 3), hp_int(2, 5)])})] == [1, 2, 3, 4, 5]


def test_a_continuous_dimension_in_a_grid_is_named_with_what_to_write() -> None:
    space = {"optimizer": hp_choice([{"rates": [hp_log(1e-4, 1.0)]}])}
    with pytest.raises(SpaceError) as error:
        grid(space)
    assert str(error.value) == (
        "optimizer[option 0].rates[0] is hp_log(0.0001, 1.0), which has no end of values, but a grid tries every "
        "point. Write hp_choice([0.0001, 0.01, 1]) or another list of values, or use RandomSearch."
    )


def test_a_grid_without_end_is_refused_before_it_is_built() -> None:
    with pytest.raises(
        SpaceError, match=r"has 1,000,000,000 points, but a grid of more than 100,000 .* RandomSearch"
    ):
        grid({name: hp_int(1, 1000) for name in "abc"})


BOUNDS = st.tuples(st.integers(-1000, 1000), st.integers(1, 1000)).map(lambda pair: (pair[0], sum(pair)))
FLOATS = st.tuples(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300)).filter(lambda pair: pair[0] < pair[1])
STEPS = st.sampled_from([0.1, 0.25, 0.3, 1, 0.007])
EXPONENTS = st.tuples(st.integers(-9, 3), st.integers(1, 5))
DIMENSIONS = st.one_of(
    BOUNDS.map(lambda pair: hp_int(*pair)),
    FLOATS.map(lambda pair: hp_uniform(*pair)),
    st.tuples(BOUNDS, STEPS).map(lambda drawn: hp_quniform(*drawn[0], drawn[1])),
    EXPONENTS.map(lambda pair: hp_loguniform(pair[0], sum(pair))),
    EXPONENTS.map(lambda pair: hp_qloguniform(pair[0], sum(pair), float(f"1e{pair[0]}"))),
)
SPACES = st.recursive(
    DIMENSIONS | st.integers() | st.text() | st.none(),
    lambda inner: (
        st.dictionaries(st.text(), inner, max_size=4)
        | st.lists(inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=3, unique_by=repr).map(hp_choice)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), SPACES, min_size=1, max_size=4), st.integers(), st.integers(0, 10**6))
def test_draws_are_points_of_their_space(space: dict[str, Any], seed: int, trial: int) -> None:
    point = draw(space, seed, trial)
    check_point(space, point)
    assert json.loads(json.dumps(point)) == point


@given(st.dictionaries(st.text(), SPACES, min_size=1, max_size=2))
def test_as_many_points_are_enumerated_as_are_counted(space: dict[str, Any]) -> None:
    try:
        count = num_points(space)
    except SpaceError:
        with pytest.raises(SpaceError, match="which has no end of values"):
            grid(space)
        return
    if count < 5000:
        found = list(points(space))
        assert len(found) == count
        assert key_of(draw(space, 0, 0)) in {key_of(point) for point in found}


@pytest.mark.parametrize(
    ("point", "text"),
    [
        ({"lr": 2.0, "bs": 32, "net": 1}, r"lr is 2\.0, but the search space asks for a number from 0\.1 to 1\.0"),
        ({"lr": "1", "bs": 32, "net": 1}, r"lr is '1', but .* Change the value, or widen the space to hold it"),
        ({"lr": 1, "bs": 33, "net": 1}, r"bs is 33, but the search space asks for a multiple of 16 from 16 to 64"),
        ({"lr": 1, "bs": 32, "net": 3}, r"net is 3, but .* asks for one of 1, \{'k': \[hp_int\(1, 3\)\]\}"),
        ({"lr": 1, "bs": 32, "net": {"k": [9]}}, r"net is \{'k': \[9\]\}, but the search space asks for one of"),
        ({"lr": 1, "bs": 32}, r"the point lacks 'net', but a point gives every parameter\. Add what is missing"),
        ({"lr": 1, "bz": 32, "net": 1}, r"has 'bz', but .* has only 'lr', 'bs', 'net'; did you mean"),
        (5, r"the point is 5, but the search space asks for a dictionary with 'lr', 'bs', 'net'"),
    ],
)  # fmt: skip
def test_a_point_outside_the_space_is_named(point: Any, text: str) -> None:
    space = {
        "lr": hp_uniform(0.1, 1),
        "bs": hp_quniform(16, 64, 16),
        "net": hp_choice([1, {"k": [hp_int(1, 3)]}]),
    }
    check_point(space, {"lr": 0.5, "bs": 48, "net": {"k": [2]}})
    with pytest.raises(SpaceError, match=text):
        check_point(space, point)
