"""Hyperband (Li et al., JMLR 18, 2018): synchronous successive halving in brackets of different aggressiveness.

With R visits and the divisor eta there are brackets s = s_max..0, s_max = floor(log_eta R). Bracket s begins with
``ceil((s_max + 1) * eta**s / (s + 1))`` trials of ``R / eta**s`` visits; when all of them have reported, the best
``floor(n / eta)`` go on to eta times as many visits, and so on to R. The published loop runs one bracket after the
other; here a later one begins as soon as the earlier ones leave workers idle: brackets do not depend on each other.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction

from hopyard.checks import integer
from hopyard.search.base import Proposer, Train
from hopyard.search.brackets import Divisor, checked_divisor, log_floor, rungs_in_visits
from hopyard.search.halving import Bracket, Halving


class Synchronous(Bracket):
    """All trials of a rung report before the best of them go on.

    Of n that began the rung ``max(floor(n / divisor), 1)`` go on, fewer if fewer are left. Of equal values the trial
    with the lower number is the better one.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rung = 0
        self._began = 0  # trials that began the present rung
        self._results: dict[int, float] = {}
        self._going_on: deque[int] = deque()
        self._over: list[int] = []

    def train(self, trial: int, rung: int) -> Train:
        self._began += 1
        return super().train(trial, rung)

    def reported(self, trial: int, value: float) -> None:
        self.trained(trial)
        self._results[trial] = value

    def exited(self, trial: int) -> None:
        if trial in self.training:
            self.trained(trial)
        elif trial in self._results:
            del self._results[trial]
        else:
            self._going_on.remove(trial)

    def next_to_train(self) -> tuple[int, int] | None:
        if self._is_complete():
            self._next_rung()
        return (self._going_on.popleft(), self._rung) if self._going_on else None

    def _is_complete(self) -> bool:
        return bool(self._results) and not (self.left or self.training or self._going_on)

    def _next_rung(self) -> None:
        best = sorted(self._results, key=lambda trial: (self._results[trial], trial))
        keep = 0
        if self._rung < len(self.rungs) - 1:
            keep = max(int(self._began // self.divisor), 1)
        self._going_on = deque(sorted(best[:keep]))
        self._over += best[keep:]
        self._rung, self._began = self._rung + 1, 0
        self._results = {}

    def hopeless(self) -> list[int]:
        over, self._over = self._over, []
        return over


class Hyperband(Halving):
    """Hyperband with trials of up to ``visits`` visits.

    Args:
        proposer: gives the points.
        visits: R, the full length. The shortest rung is of one visit or a little more.
        divisor: eta, at least 2.
        num_models: trials in all, divided among the brackets in the published proportion. None: the published number.
        max_concurrent: trials that may train at once, None: all of a rung.

    Raises:
        UsageError: an impossible number.
        SpaceError: there are fewer points than trials.
    """

    def __init__(
        self,
        proposer: Proposer,
        visits: int,
        divisor: float | Fraction = 3,
        num_models: int | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        if max_concurrent is not None:
            integer("max_concurrent_trials", max_concurrent, 1)
        exact = checked_divisor(divisor)
        super().__init__(
            proposer,
            [Synchronous(*each, exact) for each in hyperband_brackets(visits, exact, num_models)],
            max_concurrent,
        )


def hyperband_brackets(
    visits: int, divisor: Divisor = 3, num_models: int | None = None
) -> list[tuple[int, list[int]]]:
    """Trials and rungs of each bracket, the most aggressive first.

    With ``num_models``: so many trials in all, divided in the published proportion and rounded down; what is left goes
    to the first brackets, one each. Brackets that get none are left out.
    """
    most = log_floor(integer("visits", visits, 1), divisor)
    published = [int(-(-(most + 1) * divisor**s // (s + 1))) for s in reversed(range(most + 1))]
    trials = published
    if num_models is not None:
        num_models = integer("num_models", num_models, 1)
        trials = [number * num_models // sum(published) for number in published]
        for index in range(num_models - sum(trials)):
            trials[index] += 1
    return [
        (number, rungs_in_visits(most - index + 1, divisor, visits))
        for index, number in enumerate(trials)
        if number
    ]
