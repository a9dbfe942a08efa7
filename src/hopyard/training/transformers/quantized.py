"""Models whose weights are quantised: whether gradients pass through them is tried, once for each model.

Its modules tell, not what a model says of itself: one that was dequantised while it was loaded still calls itself
quantised, and libraries differ in which of their modules can be trained through.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from hopyard.errors import EstimatorError
from hopyard.wording import counted, some_names

_tried: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@contextmanager
def gradients_checked(model: nn.Module) -> Iterator[None]:
    """A block in which the model is called; the first time in training, its modules with quantised weights are tried.

    Raises:
        EstimatorError: no gradient passes through one of them that is given what is trained.
    """
    if model in _tried or not (model.training and torch.is_grad_enabled()):
        yield
        return
    cut: list[str] = []

    def watch(name: str, module: nn.Module) -> Any:
        def look(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], __: Any) -> None:
            if not _passes_gradients(module, given, named):
                cut.append(f"{name} ({type(module).__name__} of {type(module).__module__})")

        return module.register_forward_hook(look, with_kwargs=True)

    handles = [watch(name, module) for name, module in model.named_modules() if _holds_quantized(module)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if cut:
        raise EstimatorError(
            f"No gradient passes through the quantised weights of {counted(len(cut), 'module')} of the model, to what "
            f"is trained before: {some_names(cut, 3)}. Load the model in bfloat16 or float32 (dtype=; GGUF files with "
            "gguf_file=, which dequantises them), or quantised in a way that can be trained through, as bitsandbytes "
            "does it."
        )
    _tried.add(model)


def _holds_quantized(module: nn.Module) -> bool:
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return hasattr(module, "_packed_params") or any(map(_is_quantized, own))


def _is_quantized(tensor: torch.Tensor) -> bool:
    """Whether a tensor of a module has numbers of few bits, or is of a class of its own that has them."""
    few = tensor.dtype.itemsize == 1 and tensor.dtype != torch.bool
    return tensor.ndim > 1 and (
        few or tensor.is_quantized or type(tensor) not in (torch.Tensor, nn.Parameter)
    )


def _passes_gradients(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether the outputs for ``given`` have a gradient by those of its tensors that need one."""
    inputs: list[torch.Tensor] = []

    def apart(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value = value.detach().requires_grad_()
            inputs.append(value)
        return value

    given, named = tuple(map(apart, given)), {name: apart(value) for name, value in named.items()}
    if not inputs:
        return True
    # With hooks of its own: those of gradient checkpointing would run the model anew.
    with warnings.catch_warnings(), saved_tensors_hooks(_same, _same), torch.enable_grad():
        warnings.simplefilter("ignore")  # PyTorch only warns that there is no gradient
        outputs = module.forward(*given, **named)
        try:
            gradients = torch.autograd.grad(outputs.sum(), inputs, allow_unused=True)
        except RuntimeError:
            return False
    return any(gradient is not None for gradient in gradients)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
