"""The end of an entry of the node cache: a trailer that tells a good file from a damaged one, or a part of one.

::

    content | description (JSON) | content bytes, JSON bytes, checksum, boot, stamp, durable, magic

The 64 bytes at the end are little-endian. An entry can be read as soon as it has its name, long before the disk has
it. Its bytes are compared with their checksum when it is first read after the machine started, and when somebody
wrote to it since. The checksum is the xxh3-64 of content, description and key, so that no entry passes for another.
``boot`` is the xxh3-128 of the key and the id of the boot in which it was last found good (or made), ``stamp`` the
file's modification time then, in nanoseconds, which every use of the entry moves together with it. ``durable`` is set
after the content was synced.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_64, xxh3_128_digest

from hopyard.storage import files

MAGIC = b"HOPFLAT\x04"  # the last byte is the version of the format

_END = struct.Struct("<QIIQ16sqB7x8s")
_MARK = struct.Struct("<16sq")  # boot and stamp
_MARKED = 8 + 8 + _MARK.size  # where they are, from the end
_DURABLE = -16
_GUESS = 4096  # bytes read at first: most descriptions are shorter


class Trailer(NamedTuple):
    """Size of the content in bytes, its description, whether the disk has it, when it was used (seconds), the checksum
    of content and description, and whether they were found good in this boot and nobody wrote to the entry since."""

    size: int
    description: dict[str, Any]
    durable: bool
    used: float
    check: int
    marked: bool


@functools.cache
def boot_id() -> bytes | None:
    """16 bytes that no other boot of this or another machine has, or None where the system does not tell."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return None


def finish(fd: int, key: str, description: dict[str, Any]) -> int:
    """Write the trailer of the entry of a key behind the content of an open file; the bytes of the content.

    Without a boot id the content is synced before, and the trailer says that the disk has it.
    """
    size = os.fstat(fd).st_size
    text = json.dumps(description, separators=(",", ":")).encode()
    end = _END.pack(size, len(text), 0, _check(fd, size, text, key), bytes(16), 0, boot_id() is None, MAGIC)
    files.write_at(fd, text + end, size)
    if boot_id() is None:
        files.sync_file(fd)
    mark(fd, key)
    return size


def read(fd: int, key: str = "") -> Trailer | None:
    """The trailer of an open file, whose content is not looked at; None if the file is not a whole entry.

    Args:
        key: of the entry; without it, nobody is believed to have found it good.
    """
    status = os.fstat(fd)
    end = os.pread(fd, _GUESS, max(0, status.st_size - _GUESS))
    if len(end) < _END.size:
        return None
    size, length, _, check, boot, stamp, durable, magic = _END.unpack_from(end, len(end) - _END.size)
    if magic != MAGIC or size + length + _END.size != status.st_size:
        return None
    begin = len(end) - _END.size - length
    text = end[begin : begin + length] if begin >= 0 else os.pread(fd, length, size)
    try:
        description = _parse(text)
    except ValueError:
        return None
    marked = boot == _boot_of(key) and stamp == status.st_mtime_ns
    return Trailer(size, description, bool(durable), status.st_mtime, check, marked)


def is_good(fd: int, key: str, trailer: Trailer) -> bool:
    """Whether content and description are as they were written under the key; if so, the entry is marked."""
    length = os.fstat(fd).st_size - _END.size - trailer.size
    if _check(fd, trailer.size, os.pread(fd, length, trailer.size), key) != trailer.check:
        return False
    mark(fd, key)
    return True


def _check(fd: int, size: int, text: bytes, key: str) -> int:
    hasher = xxh3_64()
    if size:
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as content:
            hasher.update(content)
    hasher.update(text)
    hasher.update(key.encode())
    return int(hasher.intdigest())


def _boot_of(key: str) -> bytes | None:
    boot = boot_id()
    return xxh3_128_digest(boot + key.encode()) if boot is not None and key else None


def mark(fd: int, key: str) -> None:
    """Note that the entry is good and is used now, if this process may write to it."""
    now = time.time_ns()
    with contextlib.suppress(OSError):
        files.write_at(fd, _MARK.pack(_boot_of(key) or bytes(16), now), os.fstat(fd).st_size - _MARKED)
        os.utime(fd, ns=(now, now))


@functools.lru_cache(maxsize=64)
def _parse(text: bytes) -> dict[str, Any]:
    """Row groups of equal size have equal descriptions, and parsing is most of what reading a trailer costs."""
    description: dict[str, Any] = json.loads(text)
    return description


def make_durable(fd: int, key: str) -> None:
    """Bring an entry to the disk, then say so in it."""
    trailer = read(fd, key)
    if trailer is None or trailer.durable:
        return
    files.sync_file(fd)
    # What is synced first is on the disk before this byte can be. It counts as a use: the file's time is now.
    files.write_at(fd, b"\x01", os.fstat(fd).st_size + _DURABLE)
    if trailer.marked:
        mark(fd, key)
