"""Lists of one length read from the pages of a column chunk: their values lie side by side there, as in an array.

A page is its header, levels, and values, mostly compressed (parquet-format). Of lists that all have the same
length, the levels say nothing new: every one is defined, and every ``length``-th begins a row. They are looked at
where they lie, as runs, and not expanded; and since they repeat from page to page, the answers are remembered.
All else (nulls, other lengths, other encodings, damage) is left to Arrow, also the errors.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.files.stored import StoredFile
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.page_header import (
    LONGEST_HEADER,
    PLAIN,
    DataPage,
    read_page_header,
    read_varint,
)
from hopyard.data.recipe.arrow_columns import leaves_of
from hopyard.data.schema import Column

Bytes = npt.NDArray[np.uint8]

_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64", "INT32": "int32", "INT64": "int64"}
_STREAMS = ("ZSTD", "GZIP", "BROTLI")  # codecs whose streams say how much came out of them
_CODECS = ("UNCOMPRESSED", "SNAPPY", *_STREAMS)
_STEP = 64 << 10  # bytes; sizes of buffers are multiples, so that they repeat
_SMALL_PAGE = 16 << 10  # bytes; Arrow is faster where there are many such pages
_MOST_LEVEL_BYTES = 4  # of one value, both levels together
_BITS = 512  # patterns are multiples of, so that few are made


@dataclass(frozen=True)
class Chunk:
    """Rows of one column in a row group, all of one length.

    Attributes:
        start, size: bytes of the file.
        codec: as footers name it.
        dtype: of the values.
        rows, length: of the array.
        defined: the definition level of values that are not null.
    """

    start: int
    size: int
    codec: str
    dtype: np.dtype[Any]
    rows: int
    length: int
    defined: int


def may_be_paged(column: Column) -> bool:
    """Whether chunks of the column can be read by this module at all."""
    return (
        column.kind == "tensor"
        and not column.sparse
        and len(column.shape) == 1
        and column.shape[0] > 0
        and column.dtype in _DTYPES.values()
    )


def find_chunk(file: StoredFile, group: int, column: Column) -> Chunk | None:
    """The column's chunk in a row group, if the footer does not rule out that it can be read here."""
    leaf = None if file.path is None else _list_leaves(file.origin or file).get(column.name)
    if leaf is None:
        return None
    number, dtype = leaf
    described = file.footer.row_group(group)
    chunk = described.column(number)
    if (
        dtype != column.dtype
        or chunk.compression not in _CODECS
        or chunk.has_dictionary_page
        or "PLAIN" not in chunk.encodings
        or chunk.file_path
    ):
        return None
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    if not 0 < start <= start + size <= file.size:
        return None
    return Chunk(
        start, size, chunk.compression, np.dtype(dtype), described.num_rows, column.shape[0],
        file.footer.schema.column(number).max_definition_level,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _list_leaves(file: StoredFile) -> dict[str, tuple[int, str]]:
    """Number of the leaf, and dtype, of each of the file's columns that are lists of numbers."""
    schema = file.footer.schema.to_arrow_schema()
    leaves = leaves_of(schema)
    found = {}
    for field in schema:
        kind = field.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            continue
        leaf = leaves[field.name]
        described = file.footer.schema.column(leaf)
        dtype = _DTYPES.get(described.physical_type)
        if dtype and kind.value_type == pa.from_numpy_dtype(dtype) and described.max_repetition_level == 1:
            found[field.name] = leaf, dtype
    return found


def read_rows(file: io.FileIO, chunk: Chunk) -> Iterator[npt.NDArray[Any]]:
    """The rows in order, (n, length) at a time; arrays may be unaligned, and stay valid.

    Raises:
        ValueError: the chunk must be left to Arrow, also the rows that came of it before.
        OSError: a page cannot be decompressed, or the file cannot be read.
    """
    length = chunk.length
    part, filled = np.empty(length, chunk.dtype), 0  # a row that began in the page before
    for values in _read_pages(file, chunk):
        if filled:
            taken = min(length - filled, len(values))
            part[filled : filled + taken] = values[:taken]
            filled += taken
            if filled < length:
                continue
            yield part.reshape(1, length)
            part, values = np.empty(length, chunk.dtype), values[taken:]
        filled = len(values) % length
        whole = len(values) - filled
        part[:filled] = values[whole:]
        if whole:
            yield values[:whole].reshape(-1, length)


def _read_pages(file: io.FileIO, chunk: Chunk) -> Iterator[npt.NDArray[Any]]:
    """The values of each page."""
    buffers = Buffers()
    place, end = chunk.start, chunk.start + chunk.size
    done, total, step = 0, chunk.rows * chunk.length, _STEP
    while done < total:
        content = _read(file, buffers, place, min(step, end - place))
        page, header = read_page_header(content[:LONGEST_HEADER].tobytes())
        if not 0 < page.size <= end - place - header:
            raise ValueError("a page that is larger than its chunk")
        size = header + page.size
        if size > len(content):
            content = _read(file, buffers, place, size)
        step = size + LONGEST_HEADER
        values = _values_of(page, content[header:size], chunk, done, buffers)
        if not done and values.nbytes < _SMALL_PAGE and len(values) < total:
            raise ValueError("pages are small")
        yield values
        done += len(values)
        place += size


def _read(file: io.FileIO, buffers: Buffers, place: int, size: int) -> Bytes:
    """Bytes of the file, (size,)."""
    content = _buffer(buffers, size)
    file.seek(place)
    done = 0
    while done < size:
        count = file.readinto(content[done:].data)
        if not count:
            raise ValueError("the file ends within the chunk")
        done += count
    return content


def _values_of(page: DataPage, body: Bytes, chunk: Chunk, done: int, buffers: Buffers) -> npt.NDArray[Any]:
    """The values of a page.

    Args:
        body: all bytes behind the header.
        done: number of the chunk's values in the pages before.
    """
    count, width, size = page.values, chunk.dtype.itemsize, page.uncompressed_size
    if page.encoding != PLAIN or not page.has_plain_levels:
        raise ValueError("values or levels of another encoding")
    if not 0 < count <= chunk.rows * chunk.length - done:
        raise ValueError("more values than rows, or none")
    if not count * width < size <= count * (width + _MOST_LEVEL_BYTES) + LONGEST_HEADER:
        raise ValueError("a size that its values cannot have")
    if page.checksum is not None and zlib.crc32(body.data) != page.checksum:
        raise ValueError("another checksum")
    if page.version == 1:
        body = _decompress(body, chunk.codec, size, buffers)
        repetition, place = _counted(body, 0)
        definition, place = _counted(body, place)
        values = body[place:]
    else:
        split, place = page.repetition_size, page.repetition_size + page.definition_size
        if not 0 <= split <= place < min(len(body), size):
            raise ValueError("levels outside the page")
        repetition, definition = body[:split].tobytes(), body[split:place].tobytes()
        codec = chunk.codec if page.is_compressed else "UNCOMPRESSED"
        values = _decompress(body[place:], codec, size - place, buffers)
    if len(values) != count * width:
        raise ValueError("not as many values as it says")
    if not are_all(definition, chunk.defined, count):
        raise ValueError("nulls or empty lists")
    if not are_rows(repetition, count, chunk.length, done % chunk.length):
        raise ValueError("lists of other lengths")
    return values.view(chunk.dtype)


def _counted(body: Bytes, place: int) -> tuple[bytes, int]:
    """(levels, place behind them) of a page of version 1, where their size lies before them."""
    start = place + 4
    end = start + int.from_bytes(body[place:start].tobytes(), "little")
    if end > len(body):
        raise ValueError("levels outside the page")
    return body[start:end].tobytes(), end


def _decompress(data: Bytes, codec: str, size: int, buffers: Buffers) -> Bytes:
    """Decompressed bytes, (size,). Their number is checked here: Arrow's ``Codec`` does not tell how many it wrote."""
    if codec == "UNCOMPRESSED":
        done = len(data)
    elif codec == "SNAPPY":
        done = _snappy_size(data)
        if done == size:
            data = np.frombuffer(pa.Codec("snappy").decompress(data, size), np.uint8)
    else:
        out, done = _buffer(buffers, size), 0
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec.lower()) as stream:
            while done < size and (count := stream.readinto(out[done:].data)):
                done += count
        data = out
    if done != size:
        raise ValueError("another size than it says")
    return data


def _snappy_size(data: Bytes) -> int:
    """Decompressed size, as the data itself tells it (format_description.txt of Snappy, 1)."""
    try:
        return read_varint(data[:10].tobytes(), 0)[0]
    except IndexError:
        raise ValueError("no snappy") from None


def _buffer(buffers: Buffers, size: int) -> Bytes:
    """Memory of (size,) bytes that nobody holds."""
    raw: Bytes = buffers.buffer(1, -(-size // _STEP) * _STEP).raw[0, :size]
    return raw


@lru_cache(maxsize=64)
def are_all(levels: bytes, level: int, count: int) -> bool:
    """Whether these are ``count`` definition levels, all of them the highest, ``level``."""
    width = level.bit_length()
    try:
        for _, number, common, bits in _runs(levels, width, count):
            if common is None:
                regular = bits == level * _every(width, number * width) & _ones(number * width)
            else:
                regular = common == level
            if not regular:
                return False
    except ValueError:
        return False
    return True


@lru_cache(maxsize=64)
def are_rows(levels: bytes, count: int, length: int, phase: int) -> bool:
    """Whether these are the ``count`` repetition levels of rows of ``length`` values.

    Args:
        phase: values of the first row that are in the pages before.
    """
    try:
        for first, number, common, bits in _runs(levels, 1, count):
            within = (phase + first) % length  # its row
            if common is None:
                starts = _every(length, -(-(number + length) // _BITS) * _BITS) >> within
                regular = bits == ~starts & _ones(number)
            elif common == 0:
                regular = length == 1 or (within == 0 and number == 1)
            else:
                regular = common == 1 and 0 < within <= length - number
            if not regular:
                return False
    except ValueError:
        return False
    return True


@lru_cache(maxsize=64)
def _every(period: int, bits: int) -> int:
    """At least ``bits`` bits; the first and every ``period``-th after it are set."""
    pattern, have = 1, period
    while have < bits:
        pattern |= pattern << have
        have *= 2
    return pattern


def _ones(bits: int) -> int:
    return (1 << bits) - 1


def _runs(levels: bytes, width: int, count: int) -> Iterator[tuple[int, int, int | None, int]]:
    """The runs of ``count`` levels of ``width`` bits, at most 8, in the RLE/bit-packed hybrid of parquet-format.

    Yields:
        How many levels are before the run, and in it; the level that all of them are, or None; else they as bits,
        the first one lowest.
    """
    place = done = 0
    while done < count:
        try:
            head, place = read_varint(levels, place)
        except IndexError:
            head = 0
        is_packed = head & 1
        number = min(head >> 1 << 3, count - done) if is_packed else head >> 1  # the last eight may be padded
        end = place + ((head >> 1) * width if is_packed else 1)
        if not 0 < number <= count - done or end > len(levels):
            raise ValueError("levels that are cut")
        bits = int.from_bytes(levels[place:end], "little")
        yield (done, number, None, bits & _ones(number * width)) if is_packed else (done, number, bits, 0)
        done, place = done + number, end
