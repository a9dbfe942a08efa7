"""The training pass: everything that is done for each batch, and nothing else."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from hopyard.errors import DivergedError
from hopyard.training.torch.forward import Forward, Result

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
        self._scheduler = scheduler
        self._scaler = scaler
        self._accumulate = accumulate
        self._clip = gradient_clip
        self._trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def run(
        self, batches: Iterable[Mapping[str, Any]], sizes: list[int], where: str
    ) -> dict[str, list[float]]:
        """One pass; sums and weights of the loss and of a step's values.

        Args:
            sizes: rows of every batch, as loaded.
            where: of the visit, for messages.

        Raises:
            DivergedError: the loss is not finite.
        """
        forward, place, update = self._forward, self._forward.binding.place, self._update
        rows_of = forward.binding.rows
        sums = LossSums(where, forward.loss_is_sum)
        shares, ends = groups_of(sizes, self._accumulate)
        shares = None if forward.loss_is_sum else shares
        forward.module.train()
        forward.module.zero_grad(set_to_none=True)
        self._optimizer.zero_grad(set_to_none=True)
        for number, batch in enumerate(batches):
            placed = place(batch)
            result = forward(placed, training=True)
            loss = result.loss if shares is None else result.loss * shares[number]
            if self._scaler is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            sums.add(result, rows_of(placed))  # before the step: values may be the model's own tensors
            if ends is None or number in ends:
                update()
        return sums.totals()

    def _update(self) -> None:
        if self._clip is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._trained, self._clip)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        # What optimizer.zero_grad() does, without its bookkeeping.
        for parameter in self._trained:
            parameter.grad = None
        if self._scheduler is not None:
            self._step_scheduler(self._scheduler)

    def _step_scheduler(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        if self._scaler is None:
            scheduler.step()
            return
        with warnings.catch_warnings():
            # A step that the scaler skips, as it does first of all, looks to it like a wrong order of calls.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step\\(\\)` before")
            scheduler.step()


def groups_of(sizes: list[int], accumulate: int) -> tuple[list[float] | None, set[int] | None]:
    """Each batch's share of the rows of its group, whose gradients make one step, and where groups end; None if every
    batch is a group."""
    if accumulate == 1:
        return None, None
    starts = range(0, len(sizes), accumulate)
    groups = [sizes[start : start + accumulate] for start in starts]
    ends = {start + len(group) - 1 for start, group in zip(starts, groups, strict=True)}
    return [size / sum(group) for group in groups for size in group], ends


class LossSums:
    """Losses of a pass. They stay on the device and are read some hundred steps at a time: no wait per step."""

    def __init__(self, where: str, is_sum: bool) -> None:
        self._where = where
        self._is_sum = is_sum
        self._losses: list[torch.Tensor] = []
        self._weights: list[Any] = []
        self._values: dict[str, list[Any]] = {}
        self._rows: list[int] = []
        self._seen = 0
        self._totals: dict[str, list[float]] = {"loss": [0.0, 0.0]}

    def add(self, result: Result, rows: int) -> None:
        """Note a batch of ``rows`` rows."""
        self._losses.append(result.loss.detach())
        self._rows.append(rows)
        if result.weight is not None:
            self._weights.append(result.weight)
        for name, value in result.values.items():
            # Not the tensor itself: it may hold a graph, and change in place before it is read.
            kept = value.detach().clone() if isinstance(value, torch.Tensor) else value
            self._values.setdefault(name, []).append(kept)
        if len(self._losses) == _FLUSH:
            self._flush()

    def totals(self) -> dict[str, list[float]]:
        """``{name: [sum, weight]}`` in float64."""
        self._flush()
        return self._totals

    def _flush(self) -> None:
        if not self._losses:
            return
        losses = floats(self._losses)
        if not np.isfinite(losses).all():
            bad = int(np.flatnonzero(~np.isfinite(losses))[0])
            raise diverged(losses[bad], self._where, self._seen + bad + 1)
        rows = np.asarray(self._rows, np.float64)
        weights = floats(self._weights) if self._weights else rows
        self._count("loss", losses if self._is_sum else losses * weights, weights)
        for name, values in self._values.items():
            self._count(name, floats(values) * rows, rows)
        self._seen += len(rows)
        for noted in (self._losses, self._rows, self._weights, self._values):
            noted.clear()

    def _count(self, name: str, terms: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> None:
        total = self._totals.setdefault(name, [0.0, 0.0])
        total[0] += math.fsum(terms)
        total[1] += math.fsum(weights)


def diverged(loss: float, where: str, batch: int) -> DivergedError:
    """The error for a loss that is not finite in a batch, counted from 1."""
    return DivergedError(
        f"The loss became {loss} in {where}, batch {batch}; lower the learning rate, set gradient_clip, or look for "
        "values in the data that are not finite."
    )


def floats(values: list[Any]) -> np.ndarray[Any, Any]:
    """Single numbers, tensors or not, as float64 (len(values),)."""
    if all(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
        return torch.stack([value.detach().reshape(()) for value in values]).double().cpu().numpy()
    return np.array([value.item() if isinstance(value, torch.Tensor) else float(value) for value in values])
