"""Steps on GPUs: what a model does with a batch, captured in a CUDA graph, and replayed for later batches of that form.

Python gives a GPU one operation after another, and small ones end before the next is there; a replay gives all of them
at once. Graphs of several models are replayed on several streams, beside each other. A model computes the first batch
of a form as it does alone. The second one it computes both ways, and the third, with loss, gradients, buffers and
random numbers compared to the bit. A model that cannot be captured, or would come to other bits, is not: the visit is
made anew without, and it is said why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError
from hopyard.training.estimator import _TriedError
from hopyard.training.fallback import described
from hopyard.training.torch import hidden
from hopyard.training.torch.tape import _NotRecordedError, mapped
from hopyard.training.torch.taped import Measured, TapedModel, agree, form_of_batch, gradients_of, stand_in
from hopyard.training.torch.untouched import (
    drawing_from,
    listening,
    members_kept,
    own_tensors,
    surroundings,
)
from hopyard.wording import some_names

_FEWEST_BATCHES = 20
"""Of a visit, below which it takes longer to capture steps than these save."""


# GPUs -----------------------------------------------------------------------------------------


class StepRecorder(Protocol):
    """Records computations on a device, and does them again on its streams."""

    def on(self, slot: int) -> AbstractContextManager[None]:
        """Have a member's work follow what the caller has asked for so far, on a stream of its own."""

    def join(self) -> None:
        """Have the caller's work follow that of all members."""

    def generator(self, seed: int) -> torch.Generator:
        """A generator of the device's random numbers."""

    def drawing_from(self, generator: torch.Generator) -> AbstractContextManager[None]:
        """Have the device draw from this generator."""

    def record(self, slot: int, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Record a computation on a member's stream.

        Returns: its result, and what does it again: into the same tensors.
        """


class CudaGraphs:
    """Captures in CUDA graphs; :class:`StepRecorder` has what it does. Those of one stream share memory.

    Args:
        streams: how many.
    """

    def __init__(self, device: torch.device, streams: int) -> None:
        self._device = device
        self._streams = [torch.cuda.Stream(device) for _ in range(streams)]  # type: ignore[no-untyped-call]
        self._pools = [torch.cuda.graph_pool_handle() for _ in range(streams)]

    @contextmanager
    def on(self, slot: int) -> Iterator[None]:
        stream = self._streams[slot % len(self._streams)]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        current = torch.cuda.current_stream(self._device)
        for stream in self._streams:
            current.wait_stream(stream)

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(seed)

    @contextmanager
    def drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        default = torch.cuda.default_generators[index]
        before = default.graphsafe_get_state()
        # Both are one from here on, also for graphs that are captured meanwhile.
        default.graphsafe_set_state(generator)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)

    def record(self, slot: int, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        number = slot % len(self._streams)
        graph = torch.cuda.CUDAGraph()
        # Threads that load batches go on using the device meanwhile.
        with torch.cuda.graph(
            graph, self._pools[number], self._streams[number], capture_error_mode="thread_local"
        ):
            found = compute()
        return found, graph.replay


def recorder_for(device: torch.device, streams: int) -> StepRecorder:
    """What captures steps on a device."""
    return CudaGraphs(device, streams)


def why_not_on(device: torch.device) -> str:
    """Why steps on a device are not captured; empty: they may be."""
    return "" if device.type == "cuda" else f"it is on {device}, and CUDA graphs are for NVIDIA GPUs"


# Steps ----------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """A member's captured computation of a batch.

    Attributes:
        measured: tensors that ``replay`` fills anew.
        has: whether there is a gradient, by parameter.
        outputs: of the shapes of the model's, where a loss is given.
    """

    replay: Callable[[], None]
    measured: Measured
    has: tuple[bool, ...]
    outputs: Any


class _State(NamedTuple):
    """All that a batch changes of a member."""

    tensors: list[torch.Tensor]
    cpu: torch.Tensor
    device: torch.Tensor


class Captured:
    """Losses and gradients of models, batch by batch, by captured steps.

    Attributes:
        failure, has_moved: nothing; see :class:`hopyard.training.torch.taped.Unison`.

    Args:
        members: alike, on one device; their ``generator`` is of the CPU's random numbers.
        seeds: of each, for the device's random numbers.
        batches: that are to come.
    """

    failure: str = ""
    has_moved: bool = False

    def __init__(
        self, members: Sequence[TapedModel], seeds: Sequence[int], recorder: StepRecorder, batches: int
    ) -> None:
        self._members, self._recorder = members, recorder
        self._generators = [recorder.generator(seed) for seed in seeds]
        self._gradients = [[torch.zeros_like(each) for each in member.trained] for member in members]
        self._captures = batches >= _FEWEST_BATCHES
        self._met: dict[Any, int] = {}
        self._batches: dict[Any, Batch] = {}
        self._steps: dict[tuple[int, Any], _Step] = {}

    def close(self, changed: bool) -> None:
        """Take the gradients away."""
        for member in self._members:
            for parameter in member.trained:
                parameter.grad = None

    def gradients(self, batch: Batch, share: float | None, add: bool) -> list[Measured | Exception]:
        """Have gradients of a batch, times its ``share``, ``add``\\ ed to those that are there.

        Returns: of each member what it found, or the exception that it raised.

        Raises:
            _TriedError: it is seen only now why steps cannot be captured.
        """
        if others := [name for name, value in batch.items() if not isinstance(value, torch.Tensor)]:
            raise _TriedError(f"batches have {some_names(others, 3)}, which no graph can read")
        form = (*form_of_batch(batch), share, add)
        times = self._met[form] = self._met.get(form, 0) + 1
        moved = self._moved(form, batch) if self._captures and times > 1 else batch
        found: list[Measured | Exception] = []
        for slot in range(len(self._members)):
            with self._recorder.on(slot):
                if not self._captures or times == 1:
                    found.append(self._alone(slot, batch, share, add))
                elif times <= 3 or (slot, form) not in self._steps:
                    found.append(self._both_ways(slot, form, batch, moved, share, add))
                else:
                    found.append(self._replayed(slot, form, moved, add))
        self._recorder.join()
        return found

    def _moved(self, form: Any, batch: Batch) -> Batch:
        """The batch where graphs find it, which all members share."""
        if form not in self._batches:
            self._batches[form] = {name: value.clone() for name, value in batch.items()}
        kept = self._batches[form]
        for name, value in batch.items():
            kept[name].copy_(value)
        return kept

    def _alone(self, slot: int, batch: Batch, share: float | None, add: bool) -> Measured | Exception:
        """What a member measures of a batch, computed as it does alone."""
        member, before = self._members[slot], surroundings()
        for parameter in () if add else member.trained:
            parameter.grad = None
        gradients = [parameter.grad for parameter in member.trained]
        try:
            with drawing_from(member.generator), self._recorder.drawing_from(self._generators[slot]):
                measured, has, _ = self._computed(slot, batch, share, add)
        except _NotRecordedError as error:
            raise _TriedError(str(error)) from error
        except torch.OutOfMemoryError as error:
            raise _TriedError("they do not fit into the memory of the GPU together") from error
        except Exception as error:
            return error
        if surroundings() != before:
            raise _TriedError("it draws random numbers that are not PyTorch's")
        if any(each.grad is not gradient for each, gradient in zip(member.trained, gradients, strict=True)):
            raise _TriedError("it changes gradients")
        self._point(slot, has, add)
        return measured

    def _computed(
        self, slot: int, batch: Batch, share: float | None, add: bool, check: bool = True
    ) -> tuple[Measured, tuple[bool, ...], Any]:
        """Compute a batch, with gradients in their places. Returns what is measured, which parameters have a gradient,
        and the model's outputs."""
        member = self._members[slot]
        measured, gradients, outputs = gradients_of(member, batch, share, check)
        with torch.no_grad():
            for parameter, own, gradient in zip(
                member.trained, self._gradients[slot], gradients, strict=True
            ):
                if gradient is None:
                    continue
                if add and parameter.grad is not None:
                    own.add_(gradient)
                else:
                    own.copy_(gradient)
        return measured, tuple(gradient is not None for gradient in gradients), outputs

    def _point(self, slot: int, has: Sequence[bool], add: bool) -> None:
        """Give parameters their gradients."""
        for parameter, own, one in zip(self._members[slot].trained, self._gradients[slot], has, strict=True):
            if one:
                parameter.grad = own
            elif not add:
                parameter.grad = None

    def _replayed(self, slot: int, form: Any, batch: Batch, add: bool) -> Measured | Exception:
        """What a member measures of a batch, by its graph."""
        step, forward = self._steps[slot, form], self._members[slot].forward
        if forward.loss is not None and forward.checks_labels:
            try:
                forward.check(step.outputs, batch)
            except EstimatorError as error:
                return error
        with self._recorder.drawing_from(self._generators[slot]):
            step.replay()
        self._point(slot, step.has, add)
        loss, weight, values = step.measured  # which the next replay fills anew
        return loss.clone(), mapped(weight, _cloned), mapped(values, _cloned)

    # Comparing ---------------------------------------------------------------------------------

    def _both_ways(
        self, slot: int, form: Any, batch: Batch, moved: Batch, share: float | None, add: bool
    ) -> Measured | Exception:
        """What a member measures of a batch, by itself, and by a graph where it was ``moved`` to; the graph is made if
        there is none."""
        member, before = self._members[slot], self._state(slot)
        had = [add and parameter.grad is not None for parameter in member.trained]
        marks, heard = member.marks(), []
        try:
            with members_kept(member.head), listening() as heard:
                found = self._alone(slot, batch, share, add)
        except _NotRecordedError as error:
            raise _TriedError(str(error)) from error
        if isinstance(found, Exception):
            return found
        if heard:
            raise _TriedError(f"it {heard[0]}")
        after = self._state(slot)
        if not torch.equal(before.cpu, after.cpu):
            raise _TriedError("it draws random numbers on the CPU")
        self._put_back(slot, before)
        if (slot, form) not in self._steps:
            for parameter, own, has in zip(member.trained, self._gradients[slot], had, strict=True):
                parameter.grad = own if has else None
            self._steps[slot, form] = self._recorded(slot, moved, share, add)
            self._put_back(slot, before)
        if changed := hidden.differences(marks, member.marks(), ()):
            raise _TriedError(f"it changes {some_names(changed, 3)}")
        again = self._replayed(slot, form, moved, add)
        if not agree(again, found) or not agree(list(self._state(slot)), list(after)):
            raise _TriedError("a captured step would not have the same bits")
        return again

    def _recorded(self, slot: int, batch: Batch, share: float | None, add: bool) -> _Step:
        """A member's computation of a batch like this one."""
        try:
            with self._recorder.drawing_from(self._generators[slot]):
                (measured, has, outputs), replay = self._recorder.record(
                    slot, lambda: self._computed(slot, batch, share, add, check=False)
                )
        except Exception as error:
            raise _TriedError(f"a step of it cannot be captured ({described(error)})") from error
        constants = [name for name, value in measured[2].items() if not isinstance(value, torch.Tensor)]
        if constants:
            raise _TriedError(f"its step gives {some_names(constants, 3)}, which no graph can compute")
        return _Step(replay, measured, has, mapped(outputs, stand_in))

    def _state(self, slot: int) -> _State:
        """A member's own tensors, gradients and generators as they are."""
        tensors = [each.detach().clone() for each in self._changing(slot)]
        return _State(tensors, self._members[slot].generator.get_state(), self._generators[slot].get_state())

    def _put_back(self, slot: int, state: _State) -> None:
        with torch.no_grad():
            for own, before in zip(self._changing(slot), state.tensors, strict=True):
                own.copy_(before)
        self._members[slot].generator.set_state(state.cpu)
        self._generators[slot].set_state(state.device)

    def _changing(self, slot: int) -> list[torch.Tensor]:
        return [*own_tensors(self._members[slot]).values(), *self._gradients[slot]]


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
