"""The preview reproduces Determined's tables, and has none of its defects."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import UsageError
from hopyard.search.preview import UnitMetric, preview, preview_table
from hopyard.search.spaces import hp_choice, hp_int, hp_uniform


def worse(trial: int, units: int) -> float:
    """Every trial is worse than those before it."""
    return float(trial)


def better(trial: int, units: int) -> float:
    return -float(trial)


def constant(trial: int, units: int) -> float:
    return 1.0


def rising(trial: int, units: int) -> float:
    """0.01 to 0.12, larger is better."""
    return 0.01 * (trial + 1)


def searcher(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, **fields}


ASHA = searcher("async_halving", num_rungs=3, divisor=3, max_trials=12, max_length=9000)
REPLACE_HALF = {"replace_function": {"truncate_fraction": 0.5}}
LARGER = {"smaller_is_better": False}

# The tables of Determined's tests: what every trial trains, and how many do.
TABLES: list[tuple[dict[str, Any], UnitMetric | None, dict[int, int]]] = [
    (searcher("adaptive_asha", divisor=5, max_length=1000, max_trials=10), None, {200: 7, 1000: 3}),
    ({**ASHA, "max_length": 900, "max_trials": 10, "max_concurrent_trials": 3, "stop_once": True}, worse,
     {100: 9, 900: 1}),
    (searcher("adaptive_asha", divisor=3, max_rungs=5, max_length=90, max_trials=9, max_concurrent_trials=3,
              stop_once=True), worse, {10: 5, 90: 1 + 1, 30: 2}),
    (ASHA, constant, {1000: 8, 3000: 3, 9000: 1}),
    ({**ASHA, "max_length": {"records": 576_000}}, constant, {64_000: 8, 192_000: 3, 576_000: 1}),
    ({**ASHA, "max_length": {"epochs": 12}}, constant, {1: 8, 4: 3, 12: 1}),
    ({**ASHA, "max_concurrent_trials": 2, "stop_once": True}, worse, {9000: 1, 1000: 11}),
    ({**ASHA, "max_concurrent_trials": 3, "stop_once": True, **LARGER}, rising, {9000: 12}),
    ({**ASHA, "max_concurrent_trials": 3}, worse, {1000: 8, 3000: 3, 9000: 1}),
    ({**ASHA, "max_concurrent_trials": 3, **LARGER}, lambda trial, units: 0.12 - 0.01 * trial,
     {1000: 8, 3000: 3, 9000: 1}),
    (searcher("async_halving", num_rungs=1, max_trials=4, max_length=9000), worse, {9000: 4}),
    (searcher("async_halving", num_rungs=1, max_trials=4, max_length=9000, stop_once=True), worse, {9000: 4}),
    (searcher("adaptive_asha", divisor=3, max_rungs=2, max_length=900, max_trials=5, max_concurrent_trials=5), worse,
     {300: 2, 900: 3}),
    (searcher("pbt", population_size=2, num_rounds=2, length_per_round=200, **REPLACE_HALF, **LARGER),
     lambda trial, units: trial + 1.0, {400: 1, 200: 2}),
    (searcher("pbt", population_size=3, num_rounds=4, length_per_round=400,
              replace_function={"truncate_fraction": 0}, **LARGER), lambda trial, units: trial + 1.0, {1600: 3}),
    (searcher("random", max_trials=4, max_concurrent_trials=2, max_length=300), worse, {300: 4}),
    (searcher("single", max_length=300), worse, {300: 1}),
    (searcher("grid", max_length=300, hyperparameters={"x": {"type": "int", "minval": 0, "maxval": 3, "count": 4}}),
     worse, {300: 4}),
    (searcher("grid", max_length=300, hyperparameters={"x": {"type": "int", "minval": 0, "maxval": 10, "count": 4}}),
     None, {300: 4}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "metric", "expected"), TABLES)
def test_determineds_tables(
    config: dict[str, Any], metric: UnitMetric | None, expected: dict[int, int]
) -> None:
    assert Counter(preview(config, metric)) == expected


def test_the_trials_of_a_preview_are_in_order_of_creation() -> None:
    config = {**ASHA, "max_concurrent_trials": 3}
    assert preview(config, worse) == [9000, 3000, 3000, 3000, *[1000] * 8]
    assert preview({**config, "stop_once": True}, worse) == [9000, *[1000] * 11]
    # The first bracket's trials, the second's, then those that came as others were stopped.
    adaptive = searcher("adaptive_asha", divisor=3, max_length=90, max_trials=9, max_concurrent_trials=3)
    assert preview({**adaptive, "stop_once": True}, worse) == [90, 10, 90, 10, 10, 30, 10, 10, 30]


def test_trials_report_in_the_order_they_were_started() -> None:
    """The first of three trials trains on, and reports again before the others do."""
    seen: list[tuple[int, int]] = []

    def metric(trial: int, units: int) -> float:
        seen.append((trial, units))
        return float(trial)

    preview({**ASHA, "max_trials": 4, "max_concurrent_trials": 3, "stop_once": True}, metric)
    assert seen == [(0, 1000), (0, 3000), (0, 9000), (1, 1000), (2, 1000), (3, 1000)]


def test_without_a_metric_the_closed_form() -> None:
    assert preview(ASHA) == [1000] * 8 + [3000] * 3 + [9000]
    assert preview_table(ASHA) == [(8, 1000), (3, 3000), (1, 9000)]
    assert preview_table(searcher("adaptive_asha", max_trials=16, max_length=937)) == [
        (9, 58),
        (5, 234),
        (2, 937),
    ]
    # Rungs below one unit are of one unit, as Determined has them.
    assert preview_table({**ASHA, "num_rungs": 5, "divisor": 4, "max_length": 10, "max_trials": 64}) == [
        (63, 1),
        (1, 10),
    ]
    half = searcher("pbt", population_size=4, num_rounds=8, length_per_round=500, **REPLACE_HALF)
    assert preview_table(half) == [(16, 500), (2, 4000)]


@pytest.mark.parametrize(
    ("hyperparameters", "number"),
    [
        ({"x": {"type": "int", "minval": 0, "maxval": 4, "count": 5}}, 5),
        ({"x": {"type": "int", "minval": -4, "maxval": -2, "count": 3}}, 3),
        ({"x": {"type": "int", "minval": -4, "maxval": -2, "count": 9}}, 3),
        ({"a": {"b": {"x": {"type": "categorical", "vals": [1, 2]}, "y": {"type": "categorical", "vals": [1, 2]}}},
          "c": {"type": "double", "minval": 0, "maxval": 1, "count": 2},
          "d": {"type": "log", "minval": -2, "maxval": 0, "base": 10, "count": 2}}, 16),
        ({"x": {"type": "const", "val": 3}, "y": 4, "z": [1, 2], "empty": {}}, 1),
        ({"x": hp_choice([1, 2, hp_int(3, 5)]), "y": [hp_int(1, 2), "constant"]}, 10),
    ],
)  # fmt: skip
def test_a_grid_counts_its_points(hyperparameters: dict[str, Any], number: int) -> None:
    assert preview(searcher("grid", max_length=7, hyperparameters=hyperparameters), constant) == [7] * number


# Defects of Determined's that are not here


def test_equal_values_do_not_all_train_to_the_end() -> None:
    assert Counter(preview({**ASHA, "stop_once": True}, constant)) == {1000: 11, 9000: 1}


@pytest.mark.parametrize(("length", "divisor", "shortest"), [(1000, 10, 1), (243, 3, 1)])
def test_no_rung_is_lost_to_a_float_logarithm(length: int, divisor: int, shortest: int) -> None:
    config = searcher(
        "adaptive_asha",
        max_trials=10_000,
        max_length=length,
        divisor=divisor,
        max_rungs=9,
        mode="aggressive",
    )
    assert preview_table(config)[0][1] == shortest


@pytest.mark.parametrize("metric", [None, worse, better, constant])
@pytest.mark.parametrize("stop_once", [False, True])
def test_explicit_brackets_make_no_more_trials_than_asked_for(
    metric: UnitMetric | None, stop_once: bool
) -> None:
    config = searcher(
        "adaptive_asha",
        max_trials=3,
        max_length=1000,
        bracket_rungs=[5, 4, 3, 2, 1],
        stop_once=stop_once,
    )
    assert len(preview(config, metric)) == 3


def test_values_that_are_no_numbers_are_the_worst() -> None:
    for value in (math.nan, math.inf, -math.inf):
        for config in (ASHA, {**ASHA, "stop_once": True}, {**ASHA, **LARGER}):
            counts = Counter(
                preview(config, lambda trial, units, value=value: value if trial else 0.0)  # type: ignore[misc]
            )
            assert sum(counts.values()) == 12


CONFIGS = st.one_of(
    st.fixed_dictionaries(
        {
            "name": st.just("adaptive_asha"),
            "max_trials": st.integers(1, 40),
            "max_length": st.integers(1, 1000),
            "divisor": st.sampled_from([2, 3, 4, 5, 2.5]),
            "max_rungs": st.integers(1, 6),
            "mode": st.sampled_from(["aggressive", "standard", "conservative"]),
            "bracket_rungs": st.lists(st.integers(1, 6), max_size=4),
            "max_concurrent_trials": st.integers(0, 20),
            "stop_once": st.booleans(),
        }
    ),
    st.fixed_dictionaries(
        {
            "name": st.just("async_halving"),
            "num_rungs": st.integers(1, 6),
            "max_trials": st.integers(1, 40),
            "max_length": st.integers(1, 1000),
            "divisor": st.sampled_from([2, 3, 4, 5, 2.5]),
            "max_concurrent_trials": st.integers(0, 20),
            "stop_once": st.booleans(),
        }
    ),
)


@given(CONFIGS, st.lists(st.floats(), min_size=1, max_size=40))
def test_a_search_makes_as_many_trials_as_its_budget_says(
    config: dict[str, Any], values: list[float]
) -> None:
    units = preview(config, lambda trial, units: values[(trial + units) % len(values)])
    assert (
        len(units) == config["max_trials"] == len(preview(config)) == sum(n for n, _ in preview_table(config))
    )
    assert max(units) <= config["max_length"]
    assert min(units) >= 1
    if config["stop_once"]:
        assert config["max_length"] in units, "the first at each rung trains on"


@given(st.integers(1, 4), st.sampled_from([2, 3, 4]), st.integers(1, 3), st.integers(0, 20))
def test_the_closed_form_is_what_promotion_does_where_no_rung_has_too_few(
    num_rungs: int, divisor: int, at_the_top: int, concurrent: int
) -> None:
    config = searcher(
        "async_halving",
        num_rungs=num_rungs,
        divisor=divisor,
        max_trials=at_the_top * divisor ** (num_rungs - 1),
        max_length=10_000,
        max_concurrent_trials=concurrent,
    )
    assert sorted(preview(config, worse)) == preview(config)


def as_restated(
    trials: int, rungs: list[int], divisor: int, concurrent: int, stop_once: bool, metric: UnitMetric
) -> list[int]:
    """Determined's algorithm word for word, but for ties of the stopping form: a slow and simple second opinion."""
    places: list[list[list[Any]]] = [[] for _ in rungs]  # [value, trial, whether it was promoted], best first
    units: list[int] = []
    next_rung: dict[int, int] = {}

    def create() -> None:
        if len(units) < trials:
            next_rung[len(units)] = 0
            units.append(0)

    for _ in range(concurrent):
        create()
    while next_rung:
        trial = min(next_rung)
        rung = next_rung.pop(trial)
        units[trial] = rungs[rung]
        value, others = metric(trial, rungs[rung]), places[rung]
        index = sum(other <= value for other, *_ in others)
        old, new = len(others) // divisor, (len(others) + 1) // divisor
        others.insert(index, [value, trial, False])
        if rung == len(rungs) - 1:
            create()
        elif stop_once:
            if index < max(new, 1):
                next_rung[trial] = rung + 1
            else:
                create()
        elif index < new or (old < new and not others[old][2]):
            promoted = others[index if index < new else old]
            promoted[2] = True
            next_rung[promoted[1]] = rung + 1
        else:
            create()
    return units


@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from([2, 3, 4]),
    st.integers(1, 20),
    st.booleans(),
    st.lists(st.floats(allow_nan=False) | st.integers(0, 3).map(float), min_size=1, max_size=40),
)
def test_a_preview_does_what_the_restated_algorithm_does(
    trials: int, num_rungs: int, divisor: int, concurrent: int, stop_once: bool, values: list[float]
) -> None:
    def metric(trial: int, units: int) -> float:
        return values[(trial * 5 + units) % len(values)]

    config = searcher(
        "async_halving",
        num_rungs=num_rungs,
        divisor=divisor,
        max_trials=trials,
        max_length=1000,
        max_concurrent_trials=concurrent,
        stop_once=stop_once,
    )
    rungs = [1000 // divisor**k for k in reversed(range(num_rungs))]
    assert preview(config, metric) == as_restated(trials, rungs, divisor, concurrent, stop_once, metric)


# Errors


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (None, r"searcher=None, but it must be a dictionary .* Write \{\"name\": \"adaptive_asha\""),
        ({}, r"name=None, but it must be one of 'single', 'random', 'grid', 'async_halving', 'adapt"),
        ({"name": "adaptive_sha"}, r"name='adaptive_sha', but .*; did you mean 'adaptive_asha'\?"),
        ({**ASHA, "divisors": 3}, r"'async_halving' has no field 'divisors', but only 'divisor', .*did you mean 'div"),
        ({**ASHA, "divisor": 1}, r"divisor=1, but it must be a number of at least 2"),
        ({**ASHA, "num_rungs": 0}, r"num_rungs=0, but it must be an integer of at least 1"),
        ({**ASHA, "max_trials": 0}, r"max_trials=0, but it must be an integer of at least 1"),
        ({**ASHA, "max_length": 0}, r"max_length=0, but it must be an integer of at least 1"),
        ({**ASHA, "max_length": {"batches": 0}}, r"max_length\.batches=0, but it must be"),
        ({**ASHA, "max_length": {"steps": 9}}, r"max_length has no field 'steps', but only 'batches', 'epochs', 'rec"),
        ({**ASHA, "max_length": {"batches": 9, "epochs": 1}}, r"max_length is \{.*\}, but has one unit"),
        ({**ASHA, "max_time": 9}, r"has max_length and max_time, but must say once how long"),
        ({**ASHA, "stop_once": "yes"}, r"stop_once is 'yes', but must be true or false"),
        ({**ASHA, "max_concurrent_trials": -1}, r"max_concurrent_trials=-1, but it must be an integer, or 0"),
        (searcher("adaptive_asha", max_length=9), r"'adaptive_asha' lacks 'max_trials'\. Add what is missing"),
        (searcher("single"), r"'single' has neither max_length nor max_time"),
        (searcher("grid", max_length=9), r"'grid' lacks 'hyperparameters'"),
        (searcher("grid", max_length=9, hyperparameters={"lr": hp_uniform(0, 1)}), r"lr is hp_uniform\(0, 1\), which"),
        (searcher("grid", max_length=9, hyperparameters={"lr": {"type": "double"}}), r"lr has no count, but a grid"),
        (searcher("grid", max_length=9, hyperparameters={"lr": {"type": "dble"}}), r"'dble'.*did you mean 'double'"),
        (searcher("grid", max_length=9, hyperparameters={"n": {"type": "categorical", "vals": []}}), r"vals=\[\], but"),
        (searcher("grid", max_length=9, hyperparameters={"n": {"type": "categorical", "vals": 3}}), r"vals=3, but"),
        (searcher("grid", max_length=9, hyperparameters={"n": {"type": "int", "count": 2, "minval": 3, "maxval": 3}}),
         r"n has minval 3 and maxval 3, but the first must be smaller"),
        (searcher("pbt", population_size=0, num_rounds=1, length_per_round=1, **REPLACE_HALF), r"population_size=0"),
        (searcher("pbt", population_size=2, num_rounds=1, length_per_round=1,
                  replace_function={"truncate_fraction": 0.7}), r"truncate_fraction=0\.7, but it must be a number"),
        (searcher("pbt", population_size=2, num_rounds=1, length_per_round=1, replace_function=0.5),
         r"replace_function of pbt is 0\.5, but must be a dictionary with 'truncate_fraction'"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_says_what_is_wrong(config: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        preview(config)
