"""What differs between a run and what is asked for now, in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hopyard.objects.identity import identity
from hopyard.tune.differences import what_differs


def test_differences_are_named_with_both_values() -> None:
    old = {"num_epochs": 5, "seed": 0, "search_space": {"lr": {"hp_log": [0.1, 1]}, "bs": 3}, "gone": None}
    new = {"num_epochs": 8, "seed": 0, "search_space": {"lr": {"hp_uniform": [0, 1]}, "bs": 3}, "came": "x"}
    assert what_differs(old, new) == [
        "num_epochs: 5 (run) -> 8 (now)",
        'search_space.lr: {"hp_log": [0.1, 1]} (run) -> {"hp_uniform": [0, 1]} (now)',
        "gone: null (run) -> not set (now)",
        'came: not set (run) -> "x" (now)',
    ]
    assert what_differs(old, json.loads(json.dumps(old))) == []


def build(rate: float, edited: bool) -> Callable[[Any], Any]:
    def inner(width: int) -> Any:
        return width + 1

    def renamed(width: int) -> Any:
        return width + 2

    renamed.__qualname__ = inner.__qualname__
    chosen = renamed if edited else inner

    def gen(params: Any) -> Any:
        return chosen(params), rate

    return gen


def test_changed_code_is_named() -> None:
    def lines(new: Callable[[Any], Any]) -> list[str]:
        old = build(0.5, edited=False)
        return what_differs(
            {"estimator_gen_fn": identity(old).to_json()}, {"estimator_gen_fn": identity(new).to_json()}
        )

    assert lines(build(0.5, edited=False)) == []
    assert lines(build(0.75, edited=True)) == ["the estimator function's code changed: rate in gen, inner"]


def test_long_values_are_cut_but_never_shown_as_equal() -> None:
    (line,) = what_differs({"columns": ["x" * 80, "a"]}, {"columns": ["x" * 80, "b"]})
    assert line == f'columns: changed beyond ["{"x" * 55}...'
