"""What of a LightningModule a search calls, and what it has no place for.

Modules of ``lightning`` and of ``pytorch_lightning`` are taken alike: neither is imported here, and what a module
needs of its own is found through its base class.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from hopyard.errors import EstimatorError

_BASE = ".core.module"
_ROOTS = ("lightning.pytorch", "pytorch_lightning")

_DATA = "a search trains on the data that fit() is given"
_ENDS = "no worker sees where a trial ends; use on_train_epoch_end, or a callback of the search"
_STATE = "a trial's state is the module's state_dict; keep what must hop in a buffer, or in get_extra_state"
_PREDICTIONS = "predictions call predict_step alone"
_REFUSED = {
    "prepare_data": _DATA,
    "train_dataloader": _DATA,
    "val_dataloader": _DATA,
    "configure_callbacks": "give the search callbacks= and patience=, which see every epoch",
    "configure_sharded_model": "write configure_model, its successor",
    "on_save_checkpoint": _STATE,
    "on_load_checkpoint": _STATE,
    "on_fit_end": _ENDS,
    "on_train_end": _ENDS,
    "teardown": _ENDS,
    "on_predict_start": _PREDICTIONS,
    "on_predict_end": _PREDICTIONS,
    "on_predict_epoch_start": _PREDICTIONS,
    "on_predict_epoch_end": _PREDICTIONS,
    "on_predict_batch_start": _PREDICTIONS,
    "on_predict_batch_end": _PREDICTIONS,
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
        if base.__name__ == "LightningModule" and base.__module__ in {root + _BASE for root in _ROOTS}:
            return base
    return None


def part_of_lightning(module: Any, name: str) -> Any:
    """The module ``name`` of the package that ``module`` was written for, such as ``strategies``."""
    base = base_of(module)
    assert base is not None
    return importlib.import_module(f"{base.__module__.removesuffix(_BASE)}.{name}")


def is_overridden(module: Any, name: str) -> bool:
    """Whether the module has a method of its own for the hook ``name``."""
    return getattr(type(module), name, None) is not getattr(base_of(module), name, None) or name in vars(
        module
    )


def check_module(module: Any) -> None:
    """
    Raises:
        EstimatorError: it is no LightningModule, lacks a method, or has one that a search has no place for.
    """
    kind = type(module).__name__
    if isinstance(module, type):
        raise EstimatorError(f"module={module.__name__} is a class; give an object: {module.__name__}(...).")
    if base_of(module) is None:
        instead = (
            " A torch.nn.Module goes into TorchEstimator." if isinstance(module, torch.nn.Module) else ""
        )
        raise EstimatorError(f"module is a {kind}, but must be a LightningModule.{instead}")
    for name, what in _NEEDED.items():
        if not is_overridden(module, name):
            raise EstimatorError(f"{kind} has no {name}; define {what}.")
    for name, instead in _REFUSED.items():
        if is_overridden(module, name):
            raise EstimatorError(
                f"{kind} has {name}, which has no place in a search: {instead}. Take it out."
            )
    for name in ("training_step", "validation_step"):
        if "dataloader_iter" in inspect.signature(getattr(module, name)).parameters:
            raise EstimatorError(
                f"{name} of {kind} takes a dataloader_iter, but a search gives it batches; write "
                f"{name}(self, batch, batch_idx)."
            )


def takes_index(step: Callable[..., Any]) -> bool:
    """Whether a step takes the batch's index: Lightning lets it be left out."""
    parameters = inspect.signature(step).parameters.values()
    several = sum(parameter.kind != parameter.KEYWORD_ONLY for parameter in parameters) > 1
    return several or any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters)
