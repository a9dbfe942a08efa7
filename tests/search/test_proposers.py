"""Points are different, of their space, the same for the same seed; a Sobol sequence fills the space evenly."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest

from hopyard.errors import MissingExtraError, SpaceError, UsageError
from hopyard.search import (
    GridPoints,
    ListPoints,
    Proposer,
    QuasiRandomPoints,
    RandomPoints,
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_uniform,
)
from hopyard.search.points import grid, key_of
from hopyard.search.testing import ProposerTests

SPACE: dict[str, Any] = {"width": hp_choice([32, 64, 128]), "depth": hp_int(1, 3)}
LARGE: dict[str, Any] = {
    "lr": hp_loguniform(-4, -1),
    "width": hp_choice([32, 64, 128]),
    "optimizer": hp_choice([{"name": "sgd", "momentum": hp_uniform(0, 1)}, {"name": "adam"}]),
}
SHARED: dict[str, Any] = {"n": hp_choice([hp_int(1, 9), hp_int(5, 12)])}


class TestListPoints(ProposerTests):
    space = SPACE
    num_points = 2

    def proposer(self) -> Proposer:
        return ListPoints([{"width": 32, "depth": 1}, {"width": 64, "depth": 1}])


class TestGridPoints(ProposerTests):
    space = SPACE
    num_points = 9

    def proposer(self) -> Proposer:
        return GridPoints(SPACE, [{"width": 128, "depth": 2}])


class TestRandomPoints(ProposerTests):
    space = LARGE

    def proposer(self) -> Proposer:
        return self.seeded(1)

    def seeded(self, seed: int) -> Proposer:
        return RandomPoints(LARGE, seed)


class TestRandomPointsOfASmallSpace(ProposerTests):
    space = SPACE
    num_points = 9

    def proposer(self) -> Proposer:
        return self.seeded(3)

    def seeded(self, seed: int) -> Proposer:
        return RandomPoints(SPACE, seed, [{"width": 128, "depth": 2}])


class TestQuasiRandomPoints(ProposerTests):
    space = LARGE

    def proposer(self) -> Proposer:
        return self.seeded(-5)

    def seeded(self, seed: int) -> Proposer:
        return QuasiRandomPoints(LARGE, seed)


class TestQuasiRandomPointsOfASmallSpace(ProposerTests):
    space = SHARED
    num_points = 12

    def proposer(self) -> Proposer:
        return self.seeded(0)

    def seeded(self, seed: int) -> Proposer:
        return QuasiRandomPoints(SHARED, seed)


def proposed(proposer: Proposer, count: int) -> list[dict[str, Any]]:
    points = (proposer.propose(trial) for trial in range(count))
    return [point for point in points if point is not None]


def test_a_grid_has_every_point_once() -> None:
    assert proposed(GridPoints(SPACE), 20) == grid(SPACE)


@pytest.mark.parametrize("kind", [GridPoints, RandomPoints, QuasiRandomPoints])
def test_initial_points_come_first_and_are_not_proposed_again(kind: Any) -> None:
    first = [{"width": 64, "depth": 3}, {"width": 32, "depth": 2}]
    found = proposed(kind(SPACE, initial_params=[*first, first[0]]), 10)
    assert found[:2] == first
    assert {key_of(point) for point in found} == {key_of(point) for point in grid(SPACE)}
    assert len(found) == 9


def test_initial_points_are_copied_with_numpy_values_as_python_ones() -> None:
    first = {"width": np.int64(64), "depth": 3}
    proposer = RandomPoints(SPACE, 1, initial_params=[first])
    first["depth"] = 1
    point = proposer.propose(0)
    assert point == {"width": 64, "depth": 3}
    assert type(point["width"]) is int


@pytest.mark.parametrize("kind", [RandomPoints, QuasiRandomPoints])
def test_another_seed_gives_other_points(kind: Any) -> None:
    first, same, other = (proposed(kind(LARGE, seed), 16) for seed in (0, 0, 1))
    assert first == same
    assert not any(point in first for point in other)


def test_points_that_are_hardly_ever_drawn_are_found_too() -> None:
    space = {"x": hp_choice([0, hp_qloguniform(0, 3, 1)])}
    assert len({key_of(point) for point in proposed(RandomPoints(space), 2000)}) == 1001


def test_a_dimension_without_room_for_many_numbers_runs_out() -> None:
    assert len(proposed(RandomPoints({"x": hp_uniform(0, 5e-324)}), 10)) <= 2


def unit(points: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[point[name] for name in "abc"] for point in points])


CUBE = {name: hp_uniform(0, 1) for name in "abc"}


@pytest.mark.parametrize("seed", range(5))
def test_a_sobol_sequence_has_a_point_in_every_interval_and_fills_every_square_evenly(seed: int) -> None:
    """Scrambled or not, 2**k points make a net in each coordinate, and nearly so in two."""
    found = unit(proposed(QuasiRandomPoints(CUBE, seed), 64))
    assert (np.sort(np.floor(found * 64), axis=0) == np.arange(64)[:, None]).all()
    drawn = unit(proposed(RandomPoints(CUBE, seed), 64))
    for pair in itertools.combinations(range(3), 2):
        uneven, random_uneven = (
            np.abs(np.bincount((points[:, pair] * 4).astype(int) @ (4, 1), minlength=16) - 4).sum()
            for points in (found, drawn)
        )
        assert uneven < random_uneven


def test_the_dimensions_of_every_option_are_filled_evenly() -> None:
    """Each has a coordinate of its own: of 128 points, 64 choose the first option, close to one in each bin."""
    space = {
        "a": hp_log(1, 100),
        "k": hp_choice([{"x": hp_uniform(0, 1)}, {"x": hp_uniform(0, 1), "y": hp_int(1, 8)}]),
    }
    found = proposed(QuasiRandomPoints(space, 2), 128)
    first, second = ([point["k"] for point in found if ("y" in point["k"]) == y] for y in (False, True))
    assert len(first) == len(second) == 64
    for branch in (first, second):
        counts, _ = np.histogram([point["x"] for point in branch], bins=8, range=(0, 1))
        assert (np.abs(counts - 8) <= 2).all()
    assert not np.array_equal([point["x"] for point in first], [point["x"] for point in second])
    assert (np.abs(np.bincount([point["y"] for point in second])[1:] - 8) <= 2).all()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: RandomPoints(SPACE).check(10),
            r"num_models=10, but the search space has only 9 different points\. Write num_models=9 or less",
        ),
        (
            lambda: ListPoints([{}]).check(2),
            r"num_models=2, but the search space has only 1 different point\.",
        ),
        (
            lambda: RandomPoints(SPACE).check(0),
            r"num_models=0, but it must be an integer of at least 1",
        ),
        (
            lambda: RandomPoints(LARGE).check(True),
            r"num_models=True, but it must be an integer of at least 1",
        ),
        (lambda: RandomPoints({}), r"the search space is empty"),
        (
            lambda: RandomPoints(SPACE, 0, {"width": 32}),  # type: ignore[arg-type]
            r"initial_params=\{'width': 32\}, but it must be a list of points",
        ),
        (lambda: RandomPoints(SPACE, 0, [{"width": 32}]), r"initial_params\[0\]: the point lacks 'depth'"),
        (
            lambda: QuasiRandomPoints(SPACE, 0, [{"width": 32, "depth": d} for d in (1, 2)]).check(1),
            r"initial_params has 2 points, but num_models=1 trials .* Write num_models=2 or more",
        ),
        (
            lambda: QuasiRandomPoints({"x": [hp_uniform(0, 1)] * 21_202}),
            r"has 21,202 dimensions, but a Sobol sequence has at most 21,201\. Use RandomSearch",
        ),
    ],
)
def test_what_cannot_be_proposed_is_refused(make: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


def test_many_models_of_a_space_with_repetitions_are_counted_without_building_it() -> None:
    """Options that share their points: the number of different ones is found, but no further than needed."""
    space = {"n": hp_choice([hp_int(1, 3), hp_int(2, 5)]), "m": hp_int(1, 10**9)}
    RandomPoints(space).check(100)
    with pytest.raises(SpaceError, match="only 5 different points"):
        RandomPoints({"n": space["n"]}).check(6)


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingExtraError, match=r"quasi-random search needs .*'scipy'.*hopyard\[search\]"):
        QuasiRandomPoints(SPACE)
