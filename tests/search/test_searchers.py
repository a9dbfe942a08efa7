"""Grid search, random search and patience keep the contract, and give the trials they promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hopyard.errors import SpaceError, UsageError
from hopyard.search import (
    Create,
    GridSearcher,
    Operation,
    Patience,
    RandomSearcher,
    Searcher,
    Stop,
    Train,
    grid,
    hp_choice,
    hp_int,
    hp_loguniform,
    hp_qloguniform,
)
from hopyard.search.points import key_of
from hopyard.search.testing import SearcherTests, play

SPACE: dict[str, Any] = {"width": hp_choice([32, 64, 128]), "depth": hp_int(1, 3)}
LARGE: dict[str, Any] = {"lr": hp_loguniform(-4, -1), "width": hp_choice([32, 64, 128])}


class TestGridSearcher(SearcherTests):
    num_epochs = 3

    def searcher(self) -> Searcher:
        return GridSearcher(SPACE, num_epochs=3)


class TestRandomSearcher(SearcherTests):
    num_epochs = 4

    def searcher(self) -> Searcher:
        return RandomSearcher(LARGE, num_models=7, num_epochs=4, seed=1)


class TestPatience(SearcherTests):
    num_epochs = 6

    def searcher(self) -> Searcher:
        return Patience(RandomSearcher(LARGE, num_models=5, num_epochs=6), patience=2)


def params_of(searcher: Searcher) -> list[dict[str, Any]]:
    return [dict(operation.params) for operation in searcher.start() if isinstance(operation, Create)]


def test_a_grid_search_tries_every_point_once() -> None:
    played = play(GridSearcher(SPACE, num_epochs=2), 2)
    assert list(played.params.values()) == grid(SPACE)
    assert set(played.ends.values()) == {"completed"}
    assert set(played.epochs.values()) == {2}


def test_initial_points_come_first_and_are_not_tried_again() -> None:
    first = {"width": 64, "depth": 3}
    for searcher in (GridSearcher(SPACE, 1, [first]), RandomSearcher(SPACE, 9, 1, initial_params=[first])):
        tried = params_of(searcher)
        assert tried[0] == first
        assert len({key_of(point) for point in tried}) == len(tried) == 9


def test_initial_points_are_copied_with_numpy_values_as_python_ones() -> None:
    first = {"width": np.int64(64), "depth": 3}
    searcher = RandomSearcher(SPACE, 1, 1, initial_params=[first])
    first["depth"] = 1
    assert params_of(searcher) == [{"width": 64, "depth": 3}]
    assert type(params_of(searcher)[0]["width"]) is int


def test_the_same_seed_gives_the_same_trials_and_another_seed_others() -> None:
    first, second, other = (params_of(RandomSearcher(LARGE, 16, 1, seed)) for seed in (0, 0, 1))
    assert first == second
    assert not any(point in first for point in other)


def test_more_models_give_the_same_trials_and_more() -> None:
    for space in (SPACE, LARGE):
        assert params_of(RandomSearcher(space, 9, 1))[:4] == params_of(RandomSearcher(space, 4, 1))


def test_a_small_space_is_drawn_without_repetition_down_to_its_last_point() -> None:
    tried = params_of(RandomSearcher(SPACE, 9, 1, seed=3))
    assert {key_of(point) for point in tried} == {key_of(point) for point in grid(SPACE)}


def test_points_that_are_hardly_ever_drawn_are_found_too() -> None:
    space = {"x": hp_choice([0, hp_qloguniform(0, 3, 1)])}
    assert len({key_of(point) for point in params_of(RandomSearcher(space, 1001, 1))}) == 1001


def test_more_models_than_points_are_refused_with_their_number() -> None:
    with pytest.raises(
        SpaceError, match=r"num_models=10, but the search space has only 9 different points\. Write"
    ):
        RandomSearcher(SPACE, 10, 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"num_models": 0},
            r"num_models is 0, but must be a whole number of at least 1\. Write num_models=1",
        ),
        ({"num_epochs": 2.5}, r"num_epochs is 2\.5, but must be a whole number of at least 1"),
        ({"num_epochs": True}, r"num_epochs is True, but must be a whole number"),
        ({"space": {}}, r"the search space is empty"),
        (
            {"initial_params": {"width": 32}},
            r"initial_params is \{'width': 32\}, but must be a list of points",
        ),
        ({"initial_params": [{"width": 32}]}, r"initial_params\[0\]: the point lacks 'depth'"),
        (
            {"num_models": 1, "initial_params": [{"width": 32, "depth": 1}, {"width": 32, "depth": 2}]},
            r"initial_params has 2 points, but num_models=1 trials .* Write num_models=2 or more",
        ),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        RandomSearcher(**{"space": SPACE, "num_models": 2, "num_epochs": 1, **arguments})


# Patience


def stalls_after(best_epoch: int) -> Any:
    return lambda trial, epoch: abs(epoch - best_epoch) + 1.0


def test_a_trial_is_stopped_after_as_many_epochs_without_improvement() -> None:
    searcher = Patience(GridSearcher({"a": 1}, num_epochs=10), patience=3)
    played = play(searcher, 10, stalls_after(4))
    assert played.epochs == {0: 7}
    assert played.ends == {0: "stopped"}


def test_a_trial_that_improves_in_time_goes_on() -> None:
    values = [5.0, 6.0, 4.0, 4.0, 3.0, 3.0]
    played = play(Patience(GridSearcher({"a": 1}, 6), patience=2), 6, lambda trial, epoch: values[epoch - 1])
    assert played.ends == {0: "completed"}


def test_a_value_that_is_not_a_number_is_no_improvement() -> None:
    played = play(Patience(GridSearcher({"a": 1}, 6), patience=2), 6, lambda trial, epoch: math.nan)
    assert played.epochs == {0: 3}


def test_a_trial_at_its_end_completes_rather_than_stops() -> None:
    played = play(Patience(GridSearcher({"a": 1}, num_epochs=4), patience=3), 4, stalls_after(1))
    assert played.ends == {0: "completed"}


def test_each_trial_has_its_own_patience() -> None:
    searcher = Patience(GridSearcher({"a": hp_choice([1, 2])}, 8), patience=2)
    played = play(searcher, 8, lambda trial, epoch: 1.0 if trial else -epoch, order_seed=5)
    assert played.epochs == {0: 8, 1: 3}


class Extending(Searcher):
    """Lets its trial train one more epoch after each."""

    def start(self) -> list[Operation]:
        return [Create(0, {}), Train(0, 2)]

    def validated(self, trial: int, epoch: int, value: float) -> list[Operation]:
        return [Train(trial, epoch + 2)]

    def exited(self, trial: int, reason: str) -> list[Operation]:
        return []


def test_a_stopped_trial_is_not_given_more_epochs() -> None:
    searcher = Patience(Extending(), patience=1)
    searcher.start()
    assert searcher.validated(0, 1, 1.0) == [Train(0, 3)]
    assert searcher.validated(0, 2, 1.0) == [Stop(0)]


def test_a_patience_that_cannot_be_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"patience is 0, but must be a whole number of at least 1\. Write patience=1"
    ):
        Patience(GridSearcher(SPACE, 1), patience=0)
