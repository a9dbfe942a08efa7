"""Hashes of rows, by which rows are known again, ordered and split.

The hash of a row is a sum over its columns, and depends on their names and bytes alone: not on the order of the
columns, on the batch or partition that the row came in, or on its container. Of a column it is the sum of its 64-bit
words, each folded and then times a key of its place (after Lemire, Kaser: *Strongly universal string hashing is
fast*, The Computer Journal 2014). ``mix`` finishes it.

A word is folded, bit by bit onto bits 33 places lower, since what two words differ by only in their highest bits
would cancel out for any keys: of a sum's bits only the highest depend on those.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.columns.columns import ColumnData, as_ragged
from hopyard.data.order import mix
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.sparse import elements_of, indices_of
from hopyard.objects.digests import derive_seed

Hashes: TypeAlias = npt.NDArray[np.uint64]

_HASHED_AT_ONCE = 1 << 14
"""Rows: so few that the hashes of a column of numbers stay in the cache of the core."""
_HASHING = 2
"""Threads: half of the time NumPy holds the interpreter."""
_WORDS_AT_ONCE = 1 << 17
_WORD = 8
_FOLD = np.uint64(33)
_FEWEST_KEYS = 16


def row_sums(columns: Mapping[str, ColumnData], count: int = 2) -> Hashes:
    """Unrelated hashes of each row, before ``mix``, (count, n); at most two. The hashes of some columns and of the
    others add up to those of all."""
    rows = len(next(iter(columns.values())))
    sums = np.zeros((count, rows), np.uint64)

    def add(start: int) -> None:
        stop = min(start + _HASHED_AT_ONCE, rows)
        for data in columns.values():
            _add(sums[:, start:stop], data[start:stop])

    starts = range(0, rows, _HASHED_AT_ONCE)
    if len(starts) > 1:
        with ThreadPoolExecutor(_HASHING, "hopyard-prepare") as pool:
            list(pool.map(add, starts))
    elif rows:
        add(0)
    return sums


def content_hashes(columns: Mapping[str, ColumnData]) -> Hashes:
    """The first hash of each row, (n,), by which rows are ordered and split."""
    first: Hashes = row_sums(columns, 1)[0]
    return first


def keyed(hashes: Hashes, *key: int | str) -> Hashes:
    """Other hashes from these, unrelated for every ``key``."""
    return mix(hashes ^ np.uint64(derive_seed(*key)))


def _add(sums: Hashes, data: ColumnData) -> None:
    if data.missing is not None:
        for total, key in zip(sums, _keys(data.name, "null", len(sums)), strict=True):
            total += data.missing.astype(np.uint64) * key
    if data.length is not None:
        _add_sparse(sums, data)
    elif isinstance(data.values, np.ndarray) and data.values.ndim == 1:
        _add_numbers(sums, data.name, data.values)
    elif isinstance(data.values, np.ndarray) and data.missing is None:
        matrix = np.ascontiguousarray(data.values)
        _add_matrix(sums, data.name, matrix.reshape(len(matrix), -1).view(np.uint8))
    else:
        rows = as_ragged(data).values
        assert isinstance(rows, Ragged)
        width = rows.values.dtype.itemsize * int(np.prod(rows.values.shape[1:], dtype=np.int64))
        flat = np.ascontiguousarray(rows.values).reshape(-1).view(np.uint8)
        _add_ragged(sums, data.name, Ragged(flat, rows.offsets * width))


def _add_numbers(sums: Hashes, name: str, values: npt.NDArray[Any]) -> None:
    words = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    folded = _folded(words) if values.itemsize == _WORD else words.astype(np.uint64)
    for which, total in enumerate(sums):
        total += folded * _keys(name, which, 1)[0]


def _add_matrix(sums: Hashes, name: str, part: npt.NDArray[np.uint8]) -> None:
    rows, width = part.shape
    if width % _WORD:
        padded = np.zeros((rows, -(-width // _WORD) * _WORD), np.uint8)
        padded[:, :width] = part
        part = padded
    words = part.view(np.uint64)
    keys = [_keys(name, which, words.shape[1]) for which in range(len(sums))]
    step = max(1, _WORDS_AT_ONCE // max(words.shape[1], 1))
    for start in range(0, rows, step):
        folded = _folded(words[start : start + step])
        for total, key in zip(sums, keys, strict=True):
            total[start : start + step] += np.einsum("ij,j->i", folded, key)
    _add_lengths(sums, name, np.full(rows, width, np.int64))


def _add_ragged(sums: Hashes, name: str, part: Ragged) -> None:
    """Add ragged rows, hashed as a matrix of the same rows: a row's bytes are filled up with zeros to whole words."""
    lengths = part.lengths
    if len(lengths) and (lengths == lengths[0]).all():
        _add_matrix(sums, name, part.values.reshape(len(lengths), lengths[0]))
        return
    counts = -(-lengths // _WORD)
    firsts = offsets_of(counts)
    places = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
    starts = np.repeat(part.offsets[:-1], counts) + places * _WORD
    padded = np.zeros(len(part.values) + _WORD, np.uint8)
    padded[: len(part.values)] = part.values
    # Words begin at any byte, so each is one of all that overlap.
    words = np.ndarray(len(part.values) + 1, "<u8", padded, strides=(1,))[starts].astype(
        np.uint64, copy=False
    )
    ends = firsts[1:][counts > 0] - 1
    behind = (-lengths[counts > 0] % _WORD * 8).astype(np.uint64)  # bits that are of the next row
    words[ends] = words[ends] << behind >> behind
    _add_words(sums, name, words, places, firsts)
    _add_lengths(sums, name, lengths)


def _add_sparse(sums: Hashes, data: ColumnData) -> None:
    """Add sparse rows, hashed as the dense rows: words of zeros add nothing."""
    rows = data.values
    assert isinstance(rows, Ragged)
    assert data.length is not None
    elements = np.ascontiguousarray(elements_of(rows.values))
    each = _WORD // elements.itemsize  # elements of a word
    indices = indices_of(rows.values).astype(np.int64)
    words = elements.view(f"u{elements.itemsize}").astype(np.uint64)
    words <<= (indices % each * (64 // each)).astype(np.uint64)
    numbers = np.repeat(np.arange(len(rows)), rows.lengths)
    owners = numbers * -(-data.length // each) + indices // each  # in rows without a gap
    first = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])) if len(owners) else owners
    words = np.bitwise_or.reduceat(words, first) if len(first) else words
    offsets = offsets_of(np.bincount(numbers[first], minlength=len(rows)))
    _add_words(sums, data.name, words, (indices // each)[first], offsets)
    lengths = np.full(len(rows), data.length * elements.itemsize)
    if data.missing is not None:
        lengths[data.missing] = 0
    _add_lengths(sums, data.name, lengths)


def _add_words(
    sums: Hashes, name: str, words: Hashes, places: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64]
) -> None:
    """Words of rows that begin at ``firsts``; those of zeros may be left out."""
    folded = _folded(words)
    most = int(places.max(initial=-1)) + 1
    for which, total in enumerate(sums):
        running = np.zeros(len(words) + 1, np.uint64)
        np.cumsum(folded * _keys(name, which, most)[places], out=running[1:])
        total += running[firsts[1:]] - running[firsts[:-1]]  # wraps around, and back


def _add_lengths(sums: Hashes, name: str, lengths: npt.NDArray[np.int64]) -> None:
    for total, key in zip(sums, _keys(name, "length", len(sums)), strict=True):
        total += lengths.astype(np.uint64) * key


def _folded(words: Hashes) -> Hashes:
    folded: Hashes = words >> _FOLD
    folded ^= words
    return folded


def _keys(name: str, which: int | str, count: int) -> Hashes:
    size = _FEWEST_KEYS
    while size < count:
        size *= 2
    return _key_table(name, which, size)[:count]


@lru_cache(1024)
def _key_table(name: str, which: int | str, size: int) -> Hashes:
    counter = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table: npt.NDArray[Any] = mix(counter + np.uint64(derive_seed("row hash", name, which)))
    return table | np.uint64(1)
