"""How an entry of the node cache ends: a trailer by which a whole file is told from a part of one.

::

    content | description (JSON) | content bytes, JSON bytes, CRC-32, boot, durable, magic

The 48 bytes at the end are little-endian. An entry can be read as soon as it has its name, long before
the disk has it. So it carries the id of the boot that it was written in, and one byte that is set after the
content was synced: with the byte the entry is good for ever, without it until the machine stops.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"HOPFLAT\x01"  # the last byte is the version of the format

_END = struct.Struct("<QII16sB7x8s")
_DURABLE = -16  # where the byte is, from the end
_GUESS = 4096  # bytes read at first: most descriptions are shorter


class Trailer(NamedTuple):
    """Size of the content in bytes, its description, whether the disk has it, and when it was used (seconds)."""

    size: int
    description: dict[str, Any]
    durable: bool
    used: float


@functools.cache
def boot_id() -> bytes | None:
    """16 bytes that no other boot of this or another machine has, or None where the system does not tell."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return None


def pack(size: int, description: dict[str, Any]) -> bytes:
    """The trailer behind ``size`` bytes of content. Without a boot id it says that the disk has them."""
    text = json.dumps(description, separators=(",", ":")).encode()
    boot = boot_id()
    return text + _END.pack(size, len(text), zlib.crc32(text), boot or bytes(16), boot is None, MAGIC)


def read(fd: int) -> Trailer | None:
    """The trailer of an open file; None if the file is not a whole entry, or may have lost bytes with the power."""
    status = os.fstat(fd)
    end = os.pread(fd, _GUESS, max(0, status.st_size - _GUESS))
    if len(end) < _END.size:
        return None
    size, length, check, boot, durable, magic = _END.unpack_from(end, len(end) - _END.size)
    if magic != MAGIC or size + length + _END.size != status.st_size:
        return None
    if not durable and boot != boot_id():
        return None
    begin = len(end) - _END.size - length
    text = end[begin : begin + length] if begin >= 0 else os.pread(fd, length, size)
    if zlib.crc32(text) != check:
        return None
    return Trailer(size, _parse(text), bool(durable), status.st_mtime)


@functools.lru_cache(maxsize=64)
def _parse(text: bytes) -> dict[str, Any]:
    """Row groups of equal size have equal descriptions, and parsing is most of what reading a trailer costs."""
    description: dict[str, Any] = json.loads(text)
    return description


def make_durable(fd: int) -> None:
    """Bring an entry to the disk, then say so in it."""
    trailer = read(fd)
    if trailer is None or trailer.durable:
        return
    os.fsync(fd)
    # What is synced first is on the disk before this byte can be. It counts as a use: the file's time is now.
    os.pwrite(fd, b"\x01", os.fstat(fd).st_size + _DURABLE)
