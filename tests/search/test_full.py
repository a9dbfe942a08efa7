"""Searches whose trials all train to the end: how many, how many at once, and on after an extension."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.errors import SettingsError, UsageError
from hopyard.search import (
    Create,
    FullLength,
    GridPoints,
    ListPoints,
    Proposer,
    RandomPoints,
    Searcher,
    Stop,
    Train,
    hp_choice,
    hp_int,
    hp_loguniform,
)
from hopyard.search.points import grid
from hopyard.search.testing import ProposerTests, SearcherTests, play

SPACE: dict[str, Any] = {"width": hp_choice([32, 64, 128]), "depth": hp_int(1, 3)}
LARGE: dict[str, Any] = {"lr": hp_loguniform(-4, -1), "width": hp_choice([32, 64, 128])}
LINE: dict[str, Any] = {"x": hp_int(0, 10**9)}


class Learning(Proposer):
    """Proposes numbers next to the best so far, up to a thousand of them; insists on what it was promised."""

    learns = True

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.best = (float("inf"), 0)
        self.seen = {0}
        self.open: set[int] = set()
        self.next = 0

    def propose(self, trial: int) -> dict[str, Any] | None:
        assert trial == self.next
        self.next += 1
        self.open.add(trial)
        x = self.best[1]
        while x in self.seen:
            x += 1
        self.seen.add(x)
        return {"x": x}

    def observed(self, trial: int, visits: int, value: float) -> None:
        assert trial in self.open
        self.told.append((trial, visits, value))
        self.best = min(self.best, (value, 10 * trial))

    def ended(self, trial: int) -> None:
        self.open.remove(trial)
        self.told.append((trial, "ended"))


class TestLearning(ProposerTests):
    space = LINE

    def proposer(self) -> Proposer:
        return Learning()


class TestGrid(SearcherTests):
    visits = 3
    extension = (9, 5)

    def searcher(self) -> Searcher:
        return FullLength(GridPoints(SPACE), None, 3)


class TestRandom(SearcherTests):
    visits = 8
    extension = (12, 11)

    def searcher(self) -> Searcher:
        return FullLength(RandomPoints(LARGE, seed=1), 7, 8)


class TestRandomFewAtOnce(TestRandom):
    def searcher(self) -> Searcher:
        return FullLength(RandomPoints(LARGE, seed=1), 7, 8, max_concurrent=3)


class TestWithAProposerThatLearns(TestRandom):
    def searcher(self) -> Searcher:
        return FullLength(Learning(), 9, 8, 2)

    extension = (12, 11)


def test_a_grid_search_trains_every_point_to_the_end() -> None:
    played = play(FullLength(GridPoints(SPACE), None, 2), 2)
    assert list(played.params.values()) == grid(SPACE)
    assert set(played.ends.values()) == {"completed"}
    assert set(played.visits.values()) == {2}


def test_trials_without_a_limit_begin_at_once_and_each_ends_on_its_own() -> None:
    searcher = FullLength(ListPoints([{"a": 1}, {"a": 2}]), None, 4)
    assert searcher.independent
    assert searcher.start() == [Create(0, {"a": 1}), Train(0, 4), Create(1, {"a": 2}), Train(1, 4)]
    assert searcher.validated(1, 4, 0.5) == [Stop(1)]
    assert searcher.exited(0) == []


def most_at_once(searcher: FullLength, **how: Any) -> int:
    played = play(searcher, 8, **how)
    training = most = 0
    for call, answer in zip(played.calls, played.answers, strict=True):
        training += sum(isinstance(operation, Train) for operation in answer) - (
            call[0] in ("validated", "exited")
        )
        most = max(most, training)
    return most


@pytest.mark.parametrize(
    ("num_models", "max_concurrent", "most"), [(7, None, 7), (7, 3, 3), (7, 9, 7), (100, 1, 1)]
)
def test_as_many_trials_train_at_once_as_are_allowed(
    num_models: int, max_concurrent: int | None, most: int
) -> None:
    for failing in ((), {0, 2, 3}):
        searcher = FullLength(RandomPoints(LARGE), num_models, 8, max_concurrent)
        assert most_at_once(searcher, failing=failing, order_seed=1) == most


@pytest.mark.parametrize(("num_models", "most"), [(1, 1), (9, 3), (64, 16), (500, 16)])
def test_a_proposer_that_learns_is_not_asked_for_all_points_at_once(num_models: int, most: int) -> None:
    searcher = FullLength(Learning(), num_models, 8)
    assert not searcher.independent
    assert most_at_once(searcher) == most


def test_a_proposer_is_told_what_it_can_learn_from_before_it_is_asked_again() -> None:
    proposer = Learning()
    searcher = FullLength(proposer, 4, 8, 1)
    searcher.start()
    assert searcher.validated(0, 8, 0.5) == [Stop(0), Create(1, {"x": 2}), Train(1, 8)]
    assert searcher.exited(1) == [Create(2, {"x": 3}), Train(2, 8)]
    assert searcher.validated(2, 8, 0.25) == [Stop(2), Create(3, {"x": 20}), Train(3, 8)]
    assert proposer.told == [(0, 8, 0.5), (0, "ended"), (1, "ended"), (2, 8, 0.25), (2, "ended")]


class Ends(ListPoints):
    """Has fewer points than it allows trials, as a proposer may that finds its points by trying."""

    def check(self, num_models: int) -> None:
        pass


def test_a_search_ends_where_its_proposer_does() -> None:
    played = play(FullLength(Ends([{"a": 1}, {"a": 2}]), 5, 4, 1), 4)
    assert len(played.params) == 2


def test_more_trials_are_the_same_trials_and_more() -> None:
    for order_seed, moment in ((None, 0), (None, 2), (1, 4)):
        extended = play(
            FullLength(RandomPoints(LARGE), 4, 8), 8, order_seed=order_seed, extensions={moment: (7, 8)}
        )
        assert extended.params == play(FullLength(RandomPoints(LARGE), 7, 8), 8).params
        assert set(extended.visits.values()) == {8}


def test_longer_training_lets_all_but_failed_trials_train_on() -> None:
    searcher = FullLength(ListPoints([{"a": a} for a in range(4)]), None, 4)
    searcher.start()
    searcher.validated(2, 4, 0.5)
    searcher.exited(1)
    searcher.validated(0, 4, 0.5)
    assert searcher.extend(None, 6) == [Train(0, 6), Train(2, 6)]
    assert searcher.validated(3, 4, 0.5) == [Train(3, 6)]  # it had been under way
    assert searcher.validated(0, 6, 0.5) == [Stop(0)]
    assert searcher.extend(4, 7) == [Train(0, 7)]
    assert searcher.validated(2, 6, 0.5) == [Train(2, 7)]


def test_trials_that_train_on_keep_to_the_limit_too() -> None:
    searcher = FullLength(RandomPoints(LARGE), 5, 4, 2)
    play(searcher, 4)
    assert searcher.extend(6, 8) == [Train(0, 8), Train(1, 8)]
    assert searcher.validated(0, 8, 0.5) == [Stop(0), Train(2, 8)]
    assert searcher.extend(6, 9) == []
    assert searcher.validated(1, 8, 0.5) == [Train(1, 9)]
    assert searcher.exited(2) == [Train(0, 9)]
    assert searcher.exited(0) == [Train(3, 9)]


def test_a_trial_that_was_to_train_on_may_be_stopped_by_a_user_before() -> None:
    searcher = FullLength(RandomPoints(LARGE), 3, 4, 1)
    play(searcher, 4)
    assert searcher.extend(4, 8) == [Train(0, 8)]
    assert searcher.exited(1) == []
    assert searcher.validated(0, 8, 0.5) == [Stop(0), Train(2, 8)]
    assert searcher.extend(4, 9) == []
    assert searcher.validated(2, 8, 0.5) == [Train(2, 9)]
    assert searcher.exited(2) == [Train(0, 9)]


def test_what_a_proposer_learned_of_ended_trials_stays() -> None:
    proposer = Learning()
    searcher = FullLength(proposer, 2, 4, 1)
    play(searcher, 4)
    told = list(proposer.told)
    searcher.extend(2, 8)
    searcher.validated(0, 8, 0.1)
    searcher.validated(1, 8, 0.1)
    assert proposer.told == told


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        ((3, 8), r"num_models would be 3, but the run has begun with 4, and a budget only grows\. Give as much"),
        ((4, 7), r"the visits of a trial would be 7, but the run has begun with 8"),
        ((10, 8), r"num_models=10, but the search space has only 9 different points\. Write num_models=9"),
    ],
)  # fmt: skip
def test_an_extension_that_cannot_be_changes_nothing(budget: tuple[int, int], text: str) -> None:
    searcher = FullLength(RandomPoints(SPACE), 4, 8, 1)
    searcher.start()
    with pytest.raises(SettingsError, match=text):
        searcher.extend(*budget)
    assert searcher.validated(0, 8, 0.5)[0] == Stop(0)
    assert searcher.extend(4, 8) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_models": 0}, r"num_models=0, but it must be an integer of at least 1"),
        ({"num_models": 10}, r"num_models=10, but the search space has only 9 different points\. Write"),
        ({"visits": 2.5}, r"visits=2\.5, but it must be an integer of at least 1"),
        ({"max_concurrent": 0}, r"max_concurrent_trials=0, but it must be an integer of at least 1"),
        ({"num_models": None}, r"num_models is None, .* but these points are drawn, without end\. Write num_models=16"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        FullLength(**{"proposer": RandomPoints(SPACE), "num_models": 2, "visits": 1, **arguments})


def test_ten_thousand_trials_are_played_through() -> None:
    searcher = FullLength(RandomPoints(LARGE), 10_000, 8, 100)
    assert len(play(searcher, 8, order_seed=0).ends) == 10_000
