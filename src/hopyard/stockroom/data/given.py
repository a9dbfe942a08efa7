"""Samples of users in chunks: keys that ascend, and samples that fit the column."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hopyard.errors import DataError
from hopyard.stockroom.data.fragments import row_width
from hopyard.stockroom.data.rows import KeyedSamples, SampleBytes, keys_of
from hopyard.stockroom.data.samples import (
    StoredSample,
    Weak,
    as_stored,
    cast_exactly,
    empty_record,
    is_array,
    is_uncommon,
    misfit,
    misfit_of,
    numbers,
    raw_array,
    raw_dtype,
    record_for,
    rows_of,
    rows_of_array,
    settle,
)
from hopyard.stockroom.maps import Key, check_key, encode
from hopyard.stockroom.maps.keys import encode_many
from hopyard.stockroom.records import ColumnRecord

_CHUNK = 32 << 20  # bytes
_MANY = 1 << 14  # samples that are converted one by one before some are written
_NUMBERS = ({int}, {float}, {bool}, {int, float})
_WEAK = {int, float, bool, list, tuple}
_FEW = 8  # samples that are sooner taken one by one
_STACKED = 4096  # bytes of an array that is copied sooner than looked at by itself
_STACKED_IN_ALL = 256 << 20  # bytes


class KeyedSample(NamedTuple):
    """A sample under its key."""

    key: Key
    value: Any


class Settings:
    """The settings that samples of a column share: those of its record, or of the first samples.

    Args:
        name: of the column, for messages.
        record: None until the first samples have come.
    """

    def __init__(self, name: str, record: ColumnRecord | None) -> None:
        self.name = name
        self.record = record

    def error(self, key: Any, text: str) -> DataError:
        """For a sample that cannot be taken."""
        return DataError(f"column {self.name!r}: the sample {key!r} {text.rstrip('.')}. Nothing was written.")

    def misfit(self, key: Any, text: str) -> DataError:
        """For a sample that does not fit the others."""
        return self.error(
            key,
            f"{text}. Convert it, or replace the whole column, if its samples shall be others from now on",
        )

    def take(self, items: Sequence[KeyedSample]) -> tuple[list[Key], list[StoredSample]]:
        """Keys and samples of all items, which fit."""
        keys = [item.key for item in items]
        self.check_nested(keys)
        values: list[StoredSample | Weak] = []
        for key, value in items:
            try:
                values.append(as_stored(value))
            except DataError as error:
                raise self.error(key, str(error)) from None
        settled = settle(values, self.record, lambda at, text: self.error(keys[at], text))
        if self.record is None:
            self.record = record_for(settled, isinstance(keys[0], tuple))
        for key, stored in zip(keys, settled, strict=True):
            reason = misfit(stored, self.record)
            if reason is not None:
                raise self.misfit(key, reason)
        return keys, settled

    def check_nested(self, keys: Sequence[Key]) -> None:
        """Raise unless all keys are pairs, or none is, as in the column."""
        nested = self.record.nested if self.record is not None else isinstance(keys[0], tuple)
        for key in keys:
            if isinstance(key, tuple) != nested:
                rule = (
                    "(sample, part), or a dict of parts for a sample" if nested else "one number or name each"
                )
                raise DataError(
                    f"column {self.name!r} is {'' if nested else 'not '}nested, so its keys are {rule}, but one is "
                    f"{key!r}. Nothing was written: give keys of one form, or make another column."
                )

    def take_array(self, dtype: str, array: npt.NDArray[Any], first: Key) -> SampleBytes:
        """The rows of an array (n, ...) of numbers, which fit; ``first`` is the key of the first."""
        shape = array.shape[1:]
        if self.record is None:
            self.record = empty_record("tensor", dtype, shape, nested=False)
        reason = misfit_of(dtype, shape, self.record)
        if reason is not None:
            raise self.misfit(first, reason)
        return rows_of_array(array, self.record)


def check_samples(name: str, values: Any) -> None:
    """Raise unless what a column is given are samples: no image of PIL, and no sparse matrix or tensor, which is taken
    apart in as many ways as it has formats.

    Raises:
        DataError: it is one.
    """
    sparse, torch = sys.modules.get("scipy.sparse"), sys.modules.get("torch")
    if sparse is not None and sparse.issparse(values):
        whole = ".toarray()"
    elif torch is not None and isinstance(values, torch.Tensor) and values.layout != torch.strided:
        whole = ".to_dense()"
    elif is_array(values) and not hasattr(values, "ndim") and not hasattr(values, "__len__"):
        raise DataError(
            f"column {name!r} was given one {type(values).__module__}.{type(values).__qualname__}, not samples. Give a "
            "list of samples, or samples by key: {key: sample}."
        )
    else:
        return
    raise DataError(
        f"column {name!r} was given a sparse {type(values).__name__}, but columns are dense. Give it whole "
        f"({whole}), or let each sample be its numbers in nested parts, such as {{'indices': ..., 'values': ...}}."
    )


def batches_of_array(values: Any, first: int, settings: Settings) -> Iterator[KeyedSamples]:
    """The rows of an array or tensor (n, ...) under the keys from ``first`` on, in chunks."""
    count = len(values)
    if count:
        check_key(first + count - 1)
    if not count and settings.record is None:
        dtype, array = raw_array(values)
        if dtype not in ("string", "bytes"):
            settings.take_array(dtype, array, first)
    if settings.record is not None and settings.record.nested and count:
        settings.check_nested([first])
    size = max(int(getattr(values, "nbytes", 0)) // max(count, 1), 1)
    step = max(_CHUNK // size, 1)
    for start in range(0, count, step):
        stop = min(start + step, count)
        try:
            dtype, array = raw_array(values[start:stop])
        except DataError as error:
            raise settings.error(first + start, f"and those behind it: what was given {error}") from None
        if dtype in ("string", "bytes"):
            items = [KeyedSample(first + start + at, value) for at, value in enumerate(array.tolist())]
            yield from batches_of_items(iter(items), settings)
        else:
            keys = np.arange(stop - start, dtype=np.int64) + (first + start)
            yield KeyedSamples(keys, settings.take_array(dtype, array, first + start))


def batches_of_rows(
    keys: Sequence[Key], rows: npt.NDArray[Any], settings: Settings
) -> Iterator[KeyedSamples]:
    """The rows of an array (n, ...) of numbers under these keys, in the order of the keys, in chunks."""
    codes = encode_many(keys)
    if not codes:
        return
    settings.check_nested(keys)
    order = np.array(sorted(range(len(codes)), key=codes.__getitem__), np.int64)
    step = max(_CHUNK // max(rows.nbytes // len(rows), 1), 1)
    for start in range(0, len(order), step):
        some = order[start : start + step]
        dtype, array = raw_array(rows[some])
        yield KeyedSamples(
            keys_of([codes[at] for at in some]), settings.take_array(dtype, array, keys[some[0]])
        )


def batches_of_items(
    items: Iterator[KeyedSample], settings: Settings, at_once: bool = False
) -> Iterator[KeyedSamples]:
    """Samples one by one, whose keys ascend, in chunks. ``at_once``: all say what they have in common."""
    while some := list(items if at_once else islice(items, _some(settings))):
        keys, stored = settings.take(some)
        assert settings.record is not None
        yield from batches_of([encode(key) for key in keys], stored, settings.record)


def batches_of(
    codes: Sequence[bytes], stored: Sequence[StoredSample], record: ColumnRecord
) -> Iterator[KeyedSamples]:
    """Samples that fit under encoded keys that ascend, in chunks."""
    start = 0
    for stop in _ends(stored):
        yield KeyedSamples(keys_of(codes[start:stop]), rows_of(stored[start:stop], record))
        start = stop


def _some(settings: Settings) -> int:
    width = None if settings.record is None else row_width(settings.record)
    return max(1, min(_MANY, _CHUNK // max(width or _CHUNK // 256, 1)))


def _ends(stored: Sequence[StoredSample]) -> list[int]:
    """The ends of chunks of samples."""
    ends, size = [], 0
    for at, value in enumerate(stored):
        size += len(value) if isinstance(value, str | bytes) else value.nbytes
        if size >= _CHUNK:
            ends.append(at + 1)
            size = 0
    return ends if not stored or ends[-1:] == [len(stored)] else [*ends, len(stored)]


def uniform(values: Sequence[Any], settings: Settings) -> npt.NDArray[Any] | None:
    """Samples as one array (n, ...) of what each of them is by itself, if that is quickly made: Python's numbers, lists
    of them of one length, NumPy's numbers, or small arrays of one dtype and shape. None: take them one by one, also
    where one does not fit, so that the error is of that sample."""
    kinds = set(map(type, values))
    array: npt.NDArray[Any] | None = None
    try:
        if kinds in _NUMBERS:
            array = numbers(values)
        elif kinds in ({list}, {tuple}):
            if len(set(map(len, values))) == 1 and set(map(type, chain.from_iterable(values))) in _NUMBERS:
                array = numbers(values)
        elif len(kinds) == 1:
            array = _stacked(values, next(iter(kinds)))
        if array is None:
            return None
        # Together with floats NumPy holds ints that no sample may be alone.
        if array.dtype.kind == "f" and kinds <= _WEAK and _may_be_too_large(values, array):
            return None
        record = settings.record
        if (
            record is not None
            and record.kind == "tensor"
            and kinds <= _WEAK
            and not is_uncommon(record.dtype)
        ):
            array = cast_exactly(array, raw_dtype(record.dtype))
            if array is None:
                return None
        dtype, _ = raw_array(array)
    except (DataError, OverflowError):
        return None
    if dtype in ("string", "bytes"):
        return None
    if record is not None and misfit_of(dtype, array.shape[1:], record) is not None:
        return None
    return array


def _stacked(values: Sequence[Any], kind: type[Any]) -> npt.NDArray[Any] | None:
    first = values[0]
    if kind is not np.ndarray:  # NumPy's numbers; subclasses of arrays mean something by themselves
        array = np.array(values) if issubclass(kind, np.generic) and first.dtype.kind in "biufc" else None
        return array if array is not None and array.dtype == first.dtype else None
    size = first.nbytes
    if size > _STACKED or size * len(values) > _STACKED_IN_ALL or first.dtype.kind not in "biufcV":
        return None
    if len({(each.dtype, each.shape) for each in values}) > 1:
        return None
    return np.stack(values)


def _may_be_too_large(values: Sequence[Any], array: npt.NDArray[Any]) -> bool:
    if not (np.abs(array) >= 1 << 63).any():
        return False
    flat = chain.from_iterable(values) if array.ndim > 1 else values
    return any(type(each) is int for each in flat)


def numbered(values: Iterable[Any], first: int, settings: Settings) -> Iterator[KeyedSample]:
    """Samples under the keys from ``first`` on; those of nested columns are mappings."""
    for number, value in enumerate(values, first):
        yield from parts(number, value, settings)


def rows_by_key(values: Mapping[Any, Any], settings: Settings) -> tuple[list[Key], npt.NDArray[Any]] | None:
    """The keys and samples of a dict as ``batches_of_rows`` takes them, if all keys are single ones and the samples are
    ``uniform``."""
    if (
        type(values) is not dict
        or len(values) < _FEW
        or (settings.record is not None and settings.record.nested)
    ):
        return None
    if not set(map(type, values)) <= {int, str}:
        return None
    rows = uniform(list(values.values()), settings)
    return None if rows is None else (list(values), rows)


def keyed(values: Mapping[Any, Any], settings: Settings) -> Iterator[KeyedSample]:
    """The samples of a mapping in the order of their keys."""
    checked = {check_key(key): key for key in values}
    for key in sorted(checked, key=encode):
        yield from parts(key, values[checked[key]], settings)


def parts(key: Key, value: Any, settings: Settings) -> Iterator[KeyedSample]:
    """The sample itself, or the parts of a nested one in the order of their keys."""
    if not isinstance(value, Mapping):
        yield KeyedSample(key, value)
        return
    if isinstance(key, tuple):
        raise settings.error(
            key, "is a dict, but a part of a nested sample has no parts. Give it as an array"
        )
    pairs = {check_key((key, part)): sample for part, sample in value.items()}
    if not pairs:
        raise settings.error(key, "is a dict without parts. Delete it instead, or give it a part")
    for pair in sorted(pairs, key=encode):
        yield KeyedSample(pair, pairs[pair])
