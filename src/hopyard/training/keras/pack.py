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
from typing import Any
from weakref import WeakKeyDictionary

import jax
import keras
import numpy as np

from hopyard.errors import DivergedError
from hopyard.training import measuring
from hopyard.training.estimator import Visit, _TogetherError
from hopyard.training.fallback import described
from hopyard.training.keras.compiled import Compiled, Holder
from hopyard.training.keras.metrics import KerasMetricSet
from hopyard.training.keras.state import assign
from hopyard.training.keras.steps import JaxState, JaxSteps, StepKind, check_width
from hopyard.training.measuring import LEAST_GAIN

_WIDTH = 4
"""Members whose steps one program makes; it gains little more with others."""
_TURNS_FIRST = 2
"""CPU time that members train in turns before a program is tried, as a multiple of what compiling one step takes."""
_TURNS_LEFT = 5
"""The same of what is left: a program takes about 1.5 times as long to compile, and saves a third, or nothing."""
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
        steps: that were made in it.
        saved: CPU time that reading and preparing batches for each model would have taken besides.
        width: members whose steps the program makes.
        program: makes a step of so many members; None: there is none.
        kind: of the batches that it takes, which would be compiled anew for others.
        tried: whether it was looked for.
        why: why there is none.
        gain: how many times as long a step takes members one by one as by the program; None: not measured.
    """

    spent: float = 0.0
    steps: int = 0
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
    replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
) -> list[dict[str, list[float]] | Exception] | None:
    """See :meth:`hopyard.training.estimator.Replica.train_together`."""
    leader, begun = replicas[0], measuring.clock()
    reading = _Timed(leader.training_arguments(visit))
    opened = _opened(replicas, reading)
    if opened is None:
        return None
    compiled, batches = opened
    layout = _Layout(compiled, "train")
    with compiled.lock:
        way = _ways.setdefault(compiled, _Way())
        members = _Members(layout.steps, way, layout.states(replicas, seeds))
        for replica in replicas:
            replica.note_unchanged()
        try_first = _pays(way, members.steps, leader.steps_left(visit.epoch) * len(replicas))
        for batch in batches:
            if try_first:
                try_first = False
                _try_program(way, members, batch)
            with _failures_noted(leader.signature, way):
                members.step(batch)
        found: list[dict[str, list[float]] | Exception] = []
        for replica, (result, state) in zip(replicas, members.ended(), strict=True):
            layout.give(replica.holder, state)
            try:
                found.append(replica.trained(visit, compiled, result))
            except DivergedError as error:
                found.append(error)
    if way.program is None:
        way.spent += measuring.clock() - begun
        way.steps += reading.count * len(replicas)
        way.saved += (len(replicas) - 1) * reading.seconds
        if way.tried and way.spent + way.saved < LEAST_GAIN * way.spent:
            _alone[leader.signature] = way.why
    return found


def validate_together(
    replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
) -> list[KerasMetricSet | Exception] | None:
    """See :meth:`hopyard.training.estimator.Replica.validate_together`."""
    opened = _opened(replicas, replicas[0].validation_arguments(visit))
    if opened is None:
        return None
    compiled, batches = opened
    layout = _Layout(compiled, "test")
    with compiled.lock:
        states = layout.states(replicas, seeds)
        with compiled.in_steps("test"):
            for batch in batches:
                for slot, state in enumerate(states):
                    _, states[slot] = layout.steps.step("test", state, batch)
        found: list[KerasMetricSet | Exception] = []
        for replica, state in zip(replicas, states, strict=True):
            layout.give(replica.holder, state)
            found.append(KerasMetricSet(compiled.model))
    return found


def gain_together(replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]) -> float | None:
    """See :meth:`hopyard.training.estimator.Replica.gain_together`. None also where compiling and measuring would take
    more than two seconds."""
    opened = _opened(replicas, replicas[0].training_arguments(visit))
    if opened is None:
        return None
    compiled, batches = opened
    layout = _Layout(compiled, "train")
    with compiled.lock:
        way = _ways.setdefault(compiled, _Way())
        members = _Members(layout.steps, way, layout.states(replicas, seeds))
        batch = next(batches)
        if not way.tried:
            members.step(batch)  # the first one compiles
            alone = measuring.seconds_once(functools.partial(members.step, batch))
            if 1.5 * members.steps.seconds_to_compile + 4 * _STEPS_COMPARED * alone < _MOST_PROBE_SECONDS:
                _try_program(way, members, batch)
    return None if way.program is None else way.gain


class _Timed:
    """Batches, with their number so far, and the CPU time that this thread takes for them."""

    def __init__(self, batches: Iterable[Arguments]) -> None:
        self._batches = iter(batches)
        self.seconds: float = 0.0
        self.count: int = 0

    def __iter__(self) -> Iterator[Arguments]:
        return self

    def __next__(self) -> Arguments:
        begun = time.thread_time()
        batch = next(self._batches)
        self.seconds += time.thread_time() - begun
        self.count += 1
        return batch


def _opened(
    replicas: Sequence[Any], batches: Iterable[Arguments]
) -> tuple[Compiled, Iterator[Arguments]] | None:
    """The compiled model that all use, and the batches on the device; None: they do not use one."""
    arguments = iter(batches)
    first = next(arguments)
    compiled = replicas[0].sharing(first)
    if not all(replica.shares(compiled) or replica.sharing(first) is compiled for replica in replicas):
        return None
    return compiled, map(_placed, replicas[0].checked(compiled, itertools.chain([first], arguments)))


def _placed(batch: Arguments) -> Arguments:
    check_width(batch)
    placed: Arguments = keras.tree.map_structure(jax.numpy.asarray, batch)
    return placed


class _Layout:
    """Where a trial's values are in the states of steps.

    Attributes:
        steps: of the compiled model.
    """

    def __init__(self, compiled: Compiled, kind: StepKind) -> None:
        assert isinstance(compiled.steps, JaxSteps), "models on other backends have no signature"
        self.steps: JaxSteps = compiled.steps
        self._compiled = compiled
        self._groups = self.steps.variables(kind)
        self._places = {id(variable): place for place, variable in enumerate(compiled.variables)}
        self._kind = kind

    def states(self, replicas: Sequence[Any], seeds: Sequence[int]) -> list[Any]:
        """Of each the state that a visit begins with, as ``Compiled.run`` would find it."""
        compiled = self._compiled
        compiled.model.reset_metrics()
        begun = {id(each): np.array(each.value) for each in compiled.model.metrics_variables}
        found = []
        for replica, seed in zip(replicas, seeds, strict=True):
            values = compiled.values(replica.holder)
            averages = compiled.averaged(values) if self._kind == "test" else {}
            values = [averages.get(place, value) for place, value in enumerate(values)]
            own = {**begun, **compiled.seeds(random.Random(seed).getrandbits)}
            own |= {name: values[place] for name, place in self._places.items()}
            found.append(tuple([own[id(variable)] for variable in group] for group in self._groups))
        return found

    def give(self, holder: Holder, state: JaxState) -> None:
        """Have a trial hold the state that it came to, and its metrics in the compiled model."""
        values = list(self._compiled.values(holder))
        averages = self._compiled.averaged(values) if self._kind == "test" else {}
        for group, its in zip(self._groups, state, strict=True):
            for variable, value in zip(group, its, strict=True):
                place = self._places.get(id(variable))
                if place is not None and place not in averages:
                    values[place] = np.array(value)
        self._compiled.give(holder, values)
        assign(self._compiled.model.metrics_variables, state[-1])


def _stacked(states: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *values: np.stack(values), *states)


def _unstacked(stack: Any, width: int) -> list[Any]:
    arrays = jax.tree.map(np.asarray, stack)
    return [jax.tree.map(lambda values, slot=slot: values[slot], arrays) for slot in range(width)]


def _kind_of(batch: Arguments) -> Any:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch)]


class _Members:
    """States of members in a visit, step by step.

    Attributes:
        steps: of one of them.
    """

    def __init__(self, steps: JaxSteps, way: _Way, states: Sequence[Any]) -> None:
        self.steps: JaxSteps = steps
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

    def copies(self) -> list[Any]:
        """Copies of the states of as many as a program is for, which are not stacked."""
        return [jax.tree.map(np.array, state) for state in self._states[:_WIDTH]]

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


def _pays(way: _Way, steps: JaxSteps, left: int) -> bool:
    """Whether compiling a program is little beside so many steps as are ``left``."""
    if way.tried or not way.steps:
        return False
    compiling = steps.seconds_to_compile
    return way.spent >= _TURNS_FIRST * compiling and left * way.spent / way.steps >= _TURNS_LEFT * compiling


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
