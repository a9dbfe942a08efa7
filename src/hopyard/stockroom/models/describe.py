"""What the tensors of a stored model are like, and how far they moved since another version."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hopyard.objects import Tensor
from hopyard.stockroom.models.content import read
from hopyard.stockroom.models.decode import chunks, is_complex, parts
from hopyard.stockroom.models.shelf import ModelShelf
from hopyard.stockroom.records import ModelRecord

BINS = 16

Change = Literal["unchanged", "changed", "added", "removed", "other shape"]


@dataclass(frozen=True)
class Spread:
    """How a tensor's elements lie; of complex ones their absolute values.

    Attributes:
        mean, std, norm, min, max: of the finite elements, NaN if there are none; ``std`` divides by their number,
            ``norm`` is the Euclidean one.
        zeros, nonfinite: shares of all elements, 0 to 1.
        histogram: numbers of finite elements in ``BINS`` equal intervals from ``min`` to ``max``.
    """

    mean: float
    std: float
    norm: float
    min: float
    max: float
    zeros: float
    nonfinite: float
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of a model.

    Attributes:
        path: keys and indexes that lead to it, joined by ``/``.
        dtype: as safetensors names it. shape: lengths of the dimensions. nbytes: bytes of all elements.
        spread: None for one that was removed.
        change: against the other version; None if there is none.
        moved: Euclidean norm of the difference, if both have this shape; NaN or infinite where elements are.
        relative: ``moved`` as a share of the other's norm; infinite if that is 0.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    spread: Spread | None
    change: Change | None = None
    moved: float | None = None
    relative: float | None = None


def describe(shelf: ModelShelf, name: str, other: ModelRecord | None = None) -> list[TensorFacts]:
    """A row for each tensor, in the model's order; then those that only ``other`` has.

    Args:
        other: an earlier version, or another model: ``stock.at("v1").model.record(name)``.

    Raises:
        NotFoundError: there is no such model; CorruptError: what is stored is damaged.
    """
    tensors = shelf.content(name).tensors()
    before = {} if other is None else read(shelf.objects, other, name).tensors()
    spreads: dict[str, Spread] = {}
    rows = []
    for path, tensor in tensors.items():
        spread = spreads.get(tensor.digest)
        if spread is None:
            spread = spreads[tensor.digest] = spread_of(tensor)
        compared = (None, None, None) if other is None else compare(tensor, before.get(path))
        rows.append(TensorFacts(path, tensor.dtype, tensor.shape, tensor.nbytes, spread, *compared))
    for path, tensor in before.items():
        if path not in tensors:
            rows.append(TensorFacts(path, tensor.dtype, tensor.shape, tensor.nbytes, None, "removed"))
    return rows


def compare(tensor: Tensor, before: Tensor | None) -> tuple[Change, float | None, float | None]:
    """What happened to a tensor, and how far it moved, as ``TensorFacts`` has it."""
    if before is None:
        return "added", None, None
    if tensor.digest == before.digest:
        return "unchanged", 0.0, 0.0
    if tensor.shape != before.shape or is_complex(tensor) != is_complex(before):
        return "other shape", None, None
    return "changed", *distance(tensor, before)


def distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Euclidean norm of ``a - b``, which are of one shape, both real or both complex; and its share of ``b``'s norm."""
    squares = norm = 0.0
    with np.errstate(all="ignore"):
        for one, two in zip(chunks(parts(a)), chunks(parts(b)), strict=True):
            difference = one - two
            squares += float(difference @ difference)
            norm += float(two @ two)
    moved, size = math.sqrt(squares), math.sqrt(norm)
    return moved, moved / size if size else (math.inf if moved else 0.0)


def spread_of(tensor: Tensor) -> Spread:
    """How the elements lie. Reads the tensor twice, in pieces."""
    count = total = zeros = 0
    mean = second = squares = 0.0
    low, high = math.inf, -math.inf
    with np.errstate(all="ignore"):
        for values in chunks(tensor):
            total += values.size
            zeros += values.size - int(np.count_nonzero(values))
            values = _finite(values)
            if not values.size:
                continue
            own = float(values.mean())
            away = values - own
            # Means and sums of squares of two parts as in Chan, Golub, LeVeque, 1979.
            step, count = own - mean, count + values.size
            mean += step * values.size / count
            second += float(away @ away) + step * step * values.size * (count - values.size) / count
            squares += float(values @ values)
            low, high = min(low, float(values.min())), max(high, float(values.max()))
        histogram = _histogram(tensor, low, high) if count else (0,) * BINS
    if not count:
        none = math.nan
        return Spread(none, none, none, none, none, 0.0, 1.0 if total else 0.0, histogram)
    std, norm = math.sqrt(second / count), math.sqrt(squares)
    return Spread(mean, std, norm, low, high, zeros / total, 1 - count / total, histogram)


def _finite(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def _histogram(tensor: Tensor, low: float, high: float) -> tuple[int, ...]:
    width = high / 2 - low / 2  # halves, since the difference of two large floats may be infinite
    counts = np.zeros(BINS, np.int64)
    for values in chunks(tensor):
        values = _finite(values)
        shares = (values / 2 - low / 2) / width if width else np.full(values.size, 0.5)
        counts += np.bincount(np.minimum((shares * BINS).astype(np.int64), BINS - 1), minlength=BINS)
    return tuple(counts.tolist())
