"""The validation loss of a model: that of all rows together, for any partitions and batches.

Keras averages the losses of batches by rows. That is the loss of all rows where a loss divides by rows, or by elements;
it is not where a loss divides by weights (``reduction="mean_with_sample_weight"``), by elements that a mask leaves (of
``Masking``, ``Embedding(mask_zero=True)`` or ``ignore_class``), or by nothing (``reduction="sum"``). Such losses are
noted with their divisors in validation, and correct the average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.backend import get_keras_mask
from keras.src.losses.loss import apply_mask
from keras.src.utils.tracking import no_automatic_dependency_tracking

from hopyard.errors import EstimatorError

_MEANS = ("mean", "sum_over_batch_size", "mean_with_sample_weight")


class NotedLoss:
    """Loss in place of one of Keras in a compiled model: gives the same, and notes it in sums.

    Args:
        every: whether a loss that divides by rows or elements is noted, too.

    Attributes:
        noting: whether it does now; that is for validation.
        has_noted: whether it ever did: else steps need not look.
        sums: a variable: sum(loss * divisor), sum(divisor), sum(loss * rows), sum(rows) over batches.
    """

    def __init__(self, loss: keras.losses.Loss, sums: Any, every: bool) -> None:
        # ``copy`` would go through a configuration, which functions of the user's do not have.
        self.loss: keras.losses.Loss = object.__new__(type(loss))
        vars(self.loss).update(vars(loss), call=self._call)
        self._plain_call = loss.call
        self.name: str = loss.name
        self.noting: bool = False
        self.has_noted: bool = False
        self.sums = sums
        self._every = every
        self._losses: Any = None

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self._losses = None
        value = self.loss(y_true, y_pred, sample_weight)
        losses, self._losses = self._losses, None
        if self.noting:
            divisor = self._divisor(losses, get_keras_mask(y_pred), sample_weight)
            if divisor is not None or self._every:
                self._note(value, divisor, keras.tree.flatten(y_pred)[0])
        return value

    def _call(self, y_true: Any, y_pred: Any) -> Any:
        self._losses = self._plain_call(y_true, y_pred)
        return self._losses

    def _divisor(self, losses: Any, mask_of_outputs: Any, weights: Any) -> Any:
        """Divisor of the sum of ``losses`` in Keras; None: the rows or elements, or it is not known."""
        ops, reduction, dtype = keras.ops, self.loss.reduction, self.loss.dtype
        if losses is None or not losses.shape:  # the user's own class has made one number of a batch
            return None
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
        self.has_noted = True
        ops, dtype = keras.ops, self.sums.dtype
        rows = ops.cast(ops.shape(outputs)[0], dtype)
        divisor = rows if divisor is None else ops.cast(divisor, dtype)
        value = ops.mean(ops.cast(value, dtype))  # without a reduction there are many
        self.sums.assign(self.sums + ops.stack([value * divisor, divisor, value * rows, rows]))

    def values(self) -> tuple[Any, Any, Any]:
        """The loss of all rows, the average of the losses of batches by rows, and the rows: 0 if none was noted."""
        ops = keras.ops
        whole, divisor, by_rows, rows = ops.unstack(ops.convert_to_tensor(self.sums), 4)
        if self.loss.reduction != "sum":
            whole = ops.divide_no_nan(whole, divisor)
        return whole, ops.divide_no_nan(by_rows, rows), rows


class _Mean(keras.metrics.Mean):  # type: ignore[misc]
    """An average of the losses of batches, with losses of a model that are noted."""

    def note(self, losses: list[tuple[NotedLoss, float]]) -> None:
        """Set the noted losses, each with its weight."""
        # Hidden from Keras, which would take the variables of others for its own.
        self._noted: Callable[[], list[tuple[NotedLoss, float]]] = lambda: losses

    def reset_state(self) -> None:
        for variable in self.variables:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))


class _Total(_Mean):
    """The loss of a model: averages by rows, corrected where a loss divides by something else."""

    def result(self) -> Any:
        total = super().result()
        for noted, weight in self._noted():
            if not noted.has_noted:
                continue
            whole, by_rows, _ = noted.values()
            total = total + weight * keras.ops.cast(whole - by_rows, total.dtype)
        return total


class _Part(_Mean):
    """One of several losses. Keras' own average counts batches of any size alike where TensorFlow traces."""

    def result(self) -> Any:
        ((noted, _),) = self._noted()
        whole, _, rows = noted.values()
        average = super().result()
        return keras.ops.where(rows > 0, keras.ops.cast(whole, average.dtype), average)


# As in ``compile``: else Keras would count them among a model's own metrics, too.
@no_automatic_dependency_tracking  # type: ignore[untyped-decorator]
def correct_losses(model: Any) -> None:
    """Have the losses of a model that is compiled and built come to those of all rows in validation.

    Steps and losses of the user's own class stay as they are: what they add up is theirs.
    """
    compiled = model._compile_loss
    if compiled is None or not compiled.built or isinstance(model._loss_tracker, _Total):
        return
    if not _validates_as_keras(model):
        return
    total = _Total(name="loss")
    noted = []
    for number, (path, loss, weight, name) in enumerate(compiled._flat_losses):
        sums = total.add_variable((4,), "zeros", name=f"noted_{number}")
        noted.append(
            (NotedLoss(loss, sums, every=bool(compiled._metrics)), 1.0 if weight is None else weight)
        )
        compiled._flat_losses[number] = compiled.Loss(path, noted[-1][0], weight, name)
    total.note(noted)
    model._loss_tracker = total
    for number, part in enumerate(compiled._metrics):
        compiled._metrics[number] = _Part(name=part.name)
        compiled._metrics[number].note([noted[number]])


def check_validates(model: Any) -> None:
    """
    Raises:
        EstimatorError: the model has nothing to validate by, which JAX takes for a loss of 0.
    """
    if model._compile_loss is None and not model.losses and _validates_as_keras(model):
        raise EstimatorError(
            f"The model ({type(model).__name__}) was compiled without a loss, and has a train_step but no test_step of "
            "its own, so there is nothing to validate by. Give compile the loss, or the class a test_step that "
            "returns its values, loss among them."
        )


def losses_of(model: Any, count: int) -> list[Any]:
    """The loss of each of ``count`` outputs as Keras compiled it; none if it has another number of losses."""
    compiled = model._compile_loss
    if compiled is None or not compiled.built or len(compiled._flat_losses) != count:
        return []
    losses = [each.loss for each in compiled._flat_losses]
    return [each.loss if isinstance(each, NotedLoss) else each for each in losses]


def is_of_answers(loss: Any) -> bool:
    """Whether the loss is one of Keras for answers from 0 (no) to 1 (yes)."""
    return getattr(loss, "fn", None) in (
        keras.losses.binary_crossentropy,
        keras.losses.binary_focal_crossentropy,
    )


def check_answers(model: Any, labels: Any, shapes: Sequence[tuple[int | None, ...]]) -> None:
    """
    Args:
        shapes: of the model's outputs.

    Raises:
        EstimatorError: labels of such a loss are beyond 0 and 1, which Keras takes without a word; or there are class
            numbers that the model has no output for, which JAX takes for classes that cost nothing.
    """
    given = keras.tree.flatten(labels)
    losses = losses_of(model, len(given))
    for loss, label in zip(losses, given, strict=False):
        if is_of_answers(loss) and len(bad := label[(label < 0) | (label > 1)]):
            raise EstimatorError(
                f"{loss.name} takes labels from 0 (no) to 1 (yes), not {float(bad[0]):g}; store the label column as 0 "
                "and 1."
            )
    for loss, label, shape in zip(losses, given, shapes, strict=False):
        is_of_classes = getattr(loss, "fn", None) is keras.losses.sparse_categorical_crossentropy
        if not is_of_classes or not shape or shape[-1] is None:
            continue
        bad = label[(label < 0) | (label >= shape[-1])]
        ignored = loss._fn_kwargs.get("ignore_class")
        bad = bad if ignored is None else bad[bad != ignored]
        if len(bad):
            raise EstimatorError(
                f"{loss.name} takes class numbers from 0 to the number of outputs - 1, here {shape[-1] - 1}, not "
                f"{float(bad[0]):g}; store the classes as such numbers, or give the model's last layer more outputs."
            )


def _validates_as_keras(model: Any) -> bool:
    return all(
        getattr(type(model), name) is getattr(keras.Model, name) for name in ("test_step", "compute_loss")
    )


@contextmanager
def noting(model: Any) -> Iterator[None]:
    """Have losses noted meanwhile, in traced steps and in others."""
    compiled = model._compile_loss
    losses = [
        each.loss for each in (compiled and compiled._flat_losses) or () if isinstance(each.loss, NotedLoss)
    ]
    for loss in losses:
        loss.noting = True
    try:
        yield
    finally:
        for loss in losses:
            loss.noting = False
