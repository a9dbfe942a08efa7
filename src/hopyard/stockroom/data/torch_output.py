"""Columns as a PyTorch dataset, whose items are the samples of all columns under one key."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import torch

from hopyard.data.base import BaseDataset
from hopyard.data.outputs.torch_output import MapStyleDataset
from hopyard.errors import UsageError
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.stockroom.maps import Key

SampleColumns: TypeAlias = Sequence[SampleColumn | ColumnDraft]


class TorchSamples(torch.utils.data.Dataset[Any]):
    """A map-style dataset: item i are the samples under the i-th key, as tensors (strings and bytes as they are).

    A list of numbers gives the samples of all, stacked for each column where their shapes are equal, which is what a
    ``BatchSampler`` asks for. Picklable, if all that the columns hold is committed.
    """

    def __init__(self, samples: JoinedSamples, as_dict: bool) -> None:
        self.samples = samples
        self._as_dict = as_dict

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int | Sequence[int]) -> Any:
        if isinstance(row, SupportsIndex):
            return self.__getitems__([operator.index(row)])[0]
        return self._item({name: _tensors(values) for name, values in self.samples.samples(row).items()})

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Several items, gathered at once, which is how DataLoader asks for those of a batch."""
        columns = {name: _tensors(values) for name, values in self.samples.samples(rows).items()}
        return [self._item({name: values[at] for name, values in columns.items()}) for at in range(len(rows))]

    def _item(self, values: dict[str, Any]) -> Any:
        return values if self._as_dict else tuple(values.values())


def _tensors(values: Any) -> Any:
    if isinstance(values, list):
        return [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in values]
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


def make_torch_dataset(
    dataset: BaseDataset | SampleColumn | ColumnDraft | SampleColumns,
    keys: Iterable[Key] | None = None,
    as_dict: bool = False,
) -> torch.utils.data.Dataset[Any]:
    """A map-style ``torch.utils.data.Dataset``; works in DataLoader workers, also those that are spawned.

    >>> dataset = make_torch_dataset([stock.data["image"], stock.data["label"]])
    >>> image, label = dataset[2]  # under the third key, in the order of the keys

    Args:
        dataset: columns: items are tuples of samples in their order. Or a dataset: items are its rows, as dicts.
        keys: of columns: the samples, in this order; None: all that stand in every column.
        as_dict: of columns: items are dicts by the columns' names.

    Raises:
        UsageError: it is neither.
        DataError: samples that stand in one column are missing in another.
    """
    if isinstance(dataset, BaseDataset):
        if keys is not None or as_dict:
            raise UsageError(
                "make_torch_dataset() was given keys= or as_dict= with a dataset, whose rows have numbers and are "
                "dicts. Give it columns, or leave them out."
            )
        return MapStyleDataset(dataset)
    columns = [dataset] if isinstance(dataset, SampleColumn | ColumnDraft) else dataset
    given = list(columns) if isinstance(columns, list | tuple) else []
    other = [type(each).__name__ for each in given if not isinstance(each, SampleColumn | ColumnDraft)]
    if other or not given:
        raise UsageError(
            f"make_torch_dataset() was given a {type(dataset).__name__}{f' of {other[0]}' if other else ''}. Give "
            "columns, as stock.data['image'] is, or a dataset, as open_dataset() or prepare() returns."
        )
    return TorchSamples(JoinedSamples(given if as_dict else _by_names(given), keys), as_dict)


def _by_names(columns: SampleColumns) -> dict[str, SampleColumn | ColumnDraft]:
    """Columns by names that differ: of tuples, two may be of one name, of different revisions."""
    counts = Counter(column.name for column in columns)
    return {
        column.name if counts[column.name] == 1 else f"{column.name} (number {number})": column
        for number, column in enumerate(columns)
    }
