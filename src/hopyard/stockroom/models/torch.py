"""Tensors of PyTorch in models. Whoever imports this has PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from hopyard.errors import DataError
from hopyard.objects import Tensor
from hopyard.objects.torch import NAMES, from_bytes, is_dense, to_tensor


def memory(tensor: torch.Tensor) -> Any:
    """Equal for tensors that are the same elements of the same storage; None for those without any."""
    if not is_dense(tensor) or not tensor.numel():
        return None
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # it may have no memory
        return None
    place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
    return (*place, tensor.is_conj(), tensor.is_neg())


def take(tensor: torch.Tensor, where: str) -> Tensor:
    """The tensor without its framework; shares its memory if it can.

    Raises:
        DataError: it is not dense, or of a dtype that cannot be stored; ``where`` begins the message.
    """
    if tensor.device.type == "meta":
        raise DataError(
            f"{where} is a tensor on the device 'meta', which has no values. Store the model after its weights were "
            "made or loaded."
        )
    if tensor.is_quantized:
        raise DataError(
            f"{where} is a quantized tensor of {tensor.dtype}. Store tensor.int_repr(), its scale and its zero point, "
            "or tensor.dequantize()."
        )
    if tensor.is_nested:
        raise DataError(
            f"{where} is a nested tensor. Store the tensors that it holds: list(tensor.unbind()); "
            "torch.nested.nested_tensor makes it anew from them."
        )
    if not is_dense(tensor):
        layout = str(tensor.layout).removeprefix("torch.")
        raise DataError(
            f"{where} is a tensor of layout {layout}. Store tensor.to_dense(), or its indices and values as tensors of "
            "their own."
        )
    if tensor.dtype not in NAMES:
        raise DataError(
            f"{where} is a tensor of {tensor.dtype}, which cannot be stored. Convert it with .to(...) to one of "
            f"{', '.join(str(dtype) for dtype in NAMES)}."
        )
    try:
        return to_tensor(tensor)
    except DataError as error:
        raise DataError(f"{where} {error}.") from error


def give(tensor: Tensor) -> torch.Tensor:
    """A tensor of PyTorch that shares this one's memory, which is writable."""
    return from_bytes(tensor.dtype, tensor.shape, tensor.data)
