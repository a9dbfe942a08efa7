"""Writes one split's files: rows gathered in their stored order, a row group at a time.

While a row group is written the next is gathered and the statistics of the one before are
computed; what is written does not depend on that.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.manifest import ColumnStatistics, FileEntry
from hopyard.data.order import Rows
from hopyard.data.preparing.layout import Values
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.preparing.policies import Policies
from hopyard.data.preparing.statistics import Statistics
from hopyard.data.preparing.unfinished import unfinished_name
from hopyard.data.ragged import Ragged
from hopyard.data.reading.listed import is_whole
from hopyard.data.schema import Column
from hopyard.data.sources.columns import ColumnData, gather
from hopyard.errors import StorageFullError
from hopyard.storage.base import Store

GROUPS = 24  # row groups are a multiple of it: it has many divisors, so many numbers of partitions are even
GROUP_BYTES = 32 << 20
FILE_BYTES = 192 << 20
_BUFFERS = 3  # row groups: being gathered, written, and summed up

Repeat = Callable[[Callable[[], Any]], Any]
"""Runs a write until there is space for it; see ``storage.full``."""


def group_size(rows: int, row_bytes: float, most: int = GROUP_BYTES) -> int:
    """Rows of each row group but the last: a multiple of 24 groups if that is possible, at least 24 if
    there are as many rows, of at most ``most`` bytes."""
    if rows <= GROUPS:
        return 1
    groups = GROUPS * max(1, -int(-rows * row_bytes // (GROUPS * most)))
    size = -(-rows // groups)
    return size if -(-rows // size) == groups else max(1, rows // groups)


def _row_bytes(column: Column, columns: Mapping[str, ColumnData]) -> float:
    """Of a column as it is stored, which may be much more than in the source if rows are padded."""
    if column.stored_width is not None:
        return column.stored_width
    return columns[column.name].nbytes / len(columns[column.name])


@dataclass(frozen=True)
class _Group:
    """Some rows, ready to be written."""

    values: Mapping[str, Values]
    missing: Mapping[str, int]


class SplitWriter:
    """Writes the rows of one split into a store.

    Args:
        columns: of the source.
        rows: numbers of the source's rows, in the order to be stored.
        progress: called with the number of rows just written, after each file.
        watch: called with the number of rows written so far, after each row group.
        groups: write one file of so many row groups, or as many as there are rows; None: by the bytes.
    """

    def __init__(
        self,
        columns: Mapping[str, ColumnData],
        rows: Rows,
        policies: Policies,
        store: Store,
        progress: Callable[[int], None] | None = None,
        watch: Callable[[int], None] | None = None,
        groups: int | None = None,
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._policies = policies
        self._store = store
        self._progress = progress
        self._watch = watch
        self._buffers: dict[tuple[str, int], npt.NDArray[Any]] = {}
        row_bytes = max(sum(_row_bytes(column, columns) for column in policies.schema), 1)
        self._size = group_size(len(rows), row_bytes) if groups is None else max(1, -(-len(rows) // groups))
        self._groups = -(-len(rows) // self._size)
        files = max(1, round(len(rows) * row_bytes / FILE_BYTES)) if groups is None else 1
        self._groups_per_file = -(-self._groups // files)

    @property
    def num_row_groups(self) -> int:
        return self._groups

    def write(self, repeat: Repeat) -> tuple[tuple[FileEntry, ...], dict[str, ColumnStatistics]]:
        """All files, and the statistics of all rows."""
        entries, total = self.write_part(repeat)
        return entries, total.result()

    def write_part(self, repeat: Repeat) -> tuple[tuple[FileEntry, ...], Statistics]:
        """The same for rows that are a part of a split: the statistics can be merged with those of others."""
        entries = []
        total = Statistics(self._policies.schema)
        # A folder of its own: other preparations of this process may stage their files at the same time.
        directory = Path(tempfile.mkdtemp(prefix="hopyard-", dir=self._store.staging()))
        try:
            for first in range(0, self._groups, self._groups_per_file):
                groups = range(first, min(first + self._groups_per_file, self._groups))
                entry, statistics = self._write_file(groups, directory, repeat)
                entries.append(entry)
                for part in statistics:
                    total.merge(part)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return tuple(entries), total

    def _write_file(
        self, groups: range, directory: Path, repeat: Repeat
    ) -> tuple[FileEntry, list[Statistics]]:
        statistics: list[Statistics] = []

        def once() -> FileEntry:
            statistics.clear()
            path = directory / f"{groups.start}.parquet"
            try:
                entry = self._stage(groups, path, statistics)
                name = unfinished_name(self._store, entry.name)
                if not any(is_whole(self._store, replace(entry, name=there)) for there in (entry.name, name)):
                    self._store.put_file(name, path)
                return entry
            finally:
                path.unlink(missing_ok=True)

        entry: FileEntry = repeat(once)
        if self._progress is not None:
            self._progress(entry.rows)
        return entry, statistics

    def _stage(self, groups: range, path: Path, statistics: list[Statistics]) -> FileEntry:
        """The file at ``path``; ``statistics`` of each of its row groups are appended."""
        try:
            with FileWriter(path, self._policies.schema) as writer:
                statistics += self._write_groups(groups, writer)
                return writer.close()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(
                    f"No space is left in {path.parent} to write rows {groups.start * self._size} and following. "
                    "Make space there; nothing was half-written."
                ) from error
            raise

    def _write_groups(self, groups: range, writer: FileWriter) -> list[Statistics]:
        statistics = []
        with ThreadPoolExecutor(2, "hopyard-prepare") as pool:
            computed: deque[Future[Statistics]] = deque()
            coming = pool.submit(self._gather, groups.start)
            for number in groups:
                group = coming.result()
                computed.append(
                    pool.submit(Statistics.of, self._policies.schema, group.values, group.missing)
                )
                if len(computed) == _BUFFERS:
                    statistics.append(computed.popleft().result())  # its buffers are free from here on
                if number + 1 < groups.stop:
                    coming = pool.submit(self._gather, number + 1)
                writer.write(group.values)
                if self._watch is not None:
                    self._watch(min((number + 1) * self._size, len(self._rows)))
            return statistics + [part.result() for part in computed]

    def _gather(self, number: int) -> _Group:
        rows = self._rows[number * self._size : (number + 1) * self._size]
        gathered = {
            name: replace(
                data,
                values=gather(data.values, rows, self._buffer(name, number, len(rows))),
                missing=None if data.missing is None else data.missing[rows],
            )
            for name, data in self._columns.items()
        }
        missing = {
            name: int(data.missing.sum()) for name, data in gathered.items() if data.missing is not None
        }
        return _Group(self._policies.apply(gathered), missing)

    def _buffer(self, name: str, number: int, rows: int) -> npt.NDArray[Any] | None:
        """Memory for a row group of a tensor; new memory for each would cost more than the gathering."""
        values = self._columns[name].values
        if isinstance(values, Ragged):
            return None
        key = name, number % _BUFFERS
        if key not in self._buffers:
            self._buffers[key] = np.empty((self._size, *values.shape[1:]), values.dtype)
        return self._buffers[key][:rows]
