"""Ends of fragments, and rewriting fragments that changes fall into.

A fragment ends behind a sample that weighs more than the high 19 bits of its key's hash say, or has at least 32 KiB:
naturally. It also ends before a sample with which it would weigh more than 1 MiB. A sample weighs its bytes, those of
its encoded key, and 8; so of small samples that weigh 512 KiB together one is expected to end a fragment, whatever the
sizes of others are. Large ones end their own, since each commit of a change writes the fragment anew that it falls
into, and history keeps both: of samples of 64 KiB that are appended one by one the data would be written four times.

So what is cut depends on nothing but keys and sizes since the last natural end. A change is carried from the fragment
that it falls into (from the one before, if that did not end naturally: it might now take more) to the first place
where old and new fragments end alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError
from hopyard.stockroom.data.fragments import Fragment, encode_fragment, row_width
from hopyard.stockroom.data.rows import (
    KeyedSamples,
    Keys,
    count_before,
    encoded,
    hashes,
    key_sizes,
    keys_of,
    merged,
)
from hopyard.stockroom.maps import SortedMap, decode, encode
from hopyard.stockroom.maps.keys import hash_key
from hopyard.stockroom.packfiles.layout import NARROW
from hopyard.stockroom.records import ColumnRecord, parsing

AIM_BITS = 19
AIM = 1 << AIM_BITS
LIMIT = 1 << 20
LARGE = NARROW  # bytes; from this size on a sample ends its fragment
_PER_SAMPLE = 8  # bytes, besides its key: without it, samples without bytes would never fill a fragment
_NO_KEYS: Keys = np.empty(0, np.int64)


def weights(batch: KeyedSamples) -> Any:
    """(n,) int64: what each sample weighs."""
    return batch.rows.sizes() + key_sizes(batch.keys) + _PER_SAMPLE


@dataclass(frozen=True, slots=True)
class FragmentEntry:
    """Entry of a fragment in the column's map."""

    first: bytes
    digest: str
    last: bytes
    count: int
    nbytes: int

    @classmethod
    def of(cls, first: bytes, value: list[Any]) -> FragmentEntry:
        try:
            digest, last, count, nbytes = value
            end = encode(tuple(last) if isinstance(last, list) else last)
            if end < first:
                raise ValueError(f"its last key, {last!r}, comes before its first")
            return cls(first, parsing.digest(digest), end, parsing.whole(count, 1), parsing.whole(nbytes))
        except (ValueError, TypeError) as error:
            raise CorruptError(
                f"what a column's map says of a fragment cannot be read ({error}). Run `hopyard stock verify`, which "
                "says of which column; then bring that from a remote."
            ) from error

    @property
    def value(self) -> list[Any]:
        return [self.digest, decode(self.last), self.count, self.nbytes]


def neighbours(entries: SortedMap, code: bytes) -> list[bytes]:
    """The encoded keys that fragments end and begin with, before and behind a key that is in none of them."""
    before = entries.floor(code)
    behind = next(entries.keys(code), None)
    return [
        *([] if before is None else [FragmentEntry.of(*before).last]),
        *([] if behind is None else [behind]),
    ]


class Writer(Protocol):
    """Writer of fragments and pages, which reads them at once: a ``PackfileWriter``."""

    def begin(self) -> None: ...

    def read(self, digest: str, /) -> npt.NDArray[np.uint8]: ...

    def read_many(self, digests: Iterable[str], /) -> dict[str, npt.NDArray[np.uint8]]: ...

    def add(self, kind: str, data: bytes, width: int, body: int) -> str: ...

    def add_json(self, value: Any, /, kind: str) -> str: ...


def is_natural(entry: FragmentEntry, size: int) -> bool:
    """Whether a fragment whose last sample has ``size`` bytes ends behind it whatever else it holds."""
    return size >= LARGE or hash_key(entry.last) >> (64 - AIM_BITS) < size + len(entry.last) + _PER_SAMPLE


class _Cutter:
    """Takes samples in the order of their keys; writes fragments as they become complete."""

    def __init__(self, writer: Writer, record: ColumnRecord) -> None:
        self._writer, self._record = writer, record
        self._rest: list[KeyedSamples] = []
        self._weight = 0
        self.written: dict[bytes, FragmentEntry] = {}

    @property
    def is_between(self) -> bool:
        """Whether all samples so far are in fragments."""
        return not self._rest

    def add(self, batch: KeyedSamples) -> None:
        count = len(batch.keys)
        if not count:
            return
        weighed = weights(batch)
        marks = (hashes(batch.keys) >> np.uint64(64 - AIM_BITS)).astype(np.int64)
        ends = np.append(np.flatnonzero((marks < weighed) | (batch.rows.sizes() >= LARGE)) + 1, count + 1)
        before = np.append(0, np.cumsum(weighed))
        start = 0
        while start < count:
            end = int(ends[bisect_right(ends, start)])
            room = int(np.searchsorted(before, before[start] + LIMIT - self._weight, "right")) - 1
            if room <= start and self._rest:
                self.cut()
                continue
            stop = min(end, max(room, start + 1), count)
            self._rest.append(batch.part(slice(start, stop)))
            self._weight += int(before[stop] - before[start])
            if stop == end or stop < count:
                self.cut()
            start = stop

    def cut_before(self, batch: KeyedSamples) -> None:
        """End the fragment under way, if it is full for what comes next."""
        if self._rest and len(batch.keys) and self._weight + int(weights(batch.part(slice(0, 1)))[0]) > LIMIT:
            self.cut()

    def cut(self) -> None:
        """End the fragment under way, if there is one."""
        if not self._rest:
            return
        data, body = encode_fragment(self._record, self._rest)
        width = row_width(self._record) or 0
        (first,), (last,) = encoded(self._rest[0].keys[:1]), encoded(self._rest[-1].keys[-1:])
        count = sum(len(part.keys) for part in self._rest)
        nbytes = sum(part.rows.nbytes for part in self._rest)
        digest = self._writer.add("fragment", data, width, body)
        self.written[first] = FragmentEntry(first, digest, last, count, nbytes)
        self._rest, self._weight = [], 0


class _Changes:
    """Changes in the order of their keys: batches of new samples, and keys whose samples go."""

    def __init__(self, batches: Iterable[KeyedSamples], gone: list[bytes]) -> None:
        self._batches = (batch for batch in batches if len(batch.keys))
        self._head: KeyedSamples | None = next(self._batches, None)
        self._gone, self._at = gone, 0

    def next(self) -> bytes | None:
        """The key of the next change; None if there is none left."""
        keys = encoded(self._head.keys[:1]) if self._head is not None else []
        return min(keys + self._gone[self._at : self._at + 1], default=None)

    def gone(self, stop: bytes | None) -> Keys:
        """The keys before ``stop`` (None: all) whose samples go. They are taken."""
        start = self._at
        while self._at < len(self._gone) and (stop is None or self._gone[self._at] < stop):
            self._at += 1
        return keys_of(self._gone[start : self._at])

    def new(self, stop: bytes | None) -> Iterator[KeyedSamples]:
        """The new samples before ``stop``. They are taken."""
        while self._head is not None:
            batch = self._head
            count = len(batch.keys) if stop is None else count_before(batch.keys, stop)
            if count < len(batch.keys):
                self._head = batch.part(slice(count, None))
                if count:
                    yield batch.part(slice(count))
                return
            self._head = next(self._batches, None)
            yield batch


def rewrite(
    writer: Writer, record: ColumnRecord, batches: Iterable[KeyedSamples], gone: list[bytes] | None = None
) -> ColumnRecord:
    """The record of the column with new samples, and without those under the keys ``gone`` (both in order).

    Reads and writes the fragments that changes fall into, and pages above them. ``batches`` may be as long as it likes:
    it is read as it is written.
    """
    writer.begin()
    changes = _Changes(batches, gone or [])
    pages = SortedMap(writer, record.pages)
    cutter = _Cutter(writer, record)
    replaced: dict[bytes, FragmentEntry] = {}
    while (key := changes.next()) is not None:
        _carry(writer, pages, record, changes, key, cutter, replaced)
    edits: dict[bytes, list[Any] | None] = dict.fromkeys(replaced)
    edits.update((first, entry.value) for first, entry in cutter.written.items())
    for first, entry in replaced.items():
        if cutter.written.get(first) == entry:
            del edits[first]
    count = (
        record.count + sum(e.count for e in cutter.written.values()) - sum(e.count for e in replaced.values())
    )
    nbytes = sum(e.nbytes for e in cutter.written.values()) - sum(e.nbytes for e in replaced.values())
    root = pages.update(writer, edits).root if edits else record.pages
    return replace(record, pages=root, count=count, nbytes=record.nbytes + nbytes)


def _carry(
    writer: Writer, pages: SortedMap, record: ColumnRecord, changes: _Changes, key: bytes, cutter: _Cutter,
    replaced: dict[bytes, FragmentEntry],
) -> None:  # fmt: skip
    """Carry changes from ``key``, that of the next one, on to a place where old and new fragments end alike."""
    following = (
        FragmentEntry.of(*item) for item in pages.items(_beginning(writer, pages, record, key, replaced))
    )
    entry = next(following, None)
    is_first = True
    while entry is not None:
        after = next(following, None)
        stop = None if after is None else after.first
        found = Fragment(writer.read(entry.digest))
        if is_natural(entry, int(found.rows.sizes()[-1])):  # what comes behind it belongs to the next one
            stop = entry.last + b"\0"
        fragment = found.batch
        upcoming = changes.next()
        is_touched = upcoming is not None and (stop is None or upcoming < stop)
        if not (is_touched or is_first):
            cutter.cut_before(fragment)
            if cutter.is_between:
                return
        replaced[entry.first] = entry
        _merge(cutter, fragment, changes, stop)
        if cutter.is_between:
            return
        entry, is_first = after, False
    changes.gone(None)
    for batch in changes.new(None):
        cutter.add(batch)
    cutter.cut()


def _beginning(
    writer: Writer, pages: SortedMap, record: ColumnRecord, key: bytes, replaced: dict[bytes, FragmentEntry]
) -> bytes | None:
    """From where on fragments are rewritten, if ``key`` changes; None: from the first."""

    def is_complete(entry: FragmentEntry) -> bool:
        size = row_width(record)
        if size is None:
            size = int(Fragment(writer.read(entry.digest)).rows.sizes()[-1])
        return is_natural(entry, size)

    found = pages.floor(key)
    if found is None:
        return None
    entry = FragmentEntry.of(*found)
    if key > entry.last and is_complete(entry):
        return entry.last + b"\0"
    before = pages.floor(_below(entry.first))
    if before is not None and before[0] not in replaced and not is_complete(FragmentEntry.of(*before)):
        return before[0]
    return entry.first


def _below(key: bytes) -> bytes:
    """Bytes between ``key`` and every encoded key before it, none of which has ten FF in a row."""
    return key[:-1] + (bytes([key[-1] - 1]) + b"\xff" * 10 if key[-1] else b"")


def _merge(cutter: _Cutter, fragment: KeyedSamples, changes: _Changes, stop: bytes | None) -> None:
    """Add a fragment's samples with the changes before ``stop``."""
    rest = merged(fragment, KeyedSamples(_NO_KEYS, fragment.rows.take(slice(0))), changes.gone(stop))
    for batch in changes.new(stop):
        upto = count_before(rest.keys, encoded(batch.keys[-1:])[0] + b"\0")
        cutter.add(merged(rest.part(slice(upto)), batch, _NO_KEYS))
        rest = rest.part(slice(upto, None))
    cutter.add(rest)
