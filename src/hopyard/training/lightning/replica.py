"""A trial's LightningModule with its optimizers and schedulers, on a device."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopyard.errors import EstimatorError
from hopyard.training.estimator import Context, Visit, batch_sizes
from hopyard.training.lightning.hooks import base_of, is_overridden
from hopyard.training.lightning.logged import Logged, fresh, metrics_of
from hopyard.training.lightning.loops import Batches, Training, Validation, batch_maker
from hopyard.training.lightning.trainer import SearchTrainer
from hopyard.training.metric import MetricSet
from hopyard.training.resident import copied
from hopyard.training.torch import hidden, state
from hopyard.training.torch.attributes import KEY, Name, Owner, without_attributes
from hopyard.training.torch.binding import Batch, Binding
from hopyard.training.torch.forward import Forward
from hopyard.training.torch.optim import options
from hopyard.training.torch.replica import TorchReplica
from hopyard.training.torch.session import generators_kept, resolve_device

if TYPE_CHECKING:
    from hopyard.training.lightning.estimator import LightningEstimator


class LightningReplica(TorchReplica):
    """See :class:`hopyard.training.estimator.Replica`; the arguments' meaning is LightningEstimator's."""

    _estimator: LightningEstimator

    def __init__(self, estimator: LightningEstimator, context: Context) -> None:
        # save_hyperparameters() leaves a cycle of frames, down to who called us: they would hold module and optimizers
        # until a full collection.
        gc.collect(1)
        self._trainer = SearchTrainer(estimator, context, resolve_device(context.device))
        self._labels = list(context.label_columns)
        self._begun = 0  # epochs for which this module's on_train_epoch_start was called
        self._history: Mapping[str, float] | None = None
        base = base_of(estimator.model)
        assert base is not None
        self._of_lightning = frozenset(vars(base()))
        with self._trainer.attached(Logged("train", "setup")):
            self._trainer.call("setup", "fit")
        super().__init__(estimator, context)

    def _prepare_training(self, context: Context, device: torch.device) -> None:
        with self._trainer.attached(Logged("train", "configure_optimizers")):
            self._trainer.configure()
            self._groups = [len(optimizer.param_groups) for optimizer in self._optimizers]
            # Before a state is loaded: what they do to a trial's weights happens once, at its begin.
            self._trainer.call("on_fit_start")
            self._trainer.call("on_train_start")

    @property
    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return self._trainer.optimizers

    @property
    def _schedulers(self) -> list[Any]:
        return [config.scheduler for config in self._trainer.lr_scheduler_configs]

    def schedule(self, num_epochs: int) -> Iterator[Mapping[str, Any]]:
        """Also of a module without schedulers: its rates may follow from ``self.trainer.max_epochs``."""
        steps = self._trainer.steps(num_epochs)
        found = [
            (config.scheduler, (steps if config.interval == "step" else num_epochs) // config.frequency)
            for config in self._trainer.lr_scheduler_configs
            if not isinstance(config.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        ]
        return options(self._optimizers, found)

    def asks_epochs(self) -> str:
        return self._trainer.asks_epochs()

    def _make_forward(self, binding: Binding, device: torch.device) -> Forward:
        dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self._estimator.precision]
        self._batch = batch_maker(
            self._estimator.batch, lambda columns: binding.arguments(columns)[0], self._labels
        )
        return _Predictions(self.module, binding, device, dtype, self._batch)

    def check_labels(self, visit: Visit) -> None:
        """Nothing: the module's own steps say what does not fit."""

    def _given(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, int]]:
        binding = self._forward.binding
        for batch in batches:
            placed = binding.place(batch)
            yield self._batch(placed), binding.rows(placed)

    # Training -------------------------------------------------------------------------------

    def begin_visit(self, epoch: int, history: Mapping[str, float] | None) -> None:
        self._history = history  # until there is a visit

    def train(self, visit: Visit) -> dict[str, list[float]]:
        given, trainer = self._estimator, self._trainer
        self._flags.apply()
        where = f"epoch {visit.epoch + 1}, partition {visit.partition}"
        logged, rows = Logged("train", where), len(visit.rows)
        logged.of(rows)
        trainer.training = True
        metrics = metrics_of(self.module)
        ends = is_overridden(self.module, "on_train_epoch_end")
        with self._in_use(keep=True), fresh(metrics.values()), trainer.attached(logged):
            self._begin(visit.epoch)
            before = self._fingerprint() if ends else {}
            batches = self._given(self._training_batches(visit))
            training = Training(trainer, logged, given.accumulate)
            training.run(batches, batch_sizes(rows, given.batch_size), visit.last)
            self._check_groups()
            if ends:
                self._end(visit, logged, before, metrics)
            return logged.totals(rows)

    def _begin(self, epoch: int) -> None:
        """What happens before a visit. ``on_train_epoch_start`` may set attributes, which a module that is made anew
        lacks: it is called for the epochs so far, and what it does to the state, where it was done once, is undone."""
        trainer = self._trainer
        history, self._history = self._history, None
        first = history is not None
        trainer.callback_metrics = {}
        if history is not None:
            trainer.begin_epoch(epoch, history)
        if is_overridden(self.module, "on_train_epoch_start"):
            missed = range(self._begun, epoch if first else epoch + 1)
            if missed:
                before = copied(self.state())
                self._attributes.reset()
                with trainer.attached(Logged("train", "")), generators_kept(trainer.strategy.root_device):
                    self._begin_epochs(missed)
                self.load(before)
                self._attributes.apply()
            self._begun = epoch + 1
        trainer.current_epoch = epoch
        if first:
            trainer.call("on_train_epoch_start")

    def _begin_epochs(self, epochs: range) -> None:
        for epoch in epochs:
            self._trainer.current_epoch = epoch
            self._trainer.call("on_train_epoch_start")

    def _check_groups(self) -> None:
        """
        Raises:
            EstimatorError: an optimizer has other groups than on the worker that loads its state next.
        """
        if [len(optimizer.param_groups) for optimizer in self._optimizers] != self._groups:
            raise EstimatorError(
                "The module added a parameter group to an optimizer while it was trained, but on the next worker there "
                "are those that configure_optimizers makes. Make all groups there, also of frozen parameters: they are "
                "not changed until on_train_epoch_start calls requires_grad_(True)."
            )

    def _end(
        self, visit: Visit, logged: Logged, before: Mapping[Name, Any], metrics: Mapping[str, Any]
    ) -> None:
        """
        Raises:
            EstimatorError: ``on_train_epoch_end`` is there, and what it may look at is known of one partition only.
        """
        if visit.last:
            logged.of(len(visit.rows))
            self._trainer.call("on_train_epoch_end")
        unlogged = logged.updated_but_not_logged(metrics)
        plain = self._attributes.plain()
        changed = hidden.differences(before, self._fingerprint(plain), plain)
        if unlogged or changed:
            what = (
                f"updates self.{unlogged[0]} without logging it"
                if unlogged
                else f"changes {', '.join(changed)}"
            )
            raise EstimatorError(
                f"The module {what} while it is trained, and it has on_train_epoch_end; but an epoch is trained in "
                "parts, by several workers, and only the state_dict and plain attributes go from one to the next: "
                "numbers, strings, and lists and dicts of them. Log values and torchmetrics objects in "
                "training_step, with self.log, or gather in a buffer."
            )

    # Validation and predictions -------------------------------------------------------------

    def validate(self, visit: Visit) -> MetricSet:
        self._trainer.current_epoch = visit.epoch
        return super().validate(visit)

    def _measure(self, batches: Iterable[Mapping[str, Any]]) -> MetricSet:
        logged = Logged("val", "")
        given: Batches = self._given(batches)
        with fresh(metrics_of(self.module).values()), self._trainer.attached(logged):
            Validation(self._trainer, logged).run(given)
            return logged.metric_set()

    def predict(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        with self._trainer.attached(Logged("predict", "")):
            return super().predict(batch)

    def _left_out_of_onnx(self) -> list[str]:
        steps = ["predict_step (its outputs are those of forward)"]
        return super()._left_out_of_onnx() + (steps if is_overridden(self.module, "predict_step") else [])

    # State ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "model": self._model_tree(),
            "optimizers": [state.optimizer_tree(optimizer) for optimizer in self._optimizers],
            "schedulers": [state.plain_tree(scheduler.state_dict()) for scheduler in self._schedulers],
            "precision": state.plain_tree(trainer.precision_plugin.state_dict()),
            "trainer": {"global_step": trainer.global_step, "batches": trainer.batches},
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        model = tree["model"]
        state.load_module(self.module, without_attributes(model))
        self._attributes.load(model.get(KEY, {}))
        if "optimizers" not in tree:
            return
        for optimizer, kept in zip(self._optimizers, tree["optimizers"], strict=True):
            state.load_optimizer(optimizer, kept)
        for scheduler, kept in zip(self._schedulers, tree["schedulers"], strict=True):
            scheduler.load_state_dict(state.from_tree(kept))
        self._load_rest(tree)

    def adopt(self, tree: Mapping[str, Any]) -> None:
        model = tree["model"]
        state.adopt_module(self.module, without_attributes(model))
        self._attributes.load(model.get(KEY, {}))
        for optimizer, kept in zip(self._optimizers, tree["optimizers"], strict=False):
            state.adopt_optimizer(optimizer, kept)
        for scheduler, kept in zip(self._schedulers, tree["schedulers"], strict=False):
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.load_state_dict(state.from_tree(kept))
            else:
                state.adopt_scheduler(scheduler, kept)
        self._load_rest(tree)

    def _load_rest(self, tree: Mapping[str, Any]) -> None:
        if tree["precision"]:
            self._trainer.precision_plugin.load_state_dict(state.from_tree(tree["precision"]))
        self._trainer.global_step = tree["trainer"]["global_step"]
        self._trainer.batches = tree["trainer"]["batches"]

    def _owners(self) -> Iterator[Owner]:
        # What metric objects gather is none of the module's: every pass begins and ends without.
        metrics = {id(metric) for metric in metrics_of(self.module).values()}
        for place, owner, skipped in super()._owners():
            if id(owner) not in metrics:
                yield place, owner, skipped | self._of_lightning


class _Predictions(Forward):
    """``predict_step`` if the module has one, else ``forward``."""

    def __init__(
        self,
        module: Any,
        binding: Binding,
        device: torch.device,
        dtype: torch.dtype | None,
        batch: Callable[[Batch], Any],
    ) -> None:
        super().__init__(module, binding, None, None, device, dtype)
        self._batch = batch
        self._numbers: Iterator[int] = itertools.count()

    def predictions(
        self, batches: Iterable[Mapping[str, Any]], predict: Callable[[Any], Any] | None
    ) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        self._numbers = itertools.count()
        return super().predictions(batches, predict)

    def explained_outputs(self, batch: Batch) -> Any:
        if not is_overridden(self.module, "predict_step"):
            return super().explained_outputs(batch)
        features = {name: batch[name] for name in self.binding.features if name in batch}
        step: Any = self.module.predict_step
        return step(self._batch(features), next(self._numbers))
