"""Strings and bytes in flat files, and how batches are gathered of them.

A value is 16 bytes, a *view*, as in Arrow's arrays of string views: its length (int32); then the value itself, if it
has at most 12 bytes, padded with zeros; else its first 4 bytes and, as int64, where it begins among the column's
*values*. Short ones are so one take away, like numbers, and of long ones Arrow makes Python objects where they lie.

Where a column has few different values, views are only of these, and each row is the number (int32) of one of them,
its *code*: a batch is then one take from an array of Python objects that are made once. Columns may lie either way in
each flat file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.data.order import Rows
from hopyard.data.ragged import Ragged
from hopyard.data.reading.buffers import Buffers
from hopyard.data.schema import Column
from hopyard.errors import DataError

LARGE = {"string": pa.large_string(), "bytes": pa.large_binary()}
"""Of a kind of column, the type of Arrow arrays of it in batches."""
VIEW = np.dtype("V16")
CODE = np.dtype(np.int32)

_INLINE = 12  # bytes of the longest value that lies in its view
_LONGEST = (1 << 31) - 1  # bytes of a value, and of what Arrow makes views of at once
_BUFFER = 31  # bits: Arrow finds a long value by the number of a buffer and the place in it, both int32
_SAMPLE = 2048  # rows
_FEW = 1 << 14  # different values; Python objects of many more do not stay in the cache of the core
_MOST_OBJECTS = 1 << 18  # of all dictionaries of a column


class Views(NamedTuple):
    """The views of some rows, as (rows, 2) int64, and the bytes of the long ones."""

    words: npt.NDArray[np.int64]
    values: npt.NDArray[np.uint8]


def with_codes(parts: Sequence[Ragged]) -> tuple[npt.NDArray[np.int32], Ragged] | None:
    """(rows,) codes and the different values, in the order in which they come, if these are few; else None."""
    rows = sum(map(len, parts))
    most = min(_FEW, rows // 4)
    if not most:
        return None
    column = pa.chunked_array([_as_arrow(part, pa.large_binary()) for part in parts])
    sample = column.take(pa.array(np.linspace(0, rows - 1, min(_SAMPLE, rows // 2), dtype=np.int64)))
    if pc.count_distinct(sample).as_py() > min(most, len(sample) * 9 // 10):
        return None
    encoded = column.dictionary_encode().unify_dictionaries()
    different = encoded.chunk(0).dictionary
    if len(different) > most:
        return None
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    _, offsets, values = different.buffers()
    data = np.frombuffer(values, np.uint8) if values is not None and values.size else np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int64, len(different) + 1, 8 * different.offset)
    return codes, Ragged(data[bounds[0] : bounds[-1]], bounds - bounds[0])


def views_of(name: str, rows: Ragged, before: int) -> Views:
    """Views of the rows of column ``name``, whose long values come behind ``before`` bytes of others.

    Raises:
        DataError: a value is longer than 2 GiB.
    """
    if len(rows.values) > _LONGEST:
        if len(rows) == 1:
            raise DataError(
                f"Column {name!r} holds a value of {len(rows.values):,} bytes, but none may be longer than "
                f"{_LONGEST:,}. Store what is so large in files of its own, and their names in the column."
            )
        middle = len(rows) // 2
        first = views_of(name, rows[:middle], before)
        second = views_of(name, rows[middle:], before + len(first.values))
        return Views(
            np.concatenate([first.words, second.words]), np.concatenate([first.values, second.values])
        )
    made = _as_arrow(rows, pa.large_binary()).cast(pa.binary_view())
    words = np.frombuffer(made.buffers()[1], np.int64, 2 * len(rows)).reshape(-1, 2).copy()
    is_long = rows.lengths > _INLINE
    if not is_long.any():
        return Views(words, rows.values[:0])
    words[is_long, 1] = rows.offsets[:-1][is_long] + before
    return Views(words, rows.values)


def _as_arrow(rows: Ragged, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(
        kind, len(rows), [None, pa.py_buffer(rows.offsets), pa.py_buffer(rows.values)]
    )


def as_objects(values: Any) -> Any:
    """An Arrow array as an object array; anything else as it is."""
    return values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values


class Lying(NamedTuple):
    """Where in a stretch of bytes the strings of some row groups lie; each attribute is (groups,)."""

    rows: Rows
    """Where the views, or the codes, of a row group's rows begin."""
    is_coded: npt.NDArray[np.bool_]
    """Whether there are codes."""
    dictionaries: Rows
    """Where the views begin that codes count."""
    sizes: Rows
    """How many there are."""
    values: Rows
    """Where the bytes of long values begin."""


class MappedStrings:
    """A column of strings or bytes, gathered from where it lies.

    Args:
        column: what it is.
        content: bytes that hold it.
        lying: where in them.
        first_rows: (groups,) number of each row group's first row.
    """

    whole_groups = False

    def __init__(
        self, column: Column, content: npt.NDArray[np.uint8], lying: Lying, first_rows: Rows
    ) -> None:
        self.names: tuple[str, ...] = (column.name,)
        self._viewed = pa.string_view() if column.kind == "string" else pa.binary_view()
        self._large = LARGE[column.kind]
        self._content = content
        self._views = content[: len(content) // VIEW.itemsize * VIEW.itemsize].view(VIEW)
        self._codes = content[: len(content) // CODE.itemsize * CODE.itemsize].view(CODE)
        self._lying = lying
        self._first_views = lying.dictionaries // VIEW.itemsize
        self._are_coded = bool(lying.is_coded.all())
        self._some_are_coded = bool(lying.is_coded.any())
        widths = np.where(lying.is_coded, CODE.itemsize, VIEW.itemsize)
        self.shift: Rows = lying.rows // widths - first_rows
        whole = pa.py_buffer(content)
        self._buffers = [whole.slice(start) for start in range(0, len(content), 1 << _BUFFER)]
        # Made when the first batch is gathered: objects, and the first one of each row group.
        self._known: tuple[npt.NDArray[np.object_], Rows] | None = None
        self._are_known = self._are_coded

    def gather(self, places: Rows, groups: Rows, buffers: Buffers) -> Any:
        if self._are_known and not buffers.arrow_strings:
            if self._known is None:
                self._know()
            if self._known is not None:
                objects, firsts = self._known
                return objects.take(self._codes.take(places) + firsts.take(groups))
        if self._are_coded:
            places = self._codes.take(places) + self._first_views.take(groups)
        elif self._some_are_coded:
            where = np.flatnonzero(self._lying.is_coded.take(groups))
            places = places.copy()
            places[where] = self._codes.take(places[where]) + self._first_views.take(groups[where])
        array = self._array(places, groups)
        return array.cast(self._large) if buffers.arrow_strings else array.to_numpy(zero_copy_only=False)

    def look(self, places: Rows, groups: Rows) -> None:
        """Strings are always copied."""

    def _array(self, places: Rows, groups: Rows) -> pa.Array:
        """Strings over the mapped bytes, by the places of their views."""
        words = self._views.take(places).view(np.int64).reshape(-1, 2)
        lengths = words.view(np.int32)[:, 0]
        is_long = lengths > _INLINE
        if is_long.any():
            long = slice(None) if is_long.all() else np.flatnonzero(is_long)
            starts = words[long, 1] + self._lying.values.take(groups[long])
            # The first and last byte of each brings it near: loads of single bytes wait for memory together, which
            # making one object after another does not.
            self._content.take(starts)
            self._content.take(starts + (lengths[long] - 1))
            words[long, 1] = starts >> _BUFFER | (starts & _LONGEST) << 32
        return pa.Array.from_buffers(self._viewed, len(words), [None, pa.py_buffer(words), *self._buffers])

    def _know(self) -> None:
        """Make the objects of all dictionaries, equal ones once, if they are not too many."""
        firsts, groups, dictionaries = np.unique(self._first_views, return_index=True, return_inverse=True)
        sizes = self._lying.sizes[groups]
        ends = np.cumsum(sizes)
        if ends[-1] > _MOST_OBJECTS:
            self._are_known = False
            return
        begins = ends - sizes
        places = np.repeat(firsts - begins, sizes) + np.arange(ends[-1])
        made = self._array(places, np.repeat(groups, sizes)).cast(self._large).dictionary_encode()
        objects = made.dictionary.to_numpy(zero_copy_only=False).take(made.indices.to_numpy())
        self._known = objects, begins[dictionaries]
