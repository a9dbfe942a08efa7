"""TorchEstimator, which a user's function returns for a PyTorch model, and its replica: that model on a device."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from hopyard.checks import choice, integer
from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError, MetricError
from hopyard.objects import Tensor
from hopyard.training.estimator import (
    ClassWeight,
    Context,
    Estimator,
    Inputs,
    OneBatch,
    Replica,
    Visit,
    batch_sizes,
    epoch_steps,
)
from hopyard.training.metric import MetricSet, StreamingMetric
from hopyard.training.metrics import FunctionMetric, ObjectMetric, canonical, metric_named
from hopyard.training.torch import hidden, state
from hopyard.training.torch.attributes import KEY, Attributes, Name, Owner, owners, without_attributes
from hopyard.training.torch.base import Base, Given, base_of, check_given
from hopyard.training.torch.binding import Binding, as_tensors
from hopyard.training.torch.export import export_onnx
from hopyard.training.torch.forward import Forward
from hopyard.training.torch.loss import Loss, outputs_are_logits
from hopyard.training.torch.optim import build_optimizer, build_scheduler, options
from hopyard.training.torch.ownership import claim
from hopyard.training.torch.pack import (
    InexactError,
    Member,
    Parts,
    measure_members,
    signature_of,
    train_members,
    width_of,
)
from hopyard.training.torch.session import Flags, resolve_device
from hopyard.training.torch.stack import NotStackableError
from hopyard.training.torch.torchmetrics import TorchMetric, is_torchmetric
from hopyard.training.torch.training import Sums, TrainingPass
from hopyard.training.torch.trunk import Trunk, TrunkBinding, WithTrunk, frozen
from hopyard.training.torch.validation import measure
from hopyard.training.transforms import BatchTransform, transformed
from hopyard.training.unchanged import Unchanged
from hopyard.wording import brief, some_names

_log = logging.getLogger("hopyard")

_Found = TypeVar("_Found")


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
            the sum, for modules with ``reduction="sum"``). None only with ``step``.
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
                "The model has no parameters that require gradients, so nothing would be trained."
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


class TorchReplica(Replica):
    """See :class:`hopyard.training.estimator.Replica`; the arguments' meaning is TorchEstimator's."""

    framework = "torch"
    module: torch.nn.Module  # with the trunk, if there is one; what is trained is the head
    _pass: type[TrainingPass] = TrainingPass
    _trunk: Trunk | None = None
    _is_given_out = False

    @property
    def weight_column(self) -> str | None:
        return self._estimator.sample_weight_column

    def __init__(self, estimator: TorchEstimator, context: Context) -> None:
        self._estimator = estimator
        self.batch_size: int = estimator.batch_size
        device = self._device = resolve_device(context.device)
        self._head, self._frozen_base = estimator.model_on(device)
        if self._frozen_base is not None and context.trains_users_objects:
            self._frozen_base.keep()
        self.module = self._head
        claim(self._head)
        self._prepare_training(context, device)
        if not context.label_columns and estimator.step is None:
            raise EstimatorError(
                "label_columns is [], but loss= compares outputs with labels. Name their columns, or give "
                "step=fn(model, batch), which computes the loss by itself."
            )
        columns = (context.feature_columns, context.label_columns, estimator.sample_weight_column)
        self._binding = Binding(estimator.inputs, *columns, device)
        self._forward = self._make_forward(self._binding, device)
        if estimator.trunk is not None:
            self._put_before(estimator.trunk, TrunkBinding(estimator.inputs, *columns, device), device)
        loss = self._forward.loss
        modules = [self._head, *([] if loss is None else [loss.module])]
        self._unchanged = Unchanged(self._untrained)
        own = weakref.WeakMethod(self._owners)  # no cycle: what is not used any more is freed at once
        self._attributes = Attributes(
            lambda: () if (owners_now := own()) is None else owners_now(),
            *(module for module in modules if isinstance(module, torch.nn.Module)),
        )
        self._fingerprint_when_built = self._fingerprint()
        self._hidden: list[str] = []
        self._flags = Flags.now()  # with what the estimator function set

    def _put_before(self, trunk: torch.nn.Module, binding: TrunkBinding, device: torch.device) -> None:
        """Train the module on the outputs of ``trunk``."""
        given = self._estimator
        self._trunk = Trunk(trunk, self._binding, device, self._forward.autocast, given.precision)
        given.trunk = self._trunk.module  # a copy of its own, if there is one, is not needed
        self.trunk_weights: str | None = self._trunk.weights
        self.module = WithTrunk(self._trunk.module, self._head)
        self._forward.binding = binding

    def _prepare_training(self, context: Context, device: torch.device) -> None:
        """Make the optimizer, scheduler and scaler, over a module on its device."""
        estimator = self._estimator
        self._optimizer = build_optimizer(
            estimator.optimizer,
            estimator.optimizer_params,
            self._head,
            allow_fused=estimator.precision != "fp16",
        )
        steps = self._steps_per_epoch = epoch_steps(context, estimator.batch_size, estimator.accumulate)
        self._scheduler = build_scheduler(estimator.scheduler, self._optimizer, steps, context.num_epochs)
        self._scaler = torch.amp.GradScaler(device.type) if estimator.precision == "fp16" else None

    def give_out(self) -> torch.nn.Module:
        """The module, with a trunk or base of its own: the user may train it on, and other models have these too."""
        if self._frozen_base is not None:
            self._frozen_base.leave(self._head)
            self._frozen_base = None
        if self._trunk is not None and not self._is_given_out:
            self.module = WithTrunk(self._trunk.unshare(), self._head).eval()
            self._is_given_out = True
        self._attributes.give_out()
        return self.module

    @property
    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self._optimizer]

    def _make_forward(self, binding: Binding, device: torch.device) -> Forward:
        given = self._estimator
        loss = None
        if given.step is None:
            loss = Loss(given.loss, given.class_weight, given.sample_weight_column is not None, device)
        dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[given.precision]
        return Forward(self._head, binding, loss, given.step, given.validate_step, device, dtype)

    def check_labels(self, visit: Visit) -> None:
        for batch in self._training_batches(visit):
            self._forward.check_labels(self._forward.binding.place(batch))
            return

    @functools.cached_property
    def _packing(self) -> tuple[str, str]:
        if type(self) is not TorchReplica:
            return "", f"{type(self._estimator).__name__} trains models one at a time"
        try:
            return signature_of(self._parts()), ""
        except NotStackableError as error:
            return "", str(error)

    def _parts(self) -> Parts:
        return Parts(
            self._estimator,
            self._head,
            self._forward,
            self._optimizer,
            self._scheduler,
            self._device,
            self._flags,
            self.trunk_weights,
        )

    @property
    def signature(self) -> str:
        return self._packing[0]

    @property
    def trains_alone(self) -> str:
        found = width_of(self.signature) if self.signature else None
        return found if isinstance(found, str) else self._packing[1]

    @classmethod
    def train_together(
        cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
    ) -> list[dict[str, list[float]] | Exception] | None:
        contexts = [replica.in_training(visit) for replica in replicas]
        entered = [context.__enter__() for context in contexts]
        failure: BaseException | None = None
        members = [
            Member(replica._parts(), training, seed)
            for replica, (training, _), seed in zip(replicas, entered, seeds, strict=True)
        ]
        first = replicas[0]
        try:
            batches = first._placed(first._training_batches(visit))
            train_members(first.signature, members, batches, len(visit.rows))
        except BaseException as error:
            failure = error
        found = [
            _left(context, failure or member.failure(sums)) or sums.totals()
            for context, (_, sums), member in zip(contexts, entered, members, strict=True)
        ]
        return None if isinstance(failure, InexactError) else _without_interrupts(found, failure)

    @classmethod
    def validate_together(cls, replicas: Sequence[Any], visit: Visit) -> list[MetricSet | Exception]:
        contexts = [replica.in_validation() for replica in replicas]
        for context in contexts:
            context.__enter__()
        first: TorchReplica = replicas[0]
        failure: BaseException | None = None
        metrics = [replica._metrics() for replica in replicas]
        errors: Sequence[Exception | None] = [None] * len(replicas)
        try:
            batches = map(first._forward.binding.place, first._validation_batches(visit))
            errors = measure_members([replica._parts() for replica in replicas], batches, metrics)
        except BaseException as error:
            failure = error
        found = [
            _left(context, failure or error) or measured
            for context, error, measured in zip(contexts, errors, metrics, strict=True)
        ]
        return _without_interrupts(found, failure)

    def train(self, visit: Visit) -> dict[str, list[float]]:
        with self.in_training(visit) as (training, sums):
            batches = self._placed(self._training_batches(visit))
            training.run(batches, batch_sizes(len(visit.rows), self.batch_size), sums)
        return sums.totals()

    @contextmanager
    def in_training(self, visit: Visit) -> Iterator[tuple[TrainingPass, Sums]]:
        """Make the model ready to train on the visit, and see afterwards to what that has changed.

        Yields the pass, which is closed behind its last step, and the sums for what it measures.
        """
        given = self._estimator
        self._flags.apply()
        self._head.train()
        loss_before = self._loss_snapshot()
        training = self._pass(
            self._forward,
            self._optimizer,
            self._scheduler if given.scheduler_interval == "step" else None,
            self._scaler,
            given.accumulate,
            given.gradient_clip,
        )
        self._forward.checks_labels = visit.epoch == 0
        sums = Sums(str(visit), self._forward.loss_is_sum)
        with self._in_use(keep=True):
            yield training, sums
            training.close()
            sums.totals()
        if hidden.changed(loss_before, self._loss_snapshot()):
            raise EstimatorError(
                "The loss changed its own parameters or buffers while training, but only the model's are kept from "
                "visit to visit; make them part of the model, e.g. with step=fn(model, batch)."
            )
        if visit.last and given.scheduler_interval == "epoch" and self._scheduler is not None:
            self._scheduler.step()

    def _placed(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Batch, int]]:
        """The batches on the device, each with its number of rows."""
        place, rows_of = self._forward.binding.place, self._forward.binding.rows
        for batch in batches:
            placed = place(batch)
            yield placed, rows_of(placed)

    def _training_batches(self, visit: Visit) -> Iterable[Mapping[str, Any]]:
        given = self._estimator
        columns = self._forward.binding.columns(every_feature=bool(given.transform or given.step))
        batches = self._read(visit).training_batches(given.batch_size, columns, "torch")
        if given.transform is None:
            return batches
        return transformed(map(as_tensors, batches), given.transform, visit, "transform")

    def _validation_batches(self, visit: Visit) -> Iterable[Mapping[str, Any]]:
        given = self._estimator
        columns = self._forward.binding.columns(every_feature=bool(given.val_transform or given.step))
        batches = self._read(visit).validation_batches(given.batch_size, columns, "torch")
        if given.val_transform is None:
            return batches
        return transformed(map(as_tensors, batches), given.val_transform, visit, "val_transform")

    def _read(self, visit: Visit) -> Visit:
        """The visit, of rows with the trunk's outputs if there is a trunk."""
        return visit if self._trunk is None else replace(visit, rows=self._trunk.rows(visit.rows))

    def validate(self, visit: Visit) -> MetricSet:
        with self.in_validation():
            return self._measure(self._validation_batches(visit))

    @contextmanager
    def in_validation(self) -> Iterator[None]:
        """Make the model ready to be validated, and see afterwards that it is as it was."""
        self._flags.apply()
        before = hidden.snapshot(self._head)
        with self._in_use(keep=False):
            yield
        if hidden.changed(before, hidden.snapshot(self._head)):
            raise EstimatorError(
                "The model changed its own parameters or buffers while it was validated; "
                "let it do so only while `self.training` is true."
            )

    def _loss_snapshot(self) -> list[tuple[Any, int]]:
        loss = self._forward.loss
        if loss is None or not isinstance(loss.module, torch.nn.Module):
            return []
        return hidden.snapshot(loss.module, but=self._head)

    def _measure(self, batches: Iterable[Mapping[str, Any]]) -> MetricSet:
        return measure(self._forward, batches, self._metrics(), self._estimator.step_metrics())

    def _metrics(self) -> MetricSet:
        given = self._estimator
        return MetricSet(given.named_metrics(), loss=given.validate_step is None)  # which may give one

    def held(self) -> dict[str, Any]:
        return {"model": self._with_trunk(self._untrained())}

    def _with_trunk(self, model: dict[str, Any]) -> dict[str, Any]:
        return model if self._trunk is None else {"head": model, "trunk": self._trunk.weights}

    def state(self) -> dict[str, Any]:
        tree: dict[str, Any] = {
            "model": self._with_trunk(self._model_tree()),
            "optimizer": state.optimizer_tree(self._optimizer),
        }
        if self._scheduler is not None:
            tree["scheduler"] = state.plain_tree(self._scheduler.state_dict())
        if self._scaler is not None:
            tree["scaler"] = state.plain_tree(self._scaler.state_dict())
        return tree

    def _model_tree(self) -> dict[str, Any]:
        """The state dict, and the plain attributes that training has changed."""
        tree = self._tree_of(self._values())
        tensors = ((name, value) for name, value in tree.items() if isinstance(value, Tensor))
        tree |= self._unchanged.marked(tensors)
        attributes = self._attributes.tree()
        return {**tree, KEY: attributes} if attributes else tree

    def _untrained(self) -> dict[str, Tensor]:
        """The tensors of the model's tree that are not trained now."""
        values = self._values()
        values = {name: each for name, each in values.items() if not getattr(each, "requires_grad", False)}
        return {name: each for name, each in self._tree_of(values).items() if isinstance(each, Tensor)}

    def _values(self) -> Mapping[str, Any]:
        """The state dict of the head, not detached."""
        values = state.plain_values(self._head)
        return self._head.state_dict(keep_vars=True) if values is None else values

    def _tree_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of a state dict as a tree. The base was checked, so its tensors are not digested anew."""
        base = self._frozen_base
        shared = {} if base is None else {name: base.tree_of(value) for name, value in values.items()}
        own = {name: value for name, value in values.items() if shared.get(name) is None}
        tree = state.to_tree(own, "model")
        return {name: tree[name] if name in own else shared[name] for name in values}

    def _beyond_base(self, model: Any, values: Mapping[str, Any] | None) -> dict[str, Any]:
        """The state dict in the tree of a model. What the base has of it is that of the base, so nothing writes to it.

        Args:
            values: ``plain_values`` of the head.

        Raises:
            EstimatorError: the model was trained over another base.
        """
        tree = dict(without_attributes(model))
        if self._frozen_base is None:
            return tree
        other = []
        for name, value in (self._values() if values is None else values).items():
            shared = self._frozen_base.tree_of(value)
            if shared is not None and name in tree:
                if tree[name] is not shared and tree[name].digest != shared.digest:
                    other.append(name)
                tree[name] = value
        if other:
            raise EstimatorError(
                f"The state is that of a model over another base than the estimator function now gives; "
                f"{some_names(other, 4)} differ. Give the base that it was trained with: load the same weights."
            )
        return tree

    def _head_of(self, tree: Mapping[str, Any]) -> Any:
        return tree["model"] if self._trunk is None else self._trunk.head_of(tree["model"])

    def load(self, tree: Mapping[str, Any]) -> None:
        model = self._head_of(tree)
        if "optimizer" in tree:
            self._unchanged.note()
        else:
            self._unchanged.forget()
        values = state.plain_values(self._head)
        state.load_module(self._head, self._beyond_base(model, values), values)
        self._attributes.load(model.get(KEY, {}))
        if "optimizer" in tree:
            state.load_optimizer(self._optimizer, tree["optimizer"])
        if self._scheduler is not None and "scheduler" in tree:
            self._scheduler.load_state_dict(state.from_tree(tree["scheduler"]))
        if self._scaler is not None and "scaler" in tree:
            self._scaler.load_state_dict(state.from_tree(tree["scaler"]))

    def adopt(self, tree: Mapping[str, Any]) -> None:
        model = self._head_of(tree)
        self._unchanged.note()
        values = state.plain_values(self._head)
        state.adopt_module(self._head, self._beyond_base(model, values), values)
        self._attributes.load(model.get(KEY, {}))
        state.adopt_optimizer(self._optimizer, tree["optimizer"])
        if self._scheduler is not None and "scheduler" in tree:
            state.adopt_scheduler(self._scheduler, tree["scheduler"])
        if self._scaler is not None and "scaler" in tree:
            self._scaler.load_state_dict(state.from_tree(tree["scaler"]))

    def hidden_state(self) -> list[str]:
        return self._hidden

    @contextmanager
    def _in_use(self, keep: bool) -> Iterator[None]:
        """Have the attributes of the state meanwhile; ``keep``: what changes of them belongs to the state then."""
        if keep:
            self._unchanged.note()
        base = self._frozen_base if keep else None
        try:
            with self._attributes.in_use(keep):
                yield
                self._hidden = self._hidden_changes()
        except Exception:
            if base is not None:  # which a visit that fails may have changed, too
                base.check()
            raise
        if base is not None:
            base.check()

    def _hidden_changes(self) -> list[str]:
        plain = self._attributes.plain()
        return hidden.differences(self._fingerprint_when_built, self._fingerprint(plain), plain)

    def _functions(self) -> dict[str, Any]:
        """Functions of the user's that batches go through while training and validating."""
        given, loss = self._estimator, self._forward.loss
        names = ("transform", "val_transform", "step", "validate_step")
        named = {name: getattr(given, name) for name in names}
        named["loss"] = None if loss is None else loss.module
        return {name: function for name, function in named.items() if function is not None}

    def _owners(self) -> Iterator[Owner]:
        """The objects whose attributes training may change."""
        met: set[int] = set()
        parts = [owners("model", self._head)]
        parts += [owners(name, function) for name, function in self._functions().items()]
        parts += [
            owners(f"optimizer {number}", optimizer, frozenset(hidden.OF_OPTIMIZERS))
            for number, optimizer in enumerate(self._optimizers)
            if not type(optimizer).__module__.startswith("torch.optim.")
        ]
        for owner in itertools.chain(*parts):
            if id(owner[1]) not in met:
                met.add(id(owner[1]))
                yield owner

    def _fingerprint(self, but: Container[Name] | None = None) -> dict[Name, Any]:
        """Fingerprint of all that the state does not hold.

        Args:
            but: the attributes that are plain.
        """
        but = self._attributes.plain() if but is None else but
        functions, loss = self._functions(), self._forward.loss
        modules = [self._head, None if loss is None else loss.module]
        found = hidden.fingerprint(
            (owner for owner in self._owners() if not isinstance(owner[1], torch.optim.Optimizer)),
            modules,
            but,
        )
        for number, optimizer in enumerate(self._optimizers):
            marks = hidden.of_optimizer(optimizer, f"optimizer {number}")
            found |= {path: mark for path, mark in marks.items() if path not in but}
        return found | hidden.of_functions(self._head, functions)

    def schedule(self, num_epochs: int) -> Iterator[Mapping[str, Any]]:
        by_step = self._estimator.scheduler_interval == "step"
        steps = num_epochs * (self._steps_per_epoch if by_step else 1)
        return iter(()) if self._scheduler is None else options([self._optimizer], [(self._scheduler, steps)])

    def nbytes(self) -> int:
        base = self._frozen_base
        tensors = [each for each in self._head.state_dict().values() if base is None or not base.has(each)]
        for entry in (entry for optimizer in self._optimizers for entry in optimizer.state.values()):
            tensors += [value for value in entry.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))

    def evaluate(self, batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Loss and metrics over dicts of columns, arrays or tensors."""
        self._attributes.apply()
        return self._measure(self._prepared(batches)).compute()

    @property
    def prediction_columns(self) -> list[str]:
        return self._forward.binding.prediction_columns

    def predict(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        self._attributes.apply()
        size = self._estimator.batch_size
        names = [name for name in self.prediction_columns if name in batch]
        rows = len(batch[names[0]]) if names else 0
        pieces = ({name: batch[name][i : i + size] for name in names} for i in range(0, max(rows, 1), size))
        return self._forward.predictions(self._prepared(pieces), self._estimator.predict)

    def export_onnx(self, path: Path, example: Mapping[str, Any]) -> None:
        """Write the model to an ONNX file. Its inputs are columns after ``val_transform``, stacked by ``inputs``."""
        self._attributes.apply()
        binding = self._binding
        try:
            batch = next(iter(self._transformed([example])))
        except Exception as error:
            raise EstimatorError(
                f"val_transform failed on the rows that the model is traced with ({type(error).__name__}: {error}). "
                "Give rows that it takes: export(path, example=data)."
            ) from error
        arguments, keywords = binding.arguments(binding.place(batch))
        names = list(keywords) or binding.model_columns
        predict, left_out = self._estimator.predict, self._left_out_of_onnx()
        try:
            export_onnx(path, self.module, arguments, keywords, names, predict)
        except EstimatorError:
            if predict is None:
                raise
            export_onnx(path, self.module, arguments, keywords, names)
            left_out = ["predict= (it cannot be traced: make it of operations on tensors)", *left_out]
        if left_out:
            _log.warning(
                f"{path} does not do all that model.predict does; it leaves out {'; '.join(left_out)}. Do that to what "
                "it is given, or gives."
            )

    def _left_out_of_onnx(self) -> list[str]:
        """Names of steps that predictions go through besides the model and ``predict``."""
        return (
            []
            if self._estimator.val_transform is None
            else ["val_transform= (its inputs are what that gives)"]
        )

    def _prepared(self, batches: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        batches = self._transformed(batches)
        return batches if self._trunk is None else map(self._trunk.beside, batches)

    def _transformed(self, batches: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        transform = self._estimator.val_transform
        if transform is None:
            return batches
        return transformed(map(as_tensors, batches), transform, Visit(OneBatch({}), 0, 0, 0), "predict")


def _without_interrupts(
    found: list[_Found | BaseException], failure: BaseException | None
) -> list[_Found | Exception]:
    """
    Raises:
        BaseException: ``failure``, if there is one, or what is no failure of a trial.
    """
    if failure is not None:
        raise failure
    kept: list[_Found | Exception] = []
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, Exception):
            raise each
        kept.append(each)
    return kept


def _left(context: AbstractContextManager[Any], error: BaseException | None) -> BaseException | None:
    """Leave a context, by an exception if there is one. Returns that, or what leaving has raised."""
    try:
        context.__exit__(None if error is None else type(error), error, None)
    except BaseException as raised:
        return raised
    return error


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
