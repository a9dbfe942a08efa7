"""Batches as tensors, and datasets as PyTorch datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch

from hopyard.data.contract import RowSource
from hopyard.data.ragged import Ragged
from hopyard.data.reading.views import Batch

_OBJECTS = np.dtype(object)


def as_tensors(batch: Batch) -> Batch:
    """Arrays as tensors over the same memory; a ``Ragged`` as one of tensors; object arrays stay."""
    return {
        name: torch.from_numpy(values)
        if type(values) is np.ndarray and values.dtype is not _OBJECTS
        else as_tensor(values)
        for name, values in batch.items()
    }


def as_tensor(values: Any) -> Any:
    """An array as a tensor over the same memory; a ``Ragged`` as one of tensors; all else, and object arrays, stay."""
    if isinstance(values, Ragged):
        return Ragged(torch.from_numpy(values.values), torch.from_numpy(values.offsets))  # type: ignore[arg-type]
    if not isinstance(values, np.ndarray) or values.dtype == object:
        return values
    return torch.from_numpy(values)


class MapStyleDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """A map-style dataset: item i is row i, a dict of tensors (strings and bytes stay as they are).

    A list of row numbers gives a batch of these rows, which is what a ``BatchSampler`` asks for:
    ``DataLoader(dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), 256, False))``
    gathers every batch with one call instead of one per row.
    """

    def __init__(self, dataset: RowSource) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @overload
    def __getitem__(self, row: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, row: Sequence[int]) -> dict[str, Any]: ...

    def __getitem__(self, row: int | Sequence[int]) -> dict[str, Any]:
        if isinstance(row, (int, np.integer)):
            return self.__getitems__([int(row)])[0]
        return as_tensors(self._rows(row))

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows at once, which is how DataLoader asks for the rows of a batch."""
        columns = {name: _rows(values) for name, values in self._rows(rows).items()}
        return [{name: values[i] for name, values in columns.items()} for i in range(len(rows))]

    def _rows(self, rows: Sequence[int]) -> Batch:
        return self.dataset[np.asarray(rows, np.int64)]


def _rows(values: Any) -> Any:
    """Something whose items are the rows as tensors (or strings, or bytes)."""
    return [torch.from_numpy(row) for row in values] if isinstance(values, Ragged) else as_tensor(values)
