"""Loss and outputs of a batch, under the estimator's precision."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError
from hopyard.training.estimator import joined_outputs
from hopyard.training.torch.binding import Binding
from hopyard.training.torch.loss import Labels, Loss, describe, explain_misfit, label_like_outputs

_STACK = (
    " A scalar column is (n,): inputs={'x': ['a', 'b']} stacks scalar columns into one array (n, k) for x."
)


Step: TypeAlias = Callable[[torch.nn.Module, Batch], dict[str, Any]]


Caller: TypeAlias = Callable[[torch.nn.Module, Mapping[str, Any]], Any]
"""Calls a model with arguments by name, and gives its outputs."""
S = TypeVar("S", bound=Callable[..., dict[str, Any]])


class KnownStep(NamedTuple):
    """A step of Hopyard's own, of which more is known than that it can be called.

    Attributes:
        call: predicts with a model of the step; the outputs have ``logits``.
        check: raises EstimatorError for a batch that cannot be right.
    """

    call: Caller
    check: Callable[[torch.nn.Module, Batch], None]


_kinds: dict[Any, KnownStep] = {}


def step_of(kind: KnownStep) -> Callable[[S], S]:
    """Mark a step as one of a kind."""

    def marked(step: S) -> S:
        _kinds[step] = kind
        return step

    return marked


def _kind_of(step: Step | None) -> KnownStep | None:
    while isinstance(step, functools.partial):
        step = step.func
    return _kinds.get(step) if isinstance(step, Hashable) else None


class BatchResult(NamedTuple):
    """Result of one batch. Without ``step``, ``values`` is empty; with it, outputs and labels are None.

    ``loss`` has no number where a step for validation gave none. What the batch weighs among others is its ``weight``;
    None: its rows.
    """

    loss: torch.Tensor
    weight: torch.Tensor | float | None
    outputs: Any
    labels: Labels | None
    values: dict[str, Any]


class Forward:
    """The model with its loss, or the user's step, as one function of a placed batch."""

    def __init__(
        self,
        module: torch.nn.Module,
        binding: Binding,
        loss: Loss | None,
        step: Step | None,
        validate_step: Step | None,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        self.module = module
        self.binding = binding
        self.loss = loss
        self._step, self._validate_step = step, validate_step or step
        self._kind = _kind_of(step)
        self._device = device
        self._dtype = dtype
        self.checks_labels = True
        """Whether labels are compared with the loss before it runs: in the first epoch of training all are met."""

    def with_dtype(self, dtype: torch.dtype) -> Forward:
        """The same under autocast to ``dtype``."""
        made = copy.copy(self)
        made._dtype = dtype
        return made

    @property
    def loss_is_sum(self) -> bool:
        return self.loss is not None and self.loss.is_sum

    def __call__(self, batch: Batch, training: bool) -> BatchResult:
        """One batch; ``training``: whether ``class_weight`` counts.

        Raises:
            EstimatorError: the loss is not one number, or labels do not fit outputs.
        """
        if self._dtype is None:
            return self._run(batch, training)
        with self.autocast():
            return self._run(batch, training)

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, self._dtype)

    def _run(self, batch: Batch, training: bool) -> BatchResult:
        if self._step is not None:
            return self._run_step(batch, training)
        return self.result(self.outputs(batch), batch, training)

    def result(self, outputs: Any, batch: Batch, training: bool, check: bool = True) -> BatchResult:
        """The loss of outputs for a batch; without ``check`` labels are not compared with the outputs."""
        assert self.loss is not None
        labels = self.labels(batch, outputs)
        if check and (self.checks_labels or not training):
            self._check(outputs, labels, training)
        loss, weight = self.loss(outputs, labels, self.binding.weights(batch), training)
        return BatchResult(scalar(loss), weight, outputs, labels, {})

    def check(self, outputs: Any, batch: Batch) -> None:
        """Compare the labels of a batch for training with outputs, and with class weights.

        Raises:
            EstimatorError: they do not fit.
        """
        self._check(outputs, self.labels(batch, outputs), training=True)

    def _check(self, outputs: Any, labels: Labels, training: bool) -> None:
        self.check_fit(outputs, labels)
        if training and self.loss is not None:
            self.loss.check_classes(labels)

    def outputs(self, batch: Batch) -> Any:
        arguments, keywords = self.binding.arguments(batch)
        return self.module(*arguments, **keywords)

    def labels(self, batch: Batch, outputs: Any) -> Labels:
        """Labels as the loss takes them; several outputs and labels are paired."""
        labels = self.binding.labels(batch)
        if isinstance(labels, torch.Tensor):
            return label_like_outputs(labels, outputs)
        if isinstance(outputs, (list, tuple)) and len(outputs) == len(labels):
            return tuple(map(label_like_outputs, labels, outputs))
        return labels

    @torch.no_grad()
    def check_labels(self, batch: Batch) -> None:
        """Compare outputs with the loss's labels before the loss is run, then run it.

        Raises:
            EstimatorError: they do not fit; says what would.
        """
        if self._kind is not None:
            self._kind.check(self.module, batch)
        if self.loss is None:
            return
        outputs = self.explained_outputs(batch)
        labels = self.labels(batch, outputs)
        self.check_fit(outputs, labels)
        self.loss.check_classes(labels)
        weights = self.binding.weights(batch)
        try:
            with self.autocast(), warnings.catch_warnings():
                warnings.simplefilter("error")  # what broadcasts is only warned of
                self.loss(outputs, labels, weights, training=True)
        except (RuntimeError, ValueError, TypeError, IndexError, UserWarning) as error:
            raise EstimatorError(
                f"The loss {describe(self.loss.module)} failed on outputs {shape_of(outputs)} and labels "
                f"{shape_of(labels)}: {error}. Integer labels reach it as int64 (n,), floating ones as float32 "
                "in the shape of the outputs; change the label column, the loss or the model's last layer."
            ) from error

    def check_fit(self, outputs: Any, labels: Labels) -> None:
        """
        Raises:
            EstimatorError: the loss would take labels for something else, or kill the device.
        """
        problem = None if self.loss is None else explain_misfit(self.loss.module, outputs, labels)
        if problem is not None:
            raise EstimatorError(f"Labels {shape_of(labels)} do not fit the loss: {problem}.")

    def explained_outputs(self, batch: Batch) -> Any:
        """The outputs; an error of PyTorch's is told with the model's arguments."""
        arguments, keywords = self.binding.arguments(batch)
        try:
            with self.autocast():
                if self._kind is None:
                    return self.module(*arguments, **keywords)
                # The columns of a step are arguments by their names.
                keywords = keywords or dict(zip(self.binding.model_columns, arguments, strict=True))
                return self._kind.call(self.module, keywords)
        except EstimatorError:  # says all
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            given = [shape_of(value) for value in arguments]
            given += [f"{name}={shape_of(value)}" for name, value in keywords.items()]
            flat = [value for value in [*arguments, *keywords.values()] if getattr(value, "ndim", 0) == 1]
            raise EstimatorError(
                f"The model failed on inputs {', '.join(given)}: {error}. {self.binding.advice}{_STACK if flat else ''}"
            ) from error

    def _run_step(self, batch: Batch, training: bool) -> BatchResult:
        step = self._step if training else self._validate_step
        assert step is not None
        values, may_lack_loss = step(self.module, batch), step is not self._step
        if not isinstance(values, dict) or ("loss" not in values and not may_lack_loss):
            given = (
                f"keys {', '.join(map(str, values))}" if isinstance(values, dict) else type(values).__name__
            )
            which = "validate_step=fn(model, batch)" if may_lack_loss else "step=fn(model, batch)"
            rule = "a dict of metrics" if may_lack_loss else "a dict with 'loss'"
            raise EstimatorError(
                f"{which} returned {given}, but must return {rule}; end it with `return {{'loss': loss, ...}}`."
            )
        others = {name: value for name, value in values.items() if name not in ("loss", "weight")}
        loss = scalar(values["loss"]) if "loss" in values else torch.empty(0)
        return BatchResult(loss, _weight(values.get("weight")), None, None, others)

    @torch.no_grad()
    def predictions(
        self, batches: Iterable[Mapping[str, Any]], predict: Callable[[Any], Any] | None
    ) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        """Outputs of all batches, or of ``predict`` for them, as arrays (rows, ...)."""
        self.module.eval()
        pieces: list[tuple[np.ndarray[Any, Any], ...]] = []
        several = False
        for batch in batches:
            with self.autocast():
                outputs = self.explained_outputs(self.binding.place(batch))
                if predict is not None:
                    outputs = predict(outputs)
                elif self._kind is not None:
                    outputs = outputs.logits
            several = not isinstance(outputs, (torch.Tensor, np.ndarray)) and isinstance(outputs, Iterable)
            values = outputs.values() if isinstance(outputs, dict) else outputs
            pieces.append(tuple(map(as_numpy, values)) if several else (as_numpy(outputs),))
            if any(array.ndim == 0 for array in pieces[-1]):
                raise _no_rows(outputs, is_made=predict is not None)
        arrays = tuple(map(joined_outputs, zip(*pieces, strict=True)))
        return arrays if several else arrays[0]


def _no_rows(outputs: Any, is_made: bool) -> EstimatorError:
    """The error for outputs of a batch that are not all arrays with rows; ``is_made`` by ``predict=``."""
    parts = (
        [f"{name}: {shape_of(value)}" for name, value in outputs.items()] if isinstance(outputs, dict) else []
    )
    shown = f"{type(outputs).__name__} ({', '.join(parts)})" if parts else shape_of(outputs)
    return EstimatorError(
        f"{'predict=' if is_made else 'The model'} gave {shown}, but predictions are arrays with a row for each one "
        "of the data. Take such an array from the outputs: predict=lambda outputs: outputs.logits, for instance."
    )


def _weight(given: Any) -> torch.Tensor | float | None:
    """The weight of a batch as a step gave it: one number, a tensor or not, of at least 0.

    Raises:
        EstimatorError: it is no such number.
    """
    if given is None:
        return None
    if isinstance(given, torch.Tensor) and given.numel() == 1 and not given.requires_grad:
        return given.detach().reshape(())
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not 0 <= given < math.inf:
        shown = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else repr(given)
        raise EstimatorError(
            f"step=fn(model, batch) returned {shown} as 'weight', but it must be one number of at least 0 without "
            "gradient, such as the number of tokens that the loss is the mean over. Return labels.ne(-100).sum()."
        )
    return float(given)


def scalar(loss: Any) -> torch.Tensor:
    """``loss`` as a tensor without dimensions.

    Raises:
        EstimatorError: it is not one number.
    """
    if not isinstance(loss, torch.Tensor):
        raise EstimatorError(
            f"The loss is a {type(loss).__name__}, but must be a tensor with one number. Return it as a loss of "
            "torch.nn gives it, not as loss.item()."
        )
    if loss.ndim == 0:
        return loss
    if loss.numel() == 1:
        return loss.reshape(())
    raise EstimatorError(
        f"The loss has the shape {tuple(loss.shape)}, but must be one number; take its mean over the batch."
    )


def shape_of(value: Any) -> str:
    """dtype and shape of a tensor, or of those in a tuple, for messages."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(shape_of, value))})"
    return type(value).__name__


def on_cpu(value: Any) -> Any:
    """Tensors, also in tuples and dicts, detached and on the CPU; half precision as float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).cpu()
    if isinstance(value, dict):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(on_cpu(item) for item in value)
    return value


def as_numpy(value: Any) -> np.ndarray[Any, Any]:
    """A tensor's values, half precision as float32."""
    return np.asarray(on_cpu(value))
