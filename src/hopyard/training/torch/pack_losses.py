"""Losses of models that train together: of all of them at once, where that gives the bits of single ones.

Each way is compared with the members' own losses, on random outputs, before it is first used for a signature, a shape
and a number of threads; of those with the same bits the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError
from hopyard.training.estimator import _TriedError
from hopyard.training.torch.forward import BatchResult, Forward
from hopyard.training.torch.loss import Loss
from hopyard.training.torch.stack import draws_of, same_numbers

MemberLosses: TypeAlias = list[tuple[torch.Tensor, Any] | Exception]
"""Of each member its loss and the batch's weight (None: its rows), or the exception that its loss raised."""
_Way: TypeAlias = Callable[[torch.Tensor, Batch, float | None], tuple[MemberLosses, torch.Tensor]]
"""Computes losses of outputs for a batch, and the gradient of their sum, times a share, by the outputs."""
_Values: TypeAlias = Callable[[torch.Tensor, Batch], tuple[torch.Tensor, Any]]
"""Computes losses (members,) of outputs for a batch, and the batch's weight."""

_SHARES = (1 / 3, 0.7)
"""With which ways are compared where batches are parts of a step: by others than powers of 2 roundings differ."""
_ELEMENTS = 0
"""Of PyTorch's losses: no reduction."""

_exact: dict[tuple[str, str, tuple[int, ...], int], int] = {}


class PackLosses:
    """Losses of models of one ``signature``, by their ``forwards``."""

    def __init__(self, signature: str, forwards: Sequence[Forward]) -> None:
        self._signature, self._forwards = signature, forwards
        loss = forwards[0].loss
        self._is_torchs = loss is not None and isinstance(loss.module, nn.Module)

    # In training --------------------------------------------------------------------------------

    def gradients(
        self, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[MemberLosses, torch.Tensor]:
        """Losses of outputs (members, rows, ...), and the gradient of their sum, times ``share``, by the outputs."""
        first = self._forwards[0]
        if not self._is_torchs:
            return self._in_turn(outputs, batch, share)
        way = self._way(outputs, batch, share)
        if way != self._in_turn and first.checks_labels:
            try:
                first.check(outputs[0], batch)
            except EstimatorError:
                way = self._in_turn  # each member says so itself
        return way(outputs, batch, share)

    def _way(self, outputs: torch.Tensor, batch: Batch, share: float | None) -> _Way:
        ways: list[_Way] = [
            self._of_squares,
            partial(self._by_autograd, self._by_element),
            partial(self._shared_afterwards, self._by_element),
            partial(self._by_autograd, self._by_rows),
            self._at_once,
            self._in_turn,
        ]
        key = self._key("gradients" if share is None else "shares", outputs)
        if key not in _exact:
            self._in_turn(outputs, batch, share)  # which checks the labels
            shares = [None] if share is None else [share, *_SHARES]
            _exact[key] = next(
                number
                for number, way in enumerate(ways)
                if way == self._in_turn or all(self._is_exact(way, outputs, batch, each) for each in shares)
            )
        return ways[_exact[key]]

    def _key(self, use: str, outputs: torch.Tensor) -> tuple[str, str, tuple[int, ...], int]:
        return use, self._signature, tuple(outputs.shape), torch.get_num_threads()

    def _is_exact(self, way: _Way, outputs: torch.Tensor, batch: Batch, share: float | None) -> bool:
        for drawn in _drawn(outputs):
            found, gradient = self._in_turn(drawn, batch, share)
            try:
                others, other = way(drawn, batch, share)
            except Exception:  # of a loss that is not for this way
                return False
            if not same_numbers(other, gradient) or not _all_same(found, others):
                return False
        return True

    def _in_turn(
        self, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[MemberLosses, torch.Tensor]:
        found: MemberLosses = []
        gradient = torch.zeros_like(outputs)
        for slot, forward in enumerate(self._forwards):
            own = outputs[slot].detach().requires_grad_()
            # A function may change outputs in place, or do without them; a module of PyTorch's does not.
            given = own if self._is_torchs else own.clone()
            try:
                result = forward.result(given, batch, training=True)
                loss = result.loss if share is None else result.loss * share
                (by_outputs,) = torch.autograd.grad(loss, own, allow_unused=not self._is_torchs)
                if by_outputs is None:  # then parameters have none, and steps leave them
                    raise _TriedError("its loss may do without the model's outputs")
                gradient[slot] = by_outputs
                found.append((result.loss.detach(), result.weight))
            except _TriedError:
                raise
            except Exception as error:  # the user's loss refuses what this member gives
                found.append(error)
        return found, gradient

    def _at_once(
        self, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[MemberLosses, torch.Tensor]:
        forward, weights = self._forwards[0], []

        def loss_of(own: torch.Tensor) -> torch.Tensor:
            result = forward.result(own, batch, training=True, check=False)
            weights.append(result.weight)
            return result.loss

        return self._by_autograd(
            lambda whole, batch: (torch.vmap(loss_of)(whole), weights[0]), outputs, batch, share
        )

    def _by_autograd(
        self, values: _Values, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[MemberLosses, torch.Tensor]:
        whole = outputs.detach().requires_grad_()
        losses, weight = values(whole, batch)
        (gradient,) = torch.autograd.grad((losses if share is None else losses * share).sum(), whole)
        return [(loss, weight) for loss in losses.detach().unbind()], gradient

    def _shared_afterwards(
        self, values: _Values, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[MemberLosses, torch.Tensor]:
        found, gradient = self._by_autograd(values, outputs, batch, None)
        return found, gradient if share is None else gradient * share

    def _of_squares(
        self, outputs: torch.Tensor, batch: Batch, share: float | None
    ) -> tuple[MemberLosses, torch.Tensor]:
        """Mean squared errors, whose gradients need no graph.

        Raises:
            TypeError: the loss is another one.
        """
        loss, labels = self._elements(outputs, batch)
        if type(loss.module) is not nn.MSELoss:
            raise TypeError
        with torch.no_grad():
            errors = torch.ops.aten.mse_loss(outputs, labels, _ELEMENTS).flatten(1)
            losses = errors.sum(1) if loss.is_sum else errors.mean(1)
            part = outputs.new_full((), 1.0 if loss.is_sum else 1 / errors.shape[1])
            gradient: torch.Tensor = torch.ops.aten.mse_loss_backward(
                part.expand_as(outputs), outputs, labels, _ELEMENTS
            )
            if share is not None:
                gradient.mul_(share)
        weight = loss.weight_of(labels[0])
        return [(own, weight) for own in losses.unbind()], gradient

    # Values -------------------------------------------------------------------------------------

    def _elements(self, outputs: torch.Tensor, batch: Batch) -> tuple[Loss, torch.Tensor]:
        """The loss, and labels in the shape of all outputs.

        Raises:
            TypeError: the loss is no mean or sum of elements.
        """
        first = self._forwards[0]
        labels = first.labels(batch, outputs[0])
        if first.loss is None or first.loss.by_element is None or not isinstance(labels, torch.Tensor):
            raise TypeError
        return first.loss, labels.expand(outputs.shape)

    def _by_element(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, Any]:
        """Losses that are means or sums of elements, of the elements of all members at once.

        Raises:
            TypeError: the loss is another one.
        """
        loss, labels = self._elements(outputs, batch)
        assert loss.by_element is not None
        elements = loss.by_element(outputs, labels).flatten(1)
        return elements.sum(1) if loss.is_sum else elements.mean(1), loss.weight_of(labels[0])

    def _by_rows(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, Any]:
        """Cross entropies, of logarithms that are computed for all rows of all members at once.

        Raises:
            TypeError: the loss is another one.
        """
        loss = self._forwards[0].loss
        labels = self._forwards[0].labels(batch, outputs[0])
        if (
            loss is None
            or loss.weighs_rows
            or type(loss.module) is not nn.CrossEntropyLoss
            or loss.module.label_smoothing
            or not isinstance(labels, torch.Tensor)
            or labels.dim() != 1
            or outputs.dim() != 3
        ):
            raise TypeError
        module = loss.module
        logarithms = functional.log_softmax(outputs.flatten(0, 1), 1).view(outputs.shape)
        losses = [
            functional.nll_loss(
                own, labels, module.weight, ignore_index=module.ignore_index, reduction=module.reduction
            )
            for own in logarithms.unbind()
        ]
        return torch.stack(losses), loss.weight_of(labels)

    # In validation ------------------------------------------------------------------------------

    def results(self, outputs: torch.Tensor, batch: Batch) -> list[BatchResult | Exception]:
        """Of each member the result of a validating batch, or the exception that its loss raised."""
        values = self._exact_values(outputs, batch) if self._is_torchs else None
        if values is not None:
            first = self._forwards[0]
            labels = first.labels(batch, outputs[0])
            try:
                first.check_fit(outputs[0], labels)
            except EstimatorError:
                values = None  # each member says so itself
        if values is None:
            return self._results_in_turn(outputs, batch)
        losses, weight = values(outputs, batch)
        return [
            BatchResult(loss, weight, own, labels, {})
            for loss, own in zip(losses.unbind(), outputs.unbind(), strict=True)
        ]

    def _exact_values(self, outputs: torch.Tensor, batch: Batch) -> _Values | None:
        """A way to losses of all members at once that has the bits of single ones; None: there is none."""
        ways = [self._by_element, self._by_rows]
        key = self._key("results", outputs)
        if key not in _exact:
            _exact[key] = next(
                (number for number, way in enumerate(ways) if self._has_own_values(way, outputs, batch)),
                len(ways),
            )
        return ways[_exact[key]] if _exact[key] < len(ways) else None

    def _has_own_values(self, values: _Values, outputs: torch.Tensor, batch: Batch) -> bool:
        for drawn in _drawn(outputs):
            own = self._results_in_turn(drawn, batch)
            try:
                losses, weight = values(drawn, batch)
            except Exception:  # of a loss that is not for this way
                return False
            found: MemberLosses = [(loss, weight) for loss in losses.unbind()]
            singles: MemberLosses = [
                each if isinstance(each, Exception) else (each.loss, each.weight) for each in own
            ]
            if not _all_same(singles, found):
                return False
        return True

    def _results_in_turn(self, outputs: torch.Tensor, batch: Batch) -> list[BatchResult | Exception]:
        found: list[BatchResult | Exception] = []
        for forward, own in zip(self._forwards, outputs.unbind(), strict=True):
            try:
                found.append(forward.result(own, batch, training=False))
            except Exception as error:  # the user's loss refuses what this member gives
                found.append(error)
        return found


def _drawn(outputs: torch.Tensor) -> list[torch.Tensor]:
    """Random outputs, enough for a comparison."""
    generator = torch.Generator().manual_seed(0)
    return [torch.empty_like(outputs).normal_(generator=generator) for _ in range(draws_of(len(outputs)))]


def _all_same(some: MemberLosses, others: MemberLosses) -> bool:
    return all(
        not isinstance(one, Exception) and not isinstance(other, Exception) and same_numbers(one[0], other[0])
        for one, other in zip(some, others, strict=True)
    )
