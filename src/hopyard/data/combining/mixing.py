"""Mixtures: rows of several datasets in one stream, each with its share of every stretch."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.base import BaseDataset
from hopyard.data.combining.shares import BLOCK, Picks, Shares, fractions_of
from hopyard.data.contract import EpochStream
from hopyard.data.order import Reach, Rows
from hopyard.data.ragged import Ragged
from hopyard.data.reading.buffers import ALIGNMENT, AlignedBuffer, Buffers
from hopyard.data.reading.views import Batch, Wanted, join
from hopyard.data.schema import Schema
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.objects.digests import derive_seed, digest_json
from hopyard.wording import nearest

MixStop: TypeAlias = Literal["first", "last"]

_MOST_ROWS = 1 << 53
_NARROW = 256  # bytes; such rows are put in order faster by one take of all than a dataset at a time


def mix(
    datasets: Sequence[BaseDataset], weights: Sequence[float] | None = None, *, stop: MixStop = "first"
) -> Mix:
    """Several datasets as one whose stream takes rows from each in proportion to its weight; see :class:`Mix`.

    >>> train = mix([web, books], weights=[0.7, 0.3])
    """
    return Mix(datasets, weights, stop=stop)


class Mix(BaseDataset):
    """Rows of several datasets, mixed by weights.

    Of any x positions from the start, each dataset has its weight's share, to within a few rows; within blocks of 4,096
    positions the datasets come in an order drawn by (seed, epoch, block). The j-th row taken from a dataset is
    position j of its own stream, whose seed derives from the loader's seed and the dataset's place. An epoch
    has the same number of rows every time, and the same number of each dataset.

    Without ``shuffle`` each dataset is read in its natural order, and they are mixed in the same way every epoch;
    rows by number (``mixture[10:20]``) are in this order.

    Args:
        datasets: at least one, of the same columns (in any order).
        weights: positive numbers, of each dataset; by default its rows, so that all end together.
        stop: ``"first"``: an epoch ends before a row is needed of a dataset that has no more: each row comes at
            most once. ``"last"``: it ends once all rows of all datasets were taken; datasets that end earlier begin
            their next own epoch.

    Attributes:
        counts: rows of an epoch that come from each dataset.

    Raises:
        UsageError: an argument is impossible.
        DataError: a dataset is empty.
        ColumnError: datasets differ in their columns; says which and how.
    """

    def __init__(
        self,
        datasets: Sequence[BaseDataset],
        weights: Sequence[float] | None = None,
        *,
        stop: MixStop = "first",
    ) -> None:
        self.datasets: list[BaseDataset] = _checked_datasets(datasets)
        if stop not in get_args(MixStop):
            raise UsageError(
                f"stop={stop!r}, but it must be 'first' or 'last'{nearest(str(stop), get_args(MixStop), '.')}"
            )
        sizes = [len(dataset) for dataset in self.datasets]
        self._weights = fractions_of(sizes if weights is None else _checked_weights(weights, len(sizes)))
        self._stop = stop
        self.shares: Shares = Shares(self._weights)
        self._rows = self.shares.until_first(sizes) if stop == "first" else self.shares.until_last(sizes)
        self.counts: list[int] = self.shares.counts(self._rows)
        if not 0 < self._rows < _MOST_ROWS:
            raise UsageError(
                f"An epoch of this mixture would have {self._rows} rows: the weights {weights} differ too much for "
                f"datasets of {sizes} rows. Give weights nearer to each other, or the other stop."
            )

    @property
    def schema(self) -> Schema:
        """The columns, in the first dataset's order."""
        return self.datasets[0].schema

    @property
    def row_schema(self) -> Schema:
        """The columns that can stand side by side."""
        return self.datasets[0].row_schema

    def filled(self) -> dict[str, int | None]:
        """Columns with nulls that were filled in one of the datasets; a mixture does not count them."""
        return {name: None for dataset in self.datasets for name in dataset.filled()}

    @property
    def fingerprint(self) -> str:
        """Digest of the datasets, the weights and the stop."""
        parts = [dataset.fingerprint for dataset in self.datasets]
        return digest_json([parts, [str(weight) for weight in self._weights], self._stop], "hopyard.mixture")

    @property
    def split(self) -> str:
        """``"train"`` if a dataset is of it, else ``"val"``."""
        return min(dataset.split for dataset in self.datasets)

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{count} of {len(each)}" for count, each in zip(self.counts, self.datasets, strict=True)
        )
        return f"Mix({self._rows} rows: {shares}; {self.schema})"

    def describe(self) -> dict[str, Any]:
        """Description of the mixture for states of loaders, with that of each dataset."""
        return {**super().describe(), "mixture": [dataset.describe() for dataset in self.datasets]}

    def reach(self, window: int | None) -> Reach:
        """Reach of each dataset, with an equal part of the bytes."""
        part = None if window is None else max(window // len(self.datasets), 1)
        return [dataset.reach(part) for dataset in self.datasets]

    def stream(self, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: Reach) -> MixStream:
        """The rows of an epoch."""
        assert isinstance(reach, list)
        return MixStream(self, wanted, seed, epoch, shuffle, reach)

    def decodes(self, wanted: Wanted) -> bool:
        """Whether images of one of the datasets are decoded for every batch."""
        return any(dataset.decodes(wanted) for dataset in self.datasets)

    def check_not_written(self) -> None:
        """Raise CorruptError if a file was written to since it was opened; names it."""
        for dataset in self.datasets:
            dataset.check_not_written()

    def take(self, rows: Rows, wanted: Wanted) -> Batch:
        """Any rows, by number."""
        if not len(rows):
            return self.datasets[0].take(rows, wanted)
        picks, numbers = np.empty_like(rows), np.empty_like(rows)
        blocks = rows // BLOCK
        for block in np.unique(blocks).tolist():
            where, start = np.flatnonzero(blocks == block), block * BLOCK
            its_picks = self.shares.draw(block, self._rows, 0, 0)
            its_numbers = np.empty(len(its_picks), np.int64)
            for pick, places in _places(its_picks):
                its_numbers[places] = self.shares.counts(start)[pick] + np.arange(len(places))
            picks[where], numbers[where] = its_picks[rows[where] - start], its_numbers[rows[where] - start]
        parts = [
            (self.datasets[pick].take(numbers[places] % len(self.datasets[pick]), wanted), places)
            for pick, places in _places(picks)
        ]
        return merge([part for part, _ in parts], [places for _, places in parts], Buffers())


class MixStream(EpochStream):
    """The rows of one epoch of a mixture."""

    def __init__(
        self, mixture: Mix, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: list[Any]
    ) -> None:
        self._mixture = mixture
        self._wanted = wanted
        self._seed, self._epoch, self._shuffle, self._reach = seed, epoch, shuffle, reach
        # Of each dataset its own epoch, and its stream.
        self._streams: dict[int, tuple[int, EpochStream]] = {}
        self._scratch = _Scratch()
        self._drawn: tuple[int, Picks] | None = None

    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Positions [first, last); behind the end comes the start."""
        rows = len(self._mixture)
        parts = []
        while first < last:
            start = first % rows
            stop = min(start + last - first, rows)
            parts.append(self._mixed(start, stop, buffers))
            first += stop - start
        return join(parts, buffers)

    def close(self) -> None:
        """End the work of the datasets' streams in the background."""
        for _, stream in self._streams.values():
            stream.close()

    def _mixed(self, first: int, last: int, buffers: Buffers) -> Batch:
        start = first // BLOCK * BLOCK
        before = self._mixture.shares.counts(start) + np.bincount(
            self._draw(start // BLOCK)[: first - start], minlength=len(self._mixture.datasets)
        )
        blocks = [self._draw(block) for block in range(start // BLOCK, (last - 1) // BLOCK + 1)]
        blocks[-1] = blocks[-1][: last - start - (len(blocks) - 1) * BLOCK]
        places = _places(np.concatenate([blocks[0][first - start :], *blocks[1:]]))
        if len(places) == 1:
            pick, its = places[0]
            return self._rows_of(pick, int(before[pick]), int(before[pick]) + len(its), buffers)
        self._scratch.reset()
        self._scratch.arrow_strings = buffers.arrow_strings
        parts = [
            self._rows_of(pick, int(before[pick]), int(before[pick]) + len(its), self._scratch)
            for pick, its in places
        ]
        return merge(parts, [its for _, its in places], buffers)

    def _draw(self, block: int) -> Picks:
        """Datasets of the positions in a block."""
        if self._drawn is None or self._drawn[0] != block:
            seed, epoch = (self._seed, self._epoch) if self._shuffle else (0, 0)
            self._drawn = block, self._mixture.shares.draw(block, len(self._mixture), seed, epoch)
        return self._drawn[1]

    def _rows_of(self, pick: int, first: int, last: int, buffers: Buffers) -> Batch:
        """Rows of a dataset; ``first`` and ``last`` count through the dataset's own epochs within this epoch."""
        rows = len(self._mixture.datasets[pick])
        own_epochs = -(-self._mixture.counts[pick] // rows)
        parts = []
        while first < last:
            turn, start = divmod(first, rows)
            stop = min(start + last - first, rows)
            stream = self._stream(pick, self._epoch * own_epochs + turn)
            parts.append(stream.batch(start, stop, buffers))
            first += stop - start
        return join(parts, buffers)

    def _stream(self, pick: int, epoch: int) -> EpochStream:
        opened = self._streams.get(pick)
        if opened is not None:
            if opened[0] == epoch:
                return opened[1]
            opened[1].close()
        seed = derive_seed("dataset of a mixture", self._seed, pick)
        stream = self._mixture.datasets[pick].stream(
            self._wanted, seed, epoch, self._shuffle, self._reach[pick]
        )
        self._streams[pick] = epoch, stream
        return stream


class _Scratch(Buffers):
    """Memory for parts that are copied out of it before it is ``reset``: their sizes differ from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: list[npt.NDArray[np.uint8]] = []
        self._used = 0

    def reset(self) -> None:
        self._used = 0

    def buffer(self, rows: int, width: int) -> AlignedBuffer:
        self._used += 1
        size = rows * width
        if len(self._owners) < self._used:
            self._owners.append(np.empty(0, np.uint8))
        if len(self._owners[self._used - 1]) < size + ALIGNMENT:
            self._owners[self._used - 1] = np.empty(size + size // 4 + ALIGNMENT, np.uint8)
        owner = self._owners[self._used - 1]
        offset = -owner.ctypes.data % ALIGNMENT
        return AlignedBuffer(owner, offset, np.ndarray((rows, width), np.uint8, owner, offset))


def _places(picks: Picks | Rows) -> list[tuple[int, Rows]]:
    """The positions of each dataset that has some, rising."""
    order, ends = np.argsort(picks, kind="stable"), np.cumsum(np.bincount(picks))
    return [
        (pick, order[start:end])
        for pick, (start, end) in enumerate(pairwise([0, *ends.tolist()]))
        if start < end
    ]


def merge(parts: Sequence[Batch], places: Sequence[Rows], buffers: Buffers) -> Batch:
    """One batch of several, the rows of each at its places: together 0 to n - 1, each once."""
    every = np.concatenate(places)
    back = np.empty_like(every)
    back[every] = np.arange(len(every))
    return {name: _merged([part[name] for part in parts], places, back, buffers) for name in parts[0]}


def _merged(parts: Sequence[Any], places: Sequence[Rows], back: Rows, buffers: Buffers) -> Any:
    if isinstance(parts[0], Ragged):
        return Ragged.concatenate(parts).take(back)
    if isinstance(parts[0], pa.Array):
        return pa.concat_arrays(parts).take(pa.array(back))
    shape, dtype = parts[0].shape[1:], parts[0].dtype
    if dtype.kind == "O":
        return np.concatenate(parts)[back]
    merged = buffers.empty(len(back), dtype, shape)
    if dtype.itemsize * math.prod(shape) <= _NARROW:
        return np.concatenate(parts).take(back, 0, merged, "clip")
    for part, where in zip(parts, places, strict=True):
        merged[where] = part
    return merged


def _checked_datasets(datasets: Sequence[BaseDataset]) -> list[BaseDataset]:
    checked = list(datasets) if isinstance(datasets, Sequence) else []
    other = [each for each in checked if not isinstance(each, BaseDataset)]
    if not checked or other:
        what = type(other[0]).__name__ if other else repr(datasets)
        raise UsageError(
            f"mix() was given {what}, but it takes a list of datasets, at least one. Open them with open_dataset()."
        )
    for number, dataset in enumerate(checked):
        if not len(dataset):
            raise DataError(f"Dataset {number} of the mixture has no rows. Leave it out.")
        _check_columns(checked[0], dataset, number)
    return checked


def _check_columns(first: BaseDataset, other: BaseDataset, number: int) -> None:
    mine = {column.name: column for column in first.schema}
    its = {column.name: column for column in other.schema}
    differing = [f"{name!r} is only in dataset 0" for name in mine if name not in its]
    differing += [f"{name!r} is only in dataset {number}" for name in its if name not in mine]
    differing += [
        f"{column} in dataset 0, but {its[name]} in dataset {number}"
        for name, column in mine.items()
        if name in its and its[name] != column
    ]
    if not differing and {column.name: column for column in first.row_schema} != {
        column.name: column for column in other.row_schema
    }:
        differing = [f"rows of windows in one, of windows of another length or none in dataset {number}"]
    if differing:
        raise ColumnError(
            f"Datasets 0 and {number} of a mixture differ in their columns: {'; '.join(differing)}. Open them with the "
            "same columns=[...], and make dtypes and shapes alike with cached_transform or when they are written."
        )


def _checked_weights(weights: Sequence[float], count: int) -> list[Fraction]:
    given = [_exact(weight) for weight in weights] if isinstance(weights, Iterable) else []
    exact = [weight for weight in given if weight is not None and weight > 0]
    if len(given) != count or len(exact) != count:
        raise UsageError(
            f"weights={weights!r}, but it must be {count} positive numbers, one for each dataset. They need not add "
            "up to 1."
        )
    return exact


def _exact(weight: Any) -> Fraction | None:
    if isinstance(weight, Fraction):
        return weight
    try:
        return Fraction(operator.index(weight))
    except TypeError:
        pass
    try:
        return Fraction(float(weight))
    except (TypeError, ValueError, OverflowError):  # no number, NaN or infinite
        return None
