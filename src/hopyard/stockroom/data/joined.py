"""Samples: several columns joined by their keys, as a dataset for loaders, searches and frameworks.

Row n is the n-th key in the order of the keys. A batch is one ``take`` per column, so a shuffled epoch is a true
permutation of all samples, of any number of columns. Columns are immutable: so is what they make up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.base import Partitioned
from hopyard.data.contract import EpochStream
from hopyard.data.order import Reach, Rows, permutation
from hopyard.data.ragged import Ragged
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.views import Batch, Wanted, columns_of, join
from hopyard.data.schema import TENSOR_DTYPES, Schema
from hopyard.data.schema import Column as SchemaColumn
from hopyard.errors import UnsupportedTypeError, UsageError
from hopyard.objects.digests import derive_seed, digest, digest_json
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.joining import MissingPolicy, joined, named
from hopyard.stockroom.data.rows import keys_of, plain
from hopyard.stockroom.maps import Key
from hopyard.stockroom.maps.keys import encode_many
from hopyard.stockroom.packfiles import Objects
from hopyard.wording import are, counted, nearest


class JoinedSamples(Partitioned):
    """The samples whose keys all of some columns have, as rows of these columns. Picklable; threads may share it.

    Everything that a dataset can do: ``samples[3]``, ``.loader(batch_size, shuffle=True, output="torch")``,
    ``.tf_dataset(...)``, ``search.fit(samples)``. Samples of one column are ``samples[:]["image"]``.

    Args:
        columns: by the names that they shall have; or a list of columns, which keep theirs. Of columns that are being
            written, what they are now.
        keys: of the samples, in this order; None: all, in the order of the keys.
        missing: what becomes of samples that not all columns have: an ``"error"`` that says how many, or ``"drop"``.
        where: what messages and records of runs call them.

    Raises:
        UsageError: no columns, or two of one name; an unknown policy.
        DataError: samples are missing somewhere; or nothing is left.
    """

    def __init__(
        self,
        columns: Mapping[str, SampleColumn | ColumnDraft] | Sequence[SampleColumn | ColumnDraft],
        keys: Iterable[Key] | None = None,
        missing: MissingPolicy = "error",
        where: str = "",
    ) -> None:
        if missing not in ("error", "drop"):
            raise UsageError(
                f"missing={missing!r}, but it must be 'error' or 'drop'{nearest(str(missing), ('error', 'drop'), '.')}"
            )
        self.columns: Mapping[str, SampleColumn] = named(columns)
        self.where: str = where or f"the samples of {', '.join(map(repr, self.columns))}"
        codes = None if keys is None else keys_of(encode_many(list(keys)))
        self._positions, self._count = joined(self.columns, codes, missing)

    def __repr__(self) -> str:
        return f"JoinedSamples({self._count} of {', '.join(map(repr, self.columns.values()))})"

    def __getstate__(self) -> dict[str, Any]:
        for name, column in self.columns.items():
            if not isinstance(column.objects, Objects):
                raise UsageError(
                    f"the column {name!r} has changes that are not committed, so other processes cannot read it. Call "
                    "stock.commit(...) first, or read it in this process: num_workers=0."
                )
        return self.__dict__

    def __len__(self) -> int:
        return self._count

    @cached_property
    def schema(self) -> Schema:
        """The columns, as those of any dataset.

        Raises:
            UnsupportedTypeError: batches have no place for one of them; says which and what to do.
        """
        return Schema(_described(name, column) for name, column in self.columns.items())

    @cached_property
    def fingerprint(self) -> str:
        """Digest of what the rows are: of the columns' records and of which samples of them these are."""
        described = {name: column.record.to_json() for name, column in self.columns.items()}
        chosen = [
            None if places is None else digest(places.view(np.uint8), "hopyard.positions")
            for name, positions in self._positions.items()
            for places in [self.columns[name].chosen(positions)]
        ]
        return digest_json([described, chosen], "hopyard.samples")

    @property
    def split(self) -> str:
        """``"train"``: what a sample is for is not known here."""
        return "train"

    @property
    def num_row_groups(self) -> int:
        """The most partitions there can be: one sample each."""
        return self._count

    def keys(self) -> list[Key]:
        """The keys, in the order of the rows."""
        name, column = next(iter(self.columns.items()))
        return plain(column.codes()[self._places(name, np.arange(self._count))])

    def part(self, rows: npt.ArrayLike) -> JoinedSamples:
        """The samples of these rows, in this order; negative numbers count from the end.

        Raises:
            IndexError: a row is out of range.
        """
        chosen = self._numbers(rows)
        other = object.__new__(type(self))
        other.columns, other.where = self.columns, self.where
        other._positions = {name: self._places(name, chosen) for name in self.columns}
        other._count = len(chosen)
        return other

    def common_samples(self, other: JoinedSamples) -> int:
        """The number of samples that both have, as far as they are of the same columns."""
        for name, column in self.columns.items():
            if name in other.columns and other.columns[name].record == column.record:
                mine, its = (each._places(name, np.arange(len(each))) for each in (self, other))
                return len(np.intersect1d(mine, its))
        return 0

    def partitions(self, p: int) -> list[JoinedSamples]:
        """``p`` disjoint datasets of neighbouring samples, of equally many but for one, that make up this one.

        Raises:
            UsageError: fewer samples than ``p``, or ``p`` below 1.
        """
        if not 1 <= p <= self._count:
            raise UsageError(
                f"{p} partitions were asked for, but there {are(self._count)} "
                f"{counted(self._count, 'sample')}, and a partition has at least one. Ask for 1 to {self._count}."
            )
        return [self.part(rows) for rows in np.array_split(np.arange(self._count), p)]

    def reach(self, window: int | None) -> Reach:
        """None: permutations are of all rows, whatever the window."""
        return None

    def stream(self, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: Reach) -> SampleStream:
        """The rows of an epoch."""
        return SampleStream(self, wanted, self.order(seed, epoch, shuffle, reach))

    def order(self, seed: int, epoch: int, shuffle: bool, reach: Reach) -> Rows:
        """(len,) int64: the numbers of the rows of an epoch, in their order."""
        return (
            permutation(self._count, derive_seed("order", seed, epoch)) if shuffle else np.arange(self._count)
        )

    def take(self, rows: Rows, wanted: Wanted) -> Batch:
        """Any rows, by number."""
        return self.gather(rows, wanted, Buffers())

    def gather(self, rows: Rows, wanted: Wanted, buffers: Buffers) -> Batch:
        """Any rows, in memory of ``buffers``."""
        arrays = {name: self._column(name, rows, buffers) for name in columns_of(wanted)}
        return {
            name: arrays[columns]
            if isinstance(columns, str)
            else np.stack([arrays[column] for column in columns], axis=1)
            for name, columns in wanted.items()
        }

    def _column(self, name: str, rows: Rows, buffers: Buffers) -> Any:
        column, described = self.columns[name], self.schema[name]
        places = self._places(name, rows)
        if described.kind == "tensor":
            out = buffers.empty(len(places), np.dtype(described.dtype), described.shape)
            return column.take(places, out)
        values = column.take(places)
        if described.kind == "ragged":
            nothing = np.empty(
                (0, *described.shape), described.dtype
            )  # of no rows, and of what is kept of empty ones
            return Ragged.from_rows([row if len(row) else nothing for row in values] or [nothing])[
                : len(values)
            ]
        batch = np.empty(len(values), object)
        batch[:] = values
        return batch

    def samples(self, rows: Sequence[int]) -> dict[str, Any]:
        """Of each column, the samples of these rows as the column gives them: stacked, or a list."""
        numbers = self._numbers(rows)
        return {name: column.take(self._places(name, numbers)) for name, column in self.columns.items()}

    def _numbers(self, rows: npt.ArrayLike) -> Rows:
        """Rows as an array of its own, counted from the start."""
        numbers = np.array(rows, np.int64)
        wrong = numbers[(numbers < -self._count) | (numbers >= self._count)]
        if len(wrong):
            raise IndexError(f"row {wrong[0]} of {counted(self._count, 'sample')}")
        numbers[numbers < 0] += self._count
        return numbers

    def _places(self, name: str, rows: Rows) -> Rows:
        """The positions of rows in a column."""
        places = self._positions[name]
        return rows if places is None else places.take(rows)

    def check_not_written(self) -> None:
        """Nothing to look at: packfiles are never written to, and each fragment was checked when it was first read."""


class SampleStream(EpochStream):
    """The rows of one epoch."""

    def __init__(self, samples: JoinedSamples, wanted: Wanted, order: Rows) -> None:
        self._samples, self._wanted, self._order = samples, wanted, order

    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Positions [first, last); behind the end comes the start."""
        count = len(self._order)
        parts = []
        while first < last:
            start = first % count
            stop = min(start + last - first, count)
            parts.append(self._samples.gather(self._order[start:stop], self._wanted, buffers))
            first += stop - start
        return join(parts, buffers)


def _described(name: str, column: SampleColumn) -> SchemaColumn:
    """The column as one of a dataset."""
    shape = column.shape
    if column.kind == "string":
        return SchemaColumn(name, "string")
    if column.kind == "bytes":
        return SchemaColumn(name, "bytes")
    advice = (
        f"Leave it out, store it otherwise, or read it by hopyard.make_torch_dataset([stock.data[{name!r}], ...]), "
        "whose items are single samples."
    )
    if column.dtype not in TENSOR_DTYPES:
        raise UnsupportedTypeError(f"column {name!r} holds {column.dtype}, which batches cannot. {advice}")
    fixed = tuple(length for length in shape if length is not None)
    if 0 in fixed:
        raise UnsupportedTypeError(
            f"column {name!r} holds tensors of shape {shape}, which are empty. {advice}"
        )
    if None not in shape:
        return SchemaColumn(name, "tensor", column.dtype, fixed)
    if None in shape[1:]:
        raise UnsupportedTypeError(
            f"column {name!r} holds tensors of shape {shape}, whose lengths vary from sample to sample, and a batch is "
            f"one array. {advice}"
        )
    return SchemaColumn(name, "ragged", column.dtype, fixed)
