"""Files of a folder and members of a tar archive, read alike: by number, in any process.

Nothing is unpacked that can be read where it is. A ``.gz`` is, once, into a file; a member of a tar then is a range
of that file. So names in archives never become paths, and cannot lead out of a folder.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError, DataError, NotFoundError
from hopyard.objects.digests import Hasher, digest_json
from hopyard.storage.oserrors import read_error, write_error

_GZIP = b"\x1f\x8b"
_OTHERS = {b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"7z\xbc\xaf": "7z", b"Rar!": "rar"}
_AT_ONCE = 1 << 24
_SHOWN = 8


@dataclass(frozen=True)
class FilePart:
    """One file, or a range of an archive.

    Attributes:
        path: of the file or archive.
        start, size: of the range in bytes; None: all of the file.
        shown: how errors call it.
    """

    path: str
    start: int
    size: int | None
    shown: str

    def read(self) -> bytes:
        """The bytes of the part.

        Raises:
            NotFoundError: the file is not there any more.
            CorruptError: the archive is shorter than it was.
        """
        try:
            with Path(self.path).open("rb") as file:
                file.seek(self.start)
                data = file.read() if self.size is None else file.read(self.size)
        except FileNotFoundError as error:
            raise NotFoundError(
                f"{self.shown} is not there any more. Restore it, and import again."
            ) from error
        except OSError as error:
            raise read_error(self.shown, error) from error
        if self.size is not None and len(data) != self.size:
            raise CorruptError(
                f"{self.shown} ends after {len(data)} of {self.size} bytes. Restore the archive."
            )
        return data


@dataclass(frozen=True, eq=False)
class FileParts:
    """Some files. Picklable, and small: two numbers and a name for each.

    Attributes:
        path: the folder, or the tar archive.
        names: of the files in it, with ``/``.
        ranges: (n, 2) int64, start and size in the archive in bytes; None: it is a folder.
        shown: the folder, or the archive as it was given.
    """

    path: str
    names: Sequence[str]
    ranges: npt.NDArray[np.int64] | None
    shown: str

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> FilePart:
        name = self.names[number]
        if self.ranges is None:
            path = str(Path(self.path, name))
            return FilePart(path, 0, None, path)
        start, size = map(int, self.ranges[number])
        return FilePart(self.path, start, size, f"{self.shown}: {name}")

    def select(self, numbers: Sequence[int]) -> FileParts:
        """Only these, in this order."""
        ranges = None if self.ranges is None else self.ranges[np.asarray(numbers, np.int64)]
        return FileParts(self.path, [self.names[number] for number in numbers], ranges, self.shown)

    def numbers(self) -> dict[str, int]:
        """Name -> number."""
        return {name: number for number, name in enumerate(self.names)}

    def files(self) -> list[Path]:
        """The source as it was given: the archive, or each of the files."""
        if self.ranges is not None:
            return [Path(self.shown)]
        return [Path(self.path, name) for name in self.names]


def read_archive(archive: Path, scratch: Path) -> FileParts:
    """The files in a ``.tar`` or ``.tar.gz``. Links and the like are left out.

    Raises:
        CorruptError: it is truncated or damaged.
        DataError: it is no tar archive.
    """
    plain = gunzipped(archive, scratch)
    names: list[str] = []
    ranges: list[tuple[int, int]] = []
    try:
        with tarfile.open(plain, "r:") as tar:
            for member in tar:
                if member.isreg():
                    names.append(member.name.removeprefix("./"))
                    ranges.append((member.offset_data, member.size))
    except tarfile.ReadError as error:
        if names or tarfile.is_tarfile(plain):
            raise _truncated(archive, error) from error
        raise DataError(
            f"{archive} is no tar archive ({_kind(plain)}). Give a .tar or .tar.gz, or the folder that was unpacked."
        ) from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _truncated(archive, error) from error
    if ranges and max(start + size for start, size in ranges) > plain.stat().st_size:
        raise _truncated(archive, "its last file is cut")
    return FileParts(str(plain), names, np.array(ranges, np.int64).reshape(-1, 2), str(archive))


def gunzipped(path: Path, scratch: Path) -> Path:
    """The file itself, or what a gzip file holds, as a file in ``scratch``; made once.

    Raises:
        CorruptError: the gzip file is truncated or damaged.
        StorageFullError: there is no space for what it holds.
    """
    with path.open("rb") as file:
        if file.read(2) != _GZIP:
            return path
    target = scratch / digest_json([str(path), path.stat().st_mtime_ns], "hopyard.import")[:16]
    if target.exists():
        return target
    unfinished = target.with_suffix(".part")
    try:
        with gzip.open(path, "rb") as packed, unfinished.open("wb") as file:
            while block := _block(path, packed):
                file.write(block)
        return unfinished.rename(target)
    except OSError as error:
        raise write_error(str(unfinished), error) from error


def _block(path: Path, packed: gzip.GzipFile) -> bytes:
    try:
        return packed.read(_AT_ONCE)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _truncated(path, error) from error


def _truncated(path: Path, why: object) -> CorruptError:
    return CorruptError(
        f"{path} ({path.stat().st_size:,} bytes) is truncated or damaged: {why}. Download or copy it again."
    )


def _kind(path: Path) -> str:
    with path.open("rb") as file:
        begin = file.read(8)
    for magic, kind in _OTHERS.items():
        if begin.startswith(magic):
            return f"it is a {kind} file, which has to be unpacked first"
    return f"it begins with {begin!r}"


def find_parts(
    source: Path, wanted: Sequence[str], scratch: Path, *, folder: str, archive: str, what: str
) -> FileParts:
    """The files that a format consists of, in the order of ``wanted``.

    Args:
        source: an archive; or a folder that holds the files, or ``folder`` with the files, or ``archive``.
        folder: in which the original archive has them.
        archive: the original's name.
        what: the format, for errors.

    Raises:
        DataError: they are not all there; says what was expected, and what is there.
        CorruptError: the archive is truncated.
    """
    if source.is_dir():
        for place in (source, source / folder):
            if all((place / name).is_file() for name in wanted):
                return FileParts(str(place), list(wanted), None, str(place))
        if (source / archive).is_file():
            return find_parts(source / archive, wanted, scratch, folder=folder, archive=archive, what=what)
        there = sorted(path.name + "/" * path.is_dir() for path in source.iterdir())
        inside = sorted(path.name for path in (source / folder).glob("*"))
        raise _missing(source, what, wanted, [*(f"{folder}/{name}" for name in inside), *there], archive)
    parts = read_archive(source, scratch)
    numbers = parts.numbers()
    chosen = [next((numbers[name] for name in _places(parts.names, folder, file)), None) for file in wanted]
    if None in chosen:
        raise _missing(source, what, wanted, parts.names, archive)
    return parts.select([number for number in chosen if number is not None])


def _places(names: Sequence[str], folder: str, file: str) -> list[str]:
    """Names that the file may have in an archive, the likeliest first."""
    usual = f"{folder}/{file}"
    return sorted((n for n in names if n in (usual, file) or n.endswith(f"/{usual}")), key=len, reverse=True)


def _missing(source: Path, what: str, wanted: Sequence[str], there: Sequence[str], archive: str) -> DataError:
    return DataError(
        f"{source} is not {what}: expected are {listed(wanted)} (the original is {archive}), "
        f"but there {'is ' + listed(there) if there else 'is nothing'}. Give the original archive or its folder."
    )


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def describe_files(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Name, bytes and BLAKE3 digest of each: what identities say of archives and tables."""
    described = []
    for path in files:
        hasher = Hasher("hopyard.file", threads=None)
        with path.open("rb") as file:
            while block := file.read(_AT_ONCE):
                hasher.update(block)
        described.append({"name": path.name, "bytes": path.stat().st_size, "digest": hasher.hexdigest()})
    return described


def describe_folder(root: Path, names: Sequence[str]) -> Mapping[str, Any]:
    """The same for many files, which are not read for it: names, sizes and times of change go into one digest."""
    stats = [(root / name).stat() for name in names]
    listing = [[name, s.st_size, s.st_mtime_ns] for name, s in zip(names, stats, strict=True)]
    return {
        "files": len(names),
        "bytes": sum(s.st_size for s in stats),
        "listing": digest_json(listing, "hopyard.import"),
    }
