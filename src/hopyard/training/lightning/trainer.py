"""What a module sees as ``self.trainer``.

Strategy and precision plugin are Lightning's own, for one device; what the Trainer's loops keep is what a search
knows. The hooks around a step of the optimizer are called by the plugin, in Lightning's order.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hopyard.errors import EstimatorError
from hopyard.training.estimator import UNKNOWN_BATCHES, Context, batch_sizes, epoch_steps
from hopyard.training.lightning.hooks import base_of, part_of_lightning
from hopyard.training.lightning.logged import Logged

if TYPE_CHECKING:
    from hopyard.training.lightning.estimator import LightningEstimator

_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
_OF_LOGGERS = {
    *("experiment", "log_metrics", "log_hyperparams", "log_graph", "log_image", "log_table", "log_text"),
    *("log_dir", "save_dir"),
}
"""Attributes of Lightning's loggers."""


class SearchTrainer:
    """``self.trainer`` of a module, while it is trained and validated.

    Attributes:
        current_epoch: from 0.
        global_step: steps of optimizers so far, over all epochs.
        batches: batches trained so far in this epoch, over all partitions.
        callback_metrics: when an epoch begins, the values of the one before, by the names of histories.
    """

    is_global_zero = True
    global_rank = local_rank = node_rank = 0
    world_size = num_devices = num_nodes = 1
    max_steps = -1
    gradient_clip_algorithm = None
    barebones = sanity_checking = testing = predicting = False
    logger = progress_bar_callback = None

    def __init__(self, estimator: LightningEstimator, context: Context, device: torch.device) -> None:
        module = estimator.model
        plugins = part_of_lightning(module, "plugins")
        self.precision_plugin = (
            plugins.Precision()
            if estimator.precision == "fp32"
            else plugins.MixedPrecision(_PRECISIONS[estimator.precision], device.type)
        )
        strategies = part_of_lightning(module, "strategies")
        self.strategy = strategies.SingleDeviceStrategy(device, precision_plugin=self.precision_plugin)
        self.strategy.connect(module)
        self.profiler = part_of_lightning(module, "profilers").PassThroughProfiler()
        self.lightning_module: Any = module
        self.model = module
        self.callbacks: list[Any] = []
        self.loggers: list[Any] = _NoLoggers()
        self.training = self.validating = False
        self.current_epoch = self.batches = 0
        self._steps = _Steps()
        self.callback_metrics: dict[str, torch.Tensor] = {}
        sizes = [len(batch_sizes(rows, estimator.batch_size)) for rows in context.partition_rows] or [
            UNKNOWN_BATCHES
        ]
        steps = epoch_steps(context, estimator.batch_size, estimator.accumulate)
        self._asked = ""
        self._configuring = False
        self._epochs, self._epoch_steps = context.num_epochs, steps
        self.num_training_batches = sum(sizes)
        self.accumulate_grad_batches = estimator.accumulate
        self.gradient_clip_val = estimator.gradient_clip

    @property
    def max_epochs(self) -> int:
        self._note("max_epochs")
        return self._epochs

    @property
    def estimated_stepping_batches(self) -> int:
        """Steps of the optimizer in all epochs, for learning-rate schedulers."""
        self._note("estimated_stepping_batches")
        return self.steps(self._epochs)

    def steps(self, epochs: int) -> int:
        """Steps of the optimizer in so many epochs."""
        return self._epoch_steps * epochs

    def asks_epochs(self) -> str:
        """Where the module asked for the number of epochs, but for ``configure_optimizers`` and validation."""
        return self._asked

    def _note(self, name: str) -> None:
        if not (self._configuring or self.validating):
            self._asked = (
                self._asked or f"the module uses self.trainer.{name} outside of configure_optimizers"
            )

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        made: list[torch.optim.Optimizer] = self.strategy.optimizers
        return made

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        made: list[Any] = self.strategy.lr_scheduler_configs
        return made

    @property
    def global_step(self) -> int:
        return self._steps.taken

    @global_step.setter
    def global_step(self, value: int) -> None:
        self._steps.taken = value

    @property
    def should_stop(self) -> bool:
        return False

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        raise EstimatorError(
            "The module set self.trainer.should_stop, but whether a trial goes on is decided by the search: give it "
            "patience=, or use ASHA."
        )

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        known = {*vars(self), *(name for name in vars(kind) if not callable(getattr(kind, name)))}
        there = sorted(name for name in known if not name.startswith("_"))
        raise AttributeError(
            f"The module used self.trainer.{name}, but a search trains without Lightning's Trainer; of it there are "
            f"{', '.join(there)}. Give the module what else it needs when it is made."
        )

    def call(self, hook: str, *arguments: Any) -> Any:
        """Call a hook of the module."""
        return getattr(self.lightning_module, hook)(*arguments)

    @contextmanager
    def attached(self, logged: Logged) -> Iterator[None]:
        """The module, and modules in it, have this trainer, and tell ``logged`` what they log.

        Raises:
            EstimatorError: within, the module used a logger, of which there is none.
        """
        base = base_of(self.lightning_module)
        assert base is not None
        parts: list[Any] = [part for part in self.lightning_module.modules() if isinstance(part, base)]
        before = [(part._trainer, vars(part).get("log")) for part in parts]
        for part in parts:
            _attach(part, self, logged)
        try:
            yield
        except AttributeError as error:
            if error.obj is None and error.name in _OF_LOGGERS:
                raise _no_logger(f"logger.{error.name}") from error
            raise
        finally:
            for part, (trainer, log) in zip(parts, before, strict=True):
                _attach(part, trainer, log)

    def configure(self) -> None:
        """Call the module's ``configure_optimizers``.

        Raises:
            EstimatorError: it gives none, or what hopping has no place for.
        """
        module = self.lightning_module
        self._configuring = True  # what schedules come to is seen in them
        self.strategy.setup_optimizers(self)
        self._configuring = False
        made = [type(optimizer).__name__ for optimizer in self.optimizers]
        if made == ["_MockOptimizer"]:
            raise EstimatorError(
                "configure_optimizers returned None, so nothing would be trained; return an optimizer."
            )
        if "LBFGS" in made:
            raise EstimatorError(
                "configure_optimizers returned LBFGS, which evaluates the loss several times a step, which is not "
                "possible; use Adam."
            )
        for config in self.lr_scheduler_configs:
            if config.reduce_on_plateau and config.interval == "step":
                raise EstimatorError(
                    "configure_optimizers gave ReduceLROnPlateau the interval 'step', but what it monitors is known "
                    "when an epoch has ended; give it 'epoch'."
                )
        if not module.automatic_optimization:
            for optimizer in self.strategy._lightning_optimizers:
                optimizer._on_after_step = self._steps.count

    def step_schedulers(self, interval: str, batch_idx: int) -> None:
        """Those of this interval whose turn it is, but for ``ReduceLROnPlateau``."""
        if not self.lightning_module.automatic_optimization:
            return
        number = 1 + (batch_idx if interval == "step" else self.current_epoch)
        with warnings.catch_warnings():
            if getattr(self.precision_plugin, "scaler", None) is not None:
                # A step that the scaler skips, as it does first of all, looks like a wrong order of calls.
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step\\(\\)` before")
            for config in self.lr_scheduler_configs:
                if (
                    config.interval == interval
                    and not config.reduce_on_plateau
                    and number % config.frequency == 0
                ):
                    self.call("lr_scheduler_step", config.scheduler, None)

    def begin_epoch(self, epoch: int, history: Mapping[str, float]) -> None:
        """The first visit of an epoch begins: tell ``ReduceLROnPlateau`` what the one before gave.

        Raises:
            EstimatorError: what one of them monitors is not among it.
        """
        self.batches = 0
        self.callback_metrics = {name: torch.tensor(value) for name, value in history.items()}
        if not history or not self.lightning_module.automatic_optimization:
            return
        self.current_epoch = epoch - 1
        for config in self.lr_scheduler_configs:
            if config.reduce_on_plateau and epoch % config.frequency == 0:
                value = _monitored(config, history)
                if value is not None:
                    self.call("lr_scheduler_step", config.scheduler, value)


class _Steps:
    """Counts steps of optimizers, which hold this instead of the trainer that holds them."""

    taken = 0

    def count(self) -> None:
        self.taken += 1


class _NoLoggers(list[Any]):
    def __getitem__(self, place: Any) -> Any:
        raise _no_logger(f"loggers[{place!r}]")


def _no_logger(used: str) -> EstimatorError:
    return EstimatorError(
        f"The module used self.{used}, but a search has no logger of Lightning's: self.logger is None, as with "
        "Trainer(logger=False). Log numbers with self.log(name, value), which histories hold and the search's "
        "callbacks= write to TensorBoard, MLflow or W&B; put all else behind `if self.logger is not None`."
    )


def _attach(module: Any, trainer: SearchTrainer | None, log: Any) -> None:
    module._trainer = trainer
    vars(module).pop("log", None)  # of this object; that of its class comes forth
    if log is not None:
        vars(module)["log"] = log


def _monitored(config: Any, history: Mapping[str, float]) -> float | None:
    name = config.monitor
    plain = name
    for prefix in ("val_", "val/", "train_", "train/"):
        plain = plain.removeprefix(prefix)
    phases = ("train", "val") if name.startswith("train") else ("val", "train")
    for known in (name, *(f"{phase}_{plain}" for phase in phases)):
        if known in history:
            return history[known]
    if config.strict:
        raise EstimatorError(
            f"ReduceLROnPlateau monitors {name!r}, but the last epoch gave {', '.join(history)}. Monitor one of "
            "these, or log it."
        )
    return None
