"""A repository as transfers see it: here, or at a remote. Both have the same layout, and neither has a server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.history.references import References
from hopyard.stockroom.packfiles import Location, Objects
from hopyard.stockroom.packfiles.objects import Absent
from hopyard.stockroom.remotes.closure import Need
from hopyard.storage import Store
from hopyard.storage.format import FORMAT_NAME, claim_format, read_format

KIND = "stockroom"
"""The kind of a repository in the object FORMAT."""

_LISTED = 8  # files that are looked for one by one; for more of them all are listed


@dataclass(frozen=True)
class Repository:
    """A repository: objects and references.

    Attributes:
        store: the root.
        name: of a remote, as ``refs/remotes/<name>/`` has it; ``""`` of the one here.
    """

    store: Store
    objects: Objects
    references: References
    name: str = ""

    @classmethod
    def at(
        cls,
        store: Store,
        index: Path | None = None,
        absent: Absent | None = None,
        name: str = "",
        is_remote: bool = False,
    ) -> Repository:
        """The repository in a store. ``index`` and ``absent`` are as ``Objects`` takes them. Of a remote, which
        has a name unless only its address is known, no tombstone is believed. In a folder links are not followed."""
        store = store.without_links()
        return cls(
            store, Objects(store, index, absent, is_own=not (name or is_remote)), References(store), name
        )

    def find(self, needs: Iterable[Need]) -> dict[str, Location]:
        """The present places of needed objects, as far as they are here: a few requests, however many objects."""
        wanted = list(needs)
        found = self.objects.packed(need.digest for need in wanted if need.kind != "file")
        files = {need.digest for need in wanted if need.kind == "file"}
        if len(files) > _LISTED:
            sizes = {entry.name.removeprefix("files/"): entry.size for entry in self.store.list("files")}
        else:
            asked = {digest: self.store.size(f"files/{digest}") for digest in files}
            sizes = {digest: size for digest, size in asked.items() if size is not None}
        for digest in files & sizes.keys():
            size = sizes[digest]
            found[digest] = Location(f"files/{digest}", 0, size, "file", "U8", (size,))
        return found


def unreadable(remotes: Iterable[Repository]) -> str:
    """For errors: which packfiles of these cannot be read, in which something may be that is missing."""
    reasons = [str(error) for remote in remotes for error in remote.objects.unreadable.values()]
    more = f" And {len(reasons) - 1} others." if len(reasons) > 1 else ""
    return f" It may be in a packfile that cannot be read: {reasons[0]}{more}" if reasons else ""


def check_format(store: Store) -> None:
    """See that a repository is there that this version reads.

    Raises:
        NotFoundError: none is; FormatError: something else, or of a newer format; CorruptError: it cannot be read.
    """
    try:
        read_format(store, KIND)
    except NotFoundError as error:
        raise NotFoundError(
            f"there is no stockroom at {store.url}: {error} Check the address; the first push to an empty place "
            "makes one."
        ) from None


def claim(store: Store) -> None:
    """The same, and make one in an empty place.

    Raises:
        UsageError: other things are there.
    """
    try:
        read_format(store, KIND)
    except NotFoundError:
        other = next(store.list(), None)
        if other is not None and not store.exists(FORMAT_NAME):  # nobody was faster
            raise UsageError(
                f"{store.url} is no stockroom, but not empty either: it holds {other.name!r}. Give an empty place, "
                "for instance a new folder in it."
            ) from None
        file = store.path(FORMAT_NAME)
        if file is not None and not file.parent.parent.is_dir():
            raise UsageError(
                f"there is no folder {file.parent.parent}, so {file.parent} is not made a stockroom: only the last "
                "folder of a path is made. Correct the path, or make the folders first."
            ) from None
        claim_format(store, KIND)
