"""``self.trainer`` of a LightningModule in a search, and the optimizer and schedule that the module configures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hopyard.errors import EstimatorError
from hopyard.training.estimator import UNKNOWN_BATCHES, Context, batch_sizes, epoch_steps

_OF_THE_SEARCH = {"asks_epochs", "batches", "configured_by", "steps_per_epoch"}
"""Attributes of SearchTrainer that Lightning's Trainer has not."""


class SearchTrainer:
    """A search as a module sees it. Other attributes of Lightning's Trainer raise an error that lists these.

    Attributes:
        current_epoch: from 0.
        global_step: steps of the optimizer so far, over all epochs.
        batches: batches trained so far in this epoch, over all partitions.
        num_training_batches: batches of an epoch.
        steps_per_epoch: of the optimizer.
        asks_epochs: where the module asked for the number of epochs, but for ``configure_optimizers`` and validation.
        training, validating, predicting: which of these the module is used for.
    """

    is_global_zero = True
    global_rank = local_rank = node_rank = 0
    world_size = num_devices = num_nodes = 1
    sanity_checking = testing = False
    logger = progress_bar_callback = None
    _is_made = False

    def __init__(
        self, context: Context, batch_size: int, accumulate: int, gradient_clip: float | None
    ) -> None:
        self.training = self.validating = self.predicting = False
        self.current_epoch = self.global_step = self.batches = 0
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_scheduler_configs: list[Schedule] = []
        self.loggers: list[Any] = []
        self.callbacks: list[Any] = []
        self.accumulate_grad_batches = accumulate
        self.gradient_clip_val = gradient_clip
        sizes = [len(batch_sizes(rows, batch_size)) for rows in context.partition_rows] or [UNKNOWN_BATCHES]
        self.num_training_batches: int = sum(sizes)
        self._epochs = context.num_epochs
        self.steps_per_epoch: int = epoch_steps(context, batch_size, accumulate)
        self.asks_epochs: str = ""
        self._is_configuring = False
        self._is_made = True

    @property
    def max_epochs(self) -> int:
        self._note_question("max_epochs")
        return self._epochs

    @property
    def estimated_stepping_batches(self) -> int:
        """Steps of the optimizer in all epochs, for learning-rate schedulers."""
        self._note_question("estimated_stepping_batches")
        return self.steps_per_epoch * self._epochs

    def _note_question(self, name: str) -> None:
        if not (self._is_configuring or self.validating or self.asks_epochs):
            self.asks_epochs = f"the module uses self.trainer.{name} outside of configure_optimizers"

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_made and name not in vars(self):
            raise self._missing(name)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise self._missing(name)

    def _missing(self, name: str) -> AttributeError:
        known = {*vars(self), *vars(type(self))} - _OF_THE_SEARCH
        instead = (
            "Whether a trial goes on is decided by the search: give it patience=, or use ASHA."
            if name == "should_stop"
            else "Give the module what else it needs when it is made."
        )
        return AttributeError(
            f"The module used self.trainer.{name}, but a search trains without Lightning's Trainer; of it there are "
            f"{', '.join(sorted(each for each in known if not each.startswith('_')))}. {instead}"
        )

    def configured_by(self, module: Any) -> tuple[torch.optim.Optimizer, Schedule | None]:
        """The optimizer and the schedule that the module's ``configure_optimizers`` returns.

        Raises:
            EstimatorError: it returns others than one optimizer and at most one schedule, or what cannot hop.
        """
        self._is_configuring = (
            True  # schedules that follow from the number of epochs are found by comparing them
        )
        optimizer, schedule = _configured(module.configure_optimizers())
        self._is_configuring = False
        self.optimizers = [optimizer]
        self.lr_scheduler_configs = [] if schedule is None else [schedule]
        return optimizer, schedule


@dataclass(frozen=True)
class Schedule:
    """A scheduler with the options that Lightning's ``configure_optimizers`` gives it."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    reduce_on_plateau: bool = False
    name: str | None = None

    def monitored(self, history: Mapping[str, float]) -> float | None:
        """The value of the last epoch that ReduceLROnPlateau looks at; None: it is missing, and need not be there.

        Raises:
            EstimatorError: it is missing.
        """
        name = self.monitor or "val_loss"
        plain = name
        for prefix in ("val_", "val/", "train_", "train/"):
            plain = plain.removeprefix(prefix)
        phases = ("train", "val") if name.startswith("train") else ("val", "train")
        for known in (name, *(f"{phase}_{plain}" for phase in phases)):
            if known in history:
                return history[known]
        if not self.strict:
            return None
        raise EstimatorError(
            f"ReduceLROnPlateau monitors {name!r}, but the last epoch gave {', '.join(history)}. Monitor one of "
            "these, or log it."
        )


def _configured(returned: Any) -> tuple[torch.optim.Optimizer, Schedule | None]:
    optimizers, schedulers = returned, []
    if isinstance(returned, (list, tuple)) and len(returned) == 2 and isinstance(returned[0], (list, tuple)):
        optimizers, schedulers = returned
    optimizers = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
    schedulers = list(schedulers) if isinstance(schedulers, (list, tuple)) else [schedulers]
    monitor = None
    if len(optimizers) == 1 and isinstance(optimizers[0], Mapping):
        options = optimizers[0]
        optimizers, monitor = [options.get("optimizer")], options.get("monitor")
        schedulers = [] if options.get("lr_scheduler") is None else [options["lr_scheduler"]]
    if len(optimizers) != 1 or len(schedulers) > 1:
        raise EstimatorError(
            f"configure_optimizers returned {len(optimizers)} optimizers and {len(schedulers)} schedulers, but a "
            "search steps one optimizer with one schedule. Give one optimizer several parameter groups, and chain "
            "schedulers with torch.optim.lr_scheduler.SequentialLR or ChainedScheduler."
        )
    return _checked(optimizers[0]), _scheduled(schedulers[0], monitor) if schedulers else None


def _checked(optimizer: Any) -> torch.optim.Optimizer:
    if optimizer is None:
        raise EstimatorError(
            "configure_optimizers returned None, so nothing would be trained; return an optimizer."
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise EstimatorError(
            f"configure_optimizers returned a {type(optimizer).__name__}, but must return an optimizer of torch.optim, "
            "or {'optimizer': ..., 'lr_scheduler': ...}."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise EstimatorError(
            "configure_optimizers returned LBFGS, which evaluates the loss several times a step, which is not "
            "possible; use Adam."
        )
    return optimizer


def _scheduled(given: Any, monitor: str | None) -> Schedule:
    options = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    unknown = options.keys() - Schedule.__dataclass_fields__.keys()
    if unknown or "scheduler" not in options:
        raise EstimatorError(
            f"configure_optimizers gave a schedule with the keys {', '.join(options)}, but it must have 'scheduler' "
            f"and may have {', '.join(name for name in Schedule.__dataclass_fields__ if name != 'scheduler')}."
        )
    options.setdefault("monitor", monitor)
    options.setdefault(
        "reduce_on_plateau", isinstance(options["scheduler"], torch.optim.lr_scheduler.ReduceLROnPlateau)
    )
    schedule = Schedule(**options)
    if schedule.interval not in ("step", "epoch"):
        raise EstimatorError(
            f"configure_optimizers gave a schedule the interval {schedule.interval!r}, but must give 'step' or 'epoch'."
        )
    if schedule.reduce_on_plateau and schedule.interval == "step":
        raise EstimatorError(
            "configure_optimizers gave ReduceLROnPlateau the interval 'step', but what it monitors is known "
            "when an epoch has ended; give it 'epoch'."
        )
    return schedule
