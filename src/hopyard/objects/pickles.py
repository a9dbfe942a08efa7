"""Pickles of users' functions, as cloudpickle makes them, with two things that it cannot do.

Large tensors of PyTorch may stay out of a pickle, which then names them by content.

And cloudpickle takes along every loaded module that a function may mean by ``torch.backends`` or, in a class,
by ``self.classes``. Some of these (``torch.backends``, ``torch.classes``, ``torch.ops``) are objects of
classes of their own, which it does not know for modules; they travel by name, like others.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np

from hopyard.objects.tensors import Tensor

UNPICKLABLE = (TypeError, pickle.PicklingError, NotImplementedError, AttributeError, RecursionError)
"""What :func:`dumps` raises for values that cannot be pickled."""


_LARGE = 1 << 14
"""Bytes of a tensor that may stay out of a pickle."""
_tensors: ContextVar[Mapping[str, Tensor]] = ContextVar("tensors of the pickle that is loaded")


def dumps(
    value: Any,
    buffer_callback: Callable[[Any], Any] | None = None,
    tensors: dict[str, Tensor] | None = None,
) -> bytes:
    """``value`` pickled with protocol 5; see ``pickle.Pickler`` for ``buffer_callback``.

    Args:
        tensors: gets, by digest, large tensors of PyTorch, which ``loads`` is to be given.
    """
    file = io.BytesIO()
    _Pickler(file, buffer_callback, tensors).dump(value)
    return file.getvalue()


def loads(data: bytes | memoryview, tensors: Mapping[str, Tensor]) -> Any:
    """The value of a pickle whose large tensors are apart; they are copied."""
    before = _tensors.set(tensors)
    try:
        return pickle.loads(data)
    finally:
        _tensors.reset(before)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, buffer_callback: Any, tensors: dict[str, Tensor] | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._tensors = tensors

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            name = obj.__name__
            if sys.modules.get(name) is obj:
                return importlib.import_module, (name,)
        if self._tensors is not None and (torch := sys.modules.get("torch")) is not None:
            is_parameter = type(obj) is torch.nn.Parameter
            if (is_parameter or type(obj) is torch.Tensor) and _stays_out(obj):
                from hopyard.objects.torch import to_tensor

                tensor = to_tensor(obj)
                self._tensors[tensor.digest] = tensor
                return _tensor, (tensor.digest, is_parameter, obj.requires_grad)
        return super().reducer_override(obj)


def _stays_out(tensor: Any) -> bool:
    """Whether a large tensor is its elements, one after the other, and no more."""
    from hopyard.objects.torch import NAMES, is_dense

    return (
        tensor.nbytes >= _LARGE
        and is_dense(tensor)
        and tensor.device.type == "cpu"
        and tensor.dtype in NAMES
        and tensor.is_contiguous()
        and tensor.is_leaf
        and not (tensor.is_conj() or tensor.is_neg())
        and not vars(tensor)
        and not tensor._backward_hooks
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )


def _tensor(digest: str, is_parameter: bool, requires_grad: bool) -> Any:
    """The tensor of PyTorch that a pickle names; only while ``loads`` runs."""
    import torch

    from hopyard.objects.torch import from_bytes

    found = _tensors.get()[digest]
    tensor = from_bytes(found.dtype, found.shape, np.array(found.data))
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)
