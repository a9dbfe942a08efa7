"""Every point is trained with several seeds, and its searcher sees the means: whichever searcher it is, and whichever
replicates fail."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.test_full import Learning

from hopyard.errors import UsageError
from hopyard.search import (
    AdaptiveAsha,
    Asha,
    Create,
    EpochByEpoch,
    FullLength,
    GridPoints,
    Hyperband,
    InVirtualTime,
    MedianStopping,
    Operation,
    Patience,
    Pbt,
    RandomPoints,
    Replicated,
    Searcher,
    Stop,
    Train,
    hp_choice,
    hp_uniform,
)
from hopyard.search.brackets import brackets, rungs_in_visits
from hopyard.search.replicates import mean_of
from hopyard.search.testing import Chaotic, Played, SearcherTests, play

VISITS = 12
SPACE: dict[str, Any] = {"x": hp_uniform(0, 1)}


def full(num_models: int = 5, **how: Any) -> Searcher:
    return FullLength(RandomPoints(SPACE), num_models, VISITS, **how)


def adaptive() -> Searcher:
    shares = brackets(14, VISITS, 3, mode="conservative", max_concurrent=5)
    rungs = [rungs_in_visits(share.num_rungs, 3, VISITS) for share in shares]
    return AdaptiveAsha(RandomPoints(SPACE), list(zip(shares, rungs, strict=True)), 3, 5)


def pbt() -> Searcher:
    return Pbt(RandomPoints(SPACE), SPACE, 6, 4, 3, truncate_fraction=0.34)


SEARCHERS: dict[str, Callable[[], Searcher]] = {
    "grid": lambda: FullLength(GridPoints({"x": hp_choice([1, 2, 3])}), None, VISITS),
    "random": full,
    "few at once": lambda: full(7, max_concurrent=2),
    "learning": lambda: FullLength(Learning(), 7, VISITS, 2),
    "promotion": lambda: Asha(RandomPoints(SPACE), 9, [2, 5, VISITS], 3, 4),
    "stopping": lambda: Asha(RandomPoints(SPACE), 9, [2, 5, VISITS], 3, 4, stop_once=True),
    "adaptive": adaptive,
    "hyperband": lambda: Hyperband(RandomPoints(SPACE), VISITS, 3, 9),
    "pbt": pbt,
    "patience": lambda: Patience(full(), 1, 3),
    "median": lambda: MedianStopping(full(8), 3, min_trials=2),
}


class TestFull(SearcherTests):
    visits = VISITS
    extension = (7, 15)

    def searcher(self) -> Searcher:
        return Replicated(full(), 3)


class TestLearning(SearcherTests):
    visits = VISITS
    extension = (8, 15)

    def searcher(self) -> Searcher:
        return Replicated(SEARCHERS["learning"](), 2)


class TestPromotion(SearcherTests):
    visits = VISITS
    extension = (11, VISITS)

    def searcher(self) -> Searcher:
        return Replicated(SEARCHERS["promotion"](), 2)


class TestAdaptive(SearcherTests):
    visits = VISITS
    extension = (20, VISITS)

    def searcher(self) -> Searcher:
        return Replicated(adaptive(), 3)


class TestHyperband(SearcherTests):
    visits = VISITS

    def searcher(self) -> Searcher:
        return Replicated(SEARCHERS["hyperband"](), 2)


class TestPbt(SearcherTests):
    visits = VISITS

    def searcher(self) -> Searcher:
        return Replicated(pbt(), 3)


class TestEarlyStopping(SearcherTests):
    visits = VISITS
    extension = (7, 15)

    def searcher(self) -> Searcher:
        return Replicated(SEARCHERS["patience"](), 2)


class TestInVirtualTime(SearcherTests):
    visits = VISITS

    def searcher(self) -> Searcher:
        return InVirtualTime(Replicated(pbt(), 2))


def noisy(trial: int, visits: int) -> float:
    """Trials differ, and are not always better the longer they train."""
    return (1 + trial * 7919 % 101) / (1 + visits) + (trial * 31 + visits * 17) % 13 / 10


def by_points(
    searcher: Searcher, replicates: int, failing: Mapping[int, int]
) -> tuple[dict[int, list[Operation]], list[tuple[Any, ...]]]:
    """The operations on each point, and the calls of ``searcher`` itself, told of points: the mean of the replicates
    that have not failed, and a failure once all have."""

    def trials(point: int) -> range:
        return range(replicates * point, replicates * (point + 1))

    def mean(point: int, visits: int) -> float:
        return statistics.mean(
            noisy(trial, visits) for trial in trials(point) if visits <= failing.get(trial, visits)
        )

    lost = {
        point: max(failing[trial] for trial in trials(point))
        for point in range(max(failing, default=0) + 1)
        if all(trial in failing for trial in trials(point))
    }
    played = play(searcher, VISITS, mean, failing=lost)
    return {point: played.of(point) for point in played.params}, played.calls


FAILING = st.dictionaries(st.integers(0, 20), st.integers(0, VISITS), max_size=12)


@pytest.mark.parametrize("kind", [*SEARCHERS, "chaotic"])
@given(replicates=st.integers(1, 3), failing=FAILING)
def test_it_does_to_each_living_replicate_what_its_searcher_does_to_the_point(
    kind: str, replicates: int, failing: dict[int, int]
) -> None:
    def searcher() -> Searcher:
        return Chaotic(len(failing)) if kind == "chaotic" else SEARCHERS[kind]()

    said, calls = by_points(searcher(), replicates, failing)
    told: list[tuple[Any, ...]] = []
    inner = searcher()
    for name in ("start", "validated", "exited"):
        setattr(inner, name, _noting(told, name, getattr(inner, name)))
    played = play(Replicated(inner, replicates), VISITS, noisy, failing=failing)
    assert told == calls
    assert [*played.params] == [*range(replicates * len(said))]
    for trial in played.params:
        operations = [
            _of_trial(operation, trial, replicates, played, failing)
            for operation in said[trial // replicates]
        ]
        found = played.of(trial)
        assert found == operations if trial not in failing else found == operations[: len(found)]


def _of_trial(
    operation: Operation, trial: int, replicates: int, played: Played, failing: Collection[int]
) -> Operation:
    if isinstance(operation, Train):
        return Train(trial, operation.visits)
    if isinstance(operation, Stop):
        return Stop(trial)
    if operation.source is None:
        return Create(trial, operation.params)
    source = operation.source * replicates + trial % replicates
    donor = played.sources[trial]
    if donor != source:
        assert source in failing
        assert donor is not None
        assert donor // replicates == operation.source
    return Create(trial, operation.params, donor)


def _noting(told: list[tuple[Any, ...]], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        told.append((name, *arguments))
        return method(*arguments)

    return noted


@pytest.mark.parametrize("kind", SEARCHERS)
@given(failing=FAILING, order=st.integers(0, 1000))
def test_the_order_in_which_trials_report_changes_nothing(
    kind: str, failing: dict[int, int], order: int
) -> None:
    """Of searchers whose trials do not depend on each other not even without virtual time."""

    def played(order_seed: int | None) -> dict[int, list[Operation]]:
        searcher: Searcher = Replicated(SEARCHERS[kind](), 2)
        searcher = searcher if searcher.independent else InVirtualTime(searcher)
        found = play(searcher, VISITS, noisy, failing=failing, order_seed=order_seed)
        return {trial: found.of(trial) for trial in found.params}

    assert played(order) == played(None)


def test_a_point_is_told_of_when_its_last_replicate_reports() -> None:
    searcher = Replicated(full(2, max_concurrent=1), 3)
    first = searcher.start()
    point = first[0].params  # type: ignore[union-attr]
    assert first == [
        *(Create(trial, point) for trial in range(3)),
        *(Train(trial, VISITS) for trial in range(3)),
    ]
    assert searcher.validated(1, VISITS, 0.5) == []
    assert searcher.validated(0, VISITS, 0.5) == []
    answer = searcher.validated(2, VISITS, 0.5)
    assert answer[:3] == [Stop(0), Stop(1), Stop(2)]
    assert [each.trial for each in answer[3:]] == [3, 4, 5, 3, 4, 5]


class Noting(EpochByEpoch):
    """Notes what it is told at each epoch, and stops nobody."""

    def __init__(self, searcher: Searcher) -> None:
        super().__init__(searcher, 3)
        self.told: list[tuple[int, int, float]] = []

    def stops(self, trial: int, visits: int, value: float) -> bool:
        self.told.append((trial, visits, value))
        return False


def test_a_failed_replicate_is_left_out_of_the_means_from_then_on() -> None:
    noting = Noting(full(1))
    play(Replicated(noting, 3), VISITS, lambda trial, visits: trial + visits / 100, failing={1: 3, 2: 7})
    assert [(trial, visits) for trial, visits, _ in noting.told] == [(0, 3), (0, 6), (0, 9), (0, 12)]
    assert [value for *_, value in noting.told] == pytest.approx([1.03, 1.06, 0.09, 0.12])


def test_a_replicate_that_fails_last_lets_the_others_be_told_of() -> None:
    noting = Noting(full(1))
    searcher = Replicated(noting, 2)
    searcher.start()
    assert searcher.validated(0, 3, 0.25) == []
    assert searcher.exited(1) == [Train(0, 6)]
    assert noting.told == [(0, 3, 0.25)]


def test_replicates_of_a_copy_begin_with_those_of_its_donor_in_turns_if_some_have_failed() -> None:
    class Copying(FullLength):
        def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
            return [Create(1, {"x": 0.5}, source=0), Train(1, VISITS), Stop(0)] if trial == 0 else [Stop(1)]

    def donors(*failed: int) -> list[int | None]:
        searcher = Replicated(Copying(RandomPoints(SPACE), 1, 6), 4)
        searcher.start()
        answer: list[Operation] = []
        for trial in range(4):
            answer += searcher.exited(trial) if trial in failed else searcher.validated(trial, 6, 0.1)
        return [each.source for each in answer if isinstance(each, Create)]

    assert donors() == [0, 1, 2, 3]
    assert donors(1) == [0, 2, 2, 3]
    assert donors(0, 1, 3) == [2, 2, 2, 2]


def test_a_user_who_stops_a_replicate_leaves_it_out() -> None:
    searcher = Replicated(Asha(RandomPoints(SPACE), 2, [2, VISITS], 2, 4), 2)
    searcher.start()
    searcher.validated(0, 2, 0.25)
    assert searcher.exited(0) == []  # it waited for its replicate, and no longer counts
    searcher.validated(2, 2, 1.0)
    searcher.validated(3, 2, 1.0)
    assert Train(1, VISITS) in searcher.validated(1, 2, 0.75)


def test_a_mean_is_rounded_once() -> None:
    assert mean_of([0.1] * 3) == 0.1
    assert mean_of([1e308, 1.5e308]) == 1.25e308
    assert mean_of([1e16, 1.0, -1e16]) == 1 / 3
    assert mean_of([math.inf, 1.0]) == math.inf
    assert mean_of([-math.inf, 1.0]) == -math.inf
    assert mean_of([-math.inf, math.inf]) == math.inf


@pytest.mark.parametrize("given_value", [0, -1, 1.5, True, "2"])
def test_it_takes_whole_numbers_of_replicates(given_value: Any) -> None:
    with pytest.raises(UsageError, match=r"replicates=.*but it must be an integer of at least 1"):
        Replicated(full(), given_value)
