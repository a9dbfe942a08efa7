"""The data files that a path or URL leads to."""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from hopyard.data.files.hive import is_hidden
from hopyard.data.files.stored import StoredFile
from hopyard.data.files.unfinished import refuse_leftovers
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.errors import DataError, NotFoundError
from hopyard.storage import open_store
from hopyard.storage.base import Store
from hopyard.storage.opening import STORE_SCHEMES
from hopyard.storage.oserrors import read_error

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")

_IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_LOOKED_AT = 1_000
"""Files of a folder that are looked at for images."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/]*)/?(.*)", re.DOTALL)
_WILD = re.compile(r"[*?[]")


@dataclass(frozen=True)
class FoundFile:
    """A data file.

    Attributes:
        name: path of the file, or its name in ``store``.
        relative: its name relative to the directory that was named, with ``/``: partitions are in it.
        store: holds it; None: this machine's file system does.
    """

    name: str
    relative: str
    store: Store | None = None

    def __str__(self) -> str:
        return self.name if self.store is None else f"{self.store.url}/{self.name}"

    def open(self) -> StoredFile:
        return StoredFile.open(self.store, self.name)


def find_files(path: str | Path) -> list[Path]:
    """The data files of this machine that a path, a directory, a pattern or a ``file://`` URL leads to, sorted.

    Raises:
        NotFoundError: there are none.
        DataError: it is a URL of another kind.
    """
    if is_url(str(path)):
        raise _not_local(str(path))
    return [Path(found.name) for found in find_data(path)]


def find_data(path: str | Path) -> list[FoundFile]:
    """The data files that a path or URL (of a file, a directory, or a pattern of files) leads to, sorted.

    Raises:
        NotFoundError: there are none.
        StorageError: a directory may not be read.
        DataError: it is a URL of a kind that no store has.
    """
    text = str(path)
    data = f"no {' or '.join((*PARQUET, *CSV))} file in"
    if is_url(text):
        files, missing = _in_store(text), f"no object {text}, and {data} it"
    else:
        place = Path(unquote(urlparse(text).path) if text.startswith("file://") else text).expanduser()
        missing = f"{data} {text}" if os.path.isdir(place) else f"no file or directory {text}"  # noqa: PTH112
        try:
            files = _on_this_machine(place)
        except OSError as error:
            raise read_error(text, error) from error
    if not files:
        raise NotFoundError(f"There is {missing}. {_advice(text)}")
    return files


def _advice(text: str) -> str:
    """Advice about a path without data files."""
    if not is_url(text):
        below = (name.lower() for _, _, names in os.walk(text) for name in names)
        if any(name.endswith(_IMAGES) for name in itertools.islice(below, _LOOKED_AT)):
            return (
                "There are images, which go into Parquet or a stockroom first: the page 'Folders of images' has both "
                "(hopyard stock import torchvision.imagefolder --from FOLDER)."
            )
    return "Check the path."


def is_url(path: str) -> bool:
    """Whether the path is a URL of something else than a file of this machine."""
    found = _URL.match(path)
    return found is not None and found[1].lower() != "file"


def is_wild(path: str) -> bool:
    """Whether the path is a pattern."""
    return _WILD.search(path) is not None


def _in_store(url: str) -> list[FoundFile]:
    found = _URL.fullmatch(url)
    if found is None or found[1].lower() not in STORE_SCHEMES:
        raise _not_local(url)
    store = open_store(f"{found[1]}://{found[2]}").foreign()
    key = found[3].strip("/")
    fixed = _WILD.split(key)[0].rpartition("/")[0] if is_wild(key) else key
    if key and not is_wild(key) and store.exists(key):
        return [FoundFile(key, key.rpartition("/")[2], store)]
    directory = fixed and fixed + "/"
    names = [entry.name for entry in store.list(fixed)]
    if is_wild(key):
        names = [
            name for name in names if _is_matched(name, key.split("/"), _is_data(name[len(directory) :]))
        ]
    elif directory + MANIFEST_NAME in names:
        manifest = store.get(directory + MANIFEST_NAME)
        entries = Manifest.from_bytes(manifest, f"{url}/{MANIFEST_NAME}").files
        names = [directory + entry.name for entry in entries]
    else:
        refuse_leftovers(names, store, url)
        names = [name for name in names if _is_data(name[len(directory) :])]
    return [FoundFile(name, name[len(directory) :], store) for name in names]


def _is_matched(name: str, pattern: Sequence[str], or_directory: bool) -> bool:
    """Whether the pattern matches the name, or a directory that it is in."""
    parts = name.split("/")
    ends = range(1, len(parts) + 1) if or_directory else [len(parts)]
    return any(_matches(parts[:end], pattern) for end in ends)


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the segments of a name match those of a pattern: ``**`` is any number of directories."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[skipped:], pattern[1:]) for skipped in range(len(name)))
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


def _not_local(url: str) -> DataError:
    return DataError(
        f"{url} is not a path of this machine. Open the data with its own library (pyarrow, pandas, polars) "
        "and give the table, or download the files first."
    )


def _on_this_machine(place: Path) -> list[FoundFile]:
    if place.is_dir():
        return _listed(place) or _below(place, place)
    return [FoundFile(str(place), place.name)] if place.is_file() else _matching(place)


def _below(directory: Path, named: Path) -> list[FoundFile]:
    there = sorted(directory.rglob("*"))
    refuse_leftovers([file.as_posix() for file in there], None, str(directory))
    found = [FoundFile(str(file), file.relative_to(named).as_posix()) for file in there]
    return [each for each in found if _is_data(each.relative)]


def _is_data(relative: str) -> bool:
    return is_any(relative, (*PARQUET, *CSV)) and not is_hidden(relative)


def _matching(pattern: Path) -> list[FoundFile]:
    fixed = next((number for number, part in enumerate(pattern.parts) if is_wild(part)), None)
    if fixed is None:
        return []
    directory = Path(*pattern.parts[:fixed])
    found: dict[FoundFile, None] = {}
    for place in sorted(map(Path, glob.glob(str(pattern), recursive=True))):  # noqa: PTH207, may be absolute
        if place.is_dir():
            found |= dict.fromkeys(_below(place, directory))
        else:
            found[FoundFile(str(place), place.relative_to(directory).as_posix())] = None
    return list(found)


def _listed(directory: Path) -> list[FoundFile]:
    """The files of a prepared dataset, in the order of its manifest; none if it is no such directory."""
    manifest = directory / MANIFEST_NAME
    if not manifest.is_file():
        return []
    entries = Manifest.from_bytes(manifest.read_bytes(), str(manifest)).files
    return [FoundFile(str(directory / entry.name), entry.name) for entry in entries]


def is_any(file: str | Path, endings: Sequence[str]) -> bool:
    """Whether the file's name ends in one of these."""
    return str(file).lower().endswith(tuple(endings))
