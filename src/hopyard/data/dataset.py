"""Datasets: rows as row groups of Parquet files, dealt into partitions, read at random or by loaders."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hopyard.data.loader import Loader, Output
from hopyard.data.manifest import FileEntry, Manifest
from hopyard.data.order import Rows
from hopyard.data.parquet import FILE_DOMAIN
from hopyard.data.reader import Reader
from hopyard.data.schema import Schema
from hopyard.data.stored import StoredFile
from hopyard.data.views import Batch
from hopyard.errors import CorruptError, UsageError
from hopyard.objects.digests import Hasher, digest_json
from hopyard.storage.base import Store

_VERIFIED_AT_ONCE = 16 << 20


class Dataset:
    """Rows of a prepared dataset, of one of its partitions, or of Parquet files as they are.

    Picklable: what travels is where the files are and the part of the manifest that is about them.
    Files are opened at the first read, once per process. Threads may share a dataset.

    Args:
        store: holds the manifest's files, or None if their names are paths.
        manifest: of the files.
        groups: the row groups that belong to the dataset, or None for all.
        fingerprint: of these rows; by default the manifest's.
        prepared: whether ``prepare`` wrote the files, so that they must be as it writes them.
    """

    def __init__(
        self,
        store: Store | None,
        manifest: Manifest,
        groups: Sequence[int] | None = None,
        fingerprint: str | None = None,
        prepared: bool = True,
    ) -> None:
        self.store = store
        self.manifest = manifest
        self.fingerprint = manifest.fingerprint if fingerprint is None else fingerprint
        self.prepared = prepared
        self._groups = tuple(range(manifest.num_row_groups)) if groups is None else tuple(groups)
        rows = manifest.group_rows()
        self.group_rows = tuple(int(rows[group]) for group in self._groups)
        self._rows = sum(self.group_rows)
        self._reader: Reader | None = None

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.manifest.schema

    @property
    def num_row_groups(self) -> int:
        """The most partitions there can be."""
        return len(self._groups)

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return f"Dataset({self._rows} rows in {self.num_row_groups} row groups; {self.schema})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def reader(self) -> Reader:
        """The dataset's files, opened at the first call in a process."""
        if self._reader is None:
            self._reader = Reader(self.store, self.manifest, self._groups, self.prepared)
        return self._reader

    def __getitem__(self, key: int | slice | npt.ArrayLike) -> Batch:
        """Rows by number, a slice, an array of numbers or a bool mask, as a dict of columns.

        An int gives one row: arrays of the columns' shapes. Anything else gives a batch.

        Raises:
            IndexError: a row is out of range.
        """
        if isinstance(key, (int, np.integer)):
            batch = self._gather(self._checked(np.array([key], np.int64)))
            return {name: values[0] for name, values in batch.items()}
        if isinstance(key, slice):
            return self._gather(np.arange(*key.indices(self._rows)))
        rows = np.asarray(key)
        if rows.dtype == bool and rows.shape == (self._rows,):
            return self._gather(np.flatnonzero(rows))
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
            raise UsageError(
                f"Rows were asked for by an array of shape {rows.shape} and dtype {rows.dtype}. Give a 1-d array "
                f"of row numbers, or of {self._rows} bools."
            )
        return self._gather(self._checked(rows.astype(np.int64)))

    def _checked(self, rows: Rows) -> Rows:
        bad = rows[(rows < -self._rows) | (rows >= self._rows)]
        if len(bad):
            raise IndexError(f"row {bad[0]} of a dataset of {self._rows} rows")
        return np.where(rows < 0, rows + self._rows, rows)

    def _gather(self, rows: Rows) -> Batch:
        return self.reader().gather(rows, self.schema.names)

    def partitions(self, p: int) -> list[Dataset]:
        """``p`` disjoint datasets of whole row groups, of nearly equal rows, that make up this one.

        Consecutive row groups if all are equal (the last one may be shorter), else largest first to
        the partition with the fewest rows. Depends on nothing but the row groups and ``p``.

        Raises:
            UsageError: fewer row groups than ``p``, or ``p`` below 1.
        """
        if not 1 <= p <= self.num_row_groups:
            raise UsageError(
                f"{p} partitions were asked for, but this dataset of {self._rows} rows has "
                f"{self.num_row_groups} row groups, and a partition is at least one. Ask for 1 to "
                f"{self.num_row_groups}, or prepare the data again."
            )
        return [self._part(groups) for groups in deal(self.group_rows, p)]

    def _part(self, chosen: Sequence[int]) -> Dataset:
        """The dataset of these row groups, with a manifest of only their files."""
        groups = [self._groups[number] for number in chosen]
        files: list[FileEntry] = []
        renumbered = {}
        first = kept = 0
        wanted = set(groups)
        for entry in self.manifest.files:
            inside = range(first, first + len(entry.group_rows))
            if not wanted.isdisjoint(inside):
                files.append(entry)
                renumbered.update({group: kept + place for place, group in enumerate(inside)})
                kept += len(entry.group_rows)
            first += len(entry.group_rows)
        return Dataset(
            self.store,
            replace(self.manifest, files=tuple(files)),
            [renumbered[group] for group in groups],
            digest_json([self.fingerprint, list(chosen)], "hopyard.partition"),
            self.prepared,
        )

    def loader(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        columns: Sequence[str] | None = None,
        remainder: Literal["drop", "repeat", "error"] = "drop",
        output: Output = "numpy",
        *,
        tail: Literal["short", "join"] = "short",
        epoch: int = 0,
    ) -> Loader:
        """Iterates over batches; see :class:`hopyard.data.loader.Loader`."""
        return Loader(
            self, batch_size, shuffle, seed, rank, world_size, columns, remainder, output, tail=tail, epoch=epoch
        )  # fmt: skip

    def verify(self) -> None:
        """Read every byte of the files and compare with the digests in the manifest.

        Raises:
            CorruptError: a file is not what was written; names it.
        """
        self.reader()
        for entry in self.manifest.files:
            file = StoredFile.open(self.store, entry.name)
            if self.prepared and _digest_of(file) != entry.digest:
                raise CorruptError(
                    f"{file.name} is not what was written: its digest differs from the manifest's. Restore it, "
                    "or delete it and prepare the data again."
                )


def _digest_of(file: StoredFile) -> str:
    hasher = Hasher(FILE_DOMAIN)
    if file.path is None:
        hasher.update(file.content or b"")
        return hasher.hexdigest()
    with file.path.open("rb") as opened:
        while block := opened.read(_VERIFIED_AT_ONCE):
            hasher.update(block)
    return hasher.hexdigest()


def deal(group_rows: Sequence[int], p: int) -> list[list[int]]:
    """Numbers of the row groups of each of ``p`` partitions; see :meth:`Dataset.partitions`."""
    count = len(group_rows)
    if len(set(group_rows[:-1])) <= 1 and (count < 2 or group_rows[-1] <= group_rows[0]):
        each, more = divmod(count, p)
        starts = [number * each + min(number, more) for number in range(p + 1)]
        return [list(range(starts[number], starts[number + 1])) for number in range(p)]
    dealt: list[list[int]] = [[] for _ in range(p)]
    fewest = [(0, 0, number) for number in range(p)]  # rows, row groups, partition
    for group in sorted(range(count), key=lambda group: (-group_rows[group], group)):
        rows, groups, number = heapq.heappop(fewest)
        dealt[number].append(group)
        heapq.heappush(fewest, (rows + group_rows[group], groups + 1, number))
    return [sorted(groups) for groups in dealt]
