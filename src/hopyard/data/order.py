"""Order is a pure function: which row comes when, and how steps cut the stream into batches.

The stream of an epoch depends on (rows of each row group, seed, epoch, window) and on nothing
else. The permutation is ours and pinned by tests, so that no release of a library changes a
result: every index is hashed with a key by SplitMix64 (Steele, Lea, Flood: *Fast splittable
pseudorandom number generators*, OOPSLA 2014), and indices are sorted by the high 32 bits of their
hash, equal ones by index. Nothing is left to the sorting algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.errors import UsageError
from hopyard.objects.digests import derive_seed

Rows = npt.NDArray[np.int64]

WINDOW_BYTES = 1 << 30
"""Decoded bytes that a loader permutes together, of any data, unless told otherwise."""

HELD_BYTES = 256 << 20
"""Decoded bytes that are held in memory at once where no permutation asks for more."""

Reach: TypeAlias = int | list[Any] | None
"""Reach of a permutation, as datasets give it and states of loaders record it (JSON): rows of a
window; None for all rows; of several datasets, one each."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 0xFFFFFFFFFFFFFFFF
_LOW = np.uint64(0xFFFFFFFF)
# Parts of a window that the first ones are: 64 MiB come over a wire of 100 MB/s within a second.
_FIRST = (16, 4)

# Places of the data, at least, that a window of small row groups is drawn from: 8 MiB each are one request.
_PLACES = 128

_HASHED_AT_ONCE = 1 << 15  # rows; temporaries stay in the cache of the core


def permutation(n: int, seed: int) -> Rows:
    """A permutation of ``range(n)`` as an int64 array. ``n`` is at most 2**32.

    ``seed`` is any int; only its low 64 bits count. Seeds that differ give unrelated permutations.
    """
    key = _mix_int((seed & _WORD) ^ _GOLDEN)
    keys = np.arange(n, dtype=np.uint64)
    multiples = keys[:_HASHED_AT_ONCE] * np.uint64(_GOLDEN)
    for start in range(0, n, _HASHED_AT_ONCE):
        index = keys[start : start + _HASHED_AT_ONCE]
        hashed = mix(multiples[: len(index)] + np.uint64((start * _GOLDEN + key) & _WORD))
        hashed &= ~_LOW
        index |= hashed
    keys.sort()  # hash and index are one number, and no two are equal: any sorting algorithm gives this order
    keys &= _LOW
    return keys.view(np.int64)


def mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser, in place."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _mix_int(z: int) -> int:
    return int(mix(np.array([z], dtype=np.uint64))[0])


@dataclass(frozen=True)
class Window:
    """Row groups whose rows are permuted together.

    Attributes:
        groups: numbers of the row groups; row i of the window is row i of them one after another.
        rows: of all of them.
        seed: of their permutation, or None for the natural order.
    """

    groups: tuple[int, ...]
    rows: int
    seed: int | None

    def order(self) -> Rows:
        """(rows,) int64: the window's rows in the order in which they come."""
        return np.arange(self.rows) if self.seed is None else permutation(self.rows, self.seed)


def epoch_windows(
    group_rows: Sequence[int], seed: int, epoch: int, window: int | None = None, shuffle: bool = True
) -> list[Window]:
    """The stream of an epoch: windows in order, each read in its own order.

    ``group_rows`` holds the rows of each row group. ``window`` is in rows: row groups are permuted
    and dealt to windows in that order, each window filled as far as whole row groups go (one at
    least). Small row groups next to each other, up to the one with which they have 1/128 of a window's rows, are
    permuted as one, for they are read by one request. The first window has a sixteenth of the rows and the second a
    quarter, so that training begins when little of the data is here. None, or a window that all rows fit, is a true
    permutation over all rows. Without ``shuffle`` the windows only bound memory: rows come in their natural order.
    """
    count, rows = len(group_rows), sum(group_rows)
    if window is None or rows <= window:
        whole_seed = derive_seed("order", seed, epoch) if shuffle else None
        return [Window(tuple(range(count)), rows, whole_seed)] if rows else []
    visits: Iterable[int] = range(count)
    if shuffle:
        places = _neighbours(group_rows, window // _PLACES)
        order = permutation(len(places), derive_seed("order of groups", seed, epoch)).tolist()
        visits = (group for place in order for group in places[place])
    return [
        Window(groups, size, derive_seed("order in window", seed, epoch, number) if shuffle else None)
        for number, (groups, size) in enumerate(_filled(group_rows, visits, window))
        if size
    ]


def _neighbours(group_rows: Sequence[int], rows: int) -> list[range]:
    """Row groups next to each other, in ranges that end where they have so many rows."""
    ranges = []
    start = size = 0
    for group, its in enumerate(group_rows, 1):
        size += its
        if size >= rows:
            ranges.append(range(start, group))
            start, size = group, 0
    return ranges if start == len(group_rows) else [*ranges, range(start, len(group_rows))]


def _filled(
    group_rows: Sequence[int], visits: Iterable[int], window: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Consecutive row groups of ``visits``, as many as fit in a window of ``window`` rows, or a smaller first one, and
    their rows."""
    groups: list[int] = []
    size = 0
    smaller = list(_FIRST)
    for group in visits:
        if groups and size + group_rows[group] > window // (smaller[0] if smaller else 1):
            yield tuple(groups), size
            groups, size = [], 0
            smaller = smaller[1:]
        groups.append(group)
        size += group_rows[group]
    yield tuple(groups), size


def batch_bounds(
    rows: int, batch_size: int, tail: Literal["short", "join", "drop"] = "short"
) -> Iterator[tuple[int, int]]:
    """[start, stop) of each batch over ``rows`` rows.

    The last batch may be short; with ``tail="join"`` one of fewer than ``batch_size / 2`` rows is
    part of the batch before it, if there is one; with ``"drop"`` all are full.
    """
    count = num_batches(rows, batch_size, tail)
    end = count * batch_size if tail == "drop" else rows
    for number in range(count):
        yield number * batch_size, end if number == count - 1 else (number + 1) * batch_size


def num_batches(rows: int, batch_size: int, tail: Literal["short", "join", "drop"] = "short") -> int:
    """Number of batches that ``batch_bounds`` gives."""
    full, rest = divmod(rows, batch_size)
    if rest == 0 or tail == "drop" or (tail == "join" and full and 2 * rest < batch_size):
        return full
    return full + 1


def rows_per_rank(rows: int, world_size: int, remainder: Literal["drop", "repeat", "error"]) -> int:
    """Number of rows that each rank gets of ``rows``: all ranks the same.

    The rest, fewer than ``world_size`` rows at the end of the last step, is dropped, or filled
    up by repeating rows from the start of the stream.

    Raises:
        UsageError: rows are left and the policy is ``"error"``.
    """
    each, left = divmod(rows, world_size)
    if left and remainder == "error":
        raise UsageError(
            f"{rows} rows do not divide into {world_size} ranks ({left} left), and remainder='error' forbids "
            "that. Use remainder='drop' or 'repeat', or another number of ranks."
        )
    return each + 1 if left and remainder == "repeat" else each
