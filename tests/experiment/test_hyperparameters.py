"""The search spaces of hyperparameters in YAML."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hopyard.experiment.hyperparameters import Hyperparameter, search_space
from hopyard.search import hp_choice, hp_int, hp_log, hp_uniform
from hopyard.search.points import draw, grid

PARSED = TypeAdapter(dict[str, Hyperparameter])


def space_of(hyperparameters: dict[str, Any], *, grid: bool = False) -> dict[str, Any]:
    space: dict[str, Any] = search_space(PARSED.validate_python(hyperparameters), grid=grid)
    return space


def values_of(hyperparameter: dict[str, Any]) -> list[Any]:
    """Values that a grid tries."""
    return list(space_of({"x": hyperparameter}, grid=True)["x"].options)


def test_each_type_is_a_dimension_and_the_shape_stays() -> None:
    space = space_of(
        {
            "lr": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
            "octaves": {"type": "log", "minval": 0, "maxval": 3, "base": 2},
            "width": {"type": "categorical", "vals": [32, 64, None, {"a": 1}]},
            "batch_size": 64,
            "nothing": None,
            "const": {"type": "const", "val": {"type": "int", "deep": [1]}},
            "layers": [{"type": "int", "minval": 1, "maxval": 8}, {"x": {"type": "double", "minval": 0, "maxval": 1}}],
            "optimizer": {"name": "sgd", "momentum": {"type": "double", "minval": 0, "maxval": 0.5}, "empty": {}},
            "type": "resnet",
        }
    )  # fmt: skip
    assert space == {
        "lr": hp_log(1e-4, 0.1),
        "octaves": hp_log(1, 8),
        "width": hp_choice([32, 64, None, {"a": 1}]),
        "batch_size": 64,
        "nothing": None,
        "const": {"type": "int", "deep": [1]},
        "layers": [hp_int(1, 8), {"x": hp_uniform(0, 1)}],
        "optimizer": {"name": "sgd", "momentum": hp_uniform(0, 0.5), "empty": {}},
        "type": "resnet",
    }
    point = draw(space, seed=0, trial=0)
    assert point["optimizer"].keys() == {"name", "momentum", "empty"}
    assert 1 <= point["layers"][0] <= 8


def test_powers_of_ten_are_exact() -> None:
    assert values_of({"type": "log", "minval": -4, "maxval": -1, "count": 4}) == [1e-4, 1e-3, 1e-2, 0.1]


@pytest.mark.parametrize(
    ("hyperparameter", "values"),
    [
        ({"type": "int", "minval": 0, "maxval": 4, "count": 5}, [0, 1, 2, 3, 4]),
        ({"type": "int", "minval": -4, "maxval": -2, "count": 3}, [-4, -3, -2]),
        ({"type": "int", "minval": 0, "maxval": 10, "count": 4}, [0, 3, 7, 10]),
        ({"type": "int", "minval": 0, "maxval": 3, "count": 100}, [0, 1, 2, 3]),
        ({"type": "int", "minval": 1, "maxval": 4, "count": 1}, [3]),
        ({"type": "int", "minval": -4, "maxval": -1, "count": 1}, [-2]),
        ({"type": "double", "minval": 0, "maxval": 1, "count": 3}, [0.0, 0.5, 1.0]),
        ({"type": "double", "minval": 1, "maxval": 2, "count": 1}, [1.5]),
        ({"type": "log", "minval": -3, "maxval": -1, "count": 1}, [0.01]),
        ({"type": "log", "minval": 0, "maxval": 4, "base": 2, "count": 3}, [1, 4, 16]),
        ({"type": "categorical", "vals": ["b", "a"]}, ["b", "a"]),
    ],
)
def test_values_of_a_grid(hyperparameter: dict[str, Any], values: list[Any]) -> None:
    assert values_of(hyperparameter) == values


def test_a_grid_of_nested_hyperparameters_has_every_point_once() -> None:
    two = {"type": "int", "minval": 0, "maxval": 1, "count": 2}
    space = space_of(
        {"a": two, "b": {"c": two, "d": [two, {"type": "categorical", "vals": [0, 1]}]}, "e": 5}, grid=True
    )
    points = grid(space)
    assert points == [
        {"a": a, "b": {"c": c, "d": [d, e]}, "e": 5}
        for a in (0, 1) for c in (0, 1) for d in (0, 1) for e in (0, 1)
    ]  # fmt: skip


@given(st.integers(-(10**18), 10**18), st.integers(1, 10**18), st.integers(1, 50))
def test_a_grid_of_ints_is_even(minval: int, steps: int, count: int) -> None:
    values = values_of({"type": "int", "minval": minval, "maxval": minval + steps, "count": count})
    assert len(values) == min(count, steps + 1)
    assert values == sorted(set(values))
    if len(values) > 1:
        assert (values[0], values[-1]) == (minval, minval + steps)
        gaps = [after - before for before, after in pairwise(values)]
        assert max(gaps) - min(gaps) <= 1
    else:
        assert abs(2 * values[0] - (2 * minval + steps)) <= 1


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300), st.integers(1, 50))
def test_a_grid_of_doubles_lies_within_its_bounds(a: float, b: float, count: int) -> None:
    low, high = sorted([a, b])
    if low == high:
        high = math.nextafter(high, math.inf)
    values = values_of({"type": "double", "minval": low, "maxval": high, "count": count})
    assert values == sorted(set(values))
    assert low <= values[0]
    assert values[-1] <= high
    assert count == 1 or (values[0], values[-1]) == (low, high)
