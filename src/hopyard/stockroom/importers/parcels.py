"""Samples on their way from a process to another: through a file that both map, not through a pipe.

A pipe copies large arrays five times on the way; a file's pages are written once, and the reader maps them.
"""

from __future__ import annotations

import mmap
import pickle
from dataclasses import dataclass
from pathlib import Path

from hopyard.stockroom.importers.base import Samples
from hopyard.storage.oserrors import write_errors

_ALIGNED = 64  # bytes, so that arrays begin where any dtype may
_SMALL = 1 << 16  # bytes that go with the message itself


@dataclass(frozen=True)
class Parcel:
    """Some columns' samples.

    Attributes:
        head: their pickle, without the bytes of arrays.
        path: of the file that has them; None: ``head`` has all.
        ranges: of each array in the file, in bytes.
    """

    head: bytes
    path: Path | None = None
    ranges: tuple[tuple[int, int], ...] = ()


def wrap(samples: list[Samples], path: Path) -> Parcel:
    """Write the arrays' bytes to ``path``, which is new.

    Raises:
        StorageFullError: there is no space for them.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(samples, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    if sum(view.nbytes for view in views) < _SMALL:
        return Parcel(pickle.dumps(samples, protocol=5))
    ranges = []
    with write_errors(str(path)), path.open("xb") as file:
        for view in views:
            file.write(bytes(-file.tell() % _ALIGNED))
            ranges.append((file.tell(), file.tell() + view.nbytes))
            file.write(view)
    return Parcel(head, path, tuple(ranges))


def unwrap(parcel: Parcel) -> list[Samples]:
    """The samples; arrays are read-only where they are mapped. The file is removed, its pages go with the arrays."""
    if parcel.path is None:
        samples: list[Samples] = pickle.loads(parcel.head)
        return samples
    with parcel.path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    parcel.path.unlink()
    mapped: list[Samples] = pickle.loads(parcel.head, buffers=[whole[a:b] for a, b in parcel.ranges])
    return mapped
