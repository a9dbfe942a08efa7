"""ASHA: asynchronous successive halving (Li et al., MLSys 2020), in Determined's two forms and with its brackets.

*Promotion*: a trial trains to its rung and waits there; whenever it is among the best ``floor(n / divisor)`` of the n
that have come to the rung, it trains on. A good trial that comes late is promoted too, so that more than
``floor(n / divisor)`` may be promoted in the end; each of them was among the best when it was. Trials wait for as long
as others may still come to their rung, then they are stopped.

*Stopping* (``stop_once``): at its rung a trial either trains on at once, as one of the best
``max(floor(n / divisor), 1)`` so far, or is stopped for good. So the first one at a rung always trains on.

Of equal values the earlier is the better one. (Determined's stopping form has it the other way round, so that with a
constant metric, such as an accuracy of 1.0, every trial trains to the end.) A trial that fails counts in its rung, as
worse than any value.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

from hopyard.errors import SettingsError, SpaceError
from hopyard.search.base import Operation, Proposer
from hopyard.search.brackets import Share, checked_divisor, concurrency_given
from hopyard.search.halving import Bracket, Halving, checked_rungs
from hopyard.wording import counted

RungPlace: TypeAlias = tuple[float, float, int]
"""A trial's place in a rung: its value, how many came before it, its number. The better place is the smaller one."""


class Asynchronous(Bracket):
    """Places in rungs, which both forms have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._places: list[list[RungPlace]] = [[] for _ in self.rungs]  # best first
        self._over: list[int] = []  # to be stopped

    def reported(self, trial: int, value: float) -> None:
        rung = self.trained(trial)
        self._arrived((value, len(self._places[rung]), trial), rung)

    def _arrived(self, place: RungPlace, rung: int) -> None:
        insort(self._places[rung], place)

    def _best(self, place: RungPlace, rung: int, number: int) -> bool:
        """Whether ``place`` is among the best ``number`` of its rung."""
        return bisect_left(self._places[rung], place) < number

    def _failed(self, trial: int, rung: int) -> None:
        insort(self._places[rung], (math.inf, math.inf, trial))

    def hopeless(self) -> list[int]:
        over, self._over = self._over, []
        return over


class Stopping(Asynchronous):
    """Trials train on at once, or are stopped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._going_on: dict[int, int] = {}  # trial -> its next rung, for trials that wait for a slot

    def _arrived(self, place: RungPlace, rung: int) -> None:
        super()._arrived(place, rung)
        value, _, trial = place
        kept = max(len(self._places[rung]) // self.divisor, 1)
        if rung == len(self.rungs) - 1 or not self._best(place, rung, kept):
            self._over.append(trial)
        elif self.rungs[rung + 1] == self.rungs[rung]:
            self._arrived((value, len(self._places[rung + 1]), trial), rung + 1)
        else:
            self._going_on[trial] = rung + 1

    def exited(self, trial: int) -> None:
        if trial in self.training:
            self._failed(trial, self.trained(trial))
        else:
            del self._going_on[trial]

    def next_to_train(self) -> tuple[int, int] | None:
        for trial in self._going_on:
            return trial, self._going_on.pop(trial)
        return None


class Promotion(Asynchronous):
    """Trials wait at a rung until they are among its best."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._waiting: list[list[RungPlace]] = [[] for _ in self.rungs]  # best first

    def _arrived(self, place: RungPlace, rung: int) -> None:
        super()._arrived(place, rung)
        if rung == len(self.rungs) - 1:
            self._over.append(place[2])
        else:
            insort(self._waiting[rung], place)

    def exited(self, trial: int) -> None:
        if trial in self.training:
            self._failed(trial, self.trained(trial))
            return
        for rung, waiting in enumerate(self._waiting):
            for place in [place for place in waiting if place[2] == trial]:
                waiting.remove(place)
                self._places[rung].remove(place)
                self._failed(trial, rung)

    def next_to_train(self) -> tuple[int, int] | None:
        while (rung := self._highest_with_promotable()) is not None:
            value, _, trial = self._waiting[rung].pop(0)
            if self.rungs[rung + 1] > self.rungs[rung]:
                return trial, rung + 1
            self._arrived((value, len(self._places[rung + 1]), trial), rung + 1)
        return None

    def _highest_with_promotable(self) -> int | None:
        rungs = reversed(range(len(self.rungs) - 1))
        return next((rung for rung in rungs if self._has_promotable(rung)), None)

    def _has_promotable(self, rung: int) -> bool:
        waiting = self._waiting[rung]
        return bool(waiting) and self._best(waiting[0], rung, int(len(self._places[rung]) // self.divisor))

    def hopeless(self) -> list[int]:
        over = super().hopeless()
        if self.left:
            return over
        for rung, expected in enumerate(self.expected):
            if expected or self._has_promotable(rung):
                break
            # Nobody comes to this rung any more.
            over += [trial for _, _, trial in self._waiting[rung]]
            self._waiting[rung].clear()
        return over


class _Asha(Halving):
    """Base of both searchers: more trials may be asked for, which go to the first bracket.

    New trials meet stopped ones as values in the rungs; which trials were stopped is not decided again.
    """

    def extend(self, num_models: int | None, visits: int) -> list[Operation]:
        first = self._brackets[0]
        before = self._created + sum(bracket.left for bracket in self._brackets)
        num_models = before if num_models is None else num_models
        if visits != first.rungs[-1] or num_models < before:
            raise SettingsError(
                f"the run would be extended to {counted(num_models, 'trial')} of at most {visits} visits of a "
                f"partition (epochs x partitions), but ASHA began with {before} of at most {first.rungs[-1]}, and can "
                "only be given more trials: its rungs follow from the length. Give as many epochs as before, or start "
                "a new run with another run_id."
            )
        try:
            self._proposer.check(num_models)
        except SpaceError as error:
            raise SettingsError(str(error)) from None
        first.left += num_models - before
        return self._filled()


class Asha(_Asha):
    """``num_models`` trials, compared at ``rungs`` visits; each time one in ``divisor`` trains on.

    Args:
        proposer: gives the points.
        num_models: trials in all, failed ones included.
        rungs: ascending; the last is the full length. See ``rungs_in_visits``.
        divisor: at least 2.
        max_concurrent: trials that may train at once; trials that wait at a rung do not count. 0: as many as
            bring one to the last rung.
        stop_once: the stopping form instead of the promotion form.

    Raises:
        UsageError: an impossible number.
        SpaceError: there are fewer points than ``num_models``.
    """

    def __init__(
        self,
        proposer: Proposer,
        num_models: int,
        rungs: Sequence[int],
        divisor: float | Fraction = 4,
        max_concurrent: int = 16,
        stop_once: bool = False,
    ) -> None:
        rungs = checked_rungs(rungs)
        concurrency_given(max_concurrent)
        exact = checked_divisor(divisor)
        most = max_concurrent or int(exact ** (len(rungs) - 1))
        form = Stopping if stop_once else Promotion
        super().__init__(proposer, [form(num_models, rungs, exact, most)])


class AdaptiveAsha(_Asha):
    """ASHA in several brackets at once, so that it matters less how early good trials can be told from bad ones.

    Args:
        proposer: gives the points of all brackets.
        shares: what ``brackets`` gave, and for each its rungs: ``[(share, rungs), ...]``.
        divisor: at least 2.
        max_concurrent: trials that may train at once in all, 0: what the shares give together.
        stop_once: the stopping form instead of the promotion form.
    """

    def __init__(
        self,
        proposer: Proposer,
        shares: Sequence[tuple[Share, Sequence[int]]],
        divisor: float | Fraction = 4,
        max_concurrent: int = 16,
        stop_once: bool = False,
    ) -> None:
        form, exact = Stopping if stop_once else Promotion, checked_divisor(divisor)
        super().__init__(
            proposer,
            [form(share.num_models, rungs, exact, share.max_concurrent) for share, rungs in shares],
            concurrency_given(max_concurrent) or None,
        )
