"""ASHA in both forms keeps its promises: who is promoted, how many train at once, and that it ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.at_once import most_at_once

from hopyard.errors import SettingsError, SpaceError, UsageError
from hopyard.search.asha import AdaptiveAsha, Asha
from hopyard.search.base import Create, Proposer, Searcher, Stop, Train
from hopyard.search.brackets import brackets, rungs_in_visits
from hopyard.search.proposers import ListPoints
from hopyard.search.testing import Played, SearcherTests, play, replay


def points(number: int) -> Proposer:
    return ListPoints([{"point": index} for index in range(number)])


def asha(number: int = 27, **how: Any) -> Searcher:
    return Asha(points(number), number, [1, 3, 9], **{"divisor": 3, "max_concurrent": 4, **how})


def adaptive(number: int = 30, max_concurrent: int = 6, available: int | None = None, **how: Any) -> Searcher:
    shares = brackets(number, 16, 4, mode="conservative", max_concurrent=max_concurrent)
    with_rungs = [(share, rungs_in_visits(share.num_rungs, 4, 16)) for share in shares]
    return AdaptiveAsha(points(available or number), with_rungs, 4, max_concurrent, **how)


class TestPromotion(SearcherTests):
    visits = 9
    extension = 40, 9

    def searcher(self) -> Searcher:
        return Asha(points(99), 27, [1, 3, 9], 3, 4)


class TestStopping(SearcherTests):
    visits = 9

    def searcher(self) -> Searcher:
        return asha(stop_once=True)


class TestAdaptive(SearcherTests):
    visits = 16

    def searcher(self) -> Searcher:
        return adaptive()


class TestAdaptiveStopping(SearcherTests):
    visits = 16
    extension = 50, 16

    def searcher(self) -> Searcher:
        return adaptive(max_concurrent=2, stop_once=True, available=99)


def by_visits(played: Played) -> dict[int, int]:
    return dict(Counter(played.visits.values()))


# Promotion


def constant(trial: int, visits: int) -> float:
    return 1.0


def test_a_result_promotes_at_most_one_trial_which_goes_on_from_where_it_waits() -> None:
    searcher = asha(max_concurrent=3)
    assert searcher.start() == [
        operation for trial in range(3) for operation in (Create(trial, {"point": trial}), Train(trial, 1))
    ]
    assert searcher.validated(0, 1, 0.3) == [Create(3, {"point": 3}), Train(3, 1)]
    assert searcher.validated(1, 1, 0.1) == [Create(4, {"point": 4}), Train(4, 1)]
    assert searcher.validated(2, 1, 0.2) == [Train(1, 3)]  # the third result: the best of three, which waited
    assert searcher.validated(3, 1, 0.05) == [Train(3, 3)]  # the best so far: at once
    assert searcher.validated(1, 3, 0.1) == [Create(5, {"point": 5}), Train(5, 1)]
    assert searcher.validated(3, 3, 0.05) == [Create(6, {"point": 6}), Train(6, 1)]


def test_of_equal_values_the_first_are_promoted() -> None:
    played = play(asha(12), 9, constant)
    assert [played.visits[trial] for trial in range(12)] == [9, 3, 3, 3, *[1] * 8]


def test_trials_that_can_no_longer_be_promoted_are_stopped_as_soon_as_nobody_comes_to_their_rung() -> None:
    searcher = Asha(points(4), 4, [1, 2], divisor=2, max_concurrent=4)
    searcher.start()
    assert searcher.validated(0, 1, 0.4) == []
    assert searcher.validated(1, 1, 0.3) == [Train(1, 2)]
    assert searcher.validated(2, 1, 0.2) == [Train(2, 2)]
    # Two of four were promoted, so the last result promotes only itself; nobody else can be any more.
    assert searcher.validated(3, 1, 0.9) == [Stop(0), Stop(3)]
    assert searcher.validated(1, 2, 0.3) == [Stop(1)]
    assert searcher.validated(2, 2, 0.2) == [Stop(2)]


def test_a_trial_that_fails_counts_as_the_worst_of_its_rung() -> None:
    searcher = Asha(points(9), 9, [1, 3], divisor=3, max_concurrent=3)
    searcher.start()
    assert searcher.exited(0) == [Create(3, {"point": 3}), Train(3, 1)]
    assert searcher.validated(1, 1, math.inf) == [Create(4, {"point": 4}), Train(4, 1)]
    assert searcher.validated(2, 1, 5.0) == [Train(2, 3)]  # one of three, of which one failed


def test_determineds_early_exit() -> None:
    """Its tables: values 0.01 to 0.12, the third trial fails on its way to the second rung, as if it were the worst."""
    played = play(
        Asha(points(12), 12, [10, 30, 90], 3, 3), 90, lambda trial, visits: trial / 100, failing={2: 10}
    )
    assert played.ends[2] == "exited"
    assert Train(2, 30) in played.operations
    assert list(played.visits.values()) == [90, 30, 10, 30, *[10] * 8]
    shares = brackets(5, 9, 3, max_rungs=2, max_concurrent=5)
    with_rungs = [(share, rungs_in_visits(share.num_rungs, 3, 9)) for share in shares]
    played = play(
        AdaptiveAsha(points(5), with_rungs, 3, 5), 9, lambda trial, visits: trial / 10, failing={1: 0}
    )
    assert list(played.visits.values()) == [9, 0, 3, 9, 9]


def test_a_trial_that_a_user_stopped_while_it_waited_is_not_promoted() -> None:
    searcher = Asha(points(6), 6, [1, 3], divisor=3, max_concurrent=3)
    searcher.start()
    searcher.validated(0, 1, 0.1)
    assert searcher.exited(0) == []  # it did not train: no slot is free
    searcher.validated(1, 1, 0.2)
    assert searcher.validated(2, 1, 0.3) == [Train(1, 3)]


# Stopping


def test_a_trial_of_the_stopping_form_trains_on_at_once_or_is_stopped() -> None:
    searcher = asha(stop_once=True, max_concurrent=2)
    searcher.start()
    assert searcher.validated(0, 1, 0.5) == [Train(0, 3)]  # the first always does
    assert searcher.validated(1, 1, 0.6) == [Stop(1), Create(2, {"point": 2}), Train(2, 1)]
    assert searcher.validated(2, 1, 0.4) == [Train(2, 3)]
    assert searcher.validated(0, 3, 0.5) == [Train(0, 9)]
    assert searcher.validated(2, 3, 0.5) == [
        Stop(2),
        Create(3, {"point": 3}),
        Train(3, 1),
    ]  # the later of equals
    assert searcher.validated(0, 9, 0.5) == [Stop(0), Create(4, {"point": 4}), Train(4, 1)]


@pytest.mark.parametrize("stop_once", [False, True])
def test_a_constant_metric_does_not_train_every_trial_to_the_end(stop_once: bool) -> None:
    """Determined's stopping form takes the later of equal values for the better one: 12 of 12."""
    expected = {1: 11, 9: 1} if stop_once else {1: 8, 3: 3, 9: 1}
    assert by_visits(play(asha(12, stop_once=stop_once), 9, constant)) == expected


def test_rungs_of_the_same_length_halve_twice_at_once() -> None:
    """As they do in Determined; ``rungs_in_visits`` makes none."""
    for stop_once in (False, True):
        twice = Asha(points(16), 16, [1, 1, 4], 2, 16, stop_once)
        once = Asha(points(16), 16, [1, 4], 4, 16, stop_once)
        played = play(twice, 4, constant)
        assert sum(visits == 4 for visits in played.visits.values()) <= 16 // 4
        assert by_visits(played) == by_visits(play(once, 4, constant))


def test_a_proposer_that_has_no_more_points_ends_the_search() -> None:
    class Few(Proposer):
        def propose(self, trial: int) -> dict[str, Any] | None:
            return {"point": trial} if trial < 5 else None

    for stop_once in (False, True):
        played = play(Asha(Few(), 100, [1, 2, 4], 2, 3, stop_once), 4, constant)
        assert len(played.params) == 5


def test_more_trials_than_points_are_refused() -> None:
    with pytest.raises(SpaceError, match="only 9 different points"):
        Asha(points(9), 10, [1, 4])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_models": 0}, r"num_models=0, but it must be an integer of at least 1"),
        ({"rungs": []}, r"rungs=\[\], but it must be ascending lengths, the last of them the full one\. Write rungs="),
        ({"rungs": [4, 1]}, r"rungs=\[4, 1\], but it must be ascending lengths"),
        ({"rungs": [0, 1]}, r"every one of rungs=0, but it must be an integer of at least 1"),
        ({"divisor": 1}, r"divisor=1, but it must be a number of at least 2"),
        ({"max_concurrent": -1}, r"max_concurrent_trials=-1, but it must be an integer, or 0 for the searcher's"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Asha(**{"proposer": points(9), "num_models": 9, "rungs": [1, 4], **arguments})


# Extension


def test_more_trials_are_compared_with_those_before() -> None:
    searcher = Asha(points(99), 3, [1, 3], divisor=3, max_concurrent=3)
    played = play(searcher, 3, lambda trial, visits: float(trial))
    assert played.visits == {0: 3, 1: 1, 2: 1}
    assert searcher.extend(5, 3) == [
        operation for trial in (3, 4) for operation in (Create(trial, {"point": trial}), Train(trial, 1))
    ]
    assert searcher.validated(3, 1, 9.0) == []
    assert searcher.validated(4, 1, -1.0) == [Train(4, 3), Stop(3)]  # one of the best floor(5 / 3)


@pytest.mark.parametrize(
    ("num_models", "visits", "text"),
    [
        (30, 18, r"extended to 30 trials of at most 18 visits .*, but ASHA began with 27 of at most 9, and can"),
        (26, 9, r"extended to 26 trials of at most 9 visits .*, but ASHA began with 27"),
        (100, 9, r"num_models=100, but .*only 27 different points"),
    ],
)  # fmt: skip
def test_other_extensions_are_refused(num_models: int, visits: int, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        asha().extend(num_models, visits)


# Concurrency


def test_no_more_brackets_train_at_once_than_trials_may() -> None:
    """Determined raises max_concurrent_trials to the number of brackets."""
    shares = brackets(100, 64, 4, mode="conservative", max_concurrent=2)
    assert len(shares) == 4
    with_rungs = [(share, rungs_in_visits(share.num_rungs, 4, 64)) for share in shares]
    played = play(AdaptiveAsha(points(100), with_rungs, 4, 2), 64)
    assert len(played.params) == 100
    assert most_at_once(played) == 2


def test_without_a_limit_enough_train_at_once_to_bring_one_to_the_top() -> None:
    assert most_at_once(play(asha(27, max_concurrent=0), 9)) == 9
    assert most_at_once(play(asha(5, max_concurrent=0), 9)) == 5


# Laws

RUNGS = st.lists(st.integers(1, 30), min_size=1, max_size=5).map(sorted)
VALUES = st.sampled_from([0.0, 1.0, 2.0, math.inf, -math.inf]) | st.floats(-9, 9)


@st.composite
def searches(draw: st.DrawFn) -> tuple[Callable[[], Searcher], dict[str, Any], int, int]:
    number, most = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    values = draw(st.lists(VALUES, min_size=1, max_size=50))
    stop_once = draw(st.booleans())
    divisor = draw(st.sampled_from([2, 3, 4, 2.5]))
    several = [draw(RUNGS) for _ in range(draw(st.integers(1, 3)))]
    longest = max(rungs[-1] for rungs in several)
    for rungs in several:
        rungs[-1] = longest
    shares = brackets(
        number, longest, 2, bracket_rungs=[len(rungs) for rungs in several], max_concurrent=most
    )
    with_rungs = [(share, several[index]) for index, share in enumerate(shares)]

    def searcher() -> Searcher:
        return AdaptiveAsha(points(number), with_rungs, divisor, most, stop_once)

    how = {
        "order_seed": draw(st.none() | st.integers(0, 9)),
        "metric": lambda trial, visits: values[(trial * 7 + visits) % len(values)],
        "failing": draw(st.dictionaries(st.integers(0, number), st.integers(0, longest), max_size=number)),
        "leaving": draw(st.sets(st.integers(0, number))),
    }
    return searcher, how, number, most


@given(st.data())
def test_budgets_are_kept_and_the_search_ends_and_replays(data: st.DataObject) -> None:
    searcher, how, number, most = data.draw(searches())
    full = max(
        operation.visits
        for operation in play(searcher(), 10**6, **how).operations
        if isinstance(operation, Train)
    )
    played = play(searcher(), full, **how)
    assert len(played.params) == number
    assert most_at_once(played) <= most
    assert replay(searcher(), played.calls) == played.answers


@given(
    values=st.lists(VALUES, min_size=1, max_size=60),
    divisor=st.integers(2, 5),
    most=st.integers(1, 9),
    order_seed=st.none() | st.integers(0, 5),
)
def test_a_promoted_trial_is_one_of_the_best_of_its_rung(
    values: list[float], divisor: int, most: int, order_seed: int | None
) -> None:
    """And no worse one is promoted, nor a better one stopped, while a better one waits. In the end at least as many
    were promoted as the best ``floor(n / divisor)``: good ones that come late are promoted besides."""
    bracket_rungs = [1, 2, 4]
    played = play(
        Asha(points(len(values)), len(values), bracket_rungs, divisor, most),
        4,
        lambda trial, visits: values[trial],
        order_seed=order_seed,
    )
    reached: list[list[tuple[float, int, int]]] = [[], [], []]
    promoted: list[set[int]] = [set(), set(), set()]
    for (name, *arguments), answer in zip(played.calls, played.answers, strict=True):
        if name == "validated":
            trial, visits, value = arguments
            places = reached[bracket_rungs.index(visits)]
            places.append((value, len(places), trial))
        for operation in answer:
            ranks = [
                [trial for *_, trial in sorted(places)].index(operation.trial)
                for places in reached
                if operation.trial in [trial for *_, trial in places]
            ]
            rung = len(ranks) - 1
            if isinstance(operation, Train) and operation.visits > 1:
                best = [trial for *_, trial in sorted(reached[rung])]
                assert ranks[-1] < len(best) // divisor
                assert set(best[: ranks[-1]]) <= promoted[rung], "a better one waits"
                promoted[rung].add(operation.trial)
            elif isinstance(operation, Stop) and rung < 2:
                assert ranks[-1] >= len(reached[rung]) // divisor, "one of the best was stopped"
    for rung, places in enumerate(reached[:-1]):
        assert len(promoted[rung]) >= len(places) // divisor


def test_thousands_of_trials_are_decided_quickly() -> None:
    """Not timed: a search of quadratic cost would not end within the suite's patience."""
    played = play(
        Asha(points(4000), 4000, [1, 4, 16, 64], 4, 1000), 64, lambda trial, visits: trial * 7919 % 4001
    )
    assert len(played.params) == 4000
