"""Losses, plain or weighted per row, and labels in the form that they take."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from hopyard.errors import EstimatorError
from hopyard.training.class_weights import class_weights, class_without_weight, no_class
from hopyard.training.estimator import ClassWeight

Labels: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]

# Losses of PyTorch as modules and as functions: by their divisor, and by the outputs and labels that they take.
_BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss, functional.cross_entropy, functional.nll_loss)
_OF_DIFFERENCES = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
)
_OF_PROBABLE_LABELS = (
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
)
_OF_COUNTS = (nn.PoissonNLLLoss, functional.poisson_nll_loss)
_WANT_FLOATS = (*_OF_DIFFERENCES, *_OF_PROBABLE_LABELS, *_OF_COUNTS, nn.KLDivLoss, functional.kl_div)
_BY_ELEMENT = (
    *_OF_DIFFERENCES,
    *_OF_PROBABLE_LABELS,
    *_OF_COUNTS,
    nn.SoftMarginLoss,
    nn.HingeEmbeddingLoss,
    functional.soft_margin_loss,
    functional.hinge_embedding_loss,
)
_OF_LOGITS = (
    nn.BCEWithLogitsLoss,
    nn.SoftMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    functional.binary_cross_entropy_with_logits,
    functional.soft_margin_loss,
    functional.multilabel_soft_margin_loss,
)
_OF_SHARES = (*_OF_DIFFERENCES, nn.BCELoss, functional.binary_cross_entropy)


class Loss:
    """A user's loss as one number per batch, and the weight with which batches are averaged.

    Over several batches the loss is sum(weight * loss) / sum(weight), which is the loss of all their rows in one
    batch: ``weight`` is what the loss itself divides by. Cross entropy and NLL with class labels divide by the sum of
    their class weights over elements that are not ``ignore_index``; losses of differences and of yes/no answers by
    the elements; other losses, also functions of the user's, count as divided by the rows.

    With row weights w it is sum(w * l) / sum(w * d), where l and d are a row's loss and divisor, from a copy of the
    loss with ``reduction="none"``. ``class_weight`` multiplies w in the numerator only, and in training only, as in
    Keras. A batch whose weights sum to nothing has loss 0. ``is_sum`` says that the loss is a sum over rows
    (``reduction="sum"``).
    """

    def __init__(
        self, loss: Any, class_weight: ClassWeight | None, weighted: bool, device: torch.device
    ) -> None:
        self.module: Any = loss.to(device) if isinstance(loss, nn.Module) else loss
        self.is_sum: bool = _option(loss, "reduction", "mean") == "sum"
        self.weighted = weighted
        self._table: torch.Tensor | None = None
        self._others_weigh_one = False
        if class_weight is not None:
            weights_of, self._others_weigh_one = class_weights(class_weight)
            # The last entry is that of all further classes.
            self._table = torch.ones(max(weights_of, default=-1) + 1 + self._others_weigh_one, device=device)
            for number, weight in weights_of.items():
                self._table[number] = weight
        self._per_row = per_row_loss(self.module) if weighted or class_weight is not None else None

    @property
    def weighs_rows(self) -> bool:
        """Whether rows, or classes in training, have weights beyond those of the loss itself."""
        return self._per_row is not None

    def __call__(
        self, outputs: Any, labels: Labels, weights: torch.Tensor | None, training: bool
    ) -> tuple[torch.Tensor, torch.Tensor | float | None]:
        """The loss, and the batch's weight; None: the number of rows.

        Args:
            weights: (n,) of rows, or None.
            training: whether ``class_weight`` counts.
        """
        is_by_class = training and self._table is not None
        if weights is None and not is_by_class:
            return self.module(outputs, labels), self._divisor(labels)
        assert self._per_row is not None
        losses = self._per_row(outputs, labels)
        divisors = self._divisors(losses, labels)
        if weights is not None:
            divisors = divisors * weights
        factors = weights
        if is_by_class:
            of_class = self._class_weights(labels)
            factors = of_class if weights is None else of_class * weights
        assert factors is not None
        total, weighted = divisors.sum(), (losses.reshape(len(losses), -1).sum(dim=1) * factors).sum()
        return (weighted if self.is_sum else weighted / total.clamp_min(1e-30)), total

    @functools.cached_property
    def by_element(self) -> Callable[[Any, Any], torch.Tensor] | None:
        """The loss of each element, where the loss is the mean, or the sum, of these; None: it is not."""
        is_known = _option(self.module, "reduction", "mean") in ("mean", "sum") and not self.weighs_rows
        return per_row_loss(self.module) if is_known and _is_one_of(self.module, _BY_ELEMENT) else None

    def weight_of(self, labels: Labels) -> torch.Tensor | float | None:
        """The weight of a batch without weights of rows; None: the number of rows."""
        return self._divisor(labels)

    def check_classes(self, labels: Labels) -> None:
        """
        Raises:
            EstimatorError: ``class_weight`` has no weight for a label.
        """
        if self._table is None or isinstance(labels, tuple):
            return
        counted = labels.reshape(-1)
        if _is_one_of(self.module, _BY_CLASS):
            counted = counted[counted != _option(self.module, "ignore_index", -100)]
        bad = counted[(counted < 0) | (counted != counted.round())]
        if len(bad):
            raise no_class(float(bad[0]))
        if not self._others_weigh_one and len(bad := counted[counted >= len(self._table)]):
            raise class_without_weight(int(bad[0]), len(self._table))

    def counted(self, labels: Labels) -> Labels:
        """Labels of which those that the loss ignores are -1, as metrics know them."""
        if isinstance(labels, tuple) or labels.is_floating_point() or not _is_one_of(self.module, _BY_CLASS):
            return labels
        return labels.masked_fill(labels == _option(self.module, "ignore_index", -100), -1)

    def _divisor(self, labels: Labels) -> torch.Tensor | float | None:
        """Divisor of the loss; None: the rows, or nothing."""
        if self.is_sum or isinstance(labels, tuple):
            return None
        if _is_one_of(self.module, _BY_CLASS):
            return None if labels.is_floating_point() else self._class_divisors(labels).sum()
        return float(labels.numel()) if _is_one_of(self.module, _BY_ELEMENT) else None

    def _divisors(self, losses: torch.Tensor, labels: Labels) -> torch.Tensor:
        """(n,): each row's part of the loss's divisor."""
        rows = len(losses)
        if self.is_sum or _option(self.module, "reduction", "mean") == "batchmean":
            return torch.ones(rows, device=losses.device)
        elements = torch.full((rows,), losses.numel() / max(rows, 1), device=losses.device)
        if isinstance(labels, tuple) or labels.is_floating_point() or labels.shape != losses.shape:
            return elements
        is_by_class = _is_one_of(self.module, _BY_CLASS)
        return self._class_divisors(labels).reshape(rows, -1).sum(dim=1) if is_by_class else elements

    def _class_divisors(self, labels: torch.Tensor) -> torch.Tensor:
        counted = labels.ne(_option(self.module, "ignore_index", -100))
        weight: torch.Tensor | None = _option(self.module, "weight", None)
        if weight is None:
            return counted
        return weight[labels.clamp(0, len(weight) - 1)] * counted

    def _class_weights(self, labels: Labels) -> torch.Tensor:
        """(n,) float32: the ``class_weight`` of each row; 0 where the loss ignores it."""
        if isinstance(labels, tuple) or labels.numel() != len(labels):
            raise EstimatorError(
                "class_weight was given, but labels are not one class per row; use sample_weight_column instead."
            )
        assert self._table is not None
        classes = labels.reshape(-1).long()
        if self._others_weigh_one:
            classes = classes.clamp_max(len(self._table) - 1)
        ignored = _option(self.module, "ignore_index", None) if _is_one_of(self.module, _BY_CLASS) else None
        if ignored is None:
            return self._table[classes]
        counted = classes.ne(ignored)
        return self._table[classes * counted] * counted


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


def outputs_are_logits(loss: Any) -> bool | None:
    """Whether a binary model's outputs are logits (True) or shares from 0 to 1 (False); None: the loss does not say."""
    if _is_one_of(loss, _OF_LOGITS):
        return True
    return False if _is_one_of(loss, _OF_SHARES) else None


def _is_one_of(loss: Any, losses: tuple[Any, ...]) -> bool:
    """Whether the loss is one of these modules, or functions, of PyTorch, also with arguments given by ``partial``."""
    if isinstance(loss, nn.Module):
        kind: Any = type(loss)
        return _is_kind_of(kind, losses)
    while isinstance(loss, functools.partial):
        loss = loss.func
    return any(loss is known for known in losses)


@functools.lru_cache(maxsize=256)
def _is_kind_of(kind: Any, losses: tuple[Any, ...]) -> bool:
    modules = [known for known in losses if isinstance(known, type) and issubclass(known, nn.Module)]
    return any(issubclass(kind, known) and kind.forward is known.forward for known in modules)


def _option(loss: Any, name: str, default: Any) -> Any:
    """An argument of a loss: a module's attribute, or a function's keyword, given by ``partial`` or its default."""
    if isinstance(loss, nn.Module):
        return getattr(loss, name, default)
    while isinstance(loss, functools.partial):
        if name in loss.keywords:
            return loss.keywords[name]
        loss = loss.func
    try:
        parameter = inspect.signature(loss).parameters.get(name)
    except (TypeError, ValueError):  # a callable without a signature
        return default
    return default if parameter is None or parameter.default is parameter.empty else parameter.default


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
    """Reason why labels do not fit the loss, before it runs: some losses broadcast silently, or kill the GPU."""
    if not isinstance(labels, torch.Tensor) or not isinstance(outputs, torch.Tensor):
        return None
    if _is_one_of(loss, _WANT_FLOATS) and not labels.is_floating_point():
        return f"{describe(loss)} needs floating labels; store the label column as float32"
    if _is_one_of(loss, _BY_CLASS) and not labels.is_floating_point() and outputs.ndim >= 2:
        classes = outputs.shape[1]
        bad = labels[(labels != _option(loss, "ignore_index", -100)) & ((labels < 0) | (labels >= classes))]
        if len(bad):
            return (
                f"{describe(loss)} with {classes} outputs takes classes 0 to {classes - 1}, not {int(bad[0])}"
            )
    if _is_one_of(loss, (nn.NLLLoss, functional.nll_loss)) and labels.is_floating_point():
        return f"{describe(loss)} needs integer labels; store the label column as int64"
    if _is_one_of(loss, _OF_PROBABLE_LABELS):
        bad = labels[(labels < 0) | (labels > 1)]
        if len(bad):
            return (
                f"{describe(loss)} takes labels from 0 (no) to 1 (yes), not {float(bad[0]):g}; store the label column "
                "as 0.0 and 1.0"
            )
    return None


def describe(loss: Any) -> str:
    """Name of a loss in messages: the class of a module, the name of a function."""
    if isinstance(loss, nn.Module):
        return type(loss).__name__
    while isinstance(loss, functools.partial):
        loss = loss.func
    return getattr(loss, "__name__", repr(loss))
