"""Losses, plain or weighted per row, and labels in the form that they take."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from hopyard.errors import EstimatorError

Labels: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
ClassWeight: TypeAlias = Mapping[int, float] | Sequence[float]

_WANT_FLOATS = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.KLDivLoss,
)
_WANT_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)


class Loss:
    """A user's loss as one number per batch.

    Without weights it is called as given. With weights w it is sum(w * l) / sum(w) over the per-row
    losses l of a copy with ``reduction="none"`` (elements of a row averaged); a batch without any
    weight has loss 0. ``is_sum`` says that the loss is a sum over rows (``reduction="sum"``).
    """

    def __init__(
        self, loss: Any, class_weight: ClassWeight | None, weighted: bool, device: torch.device
    ) -> None:
        self.module = loss.to(device) if isinstance(loss, nn.Module) else loss
        self.is_sum = getattr(loss, "reduction", "mean") == "sum"
        self.weighted = weighted or class_weight is not None
        self._table = None if class_weight is None else class_table(class_weight).to(device)
        self._others_weigh_one = isinstance(class_weight, Mapping)
        self._per_row = per_row_loss(self.module) if self.weighted else None

    def __call__(
        self, outputs: Any, labels: Labels, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The loss, and the batch's sum of weights if rows are weighted."""
        if self._per_row is None:
            return self.module(outputs, labels), None
        losses = self._per_row(outputs, labels)
        losses = losses.reshape(len(losses), -1).mean(dim=1)
        weights = self._row_weights(labels, weights)
        total, weighted = weights.sum(), (losses * weights).sum()
        return (weighted if self.is_sum else weighted / total.clamp_min(1e-30)), total

    def _row_weights(self, labels: Labels, weights: torch.Tensor | None) -> torch.Tensor:
        if self._table is None:
            assert weights is not None
            # What the loss ignores weighs nothing, as in the losses of PyTorch themselves.
            ignored = self._ignored(labels)
            return weights if ignored is None else weights.masked_fill(ignored, 0.0)
        if isinstance(labels, tuple) or labels.numel() != len(labels):
            raise EstimatorError(
                "class_weight was given, but labels are not one class per row; use sample_weight_column instead."
            )
        classes = labels.reshape(-1).long()
        if self._others_weigh_one:
            classes = classes.clamp_max(len(self._table) - 1)
        ignored = self._ignored(classes)
        if ignored is None:
            of_class = self._table[classes]
        else:
            of_class = self._table[classes.masked_fill(ignored, 0)].masked_fill(ignored, 0.0)
        return of_class if weights is None else of_class * weights

    def _ignored(self, labels: Labels) -> torch.Tensor | None:
        """(n,) bool: rows whose class the loss leaves out; None if it knows no such class."""
        index = getattr(self.module, "ignore_index", None)
        if index is None or isinstance(labels, tuple) or labels.ndim != 1 or labels.is_floating_point():
            return None
        return labels.eq(index)


def per_row_loss(loss: Any) -> Callable[[Any, Any], torch.Tensor]:
    """The loss without its reduction.

    Raises:
        EstimatorError: it has none that can be switched off.
    """
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        unreduced = copy.copy(loss)
        unreduced.__dict__["reduction"] = "none"
        return unreduced
    if not isinstance(loss, nn.Module) and "reduction" in inspect.signature(loss).parameters:
        return functools.partial(loss, reduction="none")
    raise EstimatorError(
        f"Rows are weighted (sample_weight_column or class_weight), but the loss {describe(loss)} has no "
        "`reduction` that can be 'none'; use a loss of torch.nn, or give the function a `reduction` argument."
    )


def class_table(class_weight: ClassWeight) -> torch.Tensor:
    """float32 (classes,): the weight of every class. From a dict, the last entry is that of all further classes: 1."""
    keys: list[Any] = list(class_weight) if isinstance(class_weight, Mapping) else []
    if any(isinstance(key, bool) or not isinstance(key, (int, np.integer)) or key < 0 for key in keys):
        raise EstimatorError(
            f"class_weight={class_weight!r} was given, but its keys must be classes: ints from 0, as in the label "
            "column; e.g. class_weight={0: 1.0, 1: 5.0}."
        )
    if not isinstance(class_weight, Mapping):
        return torch.tensor(list(class_weight), dtype=torch.float32)
    table = torch.ones(max(class_weight, default=-1) + 2)
    for index, weight in class_weight.items():
        table[index] = weight
    return table


def outputs_are_logits(loss: Any) -> bool | None:
    """Whether a binary model's outputs are logits, if the loss says so."""
    if isinstance(loss, nn.BCEWithLogitsLoss):
        return True
    return False if isinstance(loss, nn.BCELoss) else None


def label_like_outputs(labels: torch.Tensor, outputs: Any) -> torch.Tensor:
    """Floating labels in the outputs' shape; integer ones, and labels of several outputs, as they are.

    Raises:
        EstimatorError: the outputs have another number of elements.
    """
    if (
        not isinstance(outputs, torch.Tensor)
        or labels.shape == outputs.shape
        or not labels.is_floating_point()
    ):
        return labels
    if labels.numel() != outputs.numel():
        raise EstimatorError(
            f"Floating labels {tuple(labels.shape)} do not fit the model's outputs {tuple(outputs.shape)}: both "
            "need as many elements. Change the model's last layer, or store class labels as integers."
        )
    return labels.reshape(outputs.shape)


def explain_misfit(loss: Any, outputs: Any, labels: Labels) -> str | None:
    """Why labels do not fit the loss, before it runs: some losses broadcast silently, or kill the GPU."""
    if not isinstance(labels, torch.Tensor) or not isinstance(outputs, torch.Tensor):
        return None
    if isinstance(loss, _WANT_FLOATS) and not labels.is_floating_point():
        return f"{describe(loss)} needs floating labels; store the label column as float32"
    if isinstance(loss, _WANT_CLASSES) and not labels.is_floating_point() and outputs.ndim >= 2:
        classes, ignored = outputs.shape[1], getattr(loss, "ignore_index", -100)
        bad = labels[(labels != ignored) & ((labels < 0) | (labels >= classes))]
        if len(bad):
            return (
                f"{describe(loss)} with {classes} outputs takes classes 0 to {classes - 1}, not {int(bad[0])}"
            )
    if isinstance(loss, nn.NLLLoss) and labels.is_floating_point():
        return f"{describe(loss)} needs integer labels; store the label column as int64"
    return None


def describe(loss: Any) -> str:
    """How messages call a loss: the class of a module, the name of a function."""
    return type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", repr(loss))
