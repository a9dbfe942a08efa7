"""Trials are stopped at the ends of epochs, whatever searcher lets them train, and it hears of its own targets only."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hopyard.errors import UsageError
from hopyard.search import (
    Create,
    EpochByEpoch,
    FullLength,
    InVirtualTime,
    ListPoints,
    MedianStopping,
    Operation,
    Patience,
    RandomPoints,
    Searcher,
    Stop,
    Train,
    hp_uniform,
)
from hopyard.search.testing import Metric, Played, SearcherTests, play


def full(num_models: int, visits: int) -> FullLength:
    return FullLength(RandomPoints({"x": hp_uniform(0, 1)}), num_models, visits)


class TestPatience(SearcherTests):
    visits = 24
    extension = (8, 30)

    def searcher(self) -> Searcher:
        return Patience(full(5, 24), 2, 4)


class TestMedianStopping(SearcherTests):
    visits = 24
    extension = (12, 30)

    def searcher(self) -> Searcher:
        return MedianStopping(full(9, 24), 4)


class TestBothAroundEachOther(SearcherTests):
    visits = 22  # an epoch is cut short by the target
    extension = (8, 30)

    def searcher(self) -> Searcher:
        return Patience(MedianStopping(full(6, 22), 4), 1, 4)


class Halving(Searcher):
    """Six trials wait at 6 and 14 of 20 visits for all the others, and the better half of them goes on, with a copy of
    the best in the place of the worst at 14."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.level = 0
        self.out: set[int] = set()
        self.values: dict[int, float] = {}

    def start(self) -> list[Operation]:
        self.out = set(range(6))
        return [op for trial in range(6) for op in (Create(trial, {"x": trial}), Train(trial, 6))]

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        self.told.append((trial, visits, value))
        self.out.discard(trial)
        self.values[trial] = value
        return self.decided()

    def exited(self, trial: int) -> list[Operation]:
        self.told.append((trial, "exited"))
        self.out.discard(trial)
        self.values.pop(trial, None)
        return self.decided()

    def decided(self) -> list[Operation]:
        if self.out:
            return []
        ranked = sorted(self.values, key=lambda trial: (self.values[trial], trial))
        if not ranked:
            return []
        self.values, self.level = {}, self.level + 1
        if self.level == 3:
            return [Stop(trial) for trial in ranked]
        visits = (14, 20)[self.level - 1]
        good, bad = ranked[: (len(ranked) + 1) // 2], ranked[(len(ranked) + 1) // 2 :]
        operations: list[Operation] = []
        if self.level == 2:
            operations.append(Create(6, {"x": 6}, source=good[0]))
            good.append(6)
        self.out = set(good)
        return [*operations, *(Train(trial, visits) for trial in good), *map(Stop, bad)]


class TestHalving(SearcherTests):
    visits = 20

    def searcher(self) -> Searcher:
        return Halving()


class TestPatienceAroundHalving(SearcherTests):
    visits = 20

    def searcher(self) -> Searcher:
        return Patience(Halving(), 1, 4)


class TestMedianAroundHalving(SearcherTests):
    visits = 20

    def searcher(self) -> Searcher:
        return MedianStopping(Halving(), 5, min_trials=1)


class Never(EpochByEpoch):
    def stops(self, trial: int, visits: int, value: float) -> bool:
        return False


def test_the_searcher_hears_of_its_own_targets_only() -> None:
    alone, within = Halving(), Halving()
    direct, around = play(alone, 20), play(Never(within, 4), 20)
    assert within.told == alone.told
    assert around.ends == direct.ends
    assert around.visits == direct.visits
    reports = [call[2] for call in around.calls if call[:2] == ("validated", 0)]
    assert reports == [4, 6, 8, 12, 14, 16, 20]


def one(visits: int) -> FullLength:
    return FullLength(ListPoints([{"a": 1}]), None, visits)


def epochs(values: list[float], epoch: int = 2) -> Metric:
    return lambda trial, visits: values[-(-visits // epoch) - 1]


@pytest.mark.parametrize(
    ("values", "trained", "end"),
    [
        ([5.0, 4.0, 3.0, 3.0, 4.0, 3.5, 1.0, 1.0], 12, "stopped"),
        ([5.0, 6.0, 4.0, 4.0, 3.9, 3.9, 4.0, 1.0], 16, "completed"),
        ([math.nan] * 8, 8, "stopped"),
        ([math.nan, math.nan, 1.0, 2.0, 2.0, 2.0, 0.0, 0.0], 12, "stopped"),
        ([1.0] * 8, 8, "stopped"),
        (
            [8.0, 7.0, 6.0, 5.0, 4.0, 5.0, 5.0, 5.0],
            16,
            "completed",
        ),  # stalled at its end: it has its full length
    ],
)
def test_a_trial_is_stopped_after_as_many_epochs_without_improvement(
    values: list[float], trained: int, end: str
) -> None:
    played = play(Patience(one(16), 3, 2), 16, epochs(values))
    assert (played.visits, played.ends) == ({0: trained}, {0: end})


def test_each_trial_has_its_own_patience() -> None:
    searcher = Patience(full(2, 16), 2, 2)
    played = play(searcher, 16, lambda trial, visits: 1.0 if trial else -visits, order_seed=5)
    assert played.visits == {0: 16, 1: 6}


def test_a_copy_has_its_own_patience() -> None:
    """It begins at 14 visits, with a new best."""
    played = play(Patience(Halving(), 1, 4), 20, lambda trial, visits: 0.0 if trial == 6 else 9 - visits)
    assert played.sources[6] == 0
    assert played.visits[6] == 20
    assert played.ends[6] == "completed"


def test_one_early_stopping_around_another_stops_too() -> None:
    played = play(Patience(Never(one(16), 2), 3, 2), 16, lambda trial, visits: 1.0)
    assert played.visits == {0: 8}


def test_a_stalled_trial_that_the_searcher_would_let_train_on_is_stopped_in_place() -> None:
    inner = Halving()
    played = play(Patience(inner, 1, 3), 20, lambda trial, visits: 10 * trial - visits if trial else -99.0)
    assert (played.visits[0], played.ends[0]) == (6, "stopped")
    assert [call for call in inner.told if call[0] == 0] == [(0, 6, -99.0), (0, "exited")]


def test_a_searcher_may_end_a_stalled_trial_itself() -> None:
    inner = Halving()
    play(Patience(inner, 1, 3), 20, lambda trial, visits: float(trial + (visits > 3)))
    assert inner.told[:6] == [(trial, 6, trial + 1.0) for trial in range(6)]
    assert sorted(inner.told[6:]) == [(0, "exited"), (1, "exited"), (2, "exited")]


def test_an_extended_search_lets_completed_trials_train_on_under_the_same_patience() -> None:
    values = [3.0, 2.0, 1.0, 2.0, 2.0, 0.0]
    played = play(Patience(one(8), 2, 2), 8, epochs(values), extensions={4: (1, 12)})
    assert (played.visits, played.ends) == ({0: 10}, {0: "stopped"})


def reference_medians(played: Played, epoch: int, grace: int, least: int) -> dict[int, int]:
    """The rule, from all values: after which visits a trial is stopped."""
    values: dict[int, list[float]] = {}
    stopped: dict[int, int] = {}
    for name, *arguments in played.calls:
        if name != "validated":
            continue
        trial, visits, value = arguments
        of = values.setdefault(trial, [])
        of.append(value)
        number = visits // epoch
        means = sorted(
            sum(other[:number]) / number for t, other in values.items() if t != trial and len(other) >= number
        )
        if number > grace and len(means) >= least:
            n = len(means)
            median = (means[(n - 1) // 2] + means[n // 2]) / 2
            if min(of) > median:
                stopped.setdefault(trial, visits)
    return stopped


@pytest.mark.parametrize("seed", range(5))
def test_trials_worse_than_the_median_of_the_others_means_are_stopped(seed: int) -> None:
    played = play(
        MedianStopping(full(30, 24), 4, grace_epochs=2, min_trials=4),
        24,
        lambda trial, visits: (trial * 37 % 30) + 8.0 / visits,
        order_seed=seed,
    )
    stopped = {trial: played.visits[trial] for trial, end in played.ends.items() if end == "stopped"}
    expected = reference_medians(played, 4, 2, 4)
    assert stopped == {trial: visits for trial, visits in expected.items() if visits < 24}
    assert 5 < len(stopped) < 25
    assert min(stopped.values()) == 12  # after two epochs of grace


def test_the_best_trial_and_ties_are_never_stopped_by_the_median() -> None:
    for metric in (
        lambda trial, visits: 1.0,
        lambda trial, visits: math.inf,
        lambda trial, visits: -math.inf,
    ):
        played = play(MedianStopping(full(10, 8), 2), 8, metric)
        assert set(played.ends.values()) == {"completed"}


def test_the_median_depends_on_others_so_a_reproducible_run_puts_it_in_virtual_time() -> None:
    assert Patience(full(3, 8), 2, 2).independent
    assert not MedianStopping(full(3, 8), 2).independent
    played = [
        play(
            InVirtualTime(MedianStopping(full(20, 12), 2)),
            12,
            lambda trial, visits: trial * 7 % 20 + 1 / visits,
            order_seed=seed,
        )
        for seed in range(4)
    ]
    assert all(other.visits == played[0].visits for other in played)
    assert "stopped" in played[0].ends.values()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Patience(one(4), 0, 2),
            r"patience=0, but it must be .* at least 1",
        ),
        (lambda: Patience(one(4), 1, 0), r"epoch=0, but it must be an integer"),
        (lambda: MedianStopping(one(4), 2, grace_epochs=0), r"grace_epochs=0, but it must be an integer"),
        (
            lambda: MedianStopping(one(4), 2, min_trials=-1),
            r"min_trials=-1, but it must be an integer",
        ),
    ],
)
def test_early_stopping_that_cannot_be_is_refused(make: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()
