"""Optuna's samplers as proposers of our spaces, and its pruners around any searcher.

Optuna is asked and told (``study.ask``, ``trial.suggest_*``) about an in-memory study; nothing of it is seen
outside: points are points of our space, and its logging and warnings stay as the user set them.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, TypeAlias

from hopyard.errors import MissingExtraError, SpaceError, UsageError
from hopyard.missing import missing_extra
from hopyard.search.base import Create, Operation, Searcher, Stop
from hopyard.search.points import check_point, draw, key_of, points
from hopyard.search.proposers import DifferentPoints
from hopyard.search.spaces import Choice, Continuous, Quantized
from hopyard.search.stopping import EpochByEpoch

if find_spec("optuna") is None:
    raise missing_extra("optuna", "search", "HyperOpt, or a sampler or pruner of Optuna,")

import numpy as np
import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, CmaEsSampler, GridSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import Trial, TrialState

Sampler: TypeAlias = BaseSampler | type[BaseSampler] | Callable[[int], BaseSampler] | None

REPEATS = 8
"""Points in a row that a sampler may repeat before a point that is left is taken instead."""

WIDEST = 1e300
"""Of a dimension's range: Optuna computes with floats, also beyond the bounds."""

EXACT = 2**53
"""Whole numbers up to here are floats; Optuna holds larger ones as floats, too."""


class OptunaPoints(DifferentPoints):
    """Points of a sampler of Optuna, those of ``initial_params`` first.

    What a trial has reached when it is observed is its value; a trial observed after fewer visits than another
    counts as pruned there, so that only equally long trials are compared. One that ends without any is told as
    failed. A point of a finite space is proposed once, and any point again only if the sampler insists and 200 random
    draws bring no other.

    Args:
        sampler: an object of ``optuna.samplers``, a class, or a function of a seed. None: TPE, multivariate, with a
            group of dimensions for each set of options, and running trials taken for bad ones. (Bergstra et al.,
            NIPS 2011; Falkner et al., ICML 2018.)
        seed: all that is random follows from it; it replaces the seed that an object was made with.

    Raises:
        SpaceError: a point is outside the space, or a dimension is too wide for floats.
        UsageError: a sampler that cannot be seeded; says what to write.
    """

    learns = True

    def __init__(
        self,
        space: Mapping[str, Any],
        sampler: Sampler = None,
        seed: int = 0,
        initial_params: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(space, initial_params)
        _check_widths(self.space, "")
        self._seed = seed
        with quiet():
            self._study = _study(seeded_sampler(sampler, seed, self.space))
        self._trials: dict[int, Trial] = {}
        self._longest = 0

    def propose(self, trial: int) -> dict[str, Any] | None:
        if trial < len(self._initial):
            return self._added(trial, self._initial[trial])
        if self._most is not None and len(self._seen) >= self._most:
            return None
        for _ in range(REPEATS):
            asked, point = self._asked()
            if key_of(point) not in self._seen:
                self._seen.add(key_of(point))
                self._trials[trial] = asked
                return point
            self._tell(asked, TrialState.FAIL)
        left = next((point for point in self._others() if key_of(point) not in self._seen), None)
        return None if left is None else self._added(trial, left)

    def observed(self, trial: int, visits: int, value: float) -> None:
        storage, trial_id = self._study._storage, self._trials[trial]._trial_id
        first = not storage.get_trial(trial_id).state.is_finished()
        storage.set_trial_intermediate_value(trial_id, visits, value)
        if visits > self._longest:
            self._longest = visits
            for earlier in self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
                storage.set_trial_state_values(earlier._trial_id, TrialState.PRUNED)
        state = TrialState.COMPLETE if visits == self._longest else TrialState.PRUNED
        if first:
            self._tell(self._trials[trial], state, value)
        else:
            storage.set_trial_state_values(trial_id, state, [value])

    def ended(self, trial: int) -> None:
        asked = self._trials.pop(trial)
        if not self._study._storage.get_trial(asked._trial_id).state.is_finished():
            self._tell(asked, TrialState.FAIL)

    def _asked(self) -> tuple[Trial, dict[str, Any]]:
        with quiet():
            asked = self._study.ask()
            try:
                point: dict[str, Any] = _suggested(asked, self.space, "")
            except Exception as error:
                name = type(self._study.sampler).__name__
                if isinstance(error, ModuleNotFoundError):
                    raise _missing(name, str(error.name)) from None
                raise UsageError(
                    f"Optuna's {name} proposed no point: {error} Give another sampler, or a space that {name} takes."
                ) from error
        return asked, point

    def _added(self, trial: int, point: dict[str, Any]) -> dict[str, Any]:
        """A point that the sampler did not propose becomes a trial of the study."""
        with quiet():
            self._study.enqueue_trial(params_of(self.space, point))
        self._trials[trial], _ = self._asked()
        self._seen.add(key_of(point))
        return copy.deepcopy(point)

    def _tell(self, asked: Trial, state: TrialState, value: float | None = None) -> None:
        with quiet():
            self._study.tell(asked, value if state == TrialState.COMPLETE else None, state)

    def _others(self) -> Iterator[dict[str, Any]]:
        if self._most is not None:
            return points(self.space)
        begin = len(self._seen)
        return (draw(self.space, self._seed, number) for number in range(begin, begin + 200))


class OptunaPruning(EpochByEpoch):
    """Stops a trial at the end of an epoch if ``pruner`` says so. Optuna's steps are epochs, from 0, as its pruners
    assume.

    Most pruners compare with trials that have ended, as Optuna does: give ``max_concurrent``, or nothing is
    stopped before the first trials have trained to the end. An infinite value is NaN for Optuna.

    Args:
        pruner: an object of ``optuna.pruners``, or one of the user's own that decides by the study alone; it is copied.
        seed: the brackets that ``HyperbandPruner`` puts trials into follow from it.
        maximize: whether larger values of the metric are better; the pruner sees the values as the user does.

    Raises:
        UsageError: something else than a pruner.
    """

    def __init__(
        self, searcher: Searcher, pruner: BasePruner, epoch: int, seed: int = 0, *, maximize: bool = False
    ) -> None:
        super().__init__(searcher, epoch)
        if not isinstance(pruner, BasePruner):
            raise UsageError(
                f"pruner={pruner!r}, but it must be an object of optuna.pruners. "
                "Write pruner=optuna.pruners.MedianPruner()."
            )
        self.independent = False
        self._study = _study(RandomSampler(seed=0), copy.deepcopy(pruner), f"hopyard-{seed}", maximize)
        self._sign = -1 if maximize else 1
        self._trials: list[Trial] = []
        self._pruned: set[int] = set()

    def stops(self, trial: int, visits: int, value: float) -> bool:
        with quiet():
            self._trials[trial].report(
                self._sign * value if math.isfinite(value) else math.nan, visits // self.epoch - 1
            )
            stops = self._trials[trial].should_prune()
        if stops:
            self._pruned.add(trial)
        return stops

    def exited(self, trial: int) -> list[Operation]:
        self._ended(trial, TrialState.FAIL)
        return super().exited(trial)

    def stopped_early(self, trial: int, visits: int, value: float) -> list[Operation]:
        self._ended(trial, TrialState.PRUNED)
        return super().stopped_early(trial, visits, value)

    def _epochs(self, operations: list[Operation]) -> list[Operation]:
        said = super()._epochs(operations)
        for operation in said:
            if isinstance(operation, Create):
                with quiet():
                    self._trials.append(self._study.ask())
            elif isinstance(operation, Stop):
                pruned = operation.trial in self._pruned
                self._ended(operation.trial, TrialState.PRUNED if pruned else TrialState.COMPLETE)
        return said

    def _ended(self, trial: int, state: TrialState) -> None:
        storage, trial_id = self._study._storage, self._trials[trial]._trial_id
        values = [*storage.get_trial(trial_id).intermediate_values.values()]
        if not values or math.isnan(values[-1]):
            storage.set_trial_state_values(trial_id, TrialState.FAIL)
        else:
            storage.set_trial_state_values(trial_id, state, values[-1:])


def seeded_sampler(sampler: Any, seed: int, space: Mapping[str, Any]) -> BaseSampler:
    """A sampler of the user's kind whose random numbers follow from ``seed`` alone; a given object is copied.

    Raises:
        UsageError: it cannot be seeded; says what to write.
        MissingExtraError: it needs a package that is not installed.
    """
    if find_spec("cmaes") is None and (sampler is CmaEsSampler or isinstance(sampler, CmaEsSampler)):
        raise _missing("CmaEsSampler", "cmaes")  # which Optuna imports once the first trials have ended
    if sampler is None or sampler is TPESampler:
        return TPESampler(
            multivariate=True, group=_is_conditional(space), constant_liar=True, seed=seed % 2**32
        )
    made: Any = None
    if isinstance(sampler, BaseSampler):
        copied = copy.deepcopy(sampler)
        _reseed(copied, [seed])
        return copied
    if isinstance(sampler, type):
        try:
            made = sampler(seed=seed % 2**32)
        except TypeError as error:
            raise UsageError(
                f"sampler={sampler.__name__} cannot be made from a seed alone: {error}. Write a function of a seed: "
                f"sampler=lambda seed: {sampler.__name__}(..., seed=seed)."
            ) from None
    elif callable(sampler):
        made = sampler(seed % 2**32)
    if isinstance(made, BaseSampler):
        if _is_of_optuna(made):  # a function may have left the seed out
            _reseed(made, [seed])
        return made
    if made is not None:
        raise UsageError(
            f"sampler makes {made!r}, but must make a sampler of Optuna. Write "
            "sampler=lambda seed: optuna.samplers.TPESampler(seed=seed)."
        )
    raise UsageError(
        f"sampler={sampler!r}, but it must be an object or a class of optuna.samplers, or a function of a seed that "
        "returns an object. Write sampler=optuna.samplers.TPESampler()."
    )


def _missing(sampler: str, package: str) -> MissingExtraError:
    return MissingExtraError(
        f"Optuna's {sampler} needs the package {package!r}, which is not installed. Install it with: "
        f"pip install {package}"
    )


def params_of(space: Any, point: Any, name: str = "") -> dict[str, Any]:
    """A point in Optuna's terms: choices by index, quantised values in steps, by the names of their dimensions."""
    match space:
        case Choice():
            index, option = chosen(space, point)
            return {name: index} | params_of(option, point, f"{name}[option {index}]")
        case Continuous():
            return {name: float(point)}
        case Quantized():
            return {name: _as_asked(space, round(Fraction(str(point)) / Fraction(str(space.step))))}
        case dict() | list():
            children = ((child, point[key], name_in(name, key)) for key, child in _items(space))
            return {k: v for child in children for k, v in params_of(*child).items()}
    return {}


def chosen(choice: Choice, point: Any) -> tuple[int, Any]:
    """The option that ``point`` is a point of, the first if there are several, and its index."""
    for index, option in enumerate(choice.options):
        with contextlib.suppress(SpaceError):
            check_point(option, point)
            return index, option
    raise SpaceError(f"{point!r} is no point of {choice!r}. Give one of its options.")


def name_in(name: str, key: str | int) -> str:
    """The name of a dimension under ``key``: ``optimizer[option 0].momentum``, quoted where it would be ambiguous."""
    if isinstance(key, int):
        return f"{name}[{key}]"
    plain = key if key and not set(key) & set('.["') else json.dumps(key)
    return f"{name}.{plain}" if name else plain


def _suggested(trial: Trial, space: Any, name: str) -> Any:
    """The point that ``trial`` proposes, asked for dimension by dimension."""
    match space:
        case Choice(options):
            index = trial.suggest_categorical(name, range(len(options)))
            return _suggested(trial, options[index], f"{name}[option {index}]")
        case Continuous(low=low, high=high, log=log):
            return min(max(trial.suggest_float(name, low, high, log=log), low), high)
        case Quantized(first=first, last=last, log=log):
            if isinstance(_as_asked(space, first), int):
                return space.value(trial.suggest_int(name, first, last, log=log))
            value = trial.suggest_float(name, float(first), float(last), log=log)
            return space.value(min(max(round(value), first), last))
        case dict():
            return {key: _suggested(trial, value, name_in(name, key)) for key, value in space.items()}
        case list():
            return [_suggested(trial, value, name_in(name, index)) for index, value in enumerate(space)]
    return space


def _as_asked(dimension: Quantized, multiple: int) -> int | float:
    """A number of steps as Optuna is asked for it."""
    return multiple if max(abs(dimension.first), abs(dimension.last)) <= EXACT else float(multiple)


def _items(space: dict[str, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    return space.items() if isinstance(space, dict) else enumerate(space)


def _check_widths(space: Any, name: str) -> None:
    match space:
        case Choice(options):
            for index, option in enumerate(options):
                _check_widths(option, f"{name}[option {index}]")
        case Continuous(low=low, high=high) | Quantized(first=low, last=high):
            if max(-low, high) > WIDEST:
                raise SpaceError(
                    f"{name} is {space!r}, which is too wide for Optuna: its samplers take numbers up to "
                    f"{WIDEST:g}. Give narrower bounds, or use RandomSearch."
                )
        case dict() | list():
            for key, child in _items(space):
                _check_widths(child, name_in(name, key))


def _is_conditional(space: Any) -> bool:
    """Whether some dimension exists only where an option is chosen."""
    match space:
        case Choice(options):
            return any(_has_dimensions(option) for option in options)
        case dict() | list():
            return any(_is_conditional(child) for _, child in _items(space))
    return False


def _has_dimensions(space: Any) -> bool:
    match space:
        case Choice() | Continuous() | Quantized():
            return True
        case dict() | list():
            return any(_has_dimensions(child) for _, child in _items(space))
    return False


def _reseed(sampler: Any, path: list[Any]) -> None:
    """Seed every generator that a sampler holds, and those of samplers inside."""
    if isinstance(sampler, BaseSampler):
        name = type(sampler).__name__
        if isinstance(sampler, GridSampler):
            raise UsageError("sampler is a GridSampler, which has a space of its own. Use GridSearch.")
        if not _is_of_optuna(sampler):
            raise UsageError(
                f"sampler is an object of {name}, whose random numbers cannot be seeded from outside, so a run could "
                f"not go on after a crash. Give a function of a seed: sampler=lambda seed: {name}(seed=seed)."
            )
    digest = hashlib.blake2b(json.dumps(path).encode(), digest_size=4).digest()
    for name, value in sorted(vars(sampler).items()):
        generator = getattr(value, "rng", value)
        if isinstance(generator, np.random.RandomState):
            generator.seed(int.from_bytes(digest))
        elif name == "_seed":
            setattr(sampler, name, int.from_bytes(digest))
        elif isinstance(value, BaseSampler) or (_is_of_optuna(value) and hasattr(value, "__dict__")):
            _reseed(value, [*path, name])


def _is_of_optuna(thing: Any) -> bool:
    return type(thing).__module__.startswith("optuna.samplers.")


class _Storage(optuna.storages.InMemoryStorage):
    """Trials that were told may be told more: they were validated, and train on."""

    def check_trial_is_updatable(self, trial_id: int, trial_state: TrialState) -> None:
        pass


class _Study(optuna.Study):
    """A study whose end is not for the sampler to say."""

    def stop(self) -> None:
        pass


def _study(
    sampler: BaseSampler, pruner: BasePruner | None = None, name: str = "hopyard", maximize: bool = False
) -> optuna.Study:
    """A study of its own, in memory."""
    storage = _Storage()
    with quiet():
        storage.create_new_study([StudyDirection.MAXIMIZE if maximize else StudyDirection.MINIMIZE], name)
    return _Study(name, storage, sampler, pruner)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps to itself what Optuna logs and warns of: a user can do nothing about it, or is told by an error."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            for category in (optuna.exceptions.ExperimentalWarning, RuntimeWarning, UserWarning):
                warnings.simplefilter("ignore", category)
            yield
    finally:
        optuna.logging.set_verbosity(before)
