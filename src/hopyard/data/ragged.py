"""Rows of different lengths: all their values one after another, and where each row begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Ragged:
    """n rows of different lengths.

    Attributes:
        values: (total,) the values of all rows, one row after another; or (total, *shape), where each is an array.
        offsets: (n + 1,) int64; row i is ``values[offsets[i]:offsets[i + 1]]``; ``offsets[0]`` is 0.

    In batches for PyTorch both are tensors, and so are rows and lengths.
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def from_rows(cls, rows: Sequence[npt.ArrayLike], dtype: npt.DTypeLike | None = None) -> Ragged:
        arrays = [np.asarray(row, dtype) for row in rows]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(row) for row in arrays], out=offsets[1:])
        return cls(np.concatenate(arrays) if arrays else np.empty(0, dtype), offsets)

    @staticmethod
    def concatenate(parts: Sequence[Ragged]) -> Ragged:
        lengths = np.concatenate([part.lengths for part in parts])
        return Ragged(np.concatenate([part.values for part in parts]), offsets_of(lengths))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(n,) int64, the number of values of each row."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.values[start:stop]

    def __getitem__(self, key: Any) -> Any:
        """An int gives the row's values, a slice or an array of positions the Ragged of those rows."""
        if isinstance(key, (int, np.integer)):
            start = range(len(self))[int(key)]
            return self.values[self.offsets[start] : self.offsets[start + 1]]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                stop = max(start, stop)
                bounds = self.offsets[start : stop + 1]
                return Ragged(self.values[bounds[0] : bounds[-1]], bounds - bounds[0])
            key = np.arange(start, stop, step)
        return self.take(key)

    def take(self, rows: npt.ArrayLike) -> Ragged:
        """The rows at these positions, in this order."""
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths[rows]
        offsets = offsets_of(lengths)
        # Position of each value taken: its row's first value, plus how far it is into the row.
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.values[places], offsets)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Ragged)
            and self.dtype == other.dtype
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.values, other.values)
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]


def offsets_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(n + 1,) int64 offsets of rows with these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
