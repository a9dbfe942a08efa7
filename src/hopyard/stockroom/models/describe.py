"""Descriptions of the tensors of a stored model and the samples of a column, and how far tensors moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hopyard.errors import UsageError
from hopyard.objects import Tensor
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.samples import raw_dtype
from hopyard.stockroom.models.content import read
from hopyard.stockroom.models.decode import chunks, is_complex, parts
from hopyard.stockroom.models.shelf import ModelShelf
from hopyard.stockroom.records import ModelRecord

BINS = 16

TensorChange = Literal["unchanged", "changed", "added", "removed", "other shape"]


@dataclass(frozen=True)
class Spread:
    """Distribution of a tensor's elements; of complex ones, of their absolute values.

    Attributes:
        mean, std, norm, min, max: of the finite elements, NaN if there are none; ``std`` divides by their number,
            ``norm`` is the Euclidean one.
        zeros: share of all elements, 0 to 1.
        nan, infinite: numbers of elements that are NaN (complex ones: in either part), or infinite.
        histogram: numbers of finite elements in ``BINS`` equal intervals from ``min`` to ``max``.
    """

    mean: float
    std: float
    norm: float
    min: float
    max: float
    zeros: float
    nan: int
    infinite: int
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
    change: TensorChange | None = None
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


def compare(tensor: Tensor, before: Tensor | None) -> tuple[TensorChange, float | None, float | None]:
    """Change of a tensor, and how far it moved, as ``TensorFacts`` has it."""
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


def describe_column(column: SampleColumn | ColumnDraft, most: int | None = None) -> tuple[int, Spread]:
    """Distribution of the elements of a column of tensors, of all its samples or of the first: as many as ``most``
    bytes hold, to whole fragments, which lie together on disk (about half a megabyte each).

    Returns:
        the number of samples that were looked at, and their spread.

    Raises:
        UsageError: the column holds no tensors.
    """
    seen = column.snapshot() if isinstance(column, ColumnDraft) else column
    if seen.kind != "tensor":
        raise UsageError(
            f"column {seen.name!r} holds {seen.kind}, which has no numbers to describe. Describe a column of tensors."
        )
    fragments = seen.fragments()
    batches, nbytes = [], 0
    while (most is None or nbytes < most) and (fragment := next(fragments, None)) is not None:
        batches.append(fragment.batch.rows)
        nbytes += batches[-1].nbytes
    dtype = seen.record.dtype
    width = raw_dtype(dtype).itemsize

    def elements() -> Iterator[Tensor]:
        for rows in batches:
            yield Tensor(dtype, (rows.data.size // width,), rows.data.reshape(-1))

    return sum(map(len, batches)), _spread(elements)


def spread_of(tensor: Tensor) -> Spread:
    """Distribution of the elements. Reads the tensor twice, in pieces."""
    return _spread(lambda: [tensor])


def _spread(read: Callable[[], Iterable[Tensor]]) -> Spread:
    count = total = zeros = nan = 0
    mean = second = squares = 0.0
    low, high = math.inf, -math.inf
    with np.errstate(all="ignore"):
        for values in (each for tensor in read() for each in chunks(tensor)):
            total += values.size
            zeros += values.size - int(np.count_nonzero(values))
            finite = _finite(values)
            if finite.size < values.size:
                nan += int(np.count_nonzero(np.isnan(values)))
            values = finite
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
        histogram = _histogram(read, low, high) if count else (0,) * BINS
    infinite = total - count - nan
    if not count:
        none = math.nan
        return Spread(none, none, none, none, none, 0.0, nan, infinite, histogram)
    std, norm = math.sqrt(second / count), math.sqrt(squares)
    return Spread(mean, std, norm, low, high, zeros / total, nan, infinite, histogram)


def _finite(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def _histogram(read: Callable[[], Iterable[Tensor]], low: float, high: float) -> tuple[int, ...]:
    width = high / 2 - low / 2  # halves, since the difference of two large floats may be infinite
    counts = np.zeros(BINS, np.int64)
    for values in (each for tensor in read() for each in chunks(tensor)):
        values = _finite(values)
        shares = (values / 2 - low / 2) / width if width else np.full(values.size, 0.5)
        counts += np.bincount(np.minimum((shares * BINS).astype(np.int64), BINS - 1), minlength=BINS)
    return tuple(counts.tolist())
