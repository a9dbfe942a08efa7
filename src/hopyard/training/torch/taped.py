"""Models of one structure, trained and validated together by plans that are made from their tapes.

Each member's own ``forward`` (or step), loss and gradients are recorded once for a shape of batches, and what the tapes
have in common is done at once (:mod:`hopyard.training.torch.plan`). What a tape cannot show is refused: a computation
that changes attributes, prints, or draws random numbers outside of PyTorch. A plan is used only if it gives each member
the loss and gradients, to the bit, that the member computes alone; both are computed with parameters that are off their
values, as adapters often begin with zeros, behind which differences would hide.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError
from hopyard.training import measuring
from hopyard.training.estimator import _TriedError
from hopyard.training.fallback import described, say_fallback
from hopyard.training.torch import hidden
from hopyard.training.torch.base import Base
from hopyard.training.torch.forward import BatchResult, Forward
from hopyard.training.torch.plan import OfMembers, PackPlan, PlanInputs, _OtherBranchError, plan_for
from hopyard.training.torch.rules import Differing
from hopyard.training.torch.stack import aligned, same_numbers
from hopyard.training.torch.tape import Tape, _NotRecordedError, _TouchedError, mapped, record
from hopyard.training.torch.untouched import (
    copied,
    drawing_from,
    gradients_kept,
    listening,
    members_kept,
    off_values,
    own_tensors,
    surroundings,
    tensors_kept,
)
from hopyard.wording import some_names

Measured: TypeAlias = tuple[torch.Tensor, Any, Mapping[str, Any]]
"""Loss, weight (None: the rows) and other values of a batch."""

_MOST_BRANCHES = 3
_MOST_PLANS = 64
_MOST_FORMS = 16
_OFTEN = 4
"""Batches of a shape, beside the first one, that are computed in turns before a plan for them is worth it."""

_HEAD, _BATCH, _SHARE, _GRADIENT = "model: ", "batch: ", "share of the group", "gradient: "


_Form: TypeAlias = tuple[Any, ...]


class _Recorded(NamedTuple):
    """A tape of a member; ``outputs`` have the shapes of its own, where a loss is given."""

    tape: Tape
    digest: str
    reads: Any
    marks: Any
    outputs: Any


class _Alone(NamedTuple):
    """What a member came to alone: what it found, its own tensors behind that, and the state of its generator."""

    found: Any
    tensors: dict[str, torch.Tensor]
    drawn: torch.Tensor


Tapes: TypeAlias = dict[_Form, list[_Recorded]]


class TapedModel(NamedTuple):
    """A model of which tapes are made.

    Attributes:
        base: that it shares with others; None: all tensors are its own.
        trained: parameters that the optimizer trains.
        marks: gives marks of all that the model and functions of the user keep beside parameters and buffers.
        tapes: what was recorded of it, by the form of batches.
    """

    head: nn.Module
    base: Base | None
    forward: Forward
    trained: Sequence[nn.Parameter]
    marks: Callable[[], Any]
    tapes: Tapes
    generator: torch.Generator


_plans: dict[Any, PackPlan] = {}
_met: dict[Any, int] = {}


# Which models ---------------------------------------------------------------------------------


def structure_of(head: nn.Module, base: Base | None) -> Any:
    """What is equal for models that may do the same: their modules, and their own tensors by names.

    Over one base, tensors of adapters may have other shapes. Without a base the options of modules count, too.
    """
    tensors = [*head.named_parameters(), *head.named_buffers()]
    if base is None:
        return (
            [(name, _options_of(part)) for name, part in head.named_modules()],
            [(name, *tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors],
        )
    own = [(name, tensor.dtype, tensor.requires_grad) for name, tensor in tensors if not base.has(tensor)]
    modules = [
        # dropout of nothing, or of all, draws nothing
        (name, type(part).__qualname__, isinstance(part, _DropoutNd) and part.p in (0, 1))
        for name, part in head.named_modules()
    ]
    return base.digest, modules, own


def _options_of(module: nn.Module) -> Any:
    """Kind of a module, and its options but the rate of a dropout, which is drawn by each member for itself."""
    plain = (bool, int, float, str, tuple, type(None))
    options = {
        name: value if isinstance(value, plain) else (value.__module__, value.__qualname__)
        for name, value in vars(module).items()
        if isinstance(value, (*plain, types.FunctionType, types.BuiltinFunctionType)) and name != "training"
    }
    if isinstance(module, _DropoutNd):
        options["p"] = options["p"] in (0, 1)
    return type(module).__module__, type(module).__qualname__, sorted(options.items())


def is_pure(function: Any) -> bool:
    """Whether a function that is called for a batch keeps nothing of its own from call to call."""
    if isinstance(function, partial):
        options = [*function.args, *function.keywords.values()]
        return is_pure(function.func) and all(
            isinstance(each, (bool, int, float, str, type(None))) for each in options
        )
    return isinstance(function, types.FunctionType) and not keeps_something(function)


def keeps_something(function: types.FunctionType) -> bool:
    """Whether a function has a place of its own for what it keeps from call to call."""
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    constants = (bool, int, float, str, tuple, type(None), torch.dtype)
    return bool(
        function.__closure__ or vars(function) or any(not isinstance(each, constants) for each in defaults)
    )


# Together -------------------------------------------------------------------------------------


class Unison:
    """Losses and gradients of models of one structure, or their results in validation, batch by batch.

    While it is open, trained parameters of one shape lie in one tensor with a slot for each member, and so do their
    gradients.

    Attributes:
        failure: why members are computed one by one, if a plan has failed that was made for them; else empty.
        has_moved: whether a parameter was found elsewhere than in its slot at the end.

    Args:
        trains: whether the models are trained; else they are validated.
    """

    def __init__(self, signature: str, members: Sequence[TapedModel], trains: bool) -> None:
        self._signature = signature
        self._members = members
        self._trains = trains
        self.failure: str = ""
        self._branches: dict[_Form, list[tuple[PackPlan, Any]]] = {}
        self.has_moved: bool = False
        self._own: list[tuple[nn.Parameter, torch.Tensor, torch.Tensor]] = []
        self._stacked: dict[str, torch.Tensor] = {}
        self._gradients: list[tuple[torch.Tensor | None, Sequence[torch.Tensor]]] = []
        names = {id(parameter): name for name, parameter in members[0].head.named_parameters()}
        with torch.no_grad():
            for place, parameter in enumerate(members[0].trained):
                self._stack(names[id(parameter)], [member.trained[place] for member in members])
        tensors = [_tensors(member.head) for member in members]
        base = members[0].base
        self._base = {
            name: tensor for name, tensor in tensors[0].items() if base is not None and base.has(tensor)
        }
        self._apart = [
            {
                name: tensor
                for name, tensor in of_member.items()
                if name not in self._base and name not in self._stacked
            }
            for of_member in tensors
        ]

    def _stack(self, name: str, parameters: Sequence[nn.Parameter]) -> None:
        """Move parameters of one name into slots of one tensor, if they are of one shape."""
        first = parameters[0]
        # convolutions choose their kernels by strides, also where a dimension is of size 1
        strides = first.new_empty(first.shape, device="meta").stride()
        if any(each.shape != first.shape or each.stride() != strides for each in parameters):
            self._gradients.append((None, [torch.empty_like(each) for each in parameters]))
            return
        whole, gradients = (
            aligned(len(parameters), *first.shape, dtype=first.dtype) for _ in ("values", "gradients")
        )
        self._stacked[_HEAD + name] = whole
        self._gradients.append((gradients, gradients.unbind()))
        for parameter, slot in zip(parameters, whole.unbind(), strict=True):
            self._own.append((parameter, parameter.data, slot))
            slot.copy_(parameter.data)
            parameter.data = slot

    def close(self, changed: bool) -> None:
        """Give members their own memory for parameters back, with the values of now if these may have ``changed``."""
        with torch.no_grad():
            for parameter, own, slot in self._own:
                self.has_moved = self.has_moved or parameter.data_ptr() != slot.data_ptr()
                if changed:
                    own.copy_(parameter.data)
                parameter.data = own
            self._own.clear()
        for member in self._members:
            for parameter in member.trained:
                parameter.grad = None

    def gradients(self, batch: Batch, share: float | None, add: bool) -> list[Measured | Exception]:
        """Have gradients of a batch, times its ``share``, ``add``\\ ed to those that are there.

        Returns: of each member what it found, or the exception that it raised.
        """
        found = self._planned(batch, share)
        if found is None or isinstance(found, Exception):
            each = [self.gradients_alone(slot, batch, share, add) for slot in range(len(self._members))]
            self._note(found, each)
            return each
        measured, gradients = found
        for place, gradient in enumerate(gradients):
            self._take(place, gradient, add)
        return [_of(measured, slot) for slot in range(len(self._members))]

    def results(self, batch: Batch) -> list[BatchResult | Exception]:
        """Results of a batch in validation.

        Raises:
            _NotRecordedError: members draw random numbers, each from a generator that it must set itself.
        """
        found = self._planned(batch, None)
        failed = found if isinstance(found, Exception) else None
        results = [self._result(slot, batch, failed or found) for slot in range(len(self._members))]
        self._note(failed, results)
        return results

    def _note(self, error: Exception | None, found: Sequence[Any]) -> None:
        """Say that a plan failed, unless members fail, too, and say so by themselves. It is not used again."""
        if error is None or any(isinstance(each, Exception) for each in found):
            return
        self.failure = f"their plan failed ({described(error)})"
        phase = "trains" if self._trains else "validates"
        say_fallback(f"The plan that {phase} models together failed", error)

    def _result(self, slot: int, batch: Batch, found: Any) -> BatchResult | Exception:
        forward = self._members[slot].forward
        try:
            if found is None or isinstance(found, Exception):
                before = torch.get_rng_state()
                with torch.no_grad():
                    result = forward(batch, training=False)
                if not torch.equal(before, torch.get_rng_state()):
                    raise _NotRecordedError("it draws random numbers in validation")
                return result
            measured, outputs = _of(found, slot)
            if measured is None:
                with forward.autocast():
                    return forward.result(outputs, batch, training=False)
            loss, weight, values = measured
            return BatchResult(loss, weight, None, None, values)
        except _NotRecordedError:
            raise
        except Exception as error:  # of the user's loss or step, which refuse what this member gives
            return error

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put the members' own buffers back afterwards.

        Raises:
            _NotRecordedError: something else of a member has changed.
        """
        marks = [member.marks() for member in self._members]
        with ExitStack() as kept:
            for member in self._members:
                kept.enter_context(members_kept(member.head))
            kept.enter_context(tensors_kept(self._members))
            yield
        for member, before in zip(self._members, marks, strict=True):
            if names := hidden.differences(before, member.marks(), ()):
                raise _NotRecordedError(f"it changes {some_names(names, 3)}")

    # Gradients ---------------------------------------------------------------------------------

    def _take(self, place: int, gradient: OfMembers | None, add: bool) -> None:
        """Put members' gradients of a parameter where they have them."""
        whole, slots = self._gradients[place]
        before = self._members[0].trained[place].grad
        if gradient is None:
            if not add:
                self._point(place, None)
            return
        add = add and before is not None
        if whole is not None and gradient.whole is not None:
            pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] = [(whole, gradient.whole)]
        else:
            pairs = list(zip(slots, gradient.each, strict=True))
        for into, own in pairs:
            into.add_(own) if add else into.copy_(own)
        if before is not slots[0]:
            self._point(place, slots)

    def _point(self, place: int, slots: Sequence[torch.Tensor] | None) -> None:
        for slot, member in enumerate(self._members):
            member.trained[place].grad = None if slots is None else slots[slot]

    def gradients_alone(
        self, slot: int, batch: Batch, share: float | None, add: bool
    ) -> Measured | Exception:
        """As :meth:`gradients`, of one member, which computes them as it does alone.

        Raises:
            _TriedError: it changes gradients itself.
        """
        member = self._members[slot]
        for parameter in () if add else member.trained:
            parameter.grad = None
        before = [parameter.grad for parameter in member.trained]
        try:
            with drawing_from(member.generator):
                measured, gradients, _ = gradients_of(member, batch, share)
        except _NotRecordedError as error:
            raise _TriedError(str(error)) from error
        except Exception as error:
            return error
        if any(parameter.grad is not grad for parameter, grad in zip(member.trained, before, strict=True)):
            raise _TriedError("it changes gradients")
        for place, gradient in enumerate(gradients):
            parameter, own = member.trained[place], self._gradients[place][1][slot]
            if gradient is None:
                parameter.grad = parameter.grad if add else None
            elif add and parameter.grad is not None:
                parameter.grad.add_(gradient)
            else:
                parameter.grad = own.copy_(gradient)
        return measured

    # Plans -------------------------------------------------------------------------------------

    def _planned(self, batch: Batch, share: float | None) -> Any:
        """What a plan gives for a batch; None: there is none for it; an exception: it has failed."""
        if self.failure:
            return None
        form = self._form(batch, share)
        if form not in self._branches:
            self._branches[form] = self._known(form)
        branches = self._branches[form]
        if not all(self._labels_fit(batch, outputs) for _, outputs in branches[:1]):
            return None
        inputs = self._inputs(batch, share)
        try:
            for plan, _ in branches:
                try:
                    return self._confirmed(plan, inputs, batch, share)
                except _OtherBranchError:
                    continue
            if len(branches) < _MOST_BRANCHES and self._is_worth_it(form):
                self.prepare(batch, share)
                return self._ran(branches[-1][0], inputs)
        except _TouchedError as error:
            raise _TriedError(str(error)) from error
        except _NotRecordedError:  # of another way that a batch decides, or of a later batch
            return None
        except Exception as error:
            return error
        return None

    def _confirmed(self, plan: PackPlan, inputs: PlanInputs, batch: Batch, share: float | None) -> Any:
        """What a plan gives; the first time that it is used beyond the batch that it was made for, it is compared with
        members that compute that batch alone, with their buffers and generators, too.

        Raises:
            _NotRecordedError: something is not the same; the members are as they were.
        """
        if plan.is_confirmed:
            return self._ran(plan, inputs)
        try:
            alone = [self._alone(member, batch, share) for member in self._members]
        except Exception:  # of a loss, for instance: they say so by themselves
            return self._ran(plan, inputs)
        states = [generator.get_state() for generator in inputs.generators]
        with tensors_kept(self._members):
            found = self._ran(plan, inputs)
            drawn = [generator.get_state() for generator in inputs.generators]
            tensors = [
                {name: each.detach().clone() for name, each in own_tensors(member).items()}
                for member in self._members
            ]
        for generator, state in zip(inputs.generators, states, strict=True):
            generator.set_state(state)
        try:
            self._check(found, [each.found for each in alone])
            for own, each, state in zip(tensors, alone, drawn, strict=True):
                if not agree(own, each.tensors) or not torch.equal(state, each.drawn):
                    raise _NotRecordedError("buffers or random numbers would not be the same")
        except _NotRecordedError as error:
            self.failure = str(error)
            raise
        plan.is_confirmed = True
        for generator, state in zip(inputs.generators, drawn, strict=True):
            generator.set_state(state)
        for member, own in zip(self._members, tensors, strict=True):
            for name, tensor in own_tensors(member).items():
                if not same_numbers(tensor.detach(), own[name]):
                    tensor.data.copy_(own[name])
        return found

    def _is_worth_it(self, form: _Form) -> bool:
        """Whether batches are of this form so often that a plan for them pays."""
        key = (self._signature, form, len(self._branches[form]))
        _met[key] = _met.get(key, 0) + 1
        return _met[key] == 1 + _OFTEN or (not self._trains and len(self._branches) == 1 and _met[key] == 1)

    def _labels_fit(self, batch: Batch, outputs: Any) -> bool:
        """Whether labels fit the loss, where that is to be checked; else each member says so itself."""
        forward = self._members[0].forward
        if self._trains and forward.loss is not None and forward.checks_labels:
            try:
                forward.check(outputs, batch)
            except EstimatorError:
                return False
        return True

    def _ran(self, plan: PackPlan, inputs: PlanInputs) -> Any:
        """What a plan gives; generators and buffers are as before if it fails."""
        states = [generator.get_state() for generator in inputs.generators]
        written = [
            (own[name], own[name].clone()) for name in plan.writes for own in inputs.own if name in own
        ]
        try:
            return plan(inputs)
        except BaseException:
            for generator, state in zip(inputs.generators, states, strict=True):
                generator.set_state(state)
            for tensor, before in written:
                tensor.data.copy_(before)
            raise

    def _form(self, batch: Batch, share: float | None) -> _Form:
        return (*form_of_batch(batch), self._trains, share is not None, torch.get_num_threads())

    def _inputs(self, batch: Batch, share: float | None) -> PlanInputs:
        shared = {**self._base, **_named(batch, _shared(share))}
        generators = [member.generator for member in self._members]
        moving = frozenset(_BATCH + name for name in batch)
        return PlanInputs(shared, self._stacked, self._apart, generators, moving)

    def _known(self, form: _Form) -> list[tuple[PackPlan, Any]]:
        """Plans for tapes that all members have."""
        first, *others = (member.tapes.get(form, []) for member in self._members)
        found = []
        for recorded in first:
            alike = [
                next((each for each in tapes if each.reads == recorded.reads), None)
                for tapes in (first, *others)
            ]
            marks = [member.marks() for member in self._members] if all(alike) else []
            if marks == [each.marks for each in alike if each is not None] and marks:
                plan = _plans.get(self._key(form, [each for each in alike if each is not None]))
                if plan is not None:
                    found.append((plan, recorded.outputs))
        return found

    def _key(self, form: _Form, recorded: Sequence[_Recorded]) -> Any:
        return form, tuple(self._stacked), tuple(self._apart[0]), *(each.digest for each in recorded)

    def prepare(self, batch: Batch, share: float | None, most: float = math.inf) -> float | None:
        """Make a plan for batches like this one.

        Args:
            most: a plan that takes more CPU time, in seconds, is not taken.

        Returns: the CPU time that the plan takes; None: it was there before.

        Raises:
            _NotRecordedError: there is none, or it does not give the members' own bits.
        """
        if others := [name for name, value in batch.items() if not isinstance(value, torch.Tensor)]:
            raise _NotRecordedError(
                f"batches have {some_names(others, 3)}, which no tape can tell from a constant"
            )
        form, took = self._form(batch, share), None
        copies = [member._replace(generator=copied(member.generator)) for member in self._members]
        with off_values(self._members), tensors_kept(self._members):
            recorded, alone = [], []
            for member, own in zip(copies, self._members, strict=True):
                kept = self._recorded(member, batch, share)
                recorded.append(kept)
                # PyTorch takes other ways while operations are recorded
                alone.append(self._alone(member, batch, share).found)
                _put(own.tapes, form, kept)
            plan = _plans.get(key := self._key(form, recorded))
            if plan is None:
                inputs = self._inputs(batch, share)._replace(
                    generators=[copied(member.generator) for member in self._members]
                )
                plan = plan_for([each.tape for each in recorded], inputs)
                if not self._trains and any(kind == "generator" for kind, _ in plan.takes):
                    raise _NotRecordedError("it draws random numbers in validation")
                begun = measuring.clock()
                found = self._ran(plan, inputs)
                took = measuring.clock() - begun
                if took > most:  # once may be by chance
                    took = min(took, measuring.seconds_once(partial(self._ran, plan, inputs)))
                if took > most:
                    return took
                self._check(found, alone)
            self._check_rows(copies[0], batch, share, recorded[0])
            self._check_gradients(copies[0], batch, share, recorded[0])
            if key not in _plans:
                if len(_plans) >= _MOST_PLANS:
                    del _plans[next(iter(_plans))]
                _plans[key] = plan
        self._branches.setdefault(form, []).append((plan, recorded[0].outputs))
        return took

    def _check(self, found: Any, alone: Sequence[Any]) -> None:
        """Compare what a plan gave with what members gave, each alone."""
        for slot, own in enumerate(alone):
            if not agree(_of(found[0], slot), own[0]):
                raise _NotRecordedError(
                    "the loss would not have the same bits"
                    if self._trains
                    else "validation would not have the same bits"
                )
            if not self._trains:
                if not agree(_of(found[1], slot), own[1]):
                    raise _NotRecordedError("the outputs would not have the same bits")
                continue
            for place, (gradient, single) in enumerate(zip(_of(found[1], slot), own[1], strict=True)):
                if not agree(gradient, single):
                    named = self._members[0].head.named_parameters()
                    trained = self._members[0].trained[place]
                    name = next(name for name, each in named if each is trained)
                    raise _NotRecordedError(f"the gradient of {name} would not have the same bits")

    def _alone(self, member: TapedModel, batch: Batch, share: float | None) -> _Alone:
        """What a member comes to alone; it is left as it was."""
        generator = copied(member.generator)
        with (
            tensors_kept([member]),
            drawing_from(generator),
            gradients_kept(member.trained, share is not None),
        ):
            found = (
                gradients_of(member, batch, share, check=False) if self._trains else _validated(member, batch)
            )
            tensors = {name: tensor.detach().clone() for name, tensor in own_tensors(member).items()}
        return _Alone(found[:2], tensors, generator.get_state())

    def _recorded(
        self, member: TapedModel, batch: Batch, share: float | None, begins: bool = False
    ) -> _Recorded:
        """A tape of what a member does with a batch.

        Args:
            begins: the batch is the first of a group, so that no parameter has a gradient yet.

        Raises:
            _TouchedError: to record it has changed what the model keeps.
        """
        shared = _shared(share)
        returned: list[Any] = []

        def compute() -> Any:
            found = (
                gradients_of(member, batch, shared, check=False)
                if self._trains
                else _validated(member, batch)
            )
            returned.append(found)
            return found[:2]

        marks, before = member.marks(), surroundings()
        try:
            with (
                members_kept(member.head),
                tensors_kept([member]),
                drawing_from(copied(member.generator)),
                listening(drops=True) as heard,
                gradients_kept(member.trained, share is not None and not begins) as gradients,
            ):
                given = {_GRADIENT + str(place): gradient for place, gradient in enumerate(gradients)}
                tape = record(compute, {**_tensors(member.head), **_named(batch, shared), **given})
        except BaseException as error:
            if names := hidden.differences(marks, member.marks(), ()):
                why = (
                    str(error)
                    if isinstance(error, _NotRecordedError)
                    else f"it changes {some_names(names, 3)}"
                )
                raise _TouchedError(why) from error
            raise
        if names := hidden.differences(marks, now := member.marks(), ()):
            raise _TouchedError(f"it changes {some_names(names, 3)}")
        if heard:
            raise _NotRecordedError(f"it {heard[0]}")
        if surroundings() != before:
            raise _NotRecordedError("it draws random numbers that are not PyTorch's")
        if any(name.startswith(_GRADIENT) for name in tape.given.values()):
            raise _NotRecordedError("it reads gradients")
        outputs = mapped(returned[0][2], stand_in)
        return _Recorded(tape, tape.digest(), tape.reads(), now, outputs)

    def _check_rows(self, member: TapedModel, batch: Batch, share: float | None, recorded: _Recorded) -> None:
        """See whether the member does the same with rows in another order."""
        other = {name: value.flip(0) if value.dim() else value for name, value in batch.items()}
        if any(value.stride() != batch[name].stride() for name, value in other.items()):
            return
        again = self._recorded(member, other, share)
        if again.reads == recorded.reads and again.digest != recorded.digest:
            raise _NotRecordedError("it does other things with other rows")

    def _check_gradients(
        self, member: TapedModel, batch: Batch, share: float | None, recorded: _Recorded
    ) -> None:
        """See whether the member does the same where parameters have no gradients yet."""
        if share is not None and self._recorded(member, batch, share, begins=True).digest != recorded.digest:
            raise _NotRecordedError("it reads gradients")


# One member -----------------------------------------------------------------------------------


def form_of_batch(batch: Batch) -> _Form:
    """Shapes, strides and dtypes of a batch, by name."""
    return tuple(
        (name, tuple(value.shape), value.stride(), value.dtype)
        if isinstance(value, torch.Tensor)
        else (name,)
        for name, value in sorted(batch.items())
    )


def gradients_of(
    member: TapedModel, batch: Batch, share: torch.Tensor | float | None, check: bool = True
) -> tuple[Measured, Sequence[torch.Tensor | None], Any]:
    """What a member measures of a batch, its gradients, and its outputs if the loss is not the step's."""
    forward, outputs = member.forward, None
    with torch.enable_grad():
        with forward.autocast():
            if forward.loss is None:
                result = forward(batch, training=True)
            else:
                outputs = forward.outputs(batch)
                result = forward.result(outputs, batch, training=True, check=check)
        if share is None:
            total = result.loss
        elif result.weight is None or forward.loss is not None:
            total = result.loss * share
        else:
            total = result.loss * result.weight
        try:
            gradients = torch.autograd.grad(total, list(member.trained), allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" in str(error):
                raise _NotRecordedError("it has a reentrant checkpoint, which needs backward()") from error
            raise
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise _NotRecordedError("it has sparse gradients")
    values = {
        name: value.detach() if isinstance(value, torch.Tensor) else value
        for name, value in result.values.items()
    }
    return (result.loss.detach(), result.weight, values), list(gradients), outputs


@torch.no_grad()
def _validated(member: TapedModel, batch: Batch) -> tuple[Any, Any, Any]:
    """What a member measures of a batch; or its outputs, whose loss each computes by itself."""
    forward = member.forward
    if forward.loss is None:
        result = forward(batch, training=False)
        return (result.loss, result.weight, result.values), None, None
    with forward.autocast():
        outputs = forward.outputs(batch)
    if type(outputs) not in (torch.Tensor, tuple, list, dict):
        raise _NotRecordedError(f"its outputs are a {type(outputs).__name__}")
    return None, outputs, None


def stand_in(value: Any) -> Any:
    """A tensor of the same shape, of zeros that take no memory."""
    return value.new_zeros(()).expand(value.shape) if isinstance(value, torch.Tensor) else value


def _shared(share: float | None) -> torch.Tensor | None:
    return None if share is None else torch.tensor(share, dtype=torch.float32)


def _tensors(head: nn.Module) -> dict[str, torch.Tensor]:
    tensors = [*head.named_parameters(), *head.named_buffers()]
    return {_HEAD + name: tensor for name, tensor in tensors}


def _named(batch: Batch, share: torch.Tensor | None) -> dict[str, torch.Tensor]:
    found = {_BATCH + name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    return found if share is None else {**found, _SHARE: share}


def _put(tapes: Tapes, form: _Form, recorded: _Recorded) -> None:
    if form not in tapes and len(tapes) >= _MOST_FORMS:
        del tapes[next(iter(tapes))]
    tapes[form] = [each for each in tapes.get(form, []) if each.reads != recorded.reads] + [recorded]


def _of(value: Any, slot: int) -> Any:
    """A member's part of what a plan gave."""

    def own(each: Any) -> Any:
        if isinstance(each, OfMembers):
            return each.each[slot]
        return each.values[slot] if isinstance(each, Differing) else each

    return mapped(value, own)


def agree(found: Any, own: Any) -> bool:
    """Whether both are the same, with tensors of the same bits, as ``same_numbers`` has it."""
    if isinstance(own, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.dtype == own.dtype and same_numbers(found, own)
    if isinstance(own, dict):
        return found.keys() == own.keys() and all(agree(found[name], own[name]) for name in own)
    if isinstance(own, (tuple, list)):
        return len(found) == len(own) and all(map(agree, found, own))
    return bool(found == own)
