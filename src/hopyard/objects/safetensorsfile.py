"""safetensors files: written without copies, read mapped where the store has files.

Layout (https://github.com/huggingface/safetensors): 8 bytes little-endian length of the header,
the header (JSON: name to dtype, shape and offsets, and ``__metadata__`` of strings), then the
tensors' bytes without gaps. The header is padded so that the first tensor is aligned to 64 bytes;
tensors come widest dtype first, which aligns all to their elements.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.errors import CorruptError
from hopyard.objects.tensors import ITEM_SIZES, Tensor
from hopyard.storage import Store, files
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_ALIGNMENT = 64
_JOINED = 1 << 20  # up to here one copy costs less than a second file operation
_FIRST_READ = 1 << 15  # of a file that cannot be mapped: holds the header of most
_LONGEST_HEADER = 100_000_000  # bytes
_GAP = 1 << 16  # bytes between two tensors that cost less than a request of its own


@dataclass(frozen=True)
class TensorSlot:
    """Place of a tensor: dtype and shape as in the file, bytes [start, stop) of the whole file.

    Attributes:
        file: the file elsewhere that has the bytes; empty: the file itself.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    file: str = ""


def wire(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a tensor as its file has them: safetensors has no C128, so that is stored as pairs of F64."""
    return ("F64", (*shape, 2)) if dtype == "C128" else (dtype, shape)


def file_pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """The bytes of a file of these tensors, one piece after the other; tensors are shared, not copied."""
    ordered = sorted(tensors.items(), key=lambda item: (-ITEM_SIZES[item[1].dtype], item[0]))
    pieces: list[bytes | memoryview] = [_header(ordered, metadata)]
    return pieces + [tensor.data.data for _, tensor in ordered if tensor.nbytes]


def put_pieces(
    store: Store,
    name: str,
    pieces: Sequence[bytes | memoryview],
    check: Callable[[Bytes], None] | None = None,
) -> None:
    """Store the object that these pieces are, one after the other; large ones without a copy in memory.

    Args:
        check: is given the object as it was written, before anybody can see it; an exception keeps it from being
            stored. Memory that others may write to while it is stored can have changed by then.
    """
    staging = store.staging() if sum(map(len, pieces)) > _JOINED else None
    if staging is None:
        data = b"".join(pieces)
        if check is not None:
            check(np.frombuffer(data, np.uint8))
        store.put(name, data)
        return
    path = staging / temporary_name()
    try:
        with write_errors(path), files.created(path) as fd:
            files.write_pieces(fd, pieces)
        if check is not None:
            check(_map(store, name, path))
        store.put_file(name, path)
    finally:
        files.unlink_quietly(path)


def _header(tensors: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors:
        start, end = end, end + tensor.nbytes
        dtype, shape = wire(tensor.dtype, tensor.shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


class SafetensorsFile:
    """A stored safetensors file of any program, open for reading: its metadata, its slots, and the bytes of slots.

    Args:
        is_ours: whether Hopyard alone writes it. Its bytes are mapped then, where the store has files; mapped bytes of
            others would change with their file, or end the process if that became shorter. Tensors of dtypes that
            Hopyard does not have are left out of a file of others.

    Attributes:
        metadata: strings by name, of the file's header.
        slots: the places of its tensors, by name.
        size: bytes of the file.
        is_near: whether the store has it as a file.
        bytes_read: how many bytes of it were asked for so far, with the header.

    Raises:
        NotFoundError: there is no such file in the store.
        CorruptError: it is not a whole safetensors file.
    """

    def __init__(self, store: Store, name: str, *, is_ours: bool = True) -> None:
        self._store, self._name = store, name
        self.bytes_read: int = 0
        self._begin = b""  # of a file that is not mapped: small ones are read in one request
        path = store.path(name)
        self.is_near: bool = path is not None
        self._mapped = _map(store, name, path) if is_ours and path is not None else None
        size = store.size(name) if self._mapped is None else self._mapped.size
        self.size: int = size or 0
        self.metadata: dict[str, str]
        self.slots: dict[str, TensorSlot]
        try:
            start, self.metadata, self.slots = read_header(self._head, self.size, knows_all=is_ours)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.corrupt(f"its header cannot be read ({error})") from None
        if self._mapped is not None:
            self.bytes_read = start
        end = max((slot.stop for slot in self.slots.values()), default=start)
        if end != self.size:
            raise self.corrupt(f"it has {self.size} bytes, but its header says {end}")
        if not is_ours:
            self.slots = {key: slot for key, slot in self.slots.items() if slot.dtype in ITEM_SIZES}

    def corrupt(self, reason: str) -> CorruptError:
        """The error for content that is no whole file."""
        return CorruptError(
            f"the file {self.place} is no whole safetensors file: {reason}. Restore it from where it came from."
        )

    @property
    def place(self) -> str:
        """Where the file is, for messages."""
        return str(self._store.path(self._name) or f"{self._name} in {self._store.url}")

    def read(self, slots: Mapping[str, TensorSlot]) -> dict[str, Bytes]:
        """Read-only bytes of these slots; of a file that is not mapped, slots beside each other in one request."""
        if self._mapped is not None:
            self.bytes_read += sum(slot.stop - slot.start for slot in slots.values())
            return {name: self._mapped[slot.start : slot.stop] for name, slot in slots.items()}
        spans = _spans(slots.values())
        content = [np.frombuffer(self._get(start, stop - start), np.uint8) for start, stop in spans]
        found: dict[str, Bytes] = {}
        for name, slot in slots.items():
            number = bisect_right(spans, slot.start, key=lambda span: span[0]) - 1
            begin = slot.start - spans[number][0]
            data = content[number][begin : begin + slot.stop - slot.start]
            found[name] = data.copy() if begin % ITEM_SIZES[slot.dtype] else data
        return found

    def _head(self, start: int, length: int) -> bytes:
        if self._mapped is None:
            return self._get(start, length)
        return self._mapped[start : start + length].tobytes()

    def _get(self, start: int, length: int) -> bytes:
        if self._begin and start + length <= len(self._begin):
            return self._begin[start : start + length]
        self.bytes_read += length
        data = self._store.get(self._name, start, length)
        if start == 0:
            self._begin = data[:_FIRST_READ]
        return data


def _spans(slots: Iterable[TensorSlot]) -> list[tuple[int, int]]:
    """The ranges [start, stop) to be read, in order, so that each slot is within one of them."""
    spans: list[tuple[int, int]] = []
    for slot in sorted(slots, key=lambda slot: slot.start):
        if spans and slot.start - spans[-1][1] <= _GAP:
            spans[-1] = spans[-1][0], slot.stop
        else:
            spans.append((slot.start, slot.stop))
    return spans


def read_header(
    read: Callable[[int, int], bytes], size: int, *, knows_all: bool = True
) -> tuple[int, dict[str, str], dict[str, TensorSlot]]:
    """Offset of the first tensor in a file of ``size`` bytes, and the file's metadata and slots.

    Args:
        read: (start, length) -> these bytes of the file.
        knows_all: whether all dtypes must be those of ``ITEM_SIZES``.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is no header; the message says what is wrong with it.
    """
    head = read(0, min(size, _FIRST_READ))
    start = 8 + int.from_bytes(head[:8], "little")
    if len(head) < 8 or start > size:
        raise ValueError(f"{size} bytes are too few")
    if start > _LONGEST_HEADER:
        raise ValueError(f"a header of {start} bytes, where safetensors has at most {_LONGEST_HEADER}")
    text = head[8:start] + (read(len(head), start - len(head)) if start > len(head) else b"")
    try:
        entries = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(entries, dict):
        raise ValueError("it is no object of JSON")
    metadata = entries.pop("__metadata__", {})
    return start, metadata, {name: _slot(entry, start, knows_all) for name, entry in entries.items()}


def _slot(entry: dict[str, Any], base: int, knows_all: bool) -> TensorSlot:
    shape = tuple(entry["shape"])
    start, stop = entry["data_offsets"]
    if any(type(number) is not int or number < 0 for number in (*shape, start, stop)):
        raise ValueError(f"{shape} at {start}..{stop} are no lengths and offsets")
    size = ITEM_SIZES[entry["dtype"]] if knows_all else ITEM_SIZES.get(entry["dtype"])
    if not 0 <= start <= stop or (size is not None and stop - start != size * math.prod(shape)):
        raise ValueError(f"a tensor of {shape} {entry['dtype']} cannot be bytes {start}..{stop}")
    return TensorSlot(entry["dtype"], shape, base + start, base + stop)


def _map(store: Store, name: str, path: Path) -> Bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return np.frombuffer(store.get(name), np.uint8)  # says what is wrong in the store's words
    try:
        if os.fstat(fd).st_size == 0:
            return np.empty(0, np.uint8)  # cannot be mapped, and is no file of tensors either
        return np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(fd)
