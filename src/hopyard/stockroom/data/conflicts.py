"""Differences of two columns, and merges of three, reading only the fragments in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from hopyard.errors import DataError
from hopyard.objects.tensors import Tensor
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.cutting import Writer, rewrite
from hopyard.stockroom.data.fragments import Fragment
from hopyard.stockroom.data.gathering import FragmentReader
from hopyard.stockroom.data.given import KeyedSample, Settings, batches_of
from hopyard.stockroom.data.rows import KeyedSamples, SampleBytes, count_before, encoded, find, plain
from hopyard.stockroom.data.rows import alike as unified
from hopyard.stockroom.data.samples import StoredSample, is_uncommon, raw_dtype, stored_sample, to_user
from hopyard.stockroom.maps import Key, SortedMap, decode, encode
from hopyard.stockroom.records import ColumnRecord

SampleChange: TypeAlias = Literal["added", "removed", "changed"]

SampleResolver: TypeAlias = Literal["ours", "theirs"] | Callable[[Key, str, Any, Any, Any], Any] | None
"""Which sample to have where both changed one: that of a side, or what is returned for key, kind of conflict, and the
samples of base, ours and theirs (None: there is none). None instead: conflicts are listed, and ours stays."""


class _Difference(NamedTuple):
    """Samples that differ, of a stretch of keys: those under keys that one column has, and under keys of both."""

    removed: KeyedSamples | None
    added: KeyedSamples | None
    before: KeyedSamples | None
    after: KeyedSamples | None


def diff_columns(
    objects: FragmentReader, a: ColumnRecord | None, b: ColumnRecord | None
) -> Iterator[tuple[Key, SampleChange]]:
    """The keys whose samples differ, in order, and what happened to them from ``a`` to ``b``; None: no column.

    If kind, dtype or shape differ, every sample did.
    """
    alike = a is None or b is None or (a.kind, a.dtype, a.shape) == (b.kind, b.dtype, b.shape)
    for found in _differences(objects, a, b, alike):
        changes: dict[Key, SampleChange] = {}
        for batch, change in ((found.removed, "removed"), (found.added, "added"), (found.after, "changed")):
            if batch is not None:
                changes.update(dict.fromkeys(plain(batch.keys), cast(SampleChange, change)))
        yield from sorted(changes.items(), key=lambda item: encode(item[0]))


def merge_columns(
    objects: FragmentReader,
    writer: Writer,
    base: ColumnRecord | None,
    ours: ColumnRecord,
    theirs: ColumnRecord,
    resolve: SampleResolver = None,
) -> tuple[ColumnRecord, list[tuple[Key, str]]]:
    """The record of ours with what theirs changed since base, and the conflicts that nothing resolved, in order.

    Kinds of conflicts: ``"both added"``, ``"both changed"``, ``"removed here, changed there"``, ``"changed here,
    removed there"``. What both changed alike is none. If both converted the column alike (another dtype, say), a sample
    of base that gives one of theirs when it is cast was not changed by them.

    Raises:
        DataError: ours and theirs do not hold the same kind, dtype and shape; or what ``resolve`` gave does not fit.
    """
    if ours.settings != theirs.settings:
        raise DataError(
            "two columns that do not hold the same cannot be merged sample by sample. Convert one of them first."
        )
    if base is None or base.settings == ours.settings:
        changed_here = _samples(objects, base, ours)
        if not changed_here:
            return theirs, []
        disagreed = _disagreed(changed_here, _samples(objects, base, theirs))
    else:
        disagreed = _disagreed_since_other(objects, base, ours, theirs)
    conflicts: list[tuple[Key, str]] = []
    new: dict[bytes, StoredSample] = {}
    gone: list[bytes] = []
    for code, before, present, after in disagreed:
        if present != before:
            kind = _kind(before, present, after)
            key = decode(code)
            if resolve is None:
                conflicts.append((key, kind))
            if resolve is None or resolve == "ours":
                continue
            if callable(resolve):
                after = _resolved(resolve, ours, key, kind, before, present, after)
        if after is None and present is not None:
            gone.append(code)
        elif after is not None and after != present:
            new[code] = after
    batches = batches_of(list(new), list(new.values()), ours)
    return rewrite(writer, ours, batches, gone), conflicts


_Disagreed: TypeAlias = Iterator[tuple[bytes, StoredSample | None, StoredSample | None, StoredSample | None]]
"""Encoded keys in order, with the samples of base, ours and theirs, where theirs differs from both others."""


def _disagreed(
    changed_here: dict[bytes, tuple[StoredSample | None, StoredSample | None]],
    changed_there: dict[bytes, tuple[StoredSample | None, StoredSample | None]],
) -> _Disagreed:
    for code, (before, after) in changed_there.items():
        present = changed_here[code][1] if code in changed_here else before
        if present != after:
            yield code, before, present, after


def _disagreed_since_other(
    objects: FragmentReader, base: ColumnRecord, ours: ColumnRecord, theirs: ColumnRecord
) -> _Disagreed:
    """Disagreements where base does not hold what both others do."""
    old = SampleColumn(objects, "base", base)
    for code, (present, after) in _samples(objects, ours, theirs).items():
        stored = None if old.was_purged(code) else old.stored(code)
        before = None if stored is None else _cast(stored, ours)
        if before != after:
            yield code, before, present, after


def _cast(value: StoredSample, record: ColumnRecord) -> StoredSample:
    """A sample with the dtype of a column, as ``astype`` gives it; as it is, if it has no such dtype."""
    if not isinstance(value, Tensor) or record.kind != "tensor" or value.dtype == record.dtype:
        return value
    to = raw_dtype(record.dtype)
    if is_uncommon(value.dtype) or is_uncommon(record.dtype) or (value.dtype[0] == "C" and to.kind != "c"):
        return value
    with np.errstate(all="ignore"):
        return Tensor.from_numpy(value.numpy().astype(to))


def _resolved(
    resolve: Callable[[Key, str, Any, Any, Any], Any],
    record: ColumnRecord,
    key: Key,
    kind: str,
    *values: StoredSample | None,
) -> StoredSample | None:
    chosen = resolve(key, kind, *(None if value is None else to_user(value) for value in values))
    if chosen is None:
        return None
    (stored,) = Settings("merged", record).take([KeyedSample(key, chosen)])[1]
    return stored


def _kind(before: StoredSample | None, here: StoredSample | None, there: StoredSample | None) -> str:
    if before is None:
        return "both added"
    if here is None:
        return "removed here, changed there"
    return "changed here, removed there" if there is None else "both changed"


def _samples(
    objects: FragmentReader, a: ColumnRecord | None, b: ColumnRecord
) -> dict[bytes, tuple[StoredSample | None, StoredSample | None]]:
    """Encoded key to the samples in both, in order, where they differ. The columns have the same settings."""
    found: dict[bytes, tuple[StoredSample | None, StoredSample | None]] = {}
    for removed, added, before, after in _differences(objects, a, b, alike=True):
        found.update((code, (sample, None)) for code, sample in _listed(removed, b))
        found.update((code, (None, sample)) for code, sample in _listed(added, b))
        pairs = zip(_listed(before, b), _listed(after, b), strict=True)
        found.update((code, (old, new)) for (code, old), (_, new) in pairs)
    return {code: found[code] for code in sorted(found)}


def _listed(batch: KeyedSamples | None, record: ColumnRecord) -> list[tuple[bytes, StoredSample]]:
    if batch is None:
        return []
    samples = [stored_sample(batch.rows, at, record) for at in range(len(batch.keys))]
    return list(zip(encoded(batch.keys), samples, strict=True))


def _differences(
    objects: FragmentReader, a: ColumnRecord | None, b: ColumnRecord | None, alike: bool
) -> Iterator[_Difference]:
    """Stretch by stretch, in the order of keys. ``alike``: samples of both can be compared."""
    mine, theirs = (SortedMap(objects, None if record is None else record.pages) for record in (a, b))
    if alike:
        items = mine.diff(theirs)
    else:
        firsts = sorted({*mine.keys(), *theirs.keys()})
        items = ((first, mine.get(first), theirs.get(first)) for first in firsts)
    waiting: tuple[KeyedSamples | None, KeyedSamples | None] = None, None
    for first, *values in items:
        # All that comes later begins here: what is before it can be compared.
        (done, rest), (other, other_rest) = (_split(batch, first) for batch in waiting)
        yield _compared(done, other, alike)
        mine_next, theirs_next = (
            batch if value is None else _joined(batch, Fragment(objects.read(value[0])).batch)
            for batch, value in zip((rest, other_rest), values, strict=True)
        )
        waiting = mine_next, theirs_next
    yield _compared(waiting[0], waiting[1], alike)


def _split(batch: KeyedSamples | None, key: bytes) -> tuple[KeyedSamples | None, KeyedSamples | None]:
    """The part of a batch before ``key``, and the rest."""
    if batch is None:
        return None, None
    count = count_before(batch.keys, key)
    return _some(batch, slice(count)), _some(batch, slice(count, None))


def _some(batch: KeyedSamples, places: Any) -> KeyedSamples | None:
    part = batch.part(places)
    return part if len(part.keys) else None


def _joined(batch: KeyedSamples | None, more: KeyedSamples) -> KeyedSamples:
    if batch is None:
        return more
    return KeyedSamples(
        np.concatenate(unified(batch.keys, more.keys)), SampleBytes.concatenate([batch.rows, more.rows])
    )


def _compared(mine: KeyedSamples | None, theirs: KeyedSamples | None, alike: bool) -> _Difference:
    if mine is None or theirs is None:
        return _Difference(mine, theirs, None, None)
    places = find(theirs.keys, mine.keys)
    common = np.flatnonzero(places >= 0)
    is_new = np.ones(len(theirs.keys), bool)
    is_new[places[common]] = False
    before, after = mine.part(common), theirs.part(places[common])
    if alike:
        changed = np.flatnonzero(before.rows.differing(after.rows))
        before, after = before.part(changed), after.part(changed)
    return _Difference(
        _some(mine, np.flatnonzero(places < 0)),
        _some(theirs, np.flatnonzero(is_new)),
        before if len(before.keys) else None,
        after if len(after.keys) else None,
    )
