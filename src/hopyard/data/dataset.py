"""Datasets: rows as row groups of Parquet files, dealt into partitions, read at random or by loaders."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hopyard.data.base import RowGroups
from hopyard.data.cache.node import NodeCache
from hopyard.data.columns.policies import Policies
from hopyard.data.combining.window_columns import WindowColumns
from hopyard.data.combining.windows import Length, Windows
from hopyard.data.files.listed import open_entry
from hopyard.data.manifest import FILE_DOMAIN, FileEntry, Fingerprint, ForeignEntry, Manifest
from hopyard.data.order import HELD_BYTES, Reach, Rows, Window, epoch_windows
from hopyard.data.reading.mapped import first_rows_of
from hopyard.data.reading.reader import Bitmap, Reader, count_selected, unpack
from hopyard.data.reading.views import Batch, Wanted, columns_of
from hopyard.data.recipe.recipe import Recipe
from hopyard.data.schema import Schema
from hopyard.data.stream import WindowStream
from hopyard.errors import UsageError
from hopyard.objects.digests import Hasher, digest, digest_json
from hopyard.storage.base import Store

_VERIFIED_AT_ONCE = 16 << 20


@dataclass(frozen=True)
class Skipped:
    """A part of the files that ``corrupt="skip"`` left out at opening: a file, or a row group of one.

    Attributes:
        file: its name.
        row_group, column, rows: place of the damage and number of lost rows; None if unknown.
        reason: Arrow's message.
    """

    file: str
    row_group: int | None
    column: str | None
    rows: int | None
    reason: str


class Dataset(RowGroups):
    """Rows of a prepared dataset, of one of its partitions, or of Parquet files as they are.

    Picklable: the places of the files travel, and the part of the manifest that is about them.
    Files are opened at the first read, once per process. Threads may share a dataset.

    Args:
        store: holds the manifest's files, or None if their names are paths.
        manifest: of the files.
        groups: the row groups that belong to the dataset, or None for all.
        fingerprint: of these rows; by default the manifest's.
        prepared: whether ``prepare`` wrote the files, so that they must be as it writes them.
        recipe: how rows of the files become the manifest's columns; None: they are.
        selected: of each of the groups, which rows belong to the dataset (``numpy.packbits``), None: all.
        cache: where decoded row groups are kept on a machine; None: the default place there; False: in memory only.
        skipped: parts that were left out because they are corrupt.
    """

    def __init__(
        self,
        store: Store | None,
        manifest: Manifest,
        groups: Sequence[int] | None = None,
        fingerprint: str | Fingerprint | None = None,
        prepared: bool = True,
        *,
        recipe: Recipe | None = None,
        selected: Sequence[Bitmap | None] | None = None,
        cache: NodeCache | Literal[False] | None = None,
        skipped: Sequence[Skipped] = (),
    ) -> None:
        self.store = store
        self.manifest = manifest
        self.prepared = prepared
        self.recipe: Recipe = Recipe.plain(manifest.schema) if recipe is None else recipe
        self.cache = cache
        self.skipped: tuple[Skipped, ...] = tuple(skipped)
        self.lazy_fingerprint: str | Fingerprint = (
            manifest.fingerprint if fingerprint is None else fingerprint
        )
        self._groups = tuple(range(manifest.num_row_groups)) if groups is None else tuple(groups)
        self.selected: tuple[Bitmap | None, ...] = (
            (None,) * len(self._groups) if selected is None else tuple(selected)
        )
        whole = manifest.group_rows()[list(self._groups)].tolist()
        self.group_rows: tuple[int, ...] = tuple(
            rows if bitmap is None else count_selected(bitmap)
            for rows, bitmap in zip(whole, self.selected, strict=True)
        )
        self._rows = sum(self.group_rows)
        self._reader: Reader | None = None

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.manifest.schema

    @property
    def policies(self) -> Policies:
        if self.prepared:
            return Policies.of_settings(self.schema, self.manifest.settings)
        nulls = "fill" if self.recipe.filled else "error"
        return replace(self.recipe.policies or Policies(self.schema, nulls=nulls), schema=self.schema)

    def filled(self) -> dict[str, int | None]:
        """Columns with nulls that were filled, and how many, if preparation counted them."""
        counted = {name: known.missing for name, known in self.manifest.statistics.items() if known.missing}
        return {**dict.fromkeys(self.recipe.filled), **counted}

    def decodes(self, wanted: Wanted) -> bool:
        """Whether images of these columns are decoded for every batch."""
        return not self.recipe.per_batch.keys().isdisjoint(columns_of(wanted))

    @property
    def fingerprint(self) -> str:
        """Digest of the rows' content. Of files that ``prepare`` did not write, those of this machine are read for it
        when it is first asked for, once as long as nobody touches them.

        Raises:
            CorruptError: such a file was changed since the dataset was opened.
        """
        known = self.lazy_fingerprint
        return known if isinstance(known, str) else known.value()

    @property
    def split(self) -> str:
        """``"train"`` or ``"val"``."""
        return self.manifest.split

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
            self._reader = Reader(
                self.store, self.manifest, self._groups, self.prepared, self.recipe, self.selected,
                self.node_cache(),
            )  # fmt: skip
        return self._reader

    def node_cache(self) -> NodeCache | None:
        """The node cache for data that is decoded or computed from the rows; None: it stays in memory."""
        kept = self.cache is not False and (self.store is None or self.store.shared)
        return (self.cache or NodeCache()) if kept else None

    def content(self) -> str:
        """Digest like the fingerprint; differs also if a file was replaced or written to since that was made."""
        return digest_json(
            [self.fingerprint, self.split, self.reader().identities()], "hopyard.dataset-content"
        )

    def reach(self, window: int | None) -> Reach:
        """Rows of a window of that many decoded bytes; None if all rows are permuted together."""
        return None if window is None else self.reader().window_rows(window)

    def stream(self, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: Reach) -> WindowStream:
        """The rows of an epoch.

        Raises:
            CorruptError: a file was changed since it was opened.
        """
        reader = self.reader()
        reader.check_unchanged()
        return WindowStream(reader, wanted, self._windows(seed, epoch, shuffle, reach))

    def order(self, seed: int, epoch: int, shuffle: bool, reach: Reach) -> Rows:
        """(len,) int64: the numbers of the rows of an epoch, in their order."""
        firsts = first_rows_of(self.group_rows)
        parts = [np.empty(0, np.int64)]
        for window in self._windows(seed, epoch, shuffle, reach):
            numbers = [
                np.arange(firsts[group], firsts[group] + self.group_rows[group]) for group in window.groups
            ]
            parts.append(np.concatenate(numbers)[window.order()])
        return np.concatenate(parts)

    def _windows(self, seed: int, epoch: int, shuffle: bool, reach: Reach) -> list[Window]:
        assert not isinstance(reach, list)
        if not shuffle:  # windows bound memory only
            held = self.reader().window_rows(HELD_BYTES)
            reach = held if reach is None or (held is not None and held < reach) else reach
        return epoch_windows(self.group_rows, seed, epoch, reach, shuffle)

    def check_not_written(self) -> None:
        """Raise CorruptError if a file was written to since it was opened; names it."""
        self.reader().check_not_written()

    def take(self, rows: Rows, wanted: Wanted) -> Batch:
        """Any rows, by number."""
        return self.reader().gather(rows, wanted)

    def windows(
        self,
        length: Length,
        *,
        step: int = 1,
        time: str | None = None,
        max_gap: float | None = None,
        series: str | Sequence[str] | None = None,
        columns: WindowColumns | None = None,
    ) -> Windows:
        """Windows of rows that follow each other; see :class:`hopyard.data.combining.windows.Windows`."""
        return Windows(self, length, step=step, time=time, max_gap=max_gap, series=series, columns=columns)

    def partitions(self, p: int) -> list[Dataset]:
        """``p`` disjoint datasets of whole row groups, of nearly equal rows, that make up this one.

        Of row groups that are equal (the last one may be shorter): consecutive ones of a prepared dataset, which was
        shuffled; of other files every p-th one, for these often are sorted. Others are dealt, the largest first, to
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
        return [self.part(groups) for groups in deal(self.group_rows, p, self.prepared)]

    def part(self, chosen: Sequence[int]) -> Dataset:
        """The dataset of these row groups (0 to ``num_row_groups - 1``), with a manifest of only their files."""
        groups = [self._groups[number] for number in chosen]
        files: list[FileEntry] = []
        numbers: list[int] = []
        renumbered = {}
        first = kept = 0
        wanted = set(groups)
        for number, entry in enumerate(self.manifest.files):
            inside = range(first, first + len(entry.group_rows))
            if not wanted.isdisjoint(inside):
                files.append(entry)
                numbers.append(number)
                renumbered.update({group: kept + place for place, group in enumerate(inside)})
                kept += len(entry.group_rows)
            first += len(entry.group_rows)
        return Dataset(
            self.store,
            replace(self.manifest, files=tuple(files)),
            [renumbered[group] for group in groups],
            self._fingerprint_of(list(chosen)),
            self.prepared,
            recipe=self.recipe.of_files(numbers),
            selected=[self.selected[number] for number in chosen],
            cache=self.cache,
        )

    def rows_where(self, mask: npt.NDArray[np.bool_]) -> Dataset:
        """The dataset of the rows where ``mask``, (len,) bool, is True, in their order."""
        groups: list[int] = []
        selected: list[Bitmap] = []
        parts = np.split(mask, np.cumsum(self.group_rows)[:-1])
        for group, bitmap, part in zip(self._groups, self.selected, parts, strict=True):
            if part.any():
                rows = part if bitmap is None else unpack(bitmap, int(self.manifest.group_rows()[group]))
                if bitmap is not None:
                    rows = rows.copy()
                    rows[rows] = part
                groups.append(group)
                selected.append(np.packbits(rows))
        chosen = [digest(np.packbits(mask), "hopyard.selected-rows"), len(mask)]
        return Dataset(
            self.store,
            replace(self.manifest, statistics={}),
            groups,
            digest_json([self.fingerprint, chosen], "hopyard.rows"),
            self.prepared,
            recipe=self.recipe,
            selected=selected,
            cache=self.cache,
            skipped=self.skipped,
        )

    def common_rows(self, other: Dataset) -> int:
        """Number of rows that both datasets have from the same files. Files are the same if their content is."""
        mine = self._selections()
        return sum(
            int(np.count_nonzero(mine[place] & rows))
            for place, rows in other._selections().items()
            if place in mine
        )

    def _selections(self) -> dict[tuple[str, int], npt.NDArray[np.bool_]]:
        """Mask of the rows of each row group that belong to the dataset, by the content of the file and the group's
        number there."""
        found = {}
        for group, bitmap in zip(self._groups, self.selected, strict=True):
            number, within = self.manifest.locate(group)
            entry = self.manifest.files[number]
            content = entry.content.value() if isinstance(entry, ForeignEntry) else entry.digest
            rows = entry.group_rows[within]
            found[content, within] = np.ones(rows, bool) if bitmap is None else unpack(bitmap, rows)
        return found

    def _fingerprint_of(self, chosen: list[int]) -> str | Fingerprint:
        def make() -> str:
            return digest_json([self.fingerprint, chosen], "hopyard.partition")

        return make() if isinstance(self.lazy_fingerprint, str) else Fingerprint(make)

    def file_bytes(self) -> dict[str, int]:
        """Bytes of the dataset's row groups by the name of the file that they are in, as their rows go."""
        ends = np.cumsum([len(entry.group_rows) for entry in self.manifest.files])
        rows = self.manifest.group_rows()
        counts = dict.fromkeys((entry.name for entry in self.manifest.files), 0)
        for group, file in zip(self._groups, np.searchsorted(ends, self._groups, side="right"), strict=True):
            counts[self.manifest.files[file].name] += int(rows[group])
        return {
            entry.name: entry.size * counts[entry.name] // max(1, entry.rows) for entry in self.manifest.files
        }

    def verify(self) -> None:
        """Read every byte of the files and compare with what was written; see :func:`hopyard.data.verify`.

        Raises:
            CorruptError: a file is not what was written; names it.
        """
        self.reader()
        for entry in self.manifest.files if self.prepared else ():
            check_bytes(self.store, entry)


def check_bytes(store: Store | None, entry: FileEntry) -> None:
    """Read every byte of a file that ``prepare`` wrote, also if it was found good before.

    Raises:
        CorruptError: it is not what was written; names file, row group and column if they can be told.
        NotFoundError: it is not there.
    """
    file = open_entry(store, entry)
    hasher = Hasher(FILE_DOMAIN, threads=None)
    for start in range(0, file.size, _VERIFIED_AT_ONCE):
        hasher.update(file.read(start, min(_VERIFIED_AT_ONCE, file.size - start)))
    if hasher.hexdigest() != entry.digest:
        raise file.found_damaged()


def deal(group_rows: Sequence[int], p: int, consecutive: bool) -> list[list[int]]:
    """Numbers of the row groups of each of ``p`` partitions; see :meth:`Dataset.partitions`."""
    count = len(group_rows)
    if len(set(group_rows[:-1])) <= 1 and (count < 2 or group_rows[-1] <= group_rows[0]):
        if not consecutive:
            return [list(range(number, count, p)) for number in range(p)]
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
