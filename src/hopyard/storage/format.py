"""Every root carries its format, so that an old reader refuses what it would misread.

A header is a JSON object ``{"hopyard", "kind", "version", "flags"}``: who wrote it (or the first version
that reads it), what it is, the version of its layout, and names of features that a reader must know to read it right.

The object ``FORMAT`` of a root is such a header, a line feed, and the CRC-32 of the header in 8 hex digits, in any
version: by it a digit that flipped is told from a newer version.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from hopyard import __version__
from hopyard.errors import CorruptError, FormatError, KindError
from hopyard.storage.base import Store
from hopyard.storage.small import get_small

FORMAT_NAME = "FORMAT"
_FIRST = "0.1.0"


def format_header(kind: str, version: int = 1, flags: Iterable[str] = ()) -> dict[str, Any]:
    """The header of a thing of this ``kind`` (``"dataset"``, ``"run"``, ``"state"``, ...)."""
    return {"hopyard": __version__, "kind": kind, "version": version, "flags": sorted(flags)}


def object_header(kind: str) -> dict[str, Any]:
    """The header of an object that is named by its digest. It says the first version that reads it, not the one that
    wrote it: otherwise equal content would have another digest in each release.
    """
    return {**format_header(kind), "hopyard": _FIRST}


def check_format(
    header: Mapping[str, Any], kind: str, version: int = 1, known_flags: Iterable[str] = (), where: str = ""
) -> None:
    """Refuse a header that this version cannot read.

    Args:
        version: the newest layout that the caller reads; it reads all older ones.
        where: the file or folder that carries the header, for the message.

    Raises:
        FormatError: a newer layout, an unknown flag (names the version to install) or another kind.
        CorruptError: not a header at all.
    """
    place = where or f"this {kind}"
    found, flags = header.get("kind"), header.get("flags", [])
    is_readable = isinstance(found, str) and isinstance(header.get("version"), int)
    if not (is_readable and isinstance(flags, list | tuple) and all(isinstance(flag, str) for flag in flags)):
        raise CorruptError(
            f"{place} has no readable format header: {dict(header)!r}. "
            "It was damaged or was not written by Hopyard; restore it from a copy, or make it again."
        )
    if found != kind:
        raise KindError(f"{place} holds a {found}, not a {kind}. Give the path of a {kind}.")
    unknown = sorted(set(flags) - set(known_flags))
    if header["version"] > version or unknown:
        writer = header.get("hopyard", "unknown")
        features = f" and uses {', '.join(map(repr, unknown))}" if unknown else ""
        raise FormatError(
            f"{place} was written by Hopyard {writer} in format {header['version']}{features}; "
            f"this is Hopyard {__version__}, which reads formats up to {version}. "
            f"Install that version or a later one: pip install 'hopyard>={writer}'"
        )


def claim_format(store: Store, kind: str, version: int = 1, flags: Iterable[str] = ()) -> None:
    """Write the object ``FORMAT`` at the root of ``store``, or check the one that is there."""
    if not store.put_new(FORMAT_NAME, root_format(format_header(kind, version, flags))):
        read_format(store, kind, version, flags)


def root_format(header: Mapping[str, Any]) -> bytes:
    """The bytes of an object ``FORMAT`` with this header."""
    data = json.dumps(header).encode()
    return data + b"\n%08x" % zlib.crc32(data)


def read_format(store: Store, kind: str, version: int = 1, known_flags: Iterable[str] = ()) -> dict[str, Any]:
    """The checked header in the object ``FORMAT`` at the root of ``store``.

    Raises:
        NotFoundError: the root carries no format; FormatError, CorruptError: as `check_format`.
    """
    data, _, check = get_small(store, FORMAT_NAME).partition(b"\n")
    where = f"{store.url}/{FORMAT_NAME}"
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise CorruptError(f"{where} is not a JSON object: {data[:60]!r}. Restore it from a copy.")
    if check != b"%08x" % zlib.crc32(data):
        raise CorruptError(
            f"{where} is not as it was written: {data[:120]!r} has the CRC-32 {zlib.crc32(data):08x}, but the file "
            f"says {check[:20].decode('ascii', 'replace')!r}. Restore it from a copy."
        )
    check_format(header, kind, version, known_flags, where=store.url)
    return header
