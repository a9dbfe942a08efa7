"""Many small writes to a file, as writes of whole chunks.

The page cache keeps what is written at once in one piece, if the file system can (ext4, XFS): chunks that are
huge pages are then mapped as such, and gathering rows in any order misses the TLB no more than in memory.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK = 2 << 20  # a huge page
_MOST_OPEN = 32  # chunks held in memory
_LONG = 16 * CHUNK  # files that long are filled up to whole chunks: the last one is a huge page too


class _Chunk:
    def __init__(self) -> None:
        self.content = np.zeros(CHUNK, np.uint8)
        self.filled = 0


class ChunkWriter:
    """Writes an empty file in chunks of 2 MiB, in any order. Bytes may come again: the last ones count.

    The file is whole after ``finish``.

    Args:
        descriptor: of the file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._open: dict[int, _Chunk] = {}
        self._written: set[int] = set()  # chunks that are in the file; what else comes for them goes there
        self._spare: list[_Chunk] = []

    def write(self, data: npt.NDArray[Any], place: int) -> None:
        """Write a contiguous array at this byte of the file.

        Raises:
            OSError: among others, the disk is full.
        """
        content = data.reshape(-1).view(np.uint8)
        while len(content):
            number, begin = divmod(place, CHUNK)
            part = content[: CHUNK - begin]
            self._put(number, begin, part)
            content, place = content[len(part) :], place + len(part)

    def finish(self, size: int) -> None:
        """Write the rest. The file is ``size`` bytes long then, or, if that is long, filled up with zeros.

        Raises:
            OSError: among others, the disk is full.
        """
        if size >= _LONG:
            size = -(-size // CHUNK) * CHUNK
        for number, chunk in self._open.items():
            start = number * CHUNK
            self._write(chunk.content[: size - start], start)
        self._open.clear()
        os.ftruncate(self._descriptor, size)

    def _put(self, number: int, begin: int, part: npt.NDArray[np.uint8]) -> None:
        chunk = self._open.get(number)
        if chunk is None:
            if len(part) == CHUNK or number in self._written or len(self._open) >= _MOST_OPEN:
                self._write(part, number * CHUNK + begin)
                return
            chunk = self._open[number] = self._new()
        chunk.content[begin : begin + len(part)] = part
        chunk.filled += len(part)
        if chunk.filled >= CHUNK:
            self._write(chunk.content, number * CHUNK)
            self._spare.append(self._open.pop(number))

    def _new(self) -> _Chunk:
        if not self._spare:
            return _Chunk()
        chunk = self._spare.pop()
        chunk.content.fill(0)  # between blocks are gaps
        chunk.filled = 0
        return chunk

    def _write(self, content: npt.NDArray[np.uint8], place: int) -> None:
        self._written.add(place // CHUNK)
        view = memoryview(content.data)
        while view:
            written = os.pwrite(self._descriptor, view, place)
            view, place = view[written:], place + written
