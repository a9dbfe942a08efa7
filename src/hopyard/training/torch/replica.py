"""Replica of a PyTorch model: model, optimizer and the rest on a device."""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopyard.data.arguments import ColumnSelection
from hopyard.data.contract import RowSource
from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError, HopyardError, WorkerMismatchError
from hopyard.objects import Tensor
from hopyard.training.estimator import Context, OneBatch, Replica, Visit, batch_sizes, epoch_steps
from hopyard.training.metric import MetricSet
from hopyard.training.torch import hidden, state
from hopyard.training.torch.attributes import KEY, Attributes, Name, Owner, owners, without_attributes
from hopyard.training.torch.bf16 import gain_of_bf16
from hopyard.training.torch.binding import Binding, as_tensors
from hopyard.training.torch.export import export_onnx
from hopyard.training.torch.forward import Forward
from hopyard.training.torch.loss import Loss
from hopyard.training.torch.optim import build_optimizer, build_scheduler, options
from hopyard.training.torch.ownership import claim
from hopyard.training.torch.pack import (
    gain_together,
    is_worth_measuring,
    train_together,
    validate_together,
    width_of,
)
from hopyard.training.torch.session import Flags, resolve_device
from hopyard.training.torch.signatures import Parts, is_taped, signature_of
from hopyard.training.torch.stack import chain_of
from hopyard.training.torch.taped import Tapes
from hopyard.training.torch.training import Sums, TrainingPass
from hopyard.training.torch.trunk import Trunk, TrunkBinding, WithTrunk
from hopyard.training.torch.validation import measure
from hopyard.training.transforms import transformed
from hopyard.training.unchanged import Unchanged
from hopyard.wording import some_names

_log = logging.getLogger("hopyard")


class TorchReplica(Replica):
    """See :class:`hopyard.training.estimator.Replica`; the arguments' meaning is TorchEstimator's."""

    framework = "torch"
    module: torch.nn.Module  # with the trunk, if there is one; what is trained is the head
    _pass: type[TrainingPass] = TrainingPass
    _trunk: Trunk | None = None
    _is_given_out = False

    @property
    def base_weights(self) -> str | None:
        return None if self._frozen_base is None else self._frozen_base.digest

    @property
    def base_nbytes(self) -> int:
        return 0 if self._frozen_base is None else self._frozen_base.nbytes

    @property
    def weight_column(self) -> str | None:
        column: str | None = self._estimator.sample_weight_column
        return column

    _against_large_gradients = "set gradient_clip"

    def __init__(self, estimator: Any, context: Context) -> None:
        self._estimator = estimator
        self._graph_streams = context.graph_streams
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
        self._tapes: Tapes = {}
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
            return "", "only models of a TorchEstimator train together"
        return signature_of(self.parts())

    @functools.cached_property
    def _chain(self) -> list[torch.nn.Module] | str:
        return chain_of(self._head) if self._frozen_base is None else "it has a base"

    def parts(self) -> Parts:
        """Parts that a pack works on."""
        return Parts(
            self._estimator,
            self._head,
            self._chain,
            self._forward,
            self._optimizer,
            self._scheduler,
            self._device,
            self._flags,
            self.trunk_weights,
            self._frozen_base,
            self._marks,
            self._tapes,
            self._graph_streams,
        )

    def _marks(self) -> dict[Name, Any]:
        """Marks of all that the user's model and functions keep beside parameters and buffers."""
        return hidden.of_globals(self._functions()) | self._fingerprint(())

    @property
    def signature(self) -> str:
        return self._packing[0]

    @property
    def trains_alone(self) -> str:
        found = width_of(self.signature) if self.signature else None
        return found if isinstance(found, str) else self._packing[1]

    def may_pack(self, visit: Visit | None = None) -> bool:
        if self._graph_streams or not is_taped(self.parts()):
            return True
        batches = 0 if visit is None else len(batch_sizes(len(visit.rows), self.batch_size))
        return is_worth_measuring(self.signature, batches)

    @property
    def packs_alone(self) -> bool:
        return self._graph_streams > 0

    @classmethod
    def train_together(
        cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
    ) -> list[dict[str, list[float]] | Exception] | None:
        return train_together(replicas, visit, seeds)

    @classmethod
    def gain_together(cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]) -> float | None:
        return gain_together(replicas, visit, seeds)

    def gain_of_bf16(self, visit: Visit) -> float | None:
        return gain_of_bf16(self, visit) if type(self) is TorchReplica else None

    @classmethod
    def validate_together(
        cls, replicas: Sequence[Any], visit: Visit, seeds: Sequence[int]
    ) -> list[MetricSet | Exception] | None:
        return validate_together(replicas, visit, seeds)

    def train(self, visit: Visit) -> dict[str, list[float]]:
        with self.in_training(visit) as (training, sums):
            training.run(self.training_batches(visit), batch_sizes(len(visit.rows), self.batch_size), sums)
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
        sums = Sums(str(visit), self._forward.loss_is_sum, self._against_large_gradients)
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

    def training_batches(self, visit: Visit) -> Iterator[tuple[Batch, int]]:
        """The batches of a training visit on the device, each with its number of rows."""
        return self._placed(self._training_batches(visit))

    def _placed(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Batch, int]]:
        place, rows_of = self._forward.binding.place, self._forward.binding.rows
        for batch in batches:
            placed = place(batch)
            yield placed, rows_of(placed)

    def validation_batches(self, visit: Visit) -> Iterator[Batch]:
        """The batches of a validating visit on the device."""
        return map(self._forward.binding.place, self._validation_batches(visit))

    def _training_batches(self, visit: Visit) -> Iterable[Mapping[str, Any]]:
        given = self._estimator
        visit = self._read(visit)
        batches = visit.training_batches(given.batch_size, self._columns(visit, given.transform), "torch")
        if given.transform is None:
            return batches
        return transformed(map(as_tensors, batches), given.transform, visit, "transform")

    def _validation_batches(self, visit: Visit) -> Iterable[Mapping[str, Any]]:
        given = self._estimator
        visit = self._read(visit)
        batches = visit.validation_batches(
            given.batch_size, self._columns(visit, given.val_transform), "torch"
        )
        if given.val_transform is None:
            return batches
        return transformed(map(as_tensors, batches), given.val_transform, visit, "val_transform")

    def _columns(self, visit: Visit, transform: Any) -> ColumnSelection:
        """Columns that a pass over the visit reads, by names in a batch where the model alone sees them."""
        binding = self._forward.binding
        if transform is not None or self._forward.loss is None or self._trunk is not None:
            return binding.columns(every_feature=transform is not None or self._estimator.step is not None)
        return (
            binding.grouped(visit.rows.schema)
            if isinstance(visit.rows, RowSource)
            else binding.columns(False)
        )

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
        return measure(self._forward, batches, self.fresh_metrics(), self._estimator.step_metrics())

    def fresh_metrics(self) -> MetricSet:
        """Metrics of the validation, that have seen nothing."""
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

    def _beyond_base(
        self, model: Any, values: Mapping[str, Any] | None, differs: type[HopyardError] | None = None
    ) -> dict[str, Any]:
        """The state dict in the tree of a model. What the base has of it is that of the base, so nothing writes to it.

        Args:
            values: ``plain_values`` of the head.
            differs: the error if the model was trained over another base; None: what differs becomes the model's own.
        """
        tree = dict(without_attributes(model))
        if self._frozen_base is None:
            return tree
        other = []
        for name, value in (self._values() if values is None else values).items():
            shared = self._frozen_base.tree_of(value)
            if shared is None or name not in tree:
                continue
            if tree[name] is shared or tree[name].digest == shared.digest:
                tree[name] = value
            elif differs is None:
                value.data = value.data.clone()
            else:
                other.append(name)
        if other and differs is not None:
            raise differs(
                f"The state is that of a model over another base than the estimator function now gives; "
                f"{some_names(other, 4)} differ. Give the base that it was trained with: load the same weights, and "
                "call torch.manual_seed before layers with random weights are made."
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
        differs = WorkerMismatchError if "optimizer" in tree else None
        state.load_module(self._head, self._beyond_base(model, values, differs), values)
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
        state.adopt_module(self._head, self._beyond_base(model, values, EstimatorError), values)
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
        base = self._frozen_base
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
