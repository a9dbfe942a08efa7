"""Tensors without a framework: a dtype, a shape and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hopyard.errors import DataError
from hopyard.objects.digests import Hasher

ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C64": 8, "C128": 16,
}  # fmt: skip
"""Bytes per element of every dtype, by the names of safetensors; C128 is ours, see ``states``."""

# By kind and width, which is what dtype.str gives after the byte order, and fast.
_FROM_NUMPY = {
    "b1": "BOOL", "u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "u4": "U32", "i4": "I32", "u8": "U64",
    "i8": "I64", "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "c16": "C128",
}  # fmt: skip
ML_DTYPES = {
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""Dtypes that NumPy lacks, by their names in PyTorch and in the package ml_dtypes (of JAX, TensorFlow, Keras)."""
_OF_ML_DTYPES = {ours: name for name, ours in ML_DTYPES.items()}
_TO_NUMPY: dict[str, np.dtype[Any]] = {dtype: np.dtype("<" + name) for name, dtype in _FROM_NUMPY.items()}
_RAW: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2")}


@dataclass(frozen=True, eq=False)
class Tensor:
    """Immutable: equal tensors have equal dtype, shape and bytes (so NaN equals the same NaN).

    Attributes:
        dtype: as in safetensors: ``"F32"``, ``"BF16"``, ``"I64"``, ``"BOOL"``, ...
        shape: lengths of the dimensions; ``()`` for a scalar.
        data: the elements' bytes: uint8, one-dimensional, C order, little-endian.
        is_frozen: whether it is of a part of a model that training does not change. It is no part of the content.
    """

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray[Any, np.dtype[np.uint8]]
    is_frozen: bool = False

    def __post_init__(self) -> None:
        size = ITEM_SIZES.get(self.dtype)
        if size is None:
            raise DataError(f"dtype={self.dtype!r}, but it must be one of {', '.join(ITEM_SIZES)}")
        if self.data.dtype != np.uint8 or self.data.ndim != 1:
            raise DataError(
                f"a tensor's data must be a one-dimensional array of uint8, not {self.data.ndim}-dimensional "
                f"{self.data.dtype}; use Tensor.from_numpy, or .reshape(-1).view(numpy.uint8)"
            )
        if self.data.size != size * math.prod(self.shape):
            raise DataError(
                f"a tensor of shape {self.shape} and dtype {self.dtype} has {size * math.prod(self.shape)} "
                f"bytes, but {self.data.size} were given"
            )

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any]) -> Tensor:
        """Tensor of the array's values, of NumPy's dtypes or of ml_dtypes. Shares memory if the array is contiguous and
        little-endian.

        Raises:
            DataError: elements that are not numbers of a fixed width everywhere.
        """
        if (ours := ML_DTYPES.get(array.dtype.name)) is not None:
            return cls(ours, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        dtype = _FROM_NUMPY.get(array.dtype.str[1:])
        if dtype is None:
            raise DataError(
                f"an array of dtype {array.dtype} cannot be stored as a tensor; it must be one of "
                f"{', '.join(dtype.name for dtype in _TO_NUMPY.values())}. Convert it with .astype(...)"
            )
        # ascontiguousarray makes scalars one-dimensional, hence the shape of the array given.
        flat = np.ascontiguousarray(array, dtype=_TO_NUMPY[dtype]).reshape(-1)
        return cls(dtype, array.shape, flat.view(np.uint8))

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values, sharing memory. BF16 and F8 have no NumPy dtype: their raw uint16 or uint8."""
        dtype: np.dtype[Any] = _TO_NUMPY.get(self.dtype) or _RAW[ITEM_SIZES[self.dtype]]
        return self.data.view(dtype).reshape(self.shape)

    def array(self) -> np.ndarray[Any, Any]:
        """The values, sharing memory; BF16 and F8 in the dtypes of the package ml_dtypes.

        Raises:
            ModuleNotFoundError: that is needed, and not installed.
        """
        if self.dtype not in _OF_ML_DTYPES:
            return self.numpy()
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, _OF_ML_DTYPES[self.dtype]))
        return self.numpy().view(dtype)

    @property
    def digest(self) -> str:
        """Digest of dtype, shape and bytes; computed once."""
        # No cached_property: before Python 3.12 its lock is one for all tensors, and threads would wait for each other.
        known: str | None = self.__dict__.get("_digest")
        if known is None:
            hasher = Hasher("hopyard.tensor")
            hasher.update(f"{self.dtype}{[*self.shape]}\n".encode())
            hasher.update(self.data)
            known = hasher.hexdigest()
            self.know(known)
        return known

    def know(self, digest: str) -> None:
        """Take ``digest`` as the tensor's digest, by which it was read: saving it again need not hash it."""
        self.__dict__["_digest"] = digest

    def as_frozen(self) -> Tensor:
        """The same tensor, marked as frozen."""
        if self.is_frozen:
            return self
        marked = replace(self, is_frozen=True)
        marked.know(self.digest)
        return marked

    @property
    def nbytes(self) -> int:
        return self.data.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        same_kind = self.dtype == other.dtype and self.shape == other.shape
        return same_kind and np.array_equal(self.data, other.data)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, {self.shape})"
