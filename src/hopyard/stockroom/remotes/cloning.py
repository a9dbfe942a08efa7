"""Clone: a new repository with the history and metadata of a remote. Data come by name, or when they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.git import Head, Place, at, current_branch, make_folder, prepare, read, write
from hopyard.stockroom.history.locks import writing
from hopyard.stockroom.remotes.fetching import Fetched, bring_metadata, fetch
from hopyard.stockroom.remotes.known import KnownRemote, names, open_remote, recall, remember
from hopyard.stockroom.remotes.repository import KIND, Repository, check_format
from hopyard.storage import LocalStore, Store
from hopyard.storage.format import FORMAT_NAME, claim_format

MAIN = "main"


def clone(
    store: Store, path: Path, name: str = "origin", by: str = "", accept_purges: bool = False
) -> tuple[Place, Fetched]:
    """Make a repository whose ``head.stock`` is in the folder ``path``, with all that ``store`` has but data.

    An interrupted clone is continued by calling it again. Where a clone of git's history brought a ``head.stock``,
    that stays, and its branch is made.

    Args:
        name: of the remote, from then on. accept_purges: as ``fetch``.

    Returns:
        Where the repository is, and what came.

    Raises:
        UsageError: the folder is a stockroom already.
        NotFoundError: there is none at ``store``, or it lacks the commit of the ``head.stock`` that is there.
        FormatError, StorageError and its kinds: as the stores. No branch was made.
    """
    check_format(store)
    make_folder(path)
    place = at(path)
    local = Repository.at(LocalStore(place.objects), place.objects / "index.sqlite")
    _check_new(place, local, KnownRemote(name, store.url))
    prepare(place)
    remember(local.store, KnownRemote(name, store.url))
    claim_format(local.store, KIND)
    remote = open_remote(local.store, KnownRemote(name, store.url), store)
    fetched = fetch(local, remote, by=by, accept_purges=accept_purges)
    default = _default(fetched)
    remember(
        local.store,
        KnownRemote(name, store.url, default.branch, fetched.purges.waiting, fetched.all_tags or {}),
    )
    head = read(place.head) if place.head.exists() else default
    if head.commit is not None and head != default:
        _bring_head(local, remote, head.commit, place)
    branch = Head(head.branch, fetched.heads.get(head.branch, head.commit)) if head.branch else default
    if branch.commit is not None and local.references.tip(f"heads/{branch.branch}").commit is None:
        local.references.set(f"heads/{branch.branch}", branch.commit, by)
    if not place.head.exists():
        head = replace(head, git=current_branch(place))
    write(place.head, head, place.id)
    return place, fetched


def _check_new(place: Place, local: Repository, known: KnownRemote) -> None:
    """See that there is nothing yet, or an interrupted clone of the same remote; or what lacks the commit that
    ``head.stock`` is at, which git may have brought, and then knows one more remote."""
    if not local.store.exists(FORMAT_NAME):
        return
    is_new = known.name not in names(local.store)
    is_begun = not is_new and recall(local.store, known.name).url == known.url
    commit = read(place.head).commit if place.head.exists() else None
    if (is_new or is_begun) and commit is not None and local.objects.missing([commit]):
        return
    if not is_begun or (place.head.exists() and local.references.names("heads")):
        raise UsageError(
            f"{place.root} is a stockroom already; its objects are in {place.objects}. To bring what {known.url} "
            f"has: hopyard stock fetch {known.url}. To clone it, give another folder."
        )


def _default(fetched: Fetched) -> Head:
    """The branch to begin with: ``main``, else the only or first one; without any, ``main`` that has no commit."""
    branch = MAIN if MAIN in fetched.heads or not fetched.heads else min(fetched.heads)
    return Head(branch, fetched.heads.get(branch))


def _bring_head(local: Repository, remote: Repository, commit: str, place: Place) -> None:
    try:
        with writing(local.store):
            bring_metadata(local, remote, {commit}, is_all=False)
    except NotFoundError as error:
        raise NotFoundError(
            f"{place.head} is at the commit {commit[:12]}, which {remote.store.url} does not have whole. Push it "
            f"there from where it was made, and clone again; or check out a version of {place.head.name} that is "
            f"there. ({error})"
        ) from None
