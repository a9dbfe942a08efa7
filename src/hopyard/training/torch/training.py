"""The training pass: everything that is done for each batch, and nothing else."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hopyard.errors import DivergedError
from hopyard.training.torch.forward import BatchResult, Forward
from hopyard.training.torch.optim import OptimizerSteps

_FLUSH = 256


class TrainingPass:
    """Trains a model on the batches of one visit.

    Args:
        scheduler: steps after every step of the optimizer, or None.
        accumulate: batches per step; a shorter group at the end is a step too.
    """

    def __init__(
        self,
        forward: Forward,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        scaler: torch.amp.GradScaler | None,
        accumulate: int,
        gradient_clip: float | None,
    ) -> None:
        self._forward = forward
        self._optimizer = optimizer
        self._steps = OptimizerSteps(optimizer)
        self._scheduler = scheduler
        self._scaler = scaler
        self._accumulate = accumulate
        self._clip = gradient_clip
        self._trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def run(self, batches: Iterable[tuple[Any, int]], sizes: list[int], sums: Sums) -> None:
        """One pass, noted in ``sums``.

        Args:
            batches: what ``forward`` takes, each with its number of rows.
            sizes: rows of every batch, as loaded.

        Raises:
            DivergedError: the loss is not finite.
        """
        forward, update = self._forward, self._update
        shares, ends = groups_of(sizes, self._accumulate)
        shares = None if forward.loss_is_sum else shares
        forward.module.zero_grad(set_to_none=True)
        self._optimizer.zero_grad(set_to_none=True)
        group: Any = 0.0
        for number, (batch, rows) in enumerate(batches):
            result = forward(batch, training=True)
            if shares is None:
                self._backward(result.loss)
            elif result.weight is None or forward.loss is not None:
                self._backward(result.loss * shares[number])
            else:  # the weight of the group is known behind its last batch
                self._backward(result.loss * result.weight)
                group = group + result.weight
            sums.add(result, rows)  # before the step: values may be the model's own tensors
            if ends is None or number in ends:
                self.divide_gradients(group)
                group = 0.0
                update()
        self.close()

    def close(self) -> None:
        """End the pass after its last step, if a call of ``run`` has not done so."""
        self._steps.close()

    def divide_gradients(self, by: Any) -> None:
        """Divide gradients by the weight of a group, unless it is 0."""
        if isinstance(by, torch.Tensor):
            by = torch.where(by == 0, 1.0, by.to(torch.float32))
        elif not by:
            return
        for parameter in self._trained:
            if parameter.grad is not None:
                parameter.grad.div_(by)

    def _backward(self, loss: torch.Tensor) -> None:
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]

    def _update(self) -> None:
        self.step()
        # What optimizer.zero_grad() does, without its bookkeeping.
        for parameter in self._trained:
            parameter.grad = None
        self.after_step()

    def step(self) -> None:
        """A step of the optimizer by the gradients that parameters have."""
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        self._before_step()
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._trained, self._clip)
        if self._scaler is None:
            self._steps.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def _before_step(self) -> None:
        """Called when the gradients of a step are complete, and not yet clipped."""

    def after_step(self) -> None:
        """Called when a step is done."""
        if self._scheduler is not None:
            with steps_skipped(self._scaler):
                self._scheduler.step()


@contextmanager
def steps_skipped(scaler: torch.amp.GradScaler | None) -> Iterator[None]:
    """Silence the schedulers' warning of steps that the scaler skips, as it does first of all: they look like a wrong
    order of calls."""
    if scaler is None:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step\\(\\)` before")
        yield


def groups_of(sizes: list[int], accumulate: int) -> tuple[list[float] | None, set[int] | None]:
    """Each batch's share of the rows of its group, whose gradients make one step, and where groups end; None if every
    batch is a group."""
    if accumulate == 1:
        return None, None
    starts = range(0, len(sizes), accumulate)
    groups = [sizes[start : start + accumulate] for start in starts]
    ends = {start + len(group) - 1 for start, group in zip(starts, groups, strict=True)}
    return [size / sum(group) for group in groups for size in group], ends


class Sums:
    """Weighted sums of losses and other values of a pass. They stay on the device and are read some hundred at a time:
    no wait per step.

    Args:
        where: of the visit, for messages about losses that are not finite; None: they may be so.
        loss_is_sum: losses are sums over batches, which their weights do not multiply.
        remedy: the user's way to bound gradients, for those messages.
    """

    def __init__(
        self, where: str | None, loss_is_sum: bool = False, remedy: str = "set gradient_clip"
    ) -> None:
        self._where, self._remedy = where, remedy
        self._loss_is_sum = loss_is_sum
        self._noted: dict[str, tuple[list[Any], list[Any]]] = {"loss": ([], [])}
        self._losses_read = 0
        self._totals: dict[str, list[float]] = {}

    def add(self, result: BatchResult, rows: int) -> None:
        """Note a batch of ``rows`` rows."""
        weight = rows if result.weight is None else result.weight
        self.note("loss", result.loss.detach(), weight)
        for name, value in result.values.items():
            # Not the tensor itself: it may hold a graph, and change in place before it is read.
            self.note(name, value.detach().clone() if isinstance(value, torch.Tensor) else value, weight)

    def note(self, name: str, value: Any, weight: Any) -> None:
        """Note one number, a tensor or not, with its weight."""
        values, weights = self._noted.setdefault(name, ([], []))
        values.append(value)
        weights.append(weight)
        if len(values) == _FLUSH:
            self._flush(name)

    def totals(self) -> dict[str, list[float]]:
        """``{name: [sum, weight]}`` in float64."""
        for name in list(self._noted):
            self._flush(name)
        return self._totals

    def _flush(self, name: str) -> None:
        noted, weights = self._noted.pop(name)
        values, by = floats(noted), floats(weights)
        is_loss = name == "loss"
        if is_loss and self._where is not None:
            self._check_finite(values)
        total = self._totals.setdefault(name, [0.0, 0.0])
        total[0] += math.fsum(values if is_loss and self._loss_is_sum else values * by)
        total[1] += math.fsum(by)

    def _check_finite(self, losses: np.ndarray[Any, Any]) -> None:
        if not np.isfinite(losses).all():
            bad = int(np.flatnonzero(~np.isfinite(losses))[0])
            raise DivergedError(
                f"The loss became {losses[bad]} in {self._where}, batch {self._losses_read + bad + 1}; lower the "
                f"learning rate, {self._remedy}, or look for values in the data that are not finite."
            )
        self._losses_read += len(losses)


def floats(values: list[Any]) -> np.ndarray[Any, Any]:
    """Single numbers, tensors or not, as float64 (len(values),)."""
    if values and all(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
        return torch.stack([value.detach().reshape(()) for value in values]).double().cpu().numpy()
    return np.array([value.item() if isinstance(value, torch.Tensor) else float(value) for value in values])
