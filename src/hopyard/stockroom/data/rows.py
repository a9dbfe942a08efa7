"""Samples and keys in bulk: the bytes of many samples side by side, their keys in an array."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import Ragged, offsets_of
from hopyard.stockroom.maps.keys import Key, decode, decode_many, encode, encode_ints, hash_ints, hash_many

Keys: TypeAlias = npt.NDArray[Any]
"""(n,) int64 where all keys are ints, else of encoded keys as objects. In both the order is that of the keys."""

_FEW = 8  # keys that are encoded sooner one by one


@dataclass(frozen=True, eq=False)
class SampleBytes:
    """The bytes of n samples.

    Attributes:
        data: (n, width) uint8 if all have one size; else (total,), one sample after another.
        offsets: (n + 1,) int64, where samples begin in ``data``; None if all have one size.
        shapes: (n, rank) int64, of tensors whose lengths vary; else None.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64] | None = None
    shapes: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.data) if self.offsets is None else len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        return self.data.size

    def sizes(self) -> npt.NDArray[np.int64]:
        """(n,) int64: bytes of each sample."""
        if self.offsets is None:
            return np.full(len(self.data), self.data.shape[1], np.int64)
        return np.diff(self.offsets)

    def sample(self, at: int) -> tuple[npt.NDArray[np.uint8], tuple[int, ...] | None]:
        """The bytes of one sample, and its shape if lengths vary."""
        if self.offsets is None:
            return self.data[at], None
        data = self.data[self.offsets[at] : self.offsets[at + 1]]
        return data, None if self.shapes is None else tuple(self.shapes[at].tolist())

    def take(self, places: Any) -> SampleBytes:
        """The samples at these places, a slice or an array of positions, in this order."""
        if self.offsets is None:
            return SampleBytes(self.data[places])
        found = Ragged(self.data, self.offsets)[places]
        return SampleBytes(found.values, found.offsets, None if self.shapes is None else self.shapes[places])

    @staticmethod
    def collect(places: Sequence[tuple[SampleBytes, int]]) -> SampleBytes:
        """Single samples of several rows, each given by its rows and its position there, in this order."""
        parts = {id(rows): rows for rows, _ in places}
        starts = dict(zip(parts, accumulate(map(len, parts.values()), initial=0), strict=False))
        positions = [starts[id(rows)] + at for rows, at in places]
        return SampleBytes.concatenate(list(parts.values())).take(np.array(positions, np.int64))

    @staticmethod
    def concatenate(parts: Sequence[SampleBytes]) -> SampleBytes:
        """All samples of ``parts``, of which there is at least one, in order."""
        if len(parts) == 1:
            return parts[0]
        data = np.concatenate([part.data for part in parts])
        if parts[0].offsets is None:
            return SampleBytes(data)
        shapes = [part.shapes for part in parts if part.shapes is not None]
        offsets = offsets_of(np.concatenate([part.sizes() for part in parts]))
        return SampleBytes(data, offsets, np.concatenate(shapes) if shapes else None)

    def differing(self, other: SampleBytes) -> npt.NDArray[np.bool_]:
        """(n,): which samples differ from the other's at the same place."""
        if self.offsets is None and other.offsets is None and self.data.shape == other.data.shape:
            differ: npt.NDArray[np.bool_] = (self.data != other.data).any(1)
            return differ
        differ = self.sizes() != other.sizes()
        if self.shapes is not None and other.shapes is not None:
            differ |= (self.shapes != other.shapes).any(1)
        same = np.flatnonzero(~differ)
        mine, theirs = self.take(same), other.take(same)
        assert mine.offsets is not None
        # How many bytes differ before each sample begins, and so within each.
        before = np.append(0, np.cumsum(mine.data != theirs.data))
        differ[same] = np.diff(before[mine.offsets]) > 0
        return differ


class KeyedSamples(NamedTuple):
    """Samples and their keys, which ascend."""

    keys: Keys
    rows: SampleBytes

    def part(self, places: Any) -> KeyedSamples:
        return KeyedSamples(self.keys[places], self.rows.take(places))


def keys_of(encoded: Sequence[bytes]) -> Keys:
    """An array of encoded keys."""
    if all(len(key) == 9 and key[0] == 1 for key in encoded):
        return np.array(decode_many(encoded), np.int64)
    return _objects(encoded)


def _objects(encoded: Sequence[bytes]) -> Keys:
    keys = np.empty(len(encoded), object)
    keys[:] = encoded
    return keys


def encoded(keys: Keys) -> list[bytes]:
    """The bytes of each key."""
    if keys.dtype == object:
        return list(keys)
    if len(keys) <= _FEW:
        return [encode(key) for key in keys.tolist()]
    raw = encode_ints(keys).tobytes()
    return [raw[at : at + 9] for at in range(0, len(raw), 9)]


def plain(keys: Keys) -> list[Key]:
    """Keys as users know them."""
    return list(map(decode, keys)) if keys.dtype == object else list(keys.tolist())


def alike(*arrays: Keys) -> list[Keys]:
    """Keys in arrays that can be compared with each other."""
    if all(keys.dtype != object for keys in arrays):
        return list(arrays)
    return [keys if keys.dtype == object else _objects(encoded(keys)) for keys in arrays]


def hashes(keys: Keys) -> npt.NDArray[np.uint64]:
    """(n,): of each key."""
    return hash_many(list(keys)) if keys.dtype == object else hash_ints(keys)


def key_sizes(keys: Keys) -> npt.NDArray[np.int64]:
    """(n,) int64: bytes of each encoded key."""
    if keys.dtype == object:
        return np.fromiter(map(len, keys), np.int64, len(keys))
    return np.full(len(keys), 9, np.int64)


def find(keys: Keys, wanted: Keys) -> npt.NDArray[np.int64]:
    """(n,) int64: where each of ``wanted`` is in ``keys``, which ascend; -1: nowhere."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    keys, wanted = alike(keys, wanted)
    places = np.searchsorted(keys, wanted).astype(np.int64)
    at = np.minimum(places, len(keys) - 1)
    return np.where(np.asarray(keys[at] == wanted, bool), at, -1)


def count_before(keys: Keys, stop: bytes) -> int:
    """Number of ``keys``, which ascend, that come before ``stop``: an encoded key, or what is just behind one."""
    if keys.dtype == object:
        return bisect_left(keys, stop)
    if stop[:1] != b"\1":
        return len(keys) if stop > b"\1" else 0
    (value,) = keys_of([stop[:9]])
    return int(np.searchsorted(keys, value, "right" if len(stop) > 9 else "left"))


def following(keys: Keys) -> int:
    """The int after the largest one among keys, which ascend and are no pairs; 0 if none is an int."""
    count = count_before(keys, b"\2")
    (last,) = plain(keys[count - 1 : count]) if count else (-1,)
    assert isinstance(last, int)
    return last + 1


def merged(old: KeyedSamples, new: KeyedSamples, gone: Keys) -> KeyedSamples:
    """The samples of ``old`` without those under ``gone``, and of ``new``, which win."""
    kept = np.ones(len(old.keys), bool)
    for keys in (new.keys, gone):
        places = find(old.keys, keys)
        kept[places[places >= 0]] = False
    old = old if kept.all() else old.part(np.flatnonzero(kept))
    if not len(new.keys) or not len(old.keys):
        return new if len(new.keys) else old
    keys = np.concatenate(alike(old.keys, new.keys))
    rows = SampleBytes.concatenate([old.rows, new.rows])
    order = np.argsort(keys, kind="stable")
    return KeyedSamples(keys[order], rows.take(order))
