"""Files that a manifest lists: whether the files there are the listed ones, and are as they were written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hopyard.data.files.parallel import of_each
from hopyard.data.files.stored import StoredFile, check_chunks
from hopyard.data.manifest import MANIFEST_NAME, FileEntry, ForeignEntry
from hopyard.data.order import Rows
from hopyard.errors import CorruptError, NotFoundError
from hopyard.storage.base import Store

_log = logging.getLogger("hopyard")


class ChecksumCheck:
    """Compares row groups with their checksums when rows of them are gathered for the first time.

    Args:
        files: by number: each with its bytes, and the leaves that are gathered from.
        places: of the row groups: the number of the file, and their number in it.
    """

    def __init__(
        self,
        files: Mapping[int, tuple[StoredFile, npt.NDArray[np.uint8], list[int]]],
        places: Sequence[tuple[int, int]],
    ) -> None:
        self._files = files
        self._places = places
        self._todo = np.ones(len(places), bool)

    def check(self, groups: Rows) -> bool:
        """Compare these row groups, if they were not before; returns whether none is left to be compared.

        Raises:
            CorruptError: one is not as it was written; names file, row group and column.
        """
        present = np.bincount(groups, minlength=len(self._todo)).astype(bool) & self._todo
        if present.any():
            by_file: dict[int, list[int]] = {}
            for group in np.flatnonzero(present).tolist():
                number, within = self._places[group]
                by_file.setdefault(number, []).append(within)
            doubted = []
            for number, withins in by_file.items():
                file, content, leaves = self._files[number]
                if file.checks is not None:
                    wanted = np.zeros(file.checks.chunks.shape, bool)
                    wanted[np.array(withins)[:, None], np.array(leaves)[None, :]] = True
                    doubted.append((file, wanted, content))
            check_chunks(doubted)
            self._todo &= ~present
        return not self._todo.any()


def open_entry(store: Store | None, entry: FileEntry) -> StoredFile:
    """A file that a manifest lists, if it is the listed one, as far as its size and its seal tell.

    Raises:
        CorruptError: it is another.
        NotFoundError: it is not there.
    """
    file = StoredFile.known(store, entry.name, entry.identity) if isinstance(entry, ForeignEntry) else None
    if file is not None:
        return file
    file = StoredFile.open(store, entry.name)
    if file.size != entry.size:
        raise CorruptError(
            f"{file.name} has {file.size} bytes, but had {entry.size} when the dataset was made: it was "
            f"truncated or changed. {file.remedy}"
        )
    if entry.seal:
        file.check_sealed(entry.seal)
    return file


def check_content(file: StoredFile, entry: ForeignEntry) -> None:
    """Raise CorruptError if a file that others wrote is not as it was opened, here or on another machine."""
    try:
        same = file.content == entry.content.value()
    except (CorruptError, NotFoundError):
        same = False
    if not same:
        raise CorruptError(
            f"{file.name} was changed since the dataset was opened. Restore it, or open the dataset again: its "
            "rows are others now."
        )


def is_whole(store: Store, entry: FileEntry) -> bool:
    """Whether a file that a manifest lists is there as it was written.

    Of a file at a path all bytes are compared that were not since the machine started; an object in a store
    without paths is only looked at.
    """
    if store.path(entry.name) is None:
        return is_there(store, entry)
    try:
        return not open_entry(store, entry).damage()
    except (CorruptError, NotFoundError):
        return False


def is_there(store: Store, entry: FileEntry) -> bool:
    """Whether a file that a manifest lists is there with all its bytes, and this machine has found no damage in it."""
    return store.size(entry.name) == entry.size and not StoredFile.open(store, entry.name).is_known_damaged


def are_all(store: Store, entries: Sequence[FileEntry], check: Callable[[Store, FileEntry], bool]) -> bool:
    """Whether all files that a manifest lists pass a check; logs the first that does not, since it is written again."""
    names = [entry.name for entry in entries]
    passed = [True for _ in entries]
    if store.path(MANIFEST_NAME) is None:  # one request for all, before one for each
        sizes = {entry.name: entry.size for entry in store.list()}
        passed = [sizes.get(entry.name) == entry.size for entry in entries]
    if all(passed):
        passed = of_each(store, names, entries, lambda entry: check(store, entry))
    if not all(passed):
        missed = names[passed.index(False)]
        _log.warning("%s/%s is missing or damaged; the data is written again.", store.url, missed)
    return all(passed)
