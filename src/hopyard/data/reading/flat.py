"""Flat files: decoded rows as arrays, one after another in one file, made to be mapped and gathered from.

What Parquet cannot be mapped as (lists, compressed or remote columns, transformed ones) is decoded once into
such a file. Its blocks:

============================  ===========================================================================
columns                       block
============================  ===========================================================================
scalars of one dtype          one (rows, columns) array, *packed*: one take gathers all of them (those
                              that a batch holds as one array are packed by themselves)
a tensor of a shape           one (rows, *shape) array
ragged, sparse                (rows + 1) int64 offsets, counted in values, and these, (total, *shape), behind all else
strings, bytes                views of the rows (of equal width side by side), or codes and views of the different
                              values, and the bytes of what no view holds (see ``strings.py``), behind all else
============================  ===========================================================================

Every block begins at a multiple of 64 bytes and of the width of its rows, so that the blocks of files that
are mapped at such multiples are rows of one virtual array (see ``mapped.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.layout import Values
from hopyard.data.ragged import Ragged
from hopyard.data.reading.strings import (
    CODE,
    LARGE,
    bytes_elsewhere,
    views_of,
    width_of_views,
    with_codes,
)
from hopyard.data.schema import Column, Schema
from hopyard.data.sparse import pair_dtype
from hopyard.storage import files

FlatPart: TypeAlias = Literal["rows", "offsets", "views", "codes", "values"]

ALIGNMENT = 64
_PIECE = 8 << 20  # bytes of strings and their views that are made at once


@dataclass(frozen=True)
class Block:
    """One array of a flat file.

    Attributes:
        part: ``"rows"``; of rows that differ in length ``"offsets"`` and ``"values"``; of strings and bytes
            ``"views"`` and ``"values"``, where there are few different ones ``"codes"`` too.
        columns: names, in the order in which they lie side by side.
        dtype: of the elements.
        shape: of one column's row.
        offset: bytes from the start of the file.
        count: rows, offsets or values.
    """

    part: FlatPart
    columns: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    count: int

    @property
    def width(self) -> int:
        """Bytes of one row, offset or value."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape) * len(self.columns)

    @property
    def end(self) -> int:
        return self.offset + self.width * self.count

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Block:
        return cls(
            fields["part"], tuple(fields["columns"]), fields["dtype"], tuple(fields["shape"]),
            fields["offset"], fields["count"],
        )  # fmt: skip


def element_dtype(column: Column) -> str:
    """Dtype of the elements in the file: sparse rows are pairs of index and element."""
    return pair_dtype(column.dtype) if column.sparse else column.dtype


Packs: TypeAlias = tuple[tuple[str, ...], ...]
"""Columns by the blocks that they form, in the order of the file."""


def pack(columns: Sequence[Column], together: Iterable[tuple[str, ...]] = ()) -> Packs:
    """Group columns into the packs that form blocks: columns asked for ``together``, else scalars of one dtype."""
    by_name = {column.name: column for column in columns}
    packs: list[tuple[str, ...]] = []
    for names in together:
        if all(name in by_name for name in names) and len(set(names)) == len(names):
            packs.append(names)
            for name in names:
                del by_name[name]
    scalars: dict[str, list[str]] = {}
    for column in by_name.values():
        if column.kind == "tensor" and not column.shape:
            scalars.setdefault(column.dtype, []).append(column.name)
        else:
            packs.append((column.name,))
    return (*packs, *map(tuple, scalars.values()))


def plan_blocks(schema: Schema, packs: Packs, rows: int) -> list[Block]:
    """The blocks whose place is known before anything is decoded: all but strings, and values that differ in number."""
    blocks: list[Block] = []
    for names in packs:
        column = schema[names[0]]
        if column.stored_width is not None:
            _append(blocks, "rows", names, column.dtype, column.shape, rows)
        elif column.kind not in LARGE:
            _append(blocks, "offsets", names, "int64", (), rows + 1)
    return blocks


def _append(
    blocks: list[Block],
    part: FlatPart,
    columns: tuple[str, ...],
    dtype: str,
    shape: tuple[int, ...],
    count: int,
) -> Block:
    end = blocks[-1].end if blocks else 0
    block = Block(part, columns, dtype, shape, end, count)
    step = math.lcm(ALIGNMENT, max(block.width, 1))
    block = Block(part, columns, dtype, shape, -(-end // step) * step, count)
    blocks.append(block)
    return block


class Piece(NamedTuple):
    """A piece: some rows of some columns."""

    first: int
    """The row of the flat file that the piece begins with."""
    columns: Mapping[str, Values]
    packed: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})
    """Whole packs as (rows, columns), by the name of the first column."""


def write_flat(
    descriptor: int, schema: Schema, packs: Packs, rows: int, pieces: Iterable[Piece]
) -> list[Block]:
    """Write ``rows`` rows to an empty file.

    Args:
        pieces: the columns of one of ``packs`` come together. Rows of columns of fixed width may come again: the
            last ones count. Others come once, in order.

    Raises:
        OSError: among others, the disk is full.
    """
    blocks = plan_blocks(schema, packs, rows)
    texts = [names[0] for names in packs if schema[names[0]].kind in LARGE]
    fixed = {block.columns[0]: block for block in blocks if block.part == "rows"}
    offsets = {block.columns[0]: block for block in blocks if block.part == "offsets"}
    varying: dict[str, list[Ragged]] = {name: [] for name in (*offsets, *texts)}
    ends = dict.fromkeys((*fixed, *varying), 0)
    for first, columns, packed in pieces:
        for name, rectangle in packed.items():
            ends[name] = max(ends[name], first + len(rectangle))
            _write(descriptor, rectangle, fixed[name].offset + first * fixed[name].width)
        for name in columns.keys() & ends.keys():
            values = columns[name]
            ends[name] = max(ends[name], first + len(values))
            if name in fixed:
                block = fixed[name]
                data = _packed([columns[each] for each in block.columns], block)
                _write(descriptor, data, block.offset + first * block.width)
            else:
                assert isinstance(values, Ragged)
                varying[name].append(values)
    if any(end != rows for end in ends.values()):
        raise ValueError(f"{rows} rows were promised, {ends} came")
    for name in offsets:
        _write_varying(descriptor, blocks, offsets[name], schema[name], varying[name])
    for kind in LARGE:
        its = {name: varying[name] for name in texts if schema[name].kind == kind}
        _write_strings(descriptor, blocks, its)
    files.truncate(descriptor, max((block.end for block in blocks), default=0))
    return blocks


def _packed(columns: Sequence[Any], block: Block) -> npt.NDArray[Any]:
    if len(columns) == 1:
        return np.ascontiguousarray(columns[0])
    packed = np.empty((len(columns[0]), len(columns)), block.dtype)
    for number, values in enumerate(columns):
        packed[:, number] = values
    return packed


def _write_varying(
    descriptor: int, blocks: list[Block], offsets: Block, column: Column, parts: Sequence[Ragged]
) -> None:
    total = sum(len(part.values) for part in parts)
    shape = () if column.sparse else column.shape
    values = _append(blocks, "values", offsets.columns, element_dtype(column), shape, total)
    rows = count = 0
    for part in parts:
        _write(descriptor, part.offsets[:-1] + count, offsets.offset + 8 * rows)
        _write(descriptor, np.ascontiguousarray(part.values), values.offset + count * values.width)
        rows, count = rows + len(part), count + len(part.values)
    _write(descriptor, np.array([count], np.int64), offsets.offset + 8 * rows)


def _write_strings(descriptor: int, blocks: list[Block], columns: Mapping[str, Sequence[Ragged]]) -> None:
    plain: dict[int, dict[str, Sequence[Ragged]]] = {}
    for name, parts in columns.items():
        coded = with_codes(parts)
        if coded is None:
            plain.setdefault(width_of_views(parts), {})[name] = parts
        else:
            codes, different = coded
            _write(descriptor, codes, _append(blocks, "codes", (name,), CODE.str, (), len(codes)).offset)
            _write_views(descriptor, blocks, width_of_views([different]), {name: [different]})
    for width, its in plain.items():
        _write_views(descriptor, blocks, width, its)


def _write_views(
    descriptor: int, blocks: list[Block], width: int, columns: Mapping[str, Sequence[Ragged]]
) -> None:
    rows = sum(map(len, next(iter(columns.values()))))
    views = _append(blocks, "views", tuple(columns), f"V{width}", (), rows)
    values = {
        name: _append(blocks, "values", (name,), "uint8", (), bytes_elsewhere(parts, width))
        for name, parts in columns.items()
    }
    sizes = dict.fromkeys(columns, 0)
    size = views.width * rows + sum(len(part.values) for parts in columns.values() for part in parts)
    step = max(rows * _PIECE // max(size, 1), 1)
    for first in range(0, rows, step):
        piece = np.empty((min(step, rows - first), len(columns), width), np.uint8)
        for number, (name, parts) in enumerate(columns.items()):
            some = _between(parts, first, first + len(piece))
            piece[:, number], elsewhere = views_of(name, some, sizes[name], width)
            _write(descriptor, np.ascontiguousarray(elsewhere), values[name].offset + sizes[name])
            sizes[name] += len(elsewhere)
        _write(descriptor, piece, views.offset + first * views.width)


def _between(parts: Sequence[Ragged], first: int, last: int) -> Ragged:
    """Rows [first, last) of parts that follow each other."""
    found, begin = [], 0
    for part in parts:
        if begin < last and first < begin + len(part):
            found.append(part[max(first - begin, 0) : last - begin])
        begin += len(part)
    return found[0] if len(found) == 1 else Ragged.concatenate(found)


def _write(descriptor: int, data: npt.NDArray[Any], place: int) -> None:
    files.write_at(descriptor, data.reshape(-1).view(np.uint8).data, place)
