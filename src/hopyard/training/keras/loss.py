"""The validation loss of a model: that of all rows together, whatever their partitions and batches.

Keras averages the losses of batches by rows. That is the loss of all rows where a loss divides by rows, or by elements;
it is not where a loss divides by weights (``reduction="mean_with_sample_weight"``), by elements that a mask leaves (of
``Masking``, ``Embedding(mask_zero=True)`` or ``ignore_class``), or by nothing (``reduction="sum"``). Such losses are
noted with their divisors in validation, and correct the average.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.backend import get_keras_mask
from keras.src.losses.loss import apply_mask
from keras.src.utils.tracking import no_automatic_dependency_tracking

_MEANS = ("mean", "sum_over_batch_size", "mean_with_sample_weight")


class NotedLoss:
    """In place of a loss of Keras in a compiled model: gives the same, and notes it in sums if it divides by
    something else than rows or elements.

    Attributes:
        noting: whether it does now; that is for validation.
        sums: a variable: sum(loss * divisor), sum(divisor), sum(loss * rows), sum(rows) over batches.
    """

    def __init__(self, loss: keras.losses.Loss, sums: Any) -> None:
        self.loss = copy.copy(loss)
        self.loss.call = self._call
        self._plain_call = loss.call
        self.name = loss.name
        self.noting = False
        self.sums = sums
        self._losses: Any = None

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self._losses = None
        value = self.loss(y_true, y_pred, sample_weight)
        losses, self._losses = self._losses, None
        if self.noting and losses is not None and len(losses.shape):
            divisor = self._divisor(losses, get_keras_mask(y_pred), sample_weight)
            if divisor is not None:
                self._note(value, divisor, keras.tree.flatten(y_pred)[0])
        return value

    def _call(self, y_true: Any, y_pred: Any) -> Any:
        self._losses = self._plain_call(y_true, y_pred)
        return self._losses

    def _divisor(self, losses: Any, mask_of_outputs: Any, weights: Any) -> Any:
        """What Keras divides the sum of ``losses`` by; None: by rows or elements, or this is not known."""
        ops, reduction, dtype = keras.ops, self.loss.reduction, self.loss.dtype
        if reduction == "sum":
            return ops.ones((), dtype)
        masks = [mask for mask in (mask_of_outputs, get_keras_mask(losses)) if mask is not None]
        if reduction not in _MEANS or (not masks and (weights is None or reduction != _MEANS[-1])):
            return None
        mask = masks[0] & masks[-1] if masks else None
        if reduction == "mean_with_sample_weight":
            weights = None if weights is None else ops.convert_to_tensor(weights, dtype)
            return ops.sum(apply_mask(weights, mask, dtype=dtype, reduction=reduction))
        share = ops.mean(ops.cast(mask, dtype))
        return share * ops.cast(ops.prod(ops.convert_to_tensor(ops.shape(losses), "int32")), dtype)

    def _note(self, value: Any, divisor: Any, outputs: Any) -> None:
        ops, dtype = keras.ops, self.sums.dtype
        value, divisor = ops.cast(value, dtype), ops.cast(divisor, dtype)
        rows = ops.cast(ops.shape(outputs)[0], dtype)
        self.sums.assign(self.sums + ops.stack([value * divisor, divisor, value * rows, rows]))

    def correction(self) -> Any:
        """The loss of all rows, less the average by rows of the losses of batches."""
        ops = keras.ops
        whole, divisor, by_rows, rows = ops.unstack(ops.convert_to_tensor(self.sums), 4)
        if self.loss.reduction != "sum":
            whole = ops.divide_no_nan(whole, divisor)
        return whole - ops.divide_no_nan(by_rows, rows)


class _Corrected(keras.metrics.Mean):  # type: ignore[misc]
    """An average by rows of the losses of batches, which :class:`NotedLoss` corrects: after ``note`` of these."""

    def note(self, losses: list[tuple[NotedLoss, float]]) -> None:
        self._noted = lambda: losses  # hidden from Keras, which would take the variables of others for its own

    def reset_state(self) -> None:
        for variable in self.variables:
            variable.assign(keras.ops.zeros_like(variable))

    def result(self) -> Any:
        average = super().result()
        for noted, weight in self._noted():
            average = average + weight * keras.ops.cast(noted.correction(), average.dtype)
        return average


@no_automatic_dependency_tracking  # as in ``compile``: a model's own metrics are no part of it
def correct_losses(model: Any) -> None:
    """Have the losses of a model that is compiled and built come to those of all rows in validation.

    Steps and losses of the user's own class stay as they are: what they add up is theirs.
    """
    compiled = model._compile_loss
    is_keras = all(
        getattr(type(model), name) is getattr(keras.Model, name) for name in ("test_step", "compute_loss")
    )
    if compiled is None or not compiled.built or not is_keras or isinstance(model._loss_tracker, _Corrected):
        return
    total = _Corrected(name="loss")
    noted = []
    for number, (path, loss, weight, name) in enumerate(compiled._flat_losses):
        sums = total.add_variable((4,), "zeros", name=f"noted_{number}")
        noted.append((NotedLoss(loss, sums), 1.0 if weight is None else weight))
        compiled._flat_losses[number] = compiled.Loss(path, noted[-1][0], weight, name)
    total.note(noted)
    model._loss_tracker = total
    for number, part in enumerate(compiled._metrics):
        compiled._metrics[number] = _Corrected(name=part.name)
        compiled._metrics[number].note([(noted[number][0], 1.0)])


@contextmanager
def noting(model: Any) -> Iterator[None]:
    """Have losses noted meanwhile, in steps that are traced and in those that are not."""
    compiled = model._compile_loss
    losses = [each.loss for each in (compiled and compiled._flat_losses) or () if isinstance(each.loss, NotedLoss)]
    for loss in losses:
        loss.noting = True
    try:
        yield
    finally:
        for loss in losses:
            loss.noting = False
