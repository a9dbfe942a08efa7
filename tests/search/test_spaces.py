"""What a user may write as a search space, and what is said of what they may not."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hopyard.errors import SpaceError
from hopyard.search import (
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
)
from hopyard.search.points import grid
from hopyard.search.spaces import checked_space, named_code, space_json


def local(number: int) -> Callable[[], int]:
    def found() -> int:
        return number

    return found


def test_classes_and_functions_are_options_by_their_names() -> None:
    space = checked_space({"a": hp_choice([dict, {"do": max, "x": hp_int(1, 2)}]), "b": [math.sqrt, "text"]})
    plain, code = named_code(space)
    assert code == {"builtins.dict": dict, "builtins.max": max, "math.sqrt": math.sqrt}
    assert plain == {
        "a": hp_choice(["builtins.dict", {"do": "builtins.max", "x": hp_int(1, 2)}]), "b": ["math.sqrt", "text"]
    }  # fmt: skip
    assert json.loads(json.dumps(space_json(space))) == space_json(plain)
    assert named_code(pickle.loads(pickle.dumps(space))) == (plain, code)


def test_dimensions_print_as_they_are_written() -> None:
    space = [
        hp_choice([1, "a", {"x": hp_int(1, 3)}]),
        hp_uniform(0, 1.5),
        hp_quniform(16, 256, 16),
        hp_log(1e-4, 0.1),
        hp_loguniform(-4, -1),
        hp_qloguniform(0, 3, 1),
    ]
    assert repr(space) == (
        "[hp_choice([1, 'a', {'x': hp_int(1, 3)}]), hp_uniform(0, 1.5), hp_quniform(16, 256, 16), "
        "hp_log(0.0001, 0.1), hp_loguniform(-4, -1), hp_qloguniform(0, 3, 1)]"
    )


def test_a_space_has_a_json_form() -> None:
    space = {
        "optimizer": hp_choice([{"name": "sgd", "momentum": hp_uniform(0, 1)}, "adam"]),
        "sizes": (1, hp_int(2, 3)),
    }
    form = space_json(space)
    assert json.loads(json.dumps(form)) == form
    assert form == {
        "optimizer": {"hp_choice": [{"name": "sgd", "momentum": {"hp_uniform": [0, 1]}}, "adam"]},
        "sizes": [1, {"hp_int": [2, 3]}],
    }


def test_equal_dimensions_are_equal_and_immutable() -> None:
    assert hp_quniform(0, 1, 0.1) == hp_quniform(0, 1, 0.1)
    with pytest.raises(AttributeError):
        hp_uniform(0, 1).low = 3  # type: ignore[misc]


def test_bounds_in_powers_of_ten_are_exact() -> None:
    dimension = hp_loguniform(-4, -1)
    assert (dimension.low, dimension.high) == (0.0001, 0.1)


@pytest.mark.parametrize(
    ("dimension", "values"),
    [
        (hp_quniform(0, 1, 0.1), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (hp_quniform(16, 64, 16), [16, 32, 48, 64]),
        (hp_quniform(16.0, 64, 16), [16.0, 32.0, 48.0, 64.0]),
        (hp_quniform(1, 10, 3), [3, 6, 9]),
        (hp_quniform(-0.3, 0.3, 0.2), [-0.2, 0.0, 0.2]),
        (hp_quniform(1e-5, 5e-5, 2e-5), [2e-5, 4e-5]),
        (hp_int(-1, 2), [-1, 0, 1, 2]),
        (hp_qloguniform(0, 1, 2), [2, 4, 6, 8, 10]),
        (hp_qloguniform(-1, 0, 0.3), [0.3, 0.6, 0.9]),
    ],
)
def test_quantised_values_are_exact_multiples_within_bounds(dimension: Any, values: list[float]) -> None:
    found = [point["x"] for point in grid({"x": dimension})]
    assert [(type(value), value) for value in found] == [(type(value), value) for value in values]


def test_numpy_values_are_taken_as_python_ones() -> None:
    space = checked_space(
        {
            "a": hp_choice(np.array([32, 64])),
            "b": np.float32(0.5),
            "c": hp_uniform(np.int64(0), np.float64(1)),
        }
    )
    assert space == {"a": hp_choice([32, 64]), "b": 0.5, "c": hp_uniform(0, 1.0)}
    assert type(space["b"]) is float


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hp_choice([]), r"hp_choice was given no options, but needs at least one\. Write hp_choice\(\[32"),
        (lambda: hp_choice("relu"), r"was given 'relu', but takes a list of .* Write hp_choice\(\['relu', \.\.\."),
        (lambda: hp_choice({1, 2}), r"was given \{1, 2\}, but takes a list of options"),
        (lambda: hp_choice([1, 2, 1]), r"was given 1 twice, as options 0 and 2, .* Leave one of them out"),
        (lambda: hp_choice([math.nan]), r"option 0 of hp_choice holds nan, but every value must be finite"),
        (lambda: hp_choice([object()]), r"option 0 of hp_choice holds <object.* Write a name and look the object up"),
        (lambda: hp_choice([max, lambda: 0]), r"holds the lambda .*<lambda>, but .* Write a function with def"),
        (lambda: hp_choice([dict, dict]), r"was given 'builtins.dict' twice, as options 0 and 1"),
        (lambda: named_code(checked_space({"a": hp_choice([max, min]), "b": "builtins.max"})),
         r"holds 'builtins.max' both as a text and as what has this name, .* Leave one of them out"),
        (lambda: named_code(checked_space({"a": local(1), "b": [hp_choice([local(2), 3])]})),
         r"holds two classes or functions of the name '.*local.<locals>.found', .* Give each a name of its own"),
        (lambda: hp_uniform(1, 1), r"given 1 for both bounds, .* For a constant write 1 in place of the dimension"),
        (lambda: hp_uniform(2, 1), r"given 2 and 1, but the lower bound comes first\. Write hp_uniform\(1, 2"),
        (lambda: hp_uniform("0", 1), r"given a='0' \(str\), but takes numbers"),
        (lambda: hp_uniform(0, True), r"given b=True \(bool\), but takes numbers"),
        (lambda: hp_uniform(0, math.inf), r"given b=inf, but its numbers must be finite"),
        (lambda: hp_int(1, 2.5), r"hp_int was given 1 and 2\.5, .* Write hp_int\(1, 3\), or hp_uniform\(1, 2\.5\)"),
        (lambda: hp_quniform(0, 1, 0), r"given the step q=0, but a step is larger than 0"),
        (lambda: hp_quniform(0, 1, -0.1), r"given the step q=-0\.1, but a step is larger than 0"),
        (lambda: hp_quniform(0, 1, 2), r"larger than its range 0 to 1, .* Give a step of at most 1\."),
        (lambda: hp_log(0, 1), r"hp_log was given 0 as its lower bound, .* write hp_loguniform\(-4, -1\)"),
        (lambda: hp_log(-4, -1), r"hp_log was given -4 as its lower bound, .* write hp_loguniform\(-4, -1\)"),
        (
            lambda: hp_loguniform(1e-4, 1e-1),
            (r"given 0\.0001 and 0\.1, which look like values, but its bounds are powers of ten: this would be 1 to "
             r"1\.259\. For values from 0\.0001 to 0\.1 write hp_log\(0\.0001, 0\.1\), or hp_loguniform\(-4, -1\)\."),
        ),
        (lambda: hp_qloguniform(0.01, 0.1, 0.01), r"hp_qloguniform was given 0\.01 and 0\.1, which look like values"),
        (lambda: hp_loguniform(1, 1000), r"powers of ten and lie between -300 and 300\. .* write hp_log\(low, high\)"),
        (lambda: hp_qloguniform(-2, -1, 1), r"q=1, which is larger than its range 0\.01 to 0\.1"),
        (lambda: checked_space({}), r"the search space is empty, .* Write search_space="),
        (lambda: checked_space([1]), r"the search space is \[1\], but must be a dictionary"),
        (lambda: checked_space({1: 2}), r"the search space has the key 1 \(int\), but keys are texts\. Write '1'"),
        (lambda: checked_space({"a": {"b": [{2: 1}]}}), r"the search space\['a'\]\['b'\]\[0\] has the key 2"),
        (lambda: checked_space({"a": object()}), r"the search space\['a'\] holds <object .* of type object"),
    ],
)  # fmt: skip
def test_what_is_impossible_is_said_with_the_next_step(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(SpaceError, match=text):
        make()
