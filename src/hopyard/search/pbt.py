"""Population-based training (Jaderberg et al., 2017) in rounds, as Determined had it.

A population trains for one round after the other. After each, the worst are stopped and replaced: *exploit* begins a
new trial with the state of one of the best, *explore* gives it parameters near those of its donor.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections import deque
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hopyard.checks import integer, number
from hopyard.errors import SpaceError
from hopyard.search.base import Create, Operation, Proposer, Searcher, Stop, Train
from hopyard.search.points import Path, check_point, draw
from hopyard.search.spaces import Choice, Continuous, Quantized, checked_space


class Pbt(Searcher):
    """``population_size`` trials in ``num_rounds`` rounds of ``length_per_round`` visits.

    After each round but the last the worst ``floor(truncate_fraction * population_size)`` are replaced by children of
    the best as many, one each. A trial that has failed counts as the worst; where there are too few donors they have
    several children, and without any the search ends. Trials: the population and its children,
    which begin with the visits of their donors. Of equal values the lower number is the better one.

    Args:
        proposer: gives the points of the first population; if it has fewer, that is the population.
        space: the search space, in which children are moved.
        population_size, num_rounds, length_per_round: whole numbers of at least 1.
        truncate_fraction: from 0 to 0.5.
        resample_probability: of each dimension, that a child draws it anew; from 0 to 1.
        perturb_factor: by how much a number is made larger or smaller, relatively; from 0 to 1. See ``explore``.
        seed: of what children draw.
        max_concurrent: trials that may train at once, None: all of the population.

    Raises:
        UsageError: an impossible number.
        SpaceError: there are fewer points than ``population_size``.
    """

    def __init__(
        self,
        proposer: Proposer,
        space: Mapping[str, Any],
        population_size: int,
        num_rounds: int,
        length_per_round: int,
        *,
        truncate_fraction: float = 0.2,
        resample_probability: float = 0.25,
        perturb_factor: float = 0.2,
        seed: int = 0,
        max_concurrent: int | None = None,
    ) -> None:
        proposer.check(integer("population_size", population_size, 1))
        if max_concurrent is not None:
            integer("max_concurrent_trials", max_concurrent, 1)
        self._proposer = proposer
        self._space = checked_space(space)
        self._size = population_size
        self._visits_left = integer("num_rounds", num_rounds, 1) * integer(
            "length_per_round", length_per_round, 1
        )
        self._length = length_per_round
        self._truncate_fraction = share("truncate_fraction", truncate_fraction, 0.5)
        self._resample_probability = share("resample_probability", resample_probability)
        self._perturb_factor = share("perturb_factor", perturb_factor)
        self._seed = seed
        self._max_concurrent = max_concurrent
        self._params: dict[int, dict[str, Any]] = {}  # of the trials that have not ended
        self._created = 0
        self._visits = 0  # that each has made at the end of the present round
        self._values: dict[int, float] = {}  # of the present round; infinite for trials that have failed
        self._queue: deque[int] = deque()
        self._training: set[int] = set()

    def start(self) -> list[Operation]:
        operations: list[Operation] = []
        while self._created < self._size and (params := self._proposer.propose(self._created)) is not None:
            operations.append(self._create(params, None))
        self._size = self._created
        return operations + self._next_round()

    def validated(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._proposer.observed(trial, visits, value)
        self._training.remove(trial)
        self._values[trial] = math.inf if math.isnan(value) else value
        return self._go_on()

    def exited(self, trial: int) -> list[Operation]:
        self._proposer.ended(trial)
        del self._params[trial]
        self._values.pop(trial, None)
        self._training.discard(trial)
        if trial in self._queue:
            self._queue.remove(trial)
        return self._go_on()

    def stopped_early(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._proposer.observed(trial, visits, value)
        return self.exited(trial)

    def _go_on(self) -> list[Operation]:
        """The next permissions of this round, or the next round if all have reported."""
        if self._training or self._queue or not self._params:
            return self._permitted()
        if not self._visits_left:
            return self._stops(list(self._params))
        best = sorted(self._params, key=lambda trial: (self._values[trial], trial))
        replaced = int(self._truncate_fraction * self._size)
        kept = best[: self._size - replaced]
        children = [kept[index % min(replaced, len(kept))] for index in range(replaced)]
        born = [self._create(self._explored(donor), donor) for donor in children]
        return self._stops(best[len(kept) :]) + born + self._next_round()

    def _next_round(self) -> list[Operation]:
        self._visits += self._length
        self._visits_left -= self._length
        self._values = {}
        self._queue.extend(self._params)
        return self._permitted()

    def _permitted(self) -> list[Operation]:
        operations: list[Operation] = []
        while self._queue and (self._max_concurrent is None or len(self._training) < self._max_concurrent):
            trial = self._queue.popleft()
            self._training.add(trial)
            operations.append(Train(trial, self._visits))
        return operations

    def _create(self, params: dict[str, Any], source: int | None) -> Operation:
        trial = self._created
        self._created += 1
        self._params[trial] = copy.deepcopy(params)  # the answer is the caller's
        return Create(trial, params, source)

    def _stops(self, trials: list[int]) -> list[Operation]:
        for trial in trials:
            del self._params[trial]
            self._proposer.ended(trial)
        return [Stop(trial) for trial in trials]

    def _explored(self, donor: int) -> dict[str, Any]:
        return explore(
            self._space,
            self._params[donor],
            self._seed,
            self._created,
            resample_probability=self._resample_probability,
            perturb_factor=self._perturb_factor,
        )


def share(name: str, value: float, most: float = 1) -> Fraction:
    """``value`` exactly, as it is written: 0.29 of 100 is 29. Raises UsageError unless it lies from 0 to ``most``."""
    number(
        name,
        value,
        least=0,
        most=most,
        rule=f"a number from 0 to {most:g}",
        advice=f"Write {name}={most / 2:g}.",
    )
    return Fraction(str(value))


def explore(
    space: Mapping[str, Any],
    params: Mapping[str, Any],
    seed: int,
    trial: int,
    *,
    resample_probability: float | Fraction,
    perturb_factor: float | Fraction,
) -> dict[str, Any]:
    """The point of child ``trial``: one of ``space`` near ``params``. A pure function of its arguments.

    Each dimension is drawn anew with ``resample_probability``. Otherwise a number becomes larger or smaller by
    ``perturb_factor`` of itself, within its bounds, on a grid by at least one step (a float of 0 by that part of its
    range); a choice becomes its neighbour in the list, and if that is a space it is drawn anew. Without either
    probability or factor the point stays as it is.
    """
    explorer = _Explorer(seed, trial, Fraction(str(resample_probability)), Fraction(str(perturb_factor)))
    point: dict[str, Any] = explorer.moved(space, params, ())
    return point


class _Explorer:
    def __init__(self, seed: int, trial: int, resample_probability: Fraction, factor: Fraction) -> None:
        self._seed = seed
        self._trial = trial
        self._resample_probability = resample_probability
        self._factor = factor

    def moved(self, space: Any, value: Any, path: Path) -> Any:
        match space:
            case dict():
                return {key: self.moved(space[key], value[key], (*path, key)) for key in space}
            case list() | tuple():
                return [self.moved(each, value[index], (*path, index)) for index, each in enumerate(space)]
            case Choice() | Continuous() | Quantized():
                if self._number(path, "resample") < self._resample_probability:
                    return self._drawn(space, path)
                if not self._factor:
                    return self._unmoved(space, value, path)
                return self._perturbed(space, value, path)
        return space

    def _unmoved(self, space: Choice | Continuous | Quantized, value: Any, path: Path) -> Any:
        if not isinstance(space, Choice):
            return value
        index = option_of(space, value)
        return self.moved(space.options[index], value, (*path, f"<{index}>"))

    def _perturbed(self, space: Choice | Continuous | Quantized, value: Any, path: Path) -> Any:
        up = self._number(path, "direction") < Fraction(1, 2)
        sign = 1 if up else -1
        if isinstance(space, Continuous):
            step = float(self._factor) * (value or space.high - space.low)
            return min(max(value + sign * step, space.low), space.high)
        if isinstance(space, Quantized):
            multiple = round(Fraction(str(value)) / Fraction(str(space.step)))
            moved = multiple * (1 + sign * self._factor)
            nearest = math.ceil(moved) if up else math.floor(moved)
            if nearest == multiple:
                nearest += sign
            return space.value(min(max(nearest, space.first), space.last))
        index = option_of(space, value)
        neighbour = min(max(index + sign, 0), len(space.options) - 1)
        if neighbour == index:
            return self.moved(space.options[index], value, (*path, f"<{index}>"))
        return self._drawn(space.options[neighbour], (*path, f"<{neighbour}>"))

    def _drawn(self, space: Any, path: Path) -> Any:
        return draw({"value": space}, self._bits(path, "draw"), self._trial)["value"]

    def _number(self, path: Path, purpose: str) -> Fraction:
        """Number from 0 to below 1, of random bits."""
        return Fraction(self._bits(path, purpose), 2**64)

    def _bits(self, path: Path, purpose: str) -> int:
        key = json.dumps(["explore", self._seed, self._trial, path, purpose]).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())


def option_of(choice: Choice, value: Any) -> int:
    """Index of the option that a value was made of: the first that holds it."""
    for index, option in enumerate(choice.options):
        try:
            check_point(option, value)
        except SpaceError:
            continue
        return index
    raise SpaceError(f"{value!r} is not one of {choice!r}. Start a new run with this search space.")
