"""Packs: replicas of one architecture that train together, on one reading of each batch, by stacked products.

Every member comes to the bits that it comes to alone: see :mod:`hopyard.training.torch.stack` for products. The loss,
clipping, the optimizer and schedules are the members' own, on slots of stacked tensors. Besides, copies of the members
are trained on the first batch both ways, and compared, before models of a signature are first trained together in a
process; if they differ, or gain nothing, they are trained alone. So nothing but the time that training takes depends on
who trains with whom, and packs may form anew for every unit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from hopyard.data.reading.views import Batch
from hopyard.errors import BaseChangedError, DivergedError
from hopyard.training import measuring
from hopyard.training.estimator import Visit, _TogetherError, _TriedError, batch_sizes
from hopyard.training.fallback import described, say_fallback
from hopyard.training.measuring import LEAST_GAIN
from hopyard.training.metric import MetricSet
from hopyard.training.torch.captured import Captured, recorder_for
from hopyard.training.torch.forward import BatchResult, Forward
from hopyard.training.torch.pack_losses import MemberLosses, PackLosses
from hopyard.training.torch.session import generators_kept
from hopyard.training.torch.signatures import Parts, is_taped, trained_of
from hopyard.training.torch.stack import Stack, aligned, same_numbers
from hopyard.training.torch.tape import _NotRecordedError, mapped
from hopyard.training.torch.taped import TapedModel, Unison
from hopyard.training.torch.training import Sums, TrainingPass, groups_of
from hopyard.training.torch.untouched import listening
from hopyard.training.torch.validation import add_batch
from hopyard.training.torch.watching import Watch, unchanged

_Found = TypeVar("_Found")

WIDTHS = (16, 8, 4)
"""Members of a stack, at most."""
WIDTHS_OF_TAPED = (8, 4, 2)
"""The same of models that are computed by tapes."""
_LARGE_GAIN = 1.5
"""A gain by tapes with which no other width is tried: plans take as long as some batches."""
_MOST_PROBE_SECONDS = 2.0
"""CPU time in which it is measured what models gain together."""
_SHARE_OF_TRAINING = 40
"""By tapes, besides, one part of so many of the time that the models have trained in turns, since plans are made."""
_STEPS_OF_PROBE = 5
"""Batches that measuring takes as long as, for each member of a pack."""
_BATCHES_FIRST = 500
"""Batches that a process computes in turns of models with tapes, before it measures what they gain together: that
takes as long as 12 to 60 batches, which a short search does not win back."""
_TAKES_LONG = f"a batch takes so long that it takes over {_MOST_PROBE_SECONDS:g} s to measure what they gain"

_widths: dict[tuple[str, int], int | str] = {}
"""By signature and threads: how wide stacks of these models are, or why they train one at a time."""
_validated: set[tuple[str, int]] = set()
"""By signature and threads: models whose outputs in validation were compared with those of stacks."""
_in_turns: dict[tuple[str, int], int] = {}
"""By signature and threads: batches that were computed in turns, of models with tapes that are not measured yet."""
_gains: dict[tuple[str, int], float] = {}
"""By signature and threads: how many times as long a batch takes members one by one as in stacks of that width."""


# Members --------------------------------------------------------------------------------------


class PackMember:
    """A replica in a pack.

    Args:
        seed: for PyTorch's generator, as the replica would find it.
    """

    def __init__(self, parts: Parts, training: TrainingPass, seed: int) -> None:
        self.parts: Parts = parts
        self.training: TrainingPass = training
        self.seed: int = seed
        self.generator: torch.Generator = torch.Generator().manual_seed(seed)
        self.error: Exception | None = None
        self._losses: list[torch.Tensor] = []
        self._weights: list[Any] = []
        self._values: list[Mapping[str, Any]] = []
        self._group: Any = 0.0

    def note(self, loss: torch.Tensor, weight: Any, rows: int, values: Mapping[str, Any]) -> None:
        """Note what was found of a batch of a weight (None: its rows)."""
        if weight is not None and self.parts.forward.loss is None:
            self._group = self._group + weight
        self._losses.append(loss)
        self._weights.append(rows if weight is None else weight)
        # Not the tensors themselves: they may be the model's own, and change.
        self._values.append(
            {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in values.items()
            }
        )

    def step(self) -> None:
        """A step of the optimizer, behind the last batch of a group."""
        if self.error is None:
            try:
                if self.parts.estimator.accumulate > 1:
                    self.training.divide_gradients(self._group)
                self._group = 0.0
                self.training.step()
                self.training.after_step()
            except Exception as error:  # of a schedule, perhaps; the others go on
                self.error = error

    def failure(self, sums: Sums) -> Exception | None:
        """Put the batches into ``sums``, unless the member has failed. Returns its failure, such as a loss of NaN."""
        losses = torch.stack(self._losses).tolist() if self._losses and self.error is None else []
        try:
            for loss, weight, values in zip(losses, self._weights, self._values, strict=False):
                sums.note("loss", loss, weight)
                for name, value in values.items():
                    sums.note(name, value, weight)
            sums.totals()
        except DivergedError as error:
            return error
        return self.error


def train_together(
    replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
) -> list[dict[str, list[float]] | Exception] | None:
    """See :meth:`hopyard.training.estimator.Replica.train_together`."""
    contexts = [replica.in_training(visit) for replica in replicas]
    entered = [context.__enter__() for context in contexts]
    members = [
        PackMember(replica.parts(), training, seed)
        for replica, (training, _), seed in zip(replicas, entered, seeds, strict=True)
    ]
    first = replicas[0]
    failure: BaseException | None = None
    try:
        watch = Watch([member.parts for member in members])
        batches = unchanged(first.training_batches(visit), 0)
        with _refusals_noted(first.signature):
            if not train_members(first.signature, members, batches, len(visit.rows)):
                failure = _NothingTrainedError()
            watch.check()
    except BaseException as error:
        failure = error
    found = [
        _left(context, failure or member.failure(sums)) or sums.totals()
        for context, (_, sums), member in zip(contexts, entered, members, strict=True)
    ]
    _raise_changed_base(found)
    return None if isinstance(failure, _NothingTrainedError) else _without_interrupts(found, failure)


def validate_together(
    replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
) -> list[MetricSet | Exception] | None:
    """See :meth:`hopyard.training.estimator.Replica.validate_together`."""
    contexts = [replica.in_validation() for replica in replicas]
    for context in contexts:
        context.__enter__()
    metrics: list[MetricSet] = [replica.fresh_metrics() for replica in replicas]
    errors: Sequence[Exception | None] | None = None
    failure: BaseException | None = None
    try:
        signature = replicas[0].signature
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        parts = [replica.parts() for replica in replicas]
        batches = unchanged(replicas[0].validation_batches(visit))
        for each in parts:
            each.head.eval()
        with _refusals_noted(signature):
            watch = Watch(parts)
            errors = measure_members(signature, parts, batches, metrics, generators)
            watch.check()
    except BaseException as error:
        failure = error
    found = [
        _left(context, failure or error) or measured
        for context, error, measured in zip(contexts, errors or [None] * len(metrics), metrics, strict=True)
    ]
    _raise_changed_base(found)
    kept = _without_interrupts(found, failure)
    return kept if errors is not None else None


def gain_together(replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]) -> float | None:
    """See :meth:`hopyard.training.estimator.Replica.gain_together`."""
    contexts = [replica.in_training(visit) for replica in replicas]
    members = [
        PackMember(replica.parts(), context.__enter__()[0], seed)
        for replica, context, seed in zip(replicas, contexts, seeds, strict=True)
    ]
    signature = replicas[0].signature
    try:
        for batch, _ in () if members[0].parts.streams else replicas[0].training_batches(visit):
            alone = 0.0
            with suppress(_NotRecordedError):  # which is found again below, and noted
                alone = _seconds_alone(signature, members[0], batch) if is_taped(members[0].parts) else 0.0
            if 2 * _STEPS_OF_PROBE * alone <= _MOST_PROBE_SECONDS:
                with suppress(_TogetherError):  # of models that are no use any more
                    _width(signature, members, batch)
            break
    finally:
        for context in contexts:
            _left(context, _NothingTrainedError())
    return _gains.get((signature, torch.get_num_threads()))


class _NothingTrainedError(Exception):
    """Members of a pack are to be trained alone."""


@contextmanager
def _refusals_noted(signature: str) -> Iterator[None]:
    """Have models of this signature train one at a time from now on, if it is seen why they must."""
    try:
        yield
    except _TriedError as error:
        _widths[signature, torch.get_num_threads()] = str(error)
        raise


def _left(context: AbstractContextManager[Any], error: BaseException | None) -> BaseException | None:
    """Leave a context, by an exception if there is one. Returns that, or what leaving has raised."""
    traceback = None if error is None else error.__traceback__
    try:
        context.__exit__(None if error is None else type(error), error, None)
    except BaseException as raised:
        return raised
    finally:
        if error is not None:
            error.__traceback__ = traceback  # which contextlib takes away
    return error


def _raise_changed_base(found: Iterable[Any]) -> None:
    """
    Raises:
        BaseChangedError: a member has changed the base; nobody knows which one.
    """
    for each in found:
        if isinstance(each, BaseChangedError):
            raise each


def _without_interrupts(
    found: list[_Found | BaseException], failure: BaseException | None
) -> list[_Found | Exception]:
    """
    Raises:
        BaseException: ``failure``, if there is one, or what is no failure of a trial.
        _TriedError: one of them ends the process, which is its failure where it is computed alone.
    """
    if any(isinstance(each, SystemExit) for each in (*found, failure)):
        raise _TriedError("one of them ended the process")
    if failure is not None:
        raise failure
    kept: list[_Found | Exception] = []
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, Exception):
            raise each
        kept.append(each)
    return kept


def train_members(
    signature: str, members: Sequence[PackMember], batches: Iterable[tuple[Batch, int]], rows: int
) -> bool:
    """Train replicas of one signature on the batches of a visit.

    Args:
        batches: placed, each with its number of rows.
        rows: of all batches.

    Returns: whether they were trained; else they must be trained one by one, and nothing of them has changed.

    Raises:
        _TogetherError: computing them together has failed.
    """
    first = members[0].parts
    sizes = batch_sizes(rows, first.estimator.batch_size)
    shares, ends = groups_of(sizes, first.estimator.accumulate)
    shares = None if first.forward.loss_is_sum else shares
    if not first.streams and is_taped(first) and not is_worth_measuring(signature):
        return False
    groups: list[tuple[Sequence[PackMember], _Lockstep | Unison | Captured]] = []
    begins = True
    try:
        for number, (batch, size) in enumerate(batches):
            if not groups and first.streams:
                groups = [(members, _captured(members, len(sizes)))]
            elif not groups:
                width = _width(signature, members, batch)
                if isinstance(width, str):
                    return False
                with _failures_noted(signature):
                    groups = _grouped(signature, members, width)
            ends_here = ends is None or number in ends
            for some, lockstep in groups:
                with _failures_noted(signature):
                    share = None if shares is None else shares[number]
                    losses = lockstep.gradients(batch, share, add=not begins)
                for member, found in zip(some, losses, strict=True):
                    if isinstance(found, Exception):
                        member.error = member.error or found
                    else:
                        member.note(found[0], found[1], size, found[2] if len(found) > 2 else {})
                    if ends_here:
                        member.step()
            begins = ends_here
    finally:
        for _, lockstep in groups:
            lockstep.close(changed=True)
            if lockstep.failure:
                _widths[signature, torch.get_num_threads()] = lockstep.failure
    if any(lockstep.has_moved for _, lockstep in groups):
        raise _TriedError("it puts other memory behind its parameters")
    return True


@contextmanager
def _failures_noted(signature: str) -> Iterator[None]:
    """Have models of this signature train one at a time from now on, if computing them together fails.

    Raises:
        _TogetherError: it has failed.
    """
    try:
        yield
    except _TogetherError as error:
        _widths[signature, torch.get_num_threads()] = str(error)
        raise
    except Exception as error:
        failed = f"training them together failed ({described(error)})"
        _widths[signature, torch.get_num_threads()] = failed
        raise _TogetherError(failed) from error


def _grouped(
    signature: str, members: Sequence[PackMember], width: int
) -> list[tuple[Sequence[PackMember], _Lockstep | Unison | Captured]]:
    starts = range(0, len(members), width)
    groups = [members[start : start + width] for start in starts]
    if is_taped(members[0].parts):
        return [(some, _unison(signature, some)) for some in groups]
    return [(some, _Lockstep.of(signature, some)) for some in groups]


def _captured(members: Sequence[PackMember], batches: int) -> Captured:
    first = members[0].parts
    recorder = recorder_for(first.device, first.streams)
    own = [_taped(member.parts, member.generator) for member in members]
    return Captured(own, [member.seed for member in members], recorder, batches)


def _unison(signature: str, members: Sequence[PackMember]) -> Unison:
    return Unison(signature, [_taped(member.parts, member.generator) for member in members], trains=True)


def _taped(parts: Parts, generator: torch.Generator) -> TapedModel:
    return TapedModel(
        parts.head, parts.base, parts.forward, trained_of(parts), parts.marks, parts.tapes, generator
    )


def measure_members(
    signature: str,
    members: Sequence[Parts],
    batches: Iterable[Batch],
    metrics: Sequence[MetricSet],
    generators: Sequence[torch.Generator],
) -> list[Exception | None] | None:
    """Add batches, which are placed, to the metrics of replicas of one signature.

    Returns: of each replica the exception that ended it, or None; None for all: they must be validated one by one.
    """
    if members[0].streams:
        return None
    if is_taped(members[0]):
        if width_of(signature) is None:  # what they gain in training is to be seen first
            return None
        return _measure_taped(members, batches, metrics, generators)
    found: list[Exception | None] = [None] * len(members)
    stack = Stack([_layers_of(member) for member in members], generators)
    key = (signature, torch.get_num_threads())
    losses = PackLosses(signature, [member.forward for member in members])
    with torch.no_grad():
        stack.open()
        try:
            for member in members:
                member.head.eval()
            for batch in batches:
                if _misfit(members[0], batch):
                    return None
                try:
                    outputs = stack.forward(_input(members[0].forward, batch), training=False)
                except Exception as error:
                    if _computes_alone(members[0], batch):  # else each says for itself what is wrong
                        say_fallback("Validating models together failed", error)
                    return None
                outputs = aligned(*outputs.shape, dtype=outputs.dtype).copy_(outputs)  # metrics may keep them
                if key not in _validated and (differs := _validates_otherwise(members, batch, outputs)):
                    raise _TriedError(differs)
                _validated.add(key)
                results = losses.results(outputs, batch)
                for slot, (member, metric, result) in enumerate(zip(members, metrics, results, strict=True)):
                    if found[slot] is None:
                        try:
                            if isinstance(result, Exception):
                                raise result
                            add_batch(member.forward, batch, _own_labels(result), metric, [])
                        except Exception as error:
                            found[slot] = error
        finally:
            stack.close(changed=False)
    return found


def _validates_otherwise(members: Sequence[Parts], batch: Batch, outputs: torch.Tensor) -> str:
    """Why outputs of a stack are not those of the members; empty: they are."""
    with generators_kept(members[0].device):
        for member, together in zip(members, outputs.unbind(), strict=True):
            with member.forward.autocast():
                own = member.forward.outputs(batch)
            if not isinstance(own, torch.Tensor) or not same_numbers(own, together):
                return "validation would not have the same bits"
    return ""


def _own_labels(result: BatchResult) -> BatchResult:
    """The result with labels that metrics may change."""
    copied: Any = mapped(result.labels, lambda each: each.clone() if isinstance(each, torch.Tensor) else each)
    return result._replace(labels=copied)


def _computes_alone(member: Parts, batch: Batch) -> bool:
    try:
        member.forward.outputs(batch)
    except Exception:
        return False
    return True


@torch.no_grad()
def _measure_taped(
    members: Sequence[Parts],
    batches: Iterable[Batch],
    metrics: Sequence[MetricSet],
    generators: Sequence[torch.Generator],
) -> list[Exception | None] | None:
    """As :func:`measure_members`."""
    found: list[Exception | None] = [None] * len(members)
    own = [_taped(*each) for each in zip(members, generators, strict=True)]
    unison = Unison(f"validation of {members[0].head}", own, trains=False)
    try:
        for member in members:
            member.head.eval()
        for batch in batches:
            try:
                results = unison.results(batch)
            except _NotRecordedError:
                return None
            for slot, (member, metric, result) in enumerate(zip(members, metrics, results, strict=True)):
                if found[slot] is None:
                    try:
                        if isinstance(result, Exception):
                            raise result
                        given = member.estimator.step_metrics()
                        add_batch(member.forward, batch, _own_labels(result), metric, given)
                    except Exception as error:
                        found[slot] = error
    finally:
        unison.close(changed=False)
    return found


def _misfit(member: Parts, batch: Batch) -> str:
    """Why layers that are stacked cannot take the batch; empty: they can."""
    arguments, keywords = member.forward.binding.arguments(batch)
    given = [*arguments, *keywords.values()]
    if len(given) != 1 or not isinstance(given[0], torch.Tensor):
        return "it takes several inputs"
    if given[0].dim() == 2 or isinstance(_layers_of(member)[0], nn.Flatten):
        return ""
    return f"rows of its input have {given[0].dim() - 1} dimensions"


def _layers_of(member: Parts) -> Sequence[nn.Module]:
    assert not isinstance(member.chain, str), "a member has a signature, so it is a chain"
    return member.chain


def _input(forward: Forward, batch: Batch) -> torch.Tensor:
    arguments, keywords = forward.binding.arguments(batch)
    given = [*arguments, *keywords.values()][0]
    assert isinstance(given, torch.Tensor)
    return given


# Computing ------------------------------------------------------------------------------------


class _Lockstep:
    """Losses and gradients of models of one ``signature``, batch by batch.

    Attributes:
        failure, has_moved: see :class:`hopyard.training.torch.taped.Unison`.

    Args:
        forwards: of the members, for labels and losses.
    """

    failure: str = ""
    has_moved: bool = False

    def __init__(
        self,
        signature: str,
        chains: Sequence[Sequence[nn.Module]],
        forwards: Sequence[Forward],
        generators: Sequence[torch.Generator],
    ) -> None:
        self._forwards = forwards
        self._losses = PackLosses(signature, forwards)
        self._stack = Stack(chains, generators)
        with torch.no_grad():
            self._stack.open()

    @classmethod
    def of(cls, signature: str, members: Sequence[PackMember]) -> _Lockstep:
        return cls(
            signature,
            [_layers_of(member.parts) for member in members],
            [member.parts.forward for member in members],
            [member.generator for member in members],
        )

    def close(self, changed: bool) -> None:
        """Give the models their parameters back, with the values of now if these may have ``changed``."""
        with torch.no_grad():
            self._stack.close(changed)

    def gradients(self, batch: Batch, share: float | None, add: bool) -> MemberLosses:
        """Have gradients of a batch, times its ``share``, ``add``\\ ed to those that are there.

        Returns: of each member its loss and the batch's weight, or the exception that its loss raised.
        """
        with torch.no_grad():
            outputs = self._stack.forward(_input(self._forwards[0], batch), training=True)
        found, gradient = self._losses.gradients(outputs, batch, share)
        with torch.no_grad():
            self._stack.backward(gradient, add)
        return found


# Choosing -------------------------------------------------------------------------------------


def width_of(signature: str) -> int | str | None:
    """How wide stacks of these models are, or why they train one at a time; None: not known yet in this process."""
    return _widths.get((signature, torch.get_num_threads()))


def is_worth_measuring(signature: str, batches: int = 0) -> bool:
    """Whether models with tapes have been trained in turns for so long, now by ``batches`` more, that it pays to see
    what they gain together."""
    key = (signature, torch.get_num_threads())
    if batches and key not in _widths:
        _in_turns[key] = _in_turns.get(key, 0) + batches
    return key in _widths or _in_turns.get(key, 0) >= _BATCHES_FIRST


def _width(signature: str, members: Sequence[PackMember], batch: Batch) -> int | str:
    """Number of members that a stack takes; or why they gain nothing together, or have not their bits."""
    chosen = width_of(signature)
    if chosen is None:
        with generators_kept(members[0].parts.device):
            try:
                chosen = _probed(signature, members, batch)
            except Exception as error:
                is_known = isinstance(error, (_NotRecordedError, _TriedError))
                chosen = str(error) if is_known else f"trying it out together failed ({described(error)})"
                if is_taped(members[0].parts):  # they were tried themselves, and may keep what nobody sees
                    _widths[signature, torch.get_num_threads()] = chosen
                    raise _TriedError(chosen) from error
        _widths[signature, torch.get_num_threads()] = chosen
    return chosen


def _probed(signature: str, members: Sequence[PackMember], batch: Batch) -> int | str:
    """How wide stacks are to be, or why there are none, by copies of the modules that are computed on one batch."""
    if is_taped(members[0].parts):
        return _probed_taped(signature, members, batch)
    forward = members[0].parts.forward
    if misfit := _misfit(members[0].parts, batch):
        return misfit
    module = copy.deepcopy(members[0].parts.head)
    step = partial(_own_gradients, module, forward, batch)
    until = measuring.clock() + _MOST_PROBE_SECONDS
    alone = measuring.seconds(step)
    gains: dict[int, float] = {}
    took = 0.0
    for width in sorted({min(width, len(members)) for width in WIDTHS}):
        before = measuring.clock()
        expected = max(_STEPS_OF_PROBE * width * alone, took * width / max(gains, default=width))
        if before + expected > until:
            break
        some = members[:width]
        copies = [copy.deepcopy((member.parts.head, _layers_of(member.parts))) for member in some]
        modules = [module for module, _ in copies]
        lockstep = _Lockstep(
            signature,
            [chain for _, chain in copies],
            [member.parts.forward for member in some],
            [_copied(m.generator) for m in some],
        )
        try:
            if differs := _differs(lockstep, some, modules, batch):
                return differs
            together = partial(lockstep.gradients, batch, None, add=False)
            gains[width] = measuring.gain(step, together, width, LEAST_GAIN, until)
        finally:
            lockstep.close(changed=True)
        took = measuring.clock() - before
    return _chosen(signature, gains, len(members), WIDTHS[0])


def _chosen(signature: str, gains: Mapping[int, float], members: int, most: int) -> int | str:
    """The width that gains most, of ``most`` if all members fit into one stack; or why there is none."""
    if not gains:
        return _TAKES_LONG
    width, gain = max(gains.items(), key=lambda each: each[1])
    _gains[signature, torch.get_num_threads()] = gain
    if gain < LEAST_GAIN:
        return f"{width} of them together would take {1 / gain:.2f} times as long as one by one"
    return most if width == members else width


def _probed_taped(signature: str, members: Sequence[PackMember], batch: Batch) -> int | str:
    """How many models with tapes are to be computed at once, or why none are; all of them are left as they are."""
    share = _share_of(members[0].parts)
    widths = sorted({min(width, len(members)) for width in WIDTHS_OF_TAPED}, reverse=True)
    gains: dict[int, float] = {}
    begun = measuring.clock()
    alone = _seconds_alone(signature, members[0], batch)
    trained = _in_turns.get((signature, torch.get_num_threads()), 0) * alone
    until = begun + _MOST_PROBE_SECONDS + trained / _SHARE_OF_TRAINING
    while widths:
        left = until - measuring.clock()
        fitting = [width for width in widths if _STEPS_OF_PROBE * width * alone <= left]
        if not fitting:
            break
        widths.remove(width := max(fitting))
        with _taped_copies(signature, members[:width]) as unison:
            is_long = width * alone > measuring.LONG_SECONDS
            most = width * alone * measuring.CLEAR / LEAST_GAIN if is_long and LEAST_GAIN else math.inf
            took = unison.prepare(batch, share, most)
            if took is not None and took > most:
                gains[width] = width * alone / took
                continue
            gains[width] = measuring.gain(
                partial(unison.gradients_alone, 0, batch, share, add=False),
                partial(unison.gradients, batch, share, add=False),
                width,
                LEAST_GAIN,
                min(until, measuring.clock() + _MOST_PROBE_SECONDS - alone - (took or 0.0)),
                None if took is None else (alone, took),
            )
        if gains[width] > _LARGE_GAIN:
            break
    return _chosen(signature, gains, len(members), WIDTHS_OF_TAPED[0])


def _share_of(parts: Parts) -> float | None:
    """A share of a group of batches, where losses are multiplied by it."""
    return 1.0 if parts.estimator.accumulate > 1 and not parts.forward.loss_is_sum else None


def _seconds_alone(signature: str, member: PackMember, batch: Batch) -> float:
    """CPU time that a member with tapes takes for the loss and gradients of a batch."""
    share = _share_of(member.parts)
    with _taped_copies(signature, [member]) as one:
        return measuring.seconds(partial(one.gradients_alone, 0, batch, share, add=False))


@contextmanager
def _taped_copies(signature: str, members: Sequence[PackMember]) -> Iterator[Unison]:
    """Members with tapes together, for a trial; they, their buffers and their generators are left as they are."""
    own = [_taped(member.parts, _copied(member.generator)) for member in members]
    unison = Unison(signature, own, trains=True)
    try:
        with listening(drops=True) as heard, unison.kept():
            yield unison
        if heard:
            raise _NotRecordedError(f"it {heard[0]}")
    finally:
        unison.close(changed=False)


def _differs(
    lockstep: _Lockstep, members: Sequence[PackMember], modules: Sequence[nn.Module], batch: Batch
) -> str:
    """A sentence on a loss or gradient that has not the bits of the member's own module; empty: all have."""
    losses = lockstep.gradients(batch, None, add=False)
    for member, module, found in zip(members, modules, losses, strict=True):
        own = copy.deepcopy(member.parts.head)
        torch.set_rng_state(member.generator.get_state())
        loss, gradients = _own_gradients(own, member.parts.forward, batch)
        if isinstance(found, Exception) or not same_numbers(loss, found[0]):
            return "the loss would not have the same bits"
        trained = [(name, each.grad) for name, each in module.named_parameters() if each.requires_grad]
        for (name, stacked), gradient in zip(trained, gradients, strict=True):
            if stacked is None or not same_numbers(gradient, stacked):
                return f"the gradient of {name} would not have the same bits"
    return ""


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
