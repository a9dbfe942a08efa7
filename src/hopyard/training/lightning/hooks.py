"""Hooks of a LightningModule that a search calls, and a check that a module has no others.

Modules of ``lightning`` and of ``pytorch_lightning`` are taken alike: neither is imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from hopyard.errors import EstimatorError

_BASES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")

CALLED = frozenset(
    {
        *("configure_model", "setup", "configure_optimizers", "on_fit_start", "on_train_start"),
        *("on_train_epoch_start", "on_train_batch_start", "training_step", "on_train_batch_end"),
        *("on_before_backward", "on_after_backward", "on_before_optimizer_step", "lr_scheduler_step"),
        *("on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "validation_step"),
        *("on_validation_batch_end", "on_validation_epoch_end", "on_validation_end"),
        *("on_after_batch_transfer", "predict_step"),
    }
)
"""Hooks that a search calls."""

_DATA = "a search trains on the data that fit() is given"
_ENDS = "no worker sees where a trial ends; use on_train_epoch_start, or a callback of the search"
_STATE = "a trial's state is the module's state_dict; keep what must hop in a buffer, or in get_extra_state"
_PREDICTIONS = "predictions call predict_step alone"
_BATCHES = "give LightningEstimator batch=fn(columns), or change batches in on_after_batch_transfer"
_MODES = "validation runs in eval mode, and each module has its own mode back afterwards"
_GRADIENTS = "use on_before_optimizer_step, which sees the gradients of a step"
_OWN = "a search puts its own in its place"
_REFUSED = {
    "on_train_epoch_end": "an epoch is trained in parts, by several workers, and none sees all of it; log values and "
    "torchmetrics objects in training_step, and do the rest in on_train_epoch_start",
    "prepare_data": _DATA,
    "train_dataloader": _DATA,
    "val_dataloader": _DATA,
    "configure_callbacks": "give the search callbacks= and patience=, which see every epoch",
    "configure_sharded_model": "write configure_model, its successor",
    "configure_gradient_clipping": "give LightningEstimator gradient_clip=, or use on_before_optimizer_step",
    "optimizer_step": "let a scheduler with the interval 'step' change rates, and on_before_optimizer_step gradients",
    "optimizer_zero_grad": _GRADIENTS,
    "on_before_zero_grad": "use on_train_batch_end, which comes after each step",
    "backward": _GRADIENTS,
    "on_before_batch_transfer": _BATCHES,
    "transfer_batch_to_device": _BATCHES,
    "on_validation_model_zero_grad": _MODES,
    "on_validation_model_eval": _MODES,
    "on_validation_model_train": _MODES,
    "on_save_checkpoint": _STATE,
    "on_load_checkpoint": _STATE,
    "on_fit_end": _ENDS,
    "on_train_end": _ENDS,
    "teardown": _ENDS,
    "log": _OWN,
    "optimizers": _OWN,
}
_NEEDED = {
    "training_step": "training_step(self, batch, batch_idx) that returns the loss",
    "validation_step": "validation_step(self, batch, batch_idx) that logs val_loss, since trials are compared by "
    "what validation gives",
    "configure_optimizers": "configure_optimizers(self) that returns an optimizer",
}


def base_of(module: Any) -> type | None:
    """The class LightningModule that ``module`` derives from; None if from none."""
    for base in type(module).__mro__:
        if base.__name__ == "LightningModule" and base.__module__ in _BASES:
            return base
    return None


def is_overridden(module: Any, name: str) -> bool:
    """Whether the module has a method of its own for the hook ``name``."""
    return getattr(type(module), name, None) is not getattr(base_of(module), name, None) or name in vars(
        module
    )


def check_module(module: Any) -> None:
    """
    Raises:
        EstimatorError: the object is no LightningModule, lacks a method, or has a hook that a search does not call.
    """
    kind = type(module).__name__
    if isinstance(module, type):
        raise EstimatorError(f"module={module.__name__} is a class; give an object: {module.__name__}(...).")
    if base_of(module) is None:
        instead = (
            " A torch.nn.Module goes into TorchEstimator." if isinstance(module, torch.nn.Module) else ""
        )
        raise EstimatorError(f"module is a {kind}, but must be a LightningModule.{instead}")
    for name, needed in _NEEDED.items():
        if not is_overridden(module, name):
            raise EstimatorError(f"{kind} has no {name}; define {needed}.")
    if not module.automatic_optimization:
        raise EstimatorError(
            f"{kind} sets automatic_optimization = False, but a search takes the steps of its one optimizer itself. "
            "Return the loss from training_step, and one optimizer from configure_optimizers; networks that train in "
            "turns, such as GANs, have no place in a search."
        )
    for name, instead in refused_hooks(module).items():
        if is_overridden(module, name):
            raise EstimatorError(
                f"{kind} has {name}, which has no place in a search: {instead}. Take it out."
            )


def refused_hooks(module: Any) -> dict[str, str]:
    """Hooks of the installed Lightning that a search does not call, each with what to use instead.

    Hooks of ``Trainer.test`` are not among them: ``Trainer.fit`` does not call these either.
    """
    base = base_of(module)
    assert base is not None
    hooks = [
        name
        for part in base.__mro__
        if part.__module__.endswith(".core.hooks")
        for name, value in vars(part).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]
    uncalled = [name for name in {**_REFUSED, **dict.fromkeys(hooks)} if name not in CALLED]
    return {
        name: _REFUSED.get(name, _PREDICTIONS if "predict" in name else "it is never called")
        for name in uncalled
        if "test" not in name and name != "predict_dataloader"
    }


def takes_index(step: Callable[..., Any]) -> bool:
    """Whether a step takes the batch's index: Lightning lets it be left out."""
    parameters = inspect.signature(step).parameters.values()
    several = sum(parameter.kind != parameter.KEYWORD_ONLY for parameter in parameters) > 1
    return several or any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters)
