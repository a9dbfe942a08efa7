"""A trial's model, optimizer, scheduler and loss scaler on a device."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopyard.errors import EstimatorError
from hopyard.training.estimator import Context, OneBatch, Replica, Visit, batch_sizes, epoch_steps
from hopyard.training.metric import MetricSet
from hopyard.training.torch import hidden, state
from hopyard.training.torch.attributes import KEY, Attributes, Name, Owner, owners, without_attributes
from hopyard.training.torch.binding import Binding, as_tensors
from hopyard.training.torch.export import export_onnx
from hopyard.training.torch.forward import Forward
from hopyard.training.torch.loss import Loss
from hopyard.training.torch.optim import build_optimizer, build_scheduler, options
from hopyard.training.torch.ownership import claim
from hopyard.training.torch.session import Flags, resolve_device
from hopyard.training.torch.training import TrainingPass
from hopyard.training.torch.trunk import Trunk, TrunkBinding, WithTrunk
from hopyard.training.torch.validation import measure
from hopyard.training.transforms import transformed

if TYPE_CHECKING:
    from hopyard.training.torch.estimator import TorchEstimator


_log = logging.getLogger("hopyard")


class TorchReplica(Replica):
    """See :class:`hopyard.training.estimator.Replica`; the arguments' meaning is TorchEstimator's."""

    framework = "torch"
    module: torch.nn.Module  # with the trunk, if there is one; what is trained is the head
    _trunk: Trunk | None = None
    _is_given_out = False

    def __init__(self, estimator: TorchEstimator, context: Context) -> None:
        self._estimator = estimator
        self.batch_size = estimator.batch_size
        device = resolve_device(context.device)
        self._head = self.module = estimator.model.to(device)
        claim(self._head)
        self._prepare_training(context, device)
        columns = (context.feature_columns, context.label_columns, estimator.sample_weight_column)
        self._binding = Binding(estimator.inputs, *columns, device)
        self._forward = self._make_forward(self._binding, device)
        if estimator.trunk is not None:
            self._put_before(estimator.trunk, TrunkBinding(estimator.inputs, *columns, device), device)
        loss = self._forward.loss
        modules = [self._head, *([] if loss is None else [loss.module])]
        own = weakref.WeakMethod(self._owners)  # no cycle: what is not used any more is freed at once
        self._attributes = Attributes(
            lambda: () if (owners_now := own()) is None else owners_now(),
            *(module for module in modules if isinstance(module, torch.nn.Module)),
        )
        self._fingerprint_when_built = self._fingerprint()
        self._hidden: list[str] = []
        self._flags = Flags.now()  # with what the estimator function set

    def _put_before(self, trunk: torch.nn.Module, binding: TrunkBinding, device: torch.device) -> None:
        """Train the module on what ``trunk`` gives."""
        given = self._estimator
        self._trunk = Trunk(trunk, self._binding, device, self._forward.autocast, given.precision)
        given.trunk = self._trunk.module  # a copy of its own, if there is one, is not needed
        self.trunk_weights = self._trunk.weights
        self.module = WithTrunk(self._trunk.module, self._head)
        self._forward.binding = binding

    def _prepare_training(self, context: Context, device: torch.device) -> None:
        """Make the optimizer and what goes with it, over a module on its device."""
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
        """The module, with a trunk of its own: whoever gets it may train on, and other models have the trunk too."""
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
        return Forward(self._head, binding, loss, given.step, device, dtype)

    def check_labels(self, visit: Visit) -> None:
        for batch in self._training_batches(visit):
            self._forward.check_labels(self._forward.binding.place(batch))
            return

    def train(self, visit: Visit) -> dict[str, list[float]]:
        given = self._estimator
        self._flags.apply()
        loss_before = self._loss_snapshot()
        training = TrainingPass(
            self._forward,
            self._optimizer,
            self._scheduler if given.scheduler_interval == "step" else None,
            self._scaler,
            given.accumulate,
            given.gradient_clip,
        )
        sizes = batch_sizes(len(visit.rows), given.batch_size)
        where = f"epoch {visit.epoch + 1}, partition {visit.partition}"
        with self._in_use(keep=True):
            sums = training.run(self._training_batches(visit), sizes, where)
        if hidden.changed(loss_before, self._loss_snapshot()):
            raise EstimatorError(
                "The loss changed its own parameters or buffers while training, but only the model's are kept from "
                "visit to visit; make them part of the model, e.g. with step=fn(model, batch)."
            )
        if visit.last and given.scheduler_interval == "epoch" and self._scheduler is not None:
            self._scheduler.step()
        return sums

    def _training_batches(self, visit: Visit) -> Iterable[Mapping[str, Any]]:
        given = self._estimator
        columns = self._forward.binding.columns(every_feature=bool(given.transform or given.step))
        batches = self._read(visit).training_batches(given.batch_size, columns, "torch")
        if given.transform is None:
            return batches
        return transformed(map(as_tensors, batches), given.transform, visit, "transform")

    def _read(self, visit: Visit) -> Visit:
        """The visit, of rows with the trunk's outputs if there is a trunk."""
        return visit if self._trunk is None else replace(visit, rows=self._trunk.rows(visit.rows))

    def validate(self, visit: Visit) -> MetricSet:
        given = self._estimator
        self._flags.apply()
        columns = self._forward.binding.columns(every_feature=bool(given.val_transform or given.step))
        batches = self._read(visit).validation_batches(given.batch_size, columns, "torch")
        if given.val_transform is not None:
            batches = transformed(map(as_tensors, batches), given.val_transform, visit, "val_transform")
        before = hidden.snapshot(self._head)
        with self._in_use(keep=False):
            found = self._measure(batches)
        if hidden.changed(before, hidden.snapshot(self._head)):
            raise EstimatorError(
                "The model changed its own parameters or buffers while it was validated; "
                "let it do so only while `self.training` is true."
            )
        return found

    def _loss_snapshot(self) -> list[tuple[Any, int]]:
        loss = self._forward.loss
        if loss is None or not isinstance(loss.module, torch.nn.Module):
            return []
        return hidden.snapshot(loss.module, but=self._head)

    def _measure(self, batches: Iterable[Mapping[str, Any]]) -> MetricSet:
        given = self._estimator
        return measure(self._forward, batches, MetricSet(given.named_metrics()), given.step_metrics())

    def state(self) -> dict[str, Any]:
        model = self._model_tree()
        tree: dict[str, Any] = {
            "model": model if self._trunk is None else {"head": model, "trunk": self._trunk.weights},
            "optimizer": state.optimizer_tree(self._optimizer),
        }
        if self._scheduler is not None:
            tree["scheduler"] = state.plain_tree(self._scheduler.state_dict())
        if self._scaler is not None:
            tree["scaler"] = state.plain_tree(self._scaler.state_dict())
        return tree

    def _model_tree(self) -> dict[str, Any]:
        """The state dict, and what training has changed of plain attributes."""
        tree: dict[str, Any] = state.to_tree(dict(self._head.state_dict()), "model")
        attributes = self._attributes.tree()
        return {**tree, KEY: attributes} if attributes else tree

    def _head_of(self, tree: Mapping[str, Any]) -> Any:
        return tree["model"] if self._trunk is None else self._trunk.head_of(tree["model"])

    def load(self, tree: Mapping[str, Any]) -> None:
        model = self._head_of(tree)
        state.load_module(self._head, without_attributes(model))
        self._attributes.load(model.get(KEY, {}))
        if "optimizer" in tree:
            state.load_optimizer(self._optimizer, tree["optimizer"])
        if self._scheduler is not None and "scheduler" in tree:
            self._scheduler.load_state_dict(state.from_tree(tree["scheduler"]))
        if self._scaler is not None and "scaler" in tree:
            self._scaler.load_state_dict(state.from_tree(tree["scaler"]))

    def adopt(self, tree: Mapping[str, Any]) -> None:
        model = self._head_of(tree)
        state.adopt_module(self._head, without_attributes(model))
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
        with self._attributes.in_use(keep):
            yield
            self._hidden = self._hidden_changes()

    def _hidden_changes(self) -> list[str]:
        plain = self._attributes.plain()
        return hidden.differences(self._fingerprint_when_built, self._fingerprint(plain), plain)

    def _functions(self) -> dict[str, Any]:
        """Functions of the user's that batches go through while training and validating."""
        given, loss = self._estimator, self._forward.loss
        named = {"transform": given.transform, "val_transform": given.val_transform, "step": given.step}
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
        """Of all that the state does not hold.

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
        tensors = list(self._head.state_dict().values())
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

    @property
    def weight_column(self) -> str | None:
        return self._estimator.sample_weight_column

    def predict(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]:
        self._attributes.apply()
        size = self._estimator.batch_size
        names = [name for name in self.prediction_columns if name in batch]
        rows = len(batch[names[0]]) if names else 0
        pieces = ({name: batch[name][i : i + size] for name in names} for i in range(0, max(rows, 1), size))
        return self._forward.predictions(self._prepared(pieces), self._estimator.predict)

    def export_onnx(self, path: Path, example: Mapping[str, Any]) -> None:
        """Its inputs are what the model gets: columns after ``val_transform``, stacked as ``inputs`` says."""
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
        """Names of what predictions go through besides the model and ``predict``."""
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
