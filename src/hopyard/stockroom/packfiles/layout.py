"""The bytes of a packfile: a safetensors file in which every entry is an object, or padding.

Entries are named by digests, in the order in which objects were added; ``~<n>`` are zeros that align what follows.
The metadata's ``hopyard`` is JSON: ``format`` (kind ``packfile``), ``kind`` (of all objects that are not listed),
``kinds`` (other kind -> digests), ``complex`` (digests of C128 tensors, which safetensors has only as pairs of F64).
Positions are of the whole file, header included: values that are aligned in it are aligned wherever it is mapped.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hopyard.errors import ChangedError, CorruptError
from hopyard.objects.digests import Hasher, digest
from hopyard.objects.safetensorsfile import put_pieces, wire
from hopyard.objects.tensors import ITEM_SIZES
from hopyard.stockroom.records import parsing
from hopyard.storage import Store
from hopyard.storage.format import check_format, object_header

META_KINDS = ("commit", "page", "json")
DATA_KINDS = ("fragment", "tensor")
NARROW = (
    1 << 15
)  # bytes; wider rows are not aligned: each is a fragment, which padding would make twice as large

_DOMAIN = "hopyard.packfile"
_HEADER_ALIGNMENT = 64
_LONGEST_HEADER = 100_000_000  # bytes, as safetensors has it
_FIRST_READ = 1 << 16  # holds the header of most packfiles
_THREADED = 1 << 20  # bytes; smaller ones are hashed faster by one thread
_NAME = re.compile(r"packfiles/(data|meta)-([0-9a-f]{64})")


class Location(NamedTuple):
    """The place of an object: bytes [start, stop) of the store's object ``packfile``.

    ``dtype`` (as safetensors names it, and C128) and ``shape`` are a tensor's; of other kinds they say ``U8`` and the
    number of bytes.
    """

    packfile: str
    start: int
    stop: int
    kind: str
    dtype: str
    shape: tuple[int, ...]


def file_location(digest: str, size: int) -> Location:
    """The location of an object of kind ``file``."""
    return Location(f"files/{digest}", 0, size, "file", "U8", (size,))


class ObjectToPack(NamedTuple):
    """An object that is to be packed. Its byte ``body`` is to stand at a multiple of ``width``, if that is not 0.

    ``data`` that is no ``bytes`` is memory of the user, who may write to it meanwhile.
    """

    digest: str
    kind: str
    data: bytes | memoryview
    dtype: str
    shape: tuple[int, ...]
    width: int = 0
    body: int = 0


class Packfile(NamedTuple):
    """A packfile that is stored.

    Attributes:
        name: of the store's object.
        size: bytes that it has; ``whole``: bytes that it should have.
        objects: digest to location, of all that lie within ``size``.
        cut: digests of data that it should have and that do not lie within ``size``.
    """

    name: str
    size: int
    whole: int
    objects: dict[str, Location]
    cut: frozenset[str] = frozenset()


def is_packfile(name: str) -> bool:
    """Whether the store's object of this name is a packfile."""
    return _NAME.fullmatch(name) is not None


def put_packfile(store: Store, group: str, pieces: Sequence[ObjectToPack]) -> Packfile:
    """Store one packfile of these objects, durably. ``group`` is ``data`` or ``meta``.

    Raises:
        ChangedError: one of them was written to meanwhile. Nothing was stored.
    """
    metadata = _metadata(pieces)
    starts, text = _entries(pieces, metadata, 0)
    base = _header_size(text)
    if (
        group == "data"
    ):  # what is aligned depends on the header's size, which depends on how much padding there is
        starts, text = _entries(pieces, metadata, base)
        while _header_size(text) > base:
            base = _header_size(text)
            starts, text = _entries(pieces, metadata, base)
    else:
        starts = [base + start for start in starts]
    header = (base - 8).to_bytes(8, "little") + text.ljust(base - 8)
    name = f"packfiles/{group}-{digest(header, _DOMAIN)}"
    content: list[bytes | memoryview] = [header]
    objects: dict[str, Location] = {}
    position = base
    for piece, start in zip(pieces, starts, strict=True):
        if start > position:
            content.append(bytes(start - position))
        position = start + len(piece.data)
        content.append(piece.data)
        objects[piece.digest] = Location(name, start, position, piece.kind, piece.dtype, piece.shape)
    shared = [piece for piece in pieces if type(piece.data) is not bytes]

    def check(written: npt.NDArray[np.uint8]) -> None:
        for piece in shared:
            place = objects[piece.digest]
            check_digest(piece, written[place.start : place.stop])

    put_pieces(store, name, content, check if shared else None)
    return Packfile(name, position, position, objects)


def private(piece: ObjectToPack) -> ObjectToPack:
    """The object with a copy of its bytes.

    Raises:
        ChangedError: it was written to since its digest was taken.
    """
    if type(piece.data) is bytes:
        return piece
    data = bytes(piece.data)
    check_digest(piece, np.frombuffer(data, np.uint8))
    return piece._replace(data=data)


def check_digest(piece: ObjectToPack, data: npt.NDArray[np.uint8]) -> None:
    """See that bytes are the object that the piece says.

    Raises:
        ChangedError: they are not.
    """
    place = Location("", 0, len(data), piece.kind, piece.dtype, piece.shape)
    if digest_at(place, data, None if len(data) >= _THREADED else 1) != piece.digest:
        raise ChangedError(piece.digest)


def _metadata(pieces: Sequence[ObjectToPack]) -> str:
    ((usual, _),) = Counter(piece.kind for piece in pieces).most_common(1)
    kinds: dict[str, list[str]] = {}
    for piece in pieces:
        if piece.kind != usual:
            kinds.setdefault(piece.kind, []).append(piece.digest)
    fields = {
        "format": object_header("packfile"),
        "kind": usual,
        "kinds": kinds,
        "complex": [piece.digest for piece in pieces if piece.dtype == "C128"],
    }
    return json.dumps({"hopyard": json.dumps(fields, separators=(",", ":"))}, separators=(",", ":"))


def _header_size(text: bytes) -> int:
    return -(-(8 + len(text)) // _HEADER_ALIGNMENT) * _HEADER_ALIGNMENT


def _entries(pieces: Sequence[ObjectToPack], metadata: str, base: int) -> tuple[list[int], bytes]:
    """The position of each object if the header has ``base`` bytes, and the text of the header."""
    entries = [f'"__metadata__":{metadata}']
    starts = []
    end = base
    for piece in pieces:
        start = _aligned(end, piece)
        if start > end:
            entries.append(_entry(f"~{len(entries)}", "U8", (start - end,), end - base, start - base))
        end = start + len(piece.data)
        entries.append(_entry(piece.digest, *wire(piece.dtype, piece.shape), start - base, end - base))
        starts.append(start)
    return starts, ("{" + ",".join(entries) + "}").encode()


def _entry(name: str, dtype: str, shape: tuple[int, ...], start: int, stop: int) -> str:
    return f'"{name}":{{"dtype":"{dtype}","shape":{[*shape]},"data_offsets":[{start},{stop}]}}'


def _aligned(position: int, piece: ObjectToPack) -> int:
    """The first position from here on where the object may begin."""
    if piece.kind in META_KINDS:  # text that is parsed: padding it would be a third of a packfile of pages
        return position
    if piece.kind == "tensor":
        return position + -position % 64
    width, start = piece.width, position + -position % 8
    if not 0 < width < NARROW:
        return start
    if math.lcm(8, width) <= 2 * NARROW:
        for candidate in range(start, start + math.lcm(8, width), 8):
            if (candidate + piece.body) % width == 0:
                return candidate
    return position + -(position + piece.body) % width


def read_packfile(store: Store, name: str, size: int) -> Packfile:
    """The content of the packfile of ``size`` bytes; reads the header only, at once if that has less than 64 KiB.

    Raises:
        NotFoundError: it is gone.
        CorruptError: the header is not what was written.
        FormatError: written by a newer version of Hopyard.
    """
    head = store.get(name, 0, min(size, _FIRST_READ))
    base = 8 + int.from_bytes(head[:8], "little")
    if len(head) < 8 or base > size:
        raise damaged(store, name, f"it has {size} bytes, which are too few")
    if base > _LONGEST_HEADER:
        raise damaged(
            store, name, f"it begins with a header of {base} bytes, but none has more than {_LONGEST_HEADER}"
        )
    header = head[:base] + (store.get(name, len(head), base - len(head)) if base > len(head) else b"")
    if not name.endswith(digest(header, _DOMAIN)):
        raise damaged(store, name, "its header has another digest than its name says")
    try:
        return _parse(store, name, size, header)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(store, name, f"its header cannot be read ({error!r})") from None


def _parse(store: Store, name: str, size: int, header: bytes) -> Packfile:
    entries = parsing.json_of(header[8:])
    fields = parsing.json_of(entries.pop("__metadata__")["hopyard"])
    check_format(fields["format"], "packfile", where=f"{store.url}/{name}")
    kinds = {one: kind for kind, digests in fields["kinds"].items() for one in digests}
    complexes = frozenset(fields["complex"])
    objects: dict[str, Location] = {}
    cut: dict[str, Location] = {}
    base = whole = len(header)
    for key, entry in entries.items():
        start, stop = entry["data_offsets"]
        if base + parsing.whole(start) != whole or parsing.whole(stop) < start:
            raise ValueError(f"its entry {key[:80]!r} is not behind the one before it")
        whole = base + stop
        if not key.startswith("~"):
            place = _location(name, entry, base, kinds.get(key, fields["kind"]), key in complexes)
            (objects if whole <= size else cut)[parsing.digest(key)] = place
    return Packfile(
        name, size, whole, objects, frozenset(one for one, at in cut.items() if at.kind in DATA_KINDS)
    )


def _location(name: str, entry: dict[str, Any], base: int, kind: str, is_complex: bool) -> Location:
    start, stop = entry["data_offsets"]
    shape = parsing.shape(entry["shape"][:-1] if is_complex else entry["shape"])
    dtype = "C128" if is_complex else parsing.dtype(entry["dtype"])
    if parsing.one_of(kind, *META_KINDS, *DATA_KINDS) != "tensor" and (dtype != "U8" or len(shape) != 1):
        raise ValueError(f"a {kind} is no {dtype} of shape {shape}")
    if stop - start != ITEM_SIZES[dtype] * math.prod(shape):
        raise ValueError(f"{shape} {dtype} cannot be {stop - start} bytes")
    return Location(name, base + start, base + stop, kind, dtype, shape)


def digest_at(place: Location, data: npt.NDArray[np.uint8], threads: int | None = 1) -> str:
    """The digest of an object's bytes, of the kind, dtype and shape that its place says."""
    hasher = Hasher(f"hopyard.{place.kind}", threads)
    if place.kind == "tensor":
        hasher.update(f"{place.dtype}{[*place.shape]}\n".encode())
    hasher.update(data)
    return hasher.hexdigest()


def damaged(store: Store, name: str, reason: str) -> CorruptError:
    """The error for a packfile, or an object in it, that is not what was written."""
    error = CorruptError(
        f"{name} in {store.url} is not what was written: {reason}. Run `hopyard stock verify`, which lists all that is "
        "damaged; this brings it back from a remote or another clone: hopyard stock verify --repair-from "
        "URL_OR_FOLDER. Or save again what was stored there."
    )
    error.reason = reason
    return error
