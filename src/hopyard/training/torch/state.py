"""State of modules and optimizers to trees of tensors, and back, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
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


def plain_values(module: torch.nn.Module) -> dict[str, torch.Tensor] | None:
    """The state dict of a module, not detached, if it is parameters and buffers and no more, so that to load one is to
    copy into these; else None. It takes a fraction of the time of ``state_dict``."""
    found: dict[str, torch.Tensor] = {}
    return found if _add_values(module, "", found) else None


def _add_values(module: torch.nn.Module, prefix: str, found: dict[str, torch.Tensor]) -> bool:
    kind: Any = type(module)
    if (
        not _is_plain(kind)
        or module._state_dict_hooks
        or module._state_dict_pre_hooks
        or module._load_state_dict_pre_hooks
        or module._load_state_dict_post_hooks
    ):
        return False
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found[prefix + name] = parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            found[prefix + name] = buffer
    parts = module._modules.items()
    return all(part is None or _add_values(part, f"{prefix}{name}.", found) for name, part in parts)


@cache
def _is_plain(kind: Any) -> bool:
    """Whether modules of a class write and load their state dict as ``torch.nn.Module`` does."""
    methods = (
        "state_dict",
        "load_state_dict",
        "_save_to_state_dict",
        "_load_from_state_dict",
        "get_extra_state",
    )
    return all(getattr(kind, name) is getattr(torch.nn.Module, name) for name in methods)


def load_module(module: torch.nn.Module, tree: Any, values: Mapping[str, Any] | None = None) -> None:
    """Load a model's tree into a module of the same architecture. In place of a tensor the tree may have the module's
    own, which stays as it is.

    Args:
        values: its ``plain_values``.

    Raises:
        EstimatorError: names or shapes differ; which do.
    """
    if values is not None and _copied(tree, values):
        return
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


def _copied(tree: Mapping[Any, Any], values: Mapping[Any, Any]) -> bool:
    """Copy tensors into those at the same places; False, and none is copied, if one is of another form, or missing."""
    pairs = _pairs(tree, values)
    if pairs is None:
        return False
    with torch.no_grad():
        for given, tensor in pairs:
            tensor.copy_(from_tree(given))
    return True


def _pairs(tree: Mapping[Any, Any], values: Mapping[Any, Any]) -> list[tuple[Tensor, torch.Tensor]] | None:
    """Each tensor of a tree with the one that it may be copied into; None if there is none such."""
    if tree.keys() != values.keys():
        return None
    found: list[tuple[Tensor, torch.Tensor]] = []
    for name, given in tree.items():
        value = values[name]
        if isinstance(given, Tensor) and isinstance(value, torch.Tensor):
            if value.shape != given.shape or NAMES.get(value.dtype) != given.dtype:
                return None
            found.append((given, value))
        elif isinstance(given, dict) and isinstance(value, dict):
            inner = _pairs(given, value)
            if inner is None:
                return None
            found += inner
        elif given is not value or not isinstance(given, torch.Tensor):
            return None
    return found


def _optimizer_copied(optimizer: torch.optim.Optimizer, tree: Mapping[str, Any]) -> bool:
    """Load an optimizer's tree into the tensors that it has; False, and nothing is loaded, if it has others, or does
    more than that when it loads."""
    if (
        not type(optimizer).__module__.startswith("torch.optim.")
        or optimizer._optimizer_load_state_dict_pre_hooks
        or optimizer._optimizer_load_state_dict_post_hooks
    ):
        return False
    own, saved = optimizer.state_dict(), tree["param_groups"]
    options = [value for group in (*own["param_groups"], *saved) for value in group.values()]
    if any(isinstance(value, torch.Tensor | Tensor) for value in options):
        return False
    if [group["params"] for group in own["param_groups"]] != [group["params"] for group in saved]:
        return False
    if not _copied(tree["state"], own["state"]):
        return False
    for group, given in zip(optimizer.param_groups, saved, strict=True):
        group.update({key: from_tree(value) for key, value in given.items() if key != "params"})
    return True


def load_optimizer(optimizer: torch.optim.Optimizer, tree: Any) -> None:
    """Load an optimizer's tree into one made for the same parameters.

    Raises:
        EstimatorError: it has other parameter groups.
    """
    if _optimizer_copied(optimizer, tree):
        return
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


def adopt_module(module: torch.nn.Module, tree: Any, values: Mapping[str, Any] | None = None) -> None:
    """Load the model's tree of another trial.

    Raises:
        EstimatorError: it is that of another architecture.
    """
    try:
        load_module(module, tree, values)
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
