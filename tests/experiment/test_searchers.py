"""The searchers that configurations stand for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hopyard.experiment.config import complete
from hopyard.experiment.hyperparameters import search_space
from hopyard.experiment.searchers import SEARCHERS, length_of, make_searcher
from hopyard.search import preview
from hopyard.search.base import Create, Searcher
from hopyard.search.preview import _played
from hopyard.search.replicates import Replicated

COMMON = {"metric": "loss"}
HYPERPARAMETERS = {
    "lr": {"type": "log", "minval": -4, "maxval": -1, "count": 3},
    "nested": {"width": {"type": "categorical", "vals": [32, 64]}},
    "constant": 5,
}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "single", **COMMON, "max_length": {"epochs": 9}}, {"constant": 5}),
    ({"name": "random", **COMMON, "max_trials": 7, "max_length": {"epochs": 9}}, HYPERPARAMETERS),
    ({"name": "random", **COMMON, "max_trials": 1, "max_length": {"epochs": 9}}, {}),
    ({"name": "random", **COMMON, "max_trials": 7, "max_length": {"epochs": 9}, "max_concurrent_trials": 0},
     HYPERPARAMETERS),
    ({"name": "grid", **COMMON, "max_length": {"epochs": 9}}, HYPERPARAMETERS),
    ({"name": "grid", **COMMON, "max_length": {"epochs": 9}}, {"constant": 5}),
    ({"name": "grid", **COMMON, "max_length": {"epochs": 9}}, {}),
    ({"name": "async_halving", **COMMON, "max_trials": 12, "num_rungs": 3, "divisor": 3, "max_length": {"batches": 9}},
     HYPERPARAMETERS),
    ({"name": "async_halving", **COMMON, "max_trials": 12, "num_rungs": 3, "divisor": 3, "max_length": {"batches": 9},
      "stop_once": True, "max_concurrent_trials": 2}, HYPERPARAMETERS),
    ({"name": "adaptive_asha", **COMMON, "max_trials": 16, "max_length": {"records": 64}}, HYPERPARAMETERS),
    ({"name": "adaptive_asha", **COMMON, "max_trials": 16, "max_length": {"records": 64}, "mode": "conservative",
      "max_rungs": 3, "divisor": 2}, HYPERPARAMETERS),
    ({"name": "adaptive_asha", **COMMON, "max_trials": 20, "max_length": {"records": 64}, "bracket_rungs": [2, 1]},
     HYPERPARAMETERS),
    ({"name": "single", **COMMON, "max_length": {"epochs": 9}, "replicates": 3}, {"constant": 5}),
    ({"name": "grid", **COMMON, "max_length": {"epochs": 9}, "replicates": 2}, HYPERPARAMETERS),
    ({"name": "adaptive_asha", **COMMON, "max_trials": 16, "max_length": {"records": 64}, "replicates": 3},
     HYPERPARAMETERS),
    ({"name": "async_halving", **COMMON, "max_trials": 12, "num_rungs": 3, "divisor": 3, "max_length": {"batches": 9},
      "max_concurrent_trials": 9, "replicates": 4}, HYPERPARAMETERS),
    ({"name": "pbt", **COMMON, "population_size": 4, "num_rounds": 3, "length_per_round": {"batches": 5},
      "replace_function": {"truncate_fraction": 0.5}, "explore_function": {"perturb_factor": 0.1}}, HYPERPARAMETERS),
]  # fmt: skip


def made(searcher: dict[str, Any], hyperparameters: dict[str, Any], seed: int = 0) -> Searcher:
    config = complete({"entrypoint": "m:T", "hyperparameters": hyperparameters, "searcher": searcher})
    length = length_of(config.searcher)
    assert length is not None
    (visits,) = length.values()
    points = make_searcher(config.searcher, config.hyperparameters, visits, seed)
    replicates = config.searcher.replicates
    return points if replicates == 1 else Replicated(points, replicates)


@pytest.mark.parametrize(("searcher", "hyperparameters"), CASES)
def test_a_run_trains_what_the_preview_of_the_same_fields_says(
    searcher: dict[str, Any], hyperparameters: dict[str, Any]
) -> None:
    def metric(trial: int, units: int) -> float:
        return (trial * 7 % 11) + 1 / units

    config = complete({"entrypoint": "m:T", "hyperparameters": hyperparameters, "searcher": searcher})
    fields = config.searcher.model_dump(exclude_none=True)
    if searcher["name"] == "grid":
        fields["hyperparameters"] = search_space(config.hyperparameters, grid=True) or {"constant": 5}
    assert Counter(_played(made(searcher, hyperparameters), metric)) == Counter(preview(fields, metric))


def test_every_searcher_has_a_case() -> None:
    assert {searcher["name"] for searcher, _ in CASES} == set(SEARCHERS)


@pytest.mark.parametrize(("searcher", "hyperparameters"), CASES)
def test_points_follow_from_the_seed(searcher: dict[str, Any], hyperparameters: dict[str, Any]) -> None:
    def points(seed: int) -> list[Any]:
        return [
            each.params for each in made(searcher, hyperparameters, seed).start() if isinstance(each, Create)
        ]

    assert points(3) == points(3)
    drawn = searcher["name"] not in ("single", "grid") and hyperparameters
    assert (points(3) != points(4)) == bool(drawn)
    assert all(point["constant"] == 5 for point in points(3) if hyperparameters)


def test_a_length_is_in_one_unit_or_left_to_the_trial() -> None:
    pbt = complete(
        {"entrypoint": "m:T", "hyperparameters": HYPERPARAMETERS, "searcher": CASES[-1][0]}
    ).searcher
    assert length_of(pbt) == {"batches": 5}
    single = complete({"entrypoint": "m:main", "searcher": {"name": "single", **COMMON}}).searcher
    assert length_of(single) is None
