"""Hashes of rows, by which rows of a cluster's frame are ordered, split and told apart.

The hash of a row depends on its bytes alone: not on the batch that it came in, on the partition, or on the
engine. It is a sum of 32-bit words times 64-bit keys of their places (Lemire, Kaser: *Strongly universal string
hashing is fast*, The Computer Journal 2014), twice with unrelated keys, finished by SplitMix64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.order import mix
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.objects.digests import derive_seed

Hashes: TypeAlias = npt.NDArray[np.uint64]
Part: TypeAlias = npt.NDArray[np.uint8] | Ragged
"""Bytes of n rows: (n, width), or of different lengths."""


@dataclass(frozen=True)
class Scattered:
    """Bytes of n rows that are zeros but for some words; the hash is that of all bytes.

    Attributes:
        words: uint32, of all rows.
        places: of each in its row.
        offsets: (n + 1,) where each row's words begin.
        lengths: (n,) bytes of each row.
    """

    words: npt.NDArray[np.uint32]
    places: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Scalars:
    """Single numbers of n rows, side by side as words of which each number has one or two.

    Attributes:
        columns: (n,) each, of 1, 2, 4 or 8 bytes.
        missing: (n,) bool for each column, which of its rows are null; None: none is.
    """

    columns: Sequence[npt.NDArray[Any]]
    missing: Sequence[npt.NDArray[np.bool_] | None]

    def words(self) -> Iterator[tuple[int, Hashes]]:
        """(place, the words of all rows there), but for places where all are zero."""
        for place, missing in enumerate(self.missing):
            if missing is not None:
                yield place, missing.astype(np.uint64)
        place = len(self.missing)
        for column in self.columns:
            values = np.ascontiguousarray(column)
            bits = values.view(f"u{values.itemsize}")
            if values.itemsize == 8:
                yield place, bits & np.uint64(0xFFFFFFFF)
                yield place + 1, bits >> np.uint64(32)
                place += 2
            else:
                yield place, bits.astype(np.uint64)
                place += 1


_AT_ONCE = 1 << 15  # words; as 64-bit numbers they stay in the cache of the core
_WORD = 4
_FEWEST_KEYS = 256


def row_hashes(rows: int, parts: Sequence[Part | Scalars | Scattered], count: int = 2) -> list[Hashes]:
    """Unrelated (rows,) uint64 hashes of the rows that ``parts`` are together; at most two."""
    sums = np.zeros((count, rows), np.uint64)
    for number, part in enumerate(parts):
        if isinstance(part, Scalars):
            _add_scalars(sums, part, number)
        elif isinstance(part, Scattered):
            _add_words(sums, part.words.astype(np.uint64), part.places, part.offsets, number)
            _add_lengths(sums, part.lengths, number)
        elif isinstance(part, Ragged):
            _add_ragged(sums, part, number)
        else:
            _add_matrix(sums, part, number)
    return [mix(total) for total in sums]


def keyed(hashes: Hashes, *key: int | str) -> Hashes:
    """Other hashes from these, unrelated for every ``key``."""
    return mix(hashes ^ np.uint64(derive_seed(*key)))


def _add_scalars(sums: npt.NDArray[np.uint64], part: Scalars, number: int) -> None:
    most = len(part.missing) + 2 * len(part.columns)
    keys = [_keys(number, which, most) for which in range(len(sums))]
    for place, words in part.words():
        for total, key in zip(sums, keys, strict=True):
            total += words * key[place]


def _add_matrix(sums: npt.NDArray[np.uint64], part: npt.NDArray[np.uint8], number: int) -> None:
    rows, width = part.shape
    if width % _WORD or not part.flags.c_contiguous:
        padded = np.zeros((rows, -(-width // _WORD) * _WORD), np.uint8)
        padded[:, :width] = part
        part = padded
    words = part.view(np.uint32)
    keys = [_keys(number, which, words.shape[1]) for which in range(len(sums))]
    step = max(1, _AT_ONCE // max(words.shape[1], 1))
    for start in range(0, rows, step):
        wide = words[start : start + step].astype(np.uint64)
        for total, key in zip(sums, keys, strict=True):
            total[start : start + step] += np.einsum("ij,j->i", wide, key)
    _add_lengths(sums, np.full(rows, width, np.int64), number)


def _add_ragged(sums: npt.NDArray[np.uint64], part: Ragged, number: int) -> None:
    """As for a matrix of the same rows: a row's bytes are filled up with zeros to whole words."""
    lengths = part.lengths
    if len(lengths) and (lengths == lengths[0]).all():
        _add_matrix(sums, part.values.reshape(len(lengths), lengths[0]), number)
        return
    counts = -(-lengths // _WORD)
    firsts = offsets_of(counts)
    padded = np.zeros(int(firsts[-1]) * _WORD, np.uint8)
    places = np.repeat(firsts[:-1] * _WORD - part.offsets[:-1], lengths) + np.arange(len(part.values))
    padded[places] = part.values
    words = padded.view(np.uint32).astype(np.uint64)
    position = np.arange(len(words)) - np.repeat(firsts[:-1], counts)
    _add_words(sums, words, position, firsts, number)
    _add_lengths(sums, lengths, number)


def _add_words(
    sums: npt.NDArray[np.uint64], words: Hashes, places: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.int64], number: int,
) -> None:  # fmt: skip
    """Words of rows that begin at ``firsts``; those of zeros may be left out."""
    for which, total in enumerate(sums):
        products = words * _keys(number, which, int(places.max(initial=-1)) + 1)[places]
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(products, dtype=np.uint64)])
        total += running[firsts[1:]] - running[firsts[:-1]]  # wraps around, and back


def _add_lengths(sums: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64], number: int) -> None:
    for which, total in enumerate(sums):
        total += lengths.astype(np.uint64) * np.uint64(derive_seed("length", number, which) | 1)


def _keys(number: int, which: int, count: int) -> npt.NDArray[np.uint64]:
    size = _FEWEST_KEYS
    while size < count:
        size *= 2
    return _key_table(number, which, size)[:count]


@lru_cache(32)
def _key_table(number: int, which: int, size: int) -> npt.NDArray[np.uint64]:
    counter = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table: npt.NDArray[Any] = mix(counter + np.uint64(derive_seed("row hash", number, which)))
    return table | np.uint64(1)
