"""Models whose weights are quantised: whether gradients pass through them is tried, once for each model.

Its modules tell, not what a model says of itself: one that was dequantised while it was loaded still calls itself
quantised, and libraries differ in which of their modules can be trained through.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.wording import some_names

_tried: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def check_gradients(model: nn.Module, loss: torch.Tensor) -> None:
    """Try to go backward from the first loss of a model with quantised weights.

    Raises:
        EstimatorError: gradients do not reach what is trained.
    """
    if not loss.requires_grad and not (model.training and torch.is_grad_enabled()):
        return
    if model in _tried:
        return
    quantized = list(quantized_modules(model))
    if quantized:
        _try(model, loss, quantized)
    _tried.add(model)


def _try(model: nn.Module, loss: torch.Tensor, quantized: list[str]) -> None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    reason = "no gradient comes through"
    try:
        if any(each is not None for each in _gradients(loss, trained)):
            return
    except RuntimeError as error:
        reason = str(error)
    raise EstimatorError(
        f"The model has {len(quantized)} modules with quantised weights that cannot be trained through ({reason}): "
        f"{some_names(quantized, 3)}. Load it in bfloat16 or float32 (dtype=; GGUF files with gguf_file=, which "
        "dequantises them), or quantised in a way that can be trained through, as bitsandbytes does it."
    )


def _gradients(loss: torch.Tensor, trained: list[nn.Parameter]) -> tuple[torch.Tensor | None, ...]:
    if not loss.requires_grad:
        return ()
    return torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)


def quantized_modules(model: nn.Module) -> Iterator[str]:
    """Modules that hold quantised weights, as ``layers.0.linear (Linear of torch.ao.nn.quantized.dynamic)``."""
    for name, module in model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(map(_is_quantized, own)) or hasattr(module, "_packed_params"):
            kind = type(module)
            yield f"{name} ({kind.__name__} of {kind.__module__})"


def _is_quantized(tensor: torch.Tensor) -> bool:
    """Whether a tensor of a module has numbers of few bits, or is of a class of its own that has them."""
    few = tensor.dtype.itemsize == 1 and tensor.dtype != torch.bool
    return tensor.ndim > 1 and (
        few or tensor.is_quantized or type(tensor) not in (torch.Tensor, nn.Parameter)
    )
