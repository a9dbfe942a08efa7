"""The run loop of the suites finds every way to break the contract."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from hopyard.search import Create, ListPoints, Operation, Proposer, Searcher, Stop, Train, hp_int, hp_uniform
from hopyard.search.testing import ProposerTests, SearcherTests, play, replay


class Scripted(Searcher):
    """Says what it is given: first ``begin``, then ``then(trial, visits)``."""

    def __init__(
        self, begin: list[Any], then: Callable[[int, int], list[Any]] = lambda trial, visits: [Stop(trial)]
    ) -> None:
        self.begin, self.then = begin, then

    def start(self) -> list[Operation]:
        return self.begin

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        return self.then(trial, visits)

    def exited(self, trial: int) -> list[Operation]:
        return []


ONE = [Create(0, {}), Train(0, 4)]
TWO = [*ONE, Create(1, {}), Train(1, 4)]


@pytest.mark.parametrize(
    ("begin", "then", "text"),
    [
        ([Create(1, {})], None, r"must have the next number, 0"),
        ([*ONE, Create(0, {})], None, r"must have the next number, 1"),
        ([Create(0, {}), Train(0, 9)], None, r"Train.* after 0 visits, of 8 in all"),
        ([Create(0, {}), Train(0, 0)], None, r"after 0 visits"),
        ([Train(0, 4)], None, r"names no trial"),
        ([*ONE, Stop(1)], None, r"names no trial"),
        ([*ONE, "x"], None, r"'str' object has no attribute 'trial'"),
        ([*ONE, Train(0, 6)], None, r"names a trial that does not wait"),
        ([*ONE, Stop(0)], None, r"names a trial that does not wait"),
        ([*ONE, Create(1, {}, source=0)], None, r"copies a trial that does not wait"),
        ([Create(0, {}, source=0)], None, r"copies no trial"),
        ([Create(0, {}), Stop(0), Create(1, {}, source=0)], None, r"copies a trial that has ended"),
        ([Create(0, {})], None, r"nothing was said, but trials \[0\] have not ended"),
        (ONE, lambda trial, visits: [], r"nothing was said, but trials \[0\] have not ended"),
        (ONE, lambda trial, visits: [Train(0, 4)], r"after 4 visits, of 8 in all"),
        (ONE, lambda trial, visits: [Stop(0), Train(0, 6)], r"Train.* names a trial that has ended"),
        (ONE, lambda trial, visits: [Stop(0), Stop(0)], r"Stop.* names a trial that has ended"),
        (TWO, lambda trial, visits: [Stop(0), Stop(1)], r"names a trial that does not wait"),
    ],
)
def test_a_searcher_that_breaks_the_contract_is_found(begin: list[Any], then: Any, text: str) -> None:
    with pytest.raises((AssertionError, AttributeError), match=text):
        play(Scripted(begin, then) if then else Scripted(begin), 8)


def test_a_copy_has_the_visits_of_its_source() -> None:
    played = play(
        Scripted(ONE, lambda trial, visits: [Create(1, {}, 0), Train(1, 6), Stop(0)] if not trial else [Stop(1)]), 8
    )  # fmt: skip
    assert (played.visits, played.sources, played.ends) == (
        {0: 4, 1: 6},
        {0: None, 1: 0},
        {0: "stopped", 1: "stopped"},
    )


def test_trials_fail_before_they_report_more_than_they_are_allowed() -> None:
    def then(trial: int, visits: int) -> list[Operation]:
        return [Train(trial, visits + 2)] if visits < 8 else [Stop(trial)]

    played = play(Scripted(TWO, then), 8, failing={0: 5})
    assert (played.visits, played.ends) == ({0: 4, 1: 8}, {0: "exited", 1: "completed"})
    assert replay(Scripted(TWO, then), played.calls) == played.answers


class Forgetful(Scripted):
    """Breaks one rule of purity each."""


class Random(Forgetful):
    def start(self) -> list[Operation]:
        return [Create(0, {"x": random.random()}), Train(0, 8)]


class Shared(Forgetful):
    counts: list[int] = [0]  # noqa: RUF012 - the mistake that is to be found

    def start(self) -> list[Operation]:
        self.counts[0] += 1
        return [Create(0, {"x": self.counts[0]}), Train(0, 8)]


class Gossip(Scripted):
    """Says it is independent, and ends trial 0 early if 1 has reported."""

    independent = True

    def __init__(self) -> None:
        super().__init__(TWO, self.decide)
        self.heard = False

    def decide(self, trial: int, visits: int) -> list[Operation]:
        self.heard |= trial == 1
        return [Train(trial, 8)] if visits < 8 and not (self.heard and trial == 0) else [Stop(trial)]


@pytest.mark.parametrize(
    ("make", "test"),
    [
        (lambda: Random([]), "test_the_same_calls_give_the_same_answers"),
        (lambda: Shared([]), "test_the_same_calls_give_the_same_answers"),
        (Gossip, "test_what_an_independent_searcher_says_of_a_trial_depends_on_that_trial_alone"),
        (lambda: Scripted([]), "test_it_makes_trials_and_ends_in_whatever_order_they_report"),
    ],
)
def test_the_suite_finds_searchers_that_break_a_rule(make: Callable[[], Searcher], test: str) -> None:
    class Suite(SearcherTests):
        visits = 8

        def searcher(self) -> Searcher:
            return make()

    with pytest.raises(AssertionError):
        getattr(Suite(), test)()


class Late(Scripted):
    """Draws a point where the first trial fails."""

    def exited(self, trial: int) -> list[Operation]:
        return [Create(2, {"x": random.random()}), Train(2, 8)] if trial == 0 else []


def test_the_suite_finds_a_searcher_that_a_replay_does_not_restore() -> None:
    class Suite(SearcherTests):
        visits = 8

        def searcher(self) -> Searcher:
            return Late(TWO, lambda trial, visits: [Train(trial, 8)] if visits < 8 else [Stop(trial)])

    Suite().test_the_same_calls_give_the_same_answers()
    with pytest.raises(AssertionError, match="a global random state was drawn from or seeded"):
        Suite().test_failing_trials_never_stop_the_others()


class SeededSearcher(Scripted):
    def __init__(self, seed: int) -> None:
        super().__init__(ONE)


def test_the_suite_finds_a_searcher_that_ignores_its_seed() -> None:
    class Suite(SearcherTests):
        visits = 4

        def searcher(self) -> Searcher:
            return SeededSearcher(1)

    with pytest.raises(AssertionError, match="SeededSearcher takes a seed: define `seeded` in its suite"):
        Suite().test_another_seed_gives_other_answers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Suite, "seeded", lambda self, seed: SeededSearcher(seed), raising=False)
        with pytest.raises(AssertionError, match="nine seeds gave the same: the seed is ignored"):
            Suite().test_another_seed_gives_other_answers()


class Drawing(Proposer):
    """Draws with a generator of the seed; those below do not."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = random.Random(seed)

    def propose(self, trial: int) -> dict[str, Any] | None:
        return {"x": self.drawn(trial)}

    def drawn(self, trial: int) -> float:
        return self.generator.random()


class Unseeded(Drawing):
    def drawn(self, trial: int) -> float:
        return random.random()


class UnseededByNumPy(Drawing):
    def drawn(self, trial: int) -> float:
        return float(np.random.random())


class Reseeding(Drawing):
    """Gives the right points, but every other user of the global state gets the same ones, too."""

    def drawn(self, trial: int) -> float:
        random.seed(self.seed * 1000 + trial)
        return random.random()


class Fixed(Drawing):
    def __init__(self, seed: int) -> None:
        super().__init__(0)


class Fresh(Drawing):
    """Has its seed, but takes the system's randomness."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.generator = random.Random()


class Remembering(Drawing):
    """Goes on where another one of this process has stopped, so that one that is restored does not repeat it."""

    proposed: list[float] = []  # noqa: RUF012 - the mistake that is to be found

    def drawn(self, trial: int) -> float:
        self.proposed.append(random.Random(self.seed + len(self.proposed)).random())
        return self.proposed[-1]


GLOBAL = "a global random state was drawn from or seeded; use a generator of your own"
RESTORED = "a new one that was told the same answered something else, so a resumed run would go another way"


@pytest.mark.parametrize(
    ("kind", "of_points", "of_seeds"),
    [
        (Drawing, None, None),
        (Unseeded, GLOBAL, GLOBAL),
        (UnseededByNumPy, GLOBAL, GLOBAL),
        (Reseeding, GLOBAL, GLOBAL),
        (Fixed, None, "nine seeds gave the same: the seed is ignored"),
        (Fresh, RESTORED, "the same seed gave something else"),
        (Remembering, RESTORED, "the same seed gave something else"),
    ],
)
def test_the_suite_finds_a_proposer_whose_points_do_not_follow_from_its_seed(
    kind: type[Drawing], of_points: str | None, of_seeds: str | None
) -> None:
    class Suite(ProposerTests):
        space = {"x": hp_uniform(0, 1)}  # noqa: RUF012

        def proposer(self) -> Proposer:
            return kind(1)

        def seeded(self, seed: int) -> Proposer:
            return kind(seed)

    rules = (
        Suite().test_the_same_observations_give_the_same_points,
        Suite().test_another_seed_gives_other_points,
    )
    for rule, text in zip(rules, (of_points, of_seeds), strict=True):
        with pytest.raises(AssertionError, match=text) if text else nullcontext():
            rule()


def test_the_suite_finds_a_proposer_that_repeats_itself() -> None:
    class Suite(ProposerTests):
        space = {"a": hp_int(1, 3)}  # noqa: RUF012
        num_points = 3

        def proposer(self) -> Proposer:
            return ListPoints([{"a": 1}, {"a": 2}, {"a": 1}])

    with pytest.raises(AssertionError):
        Suite().test_points_are_different_and_of_the_space_until_there_are_no_more()
