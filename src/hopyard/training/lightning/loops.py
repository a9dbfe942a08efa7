"""Lightning's loops over the batches of one visit: the same hooks, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hopyard.errors import EstimatorError, HopyardError
from hopyard.training.lightning.hooks import is_overridden, takes_index
from hopyard.training.lightning.logged import Logged
from hopyard.training.lightning.trainer import SearchTrainer
from hopyard.training.torch.forward import scalar, shape_of
from hopyard.training.torch.training import groups_of

Batches = Iterable[tuple[Any, int]]
"""What steps are given, and how many rows it has."""


class Loop:
    """What training and validation have in common."""

    step: str
    """The name of the module's method."""

    def __init__(self, trainer: SearchTrainer, logged: Logged) -> None:
        self._trainer = trainer
        self._logged = logged
        self._call = trainer.call
        self._takes_index = takes_index(getattr(trainer.lightning_module, self.step))

    def _moved(self, batches: Batches) -> Iterator[tuple[Any, int]]:
        device = self._trainer.strategy.root_device
        for batch, rows in batches:
            self._logged.of(rows)
            batch = self._call("on_before_batch_transfer", batch, 0)
            batch = self._call("transfer_batch_to_device", batch, device, 0)
            yield self._call("on_after_batch_transfer", batch, 0), rows

    def _run_step(self, batch: Any, batch_idx: int) -> Any:
        """The module's step, under the precision's context; what fails there is told with what it was given."""
        arguments = (batch, batch_idx) if self._takes_index else (batch,)
        try:
            return getattr(self._trainer.strategy, self.step)(*arguments)
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            if isinstance(error, HopyardError):
                raise
            raise EstimatorError(
                f"{self.step} failed on the batch {_described(batch)}: {error}. A batch is the feature columns and "
                "then the label columns; batch='dict' makes it a dict of columns, batch=fn whatever fn(columns) "
                "returns."
            ) from error


class Training(Loop):
    """A training pass.

    Args:
        accumulate: batches per step; a shorter group at the end is a step too.
    """

    step = "training_step"

    def __init__(self, trainer: SearchTrainer, logged: Logged, accumulate: int) -> None:
        super().__init__(trainer, logged)
        self._accumulate = accumulate

    def run(self, batches: Batches, sizes: list[int], ends_epoch: bool) -> None:
        """One pass.

        Args:
            sizes: rows of every batch, as loaded.
            ends_epoch: schedulers of the interval "epoch" step at its end.
        """
        trainer, module = self._trainer, self._trainer.lightning_module
        shares, ends = groups_of(sizes, self._accumulate)
        module.zero_grad(set_to_none=True)
        begins = True
        for number, (batch, _) in enumerate(self._moved(batches)):
            batch_idx = trainer.batches
            if self._call("on_train_batch_start", batch, batch_idx) == -1:
                raise EstimatorError(
                    "on_train_batch_start returned -1, which would skip the rest of the epoch, but a trial visits all "
                    "partitions of an epoch; return nothing."
                )
            is_end = ends is None or number in ends
            if module.automatic_optimization:
                share = None if shares is None else shares[number]
                outputs = self._automatic(batch, batch_idx, share, begins, is_end)
            else:
                outputs = self._manual(batch, batch_idx)
            if is_end:
                trainer.step_schedulers("step", batch_idx)
            if ends_epoch and number == len(sizes) - 1:
                trainer.step_schedulers("epoch", batch_idx)
            self._call("on_train_batch_end", outputs, batch, batch_idx)
            trainer.batches += 1
            begins = is_end
        module.zero_grad(set_to_none=True)

    def _manual(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        output = self._run_step(batch, batch_idx)
        outputs = dict(output) if isinstance(output, Mapping) else {} if output is None else {"loss": output}
        if "loss" in outputs:
            outputs["loss"] = scalar(outputs["loss"]).detach()
            self._logged.loss(outputs["loss"])
        return outputs

    def _automatic(
        self, batch: Any, batch_idx: int, share: float | None, begins: bool, ends: bool
    ) -> dict[str, Any]:
        trainer = self._trainer
        optimizer = trainer.optimizers[0]
        outputs: dict[str, Any] = {}

        def closure() -> torch.Tensor | None:
            loss, others = self._training_step(batch, batch_idx)
            if begins:
                self._call("on_before_zero_grad", optimizer)
                self._call("optimizer_zero_grad", trainer.current_epoch, batch_idx, optimizer)
            if loss is None:
                return None
            trainer.strategy.backward(loss if share is None else loss * share, optimizer)
            outputs.update(others, loss=loss.detach())
            self._logged.loss(loss)
            return loss.detach()

        if not ends:
            closure()
            return outputs
        wrapped = trainer.strategy._lightning_optimizers[0]
        self._call("optimizer_step", trainer.current_epoch, batch_idx, wrapped, closure)
        trainer.global_step += 1
        return outputs

    @torch.enable_grad()
    def _training_step(self, batch: Any, batch_idx: int) -> tuple[torch.Tensor | None, dict[str, Any]]:
        """The loss with its graph, or None to take no step, and what else the step returned."""
        output = self._run_step(batch, batch_idx)
        if isinstance(output, Mapping):
            if "loss" not in output:
                raise EstimatorError(
                    f"training_step returned the keys {', '.join(map(str, output))}, but a dict must have 'loss'; end "
                    "it with `return {'loss': loss, ...}`."
                )
            return scalar(output["loss"]), {key: value for key, value in output.items() if key != "loss"}
        return (None if output is None else scalar(output)), {}


class Validation(Loop):
    """A validation pass."""

    step = "validation_step"

    @torch.no_grad()
    def run(self, batches: Batches) -> None:
        """One pass; the module is left in the modes in which it was."""
        total = 0
        with _evaluating(self._trainer):
            self._call("on_validation_start")
            self._call("on_validation_epoch_start")
            for batch_idx, (batch, rows) in enumerate(self._moved(batches)):
                self._call("on_validation_batch_start", batch, batch_idx)
                output = self._run_step(batch, batch_idx)
                loss = output.get("loss") if isinstance(output, Mapping) else output
                if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                    self._logged.loss(loss)
                self._call("on_validation_batch_end", output, batch, batch_idx)
                total += rows
            self._logged.of(total)  # what is logged now is about the whole partition
            self._call("on_validation_epoch_end")
            self._call("on_validation_end")


@contextmanager
def _evaluating(trainer: SearchTrainer) -> Iterator[None]:
    """As Lightning has it: a module that was in eval mode while training stays so."""
    module = trainer.lightning_module
    modes = [(part, part.training) for part in module.modules()]
    trainer.call("on_validation_model_zero_grad")
    trainer.call("on_validation_model_eval")
    trainer.training, trainer.validating = False, True
    try:
        yield
    finally:
        trainer.validating = False
        for part, mode in modes:
            part.training = mode
    if is_overridden(module, "on_validation_model_train"):
        trainer.call("on_validation_model_train")


def batch_maker(
    kind: str | Callable[[dict[str, Any]], Any],
    features: Callable[[dict[str, Any]], list[Any]],
    labels: list[str],
) -> Callable[[dict[str, Any]], Any]:
    """From the columns of a batch to what steps are given.

    Args:
        features: gives those of a dict of columns, in their order.
        labels: names of label columns, which predictions are without.
    """
    if kind == "dict":
        return dict
    if callable(kind):
        return kind

    def make(columns: dict[str, Any]) -> Any:
        values = [*features(columns), *(columns[name] for name in labels if name in columns)]
        return values[0] if len(values) == 1 else tuple(values)

    return make


def _described(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key!r}: {shape_of(value)}" for key, value in batch.items()) + "}"
    return shape_of(batch)
