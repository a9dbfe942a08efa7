"""The suite that every searcher must pass, and the small run loop that it plays searchers through.

Inherit from :class:`SearcherTests` in a test module and say how to make the searcher::

    class TestMySearcher(SearcherTests):
        num_epochs = 4

        def searcher(self):
            return MySearcher(space, num_epochs=4)
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hopyard.search.base import Create, Operation, Searcher, Stop, Train

Metric: TypeAlias = Callable[[int, int], float]
"""The value of a trial after an epoch (from 1); smaller is better."""

MOST_EPOCHS = 100_000


@dataclass
class Played:
    """What became of a search: points by trial, epochs done, how trials ended, and everything that was said."""

    params: dict[int, dict[str, Any]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    allowed: dict[int, int] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def ready(self) -> list[int]:
        """Trials that may train on."""
        return [t for t, most in self.allowed.items() if t not in self.ends and self.epochs[t] < most]


def play(
    searcher: Searcher,
    num_epochs: int,
    metric: Metric = lambda trial, epoch: 1 / (1 + trial + epoch),
    *,
    order_seed: int | None = None,
    failing: Collection[int] = (),
) -> Played:
    """Run a search whose training costs nothing, checking each operation against the contract.

    Epochs are trained in order of trials, or shuffled by ``order_seed``, as workers of different speed would.
    Trials in ``failing`` fail in their first epoch. Raises AssertionError where the contract is broken.
    """
    played, order = Played(), random.Random(order_seed)
    _obey(played, searcher, searcher.start(), num_epochs)
    while ready := played.ready():
        assert sum(played.epochs.values()) < MOST_EPOCHS, (
            f"the search did not end within {MOST_EPOCHS} epochs"
        )
        trial = ready[0] if order_seed is None else order.choice(ready)
        if trial in failing:
            _end(played, searcher, trial, "failed", num_epochs)
            continue
        played.epochs[trial] += 1
        epoch = played.epochs[trial]
        _obey(played, searcher, searcher.validated(trial, epoch, metric(trial, epoch)), num_epochs)
        if epoch == num_epochs and trial not in played.ends:
            _end(played, searcher, trial, "completed", num_epochs)
    return played


def _obey(played: Played, searcher: Searcher, operations: list[Operation], num_epochs: int) -> None:
    for operation in operations:
        played.operations.append(operation)
        trial = operation.trial
        if isinstance(operation, Create):
            assert trial == len(played.params), f"{operation} must have the next number, {len(played.params)}"
            assert operation.source is None or operation.source in played.params, (
                f"{operation} copies no trial"
            )
            played.params[trial] = dict(operation.params)
            played.epochs[trial] = 0
            continue
        assert trial in played.params, f"{operation} names a trial that was not created"
        assert trial not in played.ends, f"{operation} names a trial that has ended"
        if isinstance(operation, Train):
            before = played.allowed.get(trial, 0)
            assert before < operation.epochs <= num_epochs, (
                f"{operation} after {before} of {num_epochs} epochs"
            )
            played.allowed[trial] = operation.epochs
    for operation in operations:
        if isinstance(operation, Stop):
            _end(played, searcher, operation.trial, "stopped", num_epochs)


def _end(played: Played, searcher: Searcher, trial: int, reason: str, num_epochs: int) -> None:
    assert trial not in played.ends, f"trial {trial} ended twice"
    played.ends[trial] = reason
    _obey(played, searcher, searcher.exited(trial, reason), num_epochs)


class SearcherTests(ABC):
    """Inherit, and define ``searcher`` and ``num_epochs``."""

    num_epochs: int

    @abstractmethod
    def searcher(self) -> Searcher:
        """A new searcher, the same each time."""

    def test_the_same_calls_give_the_same_answers(self) -> None:
        first, second = (play(self.searcher(), self.num_epochs, order_seed=1) for _ in range(2))
        assert first == second

    def test_trials_are_numbered_and_the_search_ends(self) -> None:
        for seed in (None, 0, 1, 2):
            played = play(self.searcher(), self.num_epochs, order_seed=seed)
            assert played.params, "the search made no trial"
            assert max(played.epochs.values()) <= self.num_epochs

    def test_failing_trials_never_stop_the_others(self) -> None:
        untroubled = play(self.searcher(), self.num_epochs)
        played = play(self.searcher(), self.num_epochs, failing={0})
        assert played.ends[0] == "failed"
        assert set(untroubled.params) <= set(played.params)
        assert len(played.params) == 1 or any(played.epochs[trial] for trial in played.params if trial)

    def test_a_search_in_which_every_trial_fails_ends(self) -> None:
        played = play(self.searcher(), self.num_epochs, failing=range(MOST_EPOCHS))
        assert set(played.ends.values()) == {"failed"}

    def test_values_that_are_not_numbers_are_survived(self) -> None:
        for value in (math.nan, math.inf, -math.inf):
            play(self.searcher(), self.num_epochs, lambda trial, epoch, value=value: value)  # type: ignore[misc]
