"""State of modules and optimizers to trees of tensors, and back, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hopyard.errors import EstimatorError
from hopyard.objects import Tensor
from hopyard.objects.torch import NAMES, from_bytes, is_dense, to_tensor
from hopyard.training.estimator import another_architecture
from hopyard.wording import some_names

_DROP = object()


def to_tree(value: Any, path: str) -> Any:
    """``value`` as a tree; tensors on the CPU share its memory.

    Raises:
        EstimatorError: something in it is neither a tensor nor a plain value; ``path`` says where.
    """
    return _convert(value, path, strict=True)


def plain_tree(value: Any) -> Any:
    """``value`` as a tree, without values that are neither tensors nor plain (functions, counters of constants)."""
    tree = _convert(value, "", strict=False)
    return {} if tree is _DROP else tree


def optimizer_tree(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state as a tree; its groups without values that are not plain."""
    return {
        key: plain_tree(value) if key == "param_groups" else to_tree(value, f"optimizer.{key}")
        for key, value in optimizer.state_dict().items()
    }


def _convert(value: Any, path: str, strict: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return _tensor(value, path)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if type(value) in (list, tuple):
        items = [_convert(item, f"{path}[{i}]", strict) for i, item in enumerate(value)]
        return _DROP if any(item is _DROP for item in items) else type(value)(items)
    if type(value) is dict or (strict and isinstance(value, Mapping)):
        pairs = {key: _convert(item, f"{path}.{key}", strict) for key, item in value.items()}
        return {key: item for key, item in pairs.items() if item is not _DROP}
    if strict:
        raise EstimatorError(
            f"The state {path} is a {type(value).__name__}, but only tensors, numbers, strings and lists, "
            "tuples and dicts of them can be kept; leave it out of the state dict."
        )
    return _DROP


def _tensor(tensor: torch.Tensor, path: str) -> Tensor:
    if not is_dense(tensor):
        raise EstimatorError(
            f"The state {path} is a tensor of layout {tensor.layout} on {tensor.device}, but only dense ones "
            "can be kept; make it dense in the model."
        )
    if tensor.dtype not in NAMES:
        raise EstimatorError(
            f"The state {path} is a tensor of {tensor.dtype}, which cannot be kept; "
            f"kept are {', '.join(str(dtype) for dtype in NAMES)}."
        )
    return to_tensor(tensor)


def from_tree(tree: Any) -> Any:
    """The value of a tree; tensors are new, on the CPU, and writable."""
    if isinstance(tree, Tensor):
        # A state may be mapped from a file: what trains must be a copy.
        return from_bytes(tree.dtype, tree.shape, np.array(tree.data, np.uint8))
    if isinstance(tree, dict):
        return {key: from_tree(item) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(from_tree(item) for item in tree)
    return tree


def load_module(module: torch.nn.Module, tree: Any) -> None:
    """Load a model's tree into a module of the same architecture. In place of a tensor the tree may have the module's
    own, which stays as it is.

    Raises:
        EstimatorError: names or shapes differ; which do.
    """
    own = {name for name, value in tree.items() if isinstance(value, torch.Tensor)}
    given = from_tree({name: value for name, value in tree.items() if name not in own})
    try:
        found = module.load_state_dict(given, strict=not own)
        if found.unexpected_keys or not own.issuperset(found.missing_keys):
            lacks = some_names(sorted(set(found.missing_keys) - own), 4)
            raise RuntimeError(f"it lacks {lacks}; it has {some_names(found.unexpected_keys, 4)} too much")
    except RuntimeError as error:
        raise EstimatorError(
            f"The state is that of another model than the estimator function now builds: {error}\n"
            "Build the model that the state came from: same layers, names and sizes for the same parameters."
        ) from error


def load_optimizer(optimizer: torch.optim.Optimizer, tree: Any) -> None:
    """Load an optimizer's tree into one made for the same parameters.

    Raises:
        EstimatorError: it has other parameter groups.
    """
    state = from_tree(tree)
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=False):
        # What a tree cannot hold (functions) stays as the constructor set it.
        saved.update({key: value for key, value in group.items() if key not in saved and key != "params"})
    kept = {key: dict(entry) for key, entry in state["state"].items() if isinstance(entry, dict)}
    try:
        optimizer.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise EstimatorError(
            f"The state is that of another optimizer than the estimator function now builds: {error}. "
            "Build the optimizer that the state came from, over the same parameters."
        ) from error
    _restore_forms(optimizer, kept)


def adopt_module(module: torch.nn.Module, tree: Any) -> None:
    """Load the model's tree of another trial.

    Raises:
        EstimatorError: it is that of another architecture.
    """
    try:
        load_module(module, tree)
    except EstimatorError as error:
        raise another_architecture(error) from error


def adopt_optimizer(optimizer: torch.optim.Optimizer, tree: Any) -> None:
    """Load the accumulated state of another optimizer, and keep the options (``lr``, ...) of this one.

    An optimizer of another kind (its options have other names) begins without accumulated state.

    Raises:
        EstimatorError: it was made for other parameters.
    """
    own, saved = optimizer_tree(optimizer)["param_groups"], tree["param_groups"]
    if [group.keys() for group in own] != [group.keys() for group in saved]:
        return
    options = [{**group} for group in optimizer.param_groups]
    load_optimizer(optimizer, tree)
    for group, kept in zip(optimizer.param_groups, options, strict=True):
        group.update(kept)


def adopt_scheduler(scheduler: torch.optim.lr_scheduler.LRScheduler, tree: Any) -> None:
    """Bring a new scheduler, with its own rates, to the step that another one had come to."""
    if isinstance(
        scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
    ):  # its steps follow from what it has seen
        scheduler.load_state_dict(from_tree(tree))
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler.step\(\)` before", UserWarning)
        for _ in range(tree["last_epoch"]):
            scheduler.step()


def _restore_forms(optimizer: torch.optim.Optimizer, kept: dict[int, dict[str, Any]]) -> None:
    """Give loaded state the dtype that it had and its parameter's order in memory.

    ``load_state_dict`` casts state to its parameter's dtype, and leaves the state of a parameter that
    is not contiguous (``channels_last``, transposed) contiguous; fused kernels then pair wrong elements.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entry in kept.items():
        parameter = parameters[index]
        loaded = optimizer.state[parameter]
        for key, value in entry.items():
            if not isinstance(value, torch.Tensor):
                continue
            if loaded[key].dtype != value.dtype:
                loaded[key] = value.to(loaded[key].device)
            if value.shape == parameter.shape and loaded[key].stride() != parameter.stride():
                like = torch.empty_like(parameter, dtype=value.dtype, device=loaded[key].device)
                loaded[key] = like.detach().copy_(loaded[key])
