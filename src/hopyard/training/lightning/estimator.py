"""LightningEstimator, which a user's function returns for a LightningModule, and its replica: that module on a device.

The module trains as a model of TorchEstimator does, with its own steps, its optimizer and its hooks. Of Lightning only
the public interface of LightningModule is used: its methods, and its attribute ``trainer``.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError, HopyardError
from hopyard.training.estimator import Context, Inputs, Replica, Visit, batch_sizes
from hopyard.training.lightning.hooks import base_of, check_module, is_overridden, takes_index
from hopyard.training.lightning.logged import Logged, fresh, metrics_of
from hopyard.training.lightning.trainer import SearchTrainer
from hopyard.training.metric import MetricSet
from hopyard.training.torch.attributes import Owner
from hopyard.training.torch.binding import Binding
from hopyard.training.torch.estimator import TorchEstimator
from hopyard.training.torch.forward import BatchResult, Forward, scalar, shape_of
from hopyard.training.torch.optim import options
from hopyard.training.torch.replica import TorchReplica
from hopyard.training.torch.training import TrainingPass, steps_skipped
from hopyard.training.transforms import BatchTransform
from hopyard.wording import nearest

_BATCHES = ("tuple", "dict")
_OF_LOGGERS = {
    *("experiment", "log_metrics", "log_hyperparams", "log_graph", "log_image", "log_table", "log_text"),
    *("log_dir", "save_dir"),
}
"""Attributes of Lightning's loggers."""


class LightningEstimator(TorchEstimator):
    """A LightningModule, of ``lightning`` or ``pytorch_lightning``, with all that training it takes.

    Its ``training_step``, ``validation_step`` and ``configure_optimizers`` are called as the Trainer calls them, and so
    are the hooks in ``training.lightning.hooks.CALLED``; a module that has others is refused. What it logs are the
    metrics: ``training.lightning.logged`` has the rules.

    Args:
        module: a LightningModule with all its sizes, and with automatic optimization by one optimizer.
        batch_size: rows of a batch.
        batch: what steps are given. ``"tuple"``: the feature columns in their order, then the label columns, as
            tensors (a single column is given as it is); ``"dict"``: a dict of columns; or ``fn(columns)`` -> anything.
            Dtypes are those of TorchEstimator. ``predict_step`` and ``forward`` are given no labels.
        transform: ``fn(batch, rng)`` on every training batch before all else: a dict of CPU tensors, which
            may be changed in place, and a NumPy generator; returns the dict to use.
        val_transform: the same for validation and prediction. ``transform`` is not used there.
        gradient_clip: largest norm of the gradient, the Trainer's ``gradient_clip_val``.
        accumulate: batches per step; their gradients are averaged by rows. Groups end with the partition.
        precision: ``"fp32"``; ``"bf16"`` or ``"fp16"``, the Trainer's ``"bf16-mixed"`` and ``"16-mixed"``.
        predict: ``fn(outputs)`` -> what ``predict`` and ``transform`` of the trained model give, of what
            ``predict_step``, or else ``forward``, returned.

    Raises:
        EstimatorError: an argument is not usable, or the module has a hook that a search does not call.
    """

    def __init__(
        self,
        module: Any,
        batch_size: int = 32,
        batch: str | Callable[[Batch], Any] = "tuple",
        transform: BatchTransform | None = None,
        val_transform: BatchTransform | None = None,
        gradient_clip: float | None = None,
        accumulate: int = 1,
        precision: str = "fp32",
        predict: Callable[[Any], Any] | None = None,
    ) -> None:
        check_module(module)
        self.batch = batch
        if batch not in _BATCHES and not callable(batch):
            raise EstimatorError(
                f"batch={batch!r}, but it must be 'tuple', 'dict' or a function fn(columns)"
                f"{nearest(str(batch), _BATCHES, '.')}"
            )
        module.configure_model()  # layers that it makes there
        super().__init__(
            module,
            optimizer=type(module).configure_optimizers,
            step=type(module).training_step,
            batch_size=batch_size,
            transform=transform,
            val_transform=val_transform,
            gradient_clip=gradient_clip,
            accumulate=accumulate,
            precision=precision,
            predict=predict,
        )

    def replica(self, context: Context) -> Replica:
        if self.batch == "dict":
            self.inputs: Inputs = {name: name for name in context.feature_columns}
        return LightningReplica(self, context)


class LightningReplica(TorchReplica):
    """See :class:`hopyard.training.estimator.Replica`; the arguments' meaning is LightningEstimator's."""

    _estimator: LightningEstimator
    _forward: _Steps
    _head: Any

    def __init__(self, estimator: LightningEstimator, context: Context) -> None:
        # save_hyperparameters() leaves a cycle of frames, down to who called us: they would hold module and optimizer
        # until a full collection.
        gc.collect(1)
        base = base_of(estimator.model)
        assert base is not None
        self._base, self._of_lightning = base, frozenset(vars(base()))
        self._trainer = SearchTrainer(
            context, estimator.batch_size, estimator.accumulate, estimator.gradient_clip
        )
        self._labels = list(context.label_columns)
        self._history: Mapping[str, float] | None = None
        self._head = estimator.model
        with self._attached("training", Logged("train")):
            self._head.setup("fit")
        super().__init__(estimator, context)

    def _prepare_training(self, context: Context, device: torch.device) -> None:
        with self._attached("training", Logged("train")):
            self._optimizer, self._schedule = self._trainer.configured_by(self._head)
            self._scheduler = None if self._schedule is None else self._schedule.scheduler
            self._scaler = torch.amp.GradScaler(device.type) if self._estimator.precision == "fp16" else None
            self._groups = len(self._optimizer.param_groups)
            # Before a state is loaded: what these do to a trial's weights happens once, at its begin.
            self._head.on_fit_start()
            self._head.on_train_start()

    def _make_forward(self, binding: Binding, device: torch.device) -> _Steps:
        dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self._estimator.precision]
        return _Steps(self._head, binding, device, dtype, self._estimator.batch, self._labels, self._trainer)

    @contextmanager
    def _attached(self, phase: str, logged: Logged) -> Iterator[None]:
        """The module, and modules in it, have this trainer, and log to ``logged``.

        Args:
            phase: ``"training"``, ``"validating"`` or ``"predicting"``.

        Raises:
            EstimatorError: within, the module used a logger; there is none.
        """
        module, trainer = self._head, self._trainer
        parts: list[Any] = [part for part in module.modules() if isinstance(part, self._base)]
        module.trainer = trainer
        setattr(trainer, phase, True)
        for part in parts:
            vars(part).update(log=logged, optimizers=lambda use_pl_optimizer=True: trainer.optimizers[0])
        try:
            yield
        except AttributeError as error:
            if error.obj is None and error.name in _OF_LOGGERS:
                raise EstimatorError(
                    f"The module used self.logger.{error.name}, but a search has no logger of Lightning's: self.logger "
                    "is None, as with Trainer(logger=False). Log numbers with self.log(name, value), which histories "
                    "hold and the search's callbacks= write to TensorBoard, MLflow or W&B; put all else behind "
                    "`if self.logger is not None`."
                ) from error
            raise
        finally:
            module.trainer = None
            setattr(trainer, phase, False)
            for part in parts:
                del part.log, part.optimizers  # of these objects; those of their class come forth

    def check_labels(self, visit: Visit) -> None:
        """Do nothing: the module's own steps refuse labels that do not fit."""

    # Training -------------------------------------------------------------------------------

    def begin_visit(self, epoch: int, history: Mapping[str, float] | None) -> None:
        self._history = history  # until there is a visit

    def train(self, visit: Visit) -> dict[str, list[float]]:
        given, rows = self._estimator, len(visit.rows)
        self._flags.apply()
        logged = Logged("train", str(visit))
        logged.rows = rows
        training = _TrainingWithHooks(
            self._forward, self._optimizer, None, self._scaler, given.accumulate, given.gradient_clip
        )
        training.step_taken = self._step_taken
        with self._in_use(keep=True), fresh(self._head), self._attached("training", logged):
            self._begin_epoch(visit.epoch)
            batches = self._with_hooks(self._placed(self._training_batches(visit)), logged)
            training.run(batches, batch_sizes(rows, given.batch_size), logged.sums)
            if visit.last:
                self._step_schedule("epoch", visit.epoch + 1)
            self._check_groups()
            return logged.totals(rows)

    def _begin_epoch(self, epoch: int) -> None:
        """In the first visit of an epoch, tell the module, and ReduceLROnPlateau the values of the epoch before."""
        trainer, schedule = self._trainer, self._schedule
        history, self._history = self._history, None
        if history is None:
            trainer.current_epoch = epoch
            return
        if history and schedule is not None and schedule.reduce_on_plateau:
            trainer.current_epoch = epoch - 1
            value = schedule.monitored(history)
            if value is not None and epoch % schedule.frequency == 0:
                self._head.lr_scheduler_step(schedule.scheduler, value)
        trainer.current_epoch, trainer.batches = epoch, 0
        self._head.on_train_epoch_start()

    def _with_hooks(self, batches: Iterable[tuple[Any, int]], logged: Logged) -> Iterator[tuple[Any, int]]:
        """Batches as steps take them, between the hooks that are called before and after each."""
        module, trainer = self._head, self._trainer
        for columns, rows in batches:
            logged.rows = rows
            batch = self._forward.batch_of(columns)
            if module.on_train_batch_start(batch, trainer.batches) == -1:
                raise EstimatorError(
                    "on_train_batch_start returned -1, which would skip the rest of the epoch, but a trial visits all "
                    "partitions of an epoch; return nothing."
                )
            yield batch, rows
            module.on_train_batch_end(self._forward.returned, batch, trainer.batches)
            trainer.batches += 1

    def _step_taken(self) -> None:
        self._trainer.global_step += 1
        self._step_schedule("step", self._trainer.batches + 1)

    def _step_schedule(self, interval: str, number: int) -> None:
        """Step a schedule of this interval, if it is its turn after so many batches or epochs."""
        schedule = self._schedule
        if schedule is None or schedule.reduce_on_plateau:
            return
        if schedule.interval == interval and number % schedule.frequency == 0:
            with steps_skipped(self._scaler):
                self._head.lr_scheduler_step(schedule.scheduler, None)

    def _check_groups(self) -> None:
        """
        Raises:
            EstimatorError: the optimizer has other groups than on the worker that loads its state next.
        """
        if len(self._optimizer.param_groups) != self._groups:
            raise EstimatorError(
                "The module added a parameter group to an optimizer while it was trained, but on the next worker there "
                "are those that configure_optimizers makes. Make all groups there, also of frozen parameters: they are "
                "not changed until on_train_epoch_start calls requires_grad_(True)."
            )

    def schedule(self, num_epochs: int) -> Iterator[Mapping[str, Any]]:
        """Options of the optimizer, also of a module without a schedule: rates may use ``trainer.max_epochs``."""
        schedule = self._schedule
        if schedule is None or schedule.reduce_on_plateau:
            return options([self._optimizer], [])
        steps = self._trainer.steps_per_epoch * num_epochs if schedule.interval == "step" else num_epochs
        return options([self._optimizer], [(schedule.scheduler, steps // schedule.frequency)])

    def asks_epochs(self) -> str:
        return self._trainer.asks_epochs

    # Validation and predictions -------------------------------------------------------------

    def validate(self, visit: Visit) -> MetricSet:
        self._trainer.current_epoch = visit.epoch
        return super().validate(visit)

    @torch.no_grad()
    def _measure(self, batches: Iterable[Mapping[str, Any]]) -> MetricSet:
        module, logged = self._head, Logged("val")
        # As Lightning has it: a module that was in eval mode while training stays so.
        modes = [(part, part.training) for part in module.modules()]
        with fresh(module), self._attached("validating", logged):
            try:
                module.eval()
                self._run_validation(self._placed(batches), logged)
            finally:
                for part, mode in modes:
                    part.training = mode
            return logged.metric_set()

    def _run_validation(self, batches: Iterable[tuple[Any, int]], logged: Logged) -> None:
        module, total = self._head, 0
        module.on_validation_start()
        module.on_validation_epoch_start()
        for number, (columns, rows) in enumerate(batches):
            logged.rows = rows
            batch = self._forward.batch_of(columns)
            module.on_validation_batch_start(batch, number)
            returned = self._forward.validation_step(batch, number)
            loss = returned.get("loss") if isinstance(returned, Mapping) else returned
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                logged.sums.note("loss", loss, rows)
            module.on_validation_batch_end(returned, batch, number)
            total += rows
        logged.rows = total  # what is logged now is about the whole partition
        module.on_validation_epoch_end()
        module.on_validation_end()

    def predict(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        self._forward.predicted = itertools.count()
        with self._attached("predicting", Logged("predict")):
            return super().predict(batch)

    def _left_out_of_onnx(self) -> list[str]:
        steps = ["predict_step (its outputs are those of forward)"]
        return super()._left_out_of_onnx() + (steps if is_overridden(self._head, "predict_step") else [])

    # State ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        progress = {"global_step": self._trainer.global_step, "batches": self._trainer.batches}
        return {**super().state(), "trainer": progress}

    def load(self, tree: Mapping[str, Any]) -> None:
        super().load(tree)
        self._load_progress(tree)

    def adopt(self, tree: Mapping[str, Any]) -> None:
        super().adopt(tree)
        self._load_progress(tree)

    def _load_progress(self, tree: Mapping[str, Any]) -> None:
        if "trainer" in tree:
            self._trainer.global_step = tree["trainer"]["global_step"]
            self._trainer.batches = tree["trainer"]["batches"]

    def _owners(self) -> Iterator[Owner]:
        """Owners without metric objects, which begin and end every pass empty; with the modes of modules, which
        training keeps as the module sets them."""
        metrics = {id(metric) for metric in metrics_of(self._head)}
        for place, owner, skipped in super()._owners():
            if id(owner) not in metrics:
                yield place, owner, (skipped | self._of_lightning) - {"training"}


class _TrainingWithHooks(TrainingPass):
    """A training pass with the module's hooks of backward passes and steps.

    Attributes:
        step_taken: called after each step of the optimizer.
    """

    step_taken: Callable[[], None]

    def _backward(self, loss: torch.Tensor) -> None:
        module: Any = self._forward.module
        module.on_before_backward(loss)
        super()._backward(loss)
        module.on_after_backward()

    def _before_step(self) -> None:
        module: Any = self._forward.module
        module.on_before_optimizer_step(self._optimizer)

    def after_step(self) -> None:
        self.step_taken()


class _Steps(Forward):
    """The module's steps, each of a batch as the module takes it.

    Attributes:
        returned: by the last training step, as ``on_train_batch_end`` is given it.
        predicted: numbers the batches of a prediction.
    """

    module: Any

    def __init__(
        self,
        module: Any,
        binding: Binding,
        device: torch.device,
        dtype: torch.dtype | None,
        batch: str | Callable[[Batch], Any],
        labels: list[str],
        trainer: SearchTrainer,
    ) -> None:
        super().__init__(module, binding, None, None, None, device, dtype)
        self._batch = batch
        self._labels = labels
        self._trainer = trainer
        self._takes_index = {
            name: takes_index(getattr(module, name)) for name in ("training_step", "validation_step")
        }
        self.returned: dict[str, Any] = {}
        self.predicted: Iterator[int] = itertools.count()

    def batch_of(self, columns: Batch) -> Any:
        """The batch that steps are given, of columns on the device; predictions are without labels."""
        if callable(self._batch):
            batch = self._batch(columns)
        elif self._batch == "dict":
            batch = dict(columns)
        else:
            values = self.binding.arguments(columns)[0]
            values += [columns[name] for name in self._labels if name in columns]
            batch = values[0] if len(values) == 1 else tuple(values)
        return self.module.on_after_batch_transfer(batch, 0)

    def _run(self, batch: Any, training: bool) -> BatchResult:
        """The loss of a training step."""
        returned = self._call("training_step", batch, self._trainer.batches)
        if isinstance(returned, Mapping):
            if "loss" not in returned:
                raise EstimatorError(
                    f"training_step returned the keys {', '.join(map(str, returned))}, but a dict must have 'loss'; "
                    "end it with `return {'loss': loss, ...}`."
                )
            loss, others = scalar(returned["loss"]), dict(returned)
        elif returned is None:
            raise EstimatorError(
                "training_step returned None, but a search takes a step after each batch; return the loss."
            )
        else:
            loss, others = scalar(returned), {}
        self.returned = {**others, "loss": loss.detach()}
        return BatchResult(loss, None, None, None, {})

    def validation_step(self, batch: Any, number: int) -> Any:
        with self.autocast():
            return self._call("validation_step", batch, number)

    def _call(self, name: str, batch: Any, number: int) -> Any:
        """Result of the module's step; an error there is told with the batch that the step was given."""
        arguments = (batch, number) if self._takes_index[name] else (batch,)
        try:
            return getattr(self.module, name)(*arguments)
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            if isinstance(error, HopyardError):
                raise
            raise EstimatorError(
                f"{name} failed on the batch {_described(batch)}: {error}. A batch is the feature columns and "
                "then the label columns; batch='dict' makes it a dict of columns, batch=fn whatever fn(columns) "
                "returns."
            ) from error

    def explained_outputs(self, batch: Batch) -> Any:
        if not is_overridden(self.module, "predict_step"):
            return super().explained_outputs(batch)
        features = {name: batch[name] for name in self.binding.features if name in batch}
        return self.module.predict_step(self.batch_of(features), next(self.predicted))


def _described(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key!r}: {shape_of(value)}" for key, value in batch.items()) + "}"
    return shape_of(batch)
