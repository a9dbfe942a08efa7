"""Packs of Keras models on JAX: models of one architecture that train together, on one reading of each batch.

Every member comes to the bits that it comes to alone. First all make a step in turns, by the function that trains them
alone. When that has taken so long that compiling pays, it is tried to have one program make a step of several members
(see :meth:`hopyard.training.keras.steps.JaxSteps.program`): used is what has the bits of steps in turns, and takes less
CPU time. So nothing but the time that training takes depends on who trains with whom.
"""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import jax
import keras
import numpy as np

from hopyard.errors import DivergedError
from hopyard.training import measuring
from hopyard.training.estimator import Visit, _TogetherError
from hopyard.training.fallback import described
from hopyard.training.keras.compiled import Compiled
from hopyard.training.keras.metrics import KerasMetricSet
from hopyard.training.keras.steps import JaxState, JaxSteps, check_width
from hopyard.training.measuring import LEAST_GAIN

if TYPE_CHECKING:
    from hopyard.training.keras.replica import KerasReplica

_WIDTH = 4
"""Members whose steps one program makes; it gains little more with others."""
_TURNS_FIRST = 15
"""CPU time that members train in turns before a program is tried, as a multiple of what compiling one step takes: the
program takes about 1.5 times as long to compile, which is lost where it gains nothing."""
_STEPS_COMPARED = 5
_MOST_PROBE_SECONDS = 2.0
"""CPU time that measuring takes where nothing is trained."""

Arguments = tuple[Any, ...]
Program = Callable[[JaxState, Arguments], tuple[Any, JaxState]]


@dataclass
class _Way:
    """How the models that use one compiled model train together.

    Attributes:
        spent: CPU time of training in turns so far.
        saved: CPU time that reading and preparing batches for each model would have taken besides.
        width: members whose steps the program makes.
        program: makes a step of so many members; None: there is none.
        kind: of the batches that it takes, which would be compiled anew for others.
        tried: whether it was looked for.
        why: why there is none.
        gain: how many times as long a step takes members one by one as by the program; None: not measured.
    """

    spent: float = 0.0
    saved: float = 0.0
    width: int = 0
    program: Program | None = None
    kind: Any = None
    tried: bool = False
    why: str = ""
    gain: float | None = None


_ways: WeakKeyDictionary[Compiled, _Way] = WeakKeyDictionary()
_alone: dict[str, str] = {}
"""By signature: why models train one at a time."""


def why_alone(signature: str) -> str:
    """Reason why models of a signature train one at a time, as this process has found; empty: they do not."""
    return _alone.get(signature, "")


def train_together(
    replicas: Sequence[KerasReplica], visit: Visit, seeds: Sequence[int]
) -> list[dict[str, list[float]] | Exception] | None:
    """See :meth:`hopyard.training.estimator.Replica.train_together`."""
    leader, begun = replicas[0], measuring.clock()
    reading = _Timed(leader.training_arguments(visit))
    opened = _opened(replicas, reading)
    if opened is None:
        return None
    compiled, batches = opened
    with compiled.lock:
        way = _ways.setdefault(compiled, _Way())
        members = _Members(compiled, way, _states(replicas, compiled, "train", seeds))
        try_first = not way.tried and way.spent > _TURNS_FIRST * members.steps.seconds_to_compile
        for batch in batches:
            if try_first:
                try_first = False
                _try_program(way, members, batch)
            with _failures_noted(leader.signature, way):
                members.step(batch)
        found: list[dict[str, list[float]] | Exception] = []
        for replica, (result, state) in zip(reversed(replicas), reversed(members.ended()), strict=True):
            replica.take(compiled)
            members.steps.put("train", state)
            try:
                found.append(replica.trained(visit, compiled, result))
            except DivergedError as error:
                found.append(error)
    if way.program is None:
        way.spent += measuring.clock() - begun
        way.saved += (len(replicas) - 1) * reading.seconds
        if way.tried and way.spent + way.saved < LEAST_GAIN * way.spent:
            _alone[leader.signature] = way.why
    return found[::-1]


def validate_together(
    replicas: Sequence[KerasReplica], visit: Visit, seeds: Sequence[int]
) -> list[KerasMetricSet | Exception] | None:
    """See :meth:`hopyard.training.estimator.Replica.validate_together`."""
    opened = _opened(replicas, replicas[0].validation_arguments(visit))
    if opened is None:
        return None
    compiled, batches = opened
    steps = _steps(compiled)
    with compiled.lock:
        states = _states(replicas, compiled, "test", seeds)
        with compiled.in_steps("test"):
            for batch in batches:
                for slot, state in enumerate(states):
                    _, states[slot] = steps.step("test", state, batch)
        found: list[KerasMetricSet | Exception] = []
        for replica, state in zip(reversed(replicas), reversed(states), strict=True):
            replica.take(compiled)
            with compiled.with_averages():
                steps.put("test", state)
            found.append(KerasMetricSet(compiled.model))
    return found[::-1]


def gain_together(replicas: Sequence[KerasReplica], visit: Visit, seeds: Sequence[int]) -> float | None:
    """See :meth:`hopyard.training.estimator.Replica.gain_together`. None also where compiling and measuring would take
    more than two seconds."""
    opened = _opened(replicas, replicas[0].training_arguments(visit))
    if opened is None:
        return None
    compiled, batches = opened
    with compiled.lock:
        way = _ways.setdefault(compiled, _Way())
        members = _Members(compiled, way, _states(replicas, compiled, "train", seeds))
        batch = next(batches)
        if not way.tried:
            members.step(batch)  # the first one compiles
            alone = measuring.seconds_once(functools.partial(members.step, batch))
            if 1.5 * members.steps.seconds_to_compile + 4 * _STEPS_COMPARED * alone < _MOST_PROBE_SECONDS:
                _try_program(way, members, batch)
    return None if way.program is None else way.gain


def _steps(compiled: Compiled) -> JaxSteps:
    assert isinstance(compiled.steps, JaxSteps), "models on other backends have no signature"
    return compiled.steps


class _Timed:
    """Batches, with the CPU time that this thread takes for them."""

    def __init__(self, batches: Iterable[Arguments]) -> None:
        self._batches = iter(batches)
        self.seconds: float = 0.0

    def __iter__(self) -> Iterator[Arguments]:
        return self

    def __next__(self) -> Arguments:
        begun = time.thread_time()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.thread_time() - begun


def _opened(
    replicas: Sequence[KerasReplica], batches: Iterable[Arguments]
) -> tuple[Compiled, Iterator[Arguments]] | None:
    """The compiled model that all use, and the batches on the device; None: they do not use one."""
    arguments = iter(batches)
    first = next(arguments)
    compiled, *others = [replica.sharing(first) for replica in replicas]
    if any(other is not compiled for other in others):
        return None
    return compiled, map(_placed, replicas[0].checked(compiled, itertools.chain([first], arguments)))


def _placed(batch: Arguments) -> Arguments:
    check_width(batch)
    placed: Arguments = keras.tree.map_structure(jax.numpy.asarray, batch)
    return placed


def _states(
    replicas: Sequence[KerasReplica], compiled: Compiled, kind: Any, seeds: Sequence[int]
) -> list[JaxState]:
    """Of each its state at the begin of a visit, as ``Compiled.run`` would find it; in memory of its own."""
    states = []
    for replica, seed in zip(replicas, seeds, strict=True):
        replica.take(compiled)
        compiled.model.reset_metrics()
        compiled.seed(random.Random(seed).getrandbits)
        if kind == "test":
            with compiled.with_averages():
                states.append(_copied(_steps(compiled).state(kind)))
        else:
            replica.note_unchanged()
            states.append(_copied(_steps(compiled).state(kind)))
    return states


def _copied(state: Any) -> Any:
    return jax.tree.map(lambda value: jax.numpy.array(value, copy=True), state)


def _stacked(states: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *values: jax.numpy.stack(values), *states)


def _unstacked(stack: Any, width: int) -> list[Any]:
    return [jax.tree.map(lambda values, slot=slot: values[slot], stack) for slot in range(width)]


def _kind_of(batch: Arguments) -> Any:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch)]


class _Members:
    """States of members in a visit, step by step.

    Attributes:
        steps: of one of them.
    """

    def __init__(self, compiled: Compiled, way: _Way, states: Sequence[JaxState]) -> None:
        self.steps: JaxSteps = _steps(compiled)
        self._way = way
        self._states: list[Any] = list(states)
        self._results: list[Any] = [None] * len(states)
        self._stacks: list[Any] = []
        self._stacked_results: list[Any] = []

    def step(self, batch: Arguments) -> None:
        """Make a step of each on a batch."""
        way = self._way
        if way.program is None or _kind_of(batch) != way.kind:
            self._unstack()
            self._in_turns(batch, 0)
            return
        if not self._stacks:
            starts = range(0, len(self._states) - way.width + 1, way.width)
            self._stacks = [_stacked(self._states[start : start + way.width]) for start in starts]
            self._stacked_results = [None] * len(self._stacks)
        for number, stack in enumerate(self._stacks):
            self._stacked_results[number], self._stacks[number] = way.program(stack, batch)
        self._in_turns(batch, len(self._stacks) * way.width)

    def _in_turns(self, batch: Arguments, first: int) -> None:
        for slot in range(first, len(self._states)):
            self._results[slot], self._states[slot] = self.steps.step("train", self._states[slot], batch)

    def _unstack(self) -> None:
        width = self._way.width
        for number, (result, stack) in enumerate(zip(self._stacked_results, self._stacks, strict=True)):
            slots = slice(number * width, (number + 1) * width)
            self._states[slots] = _unstacked(stack, width)
            self._results[slots] = _unstacked(result, width)
        self._stacks, self._stacked_results = [], []

    def copies(self) -> list[JaxState]:
        """Copies of the states of as many as a program is for; before their first step."""
        return [_copied(state) for state in self._states[:_WIDTH]]

    def ended(self) -> list[tuple[Any, JaxState]]:
        """Of each the result of its last step, and its state."""
        self._unstack()
        return list(zip(self._results, self._states, strict=True))


@contextmanager
def _failures_noted(signature: str, way: _Way) -> Iterator[None]:
    """Have models of this signature train one at a time from now on, if their program fails.

    Raises:
        _TogetherError: it has failed.
    """
    try:
        yield
    except Exception as error:
        if way.program is None:  # a step of one of them has failed, as it would alone
            raise
        way.program, way.why = None, f"training them together failed ({described(error)})"
        _alone[signature] = way.why
        raise _TogetherError(way.why) from error


def _try_program(way: _Way, members: _Members, batch: Arguments) -> None:
    """Look, on copies of the first members, whether one program makes steps with the same bits in less CPU time."""
    way.tried, steps = True, members.steps
    try:
        alone = members.copies()
        width, together = len(alone), _stacked(members.copies())
        program: Program | None = None
        for _ in range(_STEPS_COMPARED):
            results = []
            for slot in range(width):
                result, alone[slot] = steps.step("train", alone[slot], batch)
                results.append(result)
            program = program or steps.program(results[0])
            found, together = program(together, batch)
            if not _same(_stacked(results), found) or not _same(_stacked(alone), together):
                way.why = "by one program they would not have the same bits"
                return
        assert program is not None
        way.gain = _measured(steps, program, alone[0], together, width, batch)
    except Exception as error:
        way.why = f"a trial of one program failed ({described(error)})"
        return
    if way.gain < LEAST_GAIN:
        way.why = f"{width} of them by one program would take {1 / way.gain:.2f} times as long as one by one"
    else:
        way.program, way.width, way.kind = program, width, _kind_of(batch)


def _measured(
    steps: JaxSteps, program: Program, state: JaxState, stack: JaxState, width: int, batch: Arguments
) -> float:
    states = {"alone": state, "together": stack}

    def alone() -> None:
        _, states["alone"] = steps.step("train", states["alone"], batch)
        _wait(states["alone"])

    def together() -> None:
        _, states["together"] = program(states["together"], batch)
        _wait(states["together"])

    until = measuring.clock() + _MOST_PROBE_SECONDS
    return measuring.gain(alone, together, width, LEAST_GAIN, until)


def _wait(state: JaxState) -> None:
    """Wait until a state is there."""
    for value in jax.tree.leaves(state):
        value.block_until_ready()


def _same(one: Any, other: Any) -> bool:
    """Whether all arrays of two trees have the same bits, but for those of numbers that are none."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(_bits(each) == _bits(its) for each, its in pairs)


def _bits(values: Any) -> bytes:
    array = np.array(values)
    array[array != array] = 0  # no number: all are alike
    return array.tobytes()
