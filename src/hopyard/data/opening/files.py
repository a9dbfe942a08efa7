"""The data files that a path leads to."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.data.opening.hive import is_hidden
from hopyard.errors import DataError, NotFoundError

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


@dataclass(frozen=True)
class FoundFile:
    """A file, and its name relative to the directory that was named, with ``/``: partitions are in it."""

    path: Path
    relative: str


def find_files(path: str | Path) -> list[Path]:
    """The data files that a path, a directory, a pattern or a ``file://`` URL leads to, sorted."""
    return [found.path for found in find_data(path)]


def find_data(path: str | Path) -> list[FoundFile]:
    """The same, with what they are called below the directory named, or below that where a pattern begins.

    Raises:
        NotFoundError: there are none.
        DataError: it is a URL of another kind.
    """
    text = str(path)
    parsed = urlparse(text)
    if len(parsed.scheme) > 1 and parsed.scheme != "file":
        raise DataError(
            f"{text} is not a path of this machine. Open the data with its own library (pyarrow, pandas, polars) "
            "and give the table, or download the files first."
        )
    place = Path(unquote(parsed.path)) if parsed.scheme == "file" else Path(text)
    if place.is_dir():
        files = _listed(place) or _below(place)
    else:
        files = [FoundFile(place, place.name)] if place.is_file() else _matching(place)
    if not files:
        what = f"no {' or '.join((*PARQUET, *CSV))} file in" if place.is_dir() else "no file or directory"
        raise NotFoundError(f"There is {what} {text}. Check the path.")
    return files


def _below(directory: Path) -> list[FoundFile]:
    found = [FoundFile(file, file.relative_to(directory).as_posix()) for file in sorted(directory.rglob("*"))]
    return [each for each in found if is_any(each.path, (*PARQUET, *CSV)) and not is_hidden(each.relative)]


def _matching(pattern: Path) -> list[FoundFile]:
    fixed = next((number for number, part in enumerate(pattern.parts) if re.search(r"[*?[]", part)), None)
    if fixed is None:
        return []
    directory = Path(*pattern.parts[:fixed])
    files = sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207, a pattern may be absolute
    return [FoundFile(file, file.relative_to(directory).as_posix()) for file in files]


def _listed(directory: Path) -> list[FoundFile]:
    """The files of a prepared dataset, in the order of its manifest; none if it is no such directory."""
    manifest = directory / MANIFEST_NAME
    if not manifest.is_file():
        return []
    entries = Manifest.from_bytes(manifest.read_bytes(), str(manifest)).files
    return [FoundFile(directory / entry.name, entry.name) for entry in entries]


def is_any(file: Path, endings: Sequence[str]) -> bool:
    """Whether the file's name ends in one of these."""
    return file.name.lower().endswith(tuple(endings))
