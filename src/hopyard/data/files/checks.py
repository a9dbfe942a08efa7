"""Checksums that a prepared file carries of its own bytes, one for each column of each row group.

They stand between the last row group and the footer, where no Parquet reader looks::

    row groups | table | row groups, leaves, seal, magic | footer | its length | PAR1

The table has 24 bytes for each column chunk, row group after row group: where it begins and ends in the file
(int64), and the xxh3-64 of the bytes between. Each begins where the one before it in the file ends, so that no byte
of the file is without a checksum. The seal is the xxh3-64 of the table and of everything
behind the seal, so that it stands for the whole file; a manifest repeats it, and tells files apart by it that
were swapped. All numbers are little-endian.

Source of the function: Y. Collet, xxHash (XXH3), https://github.com/Cyan4973/xxHash.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from xxhash import xxh3_64, xxh3_64_intdigest, xxh3_128

from hopyard.data.files.parallel import on_all_cores
from hopyard.errors import CorruptError
from hopyard.storage.base import Buffer

MAGIC = b"HOPCHKS\x01"  # the last byte is the version
PARQUET_MAGIC = b"PAR1"

_SHAPE = struct.Struct("<II")
_SEAL = struct.Struct("<Q8s")
_CHUNK = np.dtype([("start", "<i8"), ("end", "<i8"), ("sum", "<u8")])
_PARQUET_END = 8
_CHECKED_AT_ONCE = 4 << 20  # bytes, by one thread
# Bytes: fewer are compared before threads have started, and where groups are decoded, several are at once anyway.
_WORTH_THREADS = 32 << 20
_HASHED_AT_ONCE = 64 << 20
SHORT_END = 64 << 10  # bytes read at first: most tables and footers together are shorter

ReadBytes = Callable[[int, int], Buffer]
"""Reads bytes of a file, by their offset and number."""


@dataclass(frozen=True)
class Checks:
    """The checksums of one file.

    Attributes:
        chunks: (row groups, leaves) of ``start``, ``end`` and ``sum``.
        seal: 16 hex digits that stand for the file's content.
    """

    chunks: npt.NDArray[np.void]
    seal: str

    def is_good(self, group: int, leaf: int, data: Buffer) -> bool:
        """Whether ``data`` is the chunk's bytes, by their checksum."""
        return bool(xxh3_64_intdigest(data) == self.chunks["sum"][group, leaf])


def chunk_bounds(metadata: pq.FileMetaData) -> npt.NDArray[np.void]:
    """Ends of the chunks, and of the ones before them, by the footer, (row groups, leaves); their sums are 0."""
    chunks = np.zeros((metadata.num_row_groups, metadata.num_columns), _CHUNK)
    for group in range(metadata.num_row_groups):
        described = metadata.row_group(group)
        for leaf in range(metadata.num_columns):
            chunk = described.column(leaf)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            chunks[group, leaf] = 0, start + chunk.total_compressed_size, 0
    ends = chunks["end"].reshape(-1)
    order = np.argsort(ends, kind="stable")
    starts = np.zeros_like(ends)
    starts[order[1:]] = ends[order[:-1]]
    chunks["start"] = starts.reshape(chunks.shape)
    return chunks


def table_of(metadata: pq.FileMetaData, content: memoryview, footer: bytes) -> tuple[bytes, str]:
    """The bytes to be written before ``footer`` (up to the end of the file), and the seal.

    Args:
        content: the file's bytes before them.
    """
    chunks = chunk_bounds(metadata)
    for chunk in chunks.reshape(-1):
        chunk["sum"] = xxh3_64_intdigest(content[chunk["start"] : chunk["end"]])
    table, shape = chunks.tobytes(), _SHAPE.pack(*chunks.shape)
    seal = _seal(table, shape, footer)
    return table + shape + _SEAL.pack(seal, MAGIC), f"{seal:016x}"


def _seal(table: bytes | memoryview, shape: bytes | memoryview, footer: bytes | memoryview) -> int:
    hasher = xxh3_64(table)
    hasher.update(shape)
    hasher.update(MAGIC)
    hasher.update(footer)
    return int(hasher.intdigest())


def read_checks(read: ReadBytes, size: int, name: str, remedy: str) -> Checks | None:
    """The checksums of a file of ``size`` bytes; None if it carries none.

    Args:
        name: of the file, and ``remedy``: advice about damage, for the error.

    Raises:
        CorruptError: they, or the footer, are not what was written.
    """
    head = _SHAPE.size + _SEAL.size
    tail = memoryview(read(max(size - SHORT_END, 0), min(size, SHORT_END)))
    if len(tail) < _PARQUET_END or tail[-4:] != PARQUET_MAGIC:
        return None
    footer = int.from_bytes(tail[-_PARQUET_END:-4], "little") + _PARQUET_END
    if head + footer > size:
        return None
    if head + footer > len(tail):
        tail = memoryview(read(size - head - footer, head + footer))
    begin = len(tail) - footer - head
    shape = tail[begin : begin + _SHAPE.size]
    seal, magic = _SEAL.unpack_from(tail, begin + _SHAPE.size)
    if magic != MAGIC:
        return None
    groups, leaves = _SHAPE.unpack(shape)
    length = groups * leaves * _CHUNK.itemsize
    start = size - footer - head - length
    if start >= 0:
        table = tail[begin - length : begin] if length <= begin else memoryview(read(start, length))
        if _seal(table, shape, tail[begin + head :]) == seal:
            chunks = np.frombuffer(table, _CHUNK).reshape(groups, leaves)
            return Checks(chunks, f"{seal:016x}")
    raise CorruptError(
        f"{name}: the checksums or the footer at its end are not what was written, so it was truncated or changed. "
        f"{remedy}"
    )


def damaged_chunks(
    files: Sequence[tuple[Checks, npt.NDArray[np.int64], npt.NDArray[np.uint8]]],
) -> list[list[tuple[int, int]]]:
    """(row group, leaf) of the chunks that are not as they were written, of each file. All cores share all chunks.

    Args:
        files: the checksums of each, the places of the chunks (n, 2), and the file's bytes.
    """
    tasks: list[tuple[int, slice]] = []
    chunks = []
    size = 0
    for file, (checks, places, _) in enumerate(files):
        described = checks.chunks[places[:, 0], places[:, 1]]
        chunks.append(list(zip(*(described[name].tolist() for name in ("start", "end", "sum")), strict=True)))
        ends = np.cumsum(described["end"] - described["start"])
        size += int(ends[-1])
        cuts = [0, *(np.flatnonzero(np.diff(ends // _CHECKED_AT_ONCE)) + 1).tolist(), len(places)]
        tasks += [(file, slice(*cut)) for cut in pairwise(cuts)]

    def bad(task: tuple[int, slice]) -> list[int]:
        file, part = task
        content = files[file][2].data
        # Bytes that the file does not have any more are no reason to map what is behind its end.
        return [
            number
            for number, (start, end, expected) in enumerate(chunks[file][part], start=part.start)
            if end > len(content) or xxh3_64_intdigest(content[start:end]) != expected
        ]

    found: list[list[tuple[int, int]]] = [[] for _ in files]
    for (file, _), numbers in zip(
        tasks, on_all_cores(bad, tasks) if size >= _WORTH_THREADS else map(bad, tasks), strict=True
    ):
        found[file] += [(int(group), int(leaf)) for group, leaf in files[file][1][numbers]]
    return found


def hash_of(content: npt.NDArray[np.uint8]) -> str:
    """32 hex digits that tell the bytes from any others: the xxh3-128 of those of their parts."""
    starts = range(0, len(content), _HASHED_AT_ONCE)
    parts = on_all_cores(
        lambda start: xxh3_128(content[start : start + _HASHED_AT_ONCE].data).digest(), starts
    )
    return xxh3_128(b"".join(parts)).hexdigest()
