"""The suites that every searcher and proposer must pass, and the small run loop that they are played through.

Inherit in a test module and say how to make one::

    class TestMySearcher(SearcherTests):
        visits = 32                                   # of a trial that trains to the end

        def searcher(self):
            return MySearcher(space, visits=32)
"""

from __future__ import annotations

import hashlib
import inspect
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pytest

from hopyard.errors import SettingsError, SpaceError
from hopyard.search.base import Create, Operation, Proposer, Searcher, Stop, Train
from hopyard.search.points import check_point, key_of
from hopyard.search.stopping import Patience
from hopyard.search.virtual import InVirtualTime

__all__ = [
    "Call",
    "Chaotic",
    "Metric",
    "Played",
    "ProposerTests",
    "SearcherTests",
    "falling",
    "play",
    "replay",
]

Metric: TypeAlias = Callable[[int, int], float]
"""The value of a trial after so many visits; smaller is better. NaN counts as infinite."""

Call: TypeAlias = tuple[Any, ...]
"""A searcher's method and its arguments: ``("validated", 3, 16, 0.25)``."""

_MOST_CALLS = 1_000_000
_REPLAYED = "a new one that was told the same answered something else, so a resumed run would go another way"


def falling(trial: int, visits: int) -> float:
    """The metric that ``play`` uses by default: trials differ, and all become better."""
    return (1 + trial * 7919 % 101) / (1 + visits)


@dataclass
class Played:
    """Record of a search. ``answers[i]`` are the operations that answered ``calls[i]``; ``ends``: "completed" (stopped
    with the full number of visits), "stopped", or "exited"."""

    params: dict[int, dict[str, Any]] = field(default_factory=dict)
    sources: dict[int, int | None] = field(default_factory=dict)
    visits: dict[int, int] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    answers: list[list[Operation]] = field(default_factory=list)

    @property
    def operations(self) -> list[Operation]:
        return [operation for answer in self.answers for operation in answer]

    def of(self, trial: int) -> list[Operation]:
        """Operations on one trial."""
        return [operation for operation in self.operations if operation.trial == trial]


def play(
    searcher: Searcher,
    visits: int,
    metric: Metric = falling,
    *,
    order_seed: int | None = None,
    failing: Collection[int] | Mapping[int, int] = (),
    leaving: Collection[int] = (),
    extensions: Mapping[int, tuple[int | None, int]] | None = None,
) -> Played:
    """Run a search whose training costs nothing, checking each operation against the contract.

    Trials report in the order in which they were let train, or shuffled by ``order_seed``, as workers of different
    speed would have it. Those in ``failing`` fail before they first report, or, in a mapping, before they report
    more than so many visits. A user stops those in ``leaving`` when they wait for the first time. After so many
    reports, ``extensions`` raise the budget to (num_models, visits).

    Raises:
        AssertionError: the contract was broken.
    """
    failures = failing if isinstance(failing, Mapping) else dict.fromkeys(failing, 0)
    return _Player(searcher, visits, metric, order_seed, failures, set(leaving), dict(extensions or {})).run()


def replay(searcher: Searcher, calls: list[Call]) -> list[list[Operation]]:
    """The answers of a new searcher to the same calls."""
    return [getattr(searcher, name)(*arguments) for name, *arguments in calls]


@dataclass
class _Player:
    searcher: Searcher
    budget: int
    metric: Metric
    order_seed: int | None
    failing: Mapping[int, int]
    leaving: set[int]
    extensions: dict[int, tuple[int | None, int]]
    played: Played = field(default_factory=Played)
    target: dict[int, int] = field(default_factory=dict)
    training: list[int] = field(default_factory=list)
    next: int = 0  # in order of permission: the place of the first that still trains
    reports: int = 0

    def run(self) -> Played:
        order = random.Random(self.order_seed)
        self._tell("start")
        self._extend()
        while self.next < len(self.training):
            assert len(self.played.calls) < _MOST_CALLS, f"the search did not end within {_MOST_CALLS} calls"
            if self.order_seed is not None:
                other = order.randrange(self.next, len(self.training))
                self.training[self.next], self.training[other] = (
                    self.training[other],
                    self.training[self.next],
                )
            self.next += 1
            self._report(self.training[self.next - 1])
            self.reports += 1
            self._extend()
        waiting = sorted(self.played.params.keys() - self.played.ends.keys())
        assert not waiting, f"no trial may train and nothing was said, but trials {waiting} have not ended"
        return self.played

    def _report(self, trial: int) -> None:
        visits = self.target[trial]
        if visits > self.failing.get(trial, visits):
            self._exit(trial)
            return
        self.played.visits[trial] = visits
        value = self.metric(trial, visits)
        self._tell("validated", trial, visits, math.inf if math.isnan(value) else value)
        if trial in self.leaving and trial not in self.played.ends and self._waits(trial):
            self._exit(trial)

    def _exit(self, trial: int) -> None:
        self.played.ends[trial] = "exited"
        self._tell("exited", trial)

    def _extend(self) -> None:
        if self.reports not in self.extensions:
            return
        num_models, visits = self.extensions.pop(self.reports)
        self.budget = visits
        self._tell("extend", num_models, visits)

    def _tell(self, name: str, *arguments: Any) -> None:
        answer = getattr(self.searcher, name)(*arguments)
        self.played.calls.append((name, *arguments))
        self.played.answers.append(answer)
        for operation in answer:
            if isinstance(operation, Create):
                self._create(operation)
            else:
                assert operation.trial in self.played.params, f"{operation} names no trial"
                if isinstance(operation, Train):
                    self._train(operation)
                else:
                    assert isinstance(operation, Stop), f"{operation!r} is no operation"
                    self._stop(operation)

    def _waits(self, trial: int) -> bool:
        return self.played.visits[trial] == self.target[trial]

    def _create(self, create: Create) -> None:
        played, trial, source = self.played, create.trial, create.source
        assert trial == len(played.params), f"{create} must have the next number, {len(played.params)}"
        if source is not None:
            assert source in played.params, f"{create} copies no trial"
            assert source not in played.ends, f"{create} copies a trial that has ended"
            assert self._waits(source), f"{create} copies a trial that does not wait"
        played.params[trial] = dict(create.params)
        played.sources[trial] = source
        played.visits[trial] = self.target[trial] = 0 if source is None else played.visits[source]

    def _train(self, train: Train) -> None:
        trial, made = train.trial, self.played.visits[train.trial]
        if self.played.ends.get(trial) == "completed" and made < self.budget:
            del self.played.ends[trial]  # the budget has grown since
        assert trial not in self.played.ends, f"{train} names a trial that has ended"
        assert self._waits(trial), f"{train} names a trial that does not wait"
        assert made < train.visits <= self.budget, f"{train} after {made} visits, of {self.budget} in all"
        self.target[trial] = train.visits
        self.training.append(trial)

    def _stop(self, stop: Stop) -> None:
        trial = stop.trial
        assert trial not in self.played.ends, f"{stop} names a trial that has ended"
        assert self._waits(trial), f"{stop} names a trial that does not wait"
        self.played.ends[trial] = "completed" if self.played.visits[trial] == self.budget else "stopped"


def _shaken(function: Callable[[], Any]) -> Any:
    """The function's result with the global random states set elsewhere, which nothing may depend on or change."""
    states = random.getstate(), np.random.get_state()
    random.seed(12345)
    np.random.seed(54321)
    before = _random_states()
    try:
        result = function()
        assert _random_states() == before, (
            "a global random state was drawn from or seeded; use a generator of your own"
        )
        return result
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _random_states() -> tuple[Any, ...]:
    _, numbers, *rest = np.random.get_state(legacy=True)
    return random.getstate(), np.asarray(numbers).tobytes(), rest


def _check_seeds(made: Searcher | Proposer, answers: Callable[[int], list[Any] | None]) -> None:
    """Check that what ``answers(seed)`` gives follows from the seed, and from nothing else; None: there is no seed."""
    first = _shaken(lambda: answers(0))
    if first is None:
        taken = inspect.signature(type(made)).parameters
        assert "seed" not in taken, f"{type(made).__name__} takes a seed: define `seeded` in its suite"
        return
    assert answers(0) == first, "the same seed gave something else"
    assert any(answers(seed) != first for seed in range(1, 9)), (
        "nine seeds gave the same: the seed is ignored"
    )


class SearcherTests(ABC):
    """Inherit, and define ``searcher`` and ``visits``; and ``seeded``, if the searcher takes a seed.

    ``extension``: a larger budget (num_models, visits) that the search can be extended to, or None if it refuses.
    """

    visits: int
    extension: tuple[int, int] | None = None

    @abstractmethod
    def searcher(self) -> Searcher:
        """A new searcher, the same each time."""

    def seeded(self, seed: int) -> Searcher | None:
        """A new searcher with another seed; None: it takes none."""
        return None

    def played(self, **how: Any) -> Played:
        """The record of a search, which a new searcher that is told the same answers likewise, whatever happened."""
        played = play(self.searcher(), self.visits, **how)
        assert _shaken(lambda: replay(self.searcher(), played.calls)) == played.answers, _REPLAYED
        return played

    def test_it_makes_trials_and_ends_in_whatever_order_they_report(self) -> None:
        for seed in (None, 0, 1, 2, 3):
            assert self.played(order_seed=seed).params, "the search made no trial"

    def test_the_same_calls_give_the_same_answers(self) -> None:
        """Replaying gives a resumed run its searcher; other searchers and random numbers do not matter."""
        for seed in (None, 1):
            played = self.played(order_seed=seed, failing={1: self.visits - 1})
        first, second = self.searcher(), self.searcher()
        for (name, *arguments), answer in zip(played.calls, played.answers, strict=True):
            assert getattr(first, name)(*arguments) == getattr(second, name)(*arguments) == answer, _REPLAYED

    def test_another_seed_gives_other_answers(self) -> None:
        def answers(seed: int) -> list[list[Operation]] | None:
            searcher = self.seeded(seed)
            return None if searcher is None else play(searcher, self.visits).answers

        _check_seeds(self.searcher(), answers)

    def test_answers_share_nothing_with_the_searcher(self) -> None:
        first, second = self.searcher(), self.searcher()
        for operation in first.start():
            if isinstance(operation, Create) and isinstance(operation.params, dict):
                operation.params.clear()
        played = play(second, self.visits)
        for (name, *arguments), answer in list(zip(played.calls, played.answers, strict=True))[1:]:
            assert getattr(first, name)(*arguments) == answer

    def test_failing_trials_never_stop_the_others(self) -> None:
        untroubled = self.played()
        for failing in ({0}, {0: self.visits - 1}, {0, 1, 2}, set(list(untroubled.params)[1::2])):
            for seed in (None, 4):
                played = self.played(failing=failing, order_seed=seed)
                assert set(untroubled.params) <= set(played.params)
                others = set(played.params) - set(failing)
                assert not others or any(played.visits[trial] for trial in others)
                assert "exited" not in {played.ends[trial] for trial in others}

    def test_a_search_in_which_every_trial_fails_ends(self) -> None:
        everyone: dict[int, int] = dict.fromkeys(range(100_000), 0)
        assert set(self.played(failing=everyone).ends.values()) == {"exited"}

    def test_a_user_may_stop_trials_that_wait(self) -> None:
        for leaving in ({0}, {1, 2}, range(1000)):
            for seed in (None, 5):
                self.played(leaving=leaving, order_seed=seed)

    def test_trials_that_are_stopped_early_never_stop_the_others(self) -> None:
        """Their values do not become smaller, but for those of every third, so ``Patience`` stops the others."""
        epoch = max(1, self.visits // 6)

        def metric(trial: int, visits: int) -> float:
            return falling(trial, visits) if trial % 3 == 0 else float(trial + visits)

        def impatient() -> Searcher:
            return Patience(self.searcher(), 1, epoch)

        for seed in (None, 9):
            played = play(impatient(), self.visits, metric, order_seed=seed)
            assert _shaken(lambda played=played: replay(impatient(), played.calls)) == played.answers  # type: ignore[misc]
        first, other = (play(InVirtualTime(impatient()), self.visits, metric, order_seed=n) for n in (1, 2))
        assert first.operations == other.operations

    def test_values_that_are_not_numbers_are_survived(self) -> None:
        for value in (math.nan, math.inf, -math.inf):
            for seed in (None, 6):
                self.played(metric=lambda trial, visits, value=value: value, order_seed=seed)
        self.played(metric=lambda trial, visits: math.nan if trial % 2 else falling(trial, visits))

    def test_equal_values_are_survived(self) -> None:
        for values in (1, 2, 3):
            for seed in (None, 7):
                self.played(metric=lambda trial, visits, n=values: float(trial % n), order_seed=seed)

    def test_what_an_independent_searcher_says_of_a_trial_depends_on_that_trial_alone(self) -> None:
        if not self.searcher().independent:
            return
        untroubled = self.played()
        for seed in range(4):
            for failing in ([], [0]):
                played = self.played(order_seed=seed, failing=failing)
                for trial in played.params.keys() - set(failing):
                    assert played.of(trial) == untroubled.of(trial)

    def test_in_virtual_time_the_order_in_which_trials_report_does_not_matter(self) -> None:
        for failing in ({}, {0: 0, 1: self.visits - 1}):
            first, *others = (
                play(InVirtualTime(self.searcher()), self.visits, order_seed=seed, failing=failing)
                for seed in (None, 0, 1, 2)
            )
            for other in others:
                assert other.operations == first.operations
                assert other.ends == first.ends

    def test_a_larger_budget_is_taken_at_any_time_or_refused_with_nothing_changed(self) -> None:
        untroubled = self.played(order_seed=8)
        for moment in (0, 1, len(untroubled.calls) // 2, len(untroubled.calls) - 1):
            if self.extension is None:
                searcher = self.searcher()
                replay(searcher, untroubled.calls[: moment + 1])
                with pytest.raises(SettingsError, match="extended"):
                    searcher.extend(100_000, 100 * self.visits)
                assert replay(searcher, untroubled.calls[moment + 1 :]) == untroubled.answers[moment + 1 :]
                continue
            played = self.played(order_seed=8, extensions={moment: self.extension})
            assert set(untroubled.params) <= set(played.params)
            assert max(played.visits.values()) <= self.extension[1]


class Chaotic(Searcher):
    """Keeps the contract, and otherwise does anything: each answer is drawn from a digest of all it was told. For tests
    of what drives searchers. It can be given more trials, but not longer ones.
    """

    def __init__(self, seed: int, num_models: int = 12, longest: int = 12) -> None:
        self.longest = longest
        self.told: list[Call] = []
        self.digest: hashlib.blake2b = hashlib.blake2b(str(seed).encode())
        self.num_models: int = num_models
        self.visits: dict[int, int] = {}
        self.training: set[int] = set()
        self.waiting: set[int] = set()

    def start(self) -> list[Operation]:
        return self.answer("start")

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        self.training.remove(trial)
        self.waiting.add(trial)
        self.visits[trial] = visits
        return self.answer("validated", trial, visits, value)

    def exited(self, trial: int) -> list[Operation]:
        self.training.discard(trial)
        self.waiting.discard(trial)
        return self.answer("exited", trial)

    def extend(self, num_models: int | None, visits: int) -> list[Operation]:
        if visits != self.longest:
            raise SettingsError(f"a chaotic search of {self.longest} visits cannot be extended to {visits}.")
        self.num_models = num_models or self.num_models
        return self.answer("extend", num_models, visits)

    def answer(self, *call: Any) -> list[Operation]:
        self.told.append(call)
        self.digest.update(repr(call).encode())
        rng = random.Random(self.digest.digest())
        said: list[Operation] = []
        while True:
            for trial in sorted(self.waiting):
                self.decide(trial, rng, said)
            while len(self.visits) < self.num_models and rng.random() < 0.5:
                sources = [None, *sorted(t for t in self.waiting if self.visits[t] < self.longest)]
                self.create(rng.choice(sources), rng, said)
            if self.training or not (self.waiting or len(self.visits) < self.num_models):
                return said

    def create(self, source: int | None, rng: random.Random, said: list[Operation]) -> None:
        trial = len(self.visits)
        self.visits[trial] = 0 if source is None else self.visits[source]
        said.append(Create(trial, {"x": rng.random()}, source))
        self.train(trial, rng, said)

    def decide(self, trial: int, rng: random.Random, said: list[Operation]) -> None:
        choice = rng.choice(("wait", "wait", "train", "stop"))
        if choice == "train" and self.visits[trial] < self.longest:
            self.waiting.remove(trial)
            self.train(trial, rng, said)
        elif choice == "stop":
            self.waiting.remove(trial)
            said.append(Stop(trial))

    def train(self, trial: int, rng: random.Random, said: list[Operation]) -> None:
        said.append(Train(trial, rng.randint(self.visits[trial] + 1, self.longest)))
        self.training.add(trial)


class ProposerTests(ABC):
    """Inherit, and define ``proposer``, ``space`` and ``num_points`` (None: without end); and ``seeded``, if there is
    a seed.
    """

    space: Mapping[str, Any]
    num_points: int | None = None

    @abstractmethod
    def proposer(self) -> Proposer:
        """A new proposer, the same each time."""

    def seeded(self, seed: int) -> Proposer | None:
        """A new proposer with another seed; None: it takes none."""
        return None

    def proposed(self, metric: Metric | None = None) -> list[dict[str, Any]]:
        """Up to 40 points; with a metric, each is observed twice before the next, and every fifth fails."""
        return _proposed(self.proposer(), metric)

    def test_points_are_different_and_of_the_space_until_there_are_no_more(self) -> None:
        for metric in (None, falling, lambda trial, visits: math.inf, lambda trial, visits: 0.0):
            found = self.proposed(metric)
            assert len(found) == min(40, self.num_points or 40)
            assert len({key_of(point) for point in found}) == len(found)
            for point in found:
                check_point(self.space, point)

    def test_the_same_observations_give_the_same_points(self) -> None:
        for metric in (None, falling):
            again = _shaken(lambda metric=metric: self.proposed(metric))  # type: ignore[misc]
            assert again == self.proposed(metric), _REPLAYED

    def test_another_seed_gives_other_points(self) -> None:
        def answers(seed: int) -> list[dict[str, Any]] | None:
            proposer = self.seeded(seed)
            return None if proposer is None else _proposed(proposer, None)

        _check_seeds(self.proposer(), answers)

    def test_a_proposer_that_does_not_learn_gives_the_same_points_whatever_is_observed(self) -> None:
        if not self.proposer().learns:
            assert self.proposed(falling) == self.proposed()

    def test_points_share_nothing_with_the_proposer(self) -> None:
        first, second = self.proposer(), self.proposer()
        for trial in range(min(4, self.num_points or 4)):
            point = first.propose(trial)
            assert point == second.propose(trial)
            assert point is not None
            point.clear()

    def test_no_more_trials_are_allowed_than_there_are_points(self) -> None:
        self.proposer().check(self.num_points or 100)
        if self.num_points is not None:
            with pytest.raises(SpaceError, match=f"only {self.num_points} different points"):
                self.proposer().check(self.num_points + 1)
            assert self.proposed()[-1] is not None


def _proposed(proposer: Proposer, metric: Metric | None) -> list[dict[str, Any]]:
    found = []
    for trial in range(40):
        point = proposer.propose(trial)
        if point is None:
            break
        found.append(point)
        if metric is not None and trial % 5 != 4:
            proposer.observed(trial, 1, metric(trial, 1))
            proposer.observed(trial, 2, metric(trial, 2))
        if metric is not None:
            proposer.ended(trial)
    return found
