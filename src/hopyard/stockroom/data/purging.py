"""Fragments without the values of samples that were purged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import offsets_of
from hopyard.errors import CorruptError
from hopyard.objects.digests import digest
from hopyard.stockroom.data.fragments import Fragment, encode_fragment, row_width
from hopyard.stockroom.data.rows import KeyedSamples, SampleBytes, find, keys_of
from hopyard.stockroom.maps import encode
from hopyard.stockroom.packfiles.tombstones import Purged, Tombstone, key_of
from hopyard.stockroom.records import ColumnRecord


def redact(data: npt.NDArray[np.uint8], purged: Iterable[Purged]) -> tuple[bytes, int, int]:
    """The bytes of a fragment without the values of these samples.

    If some of them were gone before, that does not matter: the bytes are those that the whole fragment gives.

    Returns:
        the bytes; and for ``PackfileWriter.add`` its width and where its values begin.

    Raises:
        CorruptError: it is no fragment, or has no sample under one of the keys.
    """
    fragment = Fragment(data)
    gone: dict[int, Any] = dict(fragment.purged)
    for one in purged:
        (at,) = find(fragment.keys, keys_of([encode(key_of(one.key))]))
        if at < 0:
            raise CorruptError(f"it has no sample {one.key!r}")
        gone[int(at)] = [one.time, one.by, one.why]
    header = fragment.described
    record = ColumnRecord(
        header["kind"], header["dtype"], tuple(header["shape"] or ()), nested=False, bits=0, pages=None, count=0,
        nbytes=0,
    )  # fmt: skip
    batch = KeyedSamples(fragment.keys, _without(fragment.rows, np.array(sorted(gone), np.int64)))
    content, body = encode_fragment(record, [batch], [[at, *gone[at]] for at in sorted(gone)])
    return content, row_width(record) or 0, body


def is_stand_in(data: npt.NDArray[np.uint8], tombstone: Tombstone) -> bool:
    """Whether the tombstone's stand-in is these bytes without the samples that it names.

    That is the proof for who has the fragment, or an earlier stand-in. Of the stand-in itself it says that the named
    samples are gone, and the same record is in it.
    """
    try:
        content, _, _ = redact(data, tombstone.purged)
    except CorruptError:
        return False
    made = Fragment(np.frombuffer(content, np.uint8))
    return digest(content, "hopyard.fragment") == tombstone.instead and len(made.purged) == len(
        tombstone.purged
    )


def _without(rows: SampleBytes, gone: npt.NDArray[np.int64]) -> SampleBytes:
    if rows.offsets is None:
        data = rows.data.copy()
        data[gone] = 0
        return SampleBytes(data)
    sizes = rows.sizes()
    kept = np.ones(len(sizes), bool)
    kept[gone] = False
    data = rows.data[np.repeat(kept, sizes)]
    shapes = None
    if rows.shapes is not None:
        shapes = rows.shapes.copy()
        shapes[gone] = 0
    return SampleBytes(data, offsets_of(np.where(kept, sizes, 0)), shapes)
