"""Columns as they are read."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from hopyard.errors import DataError, MissingKeyError, NotFoundError, UsageError
from hopyard.markup import Html, cut, table
from hopyard.stockroom.data.cutting import FragmentEntry
from hopyard.stockroom.data.fragments import Fragment, row_width
from hopyard.stockroom.data.gathering import (
    FragmentReader,
    Fragments,
    Positions,
    Table,
    buried_in,
    checked,
    fragment_of,
    purges_of,
    table_of,
)
from hopyard.stockroom.data.rows import Keys, keys_of, plain
from hopyard.stockroom.data.samples import (
    StoredSample,
    array_to_user,
    describe,
    dtype_name,
    is_uncommon,
    raw_dtype,
    samples_to_user,
    stored_sample,
    to_user,
)
from hopyard.stockroom.maps import Key, SortedMap, check_key, decode, encode
from hopyard.stockroom.packfiles.tombstones import key_of
from hopyard.stockroom.records import ColumnRecord
from hopyard.wording import counted, nearest

_SAMPLES = 5  # that a notebook shows
_ELEMENTS = 8  # of a sample, there


def samples_html(column: Mapping[Any, Any]) -> Html:
    """A table of the first samples of a column."""
    rows = ((repr(key), _beginning(column[key])) for key in column)
    return table(repr(column)[1:-1], ("key", "sample"), rows, _SAMPLES)


def _beginning(sample: Any) -> str:
    if getattr(sample, "ndim", None) is None:
        return cut(repr(sample))
    elements = ", ".join(
        map(str, sample.reshape(-1)[:_ELEMENTS])
    )  # as few digits as tell a float of this dtype
    more = f", ... ({sample.size:,} in all)" if sample.size > _ELEMENTS else ""
    return cut(f"[{elements}{more}]" if sample.ndim else elements)


class SampleColumn(Mapping[Any, Any]):
    """Samples by key, in the order of the keys: ints by value, then strings. Immutable.

    ``column[key]`` is one sample: a NumPy array of its own (a PyTorch tensor where NumPy lacks the dtype), a string or
    bytes. ``column[[key, ...]]`` are several and ``column[3:7]`` those at these positions: stacked to (n, *shape),
    or a list if their shapes may differ or they are text. ``numpy.asarray(column)`` are all. Of a nested
    column the keys are pairs, and ``column[sample]`` is a dict of that sample's parts.

    Samples that were purged are not among them: they do not count, and have no position. Asking for one by its key
    raises ``PurgedError``. What is purged later is still counted here, and raises when it is read.

    Args:
        objects: where its fragments are.
        name: for messages.
        record: of the column.
    """

    def __init__(self, objects: FragmentReader, name: str, record: ColumnRecord) -> None:
        self._objects = objects
        self.name = name
        self.record = record
        self._pages = SortedMap(objects, record.pages)
        self._last: tuple[str, Fragment] | None = None
        self._table: Table | None = None
        self._asked = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Positions mean the same in all copies, whatever is purged meanwhile.
        return type(self), (self._objects, self.name, self.record), {"_readable": self._readable}

    def __repr__(self) -> str:
        return f"<column {self.name!r}: {len(self)} of {describe(self.record)}>"

    def _repr_html_(self) -> str:
        """A table of the first samples, for notebooks."""
        return samples_html(self)

    def _ipython_key_completions_(self) -> list[Any]:
        """The first thousand keys, which IPython and notebooks offer within brackets."""
        return list(islice(self, 1000))

    def __eq__(self, other: object) -> bool:
        # Not that of mappings, which would read all of both.
        return object.__eq__(self, other)

    def __hash__(self) -> int:
        return object.__hash__(self)

    # What it is

    @property
    def objects(self) -> FragmentReader:
        """The objects that the column is read from."""
        return self._objects

    @property
    def kind(self) -> str:
        """``"tensor"``, ``"string"`` or ``"bytes"``."""
        return self.record.kind

    @property
    def dtype(self) -> str:
        """NumPy's (or PyTorch's) name of the dtype of its tensors; ``"str"`` or ``"bytes"`` for others."""
        return {"string": "str", "bytes": "bytes"}.get(self.record.kind) or dtype_name(self.record.dtype)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Of a sample; None for lengths that differ from sample to sample."""
        return self.record.shape

    @property
    def is_nested(self) -> bool:
        """Whether the keys are pairs."""
        return self.record.nested

    @property
    def nbytes(self) -> int:
        """Of all samples."""
        return self.record.nbytes

    def __len__(self) -> int:
        return self.record.count if self._readable is None else len(self._readable)

    @cached_property
    def _readable(self) -> Positions | None:
        """(len,) int64: where the samples are among all that the fragments have; None: none of those was purged."""
        buried = buried_in(self._objects)
        if not buried or self.record.pages is None:
            return None
        gone: list[int] = []
        for entry, start in zip(self._fragments.entries, self._fragments.starts.tolist(), strict=False):
            if entry.digest in buried:
                gone += [start + at for at in Fragment(self._objects.read(entry.digest)).purged]
        return np.delete(np.arange(self.record.count, dtype=np.int64), gone) if gone else None

    def chosen(self, positions: Positions | None) -> Positions | None:
        """Samples of the record at these positions (None: all), also purged ones; None: all of them."""
        if self._readable is None:
            return positions
        return self._readable if positions is None else self._readable[positions]

    # By key

    def __contains__(self, key: object) -> bool:
        try:
            code = encode(check_key(key))
        except UsageError:
            return False
        if self._is_group(key):
            return bool(len(self._positions_of_parts(key)))
        try:
            return bool(self.has([code]))
        except NotFoundError:
            known = self._known_from_map(code)
            if known is None:
                raise
            return known

    def _known_from_map(self, key: bytes) -> bool | None:
        """Whether there is a sample under an encoded key, as the map alone says it; None: it takes the fragment."""
        item = self._pages.floor(key)
        if item is None:
            return False
        entry = FragmentEntry.of(*item)
        if key > entry.last:
            return False
        first, last = decode(entry.first), decode(entry.last)
        is_run = isinstance(first, int) and isinstance(last, int) and last - first + 1 == entry.count
        return True if is_run or key in (entry.first, entry.last) else None

    def __getitem__(self, key: Any) -> Any:
        key = _mask(key)
        if isinstance(key, slice) or key is Ellipsis or (isinstance(key, np.ndarray) and key.dtype == bool):
            return self.take(self._selected(key))
        if isinstance(key, list) or (isinstance(key, np.ndarray) and key.ndim == 1):
            return self.take(self.positions(key))
        if self._is_group(key):
            parts = self._parts(check_key(key))
            if parts:
                return parts
            raise self.missing(check_key(key))
        checked = check_key(key)
        found = self.stored(encode(checked))
        if found is None:
            raise self.missing(checked)
        return to_user(found)

    def stored(self, key: bytes) -> StoredSample | None:
        """The sample under an encoded key, as it is stored; None if there is none."""
        place = self._place(key)
        if place is None:
            return None
        fragment, at = place
        fragment.check(np.array([at]))
        return stored_sample(fragment.rows, at, self.record)

    def _place(self, key: bytes) -> tuple[Fragment, int] | None:
        item = self._pages.floor(key)
        if item is None:
            return None
        fragment = self._fragment(FragmentEntry.of(*item))
        at = fragment.position(key)
        return None if at is None else (fragment, at)

    def codes(self) -> Keys:
        """(len,) all keys: int64 if they are ints, else encoded, as objects."""
        codes = self._fragments.codes()
        return codes if self._readable is None else codes[self._readable]

    def purged_codes(self) -> Keys:
        """The keys of samples that were purged, as ``codes``."""
        if self._readable is None:
            return np.empty(0, np.int64)
        return np.delete(self._fragments.codes(), self._readable)

    def find(self, codes: Keys) -> Positions:
        """(n,) int64: the positions of keys that are given as by ``codes``; -1: there is no such key."""
        return self._numbered(self._fragments.positions(codes))

    def _numbered(self, places: Positions) -> Positions:
        """The positions of samples that are at these places among all of the record; -1 for none, or purged."""
        if self._readable is None:
            return places
        found = np.searchsorted(self._readable, places)
        there = np.append(self._readable, -1)[found] == places
        return np.where(there & (places >= 0), found, -1)

    def has(self, keys: list[bytes]) -> list[bytes]:
        """Encoded keys of these that have a sample."""
        if not self.record.count or not keys:
            return []
        if len(keys) == 1:
            place = self._place(keys[0])
            return [] if place is None or place[1] in place[0].purged else keys
        found = self.find(keys_of(keys))
        return [key for key, position in zip(keys, found.tolist(), strict=True) if position >= 0]

    def was_purged(self, key: bytes) -> bool:
        """Whether there was a sample under this encoded key, which was purged."""
        place = self._place(key)
        return place is not None and place[1] in place[0].purged

    def following_key(self) -> int:
        """The int after the largest one among the keys, also of purged samples; 0 if none is an int."""
        above = (_FIRST_PAIR if self.record.nested else b"") + _ABOVE_INTS
        count = self._fragments.count_before(above)
        if not count:
            return 0
        (key,) = self._fragments.keys(count - 1, count)
        number = key[0] if isinstance(key, tuple) else key
        return number + 1 if isinstance(number, int) else 0

    def group(self, first: int | str) -> list[Key]:
        """The keys of a nested sample's parts, also of those that were purged."""
        return self._fragments.keys(*self._bounds(first))

    def _bounds(self, first: int | str) -> tuple[int, int]:
        start, stop = (self._fragments.count_before(bound) for bound in group_bounds(first))
        return start, stop

    def _fragment(self, entry: FragmentEntry) -> Fragment:
        last = self._last
        if last is None or last[0] != entry.digest:
            data = self._objects.read(entry.digest)
            last = self._last = entry.digest, fragment_of(self.record, entry, data)
        return last[1]

    def positions(self, keys: Any) -> Positions:
        """(n,) int64: the positions of these keys, for ``take``.

        Raises:
            MissingKeyError: there is no sample under one of them.
        """
        if isinstance(keys, np.ndarray) and keys.dtype.kind == "i" and keys.ndim == 1:
            wanted = keys.astype(np.int64)
        else:
            if (
                isinstance(keys, str | bytes | Mapping)
                or not isinstance(keys, Iterable)
                or getattr(keys, "ndim", 1) == 0
            ):
                raise UsageError(
                    f"positions of column {self.name!r} were asked for with {type(keys).__name__}. Give a list of "
                    "keys, or an array (n,) of ints."
                )
            keys = list(keys)
            wanted = keys_of([encode(key) for key in keys])
        found = self.find(wanted)
        if len(found) and found.min() < 0:
            raise self.missing(check_key(keys[int(np.argmin(found))]))
        return found

    def _selected(self, key: Any) -> Positions:
        """(n,) int64: the positions that a slice, a mask or ``...`` selects."""
        if isinstance(key, np.ndarray):
            if key.shape != (len(self),):
                raise UsageError(
                    f"a mask of shape {key.shape} was given, but column {self.name!r} has "
                    f"{counted(len(self), 'sample')}. Say of each of them, in the order of the keys, whether it is "
                    "wanted."
                )
            return np.flatnonzero(key)
        try:
            return np.arange(*(slice(None) if key is Ellipsis else key).indices(len(self)), dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{key} was given, but slices go by place: {error}. For the samples between two keys give a list: "
                "column[[key for key in column.keys() if first <= key < last]]."
            ) from None

    def _is_group(self, key: Any) -> bool:
        return self.record.nested and not isinstance(key, tuple)

    def _parts(self, key: Any) -> dict[int | str, Any]:
        """The parts of a nested sample."""
        positions = self._positions_of_parts(key)
        start, stop = self._bounds(key)
        every = self._fragments.keys(start, stop)
        pairs = [
            pair for pair, at in zip(every, self._numbered(np.arange(start, stop)), strict=True) if at >= 0
        ]
        samples = self.take(positions) if pairs else []
        # Each part its own, though they were taken together.
        return {
            pair[1]: sample if isinstance(sample, str | bytes) else _own(sample)
            for pair, sample in zip(pairs, samples, strict=True)
            if isinstance(pair, tuple)
        }

    def _positions_of_parts(self, key: Any) -> Positions:
        found = self._numbered(np.arange(*self._bounds(key), dtype=np.int64))
        return found[found >= 0]

    def missing(self, key: Key) -> MissingKeyError:
        """The error for a key under which there is no sample.

        Raises:
            PurgedError: there was one.
        """
        keys = self.group(key) if self.record.nested and not isinstance(key, tuple) else [key]
        for place in map(self._place, map(encode, keys)):
            if place is not None:
                place[0].check(np.array([place[1]]))
        text = f"column {self.name!r} has no sample {key!r}"
        for one in purges_of(self._objects, self.name):
            if key_of(one.key) == key:
                text += (
                    f"; one of this key was purged from all versions on {one.time} by {one.by or 'somebody'}"
                )
                text += f" ({one.why}), and what was beside it has been written anew since then"
                break
        if not len(self):
            return MissingKeyError(f"{text}; it is empty. Add samples with .extend(...) or .update(...).")
        first = decode(self._pages.at(0)[0])
        last = decode(FragmentEntry.of(*self._pages.at(len(self._pages) - 1)).last)
        item = self._pages.floor(encode(key)) or self._pages.at(0)
        near = self._fragment(FragmentEntry.of(*item)).keys
        names = [decode(code) for code in near] if near.dtype == object else []
        texts = [name for name in names if isinstance(name, str)]
        hint = nearest(key, texts, ".") if isinstance(key, str) else "."
        return MissingKeyError(
            f"{text}{hint} It has {counted(len(self), 'sample')}, from {first!r} to {last!r}: see .keys()."
        )

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Writing to what was opened for reading."""
        raise UsageError(
            f"column {self.name!r} was opened for reading. Write within `with stock.enable_write():`, or open "
            "StockRoom(path, enable_write=True); what was read before stays as it is."
        )

    __setitem__: ClassVar[Callable[..., NoReturn]] = _refuse
    __delitem__: ClassVar[Callable[..., NoReturn]] = _refuse
    append: ClassVar[Callable[..., NoReturn]] = _refuse
    extend: ClassVar[Callable[..., NoReturn]] = _refuse
    update: ClassVar[Callable[..., NoReturn]] = _refuse

    # In order

    def __iter__(self) -> Iterator[Any]:
        for fragment in self._fragments.each():
            yield from plain(fragment.batch.keys)

    def items(self) -> ItemsView[Any, Any]:
        """Keys and samples, read fragment by fragment."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Samples, read fragment by fragment."""
        return _Values(self)

    def fragments(self) -> Iterator[Fragment]:
        """All fragments, in order."""
        return self._fragments.each()

    # By position

    def take(self, positions: npt.ArrayLike, out: npt.NDArray[Any] | None = None) -> Any:
        """The samples at these positions in the order of the keys, which may come more than once.

        Args:
            positions: (n,) ints; negative ones count from the end.
            out: (n, *shape), C order, of the column's dtype, to be filled; only if all samples have one shape.

        Returns:
            (n, *shape), in memory of its own; a list if shapes may differ, of strings and of bytes.

        Raises:
            UsageError: a position is none of the column; ``out`` does not fit.
        """
        try:
            places = np.asarray(positions)
        except Exception as error:  # whatever a thing that says it is an array raises
            raise UsageError(
                f"positions of column {self.name!r} were given as {type(positions).__name__}, which is no array of "
                f"ints: {error}. They are ints of shape (n,)."
            ) from None
        if places.ndim != 1 or (places.dtype.kind not in "iu" and len(places)):
            raise UsageError(
                f"positions of column {self.name!r} were given as {places.dtype} of shape {places.shape}. They are "
                "ints of shape (n,); samples are looked up by key with column[[key, ...]]."
            )
        if places.dtype.kind == "u":  # which a sign would make another position
            places = np.minimum(places, np.iinfo(np.int64).max)
        places = places.astype(np.int64, copy=False)
        try:
            if self._readable is not None:
                places = self._readable[checked(places, len(self))]
            if self._row[0] is None:
                return self._take_varying(places, out)
            return self._take_fixed(places, out)
        except IndexError:
            count = len(self)
            wrong = places[(places < -count) | (places >= count)]
            raise UsageError(
                f"position {wrong[0]} of column {self.name!r}, which has {counted(count, 'sample')}. Positions are "
                "less than that; negative ones count from the end."
            ) from None

    def _take_fixed(self, places: Positions, out: npt.NDArray[Any] | None) -> Any:
        width, dtype, shape = self._row
        given = out if out is None else self._checked_out(out, (len(places), *shape), dtype)
        taken = self._take_from_table(places, given) if len(places) else None
        if taken is not None:
            result = taken
        else:
            places = checked(places, self.record.count)
            result = np.empty((len(places), *shape), dtype) if given is None else given
            if width and len(places):
                flat = result.reshape(len(places), -1).view(np.uint8)
                for where, rows in self._fragments.take(places):
                    flat[where] = rows.data
        return out if out is not None else array_to_user(result, self.record.dtype)

    def _take_from_table(self, places: Positions, out: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        table = self._find_table()
        taken = None if table is None else table.take(places, out)
        if taken is None:
            self._table = None
        return taken

    def _take_varying(self, places: Positions, out: Any) -> list[Any]:
        if out is not None:
            raise UsageError(
                f"column {self.name!r} holds {describe(self.record)}, whose samples differ in size, and was given "
                "out=. Leave it out: such samples come as a list."
            )
        result: list[Any] = [None] * len(places)
        for where, rows in self._fragments.take(checked(places, self.record.count)):
            for at, sample in zip(where.tolist(), samples_to_user(rows, self.record), strict=True):
                result[at] = sample
        return result

    def _checked_out(
        self, out: npt.NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        if not isinstance(out, np.ndarray):
            raise UsageError(
                f"out= is of type {type(out).__name__}, but column {self.name!r} puts samples into a NumPy array: "
                f"numpy.empty({shape}, {dtype.name!r})."
            )
        if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not out.flags.writeable:
            raise UsageError(
                f"out= is {out.dtype} of shape {out.shape}, but {shape[0]} samples of column {self.name!r} need a "
                f"writable array of {dtype} of shape {shape} in C order: numpy.empty({shape}, {dtype.name!r})."
            )
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if row_width(self.record) is None:
            raise DataError(
                f"column {self.name!r} holds {describe(self.record)}: no array has room for samples of different "
                "sizes. Take a list: column[...]."
            )
        if is_uncommon(self.record.dtype):
            raise DataError(
                f"column {self.name!r} is of {self.dtype}, which NumPy lacks. Take a PyTorch tensor: column[...]."
            )
        if copy is False:
            raise ValueError(f"column {self.name!r} is not in memory: an array of it is a copy.")
        array = np.asarray(self.take(np.arange(len(self), dtype=np.int64)))
        return array if dtype is None else array.astype(dtype, copy=False)

    # How

    @cached_property
    def _fragments(self) -> Fragments:
        return Fragments(
            self._objects, [FragmentEntry.of(*item) for item in self._pages.items()], self.record
        )

    @cached_property
    def _row(self) -> tuple[int | None, np.dtype[Any], tuple[int, ...]]:
        """Bytes, dtype and shape of each sample; the bytes None if they differ."""
        shape = tuple(length or 0 for length in self.record.shape)
        return row_width(self.record), raw_dtype(self.record.dtype), shape

    def _find_table(self) -> Table | None:
        """All samples as a table, if all fragments are here in files. That is looked at rarely, while they are not."""
        width, dtype, shape = self._row
        if self._table is None and width:
            self._asked += 1
            if self._asked & (self._asked - 1) == 0:
                self._table = table_of(self._objects, self._fragments, dtype, shape, width)
        return self._table


class _Items(ItemsView[Any, Any]):
    _mapping: SampleColumn

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        record = self._mapping.record
        for fragment in self._mapping.fragments():
            keys, rows = fragment.batch
            yield from zip(plain(keys), samples_to_user(rows, record), strict=True)


class _Values(ValuesView[Any]):
    _mapping: SampleColumn

    def __iter__(self) -> Iterator[Any]:
        for fragment in self._mapping.fragments():
            yield from samples_to_user(fragment.batch.rows, self._mapping.record)


_FIRST_PAIR = b"\x03"
_ABOVE_INTS = b"\x01" + b"\xff" * 9


def _mask(key: Any) -> Any:
    """A list of bools, or a bool tensor, as the NumPy array that it is like; anything else as it is."""
    if isinstance(key, list):
        return np.array(key) if key and all(isinstance(each, bool | np.bool_) for each in key) else key
    return key.numpy(force=True) if type(key).__name__ == "Tensor" and str(key.dtype) == "torch.bool" else key


def _own(sample: Any) -> Any:
    return sample.clone() if hasattr(sample, "clone") else np.array(sample)


def group_bounds(first: int | str) -> tuple[bytes, bytes]:
    """Bytes that the keys of a nested sample's parts are between: not before the first, and before the second."""
    prefix = encode((first, 0))[:-9]
    return prefix, prefix + b"\xff"
