"""Headers of Parquet pages: structs in the compact protocol of Thrift (thrift-compact-protocol.md, parquet.thrift)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_HEADER = 512  # bytes, of the pages that are read without Arrow
DATA_PAGE, DATA_PAGE_2 = 0, 3
PLAIN, RLE = 0, 3

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 8
_LONGEST_VARINT = 10  # bytes


@dataclass(frozen=True)
class DataPage:
    """Fields of the header of a data page, unchecked.

    Attributes:
        version: 1 or 2.
        size: bytes behind the header, as they are in the file.
        uncompressed_size: the same without compression.
        checksum: CRC-32 of the bytes behind the header, or None.
        values: number of values, with nulls.
        encoding: of the values; 0 is PLAIN.
        has_plain_levels: they are of the RLE/bit-packed hybrid.
        repetition_size, definition_size: bytes of the levels, which lie before the values, uncompressed; of
            version 1, they are compressed with the values and their sizes lie there: 0.
        is_compressed: the values are.
    """

    version: int
    size: int
    uncompressed_size: int
    checksum: int | None
    values: int
    encoding: int
    has_plain_levels: bool
    repetition_size: int = 0
    definition_size: int = 0
    is_compressed: bool = True


def read_page_header(data: bytes) -> tuple[DataPage, int]:
    """The header that ``data`` begins with, and its length in bytes.

    Raises:
        ValueError: it is none of a data page, or is cut.
    """
    try:
        fields, length = _read_struct(data, 0, 0)
    except IndexError:
        raise ValueError("a header that is cut or long") from None
    kind = _number(fields, 1)
    within = fields.get({DATA_PAGE: 5, DATA_PAGE_2: 8}.get(kind, -1))
    if not isinstance(within, dict):
        raise ValueError("no data page")
    size, uncompressed = _number(fields, 3), _number(fields, 2)
    checksum = _number(fields, 4) & 0xFFFFFFFF if 4 in fields else None
    values = _number(within, 1)
    if kind == DATA_PAGE:
        levels = _number(within, 3), _number(within, 4)
        page = DataPage(1, size, uncompressed, checksum, values, _number(within, 2), levels == (RLE, RLE))
    else:
        page = DataPage(
            2, size, uncompressed, checksum, values, _number(within, 4), True,
            _number(within, 6), _number(within, 5), within.get(7, True) is True,
        )  # fmt: skip
    return page, length


def _number(fields: Mapping[int, Any], key: int) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a header without a number it must have")
    return value


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """(unsigned number, place behind it); IndexError: it is cut."""
    value = data[place]
    if value < 0x80:
        return value, place + 1
    value &= 0x7F
    for shift in range(7, 7 * _LONGEST_VARINT, 7):
        place += 1
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
    raise ValueError("a number of too many bytes")


def _read_signed(data: bytes, place: int) -> tuple[int, int]:
    value, place = read_varint(data, place)
    return (value >> 1) ^ -(value & 1), place


def _read_struct(data: bytes, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """(values by field number, place behind the struct); IndexError: it is cut."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[place]:
        place += 1
        if head >> 4:
            number += head >> 4
        else:
            number, place = _read_signed(data, place)
        kind = head & 15
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            fields[number], place = _read_value(data, place, kind, depth)
    return fields, place + 1


def _read_value(data: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    """(value, place behind it); elements of lists and maps are passed over. Everything takes a byte at least."""
    if depth > _DEEPEST:
        raise ValueError("a header of too many structs in each other")
    if kind in (_I16, _I32, _I64):
        return _read_signed(data, place)
    if kind in (_TRUE, _FALSE, _BYTE):  # in lists, truth is a byte
        return data[place], place + 1
    if kind in (_DOUBLE, _BINARY):
        size, place = (8, place) if kind == _DOUBLE else read_varint(data, place)
        if size > len(data) - place:
            raise IndexError
        return data[place : place + size], place + size
    if kind == _STRUCT:
        return _read_struct(data, place, depth + 1)
    if kind in (_LIST, _SET):
        count, kinds = data[place] >> 4, [data[place] & 15]
        place += 1
        if count == 15:
            count, place = read_varint(data, place)
    elif kind == _MAP:
        count, place = read_varint(data, place)
        kinds = [data[place] >> 4, data[place] & 15] if count else []
        place += 1 if count else 0
    else:
        raise ValueError("a header with a field of an unknown type")
    for _ in range(count):
        for each in kinds:
            _, place = _read_value(data, place, each, depth + 1)
    return None, place
