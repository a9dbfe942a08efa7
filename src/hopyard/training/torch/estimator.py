"""TorchEstimator, which a user's function returns for a PyTorch model, and its replica: that model on a device."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hopyard.checks import choice, integer
from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError, MetricError
from hopyard.training.estimator import (
    ClassWeight,
    Context,
    Estimator,
    Inputs,
    Replica,
)
from hopyard.training.metric import StreamingMetric
from hopyard.training.metrics import FunctionMetric, ObjectMetric, canonical, metric_named
from hopyard.training.torch.base import Base, Given, base_of, check_given
from hopyard.training.torch.loss import outputs_are_logits
from hopyard.training.torch.replica import TorchReplica
from hopyard.training.torch.torchmetrics import TorchMetric, is_torchmetric
from hopyard.training.torch.trunk import frozen
from hopyard.training.transforms import BatchTransform
from hopyard.wording import brief

_log = logging.getLogger("hopyard")


class TorchEstimator(Estimator):
    """A model with all that training it takes.

    Features reach the model as float32, int64, uint8 (n, ...) or bool tensors, labels the loss as int64
    (n,) or as float32 in the shape of the outputs; ``training.torch.binding`` has the rules.

    Args:
        model: a torch.nn.Module with all its sizes; with ``base`` a function ``fn(base)`` that gives one.
        optimizer: a class, called with the model's parameters and ``optimizer_params``, or a function
            ``fn(model)``. Classes of torch.optim run in their fused form where they have one, unless
            ``optimizer_params`` says ``fused`` or ``foreach``, or precision is ``"fp16"``.
        loss: a module or function ``loss(outputs, labels)`` giving one number, the mean over the batch (or
            the sum, for modules with ``reduction="sum"``). None with ``step``, and only then.
        metrics: names, functions, objects with update, merge and compute, torchmetrics objects; see
            ``training.metrics``.
        batch_size: rows of a batch.
        optimizer_params: keyword arguments of the optimizer's class.
        inputs: None: all feature columns, positionally; a list of columns; or a dict of keyword arguments,
            each a column or a list of scalar columns, stacked to (n, columns).
        scheduler: ``fn(optimizer, steps_per_epoch, num_epochs)`` -> a torch.optim.lr_scheduler.
            ``steps_per_epoch`` counts the optimizer's steps over all partitions.
        scheduler_interval: ``"step"`` (after every step) or ``"epoch"``.
        sample_weight_column: column of the rows' weights in loss and metrics; means are divided by the sum of
            weights. A search keeps it if it is among feature_columns or label_columns; the model gets it only if
            ``inputs`` names it, and only then predictions need it.
        class_weight: weight per class in the loss in training, as in Keras: a dict (others weigh 1) or a sequence.
            Losses are multiplied by it; the mean stays one over rows. Validation does not count it.
        transform: ``fn(batch, rng)`` on every training batch before all else: a dict of CPU tensors, which
            may be changed in place, and a NumPy generator; returns the dict to use.
        val_transform: the same for validation and prediction. ``transform`` is not used there.
        gradient_clip: largest norm of the gradient.
        accumulate: batches per step; their gradients are averaged by rows. Groups end with the partition.
        precision: ``"fp32"``; ``"bf16"`` or ``"fp16"`` run model and loss under autocast, fp16 with scaled losses.
        step: ``fn(model, batch)`` -> ``{"loss": ..., name: ...}`` replaces forward and loss; ``batch`` has all
            feature and label columns. Values are means over the batch; with ``"weight"`` among them over so much, such
            as the number of target tokens, by which epochs, validation and ``accumulate`` then average them. (Of a
            batch of weight 0 the loss must be 0, too.) ``metrics`` may then name values only.
        validate_step: the same for validation, where ``"loss"`` may be missing; None: ``step``.
        predict: ``fn(outputs)`` -> what ``predict`` and ``transform`` of the trained model give.
        trunk: a frozen module that gets what the model would get; the model gets its output: a tensor, a tuple of
            tensors (the model's arguments) or a dict of tensors (its keyword arguments). It is used in evaluation mode
            and without gradients (a copy of it, if it is not like that), is no part of a trial's state, and runs once
            for each partition: its outputs are kept in the machine's node cache, for all trials whose trunk has the
            same class, code and weights. With ``step``, the output is ``batch["trunk"]``.
        base: a module that all trials share, frozen, or a function that makes it (called once in a process): one copy
            in memory for all trials of a process, stored once. ``model`` gets modules of its own over the shared
            tensors, and puts into them what the trial trains (adapters of any library, a head); tensors that require
            gradients when it returns are the trial's own copies. Trials that change others fail at the end of the
            visit.
        logits: whether the outputs of a model that answers yes or no are logits, which metrics count as yes above 0, or
            shares from 0 to 1 (yes above 0.5). None: the loss says, if it is one of PyTorch's.

    Raises:
        EstimatorError: an argument is not usable.
        MetricError: a metric is unknown.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[nn.Module], nn.Module],
        optimizer: Any,
        loss: Any = None,
        metrics: Sequence[Any] = (),
        batch_size: int = 32,
        optimizer_params: dict[str, Any] | None = None,
        inputs: Inputs = None,
        scheduler: Callable[[torch.optim.Optimizer, int, int], Any] | None = None,
        scheduler_interval: str = "step",
        sample_weight_column: str | None = None,
        class_weight: ClassWeight | None = None,
        transform: BatchTransform | None = None,
        val_transform: BatchTransform | None = None,
        gradient_clip: float | None = None,
        accumulate: int = 1,
        precision: str = "fp32",
        step: Callable[[nn.Module, Batch], dict[str, Any]] | None = None,
        validate_step: Callable[[nn.Module, Batch], dict[str, Any]] | None = None,
        predict: Callable[[Any], Any] | None = None,
        trunk: nn.Module | None = None,
        base: Given | None = None,
        logits: bool | None = None,
    ) -> None:
        self.model = model
        self.base = base
        self.optimizer = optimizer
        self.loss = loss
        self.metrics: tuple[Any, ...] = tuple(metrics) if isinstance(metrics, (list, tuple)) else (metrics,)
        self.batch_size = batch_size
        self.optimizer_params: dict[str, Any] = dict(optimizer_params or {})
        self.inputs: Inputs = inputs
        self.scheduler = scheduler
        self.scheduler_interval = scheduler_interval
        self.sample_weight_column = sample_weight_column
        self.class_weight = class_weight
        self.transform = transform
        self.val_transform = val_transform
        self.gradient_clip = gradient_clip
        self.accumulate = accumulate
        self.precision = precision
        self.step = step
        self.validate_step = validate_step
        self.predict = predict
        self.trunk = trunk
        self.logits = logits
        self._check_parts()
        self._check_numbers()
        self.named_metrics()
        if self.trunk is not None:
            self._check_trunk()
            self.trunk = frozen(self.trunk)

    def model_on(self, device: torch.device) -> tuple[nn.Module, Base | None]:
        """The model on a device, and the base that it is made over.

        Raises:
            EstimatorError: there is none such.
        """
        if self.base is None:
            assert isinstance(self.model, nn.Module)
            return self.model.to(device), None
        base = base_of(self.base, device)
        model = base.model(self.model)
        self._check_model(model)
        return model.to(device), base

    def __getstate__(self) -> dict[str, Any]:
        """State with modules on the CPU, for a process that may lack this one's devices."""
        modules = {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}
        elsewhere = {
            name: copy.deepcopy(module).cpu()
            for name, module in modules.items()
            if any(tensor.device.type != "cpu" for tensor in module.state_dict().values())
        }
        return {**vars(self), **elsewhere}

    def replica(self, context: Context) -> Replica:
        return TorchReplica(self, context)

    def named_metrics(self) -> dict[str, StreamingMetric]:
        """Fresh metrics by the names under which histories list them; empty if ``step`` gives values."""
        if self.step is not None:
            return {}
        found: dict[str, StreamingMetric] = {}
        for given in self.metrics:
            name, metric = _metric(
                given, outputs_are_logits(self.loss) if self.logits is None else self.logits
            )
            if name in found:
                raise EstimatorError(f"metrics names {name!r} twice; give each metric a name of its own.")
            if name != "loss":
                found[name] = metric
        return found

    def step_metrics(self) -> list[str]:
        """Names of the values that ``step`` must give."""
        return [] if self.step is None else [name for name in self.metrics if canonical(name) != "loss"]

    def _check_model(self, model: nn.Module) -> None:
        uninitialized = nn.parameter.UninitializedParameter
        if any(isinstance(parameter, uninitialized) for parameter in model.parameters()):
            raise EstimatorError("The model has lazy layers, whose sizes are unknown; give all sizes.")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise EstimatorError(
                "The model has no parameters that require gradients, so nothing would be trained. Call "
                "requires_grad_(True) on those to train, or return a model with adapters or a head of its own."
            )
        of_model = {id(parameter) for parameter in model.parameters()}  # which a loss may hold, too
        of_loss = self.loss.named_parameters() if isinstance(self.loss, nn.Module) else ()
        own = [(name, parameter) for name, parameter in of_loss if id(parameter) not in of_model]
        if trained := [name for name, parameter in own if parameter.requires_grad]:
            raise EstimatorError(
                f"loss={type(self.loss).__name__} has parameters of its own ({', '.join(trained)}), which nothing "
                "would train and no state would keep. Make them part of the model, and compute the loss in "
                "step=fn(model, batch); or freeze them with requires_grad_(False)."
            )

    def _check_parts(self) -> None:
        if self.base is not None:
            check_given(self.base, self.model)
        elif isinstance(self.model, nn.Module):
            self._check_model(self.model)
        else:
            raise EstimatorError(f"model={self.model!r}, but it must be a torch.nn.Module.")
        if isinstance(self.optimizer, torch.optim.Optimizer) or not callable(self.optimizer):
            raise EstimatorError(
                f"optimizer={brief(self.optimizer)}, but it must be a class such as torch.optim.Adam "
                "(its arguments go in optimizer_params) or a function fn(model)."
            )
        if isinstance(self.optimizer, type) and not issubclass(self.optimizer, torch.optim.Optimizer):
            raise EstimatorError(
                f"optimizer={self.optimizer.__name__} is a class, but not a torch.optim.Optimizer."
            )
        if self.optimizer is torch.optim.LBFGS:
            raise EstimatorError(
                "LBFGS evaluates the loss several times a step, which is not possible; use Adam."
            )
        if self.optimizer_params and not isinstance(self.optimizer, type):
            raise EstimatorError(
                "optimizer_params are for an optimizer class; fn(model) sets its arguments itself."
            )
        self._check_loss_and_step()
        for name in ("scheduler", "transform", "val_transform", "validate_step", "predict"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise EstimatorError(f"{name}={brief(value)}, but it must be a function.")

    def _check_trunk(self) -> None:
        if not isinstance(self.trunk, nn.Module):
            raise EstimatorError(f"trunk={brief(self.trunk)}, but it must be a torch.nn.Module.")
        if any(isinstance(each, nn.parameter.UninitializedParameter) for each in self.trunk.parameters()):
            raise EstimatorError("The trunk has lazy layers, whose sizes are unknown; give all sizes.")
        if self.base is not None:
            raise EstimatorError(
                "trunk was given with base. A trunk is run once for all epochs, and a base is trained through. Give "
                "one of them."
            )
        assert isinstance(self.model, nn.Module)
        own = {id(parameter) for parameter in self.trunk.parameters()}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in own:
                raise EstimatorError(
                    f"The model's {name!r} belongs to the trunk too, but the trunk is frozen and the model is what is "
                    "trained on its output. Leave the trunk out of the model."
                )
        for name in ("transform", "val_transform"):
            if getattr(self, name) is not None:
                raise EstimatorError(
                    f"{name} was given with trunk, but it changes batches anew each time, and the trunk's output is "
                    "computed once for all epochs. What is the same each time belongs into the trunk's forward, or "
                    "into the data; for random augmentation put the trunk into the model, with "
                    "requires_grad_(False), instead of trunk=."
                )

    def _check_loss_and_step(self) -> None:
        if self.step is not None:
            if not callable(self.step):
                raise EstimatorError(f"step={brief(self.step)}, but it must be a function fn(model, batch).")
            if not all(isinstance(metric, str) for metric in self.metrics):
                raise EstimatorError("With step, metrics must be names of values that step returns.")
            if self.class_weight is not None:
                raise EstimatorError(
                    "class_weight was given with step, which computes its own loss; weigh there."
                )
            if self.sample_weight_column is not None:
                raise EstimatorError(
                    f"sample_weight_column={self.sample_weight_column!r} was given with step, which computes its own "
                    f"loss. Leave it out, and weigh there: the column is batch[{self.sample_weight_column!r}] if it is "
                    "one of feature_columns or label_columns."
                )
            if self.loss is not None:
                raise EstimatorError(
                    f"loss={brief(self.loss)} was given with step, which computes the loss by itself, in validation "
                    "too. Leave loss out, and call it in step; or leave step out."
                )
        elif self.validate_step is not None:
            raise EstimatorError(
                "validate_step was given without step, whose place it takes. Give step= too."
            )
        elif isinstance(self.loss, type):
            raise EstimatorError(
                f"loss={self.loss.__name__} is a class; give an object: loss={self.loss.__name__}()."
            )
        elif not callable(self.loss):
            raise EstimatorError(
                f"loss={brief(self.loss)}, but it must be a module or function loss(outputs, labels); "
                "e.g. torch.nn.CrossEntropyLoss()."
            )
        elif getattr(self.loss, "reduction", "mean") == "none":
            raise EstimatorError(
                "The loss has reduction='none', but must give one number; use 'mean' or 'sum'."
            )

    def _check_numbers(self) -> None:
        for name in ("batch_size", "accumulate"):
            setattr(self, name, integer(name, getattr(self, name), 1, error=EstimatorError))
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise EstimatorError(f"gradient_clip={self.gradient_clip!r}, but it must be a norm > 0 or None.")
        if self.logits not in (None, True, False):
            raise EstimatorError(f"logits={self.logits!r}, but it must be True, False or None.")
        for name, allowed in (
            ("precision", ("fp32", "bf16", "fp16")),
            ("scheduler_interval", ("step", "epoch")),
        ):
            choice(name, getattr(self, name), allowed, error=EstimatorError)


def _metric(given: Any, logits: bool | None) -> tuple[str, StreamingMetric]:
    """The name and a fresh metric for one entry of ``metrics``."""
    if isinstance(given, str):
        return given, metric_named("mse" if canonical(given) == "loss" else given, logits)
    if isinstance(given, type):
        raise MetricError(f"The metric {given.__name__} is a class; give an object: {given.__name__}(...).")
    if is_torchmetric(given):
        return type(given).__name__, TorchMetric(given)
    if all(callable(getattr(given, method, None)) for method in ("update", "merge", "compute")):
        return str(getattr(given, "name", type(given).__name__)), ObjectMetric(given)
    name = getattr(given, "__name__", "<lambda>")
    if not callable(given) or name == "<lambda>":
        raise MetricError(
            f"The metric {brief(given)} is neither a name, a function with a name, an object with update, merge "
            "and compute, nor a torchmetrics object; define it with `def`, its name appears in histories."
        )
    return name, FunctionMetric(given)
