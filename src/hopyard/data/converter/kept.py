"""The directories that converters write: begun by any number of processes, finished by one, deleted whole.

A directory is ``converter-<digest>``; the digest is of the rows' plan and the parameters. Every attempt to fill it
writes files of its own names, which say who writes. The marker is written last, and only if there is none yet: it
lists the files of the attempt that won. What it does not list is never read, so a killed attempt leaves nothing that
is believed, and the loser of two at once removes what it wrote and takes the winner's.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hopyard.data.files.listed import are_all, is_there
from hopyard.data.manifest import FileEntry
from hopyard.errors import CorruptError, NotFoundError, StorageError, UsageError
from hopyard.storage import files, open_store
from hopyard.storage.base import Store
from hopyard.storage.format import check_format, format_header
from hopyard.storage.temporary import is_writer_gone, writer_name
from hopyard.storage.visible import wait_for_objects

MARKER = "_hopyard_converter.json"
FORMAT_KIND = "converter"
_PREFIX = "part-"
_log = logging.getLogger("hopyard")


@dataclass(frozen=True)
class Marker:
    """The mark of a converter's finished directory.

    Attributes:
        directory: name of the directory, so that a copied marker makes no other directory a converter's.
        parameters: of the conversion.
        files: in the order of their rows.
    """

    directory: str
    parameters: dict[str, Any]
    files: tuple[FileEntry, ...]

    def to_bytes(self) -> bytes:
        return json.dumps({"format": format_header(FORMAT_KIND), **asdict(self)}, indent=1).encode()

    @classmethod
    def read(cls, store: Store) -> Marker | None:
        """A directory's marker, or None if it has none.

        Raises:
            CorruptError: it is not what was written.
            FormatError: written by a newer version of Hopyard.
        """
        try:
            content = store.get(MARKER)
        except NotFoundError:
            return None
        where = f"{store.url}/{MARKER}"
        try:
            fields = json.loads(content)
            check_format(fields["format"], FORMAT_KIND, where=where)
            files = tuple(map(FileEntry.from_json, fields["files"]))
            return cls(fields["directory"], fields["parameters"], files)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{where} is not a converter's marker ({error!r}). Delete {store.url} and convert the data again."
            ) from error


def usable_marker(store: Store) -> Marker | None:
    """A directory's marker if all its files are there; one without, as rules for old files leave it, is removed.

    They are not read: it is a driver that asks, and may be far from them.
    """
    marker = Marker.read(store)
    if marker is None or are_all(store, marker.files, is_there):
        return marker
    store.delete(MARKER)
    return None


def new_attempt() -> str:
    """A new prefix for the names of the files of one attempt."""
    return _PREFIX + writer_name()


def finish(store: Store, attempt: str, marker: Marker) -> Marker:
    """Publish the files of an attempt, unless another was faster. Returns the marker that counts.

    Raises:
        StorageError: files that executors have written are not to be seen here.
    """
    wait_for_objects(store, {file.name: file.size for file in marker.files}, "Executors")
    won = store.put_new(MARKER, marker.to_bytes())
    winner = marker if won else Marker.read(store)
    if winner is None:
        raise StorageError(
            f"{store.url} was deleted while it was filled. Convert the data again, and delete only what nobody fills."
        )
    _remove_leftovers(store, {file.name for file in winner.files}, attempt)
    return winner


def abandon(store: Store, attempt: str) -> None:
    """Remove the files of an attempt, after it failed."""
    with contextlib.suppress(StorageError):
        _remove_leftovers(store, set(), attempt)


def _remove_leftovers(store: Store, listed: set[str], attempt: str) -> None:
    """Files that this attempt wrote in vain, and those of attempts whose processes are provably gone."""
    for entry in list(store.list()):
        if entry.name in listed or not entry.name.startswith(_PREFIX) or "/" in entry.name:
            continue
        if entry.name.startswith(attempt) or is_writer_gone(entry.name.removeprefix(_PREFIX)):
            store.delete(entry.name)


def delete_directory(url: str) -> None:
    """Remove a converter's directory: the marker first, then its files, then empty directories. Gone already is fine.

    Raises:
        UsageError: it is no converter's directory, by its marker.
    """
    store = open_store(url)
    name = url.rstrip("/").rpartition("/")[2]
    marker = Marker.read(store)
    names = [entry.name for entry in store.list()]
    if marker is None and not names:
        return
    if marker is None or marker.directory != name:
        raise UsageError(
            f"{url} is not deleted: it has no {MARKER} that says it is a converter's directory. If its files are not "
            "needed, delete them yourself."
        )
    store.delete(MARKER)
    for each in names:
        if each.startswith(_PREFIX) and "/" not in each:
            store.delete(each)
    directory = store.path(MARKER)
    if directory is not None:
        _remove_empty(directory.parent)


def _remove_empty(directory: Path) -> None:
    """Remove the directory unless it holds files that no converter wrote."""
    try:
        files.remove_directory(directory)
    except FileNotFoundError:
        return
    except OSError:
        _log.warning("%s is kept, because it holds files that no converter has written.", directory)
