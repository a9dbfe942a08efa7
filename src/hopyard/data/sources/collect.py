"""One pass over a source: content and hashes of the rows, and the rows themselves where any can be reached.

The fingerprint is over logical content: of each column the name, the kind and dtype, and of the rows, in
any order, the elements, the lengths of lists and which are null. So a dict of arrays and the same
rows in a frame or in files, in batches of any size, have the same.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hopyard.data.columns.columns import (
    ColumnData,
    as_expected,
    as_ragged,
    check_lengths,
    empty_data,
    expand,
    holds_lists,
)
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.schema import Column, unknown_columns
from hopyard.data.sources.content import RowFindings, canonical
from hopyard.data.sources.hashing import Hashes
from hopyard.errors import DataError, StorageFullError

MEMORY = 256 << 20  # bytes; a source of more is spooled to files, or read again
_COPIED_AT_ONCE = 16 << 20


@dataclass(frozen=True)
class SourceFindings:
    """Findings of one pass over a source.

    Attributes:
        content: of the rows.
        schema: the columns by name.
        hashes: (n,) the first hash of each row, before ``mix``.
        columns: all rows of all columns, or None if they did not fit the memory and were not spooled.
    """

    content: RowFindings
    schema: Mapping[str, Column]
    hashes: Hashes
    columns: Mapping[str, ColumnData] | None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.content.rows

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the logical content of all columns."""
        return self.content.fingerprint()


class Collector:
    """Takes a source's batches, hashes their rows and keeps them.

    Args:
        spool: a directory for unnamed temporary files, which take rows of more than ``memory`` bytes; None:
            such rows are only hashed.
        memory: bytes kept in memory; None: ``MEMORY``.
        expected: number of rows that will come, if known.
        numbered: whether somebody can find rows by their numbers.
    """

    def __init__(
        self,
        spool: Path | None = None,
        memory: int | None = None,
        expected: int | None = None,
        numbered: bool = True,
    ) -> None:
        self._columns: dict[str, _ColumnCollector] = {}
        self._content = RowFindings()
        self._hashes: list[Hashes] = []
        self._numbered = numbered
        self._spool = spool
        self._memory = MEMORY if memory is None else memory
        self._expected = expected or 0
        self._held = 0

    @property
    def rows(self) -> int:
        """Number of rows added."""
        return self._content.rows

    def add(self, batch: Mapping[str, ColumnData]) -> None:
        if not self._columns:
            self._columns = self._begin(batch)
        if set(batch) != set(self._columns):
            self._refuse_columns(batch)
        check_lengths(batch)
        self._held += sum(data.nbytes for data in batch.values())
        if self._held > self._memory:
            for column in self._columns.values():
                column.leave_memory(self._spool)
        for name, column in self._columns.items():
            column.add(batch[name], self.rows)
        self._hashes.append(self._content.add({name: batch[name] for name in self._columns}, self._numbered))

    def _begin(self, first: Mapping[str, ColumnData]) -> dict[str, _ColumnCollector]:
        """Collectors with room for the expected rows, if these all fit the memory; else the memory is left at once."""
        times = max(self._expected / check_lengths(first), 1)
        expected = {name: int(data.nbytes * times) for name, data in first.items()}
        if sum(expected.values()) > self._memory:
            self._held = self._memory
            expected = dict.fromkeys(expected, 0)
        return {name: _ColumnCollector(data, expected[name]) for name, data in first.items()}

    def finish(self) -> SourceFindings:
        """Raises DataError if there was nothing."""
        if not self.rows:
            raise empty_data()
        values = {name: column.values() for name, column in self._columns.items()}
        kept = {name: data for name, data in values.items() if data is not None}
        hashes = self._hashes[0] if len(self._hashes) == 1 else np.concatenate(self._hashes)
        schema = {name: column.column for name, column in self._columns.items()}
        for (
            name,
            column,
        ) in schema.items():  # what the first rows of lists without a value are, later ones say
            self._content.found[name].column = canonical(column)
        return SourceFindings(self._content, schema, hashes, kept if len(kept) == len(values) else None)

    def close(self) -> None:
        """Let go of temporary files; columns that ``finish`` returned stay readable."""
        for column in self._columns.values():
            column.close()

    def _refuse_columns(self, batch: Mapping[str, ColumnData]) -> None:
        missing = sorted(set(self._columns) - set(batch)) or sorted(set(batch) - set(self._columns))
        raise DataError(
            f"Rows from number {self.rows} on have other columns than those before: {', '.join(batch)} instead "
            f"of {', '.join(self._columns)} ({', '.join(missing)} differ). Give every row the same columns."
        )


def collect(columns: Mapping[str, ColumnData]) -> SourceFindings:
    """Collect columns that are in memory as a whole; nothing is copied."""
    check_lengths(columns)
    content = RowFindings()
    hashes = content.add(columns, numbered=True)
    return SourceFindings(content, {name: data.column for name, data in columns.items()}, hashes, columns)


class _ColumnCollector:
    """Collects one column: the stream of its elements, and its type; ``expected`` bytes."""

    def __init__(self, first: ColumnData, expected: int) -> None:
        self.column, self._times = first.column, first.times
        self._store: _Memory | _File | None = _Memory(expected)
        self._lengths: list[npt.NDArray[np.int64]] | None = None
        self._missing: list[npt.NDArray[np.bool_]] = []
        self._any_missing = False
        self._count = 0  # elements

    def leave_memory(self, spool: Path | None) -> None:
        if isinstance(self._store, _Memory):
            held, self._store = self._store.array(), None if spool is None else _File(spool)
            if self._store is not None:
                self._store.append(held.data)

    def close(self) -> None:
        if isinstance(self._store, _File):
            self._store.close()

    def add(self, data: ColumnData, rows_before: int) -> None:
        if data.column != self.column or self._lengths is not None:
            data = self._reconcile(data, rows_before)
        if isinstance(data.values, Ragged):
            if self._lengths is None:
                self._lengths = []
            self._lengths.append(data.values.lengths)
        self._missing.append(np.zeros(len(data), bool) if data.missing is None else data.missing)
        self._any_missing |= data.missing is not None
        self._count += data.present().size
        if self._store is not None:
            for block in _blocks(data.present()):
                self._store.append(block)

    def _reconcile(self, data: ColumnData, rows_before: int) -> ColumnData:
        """Let lists of another length make the column ragged, and first values make it of their type; refuse any other
        change."""
        data = as_expected(data, self.column)
        mine, its = self.column, data.column
        lists = {"tensor": mine.shape[1:], "ragged": mine.shape}.get(mine.kind)
        other = {"tensor": its.shape[1:], "ragged": its.shape}.get(its.kind)
        if mine == its:
            return data
        if mine.kind == "ragged" and its.kind == "tensor" and its.shape and self._all_missing().all():
            self.column, self._lengths = its, None  # nulls have the length of the others
            return data
        if mine.kind == "ragged" and not self._count and holds_lists(its) and other is not None:
            self.column, lists = Column(mine.name, "ragged", its.dtype, other), other
            mine = self.column
            if mine == its:
                return data
        if lists is None or lists != other or mine.dtype != its.dtype or () in (_rank(mine), _rank(its)):
            raise DataError(
                f"Column {mine.name!r} is {mine} up to row {rows_before} and {its} from there. "
                "Give all rows one dtype and shape."
            )
        if mine.kind == "tensor":
            missing = self._all_missing()
            self._lengths = [np.where(missing, 0, mine.shape[0])]
            self.column = Column(mine.name, "ragged", mine.dtype, lists)
        return as_ragged(data)

    def _all_missing(self) -> npt.NDArray[np.bool_]:
        return np.concatenate(self._missing) if self._missing else np.zeros(0, bool)

    def values(self) -> ColumnData | None:
        if self._store is None:
            return None
        column, missing = self.column, self._all_missing() if self._any_missing else None
        dtype = np.dtype(np.uint8 if column.dtype == "object" else column.dtype)
        elements = self._store.array().view(dtype)
        if 0 not in column.shape:
            elements = elements.reshape(-1, *column.shape)
        elif self._lengths is None:
            rows = sum(map(len, self._missing)) - (0 if missing is None else int(missing.sum()))
            elements = elements.reshape(rows, *column.shape)
        if self._lengths is None:
            return ColumnData(column.name, column.kind, expand(elements, missing), missing, times=self._times)
        offsets = offsets_of(np.concatenate(self._lengths))
        return ColumnData(column.name, column.kind, Ragged(elements, offsets), missing)


def _rank(column: Column) -> tuple[int, ...] | None:
    """Shape of a row of scalars, (), which are no lists; None for lists."""
    return () if column.kind == "tensor" and not column.shape else None


def _blocks(array: npt.NDArray[Any]) -> Iterable[memoryview]:
    """The array's bytes in C order: itself if they lie so, else copies of some rows at a time."""
    if not array.size:
        return
    if array.flags.c_contiguous:
        yield _bytes(array)
        return
    step = max(1, _COPIED_AT_ONCE // max(array.nbytes // len(array), 1))
    for start in range(0, len(array), step):
        yield _bytes(np.ascontiguousarray(array[start : start + step]))


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class _Memory:
    """Bytes in one array that grows; NumPy's large arrays are in huge pages, where rows are gathered fast."""

    def __init__(self, expected: int) -> None:
        self._bytes = np.empty(expected, np.uint8)
        self._used = 0

    def append(self, block: memoryview) -> None:
        end = self._used + len(block)
        if end > len(self._bytes):
            grown = np.empty(max(end, 2 * len(self._bytes)), np.uint8)
            grown[: self._used] = self.array()
            self._bytes = grown
        self._bytes[self._used : end] = block
        self._used = end

    def array(self) -> npt.NDArray[np.uint8]:
        return self._bytes[: self._used]


class _File:
    """An unnamed temporary file: gone with this process, however it ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115

    def append(self, block: memoryview) -> None:
        try:
            self._file.write(block)
        except OSError as error:
            raise self._full(error) from error

    def array(self) -> npt.NDArray[np.uint8]:
        try:
            self._file.flush()
        except OSError as error:
            raise self._full(error) from error
        if not self._file.tell():
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk was said at the write
            self._file.close()

    def _full(self, error: OSError) -> Exception:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        return StorageFullError(
            f"No space is left in {self._directory} for the rows of a source that is read once while they are "
            "shuffled. Make space there, or set TMPDIR to a larger directory, and prepare again."
        )


def pick(columns: Mapping[str, Any], names: Sequence[str], what: str = "column") -> dict[str, Any]:
    """These columns, in the order that the data has them; ColumnError names all unknown ones."""
    if unknown := [name for name in dict.fromkeys(names) if name not in columns]:
        raise unknown_columns(unknown, columns, what)
    return {name: values for name, values in columns.items() if name in set(names)}
