"""The numbers that a tensor's bytes are, without a framework: BF16 and F8 are decoded here, since NumPy has neither.

F8 after "FP8 Formats for Deep Learning" (Micikevicius et al., 2022) and "8-bit Numerical Formats for Deep Neural
Networks" (Noune et al., 2022, the FNUZ kinds); F8_E8M0 after the OCP Microscaling Formats specification, 2023.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.objects import Tensor

CHUNK = 1 << 18  # elements that are decoded at once; in float64 they stay in a core's cache

_BIAS = {"F8_E4M3": 7, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 16}


def chunks(tensor: Tensor) -> Iterator[npt.NDArray[np.float64]]:
    """The elements in order, one-dimensional, at most ``CHUNK`` at once; of complex ones the absolute value."""
    flat = tensor.numpy().reshape(-1)
    for start in range(0, flat.size, CHUNK):
        yield _decode(tensor.dtype, flat[start : start + CHUNK])


def is_complex(tensor: Tensor) -> bool:
    """Whether its elements are complex numbers."""
    return tensor.dtype.startswith("C")


def parts(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real and imaginary parts; others as they are."""
    if not is_complex(tensor):
        return tensor
    return Tensor("F32" if tensor.dtype == "C64" else "F64", (*tensor.shape, 2), tensor.data)


def _decode(dtype: str, raw: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if dtype == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    elif dtype.startswith("F8"):
        raw = _table(dtype)[raw]
    elif dtype.startswith("C"):
        raw = np.abs(raw)
    with np.errstate(invalid="ignore"):  # signalling NaN
        return raw.astype(np.float64)


@cache
def _table(dtype: str) -> npt.NDArray[np.float64]:
    """The number of each byte."""
    bits = np.arange(256, dtype=np.int64)
    if dtype == "F8_E5M2":  # the upper half of a float16
        return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    if dtype == "F8_E8M0":
        return np.where(bits == 255, np.nan, np.ldexp(1.0, bits - 127))
    width = 3 if "E4M3" in dtype else 2
    exponent, fraction = (bits & 0x7F) >> width, bits & ((1 << width) - 1)
    normal = np.ldexp((1 << width) + fraction, exponent - _BIAS[dtype] - width)
    tiny = np.ldexp(fraction.astype(np.float64), 1 - _BIAS[dtype] - width)
    numbers = np.where(exponent == 0, tiny, normal) * np.where(bits & 0x80, -1.0, 1.0)
    numbers[bits == 0x80 if dtype.endswith("FNUZ") else (bits & 0x7F) == 0x7F] = np.nan
    return numbers
