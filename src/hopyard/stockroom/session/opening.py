"""Opens the repository of a place, with the remotes that bring what is not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from hopyard.errors import CorruptError, KindError, NotFoundError, UsageError
from hopyard.stockroom.git import Place, at, make_folder, prepare, write
from hopyard.stockroom.history.commits import short
from hopyard.stockroom.history.references import logs
from hopyard.stockroom.maintenance.heads import likely
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.remotes import (
    KIND,
    Never,
    OnDemand,
    Repository,
    fetch_commit,
    names,
    open_remote,
    recall,
)
from hopyard.stockroom.session.tree import WorkingTree
from hopyard.storage import LocalStore, Store, files
from hopyard.storage.format import FORMAT_NAME, claim_format, read_format

Fetching = Literal["auto", "never"]


def open_place(place: Place, fetch: Fetching = "auto") -> tuple[Repository, Objects, WorkingTree]:
    """The repository at a place, its objects, which come from remotes where they are not here, and the working tree.

    Raises:
        NotFoundError: its objects are not here; FormatError: a newer version wrote them; CorruptError: the root is
            damaged.
    """
    store = LocalStore(place.objects).without_links()
    if not store.exists(FORMAT_NAME):
        if _has_objects(store):
            raise CorruptError(
                f"{place.objects} holds the objects of {place.head}, but its file {FORMAT_NAME} is gone. This writes "
                "it anew: hopyard stock verify --repair"
            )
        raise NotFoundError(
            f"{place.head} is there, but its objects, which would be in {place.objects}, are not: git does not carry "
            f"them. Bring them from where they were pushed: hopyard stock clone URL {place.root}"
        )
    try:
        read_format(store, KIND)
    except KindError as error:
        if not _has_objects(store):
            raise
        raise CorruptError(
            f"{error} But objects of a stockroom are there, so its file {FORMAT_NAME} is damaged. This writes it anew: "
            "hopyard stock verify --repair"
        ) from error
    except CorruptError as error:
        raise CorruptError(f"{error} Or let this write it anew: hopyard stock verify --repair") from error
    index = place.objects / "index.sqlite"
    local = Repository.at(store, index)
    absent = AbsentFetcher(local, fetch)
    return local, Objects(store, index, absent), WorkingTree(place, local, absent.bring_commit)


def make_place(folder: Path) -> None:
    """Make a stockroom in a folder; see ``StockRoom.init``.

    Raises:
        UsageError: there is one already.
    """
    make_folder(folder)
    place = at(folder)
    store = LocalStore(place.objects).without_links()
    exists = store.exists(FORMAT_NAME)
    files.look_anew(place.root)
    if place.head.is_dir():
        raise UsageError(
            f"{place.head} is a folder, but the file that says where a working tree is has that name. Move the "
            "folder away, then run this again."
        )
    if place.head.exists():
        raise UsageError(
            f"{place.root} is a stockroom already. Open it: StockRoom({str(place.root)!r})."
            if exists
            else f"{place.head} is there already, but the objects are not: git does not carry them. Bring them "
            f"from where they were pushed: hopyard stock clone URL {place.root}"
        )
    prepare(place)
    claim_format(store, KIND)
    # Objects may be there: somebody deleted head.stock.
    write(place.head, likely(place, logs(store)[0]), place.id)


def _has_objects(store: Store) -> bool:
    return any(next(store.list(folder), None) is not None for folder in ("packfiles", "refs"))


class AbsentFetcher:
    """Brings objects that are read and are not here, from the remotes that are known then. Picklable.

    Args:
        local: the repository.
        fetch: ``"never"``: says which call would bring them instead.
    """

    def __init__(self, local: Repository, fetch: Fetching) -> None:
        self._local, self._fetch = local, fetch
        self._urls: list[str] = []
        self._bring: Callable[[Sequence[str]], None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return AbsentFetcher, (self._local, self._fetch)

    def __call__(self, digests: Sequence[str]) -> None:
        store = self._local.store
        known = [recall(store, name) for name in names(store)]
        urls = [each.url for each in known]
        if not known:
            return
        if self._bring is None or urls != self._urls:
            if self._fetch == "never":
                self._bring = Never(self._local, urls)
            else:
                self._bring = OnDemand(self._local, [open_remote(store, each) for each in known])
            self._urls = urls
        self._bring(digests)

    def bring_commit(self, commit: str, branch: str | None) -> bool:
        """Bring a commit with its history and metadata from the first remote that has it; whether one has. What that
        remote's branch has is seen, too."""
        store = self._local.store
        known = [recall(store, name) for name in names(store)]
        if known and self._fetch == "never":
            raise NotFoundError(
                f"head.stock is at the commit {short(commit)}, which is not here, and fetch='never' was given. Bring "
                "it: hopyard stock fetch; or open the stockroom without fetch='never'."
            )
        return any(fetch_commit(self._local, open_remote(store, each), commit, branch) for each in known)
