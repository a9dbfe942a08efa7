"""In virtual time a searcher is told the same, in the same order, however fast workers are and in whatever order
results arrive."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hopyard.search import (
    Create,
    FullLength,
    InVirtualTime,
    ListPoints,
    MedianStopping,
    Operation,
    RandomPoints,
    Searcher,
    Stop,
    Train,
    hp_uniform,
)
from hopyard.search.testing import Chaotic, SearcherTests, falling, play, replay

VISITS = 12  # of trials of the chaotic searcher


class TestChaotic(SearcherTests):
    """Does the chaotic searcher itself keep the contract?"""

    visits = VISITS
    extension = (20, VISITS)

    def searcher(self) -> Searcher:
        return self.seeded(3)

    def seeded(self, seed: int) -> Searcher:
        return Chaotic(seed)

    def test_failing_trials_never_stop_the_others(self) -> None:
        """It does stop them: what it does depends on everything. But it ends."""
        for seed in range(5):
            self.played(failing={0: VISITS - 1, 1: 0}, order_seed=seed)

    def test_a_larger_budget_is_taken_at_any_time_or_refused_with_nothing_changed(self) -> None:
        for moment in range(5):
            self.played(order_seed=8, extensions={moment: self.extension})


class TestChaoticInVirtualTime(TestChaotic):
    def seeded(self, seed: int) -> Searcher:
        return InVirtualTime(Chaotic(seed))


class TestMedianInVirtualTime(SearcherTests):
    visits = VISITS
    extension = (12, 15)

    def searcher(self) -> Searcher:
        return InVirtualTime(MedianStopping(FullLength(RandomPoints({"x": hp_uniform(0, 1)}), 9, VISITS), 3))


def on_equal_machines(searcher: Searcher, failing: Mapping[int, int]) -> list[list[Operation]]:
    """What a searcher answers when every trial has a machine of its own, all equally fast: the definition."""
    answers, now = [searcher.start()], 0
    queue: list[tuple[int, int, int]] = []
    visits: dict[int, int] = {}
    while True:
        for operation in answers[-1]:
            if isinstance(operation, Create):
                visits[operation.trial] = 0 if operation.source is None else visits[operation.source]
            if isinstance(operation, Train):
                due = now + operation.visits - visits[operation.trial]
                heapq.heappush(queue, (due, operation.trial, operation.visits))
        if not queue:
            return answers
        now, trial, target = heapq.heappop(queue)
        if target > failing.get(trial, target):
            answers.append(searcher.exited(trial))
        else:
            visits[trial] = target
            answers.append(searcher.validated(trial, target, falling(trial, target)))


FAILING = st.dictionaries(st.integers(0, 15), st.integers(0, VISITS), max_size=6)


@given(st.integers(0, 10**6), FAILING, st.none() | st.integers(0, 10**6), st.integers(1, 25))
def test_whatever_arrives_when_the_searcher_is_told_what_equal_machines_would_tell(
    seed: int, failing: dict[int, int], order_seed: int | None, num_models: int
) -> None:
    expected = Chaotic(seed, num_models)
    answers = on_equal_machines(expected, failing)
    inner = Chaotic(seed, num_models)
    played = play(InVirtualTime(inner), VISITS, order_seed=order_seed, failing=failing)
    assert inner.told == expected.told
    assert played.operations == [operation for answer in answers for operation in answer]


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    FAILING,
    st.sets(st.integers(0, 15), max_size=4),
    st.dictionaries(st.integers(0, 30), st.tuples(st.integers(12, 16), st.just(VISITS)), max_size=2),
)
def test_users_commands_are_replayed_where_they_came(
    seed: int, order_seed: int, failing: dict[int, int], leaving: set[int], extensions: Any
) -> None:
    inner = Chaotic(seed)
    played = play(
        InVirtualTime(inner), VISITS, order_seed=order_seed, failing=failing, leaving=leaving, extensions=extensions
    )  # fmt: skip
    again = Chaotic(seed)
    assert replay(InVirtualTime(again), played.calls) == played.answers
    assert again.told == inner.told


class Recording(FullLength):
    """Notes what it is told."""

    def __init__(self, num_models: int, visits: int) -> None:
        super().__init__(ListPoints([{"a": a} for a in range(100)]), num_models, visits)
        self.told: list[tuple[Any, ...]] = []

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        self.told.append((trial, visits))
        return super().validated(trial, visits, value)

    def exited(self, trial: int) -> list[Operation]:
        self.told.append((trial, "exited"))
        return super().exited(trial)


def test_a_result_waits_for_the_trials_that_are_due_before_it() -> None:
    inner = Recording(3, 4)
    searcher = InVirtualTime(inner)
    searcher.start()
    assert searcher.validated(2, 4, 0.5) == []
    assert searcher.validated(1, 4, 0.5) == []
    assert inner.told == []
    assert searcher.validated(0, 4, 0.5) == [Stop(0), Stop(1), Stop(2)]
    assert inner.told == [(0, 4), (1, 4), (2, 4)]


def test_a_failure_is_told_when_the_trial_was_due() -> None:
    inner = Recording(3, 4)
    searcher = InVirtualTime(inner)
    searcher.start()
    assert searcher.exited(1) == []
    assert searcher.validated(0, 4, 0.5) == [Stop(0)]
    assert inner.told == [(0, 4), (1, "exited")]


def test_a_trial_that_is_stopped_while_its_result_waits_has_exited() -> None:
    inner = Recording(2, 4)
    searcher = InVirtualTime(inner)
    searcher.start()
    searcher.validated(1, 4, 0.5)
    assert searcher.exited(1) == []
    assert searcher.validated(0, 4, 0.5) == [Stop(0)]
    assert inner.told == [(0, 4), (1, "exited")]


def test_the_scheduler_is_told_when_trials_are_due() -> None:
    searcher = InVirtualTime(Recording(2, 4))
    searcher.start()
    assert [searcher.due(trial) for trial in (0, 1)] == [4, 4]
    searcher.validated(0, 4, 0.5)
    assert searcher.due(0) == 0
    assert searcher.extend(3, 6) == [Train(0, 6), Create(2, {"a": 2}), Train(2, 6)]
    assert [searcher.due(trial) for trial in range(3)] == [6, 4, 10]
    assert Recording(1, 1).due(0) == 0
