"""The bytes of a fragment: samples with neighbouring keys. This text is the format.

All numbers are little-endian. A fragment of ``count`` samples (at least one) is::

    8 bytes   "HOPFRAG1"
    8 bytes   length of the header, unsigned
    header    canonical JSON (sorted keys, no spaces, ASCII)
    sections  keys, shapes, offsets, values

Each section begins at the next multiple of 64, with zeros before it, also if it is empty; the fragment ends with the
last byte of the values. The header is ``{"count", "dtype", "keys", "kind", "shape"}``:

* ``kind``: ``tensor``, ``string`` or ``bytes``; ``dtype``: of a tensor's elements, by the names of safetensors (and
  ``C128``); ``U8`` for strings and bytes.
* ``shape``: of each sample, a list, with null for lengths that vary; null for strings and bytes.
* ``keys``: ``{"range": first}``: ints that follow one another, and the section is empty. ``"ints"``: int64 each.
  ``"bytes"``: count + 1 int64, where each encoded key (``maps.keys``) begins and the last one ends, from the end of
  these numbers on; then the encoded keys. The first of the three that can be is taken. Keys ascend.
* ``shapes``: empty, unless ``shape`` has a null: then rank int64 for each sample, all its lengths.
* ``offsets``: empty if all samples have the size that ``shape`` says; else count + 1 int64: where each sample
  begins in the values and the last one ends.
* ``values``: the samples' bytes: elements in C order, or a string's UTF-8.

A fragment from which samples were purged has ``purged`` in its header too: ``[position, time, by, why]`` of each, in
order. Their keys stay; their values are zeros, or empty where sizes vary, with shapes of zeros.

So equal samples under equal keys are equal bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import lt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import offsets_of
from hopyard.errors import CorruptError, PurgedError
from hopyard.objects.tensors import ITEM_SIZES
from hopyard.stockroom.data.rows import KeyedSamples, Keys, SampleBytes, encoded, find, keys_of, plain
from hopyard.stockroom.maps.keys import decode, encode
from hopyard.stockroom.records import ColumnRecord, parsing

_MAGIC = b"HOPFRAG1"
_ALIGNMENT = 64
_MOST = (
    1 << 20
)  # samples; each weighs at least 17 of the 2**20 bytes that a fragment of several weighs at most
_Bytes = npt.NDArray[np.uint8]


def row_width(record: ColumnRecord) -> int | None:
    """Bytes of each sample of a column; None if they differ."""
    if record.kind != "tensor" or None in record.shape:
        return None
    return ITEM_SIZES[record.dtype] * math.prod(length for length in record.shape if length is not None)


def encode_fragment(
    record: ColumnRecord, parts: Sequence[KeyedSamples], purged: Sequence[Any] = ()
) -> tuple[bytes, int]:
    """The bytes of a fragment with the samples of all ``parts``, and where its values begin.

    Args:
        record: of the column, for kind, dtype and shape.
        purged: for the header, of samples that ``parts`` has without their values.
    """
    described, key_section = _keys_section([part.keys for part in parts])
    start = _start(record, sum(len(part.keys) for part in parts), described, purged)
    pieces: list[Any] = [start]
    size = len(start)
    shapes = [part.rows.shapes.data for part in parts if part.rows.shapes is not None]
    offsets = []
    if parts[0].rows.offsets is not None:
        offsets = [offsets_of(np.concatenate([part.rows.sizes() for part in parts])).data]
    values = [part.rows.data.data for part in parts]
    for section in (key_section, shapes, offsets, values):
        padding = -size % _ALIGNMENT
        pieces.append(bytes(padding))
        size += padding
        body = size
        for piece in section:
            pieces.append(piece)
            size += memoryview(piece).nbytes
    return b"".join(pieces), body


def _start(record: ColumnRecord, count: int, described: Any, purged: Sequence[Any] = ()) -> bytes:
    """The bytes of a fragment before its sections: magic, the length of the header, the header."""
    text = _header(record, count, described, purged)
    return _MAGIC + struct.pack("<Q", len(text)) + text


def _header(record: ColumnRecord, count: int, described: Any, purged: Sequence[Any] = ()) -> bytes:
    header = {
        "count": count,
        "dtype": record.dtype,
        "keys": described,
        "kind": record.kind,
        "shape": list(record.shape) if record.kind == "tensor" else None,
    }
    if purged:
        header["purged"] = purged
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def is_plainly(
    data: _Bytes, record: ColumnRecord, first: bytes, last: bytes, count: int, nbytes: int
) -> bool:
    """Whether these bytes are the fragment that ``Fragment.check_fits`` asks for, which takes a comparison where all
    but the values follows from a column and its map: samples of one size under one key, or under ints without gaps.
    False says nothing."""
    width, header = _plain_form(record.kind, record.dtype, record.shape)
    if width is None or nbytes != width * count:
        return False
    number = decode(first)
    if isinstance(number, int):
        if decode(last) != number + count - 1:
            return False
        text = header % (count, number)
        start = _padded(_MAGIC + struct.pack("<Q", len(text)) + text)
    elif count > 1 or last != first:
        return False
    else:
        described, section = _keys_section([keys_of([first])])
        start = _padded(b"".join([_padded(_start(record, count, described)), *section]))
    return len(data) - nbytes == len(start) and data[: len(start)].tobytes() == start


@lru_cache
def _plain_form(
    kind: Literal["tensor", "string", "bytes"], dtype: str, shape: tuple[int | None, ...]
) -> tuple[int | None, bytes]:
    """The bytes of each sample of a column, and the header of fragments that have ints without gaps as keys, with
    ``%d`` for the count and for the first key."""
    record = ColumnRecord(kind, dtype, shape, False, 0, None, 0, 0)
    text = _header(record, 0, {"range": 0})
    return row_width(record), text.replace(b'"count":0', b'"count":%d').replace(b'"range":0', b'"range":%d')


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _keys_section(arrays: Sequence[Keys]) -> tuple[Any, list[Any]]:
    names: list[bytes] = []
    if any(keys.dtype == object for keys in arrays):
        names = [key for keys in arrays for key in encoded(keys)]
        arrays = [keys_of(names)]
    if arrays[0].dtype == object:
        return "bytes", [offsets_of(np.array([*map(len, names)], np.int64)).data, *names]
    first, last = int(arrays[0][0]), int(arrays[-1][-1])
    if last - first + 1 == sum(map(len, arrays)):
        return {"range": first}, []
    return "ints", [np.ascontiguousarray(keys).data for keys in arrays]


def _check_sizes(
    offsets: npt.NDArray[np.int64],
    shapes: npt.NDArray[np.int64] | None,
    fixed: tuple[int | None, ...],
    size: int,
) -> None:
    """See that samples of varying sizes follow one another, and have the sizes that their shapes say."""
    sizes = np.diff(offsets)
    if offsets[0] != 0 or (sizes < 0).any():
        raise ValueError("its samples do not follow one another")
    if shapes is None:
        return
    if (shapes < 0).any() or np.maximum(shapes, 1).astype(np.float64).prod(1).max() >= 1 << 58:
        raise ValueError("a sample has lengths that none can have")
    if (shapes.prod(1) * size != sizes).any():
        raise ValueError("a sample has another size than its shape says")
    purged = sizes == 0
    for at, length in enumerate(fixed):
        if length is not None and (shapes[~purged, at] != length).any():
            raise ValueError("a sample has another shape than the column")


def _corrupt(error: Exception) -> CorruptError:
    corrupt = CorruptError(
        f"an object that a column names is not a fragment of it ({error}). Run `hopyard stock verify`; if all is well "
        "there, a newer version of Hopyard wrote it: install that."
    )
    corrupt.__cause__ = error
    return corrupt


class Fragment:
    """A fragment's content, sharing memory with its bytes.

    Args:
        data: (n,) uint8, the fragment.

    Attributes:
        rows: of all samples, also of those that were purged.
        purged: position to time, by and why, of those.
        described: the header.

    Raises:
        CorruptError: it is none.
    """

    def __init__(self, data: _Bytes) -> None:
        try:
            self._read(data)
        except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise _corrupt(error) from error

    def _read(self, data: _Bytes) -> None:
        (length,) = struct.unpack("<Q", data[8:16].tobytes())
        if data[:8].tobytes() != _MAGIC or length > len(data):
            raise ValueError("it does not begin as fragments do")
        header = parsing.json_of(data[16 : 16 + length].tobytes())
        self.described: Any = header
        self._data, self._end = data, 16 + length
        count = parsing.whole(header["count"], 1, _MOST)
        self.count: int = count
        self.purged: dict[int, list[str]] = {
            parsing.whole(at, 0, count - 1): [parsing.text(one) for one in what]
            for at, *what in header.get("purged", ())
        }
        if any(len(what) != 3 for what in self.purged.values()):
            raise ValueError("it says of a purged sample something else than when, by whom and why")
        self._described = header["keys"]
        self._key_data = self._keys()
        kind = parsing.one_of(header["kind"], "tensor", "string", "bytes")
        size = ITEM_SIZES[parsing.dtype(header["dtype"])]
        shape = header["shape"]
        if (shape is None) != (kind != "tensor"):
            raise ValueError(f"{kind}s of shape {shape}")
        fixed = () if shape is None else parsing.varying_shape(shape)
        varies = shape is None or None in fixed
        shapes = self._ints(count * len(fixed)).reshape(count, -1) if fixed and varies else self._ints(0)
        offsets = self._ints(count + 1 if varies else 0)
        width = 0 if varies else size * math.prod(length or 0 for length in fixed)
        values = self._section(int(offsets[-1]) if varies else count * width)
        if self._end != len(data):
            raise ValueError(f"it has {len(data)} bytes instead of {self._end}")
        if varies:
            _check_sizes(offsets, shapes if fixed else None, fixed, size)
        self.rows: SampleBytes = (
            SampleBytes(values, offsets, shapes if fixed else None)
            if varies
            else SampleBytes(values.reshape(count, width))
        )

    def _section(self, size: int) -> _Bytes:
        start = self._end + -self._end % _ALIGNMENT
        self._end = start + size
        if size < 0 or self._end > len(self._data):
            raise ValueError(f"a part of {size} bytes begins at byte {start} of {len(self._data)}")
        return self._data[start : self._end]

    def _ints(self, count: int) -> npt.NDArray[np.int64]:
        section = self._section(8 * count)
        return section.view("<i8")

    def _keys(self) -> _Bytes:
        if isinstance(self._described, dict):
            first = parsing.whole(self._described["range"], -(1 << 63))
            parsing.whole(first + self.count - 1, -(1 << 63))
            return self._section(0)
        if self._described == "ints":
            return self._section(8 * self.count)
        if self._described != "bytes":
            raise ValueError(f"its keys are {self._described!r}")
        offsets = self._ints(self.count + 1)
        start = self._end - 8 * len(offsets)
        if offsets[0] != 0 or (np.diff(offsets) < 1).any() or offsets[-1] > len(self._data) - self._end:
            raise ValueError("its keys do not follow one another")
        self._end += int(offsets[-1])
        return self._data[start : self._end]

    @cached_property
    def keys(self) -> Keys:
        """(count,), ascending.

        Raises:
            CorruptError: they are no keys, or do not ascend.
        """
        if isinstance(self._described, dict):
            first = int(self._described["range"])
            return np.arange(self.count, dtype=np.int64) + first
        if self._described == "ints":
            keys = self._key_data.view("<i8")
            if (keys[1:] <= keys[:-1]).any():
                raise _corrupt(ValueError("its keys do not ascend"))
            return keys
        split = 8 * (self.count + 1)
        offsets = self._key_data[:split].view("<i8").tolist()
        names = self._key_data[split:].tobytes()
        encoded = [names[start:stop] for start, stop in pairwise(offsets)]
        if not all(map(lt, encoded, encoded[1:])):
            raise _corrupt(ValueError("its keys do not ascend"))
        return keys_of(encoded)

    def check_fits(self, record: ColumnRecord, first: bytes, last: bytes, count: int, nbytes: int) -> None:
        """See that it is what a column, and the column's map, say of it.

        Raises:
            CorruptError: it is another fragment.
        """
        self.check_settings(record)
        if self.count != count or self._ends() != (first, last):
            raise _corrupt(ValueError("it has other keys than the column's map says"))
        if self.rows.nbytes != nbytes and not self.purged:
            raise _corrupt(
                ValueError(f"it has {self.rows.nbytes} bytes of values, but the map says {nbytes}")
            )

    def check_settings(self, record: ColumnRecord) -> None:
        """See that it holds what a column holds.

        Raises:
            CorruptError: it holds another kind, dtype or shape.
        """
        header = self.described
        shape = list(record.shape) if record.kind == "tensor" else None
        if (header["kind"], header["dtype"], header["shape"]) != (record.kind, record.dtype, shape):
            raise _corrupt(
                ValueError(
                    f"it holds {header['kind']} {header['dtype']} of shape {header['shape']}, but the column holds "
                    f"{record.kind} {record.dtype} of shape {shape}"
                )
            )

    def _ends(self) -> tuple[bytes, bytes]:
        """The first and the last encoded key."""
        if isinstance(self._described, dict):
            start = int(self._described["range"])
            return encode(start), encode(start + self.count - 1)
        ends = encoded(self.keys[:: max(self.count - 1, 1)])
        return ends[0], ends[-1]

    def position(self, key: bytes) -> int | None:
        """The position of the sample under an encoded key; None: there is none."""
        if isinstance(self._described, dict):
            number = decode(key)
            at = number - int(self._described["range"]) if isinstance(number, int) else -1
            return at if 0 <= at < self.count else None
        at = int(find(self.keys, keys_of([key]))[0])
        return None if at < 0 else at

    def check_content(self) -> None:
        """See that all keys and strings in it can be read.

        Raises:
            CorruptError: one cannot.
        """
        try:
            plain(self.keys)
            if self.described["kind"] == "string":
                for at in range(self.count):
                    self.rows.sample(at)[0].tobytes().decode()
        except ValueError as error:
            raise _corrupt(error) from error

    @property
    def batch(self) -> KeyedSamples:
        """All samples that can be read: what is written anew, compared or merged leaves purged ones out."""
        every = KeyedSamples(self.keys, self.rows)
        return every.part(np.delete(np.arange(self.count), [*self.purged])) if self.purged else every

    def check(self, places: npt.NDArray[np.int64]) -> None:
        """See that the samples at these positions can be read.

        Raises:
            PurgedError: one of them was purged; says when and why.
        """
        for at in sorted(self.purged.keys() & set(places.tolist())) if self.purged else ():
            time, by, why = self.purged[at]
            (key,) = plain(self.keys[at : at + 1])
            raise PurgedError(
                f"the sample {key!r} was purged from all versions on {time} by {by or 'somebody'}: "
                f"{why or 'no reason was given'}. Its bytes are gone for good. Take other samples; those "
                "that can be read are listed by .keys()."
            )
