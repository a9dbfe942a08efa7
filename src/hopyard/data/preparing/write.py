"""Writes the files of a split: rows gathered in their stored order, a row group at a time.

While a row group is written the next is gathered and the statistics of the one before are
computed; the written bytes do not depend on that.
"""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.columns.columns import ColumnData
from hopyard.data.columns.policies import Policies
from hopyard.data.files.listed import is_whole
from hopyard.data.files.unfinished import unfinished_name
from hopyard.data.layout import Values
from hopyard.data.manifest import FileEntry
from hopyard.data.order import Rows
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.preparing.statistics import Statistics
from hopyard.data.ragged import Ragged
from hopyard.errors import StorageFullError
from hopyard.storage import files
from hopyard.storage.base import Store
from hopyard.storage.temporary import temporary_name

_BUFFERS = 3  # row groups: being gathered, written, and summed up


@dataclass(frozen=True)
class _Group:
    """Rows of a row group, ready to be written."""

    values: Mapping[str, Values]
    missing: Mapping[str, int]


@dataclass(frozen=True)
class _Rows:
    """The rows of a file, and the number of rows of each row group but the last."""

    columns: Mapping[str, ColumnData]
    rows: Rows
    size: int

    @property
    def groups(self) -> int:
        return -(-len(self.rows) // self.size)


@contextlib.contextmanager
def staged(store: Store) -> Iterator[Path]:
    """A folder for files on their way into ``store``, which is gone afterwards.

    Raises:
        StorageFullError: no space is left in it.
    """
    # A folder of its own: others in this process may stage their files at the same time.
    staging = store.staging()
    directory = Path(tempfile.mkdtemp(prefix="hopyard-")) if staging is None else staging / temporary_name()
    try:
        if staging is not None:
            files.new_directory(directory)
        yield directory
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"No space is left in {directory} for a file on its way into {store.url}. Make space there; nothing "
                "was half-written."
            ) from error
        raise
    finally:
        files.remove_tree(directory)


class SplitWriter:
    """Writes files of one split into a store."""

    def __init__(self, policies: Policies, store: Store) -> None:
        self._policies = policies
        self._store = store
        self._buffers: dict[tuple[str, int], npt.NDArray[Any]] = {}

    def write(
        self,
        columns: Mapping[str, ColumnData],
        rows: Rows,
        groups: int,
        watch: Callable[[int], None] | None = None,
    ) -> tuple[FileEntry, Statistics]:
        """One file.

        Args:
            columns: in which its rows are.
            rows: positions of its rows there, in the order to be stored.
            groups: row groups of the file, or as many as there are rows.
            watch: called with the rows that are written, after each row group.
        """
        with staged(self._store) as directory:
            path = directory / "0.parquet"
            source = _Rows(columns, rows, max(1, -(-len(rows) // groups)))
            entry, statistics = self._stage(source, path, watch or (lambda written: None))
            name = unfinished_name(self._store, entry.name)
            if not any(is_whole(self._store, replace(entry, name=there)) for there in (entry.name, name)):
                self._store.put_file(name, path)
        total = Statistics(self._policies.schema)
        for part in statistics:
            total.merge(part)
        return entry, total

    def _stage(
        self, source: _Rows, path: Path, watch: Callable[[int], None]
    ) -> tuple[FileEntry, list[Statistics]]:
        """The file at ``path``, and the statistics of each of its row groups."""
        with FileWriter(path, self._policies.schema) as writer:
            statistics = self._write_groups(source, writer, watch)
            return writer.close(), statistics

    def _write_groups(
        self, source: _Rows, writer: FileWriter, watch: Callable[[int], None]
    ) -> list[Statistics]:
        statistics = []
        with ThreadPoolExecutor(2, "hopyard-prepare") as pool:
            computed: deque[Future[Statistics]] = deque()
            coming = pool.submit(self._gather, source, 0)
            for number in range(source.groups):
                group = coming.result()
                computed.append(
                    pool.submit(Statistics.of, self._policies.schema, group.values, group.missing)
                )
                if len(computed) == _BUFFERS:
                    statistics.append(computed.popleft().result())  # its buffers are free from here on
                if number + 1 < source.groups:
                    coming = pool.submit(self._gather, source, number + 1)
                writer.write(group.values)
                watch(min((number + 1) * source.size, len(source.rows)))
            return statistics + [part.result() for part in computed]

    def _gather(self, source: _Rows, number: int) -> _Group:
        rows = source.rows[number * source.size : (number + 1) * source.size]
        gathered = {
            name: data.take(rows, self._buffer(data, number, source.size, len(rows)))
            for name, data in source.columns.items()
        }
        missing = {
            name: int(data.missing.sum()) for name, data in gathered.items() if data.missing is not None
        }
        return _Group(self._policies.apply(gathered), missing)

    def _buffer(self, data: ColumnData, number: int, size: int, rows: int) -> npt.NDArray[Any] | None:
        """Memory for a row group of a tensor; new memory for each would cost more than the gathering."""
        values = data.values
        if isinstance(values, Ragged):
            return None
        key = data.name, number % _BUFFERS
        there = self._buffers.get(key)
        if (
            there is None
            or len(there) < rows
            or (there.dtype, there.shape[1:]) != (values.dtype, values.shape[1:])
        ):
            # Files of one split differ by a few rows.
            there = self._buffers[key] = np.empty((size + size // 16, *values.shape[1:]), values.dtype)
        return there[:rows]
