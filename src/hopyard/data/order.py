"""Order is a pure function: which row comes when, and how steps cut the stream into batches.

The stream of an epoch depends on (rows of each row group, seed, epoch, window) and on nothing
else. The permutation is ours and pinned by tests, so that no release of a library changes a
result: every index is hashed with a key by SplitMix64 (Steele, Lea, Flood: *Fast splittable
pseudorandom number generators*, OOPSLA 2014), the low bits of the hash are replaced by the index
itself, and the numbers are sorted. There are no ties, so any sorting algorithm gives the same
order, and the masked result is the permutation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 0xFFFFFFFFFFFFFFFF
_HASHED_AT_ONCE = 1 << 16  # rows; temporaries stay in the cache of the core


def permutation(n: int, seed: int) -> Rows:
    """A permutation of ``range(n)`` as an int64 array; 8 bytes a row while it is made.

    ``seed`` is any int; only its low 64 bits count. Seeds that differ give unrelated
    permutations. ``n`` is below 2**40.
    """
    bits = max(n - 1, 0).bit_length()
    low = np.uint64((1 << bits) - 1)
    keys = np.arange(n, dtype=np.uint64)
    key = np.uint64(_mix_int((seed & _WORD) ^ _GOLDEN))
    for start in range(0, n, _HASHED_AT_ONCE):
        index = keys[start : start + _HASHED_AT_ONCE]
        hashed = _mix(index * np.uint64(_GOLDEN) + key)
        hashed &= ~low
        index |= hashed
    keys.sort()
    keys &= low
    return keys.view(np.int64)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser, in place."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _mix_int(z: int) -> int:
    return int(_mix(np.array([z], dtype=np.uint64))[0])
