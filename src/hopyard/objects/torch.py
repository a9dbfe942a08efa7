"""Tensors of PyTorch as tensors without a framework, and back, bit for bit. Importing this takes PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hopyard.errors import DataError
from hopyard.objects.tensors import Tensor

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.complex128: "C128",
}
"""Every dtype that can be kept, by the name that ``objects.tensors`` has for it."""

if hasattr(torch, "float8_e8m0fnu"):  # since PyTorch 2.7
    NAMES[torch.float8_e8m0fnu] = "F8_E8M0"

_DTYPES = {name: dtype for dtype, name in NAMES.items()}


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor is its elements, one after the other: not sparse, nested, quantized or without data."""
    odd = tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta"
    return tensor.layout == torch.strided and not odd


def to_tensor(tensor: torch.Tensor) -> Tensor:
    """Tensor of a dense PyTorch tensor's values, on any device, with any strides, of a dtype in ``NAMES``; shares
    memory if it can.

    Raises:
        DataError: it is of a class of tensors whose elements cannot be had; the text begins with ``is``.
    """
    try:
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        # One element counts as contiguous with any stride, and some strides refuse a view as bytes.
        flat = flat.as_strided((flat.numel(),), (1,))
        data = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise DataError(
            f"is a {type(tensor).__name__} whose elements PyTorch does not hand out ({str(error).strip()}). Make a "
            "plain tensor of them first, such as tensor.clone() or, of a masked one, tensor.to_tensor(0)"
        ) from error
    return Tensor(NAMES[tensor.dtype], tuple(tensor.shape), data)


def from_bytes(dtype: str, shape: tuple[int, ...], data: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor on the CPU of these elements, whose memory it shares. ``data`` is uint8, and writable."""
    kind = _DTYPES[dtype]
    flat = torch.from_numpy(data).view(kind) if math.prod(shape) else torch.empty(0, dtype=kind)
    return flat.reshape(shape)
