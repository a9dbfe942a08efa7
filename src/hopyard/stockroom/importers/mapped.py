"""Readers of columns that lie in files as arrays: mapped, in any process."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hopyard.data.columns.columns import ColumnData
from hopyard.data.ragged import Ragged
from hopyard.errors import DataError
from hopyard.stockroom.importers.base import ColumnSource, Samples
from hopyard.wording import counted


@dataclass(frozen=True)
class MappedRange:
    """Reads an array whose bytes lie in a file, in C order.

    Attributes:
        path: of the file.
        dtype: NumPy name.
        shape: of all samples.
        start: where the array begins in the file, in bytes.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    start: int = 0

    def __call__(self, start: int, stop: int) -> npt.NDArray[Any]:
        if 0 in self.shape or start == stop:
            return np.empty((stop - start, *self.shape[1:]), self.dtype)
        width = math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize
        rows = _mapped(self.path)[self.start + start * width : self.start + stop * width]
        return rows.view(self.dtype).reshape(-1, *self.shape[1:])


@functools.lru_cache(maxsize=8)
def _mapped(path: str) -> npt.NDArray[np.uint8]:
    return np.memmap(path, np.uint8, "r").view(np.ndarray)


@dataclass(frozen=True)
class MappedNumpy:
    """Reads a ``.npy`` file: numbers as they are in native byte order, ``U`` as texts, ``S`` as bytes."""

    path: str

    def array(self) -> npt.NDArray[Any]:
        """All of it, mapped."""
        return _numpy(self.path)

    def __call__(self, start: int, stop: int) -> Samples:
        rows = self.array()[start:stop]
        if rows.dtype.kind in "US":
            return rows.tolist()  # type: ignore[no-any-return]
        return np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))


@functools.lru_cache(maxsize=8)
def _numpy(path: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    return array


@dataclass(frozen=True)
class SavedRagged:
    """Reads a Ragged that was saved as ``<path>.values.npy`` and ``<path>.offsets.npy``."""

    path: str
    kind: Literal["tensor", "string", "bytes"]

    def __call__(self, start: int, stop: int) -> Samples:
        values, offsets = (
            _numpy(f"{self.path}.values.npy"),
            _numpy(f"{self.path}.offsets.npy")[start : stop + 1],
        )
        return samples_of(self.kind, Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0]))


def samples_of(kind: Literal["tensor", "string", "bytes"], values: npt.NDArray[Any] | Ragged) -> Samples:
    """Rows of a column as ``ColumnSource.read`` gives them; texts and bytes may be an object array, or UTF-8."""
    if kind == "tensor":
        return list(values) if isinstance(values, Ragged) else values
    if not isinstance(values, Ragged):
        return values.tolist()  # type: ignore[no-any-return]
    data, bounds = values.values.tobytes(), values.offsets.tolist()
    rows = [data[bounds[i] : bounds[i + 1]] for i in range(len(values))]
    return [row.decode() for row in rows] if kind == "string" else rows


def save_column(data: ColumnData, folder: Path, number: int) -> ColumnSource:
    """A column in memory as files in ``folder``, so that other processes can read it.

    Raises:
        DataError: it has nulls; names the first row.
    """
    refuse_nulls(data)
    path, column = folder / f"column-{number}", data.column
    if isinstance(data.values, Ragged):
        np.save(f"{path}.values.npy", data.values.values)
        np.save(f"{path}.offsets.npy", data.values.offsets)
        kind = column.kind if column.kind in ("string", "bytes") else "tensor"
        shape = () if kind != "tensor" else None
        return ColumnSource(column.name, len(data), kind, column.dtype, shape, SavedRagged(str(path), kind))
    np.save(f"{path}.npy", data.values)
    read = MappedNumpy(f"{path}.npy")
    return ColumnSource(column.name, len(data), "tensor", column.dtype, column.shape, read)


def refuse_nulls(data: ColumnData, first: int = 0) -> None:
    """Raise DataError if a row is null; ``first`` is the number of the first row."""
    if data.missing is not None:
        rows = np.flatnonzero(data.missing)
        raise DataError(
            f"Column {data.name!r} has {counted(len(rows), 'null')}, the first in row {first + int(rows[0])}; samples "
            "cannot be null. Fill them, or drop those rows or the column."
        )
