"""Packs: replicas of one architecture that train together, on one reading of each batch, by stacked products.

Every member comes to the bits that it comes to alone: see :mod:`hopyard.training.torch.stack` for products. The loss,
clipping, the optimizer and schedules are the members' own, on slots of stacked tensors. Besides, copies of the members
are trained on the first batch both ways, and compared, before models of a signature are first trained together in a
process; if they differ, or gain nothing, they are trained alone. So nothing but the time that training takes depends on
who trains with whom, and packs may form anew for every unit.
"""

from __future__ import annotations

import copy
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from hopyard.data.reading.views import Batch
from hopyard.errors import DivergedError, EstimatorError
from hopyard.training.estimator import batch_sizes
from hopyard.training.metric import MetricSet
from hopyard.training.torch.forward import Forward
from hopyard.training.torch.session import Flags, generators_kept
from hopyard.training.torch.stack import NotStackableError, Stack, chain_of
from hopyard.training.torch.training import Sums, TrainingPass, groups_of
from hopyard.training.torch.validation import add_batch

WIDTHS = (16, 8, 4)
"""Members of a stack, at most."""
LEAST_GAIN = 1.1
_PROBE_SECONDS = 0.03

_DRAWS = 8

_exact_losses: dict[tuple[str, tuple[int, ...], int], tuple[bool, bool]] = {}
_widths: dict[tuple[str, int], int | str] = {}
"""By signature and threads: how wide stacks of these models are, or why they train one at a time."""


# Signatures -----------------------------------------------------------------------------------


class Parts(NamedTuple):
    """Parts of a replica that a pack works on."""

    estimator: Any
    head: nn.Module
    forward: Forward
    optimizer: torch.optim.Optimizer
    scheduler: Any
    device: torch.device
    flags: Flags
    trunk_weights: str | None


def signature_of(parts: Parts) -> str:
    """A text that is equal for replicas that may train together.

    Raises:
        NotStackableError: this one trains alone; says why.
    """
    given, loss, binding = parts.estimator, parts.forward.loss, parts.forward.binding
    named = isinstance(given.inputs, Mapping)
    refusals = [
        (loss is None, "step= is given"),
        (given.transform is not None or given.val_transform is not None, "a transform is given"),
        (given.base is not None, "base= is given"),
        (given.precision != "fp32", f"precision is {given.precision!r}"),
        (parts.device.type != "cpu", f"it is on {parts.device}"),
        (not _is_torchs(parts.optimizer), "its optimizer is none of torch.optim"),
        (not _is_torchs(parts.scheduler), "its scheduler is none of torch.optim.lr_scheduler"),
        (loss is not None and not _is_pure(loss.module), "its loss may keep something from batch to batch"),
        (
            list(given.inputs or ()) != ["input"] if named else len(binding.model_columns) != 1,
            "it takes several inputs",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise NotStackableError(why)
    assert loss is not None
    layers = [
        (
            repr(layer),
            [
                (*parameter.shape, parameter.dtype, parameter.requires_grad)
                for parameter in layer.parameters()
            ],
        )
        for layer in chain_of(parts.head)
    ]
    weights = loss.module.state_dict() if isinstance(loss.module, nn.Module) else {}
    loss_of = [
        _described(loss.module),
        {name: weight.tolist() for name, weight in weights.items()},
        given.class_weight,
    ]
    columns = [binding.signature, binding.besides, parts.trunk_weights]
    return repr([layers, loss_of, columns, given.batch_size, given.accumulate, parts.flags])


def _described(thing: Any) -> Any:
    """Kind and options of a layer or loss; texts of PyTorch's leave some out. Of functions the name: each member calls
    its own."""
    if isinstance(thing, types.FunctionType):
        return thing.__module__, thing.__qualname__
    options = {
        name: value
        for name, value in vars(thing).items()
        if isinstance(value, (bool, int, float, str, tuple)) and name != "training"
    }
    return repr(thing), sorted(options.items())


def _is_torchs(thing: Any) -> bool:
    return thing is None or type(thing).__module__.startswith("torch.optim.")


def _is_pure(loss: Any) -> bool:
    """Whether a loss can keep nothing from one call to the next."""
    if isinstance(loss, nn.Module):
        return type(loss).__module__ == "torch.nn.modules.loss"
    return isinstance(loss, types.FunctionType) and not loss.__closure__ and not vars(loss)


# Members --------------------------------------------------------------------------------------


class InexactError(Exception):
    """Members of a pack would not have the bits that they have alone, or be no faster; says which."""


class Member:
    """A replica in a pack.

    Args:
        seed: for PyTorch's generator, as the replica would find it.
    """

    def __init__(self, parts: Parts, training: TrainingPass, seed: int) -> None:
        self.parts, self.training = parts, training
        self.generator: torch.Generator = torch.Generator().manual_seed(seed)
        self.error: Exception | None = None
        self._losses: list[torch.Tensor] = []
        self._weights: list[Any] = []

    def note(self, loss: torch.Tensor, weight: Any) -> None:
        """Note the loss of a batch of a weight."""
        self._losses.append(loss)
        self._weights.append(weight)

    def step(self) -> None:
        if self.error is None:
            try:
                self.training.step()
                self.training.after_step()
            except Exception as error:  # of a schedule, perhaps; the others go on
                self.error = error

    def failure(self, sums: Sums) -> Exception | None:
        """Put the batches into ``sums``, unless the member has failed. Returns its failure, such as a loss of NaN."""
        losses = torch.stack(self._losses).tolist() if self._losses and self.error is None else []
        try:
            for loss, weight in zip(losses, self._weights, strict=False):
                sums.note("loss", loss, weight)
            sums.totals()
        except DivergedError as error:
            return error
        return self.error


def train_members(
    signature: str, members: Sequence[Member], batches: Iterable[tuple[Batch, int]], rows: int
) -> None:
    """Train replicas of one signature on the batches of a visit.

    Args:
        batches: placed, each with its number of rows.
        rows: of all batches.

    Raises:
        InexactError: they must be trained one by one; nothing of them has changed.
    """
    first = members[0].parts
    sizes = batch_sizes(rows, first.estimator.batch_size)
    shares, ends = groups_of(sizes, first.estimator.accumulate)
    shares = None if first.forward.loss_is_sum else shares
    groups: list[tuple[Sequence[Member], _Lockstep]] = []
    begins = True
    try:
        for number, (batch, size) in enumerate(batches):
            if not groups:
                groups = _grouped(signature, members, batch)
            ends_here = ends is None or number in ends
            for some, lockstep in groups:
                losses = lockstep.gradients(batch, None if shares is None else shares[number], add=not begins)
                for member, found in zip(some, losses, strict=True):
                    if isinstance(found, Exception):
                        member.error = member.error or found
                    else:
                        member.note(found[0], size if found[1] is None else found[1])
                    if ends_here:
                        member.step()
            begins = ends_here
    finally:
        for _, lockstep in groups:
            lockstep.close()


def _grouped(
    signature: str, members: Sequence[Member], batch: Batch
) -> list[tuple[Sequence[Member], _Lockstep]]:
    width = _width(signature, members, batch)
    starts = range(0, len(members), width)
    return [
        (some, _Lockstep.of(signature, some)) for some in (members[start : start + width] for start in starts)
    ]


def measure_members(
    members: Sequence[Parts], batches: Iterable[Batch], metrics: Sequence[MetricSet]
) -> list[Exception | None]:
    """Add batches, which are placed, to the metrics of replicas of one signature.

    Returns: of each replica the exception that ended it, or None.
    """
    found: list[Exception | None] = [None] * len(members)
    stack = Stack([chain_of(member.head) for member in members], [torch.default_generator] * len(members))
    with torch.no_grad():
        stack.open()
        try:
            for member in members:
                member.head.eval()
            for batch in batches:
                outputs = stack.forward(_input(members[0].forward, batch), training=False)
                for slot, (member, metric) in enumerate(zip(members, metrics, strict=True)):
                    if found[slot] is None:
                        try:
                            result = member.forward.result(outputs[slot], batch, training=False)
                            add_batch(member.forward, batch, result, metric, [])
                        except Exception as error:
                            found[slot] = error
        finally:
            stack.close(changed=False)
    return found


def _input(forward: Forward, batch: Batch) -> torch.Tensor:
    arguments, keywords = forward.binding.arguments(batch)
    (given,) = [*arguments, *keywords.values()]
    assert isinstance(given, torch.Tensor)
    return given


# Computing ------------------------------------------------------------------------------------


class _Lockstep:
    """Losses and gradients of modules of one ``signature``, batch by batch.

    Args:
        forwards: of the members, for labels and losses.
    """

    def __init__(
        self,
        signature: str,
        modules: Sequence[nn.Module],
        forwards: Sequence[Forward],
        generators: Sequence[torch.Generator],
    ) -> None:
        self._forwards = forwards
        self._loss_is_torchs = isinstance(forwards[0].loss and forwards[0].loss.module, nn.Module)
        self._signature = signature
        self._stack = Stack([chain_of(module) for module in modules], generators)
        with torch.no_grad():
            self._stack.open()

    @classmethod
    def of(cls, signature: str, members: Sequence[Member]) -> _Lockstep:
        return cls(
            signature,
            [member.parts.head for member in members],
            [member.parts.forward for member in members],
            [member.generator for member in members],
        )

    def close(self) -> None:
        """Give the modules their parameters back, as they are now."""
        with torch.no_grad():
            self._stack.close(changed=True)

    def gradients(
        self, batch: Batch, share: float | None, add: bool
    ) -> list[tuple[torch.Tensor, Any] | Exception]:
        """Have gradients of a batch, times its ``share``, ``add``\\ ed to those that are there.

        Returns: of each member its loss and the batch's weight (None: its rows), or the exception that its loss raised.
        """
        with torch.no_grad():
            outputs = self._stack.forward(_input(self._forwards[0], batch), training=True)
        found, gradient = self._losses(outputs, batch, share)
        with torch.no_grad():
            self._stack.backward(gradient, add)
        return found

    def _losses(
        self, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[list[tuple[torch.Tensor, Any] | Exception], torch.Tensor]:
        """Losses of outputs (members, rows, ...), and the gradient of their sum by the outputs."""
        values, gradients = self._exact(outputs, batch) if self._loss_is_torchs else (False, False)
        first = self._forwards[0]
        if gradients and first.checks_labels:
            try:
                first.check(outputs[0], batch)
            except EstimatorError:
                gradients = False  # each member says so itself
        if not gradients:
            return self._losses_in_turn(outputs, batch, share)
        found, gradient = self._losses_at_once(outputs, batch, share)
        if not values:
            with torch.no_grad():
                results = [
                    forward.result(own, batch, training=True, check=False)
                    for forward, own in zip(self._forwards, outputs, strict=True)
                ]
            found = [(result.loss, result.weight) for result in results]
        return found, gradient

    def _exact(self, outputs: torch.Tensor, batch: Batch) -> tuple[bool, bool]:
        """Whether losses that are computed at once have the bits of single ones, and whether gradients have: compared
        on random outputs when a shape is met first."""
        key = (self._signature, tuple(outputs.shape), torch.get_num_threads())
        if key not in _exact_losses:
            self._losses_in_turn(outputs, batch, None)  # which checks the labels
            generator = torch.Generator().manual_seed(0)
            values = gradients = True
            for _ in range(_DRAWS):
                drawn = torch.empty_like(outputs).normal_(generator=generator)
                found, gradient = self._losses_in_turn(drawn, batch, None)
                others, other = self._losses_at_once(drawn, batch, None)
                gradients = gradients and _same(other, gradient)
                values = values and all(
                    not isinstance(a, Exception) and not isinstance(b, Exception) and _same(a[0], b[0])
                    for a, b in zip(found, others, strict=True)
                )
            _exact_losses[key] = values, gradients
        return _exact_losses[key]

    def _losses_in_turn(
        self, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[list[tuple[torch.Tensor, Any] | Exception], torch.Tensor]:
        found: list[tuple[torch.Tensor, Any] | Exception] = []
        gradient = torch.zeros_like(outputs)
        for slot, forward in enumerate(self._forwards):
            own = outputs[slot].detach().requires_grad_()
            try:
                result = forward.result(own, batch, training=True)
                loss = result.loss if share is None else result.loss * share
                (gradient[slot],) = torch.autograd.grad(loss, own)
                found.append((result.loss.detach(), result.weight))
            except Exception as error:  # the user's loss refuses what this member gives
                found.append(error)
        return found, gradient

    def _losses_at_once(
        self, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[list[tuple[torch.Tensor, Any] | Exception], torch.Tensor]:
        forward, weights = self._forwards[0], []

        def loss_of(own: torch.Tensor) -> torch.Tensor:
            result = forward.result(own, batch, training=True, check=False)
            weights.append(result.weight)
            return result.loss

        whole = outputs.detach().requires_grad_()
        losses = torch.vmap(loss_of)(whole)
        total = (losses if share is None else losses * share).sum()
        (gradient,) = torch.autograd.grad(total, whole)
        return [(loss, weights[0]) for loss in losses.detach()], gradient


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN is the same as NaN."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


# Choosing -------------------------------------------------------------------------------------


def width_of(signature: str) -> int | str | None:
    """How wide stacks of these models are, or why they train one at a time; None: not known yet in this process."""
    return _widths.get((signature, torch.get_num_threads()))


def _width(signature: str, members: Sequence[Member], batch: Batch) -> int:
    """Number of members that a stack takes.

    Raises:
        InexactError: they gain nothing together, or have not their bits.
    """
    chosen = width_of(signature)
    if chosen is None:
        with generators_kept(members[0].parts.device):
            try:
                chosen = _probed(signature, members, batch)
            except (InexactError, NotStackableError) as error:
                chosen = str(error)
        _widths[signature, torch.get_num_threads()] = chosen
    if isinstance(chosen, str):
        raise InexactError(chosen)
    return chosen


def _probed(signature: str, members: Sequence[Member], batch: Batch) -> int | str:
    """How wide stacks are to be, or why there are none, by copies of the modules that are computed on one batch."""
    forward = members[0].parts.forward
    module = copy.deepcopy(members[0].parts.head)
    alone = _seconds(lambda: _own_gradients(module, forward, batch))
    gains: dict[int, float] = {}
    for width in sorted({min(width, len(members)) for width in WIDTHS}, reverse=True):
        some = members[:width]
        modules = [copy.deepcopy(member.parts.head) for member in some]
        lockstep = _Lockstep(
            signature,
            modules,
            [member.parts.forward for member in some],
            [_copied(m.generator) for m in some],
        )
        try:
            _compare(lockstep, some, modules, batch)
            gains[width] = alone * width / _seconds(partial(lockstep.gradients, batch, None, add=False))
        finally:
            lockstep.close()
    width, gain = max(gains.items(), key=lambda each: each[1])
    if gain < LEAST_GAIN:
        return f"{width} of them together would take {1 / gain:.2f} times as long as one by one"
    return max(width, WIDTHS[0]) if width == len(members) else width


def _compare(
    lockstep: _Lockstep, members: Sequence[Member], modules: Sequence[nn.Module], batch: Batch
) -> None:
    """
    Raises:
        InexactError: losses or gradients are not those of the members' own modules.
    """
    losses = lockstep.gradients(batch, None, add=False)
    for member, module, found in zip(members, modules, losses, strict=True):
        own = copy.deepcopy(member.parts.head)
        torch.set_rng_state(member.generator.get_state())
        loss, gradients = _own_gradients(own, member.parts.forward, batch)
        if isinstance(found, Exception):
            raise InexactError("the loss fails on the first batch")
        if not _same(loss, found[0]):
            raise InexactError("the loss would not have the same bits")
        trained = {
            name: parameter.grad for name, parameter in module.named_parameters() if parameter.requires_grad
        }
        for name, gradient in zip(trained, gradients, strict=True):
            other = trained[name]
            if other is None or not _same(gradient, other):
                raise InexactError(f"the gradient of {name} would not have the same bits")


def _own_gradients(
    module: nn.Module, forward: Forward, batch: Batch
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """A module's loss and gradients, as it computes them alone."""
    with torch.enable_grad():
        loss = forward.result(module(_input(forward, batch)), batch, training=True).loss
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return loss.detach(), torch.autograd.grad(loss, trained)


def _copied(generator: torch.Generator) -> torch.Generator:
    made = torch.Generator()
    made.set_state(generator.get_state())
    return made


def _seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of a call: the least of some, the first not counted."""
    call()
    times: list[float] = []
    end = time.monotonic() + _PROBE_SECONDS
    while len(times) < 3 or time.monotonic() < end:
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return min(times)
