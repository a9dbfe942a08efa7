"""Copies objects from repositories to another one: many in one packfile, several packfiles at once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError
from hopyard.objects.digests import Hasher
from hopyard.stockroom.data.repacking import batches, piece_of, put
from hopyard.stockroom.packfiles.layout import META_KINDS, Location
from hopyard.stockroom.remotes.repository import Repository
from hopyard.storage import files
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name

PACKFILES_AT_ONCE = 4
"""Packfiles and files that are under way at a time; each is held in memory where stores have no files."""
_READS_AT_ONCE = 4  # for each of them
_READ = 8 << 20  # bytes that one of these reads asks for
_CHUNK = 16 << 20  # bytes of a file


class LocatedObject(NamedTuple):
    """An object to be copied: from where, and where it is there."""

    source: Repository
    place: Location

    @property
    def size(self) -> int:
        return self.place.stop - self.place.start


@dataclass(frozen=True)
class TransferProgress:
    """Progress of a transfer.

    Attributes:
        nbytes: arrived durably; ``total``: bytes of all.
        seconds: since it began.
    """

    nbytes: int
    total: int
    seconds: float

    @property
    def speed(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds if self.seconds else 0.0


TransferReport = Callable[[TransferProgress], None]


def copy(found: Mapping[str, LocatedObject], target: Repository, report: TransferReport | None = None) -> int:
    """Copy objects: data and files first, then metadata, in the order given. Returns their bytes.

    Each packfile and file is durable once it has arrived. If the copying fails or is killed, these stay and are found
    when it is begun again. All bytes are checked against their digests on the way.

    Raises:
        CorruptError: an object is damaged at its source; StorageFullError and others as the stores.
    """
    groups: dict[str, list[str]] = {"data": [], "meta": [], "files": []}
    for digest, (_, place) in found.items():
        kind = place.kind
        groups["files" if kind == "file" else "meta" if kind in META_KINDS else "data"].append(digest)
    total = sum(one.size for one in found.values())
    meter = _Meter(total, report)
    with ThreadPoolExecutor(PACKFILES_AT_ONCE) as pool:
        files = [partial(_copy_file, found[name], name, target) for name in groups["files"]]
        _all(pool, [*_jobs("data", groups["data"], found, target), *files], meter)
        _all(pool, list(_jobs("meta", groups["meta"], found, target)), meter)
    return total


class _Meter:
    def __init__(self, total: int, report: TransferReport | None) -> None:
        self._total, self._report = total, report
        self._done, self._began = 0, time.monotonic()

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._report is not None:
            self._report(TransferProgress(self._done, self._total, time.monotonic() - self._began))


_Job = Callable[[], int]


def _all(pool: ThreadPoolExecutor, jobs: Sequence[_Job], meter: _Meter) -> None:
    """Do all; of failures the first is raised, and what has not begun is left."""
    waiting = {pool.submit(job) for job in jobs}
    try:
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                meter.add(future.result())
    finally:
        for future in waiting:
            future.cancel()


def _jobs(
    group: str, names: Sequence[str], found: Mapping[str, LocatedObject], target: Repository
) -> Iterator[_Job]:
    """A job for each packfile."""
    for batch in batches({name: found[name].size for name in names}):
        yield _PackfileJob(group, {each: found[each] for each in batch}, target)


@dataclass(frozen=True)
class _PackfileJob:
    group: str
    found: Mapping[str, LocatedObject]
    target: Repository

    def __call__(self) -> int:
        data = read(self.found)
        pieces = [piece_of(name, one.place, data[name]) for name, one in self.found.items()]
        self.target.objects.learn([put(self.target.store, self.group, pieces)])
        return sum(len(piece.data) for piece in pieces)


def read(found: Mapping[str, LocatedObject]) -> dict[str, npt.NDArray[np.uint8]]:
    """The bytes of objects, checked; several ranges at once where they come through a network."""
    parts: list[tuple[Repository, list[str]]] = []
    size = 0
    for name, one in sorted(found.items(), key=lambda item: (item[1].place.packfile, item[1].place.start)):
        if not parts or parts[-1][0] is not one.source or size >= _READ:
            parts.append((one.source, []))
            size = 0
        parts[-1][1].append(name)
        size += one.size
    if len(parts) == 1:
        return parts[0][0].objects.read_many(parts[0][1])
    data: dict[str, npt.NDArray[np.uint8]] = {}
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        for part in pool.map(lambda part: part[0].objects.read_many(part[1]), parts):
            data.update(part)
    return data


def _copy_file(one: LocatedObject, name: str, target: Repository) -> int:
    """Copy an object that is a file, by way of a temporary one where it is to be."""
    staging = target.store.staging()
    with tempfile.TemporaryDirectory() as directory:
        temporary = (staging or Path(directory)) / temporary_name()
        hasher = Hasher("hopyard.file")
        try:
            with write_errors(temporary), files.created(temporary) as fd:
                for start in range(0, one.size, _CHUNK):
                    chunk = one.source.store.get(one.place.packfile, start, min(_CHUNK, one.size - start))
                    hasher.update(chunk)
                    files.write_pieces(fd, [chunk])
            if hasher.hexdigest() != name:
                raise CorruptError(
                    f"{one.place.packfile} in {one.source.store.url} is not what was written: it has another digest "
                    "than its name says. Restore it from a copy, or fetch it from another remote that has it."
                )
            target.store.put_file(f"files/{name}", temporary)
        finally:
            files.unlink_quietly(temporary)
    return one.size
