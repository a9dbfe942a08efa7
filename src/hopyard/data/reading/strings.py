"""Strings and bytes in flat files, and how batches are gathered of them.

A value is a *view*, as in Arrow's arrays of string views: its length (int32); then the value itself, if there is room
for it, padded with zeros; else its first 4 bytes and, as int64, where it begins among the column's *values*. A view has
16 bytes, as Arrow's, or 32, 64 or 128, whichever costs least: what lies in its view is one random access away, like a
number. Of what does not, Arrow makes Python objects where it lies. Views of equal width of several columns lie side by
side, a row's all in one place.

Where a column has few different values, views are only of these, and each row is the number (int32) of one of them,
its *code*: a batch is then one take from an array of Python objects that are made once. Columns may lie either way in
each flat file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.columns import compute as pc
from hopyard.data.order import Rows
from hopyard.data.ragged import Ragged
from hopyard.data.reading.buffers import Buffers
from hopyard.data.schema import Column, Schema
from hopyard.errors import DataError

LARGE = {"string": pa.large_string(), "bytes": pa.large_binary()}
"""Type of the Arrow arrays in batches, by kind of column."""
VIEW = np.dtype("V16")
"""The narrowest view."""
CODE = np.dtype(np.int32)

_HEAD = 4  # bytes of a view before the value
_WIDTHS = (
    16,
    32,
    64,
    128,
)  # bytes of a view: powers of two, which never lie across the bounds of what Arrow numbers
_ELSEWHERE = 32  # bytes that a random access more, for a value behind all else, is worth
_INLINE = 12  # bytes of the longest value that lies in Arrow's own views
_LONGEST = (1 << 31) - 1  # bytes of a value, and of what Arrow makes views of at once
_BUFFER = 31  # bits: Arrow finds a long value by the number of a buffer and the place in it, both int32
_SAMPLE, _SAMPLE_BYTES = 2048, 256 << 10  # rows at most, and about so many bytes,
_FEWEST_SAMPLED = 32  # but so many rows
_AT_ONCE = 1 << 15  # strings; with all that is made of them they stay in the cache of the core
_FEW = 1 << 14  # different values; Python objects of many more do not stay in the cache of the core
_MOST_OBJECTS = 1 << 18  # of all dictionaries of a column


class Views(NamedTuple):
    """The views of some rows, (rows, width), and the bytes of the values that do not lie in them."""

    views: npt.NDArray[np.uint8]
    values: npt.NDArray[np.uint8]


def width_of_views(parts: Sequence[Ragged]) -> int:
    """Bytes of each view of these rows that make least of the views, the values elsewhere, and getting there."""
    rows = sum(map(len, parts))
    costs = {
        width: width * rows
        + bytes_elsewhere(parts, width)
        + _ELSEWHERE * sum(int((part.lengths > width - _HEAD).sum()) for part in parts)
        for width in _WIDTHS
    }
    return min(_WIDTHS, key=costs.__getitem__)


def bytes_elsewhere(parts: Sequence[Ragged], width: int) -> int:
    """Bytes of all values that do not lie in views of that width."""
    return sum(int(part.lengths[part.lengths > width - _HEAD].sum()) for part in parts)


def with_codes(parts: Sequence[Ragged]) -> tuple[npt.NDArray[np.int32], Ragged] | None:
    """(rows,) codes and the different values, in the order in which they come, if these are few; else None."""
    rows = sum(map(len, parts))
    most = min(_FEW, rows // 4)
    if not most:
        return None
    column = pa.chunked_array([_as_arrow(part, pa.large_binary()) for part in parts])
    mean = sum(len(part.values) for part in parts) // rows
    number = min(_SAMPLE, rows // 2, max(_SAMPLE_BYTES // max(mean, 1), _FEWEST_SAMPLED))
    sample = column.take(_numbers(np.linspace(0, rows - 1, number, dtype=np.int64)))
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


def views_of(name: str, rows: Ragged, before: int, width: int) -> Views:
    """Views of ``width`` bytes of the rows of column ``name``, whose values elsewhere come behind ``before`` bytes of
    others.

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
        first = views_of(name, rows[:middle], before, width)
        second = views_of(name, rows[middle:], before + len(first.values), width)
        return Views(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))
    room, lengths = width - _HEAD, rows.lengths
    views = np.empty((len(rows), width), np.uint8)
    views[:, :_HEAD] = lengths.astype("<i4").view(np.uint8).reshape(-1, _HEAD)
    # Of all but the last rows so many bytes are there to be taken; behind the others come zeros.
    last = max(len(rows.values) - room, 0)
    most = int(np.searchsorted(rows.offsets[:-1], last))
    padded = np.concatenate([rows.values[last:], np.zeros(room, np.uint8)])
    views[:most, _HEAD:] = _stretches(rows.values, rows.offsets[:most], room)
    views[most:, _HEAD:] = _stretches(padded, rows.offsets[most:-1] - last, room)
    views[:, _HEAD:] *= np.arange(room) < lengths[:, None]
    elsewhere = np.flatnonzero(lengths > room)
    if not len(elsewhere):
        return Views(views, rows.values[:0])
    if len(elsewhere) < len(rows):
        rows = rows.take(elsewhere)
    views[elsewhere, 2 * _HEAD :] = 0
    views[elsewhere, 2 * _HEAD : 4 * _HEAD] = (rows.offsets[:-1, None] + before).view(np.uint8)
    return Views(views, rows.values)


def _stretches(values: npt.NDArray[np.uint8], begins: Rows, length: int) -> npt.NDArray[np.uint8]:
    """(n, length): the bytes from each place on."""
    if not len(begins):
        return np.empty((0, length), np.uint8)
    every = np.ndarray(len(values) - length + 1, np.dtype((np.void, length)), values, strides=(1,))
    return every[begins].view(np.uint8).reshape(-1, length)


def _numbers(numbers: npt.NDArray[np.int32] | Rows) -> pa.Array:
    """The numbers as an Arrow array; ``pa.array`` imports pandas, which takes longer than many batches."""
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _as_arrow(rows: Ragged, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(
        kind, len(rows), [None, pa.py_buffer(rows.offsets), pa.py_buffer(rows.values)]
    )


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """Rows of few different values, which other batches mostly share.

    Attributes:
        numbers: (rows,), of the values.
        values: as an Arrow array; one may be in it twice.
        objects: the same as Python objects.
    """

    numbers: Rows
    values: pa.Array
    objects: npt.NDArray[np.object_]


def as_objects(values: Any) -> Any:
    """An Arrow array, or ``Coded``, as an object array; anything else as it is."""
    if isinstance(values, Coded):
        return values.objects.take(values.numbers)
    return values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values


class Lying(NamedTuple):
    """Places of the strings of some row groups in a stretch of bytes; each attribute is (groups, columns)."""

    rows: Rows
    """Offset of the view, or of the code, of a row group's first row."""
    steps: Rows
    """Bytes from there to the view or code of the next row."""
    is_coded: npt.NDArray[np.bool_]
    """Whether the rows are codes."""
    dictionaries: Rows
    """Offset of the first view that codes count from."""
    sizes: Rows
    """Number of views that codes count."""
    values: Rows
    """Offset of the bytes of values that do not lie in their views."""
    widths: Rows
    """Bytes of a view."""


def side_by_side(
    columns: Mapping[str, Lying], schema: Schema, alone: Collection[str] = ()
) -> Iterator[tuple[Sequence[str], Lying]]:
    """Groups of columns that a ``MappedStrings`` may gather together, with their places (groups, columns).

    Args:
        columns: the places of each column, (groups,).
        alone: columns that are gathered by themselves.
    """
    together: dict[Any, list[str]] = {}
    for name, lying in columns.items():
        alike = name not in alone and not lying.is_coded.any() and len(set(lying.widths.tolist())) == 1
        key = (schema[name].kind, int(lying.widths[0])) if alike else name
        together.setdefault(key, []).append(name)
    for names in together.values():
        parts = zip(*(columns[name] for name in names), strict=True)
        yield names, Lying(*(np.stack(part, axis=1) for part in parts))


class MappedStrings:
    """Columns of strings or of bytes, gathered from where they lie.

    Args:
        columns: of one kind. Several have no codes, and views of one width.
        content: bytes that hold them.
        lying: the places in them.
        first_rows: (groups,) number of each row group's first row.
    """

    whole_groups = False
    is_apart = True

    def __init__(
        self, columns: Sequence[Column], content: npt.NDArray[np.uint8], lying: Lying, first_rows: Rows
    ) -> None:
        self.names: tuple[str, ...] = tuple(column.name for column in columns)
        self._viewed = pa.string_view() if columns[0].kind == "string" else pa.binary_view()
        self._large = LARGE[columns[0].kind]
        self._content = content
        self._tables = {
            int(width): content[: len(content) // width * width].reshape(-1, width)
            for width in np.unique(lying.widths)
        }
        self._narrow = content[: len(content) // VIEW.itemsize * VIEW.itemsize].reshape(-1, VIEW.itemsize)
        self._codes = content[: len(content) // CODE.itemsize * CODE.itemsize].view(CODE)
        self._lying = lying
        steps = np.unique(lying.steps)
        self._step = int(steps[0]) if len(steps) == 1 else None
        self._some_are_coded = bool(lying.is_coded.any())
        self.shift: Rows = -first_rows
        whole = pa.py_buffer(content)
        self._mapped = [whole.slice(start) for start in range(0, len(content), 1 << _BUFFER)]
        self._inside = _inside(0, 1, VIEW.itemsize, 0)
        # Made when the first batch is gathered: the values of all dictionaries, as objects and as an Arrow array, and
        # the first one of each row group.
        self._known: tuple[npt.NDArray[np.object_], pa.Array, Rows] | None = None
        self._are_known = bool(lying.is_coded.all())

    def gather(self, places: Rows, groups: Rows, buffers: Buffers) -> Any:
        if self._are_known:
            if self._known is None:
                self._know()
            if self._known is not None:
                objects, values, firsts = self._known
                begins = self._begins(places, groups, slice(1))[:, 0]
                numbers = self._codes.take(begins // CODE.itemsize) + firsts.take(groups)
                if buffers.arrow_strings:
                    return values.take(_numbers(numbers))
                if buffers.coded:
                    return Coded(numbers, values, objects)
                return objects.take(numbers)
        at_once = max(_AT_ONCE // max(len(places), 1), 1)
        columns: list[Any] = []
        for first in range(0, len(self.names), at_once):
            columns += self._columns(places, groups, slice(first, first + at_once), buffers)
        return columns if len(columns) > 1 else columns[0]

    def slices(self, places: Rows, groups: Rows) -> list[memoryview]:
        """Values of the only column, read only, where they lie."""
        begins = self._begins_of_views(places, groups, slice(1))[:, 0]
        views = self._narrow.take(begins // VIEW.itemsize, 0, mode="clip")
        lengths = views.view(np.int32)[:, 0]
        elsewhere = views.view(np.int64)[:, 1] + self._lying.values[:, 0].take(groups)
        starts = np.where(lengths > self._lying.widths[:, 0].take(groups) - _HEAD, elsewhere, begins + _HEAD)
        content = self._content.data
        return [
            content[start:stop]
            for start, stop in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        ]

    def _begins(self, places: Rows, groups: Rows, columns: slice) -> Rows:
        """Offsets of the views, or codes, of rows, (n, columns)."""
        steps = self._lying.steps[:, columns].take(groups, 0) if self._step is None else self._step
        begins: Rows = self._lying.rows[:, columns].take(groups, 0)
        begins += places[:, None] * steps
        return begins

    def _begins_of_views(self, places: Rows, groups: Rows, columns: slice) -> Rows:
        """Offsets of the views of rows, or of those that their codes mean, (n, columns)."""
        begins = self._begins(places, groups, columns)
        if self._some_are_coded:
            coded = np.flatnonzero(self._lying.is_coded.take(groups))
            its = groups[coded]
            codes = self._codes.take(begins[coded, 0] // CODE.itemsize)
            begins[coded, 0] = self._lying.dictionaries.take(its) + codes * self._lying.widths.take(its)
        return begins

    def _columns(self, places: Rows, groups: Rows, columns: slice, buffers: Buffers) -> list[Any]:
        """Some of the columns, as arrays."""
        begins = self._begins_of_views(places, groups, columns)
        array = self._array(begins, groups, self._lying.values[:, columns], buffers)
        rows = [slice(column * len(places), (column + 1) * len(places)) for column in range(begins.shape[1])]
        if buffers.arrow_strings:
            return [array[each].cast(self._large) for each in rows]
        objects = array.to_numpy(zero_copy_only=False)
        return [objects[each] for each in rows]

    def look(self, places: Rows, groups: Rows) -> None:
        """Strings are always copied."""

    def _array(self, begins: Rows, groups: Rows, values: Rows, buffers: Buffers) -> pa.Array:
        """Strings over memory of ``buffers`` and the mapped bytes, one column after another.

        Args:
            begins: (n, columns), where their views do.
            values: (groups, columns), where the bytes of values begin that do not lie in their views.
        """
        held = self._mapped.copy()
        if len(self._tables) == 1:
            words = self._words(next(iter(self._tables)), begins, groups, values, buffers, held)
        else:
            words = np.empty((1, len(begins), 2), np.int64)
            widths = self._lying.widths.take(groups)
            for width in self._tables:
                where = np.flatnonzero(widths == width)
                words[:, where] = self._words(width, begins[where], groups[where], values, buffers, held)
        return pa.Array.from_buffers(self._viewed, begins.size, [None, pa.py_buffer(words), *held])

    def _words(
        self, width: int, begins: Rows, groups: Rows, values: Rows, buffers: Buffers, held: list[pa.Buffer]
    ) -> npt.NDArray[np.int64]:
        """Arrow's views of rows with views of that width, (columns, n, 2). Bytes behind them are added to ``held``."""
        count, columns = begins.shape
        views = buffers.empty(begins.size, np.dtype(np.uint8), (width,))
        self._tables[width].take((begins // width).reshape(-1), 0, views, "clip")
        heads = views[:, : VIEW.itemsize].view(np.int64).reshape(count, columns, 2)
        words = heads.transpose(1, 0, 2).copy()
        lengths = words.view(np.int32)[:, :, 0].copy()
        outside = np.nonzero(lengths > width - _HEAD) if lengths.max(initial=0) > width - _HEAD else None
        if outside is not None:
            starts = words[:, :, 1][outside] + values[groups[outside[1]], outside[0]]
            # The first and last byte of each brings it near: loads of single bytes wait for memory together, which
            # making one object after another does not.
            self._content.take(starts)
            self._content.take(starts + (lengths[outside] - 1))
        if width > VIEW.itemsize:
            if self._inside[0] != (count, columns, width, len(held)):  # batches are mostly of one size
                self._inside = _inside(count, columns, width, len(held))
            np.copyto(words[:, :, 1], self._inside[1], where=lengths > _INLINE)
            whole = pa.py_buffer(views)
            held += [whole.slice(start) for start in range(0, views.size, 1 << _BUFFER)]
        if outside is not None:
            words[:, :, 1][outside] = _place_of(starts, 0)
        return words

    def _know(self) -> None:
        """Make the objects of all dictionaries, equal ones once, if they are not too many."""
        firsts, groups, dictionaries = np.unique(
            self._lying.dictionaries, return_index=True, return_inverse=True
        )
        sizes, widths = self._lying.sizes[groups, 0], self._lying.widths[groups, 0]
        ends = np.cumsum(sizes)
        if ends[-1] > _MOST_OBJECTS:
            self._are_known = False
            return
        its = np.repeat(np.arange(len(groups)), sizes)
        begins = firsts[its] + (np.arange(ends[-1]) - (ends - sizes)[its]) * widths[its]
        array = self._array(begins[:, None], groups[its], self._lying.values, Buffers())
        made = array.cast(self._large).dictionary_encode()
        objects = made.dictionary.to_numpy(zero_copy_only=False).take(made.indices.to_numpy())
        values = made.dictionary.take(made.indices)
        self._known = objects, values, (ends - sizes)[dictionaries.reshape(-1)]


def _inside(
    count: int, columns: int, width: int, first: int
) -> tuple[tuple[int, int, int, int], npt.NDArray[np.int64]]:
    """The arguments, and (columns, count): the places of values in gathered views (count, columns, width), as Arrow's
    views hold them for buffers from ``first`` on."""
    views = np.arange(count) * columns + np.arange(columns)[:, None]
    return (count, columns, width, first), _place_of(views * width + _HEAD, first)


def _place_of(starts: Rows, first: int) -> Rows:
    """Number of the buffer and place in it, as Arrow's views hold them, of values that begin at ``starts`` of the bytes
    in buffer ``first`` and the buffers behind it, each as long as Arrow can number."""
    return (starts >> _BUFFER) + first | (starts & _LONGEST) << 32
